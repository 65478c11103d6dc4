//! The progress bar.

use std::io::{self, IsTerminal};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// An input of at least this many bytes takes long enough for a progress bar.
const LONG_INPUT: u64 = 64 << 20;

/// How many packets pass between two looks at the progress.
pub(crate) const PROGRESS_STEP: u64 = 8192;

/// A bar on standard error if the input is long, standard error is a terminal, and nothing else is printed on it.
pub(crate) fn progress_bar(size: Option<u64>, prints: bool) -> ProgressBar {
    let screen_is_free = !prints || !io::stdout().is_terminal();
    match size {
        Some(size) if size >= LONG_INPUT && screen_is_free && io::stderr().is_terminal() => {
            let bar = ProgressBar::with_draw_target(Some(size), ProgressDrawTarget::stderr());
            let style = "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
            bar.set_style(ProgressStyle::with_template(style).expect("the template is valid"));
            bar
        }
        _ => ProgressBar::hidden(),
    }
}
