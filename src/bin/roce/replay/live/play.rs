//! Playing scripts to a live peer.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use roce::link::interface::gid;
use roce::replay::Options;
use roce::replay::live::{
    Comparison, Event, Expected, Loop, Needs, Next, PlayOptions, Player, Reaction, Script, Target,
};
use roce::wire::{Packet, Qpn, Received, Service};

use super::args::LiveArgs;
use super::connect::Connected;
use super::map;
use super::offer::{self, Offered, Server};
use super::wire::Wire;
use crate::bench::control::offer::Area;
use crate::interrupt;

/// Time to wait at the end for datagrams that nothing acknowledges.
const UNACKNOWLEDGED: Duration = Duration::from_millis(100);

/// Peer side of the requests.
pub(super) enum PeerSide<'a> {
    /// Numbers and addresses that the options say.
    Mapped,
    /// Objects that a server offers.
    Offer(&'a Server),
    /// A connection that the connection manager made.
    Connected(Connected),
}

/// One script and all that it is played with.
pub(super) struct Part {
    pub(super) script: Script,
    pub(super) target: Target,
    needs: Needs,
    /// Queue pair of this side, to which answers come.
    own_qpn: Option<Qpn>,
    offered: Option<Offered>,
    expected: Expected,
    player: Player,
    sent: u64,
    is_over: bool,
}

/// Result of a script.
pub(super) struct Played {
    pub(super) script: Script,
    pub(super) sent: u64,
    pub(super) timeouts: u64,
    pub(super) comparison: Comparison,
    /// Contents of the peer's memory; `None` if it cannot be read.
    pub(super) memory: Option<Memory>,
}

/// Result of comparing the peer's memory.
pub(super) struct Memory {
    pub(super) regions: usize,
    pub(super) bytes: u64,
    pub(super) receives: u64,
    /// Differences.
    pub(super) wrong: Vec<String>,
}

/// A queue pair number for this side that was not used before.
pub(super) fn fresh_qpn() -> Result<Qpn> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).context("the system has no random numbers")?;
    Ok(Qpn::new((u32::from_le_bytes(bytes) & 0x7f_ffff) | 0x40_0000))
}

/// Returns the options of playing scripts.
pub(super) fn options(args: &LiveArgs) -> PlayOptions {
    let mut options = PlayOptions::default();
    options.speed = args.speed;
    options.wait = if args.open_loop { Loop::Open } else { Loop::Closed };
    options.timeout = Duration::from_millis(args.timeout);
    options.rounds = args.rounds;
    options
}

impl Part {
    /// Maps a script onto a peer: its address, and what it has for the script.
    pub(super) fn new(
        script: &Script,
        scripts: usize,
        wire: &Wire,
        (peer, side): (IpAddr, PeerSide<'_>),
        args: &LiveArgs,
    ) -> Result<Self> {
        let mut target = map::target(script, scripts, &args.maps)?;
        let mut needs = Needs::of(script)?;
        ensure!(
            usize::from(script.mtu) <= wire.mtu().bytes(),
            "the capture has a path MTU of {}, and {} can do {}",
            script.mtu,
            wire.name(),
            wire.mtu()
        );
        let is_fresh = !matches!(side, PeerSide::Mapped);
        let offered = match side {
            PeerSide::Mapped | PeerSide::Connected(_) => {
                target.source = Some(wire.source_for(peer)?);
                target.destination = Some(gid(peer));
                if let PeerSide::Connected(connected) = side {
                    connected.map(&mut target);
                }
                None
            }
            PeerSide::Offer(server) => {
                needs = needs.zeroed();
                let source = wire.source_for(server.address())?;
                let own = (source, fresh_qpn()?);
                let wish = offer::wish(script, &needs, own, args.rounds)?;
                let mut offered = server.ask(wish)?;
                offered.map(&mut target, &needs);
                offered.fill(&needs.regions)?;
                Some(offered)
            }
        };
        let first_psn = target.first_psn.unwrap_or(script.first_psn);
        Ok(Self {
            own_qpn: target.source_qpn.or(script.requester.qpn),
            expected: Expected::new(script, needs.clone(), first_psn, is_fresh),
            player: Player::new(script, options(args)),
            script: script.clone(),
            target,
            needs,
            offered,
            sent: 0,
            is_over: false,
        })
    }

    /// Tells a judge what is known of the connection.
    pub(super) fn tell(&self, options: &mut Options) {
        if let Some(offered) = &self.offered {
            offered.tell(options);
        }
    }

    /// Whether a packet that arrived is for this script.
    fn takes(&self, received: &Received<'_>, is_only: bool) -> bool {
        let Ok(packet) = Packet::parse(received.packet) else { return false };
        let from_peer = self.target.destination.is_none_or(|gid| gid == received.source);
        from_peer
            && (self.own_qpn.is_none_or(|own| own == packet.bth().dest_qp())
                || is_only && self.offered.is_none())
    }

    /// Sends what is due. Returns until when there is nothing to do.
    fn step(&mut self, wire: &mut Wire) -> Result<Option<roce::time::Instant>> {
        /// Requests that are sent before answers are looked at.
        const BURST: usize = 16;
        for _ in 0..BURST {
            if self.is_over {
                return Ok(None);
            }
            let now = wire.now();
            match self.player.poll(now, self.expected.answered_to()) {
                Next::Send { event, round } => {
                    let Some(Event::Request(request)) = self.script.events.get(event) else {
                        continue;
                    };
                    let shift = self.script.span().wrapping_mul(round);
                    let out = self.target.request(&self.script, request, shift);
                    self.expected.sent(&self.script, request, round);
                    wire.send(&out)?;
                    self.sent += 1;
                }
                Next::Wait(until) => return Ok(Some(until)),
                Next::Done => {
                    self.is_over = true;
                    return Ok(None);
                }
            }
        }
        Ok(Some(wire.now()))
    }

    /// Takes an answer.
    fn answer(&mut self, packet: &[u8], now: roce::time::Instant) {
        let before = self.expected.answered_to();
        match self.expected.answer(packet) {
            Reaction::None => {}
            Reaction::Rewind(at) => drop(self.player.rewind(at, now)),
            Reaction::RewindAfter(at, micros) => {
                let then = now.saturating_add(Duration::from_micros(micros.into()));
                self.player.rewind(at, then);
            }
            Reaction::Stop => self.is_over = true,
        }
        if self.expected.answered_to() > before {
            self.player.progressed();
        }
    }

    /// Compares the peer's memory with what it must hold, and tells what came of the script.
    fn finish(mut self, rounds: u32) -> Result<Played> {
        let timeouts = self.player.timeouts();
        let is_stopped = self.expected.is_stopped();
        let (comparison, model) = self.expected.finish();
        let memory = match &mut self.offered {
            // Requests that were in flight behind a refused one may have been executed or not.
            // A replay that was interrupted wrote only a part.
            Some(offered)
                if !(is_stopped && comparison.different() > 0 || interrupt::requested()) =>
            {
                let mut memory = Memory { regions: 0, bytes: 0, receives: 0, wrong: Vec::new() };
                let unacknowledged = self.script.service != Service::Rc;
                if unacknowledged {
                    std::thread::sleep(UNACKNOWLEDGED);
                }
                look_at_regions(offered, &mut memory, model.regions())?;
                look_at_receives(offered, &mut memory, &self.script, &self.needs, rounds)?;
                Some(memory)
            }
            _ => None,
        };
        let Self { script, sent, .. } = self;
        Ok(Played { script, sent, timeouts, comparison, memory })
    }
}

fn look_at_regions(
    offered: &mut Offered,
    memory: &mut Memory,
    regions: &[roce::replay::live::Region],
) -> Result<()> {
    for (index, region) in regions.iter().enumerate() {
        memory.regions += 1;
        memory.bytes += region.bytes.len() as u64;
        if let Some(at) = offered.holds(Area::Region(index), &region.bytes)? {
            let (rkey, address) = (region.rkey, region.start + at);
            memory.wrong.push(format!(
                "memory of key {rkey} differs from address {address:#x} of the capture on"
            ));
        }
    }
    Ok(())
}

fn look_at_receives(
    offered: &mut Offered,
    memory: &mut Memory,
    script: &Script,
    needs: &Needs,
    rounds: u32,
) -> Result<()> {
    if needs.receives == 0 {
        return Ok(());
    }
    memory.receives = offered.received()?;
    let all = needs.receives as u64 * u64::from(rounds);
    if memory.receives != all {
        let found = memory.receives;
        memory.wrong.push(format!("{found} receives completed, expected {all}"));
    }
    // Datagrams come with the sender's network header, which is not compared.
    if script.service != Service::Ud && needs.receive_bytes > 0 {
        let image = script.received_image(needs.receive_bytes);
        if let Some(at) = offered.holds(Area::Receives, &image)? {
            let message = at / needs.receive_bytes as u64 + 1;
            memory
                .wrong
                .push(format!("message {message} that was received differs from the capture's"));
        }
    }
    Ok(())
}

/// Plays all scripts side by side.
pub(super) fn play(wire: &mut Wire, mut parts: Vec<Part>, rounds: u32) -> Result<Vec<Played>> {
    let is_only = parts.len() == 1;
    while parts.iter().any(|part| !part.is_over) && !interrupt::requested() {
        let mut until = None;
        for part in &mut parts {
            let next = part.step(wire)?;
            until = [until, next].into_iter().flatten().min();
        }
        keep_alive(&mut parts)?;
        let now = wire.now();
        let until = until.unwrap_or(now).min(now.saturating_add(offer::LOOK));
        wire.receive(until, &mut |received| {
            if let Some(part) = parts.iter_mut().find(|part| part.takes(received, is_only)) {
                part.answer(received.packet, now);
            }
        })?;
    }
    let mut played = Vec::new();
    parts.reverse();
    while let Some(part) = parts.pop() {
        played.push(part.finish(rounds)?);
        keep_alive(&mut parts)?;
    }
    Ok(played)
}

/// Tells the servers of all parts that this side is still there. Asking for many offers, or
/// comparing their memory, may take longer than a server waits.
pub(super) fn keep_alive(parts: &mut [Part]) -> Result<()> {
    parts.iter_mut().filter_map(|part| part.offered.as_mut()).try_for_each(Offered::keep_alive)
}
