//! The progress bar of commands that read long captures.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// An input of at least this many bytes takes long enough for a progress bar.
const LONG_INPUT: u64 = 64 << 20;

/// Number of packets between two updates of the progress bar.
pub(crate) const PROGRESS_STEP: u64 = 8192;

/// Whether standard error is a terminal on which a bar can be drawn anew.
pub(crate) fn can_draw() -> bool {
    io::stderr().is_terminal() && !output::is_dumb()
}

/// A bar on standard error if the input is long, standard error is a terminal, and nothing else is
/// printed on it.
pub(crate) fn progress_bar(size: Option<u64>, prints: bool) -> ProgressBar {
    let screen_is_free = !prints || !io::stdout().is_terminal();
    match size {
        Some(size) if size >= LONG_INPUT && screen_is_free && can_draw() => {
            let bar = ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::stderr());
            let style = "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            bar.set_style(ProgressStyle::with_template(style).expect("the template is valid"));
            bar
        }
        _ => ProgressBar::hidden(),
    }
}
