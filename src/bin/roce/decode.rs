//! `roce decode`: captures in words.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{ArgAction, Args as ClapArgs};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use roce::capture::{Offset, Reader, Record};
use roce::decode::{
    self, Decoder, FieldRef, Filter, LineStyle, Summary, TimeStyle, unknown_field, write_columns,
    write_json, write_tree,
};
use roce::wire::{LinkType, ROCE_PORT};

use crate::output::{self, Color};

/// Decode the packets of captures
///
/// Reads pcap and pcapng, plain or compressed with gzip or zstd. Without options, prints one
/// line per packet:
///
///   00:06:59.404559 IP 10.9.0.1.49441 > 10.9.0.2.4791: RC_SEND_ONLY qp 0x11 psn 5 len 64 icrc ok
///
/// RoCE packets have their ICRC checked: ok, bad, or absent where the capture cut the packet
/// short. Times are UTC.
///
/// Fields have tshark's names (infiniband.bth.psn, ip.src, frame.number); what tshark does not
/// decode is called roce.icrc, roce.opcode_name, roce.aeth.kind and so on. --list-fields lists
/// them all.
///
/// A filter compares fields with values: == != < <= > >= (or eq ne lt le gt ge), joined by
/// && || ! (or and or not) and parentheses. A name alone asks whether the field is there.
/// Addresses may be prefixes: ip.addr == 10.9.0.0/16.
#[derive(Debug, ClapArgs)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Captures to read; - is standard input.
    #[arg(value_name = "FILE", required_unless_present = "list_fields")]
    files: Vec<PathBuf>,

    /// Show every field of each packet, with its name and its bytes.
    #[arg(short = 'V', long, conflicts_with_all = ["json", "fields", "summary"])]
    verbose: bool,

    /// Print one JSON object per packet (with --summary, one in all).
    #[arg(long)]
    json: bool,

    /// Print only this field; can be given several times. Columns are separated by tabs.
    #[arg(short = 'e', long = "field", value_name = "FIELD", conflicts_with = "summary")]
    fields: Vec<String>,

    /// Show only packets that match this filter.
    #[arg(short = 'Y', long, value_name = "EXPR")]
    filter: Option<String>,

    /// Print a summary instead: packets by opcode, ICRC verdict, conversation, NAK and RNR NAK.
    #[arg(long)]
    summary: bool,

    /// UDP destination port of RoCEv2.
    #[arg(long, value_name = "PORT", default_value_t = ROCE_PORT)]
    port: u16,

    /// Stop after this many packets were shown or counted.
    #[arg(short = 'c', long, value_name = "COUNT")]
    count: Option<u64>,

    /// Print no time; -tt: seconds since 1970; -ttt: since the previous packet; -tttt: date and time; -ttttt: since the first packet.
    #[arg(short = 't', action = ArgAction::Count)]
    time: u8,

    /// Flush after each packet, to follow a live capture through a pipe.
    #[arg(short = 'l', long)]
    line_buffered: bool,

    /// When to use colors.
    #[arg(long, alias = "colour", value_enum, value_name = "WHEN", default_value_t)]
    color: Color,

    /// List all field names with their labels, and exit.
    #[arg(long)]
    list_fields: bool,
}

const EXAMPLES: &str = "\
Examples:
  roce decode capture.pcapng
  roce decode --summary big.pcap.zst
  roce decode --filter 'roce.icrc == bad || roce.aeth.kind == NAK' capture.pcap
  roce decode -e frame.number -e infiniband.bth.opcode -e infiniband.bth.psn capture.pcap
  tcpdump -i eth0 -w - udp port 4791 | roce decode -l -";

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut out = output::stdout();
    if args.list_fields {
        for field in FieldRef::names().iter().filter_map(|name| FieldRef::find(name)) {
            writeln!(out, "{}\t{}", field.name(), field.label())?;
        }
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut run = Run::new(&args, out)?;
    let mut failed = false;
    for file in &args.files {
        if let Err(error) = run.file(file) {
            if output::is_broken_pipe(&error) {
                return Err(error);
            }
            // What could be read comes out before the remark that there was more.
            run.out.flush()?;
            eprintln!("roce: {}: {error:#}", file.display());
            failed = true;
        }
        if run.is_full() {
            break;
        }
    }
    run.finish()?;
    Ok(if failed { crate::could_not() } else { ExitCode::SUCCESS })
}

/// What is printed of a packet.
enum Form {
    Line(LineStyle),
    Tree,
    Json(Vec<FieldRef>),
    Columns(Vec<FieldRef>),
    Summary(Box<Summary>, Object),
}

/// Whether a summary is a JSON object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Object {
    Yes,
    No,
}

/// A run of the subcommand over its files.
struct Run<W: Write> {
    form: Form,
    filter: Option<Filter>,
    port: u16,
    /// How many packets may still be shown.
    left: u64,
    flush: bool,
    out: W,
    /// The text of a packet, kept to be used again.
    text: String,
}

impl<W: Write> Run<W> {
    fn new(args: &Args, out: W) -> anyhow::Result<Self> {
        let filter = args.filter.as_deref().map(parse_filter).transpose()?;
        let fields = args.fields.iter().map(|name| find_field(name)).collect::<Result<_, _>>()?;
        Ok(Self {
            form: form(args, fields)?,
            filter,
            port: args.port,
            left: args.count.unwrap_or(u64::MAX),
            flush: args.line_buffered || io::stdout().is_terminal(),
            out,
            text: String::new(),
        })
    }

    fn is_full(&self) -> bool {
        self.left == 0
    }

    fn file(&mut self, path: &Path) -> anyhow::Result<()> {
        if path.as_os_str() == "-" {
            return self.read(Reader::new(io::stdin().lock())?, None);
        }
        let file = File::open(path).context("cannot open the file")?;
        let metadata = file.metadata().context("cannot read the file")?;
        if metadata.is_dir() {
            bail!("is a directory; name a capture in it");
        }
        let size = metadata.is_file().then_some(metadata.len());
        self.read(Reader::new(file)?, size)
    }

    /// Shows the packets of a capture, of `size` bytes if that is known.
    fn read<R: Read>(&mut self, mut reader: Reader<R>, size: Option<u64>) -> anyhow::Result<()> {
        let mut decoder = Decoder::new(self.port);
        let (bar, bytes_read) = (self.progress_bar(size), reader.progress());
        let mut unknown = UnknownLinks::default();
        while !self.is_full() {
            let Some(record) = reader.next()? else { break };
            let packet = decoder.decode(&record);
            unknown.note(&record);
            if packet.number.is_multiple_of(PROGRESS_STEP) {
                bar.set_position(bytes_read.bytes());
            }
            if self.filter.as_ref().is_none_or(|filter| filter.matches(&packet)) {
                self.left -= 1;
                self.show(&packet).context("cannot write to standard output")?;
            }
        }
        bar.finish_and_clear();
        unknown.check()
    }

    fn show(&mut self, packet: &decode::Context<'_>) -> io::Result<()> {
        let text = &mut self.text;
        text.clear();
        match &mut self.form {
            Form::Summary(summary, _) => {
                summary.add(packet);
                return Ok(());
            }
            Form::Line(style) => style.write(packet, text),
            Form::Tree => write_tree(packet, text),
            Form::Json(fields) => write_json(packet, fields, text),
            Form::Columns(fields) => write_columns(packet, fields, text),
        }
        text.push('\n');
        self.out.write_all(text.as_bytes())?;
        if self.flush {
            self.out.flush()?;
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        match &mut self.form {
            Form::Summary(summary, Object::Yes) => writeln!(self.out, "{}", summary.to_json())?,
            Form::Summary(summary, Object::No) => write!(self.out, "{}", summary.to_text())?,
            Form::Line(_) | Form::Tree | Form::Json(_) | Form::Columns(_) => {}
        }
        self.out.flush().context("cannot write to standard output")
    }

    /// A bar on standard error if the input is long, somebody watches, and nothing else is on the screen.
    fn progress_bar(&self, size: Option<u64>) -> ProgressBar {
        let screen_is_free = matches!(self.form, Form::Summary(..)) || !io::stdout().is_terminal();
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
}

/// An input of at least this many bytes takes long enough for a progress bar.
const LONG_INPUT: u64 = 64 << 20;

/// How many packets pass between two looks at the progress.
const PROGRESS_STEP: u64 = 8192;

/// Frames of link types that nobody here can read.
#[derive(Default)]
struct UnknownLinks {
    first: Option<(LinkType, Offset)>,
    frames: u64,
}

impl UnknownLinks {
    fn note(&mut self, record: &Record<'_>) {
        if record.link.name().is_none() {
            self.first = self.first.or(Some((record.link, record.offset)));
            self.frames += 1;
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        match self.first {
            None => Ok(()),
            Some((link, offset)) => {
                let frames = self.frames;
                bail!("{link} cannot be decoded: {frames} frames, the first at {offset}")
            }
        }
    }
}

fn form(args: &Args, fields: Vec<FieldRef>) -> anyhow::Result<Form> {
    let time = match args.time {
        0 => TimeStyle::OfDay,
        1 => TimeStyle::None,
        2 => TimeStyle::Epoch,
        3 => TimeStyle::SincePrevious,
        4 => TimeStyle::DateAndTime,
        5 => TimeStyle::SinceFirst,
        _ => bail!("-t may be given five times at most"),
    };
    Ok(if args.summary {
        let object = if args.json { Object::Yes } else { Object::No };
        Form::Summary(Box::default(), object)
    } else if args.verbose {
        Form::Tree
    } else if args.json {
        Form::Json(fields)
    } else if !fields.is_empty() {
        Form::Columns(fields)
    } else {
        Form::Line(LineStyle { time, color: args.color.wanted() })
    })
}

fn parse_filter(source: &str) -> anyhow::Result<Filter> {
    Filter::parse(source).map_err(|error| {
        let marked = error.point(source).replace('\n', "\n  ");
        anyhow::anyhow!("--filter: {error}\n  {marked}")
    })
}

fn find_field(name: &str) -> anyhow::Result<FieldRef> {
    let unknown = || format!("-e: {} (--list-fields lists all)", unknown_field(name));
    FieldRef::find(name).with_context(unknown)
}
