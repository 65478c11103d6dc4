//! Completions for shells, from the same definitions as the help.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, CommandFactory};

use crate::{Cli, output};

/// Print completions for a shell
///
///   bash  roce completions bash > /etc/bash_completion.d/roce
///   zsh   roce completions zsh > "${fpath[1]}/_roce"
///   fish  roce completions fish > ~/.config/fish/completions/roce.fish
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: clap_complete::Shell,
}

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "roce", &mut text);
    let mut out = output::stdout();
    out.write_all(&text)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
