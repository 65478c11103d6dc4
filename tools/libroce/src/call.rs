//! The border to C: what panics or fails becomes a number and a text.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::error::{Code, Failure};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call of C. A failure becomes its number; a panic is a failure.
pub(crate) fn call<T: From<i32>>(run: impl FnOnce() -> Result<T, Failure>) -> T {
    guard(run).unwrap_or_else(|code| T::from(code.number()))
}

/// Runs a call of C that has nothing to return.
pub(crate) fn done(run: impl FnOnce() -> Result<(), Failure>) -> c_int {
    call(|| run().map(|()| 0))
}

/// Runs a call of C that returns `failed` if it fails.
pub(crate) fn call_or<T>(failed: T, run: impl FnOnce() -> Result<T, Failure>) -> T {
    guard(run).unwrap_or(failed)
}

/// Keeps the text of a failure for [`roce_last_error`].
fn guard<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Code> {
    let failure = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(Code::Bug, "the library panicked; standard error says where"),
    };
    let text = failure.text.replace('\0', " ");
    // A thread that ends has none any more.
    let _ = LAST.try_with(|last| *last.borrow_mut() = CString::new(text).unwrap_or_default());
    Err(failure.code)
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_strerror(error: c_int) -> *const c_char {
    Code::text_of(error).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn roce_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
