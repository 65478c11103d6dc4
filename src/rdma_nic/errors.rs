//! Conversions of error numbers of C to errors of verbs.

use core::ffi::c_int;
use std::io;

use crate::verbs::{CreateError, DestroyError, Errno, KeyError, PostError};

/// Returns the error number of the last call of C that returned null.
pub(super) fn last_errno() -> Errno {
    // A function may fail without setting `errno`: this counts as a refusal.
    io::Error::last_os_error().raw_os_error().filter(|&code| code > 0).map_or(Errno::EINVAL, Errno)
}

/// Converts the result of a function of C: zero, or an error number, or, with some functions, a
/// negative one, or -1 and `errno`.
pub(super) fn check(code: c_int) -> Result<(), Errno> {
    match code {
        0 => Ok(()),
        -1 => Err(last_errno()),
        code => Err(Errno(code.checked_abs().unwrap_or(Errno::EINVAL.0))),
    }
}

/// Converts an error number to an error of the operating system.
pub(super) fn to_io(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.0)
}

pub(super) fn not_made(errno: Errno) -> CreateError {
    match errno {
        Errno::ENOMEM => CreateError::Full,
        errno => CreateError::Refused(errno),
    }
}

pub(super) fn not_posted(errno: Errno) -> PostError {
    match errno {
        Errno::ENOMEM => PostError::QueueFull,
        Errno::EOPNOTSUPP | Errno::ENOSYS => PostError::Unsupported,
        errno => PostError::Refused(errno),
    }
}

pub(super) fn not_destroyed(errno: Errno) -> DestroyError {
    match errno {
        Errno::EBUSY => DestroyError::Busy,
        errno => DestroyError::Refused(errno),
    }
}

/// Converts an error of destroying a region or a window.
pub(super) fn key_not_destroyed(error: DestroyError) -> KeyError {
    match error {
        DestroyError::NotFound => KeyError::NotFound,
        DestroyError::Busy => KeyError::InUse,
        DestroyError::Refused(errno) => KeyError::Refused(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_say_no_is_understood() {
        assert_eq!(check(0), Ok(()));
        assert_eq!(check(12), Err(Errno::ENOMEM));
        assert_eq!(check(-22), Err(Errno::EINVAL));
        assert_eq!(check(c_int::MIN), Err(Errno::EINVAL));
        assert!(check(-1).is_err());
    }
}
