//! Engines and the network between them, under virtual time.

use std::net::{Ipv4Addr, Ipv6Addr};

use roce::capture::PcapWriter;
use roce::engine::{
    Batch, Config, CqHandle, Engine, Event, MrAttr, PdHandle, QpCreate, QpHandle, Received,
    SrqCreate, SrqHandle, XrcdHandle,
};
use roce::link::mem::{Network, Rule};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    AckTimeout, AhAttr, AttrMask, PostError, QpAttr, QpCap, QpInitAttr, QpState, QpType,
    RetryCount, RnrRetry, Target, Wc, transition,
};
use roce::wire::aeth::RnrTimer;
use roce::wire::{
    Bits, Frame, Gid, IcrcVerdict, LinkType, Network as Net, Packet, Psn, QKey, Qpn, ROCE_PORT,
};

use super::author::{INLINE, OPS_MAX};
use super::letters::Office;
use super::names::{BASE, Names, drain};
use super::plan::{ALL, Key, Kill, Plan, RECV};

pub struct Nic {
    pub engine: Engine,
    pub gid: Gid,
    pub pd: PdHandle,
    xrcd: XrcdHandle,
    pub events: Vec<Event>,
}

/// An end of a link as it is in its engine.
pub struct Runner {
    pub nic: usize,
    pub qp: QpHandle,
    pub qpn: Qpn,
    pub send_cq: CqHandle,
    pub recv_cq: CqHandle,
    /// How many sends and receives were posted.
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
    pub nics: Vec<Nic>,
    pub network: Network,
    pub names: Names,
    pub buffers: Vec<Buffer>,
    srqs: Vec<Option<(SrqHandle, CqHandle)>>,
    srq_posted: Vec<usize>,
    pub runners: Vec<[Runner; 2]>,
    pub office: Office,
    /// What is still to happen to ends: when, to which, what.
    agenda: Vec<(Instant, usize, usize, Deed)>,
    cut_off: Vec<Qpn>,
    pub now: Instant,
    start: Instant,
    capture: Option<PcapWriter<Vec<u8>>>,
    aloud: bool,
}

#[derive(Clone, Copy)]
enum Deed {
    Drain,
    Resume,
    Kill(Kill),
}

/// How a story that does not end is told from one that takes long.
const STEPS_MAX: usize = 400_000;

impl<'p> World<'p> {
    pub fn new(plan: &'p Plan, aloud: bool, capture: bool) -> Self {
        let start = Instant::from_nanos(1000);
        let mut world = Self {
            plan,
            nics: (0..plan.nics.len()).map(|number| nic(plan, number)).collect(),
            network: Network::new(plan.faults, plan.chance),
            names: Names::default(),
            buffers: Vec::new(),
            srqs: Vec::new(),
            srq_posted: vec![0; plan.srqs.len()],
            runners: Vec::new(),
            office: Office::default(),
            agenda: Vec::new(),
            cut_off: Vec::new(),
            now: start,
            start,
            capture: capture.then(|| PcapWriter::new(Vec::new(), LinkType::RAW).unwrap()),
            aloud,
        };
        world.register();
        world.share();
        for link in 0..plan.links.len() {
            world.connect(link);
        }
        world.office = Office::open(&mut world);
        world
    }

    fn register(&mut self) {
        for key in &self.plan.keys {
            match key {
                Key::Region { nic, rights, bytes } => {
                    let buffer = Buffer::from_bytes(bytes);
                    let Nic { engine, pd, .. } = &mut self.nics[*nic];
                    let attr = MrAttr { region: buffer.region(), base: BASE, access: *rights };
                    self.names.add_region(engine.register(*pd, attr).unwrap());
                    self.buffers.push(buffer);
                }
                Key::Window { nic, kind } => {
                    let Nic { engine, pd, .. } = &mut self.nics[*nic];
                    let window = engine.create_mw(*pd, *kind).unwrap();
                    self.names.add_window(engine.mw_key(window).unwrap());
                    self.buffers.push(Buffer::new(0));
                }
            }
        }
    }

    fn share(&mut self) {
        for plan in &self.plan.srqs {
            let Nic { engine, pd, xrcd, .. } = &mut self.nics[plan.nic];
            let made = (!plan.recvs.is_empty()).then(|| {
                let cq = engine.create_cq(plan.recvs.len()).unwrap();
                let (max_wr, xrc) = (plan.recvs.len() as u32, plan.xrc.then_some((*xrcd, cq)));
                let create = SrqCreate { max_wr, max_sge: 3, limit: 0, xrc };
                (engine.create_srq(*pd, create).unwrap(), cq)
            });
            self.srqs.push(made);
        }
    }

    /// Makes both ends of a link and connects them.
    fn connect(&mut self, number: usize) {
        let link = &self.plan.links[number];
        let runners = [0, 1].map(|side| self.runner(number, side));
        for side in [0, 1] {
            let (end, peer) = (&link.ends[side], &link.ends[1 - side]);
            let attr = QpAttr {
                qp_access_flags: end.rights,
                path_mtu: link.mtu,
                dest_qp_num: runners[1 - side].qpn,
                rq_psn: Psn::new(peer.psn),
                sq_psn: Psn::new(end.psn),
                ah_attr: AhAttr::new(self.nics[peer.nic].gid, 0),
                max_rd_atomic: link.reads,
                max_dest_rd_atomic: link.reads,
                min_rnr_timer: RnrTimer(Bits::low(4)),
                // Longer than a full queue takes to drain at the lowest rate, or patience ends for no fault of the
                // engine's.
                timeout: AckTimeout(Bits::low(13)),
                retry_cnt: RetryCount::MAX,
                rnr_retry: RnrRetry(Bits::low(end.rnr_retry)),
                ..QpAttr::default()
            };
            climb(&mut self.nics[end.nic].engine, runners[side].qp, &attr);
            if end.cut_off {
                self.cut_off.push(runners[side].qpn);
            }
            if let Some((at, until)) = end.drain {
                self.agenda.push((self.start.saturating_add(at), number, side, Deed::Drain));
                self.agenda.push((self.start.saturating_add(until), number, side, Deed::Resume));
            }
            if let Some((at, kill)) = end.kill {
                self.agenda.push((self.start.saturating_add(at), number, side, Deed::Kill(kill)));
            }
        }
        for &(to, offset, nth, action) in &link.rules {
            // Requests to one end have the PSNs of the other, and so have their answers.
            for side in [0, 1] {
                let psn = Psn::new(link.ends[side].psn).plus(offset);
                self.network.add_rule(Rule { qp: runners[to].qpn, psn, nth, action });
            }
        }
        self.runners.push(runners);
    }

    fn runner(&mut self, number: usize, side: usize) -> Runner {
        let link = &self.plan.links[number];
        let end = &link.ends[side];
        let shared = end.srq.map(|srq| self.plan.srqs[srq].recvs.len());
        let srq = end.srq.and_then(|srq| self.srqs[srq]);
        let Nic { engine, pd, xrcd, .. } = &mut self.nics[end.nic];
        // No larger than it must be.
        let (send, recv) = (end.send_depth, shared.unwrap_or(end.recv_depth).max(1));
        let (send_cq, recv_cq) = if end.one_cq {
            let cq = engine.create_cq(send + recv).unwrap();
            (cq, cq)
        } else {
            (engine.create_cq(send).unwrap(), engine.create_cq(recv).unwrap())
        };
        let cap = QpCap {
            max_send_wr: end.send_depth as u32,
            max_recv_wr: end.recv_depth as u32,
            max_send_sge: 3,
            max_recv_sge: 3,
            max_inline_data: INLINE as u32,
        };
        let target = link.kind == QpType::XrcSend && side == 1;
        let qp_type = if target { QpType::XrcRecv } else { link.kind };
        let init = QpInitAttr { qp_type, cap, sq_sig_all: end.sig_all };
        let create = QpCreate {
            init,
            send_cq,
            recv_cq,
            srq: if target { None } else { srq.map(|(srq, _)| srq) },
            xrcd: target.then_some(*xrcd),
        };
        let qp = engine.create_qp(*pd, create).unwrap();
        let recv_cq = srq.filter(|_| target).map_or(recv_cq, |(_, cq)| cq);
        if let Some(notify) = end.notify {
            engine.request_notify(recv_cq, notify);
        }
        Runner {
            nic: end.nic,
            qp,
            qpn: engine.qp_number(qp).unwrap(),
            send_cq,
            recv_cq,
            posted: 0,
            received: 0,
            gone: false,
            sent: Vec::new(),
            got: Vec::new(),
        }
    }

    /// Runs until nothing is left to happen; whether that comes.
    pub fn run(&mut self) -> bool {
        let mut batch = Batch::new(64);
        for _ in 0..STEPS_MAX {
            // Before anything fills the queues for completions again.
            let polled = self.poll();
            self.act();
            let fed = self.feed() | Office::feed(self);
            self.transmit(&mut batch);
            if polled | fed | self.poll() {
                continue;
            }
            let Some(next) = self.next() else { return true };
            self.now = self.now.max(next);
            while let Some(delivery) = self.network.poll_delivery(self.now) {
                self.deliver(delivery.to, &delivery.bytes);
            }
            for nic in &mut self.nics {
                nic.engine.handle_timeout(self.now);
            }
        }
        false
    }

    /// When something happens next.
    fn next(&self) -> Option<Instant> {
        let timers = self.nics.iter().filter_map(|nic| nic.engine.poll_timeout());
        let deeds = self.agenda.iter().map(|(at, ..)| *at);
        let later = self.plan.links.iter().zip(&self.runners).flat_map(|(link, runners)| {
            (0..2).flat_map(move |side| {
                let send = link.flows[side].posts.get(runners[side].posted).map(|post| post.at);
                let recv = link.flows[1 - side].recvs.get(runners[side].received);
                [send, recv.map(|(at, _)| *at)]
            })
        });
        let shared = self.plan.srqs.iter().zip(&self.srq_posted);
        let shared = shared.map(|(srq, posted)| srq.recvs.get(*posted).map(|(at, _)| *at));
        let later = later.chain(shared).flatten().chain(self.office.later(self.plan));
        let later = later.map(|at| self.start.saturating_add(at)).filter(|at| *at > self.now);
        timers.chain(deeds).chain(later).chain(self.network.poll_timeout()).min()
    }

    /// Whether a time of the plan has come.
    pub fn is_time(&self, at: std::time::Duration) -> bool {
        self.start.saturating_add(at) <= self.now
    }

    /// Does to ends what is due.
    fn act(&mut self) {
        let now = self.now;
        let due: Vec<_> = self.agenda.iter().copied().filter(|(at, ..)| *at <= now).collect();
        self.agenda.retain(|(at, ..)| *at > now);
        for (_, link, side, deed) in due {
            let runner = &mut self.runners[link][side];
            let engine = &mut self.nics[runner.nic].engine;
            let to = |engine: &mut Engine, qp_state| {
                engine.modify_qp(
                    runner.qp,
                    &QpAttr { qp_state, ..QpAttr::default() },
                    AttrMask::STATE,
                )
            };
            let state = engine.qp_state(runner.qp);
            let drains = engine.qp_kind(runner.qp).is_some_and(QpType::has_send_queue);
            match deed {
                Deed::Drain if state == Some(QpState::Rts) && drains => {
                    to(engine, QpState::Sqd).unwrap();
                }
                Deed::Resume if state == Some(QpState::Sqd) => to(engine, QpState::Rts).unwrap(),
                Deed::Drain | Deed::Resume => {}
                Deed::Kill(Kill::Error) => to(engine, QpState::Err).unwrap(),
                Deed::Kill(Kill::Reset) => {
                    to(engine, QpState::Reset).unwrap();
                    runner.gone = true;
                }
                Deed::Kill(Kill::Destroy) => {
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
                let engine = &mut self.nics[srq.nic].engine;
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
            let engine = &mut self.nics[runner.nic].engine;
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
                    Target::Xrc(self.nics[plan.ends[1].nic].engine.srq_number(srq))
                }
                (QpType::XrcSend, None) => Target::Xrc(roce::wire::XrcSrqn::new(1)),
                _ => Target::Peer,
            };
            let runner = &mut self.runners[link][side];
            let engine = &mut self.nics[runner.nic].engine;
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

    fn transmit(&mut self, batch: &mut Batch) {
        for nic in &mut self.nics {
            loop {
                batch.clear();
                if nic.engine.poll_transmit(self.now, batch) == 0 {
                    break;
                }
                let (network, capture, now) = (&mut self.network, &mut self.capture, self.now);
                let (aloud, cut_off) = (self.aloud, &self.cut_off);
                batch.for_each_mut(|path, packet| {
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
                    if !cut_off.contains(&to) {
                        network.send(now, path, packet);
                    }
                });
            }
        }
    }

    fn deliver(&mut self, to: Gid, bytes: &[u8]) {
        let frame = Frame::parse(LinkType::RAW, bytes, ROCE_PORT);
        if frame.icrc() != Some(IcrcVerdict::Ok) {
            return;
        }
        let (source, destination, ecn, header) = match frame.network().unwrap() {
            Net::Ipv4 { header, .. } => (
                Gid::from(header.source()),
                Gid::from(header.destination()),
                header.ecn(),
                &header.as_bytes()[..],
            ),
            Net::Ipv6 { header, .. } => (
                Gid::from(header.source()),
                Gid::from(header.destination()),
                header.ecn(),
                &header.as_bytes()[..],
            ),
            Net::Grh(_) => unreachable!("there is no RoCEv1 here"),
        };
        let received = Received {
            source,
            destination,
            ecn: ecn.get() as u8,
            network: header,
            packet: frame.packet().unwrap().bytes(),
        };
        let group = group(self.plan);
        for nic in self.nics.iter_mut().filter(|nic| nic.gid == to || to == group) {
            let _ = nic.engine.handle_packet(self.now, &received);
        }
    }

    fn poll_end(&mut self, link: usize, side: usize) -> bool {
        let runner = &self.runners[link][side];
        let (nic, send_cq, recv_cq) = (runner.nic, runner.send_cq, runner.recv_cq);
        let mut all = Vec::new();
        for cq in [send_cq, recv_cq] {
            drain(&mut self.nics[nic].engine, cq, &mut all);
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
        for nic in &mut self.nics {
            nic.events.extend(std::iter::from_fn(|| nic.engine.poll_event()));
        }
        polled | Office::poll(self)
    }

    pub fn state(&self, link: usize, side: usize) -> Option<QpState> {
        let runner = &self.runners[link][side];
        self.nics[runner.nic].engine.qp_state(runner.qp)
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

fn nic(plan: &Plan, number: usize) -> Nic {
    let gid = if plan.ipv6 {
        Gid::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number as u16))
    } else {
        Gid::from(Ipv4Addr::new(192, 0, 2, number as u8))
    };
    let mut config = Config::new(gid);
    let nic = &plan.nics[number];
    config.window_packets = nic.window_packets;
    config.quantum = nic.quantum;
    config.advertise_credits = nic.credits;
    let mut engine = Engine::new(config, nic.seed);
    let pd = engine.create_pd().unwrap();
    let xrcd = engine.create_xrcd().unwrap();
    Nic { engine, gid, pd, xrcd, events: Vec::new() }
}

/// Takes a queue pair from RESET to RTS, or as far as it can go.
pub fn climb(engine: &mut Engine, qp: QpHandle, attr: &QpAttr) {
    let kind = engine.qp_kind(qp).unwrap();
    for to in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let from = engine.qp_state(qp).unwrap();
        let Some(needs) = transition::find(kind, from, to) else { return };
        let attr = QpAttr { qp_state: to, ..*attr };
        engine.modify_qp(qp, &attr, needs.required | AttrMask::STATE).unwrap();
    }
}

/// A datagram queue pair.
pub fn datagram_qp(nic: &mut Nic, kind: QpType, qkey: u32, depth: usize) -> (QpHandle, CqHandle) {
    let cq = nic.engine.create_cq(depth).unwrap();
    let cap = QpCap {
        max_send_wr: (OPS_MAX * 2) as u32,
        max_recv_wr: depth as u32,
        max_send_sge: 3,
        max_recv_sge: 3,
        max_inline_data: INLINE as u32,
    };
    let init = QpInitAttr { qp_type: kind, cap, sq_sig_all: false };
    let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
    let qp = nic.engine.create_qp(nic.pd, create).unwrap();
    let attr = QpAttr { qkey: QKey::new(qkey), qp_access_flags: ALL, ..QpAttr::default() };
    climb(&mut nic.engine, qp, &attr);
    (qp, cq)
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
