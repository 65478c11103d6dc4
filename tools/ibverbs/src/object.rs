//! What a program holds a pointer to.
//!
//! C knows the beginning of each object and may read it, and write some of it, at any time. So what C knows lies in an
//! `UnsafeCell`, of which no reference is ever formed; the rest is this library's, and shared by threads as Rust has it.

use crate::call::{Failed, Result};
use crate::fork::Generation;

/// An object as it lies in memory: C knows where it begins, and not that something follows.
#[repr(C)]
struct Held<T> {
    object: T,
    /// Whose it is.
    generation: Generation,
}

/// An object whose beginning C knows as `C`.
///
/// # Safety
///
/// It must be `repr(C)` and begin with an `UnsafeCell<C>`.
pub(crate) unsafe trait Object: Sized {
    /// What C calls it.
    type C;

    /// The object, for C to hold. It is there until it is [taken](Self::take).
    fn give(self) -> *mut Self::C {
        let generation = Generation::current();
        Box::into_raw(Box::new(Held { object: self, generation })).cast()
    }

    /// The object that C holds, if it is this process's.
    ///
    /// # Safety
    ///
    /// `held` must be null, or come from [`give`](Self::give) and not have been taken.
    #[inline]
    unsafe fn of<'a>(held: *const Self::C) -> Result<&'a Self> {
        // SAFETY: the caller vouches for it, and what C may write lies in a cell.
        let held = unsafe { held.cast::<Held<Self>>().as_ref() }.ok_or(Failed::EINVAL)?;
        held.generation.check()?;
        Ok(&held.object)
    }

    /// The object that C holds, even if it is a parent's: only what never changes of it may be used.
    ///
    /// # Safety
    ///
    /// As for [`of`](Self::of).
    unsafe fn inherited<'a>(held: *const Self::C) -> Result<&'a Self> {
        // SAFETY: the caller vouches for it, and what C may write lies in a cell.
        unsafe { held.cast::<Self>().as_ref() }.ok_or(Failed::EINVAL)
    }

    /// Takes the object back.
    ///
    /// # Safety
    ///
    /// As for [`of`](Self::of), and nobody may use it any more.
    unsafe fn take(held: *mut Self::C) -> Result<Self> {
        // SAFETY: the caller vouches for it.
        unsafe { Self::of(held) }?;
        // SAFETY: and it was made as such a box.
        Ok(unsafe { Box::from_raw(held.cast::<Held<Self>>()) }.object)
    }
}

/// What a program handed over to be read.
///
/// # Safety
///
/// `from` must be null, or point to what it says for as long as it is used.
#[inline]
pub(crate) unsafe fn given<'a, T>(from: *const T) -> Result<&'a T> {
    // SAFETY: the caller vouches for it.
    unsafe { from.as_ref() }.ok_or(Failed::EINVAL)
}

/// Writes where a program wants an answer.
///
/// # Safety
///
/// `to` must be null, or have room for it.
#[inline]
pub(crate) unsafe fn answer<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(Failed::EINVAL);
    }
    // SAFETY: the caller vouches for it.
    unsafe { to.write(value) };
    Ok(())
}

/// Declares what begins with a structure of C.
macro_rules! objects {
    ($($object:ident: $c:ty;)*) => {
        $(
            // SAFETY: its declaration says so.
            unsafe impl $crate::object::Object for $object {
                type C = $c;
            }
            // The beginning that C knows must be at the beginning.
            const _: () = assert!(core::mem::offset_of!($object, c) == 0);
        )*
    };
}

pub(crate) use objects;
