//! Calls from C: nothing unwinds into it, and every failure becomes an error number.
//!
//! `pthread_cancel` ends a thread by unwinding from a cancellation point, which Rust must not be
//! unwound by. So threads cannot be canceled during a call, but while it waits for an event
//! ([`waiting`]). Functions of the data path, which `fast_code`, `fast_number` and `fast_quiet` are
//! for, do without that: it takes 20 ns, and what they call are no cancellation points.

use std::error::Error;
use std::ffi::{c_int, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use roce::verbs::{CreateError, DestroyError, Errno, KeyError, ModifyError, PostError};

use crate::reserve;

/// Error number of a call that fails.
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
    pub(crate) const ENOSPC: Self = Self(libc::ENOSPC);
    pub(crate) const ENOSYS: Self = Self(libc::ENOSYS);
    pub(crate) const EFAULT: Self = Self(libc::EFAULT);

    /// The number behind any error: that of the system call that failed, or else `otherwise`.
    pub(crate) fn from_any(error: &(dyn Error + 'static), otherwise: c_int) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<io::Error>() {
                if let Some(code) = error.raw_os_error() {
                    return Self(code);
                }
                if error.kind() == io::ErrorKind::OutOfMemory {
                    return Self(libc::ENOMEM);
                }
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

/// Whether a call that may wait is done.
pub(crate) enum Attempt {
    /// The operation is done.
    Done,
    /// The operation has to wait until a byte can be read from this descriptor, and to be tried
    /// again.
    Wait(c_int),
    /// The descriptor was closed by another thread during the call.
    Closed,
}

unsafe extern "C-unwind" {
    fn read(fd: c_int, buffer: *mut c_void, count: usize) -> isize;
    fn pause() -> c_int;
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// A call that waits for a descriptor until `attempt`, which is told whether the call has just
/// waited, is done; 0, or -1 and sets `errno`. The thread can be canceled while it waits: then this
/// unwinds, and neither `attempt` nor the caller may have anything to be dropped.
///
/// It waits by `read`, as the kernel's channels are waited for: after a signal, that goes on if the
/// handler was installed with `SA_RESTART`, and fails with `EINTR` if not. `poll` always fails.
#[inline]
pub(crate) fn waiting(attempt: impl FnMut(bool) -> Result<Attempt> + Copy) -> c_int {
    waiting_or(attempt, || {})
}

/// A call as [`waiting`], of a file that another thread may close meanwhile: the thread stays
/// blocked then, as in a call of the kernel, until it is canceled or the process ends.
pub(crate) fn waiting_on_file(attempt: impl FnMut(bool) -> Result<Attempt> + Copy) -> c_int {
    waiting_or(attempt, || {
        loop {
            // SAFETY: a system call without arguments.
            unsafe { pause() };
        }
    })
}

/// A call that waits; `closed` is called if the descriptor is closed while it does.
#[inline]
fn waiting_or(
    mut attempt: impl FnMut(bool) -> Result<Attempt> + Copy,
    closed: impl Fn() + Copy,
) -> c_int {
    let mut has_waited = false;
    loop {
        let fd = match guarded(|| attempt(has_waited)) {
            Ok(Attempt::Done) => return 0,
            Ok(Attempt::Wait(fd)) => fd,
            Ok(Attempt::Closed) => {
                closed();
                set_errno(libc::EBADF);
                return -1;
            }
            Err(Failed(code)) => {
                if has_waited && code == libc::EBADF {
                    closed();
                }
                set_errno(code);
                return -1;
            }
        };
        let mut byte = 0_u8;
        // SAFETY: there is room for a byte.
        match unsafe { read(fd, (&raw mut byte).cast(), 1) } {
            1.. => {}
            // The channel was destroyed meanwhile.
            0 => {
                closed();
                set_errno(libc::EBADF);
                return -1;
            }
            _ => return -1,
        }
        has_waited = true;
    }
}

/// Calls as [`code`] does, on the data path.
#[inline]
pub(crate) fn fast_code(call: impl FnOnce() -> Result<()>) -> c_int {
    match caught(call) {
        Ok(()) => 0,
        Err(Failed(code)) => {
            set_errno(code);
            code
        }
    }
}

/// Calls as [`number`] does, on the data path.
#[inline]
pub(crate) fn fast_number(call: impl FnOnce() -> Result<c_int>) -> c_int {
    match caught(call) {
        Ok(number) => number,
        Err(Failed(code)) => {
            set_errno(code);
            -1
        }
    }
}

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

/// A call that returns a pointer to something new, or null and sets `errno`.
pub(crate) fn pointer<T>(call: impl FnOnce() -> Result<*mut T>) -> *mut T {
    match guarded(|| reserve::check().and_then(|()| call())) {
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
    let _ = guarded(call);
}

/// Calls as [`quiet`] does, on the data path.
#[inline]
pub(crate) fn fast_quiet(call: impl FnOnce() -> Result<()>) {
    let _ = caught(call);
}

/// Calls while the thread cannot be canceled.
#[inline]
fn guarded<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    const DISABLE: c_int = 1;
    let mut old = 0;
    // SAFETY: the place is ours.
    unsafe { pthread_setcancelstate(DISABLE, &raw mut old) };
    let result = caught(call);
    // SAFETY: it is what it was.
    unsafe { pthread_setcancelstate(old, ptr::null_mut()) };
    result
}

/// Catches a panic, which has the effect of a broken device.
#[inline]
pub(crate) fn caught<T>(call: impl FnOnce() -> Result<T>) -> Result<T> {
    // Whatever was half done is behind locks that do not mind.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Failed(libc::EIO)))
}

/// Runs a call that needs much stack in a thread of its own: the program's may have the smallest
/// stack that there is, which is 16 KiB. No signal of the program's is delivered there.
pub(crate) fn on_own_stack<T: Send>(call: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    const STACK: usize = 1 << 20;
    roce::link::on_stack(STACK, call)?
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
