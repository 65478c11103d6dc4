//! Strings and memory of the program, which are copied and never referred to.

use std::ffi::{c_char, c_int, c_void};
use std::time::{Duration, Instant};

use library::memory::Region;

use super::error::{Code, Failure};

/// Bytes of a string that the program passes, at most.
const TEXT_MAX: usize = 1024;

/// Returns a string of the program.
pub(crate) fn text(pointer: *const c_char) -> Result<String, Failure> {
    let whole = region(pointer.cast(), TEXT_MAX)?;
    let mut bytes = Vec::new();
    for at in 0..TEXT_MAX {
        let mut byte = [0];
        // One by one: what lies behind the string may be not mapped.
        whole.read(at as u64, &mut byte)?;
        match byte {
            [0] => break,
            [byte] => bytes.push(byte),
        }
    }
    if bytes.len() == TEXT_MAX {
        return Err(Failure::invalid(format_args!("a string of more than {TEXT_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| Failure::invalid("a string that is no text"))
}

/// Returns memory of the program.
pub(crate) fn region(pointer: *const c_void, len: usize) -> Result<Region, Failure> {
    if pointer.is_null() {
        return Err(Failure::invalid("NULL where memory is needed"));
    }
    if pointer.addr().checked_add(len).is_none() {
        let text = format_args!("{len} bytes at {pointer:p} are more than there are addresses");
        return Err(Failure::invalid(text));
    }
    // SAFETY: no Rust reference to memory of the program is ever formed.
    Ok(unsafe { Region::foreign(pointer.cast_mut().cast(), len) })
}

/// Returns a copy of memory of the program. NULL is no bytes.
pub(crate) fn copy_in(pointer: *const c_void, len: usize) -> Result<Vec<u8>, Failure> {
    append(Vec::new(), pointer, len)
}

/// Appends a copy of memory of the program to some bytes.
pub(crate) fn append(
    mut bytes: Vec<u8>,
    pointer: *const c_void,
    len: usize,
) -> Result<Vec<u8>, Failure> {
    if len > 0 {
        let region = region(pointer, len)?;
        let none = |_| Failure::new(Code::NoMemory, format_args!("no memory for {len} bytes"));
        bytes.try_reserve_exact(len).map_err(none)?;
        region.append_to(0, len, &mut bytes)?;
    }
    Ok(bytes)
}

/// Returns a copy of an object of the program.
pub(crate) fn copy_array<const N: usize>(pointer: *const c_void) -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    region(pointer, N)?.read(0, &mut bytes)?;
    Ok(bytes)
}

/// Copies to memory of the program. NULL is for no bytes.
pub(crate) fn copy_out(bytes: &[u8], pointer: *mut c_void) -> Result<(), Failure> {
    if !bytes.is_empty() {
        region(pointer, bytes.len())?.write(0, bytes)?;
    }
    Ok(())
}

/// Copies a text with a zero at its end, as far as there is room; returns its length.
pub(crate) fn put_text(text: &str, buf: *mut c_char, len: usize) -> Result<c_int, Failure> {
    if let Some(room) = len.checked_sub(1) {
        let mut bytes = text.as_bytes().get(..room).unwrap_or(text.as_bytes()).to_vec();
        bytes.push(0);
        copy_out(&bytes, buf.cast())?;
    }
    c_int::try_from(text.len()).map_err(|_| Failure::invalid("a text that is too long"))
}

/// Returns the time of a timeout in milliseconds; without a limit if it is negative.
pub(crate) fn timeout(milliseconds: c_int) -> Duration {
    u64::try_from(milliseconds).map_or(Duration::MAX, Duration::from_millis)
}

/// Returns the time: the program waits in real time.
#[expect(clippy::disallowed_methods, reason = "the program waits in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
