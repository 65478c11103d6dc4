//! A run of `roce decode` over its files, on one core or on all of them.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Error, Result};
use indicatif::ProgressBar;
use roce::capture::{Batch, MergeError};
use roce::decode::Decoder;

use super::args::Args;
use super::progress::{PROGRESS_STEP, progress_bar};
use super::show::{Show, Shown};
use crate::input::{Inputs, Problems};
use crate::parallel::in_order;

/// What failed when output cannot be written.
const OUTPUT: &str = "cannot write to standard output";

/// A run of the subcommand over its files.
pub(super) struct Run<W> {
    show: Show,
    /// The port of RoCEv2.
    port: u16,
    threads: usize,
    /// How many packets may still be shown.
    left: u64,
    /// Whether each packet is flushed.
    flush: bool,
    out: W,
    /// What was made of the packets so far, but for the text that is written already.
    all: Shown,
}

impl<W: Write + Send> Run<W> {
    pub(super) fn new(args: &Args, inputs: &Inputs, out: W) -> Result<Self> {
        let show = Show::new(args, inputs.names())?;
        let flush = args.line_buffered || io::stdout().is_terminal();
        // What is followed live, on a terminal or from a pipe, is shown packet by packet.
        let live = inputs.size().is_none() || (flush && !show.form.is_summary());
        Ok(Self {
            threads: if live { 1 } else { args.jobs() },
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
        let bar = progress_bar(inputs.size(), !self.show.form.is_summary());
        if self.left > 0 {
            match self.threads {
                0 | 1 => self.read_on_one_core(inputs, &bar)?,
                _ => self.read_on_all_cores(inputs, &bar)?,
            }
        }
        bar.finish_and_clear();
        self.out.flush().context(OUTPUT)?;
        inputs.problems.finish();
        self.all.unknown.report(&mut inputs.problems);
        Ok(())
    }

    /// Prints what comes after the last packet.
    pub(super) fn finish(mut self, problems: &Problems) -> Result<()> {
        let (places, bytes) = problems.skipped();
        self.all.summary.add_skipped(places, bytes);
        let text = self.show.form.finish(&self.all.summary);
        self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()).context(OUTPUT)
    }

    fn read_on_one_core(&mut self, inputs: &mut Inputs, bar: &ProgressBar) -> Result<()> {
        let mut decoder = Decoder::new(self.port);
        while self.left > 0 {
            let record = match inputs.merge.next() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(trouble) => {
                    self.report(trouble, &mut inputs.problems)?;
                    continue;
                }
            };
            self.show.take(&mut decoder, &record, &mut self.all);
            let number = record.number;
            self.print().context(OUTPUT)?;
            if number.is_multiple_of(PROGRESS_STEP) {
                bar.set_position(inputs.merge.bytes_read());
            }
        }
        Ok(())
    }

    /// Writes what there is of text.
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

    /// Says what is wrong with a file, after all that could be read before.
    fn report(&mut self, trouble: MergeError, problems: &mut Problems) -> Result<()> {
        self.out.flush().context(OUTPUT)?;
        problems.report(trouble);
        Ok(())
    }

    /// Reads, decodes and formats batches on all cores, and writes them in their order.
    fn read_on_all_cores(&mut self, inputs: &mut Inputs, bar: &ProgressBar) -> Result<()> {
        let mut decoder = Decoder::new(self.port);
        let start = decoder.clone();
        let Inputs { merge, problems, .. } = inputs;
        let Self { show, threads, left, out, all, .. } = self;
        let ended = in_order(
            *threads,
            || Part::new(start.clone()),
            |part| {
                let filled = merge.next_batch(&mut part.batch);
                part.decoder = decoder.split(&part.batch);
                part.bytes_read = merge.bytes_read();
                let more = !matches!(filled, Ok(false));
                part.trouble = filled.err();
                more
            },
            |part| part.work(show, u64::MAX),
            |part| {
                if part.shown.packets > *left {
                    part.work(show, *left);
                }
                *left -= part.shown.packets;
                out.write_all(part.shown.text.as_bytes()).context(OUTPUT)?;
                all.append(&mut part.shown);
                bar.set_position(part.bytes_read);
                if let Some(trouble) = part.trouble.take() {
                    out.flush().context(OUTPUT)?;
                    problems.report(trouble);
                }
                if *left == 0 { Err(End::Full) } else { Ok(()) }
            },
        );
        match ended {
            Ok(()) | Err(End::Full) => Ok(()),
            Err(End::Failed(error)) => Err(error),
        }
    }
}

/// Why a run ends before its input does.
enum End {
    /// All packets that were asked for are shown.
    Full,
    Failed(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A part of the input on its way through the threads.
struct Part {
    batch: Batch,
    /// The decoder at the start of the batch.
    decoder: Decoder,
    shown: Shown,
    /// What was wrong with the input after the batch before this one.
    trouble: Option<MergeError>,
    /// How much of the files was read when the batch was.
    bytes_read: u64,
}

impl Part {
    fn new(decoder: Decoder) -> Self {
        let (batch, shown) = (Batch::default(), Shown::default());
        Self { batch, decoder, shown, trouble: None, bytes_read: 0 }
    }

    /// Decodes the batch, until so many packets are shown.
    fn work(&mut self, show: &Show, limit: u64) {
        self.shown.clear();
        let mut decoder = self.decoder.clone();
        for record in self.batch.records() {
            if self.shown.packets >= limit {
                break;
            }
            show.take(&mut decoder, &record, &mut self.shown);
        }
    }
}
