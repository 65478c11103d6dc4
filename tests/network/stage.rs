//! Two hosts, a NIC at each, and what tests do with them.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::device::Device;
use roce::engine::{CqHandle, MrHandle, PdHandle, QpHandle};
use roce::link::raw::{self, Config};
use roce::link::{Link, udp};
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::verbs::{
    Access, AckTimeout, Connect, Data, Endpoint, Mtu, QpType, RecvWr, RetryCount, SendOp, SendWr,
    Sge, Wc, WrId,
};
use roce::wire::{Bits, Psn};

use crate::common::netns::{Host, wire};

/// Every right that a peer can have.
pub const ALL: Access = Access::LOCAL_WRITE.union(Access::MW_BIND).union(Access::REMOTE);

pub const SEND: SendOp = SendOp::Send { imm: None };

/// Longer than anything here takes on a busy machine.
pub const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);

/// MTU of the interfaces: payloads of 4096 bytes.
pub const WIRE_MTU: usize = 9000;

/// Number of bytes of memory of a side.
pub const MEMORY: usize = 1 << 20;

/// A kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Udp,
    Raw,
}

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V4,
    V6,
}

impl Version {
    /// The address of a host.
    pub fn of(self, host: &Host) -> IpAddr {
        match self {
            Self::V4 => host.v4.into(),
            Self::V6 => host.v6.into(),
        }
    }
}

/// Opens a link at one address of a host.
#[track_caller]
pub fn open(kind: Kind, host: &Host, address: IpAddr) -> Link {
    host.run(|| match kind {
        Kind::Udp => udp::open(&udp::Options::new(address)).unwrap(),
        Kind::Raw => {
            let mut config = Config::new(host.interface);
            config.addresses = vec![address];
            raw::open(&config).unwrap()
        }
    })
}

/// A NIC with one of everything.
pub struct Side {
    pub nic: SoftNic,
    pub pd: PdHandle,
    pub cq: CqHandle,
    pub buffer: Buffer,
    pub mr: MrHandle,
}

impl Side {
    pub fn new(link: Link) -> Self {
        let nic = SoftNic::start(link).unwrap();
        let (pd, cq) = (nic.create_pd().unwrap(), nic.create_cq(1 << 14).unwrap());
        let buffer = Buffer::new(MEMORY);
        let mr = nic.register(pd, &buffer, ALL).unwrap();
        Self { nic, pd, cq, buffer, mr }
    }

    pub fn qp(&self, kind: QpType) -> QpHandle {
        self.nic.create_simple_qp(self.pd, self.cq, kind).unwrap()
    }

    /// A piece of its memory.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        let addr = self.buffer.addr() + offset as u64;
        Sge { addr, length: length as u32, lkey: self.mr.lkey() }
    }

    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.buffer.read(offset, &mut bytes).unwrap();
        bytes
    }

    pub fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.read(offset, 8).try_into().unwrap())
    }

    #[track_caller]
    pub fn recv(&self, qp: QpHandle, id: u64, sges: &[Sge]) {
        self.nic.post_recv(qp, &RecvWr { id: WrId(id), sges }).unwrap();
    }

    #[track_caller]
    pub fn send(&self, qp: QpHandle, id: u64, op: SendOp, sges: &[Sge]) {
        self.nic.post_send(qp, &SendWr::new(WrId(id), op, Data::Gather(sges))).unwrap();
    }

    /// The next completion.
    #[track_caller]
    pub fn complete(&self) -> Wc {
        let start = Instant::now();
        let mut wc = [Wc::default()];
        while self.nic.poll_cq(self.cq, &mut wc) == 0 {
            self.check_alive(start);
            std::thread::yield_now();
        }
        wc[0]
    }

    /// The next completion, which must be of this request and have succeeded.
    #[track_caller]
    pub fn done(&self, id: u64) -> Wc {
        let wc = self.complete();
        assert!(wc.is_success() && wc.id == WrId(id), "of {id}: {wc:?}");
        wc
    }

    /// Asserts that the NIC runs, and that the time is not over.
    #[track_caller]
    pub fn check_alive(&self, since: Instant) {
        assert!(self.nic.broken().is_none(), "{:?}", self.nic.broken());
        let counters = || (self.nic.counters(), self.nic.link_counters());
        assert!(since.elapsed() < PROGRESS_TIMEOUT, "nothing happens: {:?}", counters());
    }

    pub fn link_counter(&self, name: &str) -> u64 {
        let counters = self.nic.link_counters();
        counters.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}")).1
    }
}

/// Returns the attributes by which queue pairs are connected: with long timeouts, for the machine
/// may be busy.
pub fn connect_attr(mtu: Mtu) -> Connect {
    Connect::default().mtu(mtu).access(ALL).timeout(AckTimeout(Bits::low(15)))
}

/// Returns attributes with short timeouts: a peer that is silent for some tenths of a second is
/// dead.
pub fn short_timeouts() -> Connect {
    let (timeout, retry_cnt) = (AckTimeout(Bits::low(13)), RetryCount(Bits::low(3)));
    connect_attr(Mtu::M1024).timeout(timeout).retry_cnt(retry_cnt)
}

/// Connects two queue pairs, whose sequence numbers soon pass their end.
pub fn connect(a: &Side, a_qp: QpHandle, b: &Side, b_qp: QpHandle, how: &Connect) {
    let first = [Psn::new(0xff_fff0), Psn::new(0x7f_fff8)];
    let ends = [a.nic.endpoint(a_qp).unwrap(), b.nic.endpoint(b_qp).unwrap()];
    let [to_a, to_b] = [0, 1].map(|at| Endpoint { psn: first[at], ..ends[at] });
    a.nic.connect(a_qp, &to_b, &how.psn(first[0])).unwrap();
    b.nic.connect(b_qp, &to_a, &how.psn(first[1])).unwrap();
}

/// A queue pair at each side, connected to each other.
pub fn pair(a: &Side, b: &Side, kind: QpType, how: &Connect) -> (QpHandle, QpHandle) {
    let (a_qp, b_qp) = (a.qp(kind), b.qp(kind));
    connect(a, a_qp, b, b_qp, how);
    (a_qp, b_qp)
}

/// Two hosts and a NIC at each, with links of these kinds.
pub struct Stage {
    pub hosts: [Host; 2],
    pub a: Side,
    pub b: Side,
}

impl Stage {
    pub fn new(kinds: [Kind; 2], version: Version) -> Self {
        Self::with(kinds, version, |link| link)
    }

    /// Creates a stage; `change` may wrap the links.
    pub fn with(kinds: [Kind; 2], version: Version, change: impl Fn(Link) -> Link) -> Self {
        let (left, right) = wire(WIRE_MTU);
        let a = Side::new(change(open(kinds[0], &left, version.of(&left))));
        let b = Side::new(change(open(kinds[1], &right, version.of(&right))));
        Self { hosts: [left, right], a, b }
    }
}

/// Bytes that follow from a number, and that no other number has.
pub fn pattern(number: u64, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}
