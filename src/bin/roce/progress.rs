//! The progress bar of what takes longer than a second.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// Time after which a bar is shown.
const SHOWN_AFTER: Duration = Duration::from_secs(1);

/// Number of packets between two updates of the progress bar.
pub(crate) const PROGRESS_STEP: u64 = 8192;

/// Whether standard error is a terminal on which a bar can be drawn anew.
pub(crate) fn can_draw() -> bool {
    io::stderr().is_terminal() && !output::is_dumb()
}

/// Progress of reading an input.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Time when the reading began; `None` if no bar is to be shown.
    began: Option<Instant>,
    is_shown: AtomicBool,
}

impl Progress {
    /// Progress in an input of this size, if it is known. `prints` says that the command prints as
    /// it reads: then a terminal has no place for a bar.
    pub(crate) fn new(size: Option<u64>, prints: bool) -> Self {
        let has_place = can_draw() && !(prints && io::stdout().is_terminal());
        let (bar, style) = match size {
            Some(size) => (
                ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::hidden()),
                "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            ),
            None => (
                ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()),
                "{spinner} {bytes} read, {bytes_per_sec}",
            ),
        };
        bar.set_style(ProgressStyle::with_template(style).expect("the template is valid"));
        Self { bar, began: has_place.then(now), is_shown: AtomicBool::new(false) }
    }

    /// Tells how many bytes were read so far.
    pub(crate) fn set_position(&self, bytes: u64) {
        let Some(began) = self.began else { return };
        if !self.is_shown.load(Ordering::Relaxed) {
            if now().saturating_duration_since(began) < SHOWN_AFTER {
                return;
            }
            self.is_shown.store(true, Ordering::Relaxed);
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(bytes);
    }

    /// Removes the bar from the terminal.
    pub(crate) fn finish_and_clear(&self) {
        self.bar.finish_and_clear();
    }
}

#[expect(clippy::disallowed_methods, reason = "a user waits in real time")]
fn now() -> Instant {
    Instant::now()
}
