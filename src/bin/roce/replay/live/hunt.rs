//! `--mutate`: requests with a fault, sent to a live peer, and whether it lives.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use roce::replay::Options;
use roce::replay::live::{
    Envelope, HuntOptions, Kill, Life, Mutation, Needs, Outgoing, Peer, Probe, ProbeTarget, Probed,
    Reach, Script, Target, hunt, judge_answers, mutate, sequence, to_scenario,
};
use roce::verbs::{Endpoint, Mtu};
use roce::wire::{Bits, Gid, Packet, Path as WirePath, Psn, Qpn, Service};

use super::args::LiveArgs;
use super::offer::{self, Offered, Server};
use super::play::fresh_qpn;
use super::wire::Wire;
use super::{read, write};
use crate::bench::control::offer::{RegionWish, Wish};
use crate::bench::control::plan::Connection;
use crate::outfile::WholeFile;
use crate::progress::can_draw;
use crate::{interrupt, output};

/// Time to wait for the answer to one request of a mutated run.
const ANSWER_WAIT: Duration = Duration::from_millis(5);

/// Time to wait for answers behind the last request.
const LAST_WAIT: Duration = Duration::from_millis(10);

/// Number of probes, and time to wait for each.
const PROBES: u32 = 4;
const PROBE_WAIT: Duration = Duration::from_millis(500);

/// Time for a peer to come back to life: after a command that brings it back, and by itself.
const REVIVAL: Duration = Duration::from_secs(20);
const REVIVAL_ALONE: Duration = Duration::from_millis(500);

/// Maximum time of the search for the smallest sequence of one run.
const MINIMIZATION_MAX: Duration = Duration::from_secs(120);

/// Bytes of a probe.
const PROBE_BYTES: usize = 64;

/// A peer at the other end of a link, with a server that offers queue pairs.
pub(super) struct WirePeer<'a> {
    pub(super) wire: Wire,
    pub(super) server: Server,
    pub(super) options: &'a Options,
    /// Whether answers are held against the rules.
    pub(super) judges: bool,
    /// Brings the peer back to life.
    pub(super) restart: Option<&'a str>,
    runs: u64,
    /// Time at which the current seed was begun.
    seed_since: Instant,
    /// Frames that were sent and received in the last run.
    pub(super) last: Vec<(roce::time::Instant, Vec<u8>)>,
}

#[expect(clippy::disallowed_methods, reason = "a live peer lives in real time")]
fn now() -> Instant {
    Instant::now()
}

impl<'a> WirePeer<'a> {
    pub(super) fn new(wire: Wire, server: Server, options: &'a Options) -> Self {
        let (judges, restart, runs, last) = (true, None, 0, Vec::new());
        let seed_since = now();
        Self { wire, server, options, judges, restart, runs, seed_since, last }
    }

    /// Sends the frames of a run on a queue pair of its own.
    fn send(&mut self, script: &Script, kept: &[usize], mutations: &[Mutation]) -> Result<Offered> {
        let needs = Needs::of(script)?.zeroed();
        let own = (self.wire.source_for(self.server.address())?, fresh_qpn()?);
        let mut offered = self.server.ask_in_turn(&offer::wish(script, &needs, own, 1)?)?;
        let mut target = Target::default();
        offered.map(&mut target, &needs);
        offered.fill(&needs.regions)?;
        let frames = mutate(sequence(script, &target, kept), mutations);
        self.wire.keep();
        let mut is_silent = false;
        for (_, out) in &frames {
            self.wire.send(out)?;
            let asks = Packet::parse(&out.packet).is_ok_and(|it| asks_for_answer(&it));
            if asks && !is_silent && script.service == Service::Rc {
                let until = self.wire.now().saturating_add(ANSWER_WAIT);
                is_silent = !self.hear(own.1, until)?;
            }
            if interrupt::requested() {
                break;
            }
        }
        let until = self.wire.now().saturating_add(LAST_WAIT);
        while self.hear(own.1, until)? && self.wire.now() < until {}
        self.last = self.wire.take_kept();
        Ok(offered)
    }

    /// Waits for any answer to a queue pair of this side.
    fn hear(&mut self, qpn: Qpn, until: roce::time::Instant) -> Result<bool> {
        let mut heard = false;
        while !heard && self.wire.now() < until {
            self.wire.receive(until, &mut |received| {
                let packet = Packet::parse(received.packet).ok();
                heard |= packet.is_some_and(|it| it.bth().dest_qp() == qpn);
            })?;
            if interrupt::requested() {
                break;
            }
        }
        Ok(heard)
    }

    /// Asks for a new queue pair, writes to it and reads what was written.
    fn probe(&mut self) -> Result<Life> {
        let own = (self.wire.source_for(self.server.address())?, fresh_qpn()?);
        let region =
            RegionWish { bytes: PROBE_BYTES as u64, write: true, read: true, atomic: false };
        let wish = Wish {
            connection: Connection::Rc,
            mtu: Mtu::M256,
            peer: Endpoint { gid: own.0, qpn: own.1, psn: Psn::new(0) },
            receives: 0,
            receive_bytes: 0,
            regions: vec![region],
        };
        let mut offered = match self.server.ask_in_turn(&wish) {
            Ok(offered) => offered,
            Err(error) => return Ok(Life::Dead(format!("it offers nothing any more: {error:#}"))),
        };
        let life = self.write_and_read(&offered, own)?;
        // The control connection answers as long as the server's process lives.
        if let Err(error) = offered.state() {
            return Ok(Life::Dead(format!("its server does not answer: {error:#}")));
        }
        Ok(life)
    }

    fn write_and_read(&mut self, offered: &Offered, own: (Gid, Qpn)) -> Result<Life> {
        let Some((address, rkey)) = offered.grant.regions.first().copied() else {
            return Ok(Life::Dead("it offers a queue pair without memory".to_owned()));
        };
        let target = ProbeTarget { qpn: offered.grant.qp.qpn, address, rkey };
        let path = WirePath {
            source: own.0,
            destination: offered.grant.qp.gid,
            hop_limit: 64,
            flow_label: Bits::ZERO,
            ..WirePath::NOWHERE
        };
        let envelope = Envelope { path, id: 0, macs: None, vlan: None };
        self.runs += 1;
        let data = self.runs.to_le_bytes().repeat(PROBE_BYTES / 8);
        let mut probe = Probe::new(data);
        for _ in 0..PROBES {
            for request in probe.requests(&target) {
                self.wire.send(&Outgoing::new(envelope, request))?;
            }
            let until = self.wire.now().saturating_add(PROBE_WAIT);
            while self.wire.now() < until && !interrupt::requested() {
                let mut found = Probed::Pending;
                self.wire.receive(until, &mut |received| {
                    let is_own = Packet::parse(received.packet)
                        .is_ok_and(|packet| packet.bth().dest_qp() == own.1);
                    if is_own && found == Probed::Pending {
                        found = probe.answer(received.packet);
                    }
                })?;
                match found {
                    Probed::Pending => {}
                    Probed::Alive => return Ok(Life::Alive),
                    Probed::Wrong(why) => return Ok(Life::Dead(format!("a probe failed: {why}"))),
                }
            }
        }
        Ok(if interrupt::requested() {
            Life::Alive
        } else {
            Life::Dead("a new queue pair does not answer a WRITE and a READ".to_owned())
        })
    }
}

/// Whether a request asks for an answer.
fn asks_for_answer(packet: &Packet<'_>) -> bool {
    packet.bth().ack_req() || packet.reth().is_some_and(|_| packet.payload_len() == 0)
}

impl Peer for WirePeer<'_> {
    type Error = anyhow::Error;

    fn attempt(&mut self, script: &Script, kept: &[usize], mutations: &[Mutation]) -> Result<Life> {
        let offered = match self.send(script, kept, mutations) {
            Ok(offered) => offered,
            Err(error) => {
                self.wire.take_kept();
                // Whether it was the peer, a probe tells.
                return match self.probe()? {
                    Life::Alive => Err(error),
                    dead => Ok(dead),
                };
            }
        };
        let own = self.wire.source_for(self.server.address())?;
        let mut options = self.options.clone();
        offered.tell(&mut options);
        drop(offered);
        let life = self.probe()?;
        if life != Life::Alive || !self.judges {
            return Ok(life);
        }
        let report = judge_answers(&self.last, &options, own)?;
        Ok(match report.listed.iter().find(|listed| listed.known.is_none()) {
            Some(listed) => Life::BrokeRule(format!(
                "{} ({}): {}",
                listed.rule.id, listed.rule.citation, listed.found
            )),
            None => Life::Alive,
        })
    }

    fn gives_up(&self) -> bool {
        interrupt::requested()
            || now().saturating_duration_since(self.seed_since) > MINIMIZATION_MAX
    }

    fn revive(&mut self) -> Result<bool> {
        if let Some(command) = self.restart {
            let status = Command::new("sh").args(["-c", command]).stdin(Stdio::null()).status();
            let status = status.context("--restart")?;
            ensure!(status.success(), "--restart '{command}': {status}");
        }
        let (since, wait) = (now(), if self.restart.is_some() { REVIVAL } else { REVIVAL_ALONE });
        while now().saturating_duration_since(since) < wait && !interrupt::requested() {
            if self.probe()? == Life::Alive {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(false)
    }
}

/// Limits of a hunt.
struct Extent {
    runs: u64,
    time: Option<Duration>,
}

/// Hunts for mutations that the peer does not survive, and tells what was found.
pub(super) fn run(
    wire: Wire,
    server: Server,
    scripts: &[Script],
    options: &Options,
    args: &LiveArgs,
) -> Result<ExitCode> {
    let spec = args.mutate.clone().context("--mutate")?;
    let reach = if spec.needs_frames() { Reach::Frame } else { Reach::Transport };
    let mut hunting = HuntOptions::new(spec, reach);
    hunting.per_packet = args.per_packet;
    let mut peer = WirePeer::new(wire, server, options);
    (peer.judges, peer.restart) = (!args.no_rules, args.restart.as_deref());
    if let Life::Dead(why) | Life::BrokeRule(why) = peer.probe()? {
        bail!("nothing was mutated, because the peer is not alive: {why}");
    }
    let time = args.duration.map(Duration::from_secs);
    let runs = if time.is_some() { u64::MAX } else { 1 };
    let extent = Extent { runs: args.runs.unwrap_or(runs), time };
    let found = search(&mut peer, scripts, &hunting, args, &extent)?;
    if interrupt::requested() {
        return Ok(ExitCode::from(interrupt::STATUS));
    }
    Ok(if found > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn search(
    peer: &mut WirePeer<'_>,
    scripts: &[Script],
    hunting: &HuntOptions,
    args: &LiveArgs,
    extent: &Extent,
) -> Result<u64> {
    let (started, mut found, mut runs) = (now(), 0, 0);
    let mut out = output::lines();
    // Of a hunt with a duration the bar shows the seconds.
    let bar = match extent.time {
        _ if !can_draw() => ProgressBar::hidden(),
        Some(time) => ProgressBar::new(time.as_secs()),
        None => ProgressBar::new(extent.runs),
    };
    for seed in (args.seed..).take(usize::try_from(extent.runs).unwrap_or(usize::MAX)) {
        let elapsed = now().saturating_duration_since(started);
        if interrupt::requested() || extent.time.is_some_and(|time| elapsed >= time) {
            break;
        }
        runs += 1;
        bar.set_position(extent.time.map_or(runs, |_| elapsed.as_secs()));
        peer.seed_since = now();
        let Some(kill) = hunt(peer, scripts, hunting, seed)? else { continue };
        found += 1;
        report(peer, scripts, &kill, args.found.as_deref())?;
        if !is_alive(peer)? {
            writeln!(
                out,
                "the peer is dead, and nothing brings it back (--restart COMMAND does): the hunt ends"
            )?;
            break;
        }
    }
    bar.finish_and_clear();
    let seconds = now().saturating_duration_since(started).as_secs_f64();
    writeln!(
        out,
        "{runs} mutated runs in {seconds:.1} s, from seed {}: {found} that the peer did not survive or broke a rule in",
        args.seed
    )?;
    Ok(found)
}

fn is_alive(peer: &mut WirePeer<'_>) -> Result<bool> {
    Ok(peer.probe()? == Life::Alive || peer.revive()?)
}

/// Tells of a kill, and writes its smallest sequence as a capture and as a scenario.
fn report(
    peer: &mut WirePeer<'_>,
    scripts: &[Script],
    kill: &Kill,
    dir: Option<&Path>,
) -> Result<()> {
    let mut out = output::lines();
    let Some(script) = scripts.get(kill.script) else { return Ok(()) };
    let what = match &kill.life {
        Life::Alive => "lives".to_owned(),
        Life::Dead(why) => format!("died: {why}"),
        Life::BrokeRule(why) => format!("broke a rule: {why}"),
    };
    writeln!(out, "seed {}: the peer {what}", kill.seed)?;
    writeln!(out, "  {}", read::describe(script))?;
    for mutation in &kill.mutations {
        writeln!(out, "  {mutation}")?;
    }
    let count = kill.kept.len();
    if kill.is_reproduced {
        let numbers: Vec<String> = kill.kept.iter().map(|at| (at + 1).to_string()).collect();
        writeln!(
            out,
            "  the smallest sequence that does it: {count} requests ({})",
            numbers.join(", ")
        )?;
    } else {
        writeln!(
            out,
            "  the same {count} requests on a living peer did not do it, or the peer could not be brought back (--restart)"
        )?;
    }
    let Some(dir) = dir else { return Ok(()) };
    fs::create_dir_all(dir).with_context(|| format!("--found {}", dir.display()))?;
    let name = format!("seed-{}", kill.seed);
    let frames = frames_of(script, kill, peer);
    let capture = dir.join(format!("{name}.pcapng"));
    write::write_frames(&capture, &frames)?;
    let about = format!("The peer {what}");
    let scenario = to_scenario(&name, &about, script, &kill.kept, &kill.mutations);
    let path = dir.join(format!("{name}.toml"));
    WholeFile::write(path.display().to_string(), &path, scenario.as_bytes())?;
    writeln!(out, "  written: {} and {}", capture.display(), path.display())?;
    Ok(())
}

/// The frames of the smallest sequence: as they were sent last if that was it, or else with the
/// numbers of the capture.
fn frames_of(
    script: &Script,
    kill: &Kill,
    peer: &WirePeer<'_>,
) -> Vec<(roce::time::Instant, Vec<u8>)> {
    let start = peer.wire.now();
    let frames = mutate(sequence(script, &Target::default(), &kill.kept), &kill.mutations);
    let times = (0..).map(|index| start.saturating_add(Duration::from_micros(10 * index)));
    times.zip(frames.iter().map(|(_, out)| out.emit())).collect()
}
