//! How C calls.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use library::memory::Region;
use library::net::Error;

pub(crate) const OK: i32 = 0;
pub(crate) const ERR: i32 = -1;

/// Why a call failed.
pub(crate) type Failure = Box<dyn std::error::Error>;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call of C. What panics is an error.
pub(crate) fn call<T>(failed: T, run: impl FnOnce() -> Result<T, Failure>) -> T {
    let text = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => return value,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the library panicked: this is a mistake of its own".to_owned(),
    };
    LAST.with_borrow_mut(|last| *last = CString::new(text).unwrap_or_default());
    failed
}

/// A call that has nothing to return.
pub(crate) fn done(run: impl FnOnce() -> Result<(), Failure>) -> i32 {
    call(ERR, || run().map(|()| OK))
}

/// What the last call of this thread that failed has to say. It is valid until the next one that fails.
#[unsafe(no_mangle)]
pub extern "C" fn rdmaLastError() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// A string of C.
pub(crate) fn text(pointer: *const c_char) -> Result<String, Failure> {
    if pointer.is_null() {
        return Err("an address is needed, not NULL".into());
    }
    // SAFETY: it is not NULL, and the caller passes strings that end with a zero.
    let text = unsafe { CStr::from_ptr(pointer) };
    Ok(text.to_str().map_err(|_| "an address is ASCII")?.to_owned())
}

/// Memory of the program.
pub(crate) fn memory(pointer: *const c_void, len: usize) -> Result<Region, Failure> {
    if pointer.is_null() && len > 0 {
        return Err("memory is needed, not NULL".into());
    }
    // SAFETY: no Rust reference to memory of the program is ever formed.
    Ok(unsafe { Region::foreign(pointer.cast_mut().cast(), len) })
}

/// A copy of memory of the program.
pub(crate) fn copy_in(pointer: *const c_void, len: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    if len > 0 {
        memory(pointer, len)?.append_to(0, len, &mut bytes)?;
    }
    Ok(bytes)
}

/// Copies to memory of the program.
pub(crate) fn copy_out(bytes: &[u8], pointer: *mut c_void) -> Result<(), Failure> {
    if !bytes.is_empty() {
        memory(pointer, bytes.len())?.write(0, bytes)?;
    }
    Ok(())
}

/// A connection that has ended is no surprise to its callbacks.
pub(crate) fn is_end(error: &Error) -> bool {
    matches!(error, Error::Lost(_) | Error::Closed | Error::Finished)
}
