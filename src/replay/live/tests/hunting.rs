//! Hunts in virtual time: an engine that is not broken survives everything, broken ones are found
//! and minimized.

use std::convert::Infallible;

use super::{address, read, scripts};
use crate::capture::{LinkType, PcapngWriter};
use crate::conform::scenario;
use crate::engine::{
    Batch, Config, CqHandle, Engine, ICRC_ROOM, MrAttr, PdHandle, QpCreate, QpHandle, Received,
};
use crate::memory::Buffer;
use crate::replay::live::*;
use crate::replay::{Established, Options, Registered};
use crate::time::Instant;
use crate::verbs::{
    Access, AckTimeout, AhAttr, Mtu, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr,
    RetryCount, RnrRetry, Sge, WrId,
};
use crate::wire::aeth::RnrTimer;
use crate::wire::{Bits, Operation, PKey, Packet, Path, Psn, Qpn, Service};

const OWN_QPN: Qpn = Qpn::new(0x55);

/// Condition that kills a peer: the packets that it got on one connection.
type Flaw = fn(&[Vec<u8>]) -> bool;

/// A peer in virtual time that dies of a flaw.
#[derive(Debug)]
struct EnginePeer {
    flaw: Option<Flaw>,
    is_dead: bool,
    seed: u64,
    attempts: usize,
    /// Answers that were judged, over all attempts.
    judged: u64,
    agreed: u64,
    /// Last packets that were sent and received.
    last: Vec<(Instant, Vec<u8>)>,
}

impl EnginePeer {
    fn new(flaw: Option<Flaw>) -> Self {
        let last = Vec::new();
        Self { flaw, is_dead: false, seed: 7, attempts: 0, judged: 0, agreed: 0, last }
    }
}

/// What was sent and received, as frames. Answers may be captured later than requests that were
/// sent behind them.
struct Traffic {
    frames: Vec<(Instant, Vec<u8>)>,
    late: Vec<Vec<u8>>,
    chance: MutateSeed,
}

impl Traffic {
    fn new(seed: u64) -> Self {
        Self { frames: Vec::new(), late: Vec::new(), chance: MutateSeed::new(seed) }
    }

    fn sent(&mut self, out: &Outgoing, now: u64) {
        self.frames.push((Instant::from_nanos(now), out.emit()));
    }

    fn answered(&mut self, answers: Vec<Vec<u8>>, now: u64, is_last: bool) {
        self.late.extend(answers);
        if is_last || self.chance.below(4) > 0 {
            let path = Path { source: address(2), destination: address(1), ..Path::NOWHERE };
            let envelope = Envelope { path, id: 0, macs: None, vlan: None };
            let frames = self.late.drain(..).map(|packet| Outgoing::new(envelope, packet).emit());
            self.frames.extend(frames.map(|frame| (Instant::from_nanos(now), frame)));
        }
    }

    /// Pause of the requester before its next request.
    fn pause(&mut self) -> u64 {
        const PAUSES: [u64; 4] = [200, 10_000, 1_000_000, 5_000_000];
        PAUSES[self.chance.below(PAUSES.len())]
    }
}

/// The engine of a peer, with one queue pair and its memory.
struct Device {
    engine: Engine,
    pd: PdHandle,
    cq: CqHandle,
    buffers: Vec<Buffer>,
    now: u64,
    answers: Vec<Vec<u8>>,
}

impl Device {
    fn new(seed: u64) -> Self {
        let mut engine = Engine::new(Config::new(address(2)), seed);
        let (pd, cq) = (engine.create_pd().unwrap(), engine.create_cq(1 << 12).unwrap());
        Self { engine, pd, cq, buffers: Vec::new(), now: 0, answers: Vec::new() }
    }

    fn qp(&mut self, mtu: Mtu, psn: Psn, receives: usize) -> QpHandle {
        let cap = QpCap { max_recv_wr: u32::try_from(receives.max(1)).unwrap(), ..QpCap::ORDINARY };
        let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: false };
        let create = QpCreate { init, send_cq: self.cq, recv_cq: self.cq, srq: None, xrcd: None };
        let qp = self.engine.create_qp(self.pd, create).unwrap();
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let attr = QpAttr {
            qp_access_flags: access,
            path_mtu: mtu,
            dest_qp_num: OWN_QPN,
            rq_psn: psn,
            ah_attr: AhAttr::new(address(1), 0),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: RnrTimer(Bits::low(12)),
            timeout: AckTimeout(Bits::low(14)),
            retry_cnt: RetryCount(Bits::low(7)),
            rnr_retry: RnrRetry(Bits::low(7)),
            ..QpAttr::default()
        };
        self.engine.bring_up(qp, QpState::Rts, &attr).unwrap();
        qp
    }

    fn memory(&mut self, bytes: &[u8], access: Access) -> (u64, crate::wire::RKey) {
        let buffer = Buffer::from_bytes(bytes);
        let attr = MrAttr { region: buffer.region(), base: buffer.addr(), access };
        let mr = self.engine.register(self.pd, attr).unwrap();
        let address = buffer.addr();
        self.buffers.push(buffer);
        (address, mr.rkey())
    }

    fn receives(&mut self, qp: QpHandle, count: usize, bytes: usize) {
        let buffer = Buffer::new((count * bytes).max(1));
        let attr =
            MrAttr { region: buffer.region(), base: buffer.addr(), access: Access::LOCAL_WRITE };
        let mr = self.engine.register(self.pd, attr).unwrap();
        for index in 0..count {
            let addr = buffer.addr() + (index * bytes) as u64;
            let length = u32::try_from(bytes).unwrap();
            let sges = [Sge { addr, length, lkey: mr.lkey() }];
            self.engine.post_recv(qp, &RecvWr { id: WrId(0), sges: &sges }).unwrap();
        }
        self.buffers.push(buffer);
    }

    /// A packet arrives; answers are kept.
    fn take(&mut self, packet: &[u8]) {
        self.now += 1_000_000;
        self.take_now(packet);
    }

    fn take_now(&mut self, packet: &[u8]) {
        let now = Instant::from_nanos(self.now);
        let received = Received {
            source: address(1),
            destination: address(2),
            source_port: 0xc000,
            ecn: 0,
            network: &[0; 20],
            packet,
            payload: None,
        };
        self.engine.handle_packet(now, &received);
        self.engine.handle_timeout(now);
        let mut batch = Batch::new(64);
        while self.engine.poll_transmit(now, &mut batch) > 0 {
            let packets = batch.iter().map(|(_, bytes)| bytes[..bytes.len() - ICRC_ROOM].to_vec());
            self.answers.extend(packets);
            batch.clear();
        }
    }
}

fn access_of(rights: Rights) -> Access {
    let mut access = Access::empty();
    access.set(Access::LOCAL_WRITE, rights.write || rights.atomic);
    access.set(Access::REMOTE_WRITE, rights.write);
    access.set(Access::REMOTE_READ, rights.read);
    access.set(Access::REMOTE_ATOMIC, rights.atomic);
    access
}

/// A script mapped onto a device, the device, and what a judge is told of both.
fn mapped(script: &Script, seed: u64) -> (Device, Target, Options) {
    let needs = Needs::of(script).unwrap().zeroed();
    let mut device = Device::new(seed);
    let mtu = Mtu::from_bytes(script.mtu.into()).unwrap();
    let qp = device.qp(mtu, script.first_psn, needs.receives);
    device.receives(qp, needs.receives, needs.receive_bytes);
    let mut options = Options::default();
    let memory = needs.regions.iter().map(|region| {
        let access = access_of(region.rights);
        let (new_start, rkey) = device.memory(&region.bytes, access);
        let (host, address, length) = (address(2), new_start, region.bytes.len() as u64);
        options.regions.push(Registered { host, rkey, address, length, access });
        MemoryMap {
            old_rkey: Some(region.rkey),
            old_start: region.start,
            len: Some(region.bytes.len() as u64),
            new_rkey: Some(rkey),
            new_start,
        }
    });
    let memory = memory.collect();
    let target = Target {
        source: Some(address(1)),
        destination: Some(address(2)),
        qpn: device.engine.qp_number(qp),
        source_qpn: Some(OWN_QPN),
        memory,
        ..Target::default()
    };
    options.connections.push(Established {
        requester: (address(1), OWN_QPN),
        responder: (address(2), device.engine.qp_number(qp).unwrap()),
        first_psn: script.first_psn,
        mtu,
        pkey: PKey::DEFAULT,
    });
    (device, target, options)
}

impl Peer for EnginePeer {
    type Error = Infallible;

    fn attempt(
        &mut self,
        script: &Script,
        kept: &[usize],
        mutations: &[Mutation],
    ) -> Result<Life, Infallible> {
        self.attempts += 1;
        let (mut device, target, options) = mapped(script, self.seed);
        let (mut got, mut traffic) = (Vec::new(), Traffic::new(self.seed));
        for (_, out) in mutate(sequence(script, &target, kept), mutations) {
            device.now += traffic.pause();
            traffic.sent(&out, device.now);
            // What the link drops never arrives.
            if out.icrc_flips == 0 && out.edits.is_empty() {
                got.push(out.packet.clone());
                device.take_now(&out.packet);
                self.is_dead |= self.flaw.is_some_and(|flaw| flaw(&got));
            }
            traffic.answered(std::mem::take(&mut device.answers), device.now, false);
        }
        traffic.answered(Vec::new(), device.now, true);
        match self.probe(device) {
            Life::Alive => Ok(self.judge(&traffic, &options)),
            dead => Ok(dead),
        }
    }

    fn revive(&mut self) -> Result<bool, Infallible> {
        self.is_dead = false;
        Ok(true)
    }
}

impl EnginePeer {
    fn judge(&mut self, traffic: &Traffic, options: &Options) -> Life {
        let report = judge_answers(&traffic.frames, options, address(1)).unwrap();
        self.last.clone_from(&traffic.frames);
        let counts = &report.counts;
        self.judged += counts.agreed + counts.undecided + counts.different;
        self.agreed += report.counts.agreed;
        match report.listed.first() {
            Some(listed) => Life::BrokeRule(format!("{}: {}", listed.rule.id, listed.found)),
            None => Life::Alive,
        }
    }

    fn probe(&self, mut device: Device) -> Life {
        if self.is_dead {
            return Life::Dead("it does not answer".to_owned());
        }
        let qp = device.qp(Mtu::M256, Psn::new(0), 0);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let (address, rkey) = device.memory(&[0; 64], access);
        let qpn = device.engine.qp_number(qp).unwrap();
        let mut probe = Probe::new((0..64).collect());
        device.answers.clear();
        for request in probe.requests(&ProbeTarget { qpn, address, rkey }) {
            device.take(&request);
        }
        let answers = std::mem::take(&mut device.answers);
        let verdicts = answers.iter().map(|answer| probe.answer(answer));
        match verdicts.last() {
            Some(Probed::Alive) => Life::Alive,
            other => Life::Dead(format!("{other:?}")),
        }
    }
}

fn connections() -> Vec<Script> {
    let mut all = scripts().to_vec();
    all.retain(|script| script.service == Service::Rc && script.requests().count() < 400);
    all
}

fn options(spec: &str) -> HuntOptions {
    HuntOptions { spec: spec.parse().unwrap(), per_packet: false, reach: Reach::Transport }
}

#[test]
fn engine_survives_mutations() {
    let scripts = connections();
    let mut peer = EnginePeer::new(None);
    for (per_packet, seeds) in [(false, 0..30), (true, 30..34)] {
        let options = HuntOptions { per_packet, ..options("any") };
        for seed in seeds {
            let found = hunt(&mut peer, &scripts, &options, seed).unwrap();
            assert_eq!(found, None, "seed {seed}");
        }
    }
    assert_eq!(peer.attempts, 34);
    assert!(peer.agreed > 300 && peer.judged - peer.agreed < 30, "{peer:?}");
}

/// A few seeds; more by `HUNT=FIRST..LAST cargo test --lib hunt_of_an_unbroken_engine --
/// --nocapture`. With `HUNT_DIR`, the packets of what was found are written there.
#[test]
fn hunt_of_an_unbroken_engine_finds_nothing() {
    let range = std::env::var("HUNT").unwrap_or_else(|_| "1000..1010".to_owned());
    let (first, last) = range.split_once("..").unwrap();
    let mut scripts = connections();
    scripts.extend(read("rxe_lossy.pcap").into_iter().filter(|it| it.service == Service::Rc));
    let (mut peer, mut found) = (EnginePeer::new(None), 0);
    for seed in first.parse().unwrap()..last.parse::<u64>().unwrap() {
        let options = HuntOptions { per_packet: seed % 8 == 0, ..options("any") };
        if let Some(kill) = hunt(&mut peer, &scripts, &options, seed).unwrap() {
            found += 1;
            let script = &scripts[kill.script];
            let life = peer.attempt(script, &kill.kept, &kill.mutations).unwrap();
            println!("{life:?}");
            if let Ok(dir) = std::env::var("HUNT_DIR") {
                let mut writer = PcapngWriter::new(Vec::new()).unwrap();
                let interface = writer.add_interface(LinkType::ETHERNET, "hunt").unwrap();
                for (time, frame) in &peer.last {
                    let len = u32::try_from(frame.len()).unwrap();
                    writer.write(interface, *time, len, frame).unwrap();
                }
                std::fs::write(format!("{dir}/{seed}.pcapng"), writer.into_inner()).unwrap();
            }
            println!(
                "seed {seed}: {:?}, {} requests of script {}: {:?}, reproduced: {}",
                kill.life,
                kill.kept.len(),
                kill.script,
                kill.mutations,
                kill.is_reproduced
            );
        }
    }
    println!("{} attempts, {} answers, {} agreed", peer.attempts, peer.judged, peer.agreed);
    assert_eq!(found, 0);
}

fn operation(bytes: &[u8]) -> Option<Operation> {
    Some(Packet::parse(bytes).ok()?.info()?.operation)
}

/// Dies of a length beyond what any message has.
fn dies_of_long_messages(got: &[Vec<u8>]) -> bool {
    let last = got.last().and_then(|bytes| Packet::parse(bytes).ok());
    last.and_then(|packet| packet.reth().map(|reth| reth.dma_len() >> 31 == 1)).unwrap_or(false)
}

/// Dies of a packet of a reserved header version that follows a WRITE.
fn dies_of_versions_behind_a_write(got: &[Vec<u8>]) -> bool {
    let is_odd = |bytes: &Vec<u8>| bytes.get(1).is_some_and(|byte| byte & 0xf != 0);
    let Some(odd) = got.iter().position(is_odd) else { return false };
    got[..odd].iter().any(|bytes| operation(bytes) == Some(Operation::Write))
}

/// Dies of the same packet twice in a row.
fn dies_of_copies(got: &[Vec<u8>]) -> bool {
    got.windows(2).any(|pair| pair[0] == pair[1])
}

#[test]
fn peers_with_a_flaw_are_found_and_minimized_to_at_most_five_packets() {
    let scripts = connections();
    let flaws: [(&str, Flaw, usize); 3] = [
        ("dmalen", dies_of_long_messages, 1),
        ("tver", dies_of_versions_behind_a_write, 2),
        ("drop,double,swap", dies_of_copies, 1),
    ];
    for (spec, flaw, smallest) in flaws {
        let mut peer = EnginePeer::new(Some(flaw));
        let options = options(spec);
        let seeds = 0..500;
        let kill = seeds
            .into_iter()
            .find_map(|seed| hunt(&mut peer, &scripts, &options, seed).unwrap())
            .unwrap_or_else(|| panic!("{spec}: not found"));
        assert!(matches!(kill.life, Life::Dead(_)) && kill.is_reproduced, "{spec}: {kill:?}");
        assert_eq!(kill.kept.len(), smallest, "{spec}: {kill:?}");
        assert!(kill.kept.len() <= 5 && kill.mutations.len() == 1);
        // The same seed plans the same.
        let (script, planned) = plan(&scripts, &options, kill.seed).unwrap();
        assert_eq!((script, planned), (kill.script, kill.mutations.clone()));
        // It is a scenario that conform reads.
        let script = &scripts[kill.script];
        let text = to_scenario("found", "It died.", script, &kill.kept, &kill.mutations);
        let instances =
            scenario::read("found.toml", &text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(instances.len(), 1);
        let says = text.contains("not in the language of scenarios") || text.contains("duplicate");
        assert!(says, "{text}");
    }
}

#[test]
fn engine_answers_a_whole_script_as_the_capture_and_its_memory_agrees() {
    for script in connections().iter().take(2) {
        let needs = Needs::of(script).unwrap().zeroed();
        let (mut device, target, _) = mapped(script, 3);
        let mut expected = Expected::new(script, needs, script.first_psn, true);
        for request in script.requests() {
            expected.sent(script, request, 0);
            device.take(&target.request(script, request, 0).packet);
            for answer in std::mem::take(&mut device.answers) {
                expected.answer(&answer);
            }
        }
        let (comparison, model) = expected.finish();
        assert_eq!((comparison.different(), comparison.undecided), (0, 0), "{comparison:?}");
        assert!(comparison.agreed > 100, "{comparison:?}");
        let receives = 1;
        for (region, buffer) in model.regions().iter().zip(device.buffers.iter().skip(receives)) {
            assert!(region.bytes == buffer.to_vec(), "memory of {}", region.rkey);
        }
    }
}
