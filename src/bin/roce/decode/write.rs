//! `roce decode -w`: a capture of what the filter lets through.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use roce::capture::{Copier, Format, Lost, WriteError};
use roce::decode::Decoder;

use super::args::Args;
use super::flows::Flows;
use super::show::Show;
use crate::input::Inputs;
use crate::links::UnknownLinks;
use crate::progress::{PROGRESS_STEP, progress_bar};
use crate::{interrupt, outfile};

/// How much is written at once.
const PIECE: usize = 256 << 10;

/// Checks that OUT may be written, before the captures are read.
pub(super) fn check(args: &Args, out: &Path) -> Result<()> {
    if is_stdout(out) {
        return Ok(());
    }
    let named = || format!("-w {}", out.display());
    if matches!(ending(out).as_deref(), Some("gz" | "zst" | "zstd" | "xz")) {
        bail!("{}: captures are written plain; name it .pcap or .pcapng and compress it", named());
    }
    outfile::check_capture("-w", out)?;
    let same = |path: &Path| {
        let (a, b) = (fs::canonicalize(path), fs::canonicalize(out));
        matches!((a, b), (Ok(a), Ok(b)) if a == b)
    };
    if let Some(input) = args.files.iter().find(|path| same(path)) {
        bail!("{}: is {}, which is read; choose another name", named(), input.display());
    }
    Ok(())
}

/// Writes the packets that pass to OUT.
pub(super) fn run(args: &Args, out: &Path, inputs: &mut Inputs) -> Result<()> {
    let show = Show::new(args, inputs.names())?;
    let flows = show.needs_flows.then(|| Flows::find(args, inputs)).transpose()?;
    let sink: Box<dyn Write> = if is_stdout(out) {
        Box::new(io::stdout())
    } else {
        Box::new(File::create(out).with_context(|| failed(out))?)
    };
    // A file without interface descriptions becomes an interface with the name of the file.
    let names = if inputs.names().len() > 1 { inputs.names().to_vec() } else { Vec::new() };
    let sink = BufWriter::with_capacity(PIECE, sink);
    let mut copier = Copier::new(sink, format(out, inputs), names);
    copy(args, &show, inputs, &mut copier, flows).with_context(|| failed(out))?;
    report(copier.lost());
    Ok(())
}

fn copy(
    args: &Args,
    show: &Show,
    inputs: &mut Inputs,
    copier: &mut Copier<impl Write>,
    mut flows: Option<Flows>,
) -> Result<(), WriteError> {
    let bar = progress_bar(inputs.size(), false);
    let mut decoder = Decoder::new(args.port);
    // A frame of any link type can be copied.
    let mut unknown = UnknownLinks::default();
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 && !interrupt::requested() {
        let record = match inputs.merge.next() {
            Ok(Some(record)) => record,
            Ok(None) => break,
            Err(trouble) => {
                copier.flush()?;
                inputs.problems.report(trouble);
                continue;
            }
        };
        let number = record.number;
        copier.observe(&record)?;
        let mut passes = false;
        show.decode_known(&mut decoder, &record, &mut unknown, &mut flows, |_| passes = true);
        if passes {
            copier.write(&record)?;
            left -= 1;
            if args.line_buffered {
                copier.flush()?;
            }
        }
        if number.is_multiple_of(PROGRESS_STEP) {
            bar.set_position(inputs.merge.bytes_read());
        }
    }
    bar.finish_and_clear();
    inputs.problems.finish();
    copier.finish(&inputs.merge)
}

/// Says what the output has no place for.
fn report(lost: Lost) {
    let Lost { times, comments, interface_options, .. } = lost;
    if times > 0 {
        eprintln!(
            "roce: {times} packets have no time in their capture and were written with time 0"
        );
    }
    if comments > 0 {
        eprintln!(
            "roce: {comments} comments were left out: a pcap has no place for them, a pcapng has"
        );
    }
    if interface_options > 0 {
        eprintln!("roce: the options of {interface_options} interfaces were too long to be kept");
    }
}

/// The format that the ending of OUT asks for; else that of the captures, which is pcapng if they differ.
fn format(out: &Path, inputs: &Inputs) -> Format {
    match ending(out).as_deref() {
        Some("pcap" | "cap") if !is_stdout(out) => Format::Pcap,
        Some("pcapng" | "ntar") if !is_stdout(out) => Format::Pcapng,
        _ if inputs.merge.readers().all(|reader| reader.format() == Format::Pcap) => Format::Pcap,
        _ => Format::Pcapng,
    }
}

fn ending(path: &Path) -> Option<String> {
    Some(path.extension()?.to_str()?.to_lowercase())
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn failed(out: &Path) -> String {
    format!(
        "cannot write {}",
        if is_stdout(out) { "standard output".into() } else { out.display().to_string() }
    )
}
