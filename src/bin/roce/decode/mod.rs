//! `roce decode`: captures in words.

mod args;
mod form;
mod links;
mod progress;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use anyhow::Context;
use roce::decode::{self, Decoder, FieldRef, Filter};

pub(crate) use self::args::Args;
use self::args::parse_filter;
use self::form::Form;
use self::links::UnknownLinks;
use self::progress::{PROGRESS_STEP, progress_bar};
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
    let mut run = Run::new(&args, out)?;
    let mut inputs = Inputs::open(&args.files)?;
    run.read(&mut inputs)?;
    run.finish()?;
    Ok(inputs.status())
}

/// What failed when output cannot be written.
const OUTPUT: &str = "cannot write to standard output";

/// A run of the subcommand over its files.
struct Run<W: Write> {
    form: Form,
    filter: Option<Filter>,
    port: u16,
    /// How many packets may still be shown.
    left: u64,
    flush: bool,
    /// Whether packets are told the name of their file: where there are several, or where it is asked for.
    names_files: bool,
    out: W,
    /// The text of a packet, kept to be used again.
    text: String,
}

impl<W: Write> Run<W> {
    fn new(args: &Args, out: W) -> anyhow::Result<Self> {
        let filter = args.filter.as_deref().map(parse_filter).transpose()?;
        let form = Form::new(args)?;
        let uses =
            |name| form.shows(name) || filter.as_ref().is_some_and(|f: &Filter| f.uses(name));
        Ok(Self {
            names_files: args.files.len() > 1 || uses("frame.file"),
            filter,
            form,
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

    /// Shows the packets of the captures.
    fn read(&mut self, inputs: &mut Inputs) -> anyhow::Result<()> {
        let mut decoder = Decoder::new(self.port);
        let bar = progress_bar(inputs.size(), !self.form.is_summary());
        let mut unknown = UnknownLinks::default();
        let names = inputs.names().to_vec();
        while !self.is_full() {
            let record = match inputs.next() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(trouble) => {
                    // What could be read comes out before the remark that there was more.
                    self.out.flush().context(OUTPUT)?;
                    inputs.report(trouble);
                    continue;
                }
            };
            let mut packet = decoder.decode(&record);
            unknown.note(&record);
            if self.names_files {
                packet.annotations.file = names.get(record.file as usize).map(String::as_str);
            }
            let number = packet.number;
            if self.filter.as_ref().is_none_or(|filter| filter.matches(&packet)) {
                self.left -= 1;
                self.show(&packet).context(OUTPUT)?;
            }
            if number.is_multiple_of(PROGRESS_STEP) {
                bar.set_position(inputs.bytes_read());
            }
        }
        bar.finish_and_clear();
        self.out.flush().context(OUTPUT)?;
        unknown.report(inputs);
        Ok(())
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
        self.out.flush().context(OUTPUT)
    }
}
