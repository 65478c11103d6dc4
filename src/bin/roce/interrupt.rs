//! Ctrl-C: the first one asks a subcommand to end and to report what it has, the second ends it at
//! once.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};

/// The exit status of a program that Ctrl-C ended: 128 and the number of SIGINT.
pub(crate) const STATUS: u8 = 130;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// A pipe that the first Ctrl-C writes to, so that a thread that waits for input can wait for it
/// too.
static WAKE: OnceLock<(PipeReader, PipeWriter)> = OnceLock::new();

/// Catches Ctrl-C from now on, if it is not caught yet. Returns what the first one sets.
pub(crate) fn catch() -> anyhow::Result<&'static AtomicBool> {
    const FAILED: &str = "cannot wait for Ctrl-C";
    if WAKE.get().is_none() && WAKE.set(io::pipe().context(FAILED)?).is_ok() {
        ctrlc::set_handler(|| {
            if REQUESTED.swap(true, Ordering::SeqCst) {
                std::process::exit(STATUS.into());
            }
            if let Some((_, writer)) = WAKE.get() {
                // If it cannot be written, a reader that waits ends with the second Ctrl-C.
                let _ = (&mut &*writer).write_all(&[0]);
            }
        })
        .context(FAILED)?;
    }
    Ok(&REQUESTED)
}

/// Whether Ctrl-C was pressed since it is caught.
#[inline]
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// A source that may make its reader wait, as a pipe does. After Ctrl-C it ends, also for a reader
/// that waits.
pub(crate) struct Waiting(pub(crate) File);

impl Read for Waiting {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let Some((wake, _)) = WAKE.get() else { return self.0.read(out) };
        let mut ready = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) if requested() => Ok(0),
            Ok(_) => self.0.read(out),
            // The caller tries again what a signal interrupted.
            Err(error) => Err(error.into()),
        }
    }
}
