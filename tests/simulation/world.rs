//! Engines and the network between them, under virtual time.

use std::net::{Ipv4Addr, Ipv6Addr};

use roce::capture::PcapWriter;
use roce::engine::{Batch, CqHandle, Engine, Event, PdHandle, QpHandle, SrqHandle, XrcdHandle};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{AttrMask, PostError, QpAttr, QpState, QpType, Target, Wc};
use roce::wire::{Gid, LinkType, Packet, Qpn};

use super::build;
use super::common_world::{self, Host};
use super::datagrams::Datagrams;
use super::dice::Dice;
use super::names::{Names, drain};
use super::plan::{Kill, Plan, RECV};

pub struct Nic {
    pub engine: Engine,
    pub gid: Gid,
    pub pd: PdHandle,
    pub xrcd: XrcdHandle,
    pub events: Vec<Event>,
    pub batch: Batch,
    /// Denominator of the share of transmissions that may delay ACKs.
    pub defers: usize,
    /// Whether this transmission delays ACKs.
    pub delays_acks: bool,
    pub dice: Dice,
    /// The multicast group that it belongs to.
    pub group: Gid,
}

impl Host for Nic {
    fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    fn timeout(&self) -> Option<Instant> {
        self.engine.poll_timeout()
    }

    fn poll_transmit(&mut self, now: Instant) -> Option<&mut Batch> {
        self.batch.clear();
        let count = match self.delays_acks {
            true => self.engine.poll_transmit_delaying_acks(now, &mut self.batch),
            false => self.engine.poll_transmit(now, &mut self.batch),
        };
        (count > 0).then_some(&mut self.batch)
    }

    fn takes(&self, to: Gid) -> bool {
        to == self.gid || to == self.group
    }
}

/// An end of a link as it is in its engine.
pub struct Runner {
    pub nic: usize,
    pub qp: QpHandle,
    pub qpn: Qpn,
    pub send_cq: CqHandle,
    pub recv_cq: CqHandle,
    /// Number of sends and receives that were posted.
    pub posted: usize,
    pub received: usize,
    /// Whether it was destroyed or reset.
    pub gone: bool,
    /// Completions of sends and of receives, as they came.
    pub sent: Vec<Wc>,
    pub got: Vec<Wc>,
}

pub struct World<'p> {
    pub plan: &'p Plan,
    pub net: common_world::World<Nic>,
    pub names: Names,
    pub buffers: Vec<Buffer>,
    pub srqs: Vec<Option<(SrqHandle, CqHandle)>>,
    srq_posted: Vec<usize>,
    pub runners: Vec<[Runner; 2]>,
    pub datagrams: Datagrams,
    /// Pending actions on ends: time, link, end, action.
    pub agenda: Vec<(Instant, usize, usize, EndAction)>,
    pub cut_off: Vec<Qpn>,
    pub start: Instant,
    capture: Option<PcapWriter<Vec<u8>>>,
    aloud: bool,
}

#[derive(Clone, Copy)]
pub enum EndAction {
    Drain,
    Resume,
    Kill(Kill),
}

/// Maximum number of steps, by which a story that does not end is told from one that takes long.
const STEPS_MAX: usize = if cfg!(roce_narrow_psn) { 10_000_000 } else { 400_000 };

impl<'p> World<'p> {
    pub fn new(plan: &'p Plan, aloud: bool, capture: bool) -> Self {
        let start = Instant::from_nanos(1000);
        let nics = (0..plan.nics.len()).map(|number| build::nic(plan, number)).collect();
        let mut world = Self {
            plan,
            net: common_world::World::new(nics, plan.faults, plan.chance, start),
            names: Names::default(),
            buffers: Vec::new(),
            srqs: Vec::new(),
            srq_posted: vec![0; plan.srqs.len()],
            runners: Vec::new(),
            datagrams: Datagrams::default(),
            agenda: Vec::new(),
            cut_off: Vec::new(),
            start,
            capture: capture.then(|| PcapWriter::new(Vec::new(), LinkType::RAW).unwrap()),
            aloud,
        };
        world.register();
        world.share();
        for link in 0..plan.links.len() {
            world.connect(link);
        }
        world.datagrams = Datagrams::open(&mut world);
        world
    }

    /// Runs until nothing is left to happen; whether that comes.
    pub fn run(&mut self) -> bool {
        for _ in 0..STEPS_MAX {
            // Before anything fills the queues for completions again.
            let polled = self.poll();
            self.act();
            let fed = self.feed() | Datagrams::feed(self);
            self.transmit();
            if polled | fed | self.poll() {
                continue;
            }
            let Some(next) = self.next() else { return true };
            self.net.advance(next);
        }
        false
    }

    /// Returns the time of the next event.
    fn next(&self) -> Option<Instant> {
        let actions = self.agenda.iter().map(|(at, ..)| *at);
        let later = self.plan.links.iter().zip(&self.runners).flat_map(|(link, runners)| {
            (0..2).flat_map(move |side| {
                let send = link.flows[side].posts.get(runners[side].posted).map(|post| post.at);
                let recv = link.flows[1 - side].recvs.get(runners[side].received);
                [send, recv.map(|(at, _)| *at)]
            })
        });
        let shared = self.plan.srqs.iter().zip(&self.srq_posted);
        let shared = shared.map(|(srq, posted)| srq.recvs.get(*posted).map(|(at, _)| *at));
        let later = later.chain(shared).flatten().chain(self.datagrams.later(self.plan));
        let later = later.map(|at| self.start.saturating_add(at)).filter(|at| *at > self.net.now);
        actions.chain(later).chain(self.net.next()).min()
    }

    /// Whether a time of the plan has come.
    pub fn is_time(&self, at: std::time::Duration) -> bool {
        self.start.saturating_add(at) <= self.net.now
    }

    /// Does to ends what is due.
    fn act(&mut self) {
        let now = self.net.now;
        let due: Vec<_> = self.agenda.iter().copied().filter(|(at, ..)| *at <= now).collect();
        self.agenda.retain(|(at, ..)| *at > now);
        for (_, link, side, action) in due {
            let runner = &mut self.runners[link][side];
            let Nic { engine, defers, .. } = &mut self.net.hosts[runner.nic];
            // A NIC sends what it delayed before it executes a command, and so do some of these.
            if *defers < 5 {
                engine.end_ack_delays();
            }
            let to = |engine: &mut Engine, qp_state| {
                engine.modify_qp(
                    runner.qp,
                    &QpAttr { qp_state, ..QpAttr::default() },
                    AttrMask::STATE,
                )
            };
            let state = engine.qp_state(runner.qp);
            let drains = engine.qp_kind(runner.qp).is_some_and(QpType::has_send_queue);
            match action {
                EndAction::Drain if state == Some(QpState::Rts) && drains => {
                    to(engine, QpState::Sqd).unwrap();
                }
                EndAction::Resume if state == Some(QpState::Sqd) => {
                    to(engine, QpState::Rts).unwrap()
                }
                EndAction::Drain | EndAction::Resume => {}
                EndAction::Kill(Kill::Error) => to(engine, QpState::Err).unwrap(),
                EndAction::Kill(Kill::Reset) => {
                    to(engine, QpState::Reset).unwrap();
                    runner.gone = true;
                }
                EndAction::Kill(Kill::Destroy) => {
                    engine.destroy_qp(runner.qp).unwrap();
                    runner.gone = true;
                }
            }
            self.poll_end(link, side);
        }
    }

    /// Posts what is due; whether anything was.
    fn feed(&mut self) -> bool {
        let mut fed = false;
        for (index, srq) in self.plan.srqs.iter().enumerate() {
            let Some((handle, _)) = self.srqs[index] else { continue };
            while let Some((at, recv)) = srq.recvs.get(self.srq_posted[index])
                && self.is_time(*at)
            {
                let engine = &mut self.net.hosts[srq.nic].engine;
                self.names.post_srq_recv(engine, handle, recv).unwrap();
                self.srq_posted[index] += 1;
                fed = true;
            }
        }
        for link in 0..self.plan.links.len() {
            for side in [0, 1] {
                fed |= self.feed_receives(link, side) | self.feed_sends(link, side);
            }
        }
        fed
    }

    fn feed_receives(&mut self, link: usize, side: usize) -> bool {
        let flow = &self.plan.links[link].flows[1 - side];
        let mut fed = false;
        while let Some((at, recv)) = flow.recvs.get(self.runners[link][side].received)
            && self.is_time(*at)
            && !self.runners[link][side].gone
        {
            let runner = &mut self.runners[link][side];
            let engine = &mut self.net.hosts[runner.nic].engine;
            match self.names.post_recv(engine, runner.qp, recv) {
                Err(PostError::QueueFull) => break,
                posted => posted.unwrap(),
            }
            runner.received += 1;
            fed = true;
            // Completions are polled before the queue for them overflows.
            self.poll_end(link, side);
        }
        fed
    }

    fn feed_sends(&mut self, link: usize, side: usize) -> bool {
        let plan = &self.plan.links[link];
        let mut fed = false;
        while let Some(post) = plan.flows[side].posts.get(self.runners[link][side].posted)
            && self.is_time(post.at)
            && self.is_done(link, post.after)
            && !self.runners[link][side].gone
        {
            let target = match (plan.kind, plan.ends[1].srq.and_then(|srq| self.srqs[srq])) {
                (QpType::XrcSend, Some((srq, _))) => {
                    Target::Xrc(self.net.hosts[plan.ends[1].nic].engine.srq_number(srq))
                }
                (QpType::XrcSend, None) => Target::Xrc(roce::wire::XrcSrqn::new(1)),
                _ => Target::Peer,
            };
            let runner = &mut self.runners[link][side];
            let engine = &mut self.net.hosts[runner.nic].engine;
            match self.names.post(engine, runner.qp, target, &post.work) {
                Err(PostError::QueueFull) => break,
                posted => posted.unwrap(),
            }
            runner.posted += 1;
            fed = true;
            self.poll_end(link, side);
        }
        fed
    }

    /// Whether a request has completed.
    fn is_done(&self, link: usize, op: Option<(usize, usize)>) -> bool {
        op.is_none_or(|(side, op)| {
            self.runners[link][side].sent.iter().any(|wc| wc.id.0 == op as u64)
        })
    }

    /// Sends what there is, as a NIC does: with the program's next poll some of it may be deferred.
    fn transmit(&mut self) {
        for number in 0..self.net.hosts.len() {
            let nic = &mut self.net.hosts[number];
            nic.delays_acks = nic.defers > 0 && nic.dice.one_in(nic.defers);
            let (capture, aloud, cut_off) = (&mut self.capture, self.aloud, &self.cut_off);
            self.net.transmit(number, |now, path, packet| {
                if aloud {
                    println!("{now} {}", words(packet));
                }
                if let Some(capture) = capture {
                    let headers = path.seal(packet);
                    let (ip, udp) = headers.as_bytes();
                    let bytes = [ip, udp, packet].concat();
                    capture.write(now, bytes.len() as u32, &bytes).unwrap();
                }
                let to = Packet::parse(&packet[..packet.len() - 4]).unwrap().bth().dest_qp();
                !cut_off.contains(&to)
            });
        }
    }

    fn poll_end(&mut self, link: usize, side: usize) -> bool {
        let runner = &self.runners[link][side];
        let (nic, send_cq, recv_cq) = (runner.nic, runner.send_cq, runner.recv_cq);
        let mut all = Vec::new();
        for cq in [send_cq, recv_cq] {
            drain(&mut self.net.hosts[nic].engine, cq, &mut all);
        }
        for wc in &all {
            // The queue of an XRC target is several targets'.
            let here = self.runners.iter_mut().flatten();
            let mut here = here.filter(|runner| runner.nic == nic && runner.qpn == wc.qp_num);
            let runner = here.next().expect("completions name their queue pair");
            if wc.id.0 & RECV == 0 { &mut runner.sent } else { &mut runner.got }.push(*wc);
        }
        !all.is_empty()
    }

    fn poll(&mut self) -> bool {
        let mut polled = false;
        for link in 0..self.runners.len() {
            for side in [0, 1] {
                polled |= self.poll_end(link, side);
            }
        }
        for nic in &mut self.net.hosts {
            nic.events.extend(std::iter::from_fn(|| nic.engine.poll_event()));
        }
        polled | Datagrams::poll(self)
    }

    pub fn state(&self, link: usize, side: usize) -> Option<QpState> {
        let runner = &self.runners[link][side];
        self.net.hosts[runner.nic].engine.qp_state(runner.qp)
    }

    pub fn into_capture(self) -> Vec<u8> {
        self.capture.map_or_else(Vec::new, PcapWriter::into_inner)
    }
}

/// The one multicast group there is.
pub fn group(plan: &Plan) -> Gid {
    if plan.ipv6 {
        Gid::from(Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 7))
    } else {
        Gid::from(Ipv4Addr::new(239, 1, 2, 3))
    }
}

/// A packet, in a line.
fn words(packet: &[u8]) -> String {
    let packet = Packet::parse(&packet[..packet.len() - 4]).unwrap();
    let bth = packet.bth();
    let aeth =
        packet.aeth().map(|aeth| format!(" {} msn={}", aeth.syndrome().answer(), aeth.msn()));
    let reth = packet.reth().map(|reth| format!(" dmalen {}", reth.dma_len()));
    let ack = if bth.ack_req() { " ack-req" } else { "" };
    let (opcode, qp, psn) = (bth.opcode(), bth.dest_qp(), bth.psn());
    let more = aeth.unwrap_or_default() + &reth.unwrap_or_default();
    format!("{opcode} qp {qp} psn {psn}{ack}{more} len {}", packet.payload_len())
}
