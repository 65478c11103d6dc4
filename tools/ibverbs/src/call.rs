//! How C calls: nothing unwinds into it, and every failure becomes an error number.

use std::error::Error;
use std::ffi::c_int;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use roce::verbs::{CreateError, DestroyError, Errno, KeyError, ModifyError, PostError};

/// Why a call fails: the number that C gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed(pub(crate) c_int);

pub(crate) type Result<T, E = Failed> = std::result::Result<T, E>;

impl Failed {
    pub(crate) const EINVAL: Self = Self(libc::EINVAL);
    pub(crate) const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    pub(crate) const EAGAIN: Self = Self(libc::EAGAIN);
    pub(crate) const ENODEV: Self = Self(libc::ENODEV);
    pub(crate) const EBUSY: Self = Self(libc::EBUSY);
    pub(crate) const ENOENT: Self = Self(libc::ENOENT);

    /// The number behind any error: that of the system call that failed, or else `otherwise`.
    pub(crate) fn from_any(error: &(dyn Error + 'static), otherwise: c_int) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(code) = error.downcast_ref().and_then(io::Error::raw_os_error) {
                return Self(code);
            }
            next = error.source();
        }
        Self(otherwise)
    }
}

impl From<Errno> for Failed {
    fn from(errno: Errno) -> Self {
        Self(errno.0)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::from_any(&error, libc::EIO)
    }
}

macro_rules! errors {
    ($($error:ident)*) => {
        $(impl From<$error> for Failed {
            fn from(error: $error) -> Self {
                error.errno().into()
            }
        })*
    };
}

errors!(CreateError DestroyError KeyError ModifyError PostError);

/// A call that returns 0, or an error number.
#[inline]
pub(crate) fn code(call: impl FnOnce() -> Result<()>) -> c_int {
    match guarded(call) {
        Ok(()) => 0,
        Err(Failed(code)) => {
            set_errno(code);
            code
        }
    }
}

/// A call that returns a pointer, or null and sets `errno`.
pub(crate) fn pointer<T>(call: impl FnOnce() -> Result<*mut T>) -> *mut T {
    match guarded(call) {
        Ok(pointer) => pointer,
        Err(Failed(code)) => {
            set_errno(code);
            ptr::null_mut()
        }
    }
}

/// A call that returns a number that is not negative, or -1 and sets `errno`.
#[inline]
pub(crate) fn number<N: From<i8>>(call: impl FnOnce() -> Result<N>) -> N {
    match guarded(call) {
        Ok(number) => number,
        Err(Failed(code)) => {
            set_errno(code);
            N::from(-1)
        }
    }
}

/// A call that returns a number that is not negative, or an error number that is.
pub(crate) fn negative(call: impl FnOnce() -> Result<isize>) -> isize {
    guarded(call).unwrap_or_else(|Failed(code)| -isize::try_from(code).unwrap_or(1))
}

/// A call that cannot say that it failed.
pub(crate) fn quiet(call: impl FnOnce() -> Result<()>) {
    // There is nobody to be told.
    let _ = guarded(call);
}

/// What a panic does here is what a broken device does.
#[inline]
fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    // Whatever was half done is behind locks that do not mind.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Failed(libc::EIO)))
}

pub(crate) fn set_errno(code: c_int) {
    // SAFETY: a function without a contract.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the place is this thread's own.
    unsafe { place.write(code) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_the_device_and_goes_no_further() {
        let errno = || io::Error::last_os_error().raw_os_error();
        assert_eq!(code(|| panic!("on purpose")), libc::EIO);
        set_errno(0);
        assert_eq!(number::<c_int>(|| panic!("on purpose")), -1);
        assert_eq!(errno(), Some(libc::EIO));
        set_errno(0);
        assert!(pointer::<u8>(|| panic!("on purpose")).is_null());
        assert_eq!(errno(), Some(libc::EIO));
        assert_eq!(negative(|| panic!("on purpose")), -5);
        quiet(|| panic!("on purpose"));
    }
}
