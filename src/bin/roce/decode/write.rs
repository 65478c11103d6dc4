//! `roce decode -w`: writes the packets that pass the filter to a capture.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use roce::capture::{Copier, Format, Lost, Record, WriteError};
use roce::decode::Decoder;

use super::args::Args;
use super::flows::Flows;
use super::show::Show;
use crate::input::Inputs;
use crate::links::UnknownLinks;
use crate::outfile::WholeFile;
use crate::output::{counted, say};
use crate::progress::{PROGRESS_STEP, Progress};
use crate::{interrupt, outfile, output};

/// Size of the output buffer.
const BUFFER_BYTES: usize = 256 << 10;

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
    outfile::check_not_read("-w", out, &args.files)
}

/// Writes the packets that pass the filter to OUT.
pub(super) fn run(args: &Args, out: &Path, inputs: &mut Inputs) -> Result<()> {
    let show = Show::new(args, inputs.names())?;
    let flows = show.needs_flows.then(|| Flows::find(args, inputs)).transpose()?;
    let sink = Sink::open(out, inputs.size().is_some())?;
    // A file without interface descriptions becomes an interface with the name of the file.
    let names = if inputs.names().len() > 1 { inputs.names().to_vec() } else { Vec::new() };
    let mut copier = Copier::new(sink, format(out, inputs), names);
    copy(args, &show, inputs, &mut copier, flows).with_context(|| failed(out))?;
    report(copier.lost());
    match copier.into_inner() {
        Some(Sink::Whole(file)) => file.finish(),
        _ => Ok(()),
    }
}

/// Destination of the capture.
enum Sink {
    /// A file that replaces OUT when the capture is complete: no input is a pipe.
    Whole(WholeFile),
    /// Standard output, or a file that grows while packets come from a pipe.
    Growing(Box<dyn Write>),
}

impl Sink {
    fn open(out: &Path, has_end: bool) -> Result<Self> {
        if is_stdout(out) {
            return Ok(Self::Growing(Box::new(output::stdout())));
        }
        if has_end {
            return Ok(Self::Whole(WholeFile::create(failed(out), out)?));
        }
        let file = File::create(out).with_context(|| failed(out))?;
        Ok(Self::Growing(Box::new(BufWriter::with_capacity(BUFFER_BYTES, file))))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Whole(file) => file.write(bytes),
            Self::Growing(sink) => sink.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Whole(file) => file.flush(),
            Self::Growing(sink) => sink.flush(),
        }
    }
}

fn copy(
    args: &Args,
    show: &Show,
    inputs: &mut Inputs,
    copier: &mut Copier<impl Write>,
    mut flows: Option<Flows>,
) -> Result<(), WriteError> {
    let bar = Progress::new(inputs.size(), false);
    let mut decoder = Decoder::new(args.port);
    // Not reported: frames of unknown link types can be copied.
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
        let mut written = Ok(());
        show.decode_known(&mut decoder, &record, &mut unknown, &mut flows, |packet| {
            if left == 0 || written.is_err() {
                return;
            }
            left -= 1;
            // A packet of a train is written as the frame that it was on the wire.
            written = copier.write(&match packet.train {
                Some(_) => Record { data: packet.frame.bytes(), len: packet.wire_len, ..record },
                None => record,
            });
            if args.line_buffered && written.is_ok() {
                written = copier.flush();
            }
        });
        written?;
        if number.is_multiple_of(PROGRESS_STEP) {
            bar.set_position(inputs.merge.bytes_read());
        }
    }
    bar.finish_and_clear();
    inputs.finish();
    copier.finish(&inputs.merge)
}

/// Reports what the format of the output could not keep.
fn report(lost: Lost) {
    let Lost { times, comments, interface_options, .. } = lost;
    if times > 0 {
        let packets = counted(times, "packet");
        say!("{packets} without a time in the capture, written with time 0");
    }
    if comments > 0 {
        let comments = counted(comments, "comment");
        say!("{comments} left out: a pcap has no place for comments, a pcapng has");
    }
    if interface_options > 0 {
        let interfaces = counted(interface_options, "interface");
        say!("{interfaces} with options that are too long to be kept");
    }
}

/// Returns the format that the ending of OUT asks for; otherwise that of the captures, or pcapng if
/// they differ.
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
