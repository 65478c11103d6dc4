//! `roce decode`: captures in words.

mod args;
mod form;
mod links;
mod progress;

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use roce::capture::Reader;
use roce::decode::{self, Decoder, FieldRef, Filter};

pub(crate) use self::args::Args;
use self::args::parse_filter;
use self::form::Form;
use self::links::UnknownLinks;
use self::progress::{PROGRESS_STEP, progress_bar};
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
        Ok(Self {
            filter: args.filter.as_deref().map(parse_filter).transpose()?,
            form: Form::new(args)?,
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
        let bar = progress_bar(size, !self.form.is_summary());
        let bytes_read = reader.progress();
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
        self.text.clear();
        self.form.take(packet, &mut self.text);
        self.out.write_all(self.text.as_bytes())?;
        if self.flush && !self.text.is_empty() {
            self.out.flush()?;
        }
        Ok(())
    }

    fn finish(mut self) -> anyhow::Result<()> {
        self.out.write_all(self.form.finish().as_bytes())?;
        self.out.flush().context("cannot write to standard output")
    }
}
