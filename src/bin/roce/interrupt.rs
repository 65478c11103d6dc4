//! Ctrl-C: the first one asks a subcommand to end and to report what it has, the second ends it at once.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

/// The exit status of a program that Ctrl-C ended: 128 and the number of SIGINT.
pub(crate) const STATUS: u8 = 130;

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Catches Ctrl-C from now on. Returns what the first one sets.
pub(crate) fn catch() -> anyhow::Result<&'static AtomicBool> {
    ctrlc::set_handler(|| {
        if REQUESTED.swap(true, Ordering::SeqCst) {
            std::process::exit(STATUS.into());
        }
    })
    .context("cannot wait for Ctrl-C")?;
    Ok(&REQUESTED)
}
