//! The man page, and completions for shells, from the same definitions as the help.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory};

use crate::{Cli, output};

/// Print completions for a shell
///
/// bash: roce completions bash > /etc/bash_completion.d/roce
/// zsh:  roce completions zsh > "${fpath[1]}/_roce"
/// fish: roce completions fish > ~/.config/fish/completions/roce.fish
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: clap_complete::Shell,
}

/// Print the man page, or write one per subcommand
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Write roce.1, roce-decode.1 … into this directory, which is created if need be.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "roce", &mut text);
    write_out(&text)
}

pub(crate) fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    match &args.out {
        Some(dir) => std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), dir))
            .with_context(|| format!("cannot write man pages to {}", dir.display()))?,
        None => {
            let mut text = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut text)?;
            write_out(&text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write_out(text: &[u8]) -> anyhow::Result<ExitCode> {
    let mut out = output::stdout();
    out.write_all(text)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
