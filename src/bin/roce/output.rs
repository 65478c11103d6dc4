//! What every subcommand that prints needs.

use std::io::{self, BufWriter, IsTerminal, Stdout};

use clap::ValueEnum;

/// When to use colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set.
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
                io::stdout().is_terminal() && !refused
            }
        }
    }
}

/// Columns of the terminal that standard output is; else what COLUMNS says; else nothing, and lines may have any length.
pub(crate) fn width() -> Option<usize> {
    let of_terminal = || {
        let stdout = io::stdout();
        let size = stdout.is_terminal().then(|| rustix::termios::tcgetwinsize(stdout).ok())??;
        (size.ws_col > 0).then_some(usize::from(size.ws_col))
    };
    let of_variable = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|&width| width > 0);
    of_terminal().or_else(of_variable)
}

/// Standard output, in large pieces. It can be written from any thread.
pub(crate) fn stdout() -> BufWriter<Stdout> {
    const PIECE: usize = 256 * 1024;
    BufWriter::with_capacity(PIECE, io::stdout())
}

/// Whether an error is that the reader of our output has gone.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    io.into_iter().any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// What a command says that cannot write Parquet files.
#[cfg(not(feature = "parquet"))]
pub(crate) const NO_PARQUET: &str = "--parquet: this roce was built without Parquet; \
    install it with `cargo install --path . --features parquet`";

/// A count and what is counted: `1 path`, `2 paths`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
