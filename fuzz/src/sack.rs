//! Selective repeat between two engines on a network that an input controls, with SACKs of a
//! stranger among the packets.
//!
//! An input is a list of operations of four bytes each. However the packets are lost, doubled and
//! reordered, every request completes, and what was written and read is right; with a stranger's
//! SACKs, requests still end, and no engine fails otherwise than by its retries.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

use roce::engine::{
    Batch, Config, CqHandle, EarlyTimeouts, Engine, MrAttr, QpCreate, QpHandle, ReceiveMode,
    Received, Recovery, ReorderThreshold,
};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, Connect, Data, Endpoint, MrHandle, Mtu, QpCap, QpInitAttr, QpState, QpType, SendOp,
    SendWr, Sge, Wc, WcStatus, WrId,
};
use roce::wire::aeth::Syndrome;
use roce::wire::{
    AethRepr, Bits, BthRepr, Extensions, Gid, Msn, Opcode, PacketRepr, Path, Psn, Qpn, SackEthRepr,
};

const OPERATIONS_MAX: usize = 256;
const BASE: u64 = 1 << 16;
const SIZE: usize = 8192;
/// Maximum number of rounds in which all that is left must end.
const ROUNDS_MAX: usize = 20_000;

struct Side {
    engine: Engine,
    qp: QpHandle,
    qpn: Qpn,
    cq: CqHandle,
    mr: MrHandle,
    buffer: Buffer,
    outstanding: usize,
}

struct World {
    sides: [Side; 2],
    now: Instant,
    /// Packets on their way to each side.
    flights: [VecDeque<(Path, Vec<u8>)>; 2],
    is_forged: bool,
}

/// Plays an input.
pub fn sack(input: &[u8]) {
    let mut world = World::new(input.first().copied().unwrap_or(0));
    for operation in input.get(1..).unwrap_or_default().chunks_exact(4).take(OPERATIONS_MAX) {
        let &[kind, side, a, b] = operation else { continue };
        world.play(kind, usize::from(side & 1), side >> 1, a, b);
    }
    world.settle();
}

impl World {
    fn new(mode: u8) -> Self {
        let gid = |side: u8| Gid::from(Ipv4Addr::new(192, 0, 2, side + 1));
        let mut sides = [0_u8, 1].map(|side| {
            let mut config = Config::new(gid(side));
            config.recovery = Recovery::SelectiveRepeat(EarlyTimeouts::IRN);
            config.receive = [ReceiveMode::InOrder, ReceiveMode::Buffer, ReceiveMode::Place]
                [usize::from(mode % 3)];
            config.window_packets = 64;
            if mode & 0x10 != 0 {
                config.reorder = ReorderThreshold { packets: 3, time: Duration::from_micros(20) };
            }
            if mode & 0x20 != 0 {
                config.limits.reorder_qp_bytes = 3 * 4200;
            }
            let mut engine = Engine::new(config, u64::from(side));
            let (pd, cq) = (engine.create_pd().unwrap(), engine.create_cq(64).unwrap());
            let buffer = Buffer::from_bytes(&[side + 1; SIZE]);
            let access = Access::LOCAL_WRITE | Access::REMOTE;
            let attr = MrAttr { region: buffer.region(), base: BASE, access };
            let mr = engine.register(pd, attr).unwrap();
            let cap = QpCap { max_send_wr: 16, max_send_sge: 1, ..QpCap::default() };
            let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: true };
            let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
            let qp = engine.create_qp(pd, create).unwrap();
            let qpn = engine.qp_number(qp).unwrap();
            Side { engine, qp, qpn, cq, mr, buffer, outstanding: 0 }
        });
        let psn = Psn::new(Psn::HALF * 2 - 5);
        let ends = [0, 1].map(|side: u8| Endpoint {
            gid: gid(side),
            qpn: sides[usize::from(side)].qpn,
            psn,
        });
        for (at, side) in sides.iter_mut().enumerate() {
            let how = Connect::default().mtu(Mtu::M256).psn(psn).selective_repeat(true);
            side.engine.connect(side.qp, &ends[1 - at], &how).unwrap();
        }
        let now = Instant::from_nanos(1);
        Self { sides, now, flights: [VecDeque::new(), VecDeque::new()], is_forged: false }
    }

    fn play(&mut self, kind: u8, side: usize, more: u8, a: u8, b: u8) {
        match kind % 8 {
            0 | 1 => self.post(side, kind.is_multiple_of(2), a, b),
            2 => self.deliver(side, usize::from(a)),
            3 => drop(self.flights[side].remove(usize::from(a) % 16)),
            4 => {
                if let Some(packet) = self.flights[side].get(usize::from(a) % 16).cloned() {
                    self.flights[side].push_back(packet);
                }
            }
            5 => self.forge(side, more, a, b),
            6 => self.advance(Duration::from_micros(u64::from(a) * 4)),
            _ => (0..usize::from(a % 64)).for_each(|_| self.deliver(side, 0)),
        }
        self.transmit();
    }

    /// Posts a WRITE of this side's own bytes, or a READ of the other's.
    fn post(&mut self, side: usize, writes: bool, a: u8, b: u8) {
        let rkey = self.sides[1 - side].mr.rkey();
        let own = &mut self.sides[side];
        if own.outstanding >= 16 {
            return;
        }
        // Each side writes to the peer's second half, and reads the peer's first into its own
        // second.
        let (at, len) = (u64::from(a) * 8, u32::from(b) * 8);
        let (near, far) =
            (BASE + if writes { 0 } else { 6144 }, BASE + if writes { 4096 } else { 0 });
        let sge = Sge { addr: near + at / 2, length: len.min(1024), lkey: own.mr.lkey() };
        let remote_addr = far + at / 2;
        let op = match writes {
            true => SendOp::Write { remote_addr, rkey, imm: None },
            false => SendOp::Read { remote_addr, rkey },
        };
        let wr = SendWr::new(WrId(0), op, Data::Gather(std::slice::from_ref(&sge)));
        own.outstanding += usize::from(own.engine.post_send(own.qp, &wr, &[]).is_ok());
    }

    /// A stranger's SACK, mostly of PSNs in flight.
    fn forge(&mut self, to: usize, more: u8, a: u8, b: u8) {
        self.is_forged = true;
        let side = &self.sides[to];
        let attr = side.engine.query_qp(side.qp).unwrap();
        let base = if more & 1 == 0 { attr.sq_psn } else { attr.rq_psn };
        let back = |by: u8| base.plus(Psn::HALF * 2 - u32::from(by));
        let syndrome = Syndrome(if more & 2 == 0 { 0x60 } else { 0x1f });
        let msn = Msn::new(u32::from(more >> 4));
        let words = u32::from(b % 6);
        let bth = BthRepr::new(Opcode::RC_SELECTIVE_ACKNOWLEDGE, side.qpn, back(a));
        let ext = Extensions {
            aeth: Some(AethRepr { syndrome, msn }),
            sack_eth: Some(SackEthRepr { base: back(a.wrapping_sub(b)), words: Bits::low(words) }),
            ..Extensions::default()
        };
        let bitmap = vec![a ^ b; words as usize * 8];
        let mut packet = Vec::new();
        PacketRepr::new(bth, ext, &bitmap).unwrap().emit(&mut packet);
        let from = &self.sides[1 - to];
        let path = from.engine.query_qp(from.qp).unwrap().ah_attr;
        let source = Gid::from(Ipv4Addr::new(192, 0, 2, u8::from(to == 0) + 1));
        let (destination, source_port) = (path.dgid, 0xc000);
        let received = Received {
            source,
            destination,
            source_port,
            ecn: 0,
            network: &[],
            packet: &packet,
            payload: None,
        };
        self.sides[to].engine.handle_packet(self.now, &received);
    }

    fn deliver(&mut self, side: usize, at: usize) {
        let at = at.min(self.flights[side].len().saturating_sub(1)) % 16;
        let Some((path, bytes)) = self.flights[side].remove(at) else { return };
        let received = Received::unchanged(&path, &bytes);
        self.sides[side].engine.handle_packet(self.now, &received);
    }

    fn advance(&mut self, by: Duration) {
        self.now = self.now.saturating_add(by);
        self.sides.iter_mut().for_each(|side| side.engine.handle_timeout(self.now));
    }

    fn transmit(&mut self) {
        for at in 0..2 {
            let mut batch = Batch::new(32);
            let side = &mut self.sides[at];
            let _ = side.engine.poll_transmit(self.now, &mut batch);
            let packets = batch.iter().map(|(path, bytes)| (*path, bytes.to_vec()));
            self.flights[1 - at].extend(packets);
            let mut done = [Wc::default(); 16];
            let count = side.engine.poll_cq(side.cq, &mut done);
            for wc in &done[..count] {
                side.outstanding -= 1;
                let fails = [WcStatus::RetryExcErr, WcStatus::WrFlushErr, WcStatus::BadRespErr];
                assert!(
                    wc.status == WcStatus::Success || self.is_forged && fails.contains(&wc.status),
                    "{wc:?}"
                );
            }
        }
    }

    /// Lets everything end, on a network that loses nothing any more.
    fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            self.transmit();
            let failed =
                self.sides.iter().any(|side| side.engine.qp_state(side.qp) == Some(QpState::Err));
            if failed || self.sides.iter().all(|side| side.outstanding == 0) {
                return self.check(failed);
            }
            if self.flights.iter().all(VecDeque::is_empty) {
                let timers = self.sides.iter().filter_map(|side| side.engine.poll_timeout());
                let next = timers.min().expect("a request waits for something");
                self.now = self.now.max(next);
                self.advance(Duration::ZERO);
            }
            for side in 0..2 {
                (0..64).for_each(|_| self.deliver(side, 0));
            }
        }
        panic!("requests never end");
    }

    /// Checks that every byte is unchanged, or was written or read.
    fn check(&self, failed: bool) {
        assert!(self.is_forged || !failed, "an engine failed");
        for (at, side) in (1..).zip(&self.sides) {
            let bytes = side.buffer.to_vec();
            assert!(bytes[..4096].iter().all(|byte| *byte == at), "the first half is its own");
            assert!(bytes.iter().all(|byte| *byte == at || *byte == 3 - at), "nothing else");
        }
    }
}
