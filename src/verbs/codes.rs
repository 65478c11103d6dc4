//! Macro that declares named numbers: one line per value, from which everything else follows.

/// Declares an enumeration of C: each value with its number there, its constant's name there and
/// its text.
macro_rules! codes {
    ($(#[$meta:meta])* $enum:ident, $prefix:literal {
        $($(#[$doc:meta])* $variant:ident = $code:literal, $name:literal, $text:literal;)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $enum {
            $($(#[$doc])* $variant = $code,)*
        }

        impl $enum {
            /// Every value, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The number in C.
            #[inline]
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// The value with this number in C, or `None` if it is unassigned.
            #[inline]
            pub const fn from_code(code: u32) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The name of the constant in C.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!($prefix, $name),)*
                }
            }

            /// The value in words: those of `libibverbs` where it has any.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl core::fmt::Display for $enum {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.text())
            }
        }
    };
}

/// Lets a set of flags print as the constants of C that it holds: `IBV_QP_STATE | IBV_QP_PORT`.
macro_rules! names {
    ($set:ident, $prefix:literal) => {
        impl core::fmt::Display for $set {
            /// The constants of C, and bits without a name as a number; an empty set is 0.
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                let mut separator = "";
                let mut names = self.iter_names();
                for (name, _) in &mut names {
                    write!(f, concat!("{}", $prefix, "{}"), separator, name)?;
                    separator = " | ";
                }
                let rest = names.remaining().bits();
                if rest != 0 || self.is_empty() {
                    write!(f, "{separator}{rest:#x}")
                } else {
                    Ok(())
                }
            }
        }
    };
}

pub(crate) use codes;
pub(crate) use names;
