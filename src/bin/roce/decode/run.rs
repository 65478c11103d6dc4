//! Loop of `roce decode` over the packets of its files, on one thread or on several.

use std::io::{self, IsTerminal, Write};

use anyhow::{Error, Result};
use roce::capture::MergeError;
use roce::decode::Decoder;

use super::args::Args;
use super::flows::Flows;
use super::show::{Show, Shown};
use crate::batches::{self, Part};
use crate::input::{Inputs, Problems};
use crate::interrupt;
use crate::progress::{PROGRESS_STEP, Progress};

/// A run of the subcommand over its files.
pub(super) struct Run<W> {
    show: Show,
    /// Facts about connections, if a field needs them.
    flows: Option<Flows>,
    /// UDP destination port of RoCEv2.
    port: u16,
    threads: usize,
    /// Number of packets that may still be shown.
    left: u64,
    /// Whether the output is flushed after each packet.
    flush: bool,
    out: W,
    /// Results of the packets so far, without the text that was written.
    all: Shown,
}

impl<W: Write + Send> Run<W> {
    pub(super) fn new(args: &Args, inputs: &Inputs, out: W) -> Result<Self> {
        let show = Show::new(args, inputs.names())?;
        let flows = show.needs_flows.then(|| Flows::find(args, inputs)).transpose()?;
        let flush = args.line_buffered || io::stdout().is_terminal();
        // Input from a pipe may be live, and is shown packet by packet; so is output on a terminal.
        let live = inputs.size().is_none() || (flush && !show.form.is_summary());
        Ok(Self {
            // The analysis takes packets in order.
            threads: if live || flows.is_some() { 1 } else { batches::threads(args.jobs) },
            flows,
            show,
            port: args.port,
            left: args.count.unwrap_or(u64::MAX),
            flush,
            out,
            all: Shown::default(),
        })
    }

    /// Shows the packets of the captures.
    pub(super) fn read(&mut self, inputs: &mut Inputs) -> Result<()> {
        let bar = Progress::new(inputs.size(), !self.show.form.is_summary());
        if self.left > 0 {
            match self.threads {
                0 | 1 => self.read_on_one_core(inputs, &bar)?,
                _ => self.read_on_all_cores(inputs, &bar)?,
            }
        }
        bar.finish_and_clear();
        self.out.flush()?;
        inputs.finish();
        self.all.unknown.report(&mut inputs.problems);
        Ok(())
    }

    /// Prints the end of the output: the summary, if it is asked for.
    pub(super) fn finish(mut self, problems: &Problems) -> Result<()> {
        let (places, bytes) = problems.skipped();
        self.all.summary.add_skipped(places, bytes);
        let text = self.show.form.finish(&self.all.summary)?;
        Ok(self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush())?)
    }

    fn read_on_one_core(&mut self, inputs: &mut Inputs, bar: &Progress) -> Result<()> {
        let mut decoder = Decoder::new(self.port);
        while self.left > 0 && !interrupt::requested() {
            let record = match inputs.merge.next() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(trouble) => {
                    self.report(trouble, &mut inputs.problems)?;
                    continue;
                }
            };
            self.show.take_known(&mut decoder, &record, &mut self.all, &mut self.flows, self.left);
            let number = record.number;
            self.print()?;
            if number.is_multiple_of(PROGRESS_STEP) {
                bar.set_position(inputs.merge.bytes_read());
            }
        }
        Ok(())
    }

    /// Writes the text so far.
    fn print(&mut self) -> io::Result<()> {
        let Shown { packets, text, .. } = &mut self.all;
        self.left -= core::mem::take(packets);
        if text.is_empty() {
            return Ok(());
        }
        self.out.write_all(text.as_bytes())?;
        text.clear();
        if self.flush { self.out.flush() } else { Ok(()) }
    }

    /// Reports an error in a file, after the output of the packets before it.
    fn report(&mut self, trouble: MergeError, problems: &mut Problems) -> Result<()> {
        self.out.flush()?;
        problems.report(trouble);
        Ok(())
    }

    /// Reads, decodes and formats batches on all cores, and writes them in their order.
    fn read_on_all_cores(&mut self, inputs: &mut Inputs, bar: &Progress) -> Result<()> {
        let Self { show, port, threads, left, out, all, .. } = self;
        let work = |part: &mut Part<Shown>, limit| {
            part.made.clear();
            let mut decoder = part.decoder.clone();
            for record in part.batch.records() {
                if part.made.packets >= limit {
                    break;
                }
                show.take(&mut decoder, &record, &mut part.made, limit);
            }
        };
        let take = |part: &mut Part<Shown>| {
            if part.made.packets > *left {
                work(part, *left);
            }
            *left -= part.made.packets;
            out.write_all(part.made.text.as_bytes()).map_err(Error::from)?;
            all.append(&mut part.made);
            bar.set_position(part.bytes_read);
            if part.is_trouble() {
                // The output of the packets before the error precedes the report of it.
                out.flush().map_err(Error::from)?;
            }
            if *left == 0 { Err(End::Full) } else { Ok(()) }
        };
        let whole = |part: &mut Part<Shown>| work(part, u64::MAX);
        End::of(batches::decode(*threads, inputs, *port, Shown::default, whole, take))
    }
}

/// Reason for which a run ends before its input does.
pub(super) enum End {
    /// All packets that were asked for are shown.
    Full,
    Failed(Error),
}

impl End {
    /// Returns the result of a run that ended: only [`Failed`](Self::Failed) is an error.
    pub(super) fn of(ended: Result<(), Self>) -> Result<()> {
        match ended {
            Ok(()) | Err(Self::Full) => Ok(()),
            Err(Self::Failed(error)) => Err(error),
        }
    }
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
