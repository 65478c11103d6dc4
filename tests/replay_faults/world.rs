//! Two devices, the two hops between them, and three capture points, under virtual time.

use std::ops::Range;
use std::sync::OnceLock;
use std::time::Duration;

use roce::engine::{Batch, Config, CqHandle, Engine, MrAttr, MrHandle, PdHandle, Received};
use roce::link::fault::{Action, Direction, Rules};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{Access, Data, QpHandle, RecvWr, SendOp, SendWr, Sge, SrqHandle, Wc, WrId};
use roce::wire::{Gid, ICRC_ROOM, Path, Qpn, RKey};

use super::device::{Cx, Device, Mark};
use super::dice::Dice;
use super::frames::{network_len, transport};
use super::management::{LEAD, exchange};
use super::setup::{Key, Op, Setup};
use super::two_hosts::world::{self, Net, World as _};
pub use super::wire::{HOP_DELAY, gid};
use super::wire::{Hop, InFlight, sealed};

/// Steps after which a run is taken not to end.
const STEPS_MAX: usize = 100_000;

/// First address of the memory of a host.
pub const BASE: u64 = 0x7f12_3400_0000;
const BUFFER: usize = 1 << 17;
const PAGE: u64 = 4096;
/// Size of the memory of [`Key::All`] and [`Key::ReadOnly`], from [`BASE`] on.
pub const ALL: u64 = 1 << 15;
/// Memory of a host's own work requests, from [`BASE`] on.
pub const LOCAL: u64 = 1 << 16;
/// Memory of receives.
pub const RECEIVES: u64 = LOCAL + (1 << 15);
/// Windows of each side of each connection.
pub const WINDOWS: usize = 2;

/// One end of the wire: an engine, its memory and its keys.
pub struct Host {
    pub engine: Engine,
    pub gid: Gid,
    pub domains: [PdHandle; 2],
    pub buffer: Buffer,
    /// Regions of the host's own work, by protection domain.
    pub local: [MrHandle; 2],
    pub keys: [MrHandle; 4],
    batch: Batch,
    /// Time when it may send next.
    sends_next: Instant,
}

/// One side of a connection.
pub struct Side {
    pub qp: QpHandle,
    pub cq: CqHandle,
    pub srq: Option<SrqHandle>,
    pub windows: Vec<RKey>,
}

impl Side {
    pub fn new(qp: QpHandle, cq: CqHandle, srq: Option<SrqHandle>) -> Self {
        Self { qp, cq, srq, windows: Vec::new() }
    }
}

/// A frame of a capture point.
#[derive(Clone, Debug)]
pub struct Frame {
    pub time: Instant,
    /// Time when it was sent or captured, by a clock that all points share.
    pub when: Instant,
    /// The connection that it belongs to; nothing for those of the connection manager.
    pub connection: Option<usize>,
    pub mark: Mark,
    pub is_corrupted: bool,
    /// Bytes from the IP header to the ICRC.
    pub bytes: Vec<u8>,
}

/// Result of a run.
#[derive(Debug, Default)]
pub struct Run {
    /// Frames captured at A, at the switch, at B.
    pub captured: [Vec<Frame>; 3],
    /// Packets that the network lost, copied, delayed or damaged: their connection, and when.
    pub faults: Vec<(Option<usize>, Instant)>,
    /// Time since when something is missing that a device should have sent.
    pub omitted: Option<Instant>,
}

pub struct World<'s> {
    setup: &'s Setup,
    hosts: [Host; 2],
    devices: [Device; 2],
    sides: Vec<[Side; 2]>,
    qpns: Vec<[Qpn; 2]>,
    /// Faults by sender and hop.
    rules: [[Rules; 2]; 2],
    net: Net<Mark>,
    dice: Dice,
    run: Run,
}

/// Runs two devices to the end.
pub fn run(setup: &Setup, devices: [Device; 2]) -> Run {
    let mut world = World::new(setup, devices);
    assert!(world.run(STEPS_MAX), "it never ends: {setup:?}");
    world.finish()
}

/// Runs two correct devices.
pub fn run_honest(setup: &Setup) -> Run {
    run(setup, Default::default())
}

/// Returns the initial contents of a part of a host's memory: no two parts are alike.
pub fn initial(number: u16, range: Range<usize>) -> Vec<u8> {
    range.map(|at| (at.wrapping_mul(0x9e37_79b9) >> 11) as u8 ^ number as u8).collect()
}

fn host(number: u16, setup: &Setup) -> Host {
    let gid = gid(number, setup.ipv6);
    let mut config = Config::new(gid);
    config.window_packets = 32;
    config.advertise_credits = setup.advertise_credits;
    // Packets that no engine sends come from a port of their own.
    config.pin_source_port = false;
    let mut engine = Engine::new(config, u64::from(number));
    let domains = [engine.create_pd().unwrap(), engine.create_pd().unwrap()];
    let buffer = Buffer::new(BUFFER);
    // The same for every run, and not made anew for each.
    static MEMORIES: [OnceLock<Vec<u8>>; 2] = [OnceLock::new(), OnceLock::new()];
    let memory = MEMORIES[usize::from(number) - 1].get_or_init(|| initial(number, 0..BUFFER));
    buffer.write(0, memory).unwrap();
    let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let mut register = |domain, offset: u64, len: u64, access| {
        let region = buffer.part(offset as usize, len as usize).unwrap();
        engine.register(domain, MrAttr { region, base: BASE + offset, access }).unwrap()
    };
    let local = Access::LOCAL_WRITE | Access::MW_BIND;
    let keys = [
        register(domains[0], 0, ALL, local | remote),
        register(domains[0], 0, ALL, local | Access::REMOTE_READ),
        register(domains[0], ALL, PAGE, local | remote),
        register(domains[1], ALL + PAGE, PAGE, local | remote),
    ];
    let local = domains.map(|domain| register(domain, 0, BUFFER as u64, local));
    let batch = Batch::new(64);
    Host { engine, gid, domains, buffer, local, keys, batch, sends_next: Instant::ZERO }
}

impl Host {
    /// Returns the number of a key on the wire, and the first address of its range.
    pub fn key(&self, key: Key, windows: &[RKey]) -> (RKey, u64) {
        match key {
            Key::All => (self.keys[0].rkey(), BASE),
            Key::ReadOnly => (self.keys[1].rkey(), BASE),
            Key::Page => (self.keys[2].rkey(), BASE + ALL),
            Key::OtherDomain => (self.keys[3].rkey(), BASE + ALL + PAGE),
            Key::Window(number) => (windows[number], window_base(number)),
            Key::OthersWindow | Key::Unknown => {
                (RKey::new(self.keys[0].rkey().get() ^ 0x5a5a_5a00), BASE)
            }
        }
    }
}

/// Returns the first address of a window.
pub fn window_base(number: usize) -> u64 {
    BASE + ALL + (2 + number as u64) * PAGE
}

impl<'s> World<'s> {
    fn new(setup: &'s Setup, devices: [Device; 2]) -> Self {
        let start = Instant::from_nanos(1_000_000_000);
        let mut world = Self {
            setup,
            hosts: [host(1, setup), host(2, setup)],
            devices,
            sides: Vec::new(),
            qpns: Vec::new(),
            rules: Default::default(),
            net: Net::new(Instant::from_nanos(start.as_nanos() - LEAD.as_nanos() as u64)),
            dice: Dice::new(setup.seed),
            run: Run::default(),
        };
        for rule in &setup.rules {
            world.rules[rule.sender][rule.hop as usize].add(rule.of_the_injector());
        }
        for connection in &setup.connections {
            let (sides, qpns) = super::connect::connect(&mut world.hosts, connection);
            world.sides.push(sides);
            world.qpns.push(qpns);
            world.net.schedules.push([0, 1].map(|side| connection.schedule(side, start)));
        }
        world.manage();
        for host in [0, 1] {
            if let Some(start) = world.devices[host].start.take() {
                world.with_cx(host, |cx, _| start(cx));
            }
        }
        world
    }

    /// Sends the messages of the connection manager.
    fn manage(&mut self) {
        let gids = self.hosts.each_ref().map(|host| host.gid);
        let plans = self.setup.connections.iter().zip(&self.qpns).zip(0..);
        let managed = plans.filter(|((plan, _), _)| plan.is_managed);
        let exchanges: Vec<_> = managed
            .flat_map(|((plan, qpns), number)| exchange(number, plan, *qpns, gids))
            .collect();
        for (sender, at, packet) in exchanges {
            let bytes = self.sealed(sender, &packet);
            let packet = InFlight::new(sender, bytes, Mark::Honest);
            self.net.wire.put(self.net.now.saturating_add(at), packet);
        }
    }

    /// Calls a hook of a device, and does what it says.
    fn with_cx(
        &mut self,
        host: usize,
        call: impl FnOnce(&mut Cx<'_>, &mut Device),
    ) -> Vec<Vec<u8>> {
        let peer_keys = self.hosts[1 - host].keys.map(|key| key.rkey());
        let mut cx = Cx {
            now: self.net.now,
            host: &mut self.hosts[host],
            qpns: &self.qpns,
            peer_keys,
            out: Vec::new(),
            taken: Vec::new(),
            omitted: None,
        };
        call(&mut cx, &mut self.devices[host]);
        let Cx { out, taken, omitted, .. } = cx;
        self.run.omitted = self.run.omitted.or(omitted);
        for out in out {
            let bytes = self.sealed(host, &out.packet);
            let packet = InFlight::new(host, bytes, out.mark);
            if out.delay.is_zero() {
                self.leave(packet);
            } else {
                self.net.wire.put(self.net.now.saturating_add(out.delay), packet);
            }
        }
        taken
    }

    /// A packet as it is on the wire, from the IP header to the ICRC.
    fn sealed(&self, from: usize, packet: &[u8]) -> Vec<u8> {
        let path = Path {
            source: self.hosts[from].gid,
            destination: self.hosts[1 - from].gid,
            source_port: 0xc000 + from as u16,
            hop_limit: 64,
            ..Path::NOWHERE
        };
        sealed(&path, &mut [packet, &[0; ICRC_ROOM]].concat())
    }

    /// The connection of a packet, by the queue pair that it is for, damaged or not.
    fn connection_of(&self, packet: &InFlight<Mark>) -> Option<usize> {
        let bth = transport(&packet.bytes);
        let qpn = u32::from_be_bytes([0, bth[5], bth[6], bth[7]]);
        self.qpns.iter().position(|qpns| qpns[1 - packet.sender].get() == qpn)
    }

    /// Returns the fault that a packet meets with on a hop.
    fn actions(&mut self, hop: Hop, packet: &InFlight<Mark>) -> Vec<Action> {
        let mut actions = Vec::new();
        let rules = &mut self.rules[packet.sender][hop as usize];
        let bytes = transport(&packet.bytes);
        rules.pass(Direction::Outbound, bytes, |_, action| actions.push(action));
        if self.dice.below(1000) < self.setup.faults_per_mille {
            actions.push(match self.dice.below(12) {
                0..6 => Action::Drop,
                6 | 7 => Action::Duplicate,
                8 => Action::Delay(Duration::from_micros(3)),
                9 => Action::Delay(Duration::from_micros(150)),
                10 => Action::Corrupt,
                _ => Action::Mark,
            });
        }
        actions
    }

    /// Takes completions. A program that got a message may write to its memory.
    fn poll(&mut self, side: usize) {
        for sides in &self.sides {
            let mut wcs = [Wc::default(); 64];
            let count = self.hosts[side].engine.poll_cq(sides[side].cq, &mut wcs);
            let received = wcs.iter().take(count).filter(|wc| wc.id.0 >> 32 == 1).count();
            if received > 0 && self.setup.programs_write && self.dice.one_in(2) {
                let bytes = self.dice.bytes(64);
                let at = self.dice.below(ALL as usize - bytes.len());
                self.hosts[side].buffer.write(at, &bytes).unwrap();
            }
        }
    }

    fn finish(mut self) -> Run {
        for captured in &mut self.run.captured {
            captured.sort_by_key(|frame| frame.time);
        }
        self.run
    }
}

impl world::World for World<'_> {
    type Note = Mark;

    fn net(&mut self) -> &mut Net<Mark> {
        &mut self.net
    }

    fn engines(&mut self) -> [&mut Engine; 2] {
        self.hosts.each_mut().map(|host| &mut host.engine)
    }

    fn post_send(&mut self, index: usize, side: usize, number: usize) {
        let plan = &self.setup.connections[index];
        let work = plan.work[side][number];
        let others = &self.sides[index.saturating_sub(1)][1 - side].windows;
        let (rkey, base) = match work.key {
            Key::OthersWindow => (others[0], window_base(0)),
            key => self.hosts[1 - side].key(key, &self.sides[index][1 - side].windows),
        };
        let domain = plan.domain;
        let Host { engine, local, .. } = &mut self.hosts[side];
        let here = &self.sides[index][side];
        let remote_addr = base.wrapping_add(work.offset);
        let imm = Some([1, 2, 3, number as u8]);
        let op = match work.op {
            Op::Send => SendOp::Send { imm: None },
            Op::SendImm => SendOp::Send { imm },
            Op::SendInvalidate => SendOp::SendWithInv { rkey },
            Op::Write => SendOp::Write { remote_addr, rkey, imm: None },
            Op::WriteImm => SendOp::Write { remote_addr, rkey, imm },
            Op::Read => SendOp::Read { remote_addr, rkey },
            Op::CompareSwap { compare, swap } => {
                SendOp::CompareSwap { remote_addr, rkey, compare, swap }
            }
            Op::FetchAdd(add) => SendOp::FetchAdd { remote_addr, rkey, add },
            Op::AtomicWrite => SendOp::AtomicWrite { remote_addr, rkey },
        };
        let sges = [Sge { addr: BASE + work.local, length: work.len, lkey: local[domain].lkey() }];
        let data = if work.len == 0 { Data::EMPTY } else { Data::Gather(&sges) };
        let wr = SendWr::new(WrId(number as u64), op, data);
        engine.post_send(here.qp, &wr, &[]).unwrap();
    }

    fn post_receive(&mut self, index: usize, side: usize, number: usize) {
        let plan = &self.setup.connections[index];
        let Host { engine, local, .. } = &mut self.hosts[side];
        let here = &self.sides[index][side];
        let addr = BASE + plan.receive_at;
        let sge = Sge { addr, length: plan.receive_size, lkey: local[plan.domain].lkey() };
        let wr = RecvWr { id: WrId(1 << 32 | number as u64), sges: &[sge] };
        match here.srq {
            Some(srq) => engine.post_srq_recv(srq, &wr).unwrap(),
            None => engine.post_recv(here.qp, &wr).unwrap(),
        }
    }

    fn transmit(&mut self) {
        for from in [0, 1] {
            let host = &mut self.hosts[from];
            if host.sends_next > self.net.now {
                continue;
            }
            if host.engine.has_transmit() {
                host.sends_next = self.net.now.saturating_add(self.setup.send_interval);
            }
            loop {
                let Host { engine, batch, .. } = &mut self.hosts[from];
                batch.clear();
                if engine.poll_transmit(self.net.now, batch) == 0 {
                    break;
                }
                let mut packets = Vec::new();
                batch.for_each_mut(|_, packet| {
                    packets.push(packet[..packet.len() - ICRC_ROOM].to_vec());
                });
                for packet in packets {
                    self.with_cx(from, |cx, device| match &mut device.outgoing {
                        Some(hook) => hook(&packet, cx),
                        None => cx.send(&packet),
                    });
                }
            }
            self.poll(from);
        }
    }

    fn next_transmit(&self) -> Option<Instant> {
        let waiting = self.hosts.iter().filter(|host| host.engine.has_transmit());
        waiting.map(|host| host.sends_next).min()
    }

    fn step(&mut self) {
        while self.arrive() {}
        self.handle_timeouts();
    }

    fn capture(&mut self, point: usize, time: Instant, packet: &InFlight<Mark>) {
        let InFlight { note: mark, is_corrupted, ref bytes, .. } = *packet;
        let connection = self.connection_of(packet);
        let frame =
            Frame { time, when: time, connection, mark, is_corrupted, bytes: bytes.clone() };
        self.run.captured[point].push(frame);
    }

    fn pass(&mut self, hop: Hop, time: Instant, packet: InFlight<Mark>) {
        let connection = self.connection_of(&packet);
        let actions = self.actions(hop, &packet);
        let (run, dice) = (&mut self.run, &mut self.dice);
        self.net.wire.pass(hop, time, packet, &actions, |action| {
            if action != Action::Mark {
                run.faults.push((connection, time));
            }
            if action == Action::Corrupt { dice.roll() as usize } else { 0 }
        });
    }

    fn deliver(&mut self, to: usize, packet: &InFlight<Mark>) {
        if packet.is_corrupted {
            return;
        }
        let bytes = transport(&packet.bytes);
        let taken = self.with_cx(to, |cx, device| match &mut device.incoming {
            Some(hook) => hook(bytes, cx),
            None => cx.take(bytes),
        });
        for bytes in taken {
            let received = Received {
                source: self.hosts[1 - to].gid,
                destination: self.hosts[to].gid,
                source_port: 0xc000 + packet.sender as u16,
                ecn: if packet.is_marked { 3 } else { 0 },
                network: &packet.bytes[..network_len(&packet.bytes)],
                packet: &bytes,
                payload: None,
            };
            self.hosts[to].engine.handle_packet(self.net.now, &received);
        }
    }
}
