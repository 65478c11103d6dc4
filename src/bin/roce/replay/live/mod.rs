//! `roce replay --to` and `--write`: a capture onto a wire, or into a rewritten capture.

mod args;
mod map;
mod read;
mod write;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use roce::replay::live::{Script, Target};

pub(crate) use args::LiveArgs;

/// Plays or writes what the options ask for.
pub(crate) fn run(files: &[PathBuf], args: &LiveArgs) -> Result<ExitCode> {
    let [file] = files else {
        bail!("--to and --write take one capture; merge several first (roce decode -w OUT)");
    };
    args.check(file)?;
    let scripts = read::scripts(file, args)?;
    let Some(out) = &args.write else {
        bail!("--to: sending is not built yet; --write OUT writes the rewritten capture");
    };
    let targets = targets(&scripts, args)?;
    write::write(out, &scripts, &targets, args.rounds)
        .with_context(|| format!("cannot write {}", out.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// What each script is mapped onto by the options alone.
fn targets(scripts: &[Script], args: &LiveArgs) -> Result<Vec<Target>> {
    scripts.iter().map(|script| map::target(script, scripts.len(), &args.maps)).collect()
}
