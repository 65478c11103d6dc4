//! Macro that declares a structure of C once, together with a table of its layout that a test
//! checks.
#![allow(unsafe_code, reason = "structures of C that may be zero")]

/// A structure or a union of C as this room has it, to be compared with a header.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Name in C, with its keyword: `struct ibv_sge`. If C gives it no name, the structure it is
    /// in.
    pub c_name: &'static str,
    /// Path of the structure inside that one, if C gives it no name: `wr.rdma`; `*` if C does not
    /// name its place either.
    pub path: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Fields, in order.
    pub fields: &'static [Field],
}

/// A field of a [`Layout`].
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name in C.
    pub c_name: &'static str,
    /// Offset in bytes.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}

/// A function that C calls through a structure; `None` is `NULL`.
macro_rules! op {
    ($($argument:ty),* $(=> $result:ty)?) => {
        Option<unsafe extern "C" fn($($argument),*) $(-> $result)?>
    };
}

/// Declares structures and unions of C: `struct name { field: type }`. One that C gives no name
/// says where it is: `struct name in "struct outer" at "path"`. A field that C calls otherwise,
/// because it stands for an unnamed union, says by which of its names it is found there:
/// `field as "name": type`. `LAYOUTS` lists them all.
macro_rules! layouts {
    ($($(#[$doc:meta])* $kind:ident $name:ident $(in $outer:literal at $path:literal)? {
        $($field:ident $(as $c_field:literal)?: $type:ty,)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            #[repr(C)]
            #[allow(missing_docs, reason = "fields are as in C, and the manual tells of them")]
            pub $kind $name {
                $(pub $field: $type,)*
            }

            // SAFETY: the compiler sees to it that every field can be zero.
            #[allow(unsafe_code, reason = "the compiler checks each field")]
            unsafe impl $crate::ibverbs::layout::Zero for $name where $($type: $crate::ibverbs::layout::Zero,)* {}

            impl $name {
                /// One in which every number is zero and every pointer is null.
                pub const fn zeroed() -> Self {
                    $crate::ibverbs::layout::zeroed()
                }
            }

            impl Default for $name {
                fn default() -> Self {
                    Self::zeroed()
                }
            }

            $crate::ibverbs::layout::debug!($kind $name { $($field)* });
        )*

        /// Layouts that are declared here.
        pub(super) const LAYOUTS: &[$crate::ibverbs::layout::Layout] = &[$({
            use $crate::ibverbs::layout::{Field, Layout, choose};
            Layout {
                c_name: choose(&[$($outer,)? concat!(stringify!($kind), " ", stringify!($name))]),
                path: choose(&[$($path,)? ""]),
                size: size_of::<$name>(),
                fields: &[$(Field {
                    c_name: choose(&[$($c_field,)? stringify!($field)]),
                    offset: core::mem::offset_of!($name, $field),
                    size: size_of::<$type>(),
                },)*],
            }
        }),*];
    };
}

/// A structure prints its fields, a union its name.
macro_rules! debug {
    (struct $name:ident { $($field:ident)* }) => {
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &self.$field))*.finish()
            }
        }
    };
    (union $name:ident { $($field:ident)* }) => {
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}

pub(super) use {debug, layouts, op};

/// The first of one or two names.
pub(super) const fn choose(names: &[&'static str]) -> &'static str {
    names[0]
}

/// Types of which all zeros is a value: numbers, pointers, optional functions, and structures of
/// them.
///
/// # Safety
///
/// A value of which every byte is zero must be valid.
pub(super) unsafe trait Zero {}

/// Returns a value of zeros.
pub(super) const fn zeroed<T: Zero>() -> T {
    // SAFETY: that is what the trait stands for.
    unsafe { core::mem::zeroed() }
}

macro_rules! zero {
    ($($(#[$generic:ident])* $type:ty;)*) => {
        $(
            // SAFETY: a number that is zero, a pointer that is null, a function that is missing.
            unsafe impl<$($generic),*> Zero for $type {}
        )*
    };
}

zero! {
    u8;
    u16;
    u32;
    u64;
    usize;
    i8;
    i32;
    i64;
    #[T] *mut T;
    #[T] *const T;
    #[R] Option<unsafe extern "C" fn() -> R>;
    #[A] #[R] Option<unsafe extern "C" fn(A) -> R>;
    #[A] #[B] #[R] Option<unsafe extern "C" fn(A, B) -> R>;
    #[A] #[B] #[C] #[R] Option<unsafe extern "C" fn(A, B, C) -> R>;
    #[A] #[B] #[C] #[D] #[R] Option<unsafe extern "C" fn(A, B, C, D) -> R>;
    #[A] #[B] #[C] #[D] #[E] #[R] Option<unsafe extern "C" fn(A, B, C, D, E) -> R>;
    #[A] #[B] #[C] #[D] #[E] #[F] #[R] Option<unsafe extern "C" fn(A, B, C, D, E, F) -> R>;
}

// SAFETY: each of them may be zero.
unsafe impl<T: Zero, const N: usize> Zero for [T; N] {}
