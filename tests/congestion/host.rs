//! An engine with a connected queue pair and memory, for tests of congestion control.

use std::net::Ipv4Addr;

use roce::engine::{
    Batch, Config, Counter, CqHandle, Disposition, Engine, MrAttr, MrHandle, PdHandle, QpCreate,
    QpHandle, Received,
};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, Connect, Data, Endpoint, QpCap, QpInitAttr, QpType, SendOp, SendWr, Sge, Wc, WrId,
};
use roce::wire::{Gid, Opcode, Packet, Path, Psn, Qpn};

const BUFFER: usize = 1 << 20;

pub fn at(ns: u64) -> Instant {
    Instant::from_nanos(ns)
}

pub fn us(us: u64) -> Instant {
    at(us * 1000)
}

pub fn gid(number: u8) -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, number))
}

/// A packet that an engine sent: where it goes, and its bytes from the BTH to its last pad byte.
#[derive(Clone, Debug)]
pub struct Sent {
    pub path: Path,
    pub bytes: Vec<u8>,
}

impl Sent {
    pub fn opcode(&self) -> Opcode {
        Packet::parse(&self.bytes).unwrap().bth().opcode()
    }

    /// Returns the bytes on the wire, including ICRC, UDP, IPv4, Ethernet, preamble and gap.
    pub fn wire(&self) -> u64 {
        self.bytes.len() as u64 + 4 + 8 + 20 + 14 + 4 + 20
    }

    pub fn is_cnp(&self) -> bool {
        self.opcode() == Opcode::CNP
    }

    pub fn ecn(&self) -> u8 {
        self.path.traffic_class & 3
    }

    pub fn received(&self, ecn: u8) -> Received<'_> {
        Received {
            source: self.path.source,
            destination: self.path.destination,
            source_port: self.path.source_port,
            ecn,
            network: &[],
            packet: &self.bytes,
            payload: None,
        }
    }
}

/// An engine whose queue pair [`qp`](Self::qp) is connected to a peer.
pub struct Host {
    pub engine: Engine,
    pub qp: QpHandle,
    pub cq: CqHandle,
    pub end: Endpoint,
    /// Numbers of the queue pairs that [`add_qp`](Self::add_qp) added.
    pub qpns: Vec<Qpn>,
    pd: PdHandle,
    buffer: Buffer,
    mr: MrHandle,
    one: Batch,
}

impl Host {
    pub fn new(number: u8, kind: QpType, configure: impl FnOnce(&mut Config)) -> Self {
        let gid = gid(number);
        let mut config = Config::new(gid);
        (config.window_bytes, config.window_packets) = (64 << 20, 1 << 16);
        config.loss_window_bytes = 64 << 20;
        configure(&mut config);
        let mut engine = Engine::new(config, u64::from(number));
        let (pd, cq) = (engine.create_pd().unwrap(), engine.create_cq(1 << 14).unwrap());
        let cap = QpCap { max_send_wr: 4096, max_recv_wr: 64, ..QpCap::ORDINARY };
        let init = QpInitAttr { qp_type: kind, cap, sq_sig_all: true };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qp = engine.create_qp(pd, create).unwrap();
        let buffer = Buffer::new(BUFFER);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let attr = MrAttr { region: buffer.region(), base: buffer.addr(), access };
        let mr = engine.register(pd, attr).unwrap();
        let qpn = engine.qp_number(qp).unwrap();
        let end = Endpoint { gid, qpn, psn: Psn::new(7) };
        Self { engine, qp, cq, end, qpns: Vec::new(), pd, buffer, mr, one: Batch::new(1) }
    }

    pub fn connect(&mut self, peer: &Self) {
        let how = Connect::default().psn(Psn::new(7));
        self.engine.connect(self.qp, &peer.end, &how).unwrap();
    }

    /// Adds a queue pair that is connected to a queue pair of a peer.
    pub fn add_qp(&mut self, peer: Gid, number: usize) {
        let init = QpInitAttr { qp_type: QpType::Rc, cap: QpCap::ORDINARY, sq_sig_all: true };
        let (send_cq, recv_cq) = (self.cq, self.cq);
        let create = QpCreate { init, send_cq, recv_cq, srq: None, xrcd: None };
        let qp = self.engine.create_qp(self.pd, create).unwrap();
        let qpn = Qpn::new(0x100 + u32::try_from(number).unwrap());
        let end = Endpoint { gid: peer, qpn, psn: Psn::new(7) };
        self.engine.connect(qp, &end, &Connect::default().psn(Psn::new(7))).unwrap();
        self.qpns.push(self.engine.qp_number(qp).unwrap());
    }

    /// Creates two connected hosts, each configured by `configure`.
    pub fn pair(kind: QpType, configure: impl Fn(&mut Config)) -> [Self; 2] {
        let mut pair = [1, 2].map(|number| Self::new(number, kind, &configure));
        let [a, b] = &mut pair;
        a.connect(b);
        b.connect(a);
        pair
    }

    fn post(&mut self, op: SendOp, len: u32) {
        let sges = [Sge { addr: self.buffer.addr(), length: len, lkey: self.mr.lkey() }];
        self.engine
            .post_send(self.qp, &SendWr::new(WrId(0), op, Data::Gather(&sges)), &[])
            .unwrap();
    }

    /// Returns the address and the R_Key of the host's memory, for a peer.
    pub fn memory(&self) -> (u64, roce::wire::RKey) {
        (self.buffer.addr(), self.mr.rkey())
    }

    pub fn write(&mut self, (remote_addr, rkey): (u64, roce::wire::RKey), len: u32) {
        self.post(SendOp::Write { remote_addr, rkey, imm: None }, len);
    }

    pub fn read(&mut self, (remote_addr, rkey): (u64, roce::wire::RKey), len: u32) {
        self.post(SendOp::Read { remote_addr, rkey }, len);
    }

    /// Returns the number of completions since the last call, and checks that all are successful.
    pub fn completions(&mut self) -> usize {
        let mut done = [Wc::default(); 64];
        let count = self.engine.poll_cq(self.cq, &mut done);
        assert!(done[..count].iter().all(|wc| wc.status.is_success()), "{:?}", done[0].status);
        count
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.engine.counters().get(counter)
    }

    pub fn rate(&self) -> u64 {
        self.engine.rate(self.qp).unwrap().rate
    }

    /// Returns the next packet to send, if there is one.
    pub fn next(&mut self, now: Instant) -> Option<Sent> {
        self.one.clear();
        if self.engine.poll_transmit(now, &mut self.one) == 0 {
            return None;
        }
        let (path, bytes) = self.one.iter().next().unwrap();
        Some(Sent { path: *path, bytes: bytes[..bytes.len() - 4].to_vec() })
    }

    /// Returns all packets that may be sent now.
    pub fn all(&mut self, now: Instant) -> Vec<Sent> {
        std::iter::from_fn(|| self.next(now)).collect()
    }

    pub fn take(&mut self, now: Instant, packet: &Sent, ecn: u8) -> Disposition {
        self.engine.handle_packet(now, &packet.received(ecn))
    }
}
