//! Standard output, as every subcommand that prints uses it.

mod closed;

use std::io::{self, BufWriter, IsTerminal, LineWriter, Stdout, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use roce::decode::PrintableLines;

/// Use of colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// Colors on a terminal, unless NO_COLOR is set or TERM is dumb.
    #[default]
    Auto,
    /// Even into a pipe.
    Always,
    /// Not even on a terminal.
    Never,
}

impl Color {
    /// Whether standard output is to be colored.
    pub(crate) fn wanted(self) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto => {
                let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
                io::stdout().is_terminal() && !refused && !is_dumb()
            }
        }
    }
}

/// Whether the terminal knows no escape sequences.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|value| value == "dumb")
}

/// Columns of the terminal that standard output is; else what COLUMNS says; else nothing, and lines
/// may have any length.
pub(crate) fn width() -> Option<usize> {
    let of_variable = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|&width| width > 0);
    columns(io::stdout()).or_else(of_variable)
}

/// Columns of a stream, if it is a terminal that tells them.
fn columns(stream: impl IsTerminal + AsFd) -> Option<usize> {
    let size = stream.is_terminal().then(|| rustix::termios::tcgetwinsize(stream).ok())??;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// A text behind a head, broken between words at a width; further lines begin below the text.
pub(crate) fn paragraph(head: &str, text: &str, width: usize) -> String {
    let text = PrintableLines(text).to_string();
    let indent = head.chars().count();
    let (mut lines, mut line, mut length) = (String::new(), head.to_owned(), indent);
    for word in text.split_whitespace() {
        let word_length = word.chars().count();
        if length > indent && length + word_length >= width {
            lines.push_str(line.trim_end());
            lines.push('\n');
            (line, length) = (" ".repeat(indent), indent);
        }
        line.push_str(word);
        line.push(' ');
        length += word_length + 1;
    }
    lines.push_str(line.trim_end());
    lines.push('\n');
    lines
}

/// Standard output, in large pieces. It can be written from any thread.
pub(crate) fn stdout() -> BufWriter<StandardOutput> {
    const PIECE: usize = 256 * 1024;
    BufWriter::with_capacity(PIECE, StandardOutput(io::stdout()))
}

/// Standard output, line by line, for what a user follows as it happens.
pub(crate) fn lines() -> LineWriter<StandardOutput> {
    LineWriter::new(StandardOutput(io::stdout()))
}

/// Standard output, which fails if the caller closed it: the runtime of Rust replaces it by
/// /dev/null then, where all that a command found would be lost with exit status 0.
pub(crate) struct StandardOutput(Stdout);

/// Whether the reader of standard output has gone.
static READER_IS_GONE: AtomicBool = AtomicBool::new(false);

impl StandardOutput {
    /// Notes that the reader is gone, and has any other error name the stream.
    fn note<T>(result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => {
                READER_IS_GONE.store(true, Ordering::Relaxed);
                error
            }
            kind => io::Error::new(kind, format!("cannot write to standard output: {error}")),
        })
    }
}

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::note(check_open().and_then(|()| self.0.write(bytes)))
    }

    fn flush(&mut self) -> io::Result<()> {
        Self::note(self.0.flush())
    }
}

/// Fails if standard output was closed when the process started.
pub(crate) fn check_open() -> io::Result<()> {
    if closed::was_closed() {
        return Err(io::Error::other("standard output is closed"));
    }
    Ok(())
}

/// Whether an error is that the reader of standard output has gone. Connections to peers break in
/// the same way; that is an error.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind_of = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        io.or_else(|| cause.downcast_ref::<serde_json::Error>()?.io_error_kind())
    };
    READER_IS_GONE.load(Ordering::Relaxed)
        && error.chain().any(|cause| kind_of(cause) == Some(io::ErrorKind::BrokenPipe))
}

/// An error and its causes in a line, without those that the message before has in it: errors of
/// links have the error of the system in their messages.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let mut line = String::new();
    let mut last = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if last.is_empty() {
            line.push_str(&text);
        } else if !last.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        last = text;
    }
    line
}

/// Says one line on standard error, in one write: lines of several threads and processes do not
/// mix. On a terminal it is broken between words. Text from outside in it is made harmless.
///
/// A line that cannot be written is lost; the exit status still tells how the command ended.
pub(crate) fn remark(text: &str) {
    const HEAD: &str = "roce: ";
    let said = match columns(io::stderr()) {
        Some(width) if !text.contains('\n') => paragraph(HEAD, text, width),
        _ => format!("{HEAD}{}\n", PrintableLines(text)),
    };
    let _ = io::stderr().write_all(said.as_bytes());
}

/// Says one line on standard error: [`remark`] with the arguments of `format!`.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::remark(&format!($($text)*)) };
}
pub(crate) use say;

/// Message of a command that cannot write Parquet files.
#[cfg(not(feature = "parquet"))]
pub(crate) const NO_PARQUET: &str = "--parquet: this roce was built without Parquet; \
    install it with `cargo install --path . --features parquet`";

/// A count and what is counted: `1 path`, `2 paths`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use roce::link::OpenError;

    use super::*;

    #[test]
    fn cause_that_the_message_has_is_not_repeated() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let source = denied();
        let link = OpenError::Tun { path: "/dev/net/tun", source };
        let line = chain(&anyhow::Error::from(link).context("-d tap:t0"));
        assert!(line.starts_with("-d tap:t0: cannot open /dev/net/tun: permission denied; "));
        assert_eq!(line.matches("permission denied").count(), 1, "{line}");
        let line = chain(&anyhow::Error::from(denied()).context("--pcap a"));
        assert_eq!(line, "--pcap a: permission denied");
    }

    #[test]
    fn lines_are_broken_at_the_width_and_aligned() {
        let text = paragraph("note  ", "one two three four\u{1b}[1m", 16);
        assert_eq!(text, "note  one two\n      three\n      four\\u{1b}[1m\n");
    }
}
