//! Whether standard output was open when the process started.
//!
//! Before `main`, the runtime of Rust opens /dev/null in place of each standard stream that is
//! closed, so that no file takes its number. From then on a closed standard output cannot be told
//! from one that the caller sent to /dev/null. A function that the loader calls before the runtime
//! can.
#![allow(unsafe_code, reason = "the loader calls it, and the C library answers it")]

use std::sync::atomic::{AtomicBool, Ordering};

static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

#[used]
// SAFETY: functions in this section have this signature, and this one uses nothing that `main`
// initializes.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: it reads the flags of a descriptor, and fails if there is none.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// Whether standard output was closed when the process started.
pub(super) fn was_closed() -> bool {
    WAS_CLOSED.load(Ordering::Relaxed)
}
