//! Captures of this process: closed when it ends, and reported when they cannot be written.
//!
//! Many programs exit with their devices open. A capture without its closing block counts as cut,
//! so those that are still open are closed at `exit`. A program that a signal ends leaves them
//! open, which is what happened.

use std::os::unix::net::UnixDatagram;
use std::process;
use std::sync::{Mutex, MutexGuard, Once};
use std::thread;
use std::time::Duration;

use roce::ibverbs::files::CAPTURE_REPORT;
use roce::link::tap::{TapHandle, WeakTapHandle};

use crate::env;

/// Captures and the process that opened each: a forked child has its parent's in its memory, but
/// not their links.
static OPEN: Mutex<Vec<(u32, WeakTapHandle)>> = Mutex::new(Vec::new());

/// Tries of a lock that a thread may hold which will never give it back: one that called `exit` in
/// a signal handler, or one of the parent's.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(1);

fn open() -> Option<MutexGuard<'static, Vec<(u32, WeakTapHandle)>>> {
    for _ in 0..TRIES {
        if let Ok(open) = OPEN.try_lock() {
            return Some(open);
        }
        thread::sleep(PAUSE);
    }
    None
}

/// Has a capture closed when the process exits, and its first error reported.
pub(crate) fn watch(capture: &TapHandle, path: String) {
    static ONCE: Once = Once::new();
    // SAFETY: the function is there for as long as the process, as this library is. Without it,
    // captures count as cut.
    ONCE.call_once(|| _ = unsafe { libc::atexit(close_all) });
    capture.on_failure(move |error| report(&path, &format!("{error}; the capture is cut here")));
    if let Some(mut open) = open() {
        open.retain(|(_, capture)| capture.upgrade().is_some());
        open.push((process::id(), capture.downgrade()));
    }
}

extern "C" fn close_all() {
    crate::call::quiet(|| {
        let Some(open) = open() else { return Ok(()) };
        let own = open.iter().filter(|(owner, _)| *owner == process::id());
        for capture in own.filter_map(|(_, capture)| capture.upgrade()) {
            for _ in 0..TRIES {
                if capture.try_close() {
                    break;
                }
                thread::sleep(PAUSE);
            }
        }
        Ok(())
    });
}

/// Reports why a capture cannot be written: to `roce run`, or on standard error where that cannot
/// be reached.
pub(crate) fn report(path: &str, why: &str) {
    let line = format!("{path}: {why}");
    env::log(&line);
    let supervisor = env::variable(CAPTURE_REPORT);
    let socket = supervisor.as_deref().and_then(|text| text.split_once(':')).map(|(_, path)| path);
    let sent = socket.is_some_and(|socket| {
        let sender =
            UnixDatagram::unbound().and_then(|own| own.set_nonblocking(true).map(|()| own));
        sender.is_ok_and(|own| own.send_to(line.as_bytes(), socket).is_ok())
    });
    if !sent {
        let line = format!("roce: {line}\n");
        // SAFETY: the bytes are those of `line`. There is nowhere else to say it.
        unsafe { libc::syscall(libc::SYS_write, libc::STDERR_FILENO, line.as_ptr(), line.len()) };
    }
}
