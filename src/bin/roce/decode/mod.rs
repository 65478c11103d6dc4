//! `roce decode`: prints, filters, summarizes and converts the packets of captures.

mod args;
mod flows;
mod form;
#[cfg(feature = "parquet")]
mod parquet;
mod run;
mod show;
mod write;

use std::io::Write;
use std::process::ExitCode;

use roce::decode::FieldRef;

pub(crate) use self::args::{Args, parse_filter};
use self::run::Run;
use crate::input::Inputs;
use crate::output;

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut out = output::stdout();
    if args.list_fields {
        for field in FieldRef::names().iter().filter_map(|name| FieldRef::find(name)) {
            writeln!(out, "{}\t{}", field.name(), field.label())?;
        }
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(directory) = &args.parquet {
        return write_tables(&args, directory);
    }
    if let Some(out) = &args.write {
        write::check(&args, out)?;
        let mut inputs = Inputs::open(&args.files, args.strict)?;
        write::run(&args, out, &mut inputs)?;
        return Ok(inputs.problems.status());
    }
    let mut inputs = Inputs::open(&args.files, args.strict)?;
    // No file could be opened, and the errors have been reported. An empty summary would look like
    // that of a capture without packets.
    if inputs.names().is_empty() {
        return Ok(inputs.problems.status());
    }
    let mut run = Run::new(&args, &inputs, out)?;
    run.read(&mut inputs)?;
    run.finish(&inputs.problems)?;
    Ok(inputs.problems.status())
}

#[cfg(feature = "parquet")]
use self::parquet::run as write_tables;

#[cfg(not(feature = "parquet"))]
fn write_tables(_: &Args, _: &std::path::Path) -> anyhow::Result<ExitCode> {
    anyhow::bail!(output::NO_PARQUET)
}
