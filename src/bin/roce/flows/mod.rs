//! `roce flows`: connections, messages and findings of captures.

mod args;
mod fail_on;
pub(crate) mod pass;
mod select;
mod threshold;

use std::fs;
use std::io::{self, Write};
use std::mem;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use roce::analysis::page::{Recorder, write_page};
use roce::analysis::text::{Ladder, LossList, ReportStyle, Style};
use roce::analysis::{
    Config, FlowNumber, LossNote, Message, PacketFacts, PacketNote, Report, Sink,
};
use roce::decode::Filter;

pub(crate) use self::args::Args;
use self::pass::Pass;
use self::select::Selector;
use crate::decode::parse_filter;
use crate::input::Inputs;
use crate::outfile::WholeFile;
use crate::output::say;
use crate::tables::{FlowTables, Partition};
use crate::{batches, interrupt, outfile, output};

/// The most connections that are shown packet by packet, each of which takes a pass over the
/// captures.
const LADDERS_MAX: usize = 8;

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(path) = &args.html {
        outfile::check_report("--html", path, &args.files)?;
    }
    let filter = args.filter.as_deref().map(parse_filter).transpose()?;
    let stop = interrupt::catch()?;
    let command = Flows { args, filter, stop };
    let mut inputs = Inputs::open(&args.files, args.strict)?;
    // Why not is said by now. A report of nothing would look like one of a capture without
    // findings.
    if inputs.names().is_empty() {
        return Ok(inputs.problems.status());
    }
    if args.select.is_some() && !args.json && inputs.size().is_none() {
        bail!(
            "-q reads the captures twice, which a pipe cannot; write the capture to a file first"
        );
    }
    let (mut report, collected) = command.analyze(&mut inputs)?;
    if let (Some(path), Some(recorder)) = (&args.html, &collected.recorder) {
        write_html(path, &report, recorder)?;
    }
    let ladders = match args.select {
        Some(selector) => select(&mut report, selector)?,
        None => Vec::new(),
    };
    command.print(&report)?;
    if report.capture.packets == 0 {
        command.say_why_nothing_was_found(&report);
    }
    if !args.json {
        for flow in ladders {
            command.print_ladder(&report, flow, &collected)?;
        }
    }
    let status = if stop.load(Ordering::Relaxed) {
        ExitCode::from(interrupt::STATUS)
    } else if inputs.problems.status() == crate::could_not() {
        crate::could_not()
    } else if fail_on::fails(&args.fail_on, &report) {
        ExitCode::FAILURE
    } else {
        inputs.problems.status()
    };
    // The process ends, and its memory goes at once: to free the report piece by piece takes
    // milliseconds.
    mem::forget(report);
    Ok(status)
}

/// A run of the subcommand.
struct Flows<'a> {
    args: &'a Args,
    filter: Option<Filter>,
    stop: &'a AtomicBool,
}

impl Flows<'_> {
    fn pass(&self) -> Pass<'_> {
        Pass {
            port: self.args.port,
            filter: self.filter.as_ref(),
            threads: batches::threads(self.args.jobs),
            stop: self.stop,
        }
    }

    fn config(&self, inputs: &Inputs) -> Config {
        let mut config = Config::default();
        config.files = inputs.names().to_vec();
        config.leaves_out_series = !self.args.json && self.args.html.is_none();
        for threshold in &self.args.thresholds {
            threshold.apply(&mut config.thresholds);
        }
        config
    }

    fn style(&self) -> Style {
        Style { width: output::width(), color: self.args.color.wanted() }
    }

    /// The first pass.
    fn analyze(&self, inputs: &mut Inputs) -> Result<(Report, Collected)> {
        let mut collected = Collected {
            recorder: self.args.html.is_some().then(Recorder::new),
            losses: self.args.select.is_some().then(LossList::default),
            tables: self.tables()?,
        };
        let config = self.config(inputs);
        let report = self.pass().run(inputs, config, &mut collected, |_| Ok(()))?;
        if let Some(tables) = collected.tables.take() {
            tables.finish(&report)?;
        }
        Ok((report, collected))
    }

    /// The tables that are asked for, with nothing in them yet.
    fn tables(&self) -> Result<Option<FlowTables>> {
        let Some((directory, first)) = self.args.parquet.as_ref().zip(self.args.files.first())
        else {
            return Ok(None);
        };
        let threads = batches::threads(self.args.jobs);
        FlowTables::create(&Partition::new(directory, first, &self.args.names), threads).map(Some)
    }

    fn print(&self, report: &Report) -> Result<()> {
        let mut out = output::stdout();
        if self.args.json {
            // Not as one text in memory: with many connections it is longer than all else.
            serde_json::to_writer(&mut out, report).map_err(io::Error::from)?;
            return Ok(out.write_all(b"\n").and_then(|()| out.flush())?);
        }
        let mut text = String::new();
        let rows_max = (self.args.top > 0).then_some(self.args.top);
        let style = ReportStyle { style: self.style(), sort: self.args.sort.into(), rows_max };
        style.write(report, &mut text);
        Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush())?)
    }

    /// Says on standard error why there may be no packets.
    fn say_why_nothing_was_found(&self, report: &Report) {
        let port = self.args.port;
        match (report.capture.frames, &self.filter) {
            (0, Some(_)) => say!("no frame passes the filter"),
            (0, None) => say!("there are no frames to analyze"),
            (frames, _) => say!(
                "none of {frames} frames is RoCE; RoCEv2 is looked for on UDP port {port} (--port)"
            ),
        }
    }

    /// The second pass, which shows the packets of one connection.
    fn print_ladder(&self, report: &Report, flow: FlowNumber, collected: &Collected) -> Result<()> {
        let losses = collected.losses.as_ref().context("the first pass collects the losses")?;
        let found = Ladder::new(report, flow, losses, self.style(), self.args.full);
        let mut ladder = found.context("the connection is in the report")?;
        let mut out = output::stdout();
        let mut inputs = Inputs::reopen(&self.args.files, self.args.strict)?;
        let config = self.config(&inputs);
        writeln!(out)?;
        self.pass().run(&mut inputs, config, &mut ladder, |ladder| Ok(ladder.drain(&mut out)?))?;
        ladder.finish();
        ladder.drain(&mut out).and_then(|()| out.flush())?;
        if losses.left_out() > 0 {
            say!("{} lost packets are not marked: too many", losses.left_out());
        }
        Ok(())
    }
}

/// Leaves only the selected connections in the report, and what was found about them. Returns their
/// numbers.
fn select(report: &mut Report, selector: Selector) -> Result<Vec<FlowNumber>> {
    report.connections.retain(|connection| selector.matches(connection));
    let flows: Vec<_> = report.connections.iter().map(|connection| connection.flow).collect();
    match flows.len() {
        0 => bail!("-q: no connection matches; without -q, roce flows lists all"),
        found if found > LADDERS_MAX => {
            let some: Vec<_> =
                flows.iter().take(LADDERS_MAX).map(|flow| format!("#{flow}")).collect();
            bail!(
                "-q: {found} connections match ({}, …); choose one, as in -q{}",
                some.join(", "),
                some[0]
            )
        }
        _ => {}
    }
    report.findings.retain(|finding| finding.flow.is_some_and(|flow| flows.contains(&flow)));
    report.group();
    Ok(flows)
}

fn write_html(path: &Path, report: &Report, recorder: &Recorder) -> Result<()> {
    let named = || format!("--html {}", path.display());
    let mut out = WholeFile::create(named(), path)?;
    write_page(report, recorder, &mut out).with_context(named)?;
    out.finish()?;
    let bytes = fs::metadata(path).map_or(0, |found| found.len());
    say!("wrote {} ({bytes} bytes)", path.display());
    Ok(())
}

/// Results of the first pass beside the report.
struct Collected {
    recorder: Option<Recorder>,
    losses: Option<LossList>,
    tables: Option<FlowTables>,
}

impl Sink for Collected {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        if let Some(recorder) = &mut self.recorder {
            recorder.packet(facts, note);
        }
    }

    fn loss(&mut self, note: &LossNote) {
        if let Some(recorder) = &mut self.recorder {
            recorder.loss(note);
        }
        if let Some(losses) = &mut self.losses {
            losses.loss(note);
        }
    }

    fn message(&mut self, message: &Message) {
        if let Some(recorder) = &mut self.recorder {
            recorder.message(message);
        }
        if let Some(tables) = &mut self.tables {
            tables.message(message);
        }
    }
}
