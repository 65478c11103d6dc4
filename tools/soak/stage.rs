//! Two NICs with faults between them, and the objects of one round of work.

use std::cell::Cell;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use roce::device::{Channel, Device};
use roce::link::fault::{self, Spec};
use roce::link::udp;
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::verbs::{
    Access, AckTimeout, Connect, CqHandle, Data, Endpoint, MrHandle, Mtu, Notify, PdHandle, QpCap,
    QpCreate, QpHandle, QpInitAttr, QpType, RecvWr, SendOp, SendWr, Sge, SrqHandle, Wc, WrId,
};
use roce::wire::{Bits, Psn};

use crate::random::Random;

/// Longer than anything takes on a busy machine.
pub(crate) const PROGRESS_TIMEOUT: Duration = Duration::from_secs(120);

/// Number of bytes of memory that a round has at each side.
pub(crate) const MEMORY: usize = 1 << 20;

pub(crate) const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// Result with a failure in words.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// Fails with words unless something holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
        }
    };
}
pub(crate) use ensure;

/// Converts an error to words.
pub(crate) fn describe<T, E: std::fmt::Debug>(what: &str, result: Result<T, E>) -> Outcome<T> {
    result.map_err(|error| format!("{what}: {error:?}"))
}

/// A seeded source of chance, the library's own, and what is drawn from it.
#[derive(Clone, Debug)]
pub(crate) struct Dice(Random);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Bytes that follow from a number.
pub(crate) fn pattern(number: u64, len: usize) -> Vec<u8> {
    let mut dice = Dice::new(number.wrapping_mul(0xd129_0d3f_8a5b_6f17));
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| dice.next().to_ne_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// Two NICs, and what is done to the packets of either.
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) a: SoftNic,
    pub(crate) b: SoftNic,
}

impl Stage {
    pub(crate) fn open(addresses: [IpAddr; 2], faults: &str, seed: u64) -> Outcome<Self> {
        let open = |address, seed| {
            let spec: Spec = describe("faults", format!("{faults},seed={seed}").parse())?;
            let link = describe("a link", udp::open(&udp::Options::new(address)))?;
            describe("a NIC", SoftNic::start(fault::inject(link, &spec)))
        };
        let name = format!("{} with {faults}", addresses[0]);
        Ok(Self { name, a: open(addresses[0], seed)?, b: open(addresses[1], seed + 1)? })
    }
}

/// Objects of a round at one NIC.
pub(crate) struct Side<'n> {
    pub(crate) nic: &'n SoftNic,
    pub(crate) pd: PdHandle,
    pub(crate) cq: CqHandle,
    pub(crate) channel: Channel,
    pub(crate) buffer: &'n Buffer,
    pub(crate) mr: MrHandle,
    pub(crate) qps: Vec<QpHandle>,
    pub(crate) srq: Option<SrqHandle>,
}

impl<'n> Side<'n> {
    pub(crate) fn new(nic: &'n SoftNic, buffer: &'n Buffer) -> Outcome<Self> {
        let pd = describe("a protection domain", nic.create_pd())?;
        let channel = describe("a channel", nic.create_channel())?;
        let cq = describe("a completion queue", nic.create_cq_on(1024, &channel))?;
        let mr = describe("a region", nic.register(pd, buffer, ALL))?;
        Ok(Self { nic, pd, cq, channel, buffer, mr, qps: Vec::new(), srq: None })
    }

    /// Makes a queue pair, which uses the shared receive queue if there is one.
    pub(crate) fn add_qp(&mut self, qp_type: QpType) -> Outcome<QpHandle> {
        let cap = QpCap {
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let init = QpInitAttr { qp_type, cap, sq_sig_all: true };
        let (send_cq, recv_cq) = (self.cq, self.cq);
        let create = QpCreate { init, send_cq, recv_cq, srq: self.srq, xrcd: None };
        let qp = describe("a queue pair", self.nic.create_qp(self.pd, create))?;
        self.qps.push(qp);
        Ok(qp)
    }

    /// Destroys a queue pair before its work is done.
    pub(crate) fn remove_qp(&mut self, qp: QpHandle) -> Outcome {
        self.qps.retain(|known| *known != qp);
        describe("unmaking a queue pair", self.nic.destroy_qp(qp))
    }

    /// Destroys everything.
    pub(crate) fn clear(self) -> Outcome {
        for qp in self.qps {
            describe("unmaking a queue pair", self.nic.destroy_qp(qp))?;
        }
        if let Some(srq) = self.srq {
            describe("unmaking a shared queue", self.nic.destroy_srq(srq))?;
        }
        describe("unmaking a region", self.nic.deregister(self.mr))?;
        describe("unmaking a completion queue", self.nic.destroy_cq(self.cq))?;
        describe("unmaking a protection domain", self.nic.destroy_pd(self.pd))
    }

    pub(crate) fn sge(&self, offset: usize, length: usize) -> Sge {
        let addr = self.buffer.addr() + offset as u64;
        Sge { addr, length: length as u32, lkey: self.mr.lkey() }
    }

    pub(crate) fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.buffer.read(offset, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn recv(&self, qp: QpHandle, id: u64, offset: usize, length: usize) -> Outcome {
        let sges = [self.sge(offset, length)];
        describe("a receive", self.nic.post_recv(qp, &RecvWr { id: WrId(id), sges: &sges }))
    }

    pub(crate) fn send(&self, qp: QpHandle, id: u64, op: SendOp, at: (usize, usize)) -> Outcome {
        let sges = [self.sge(at.0, at.1)];
        describe(
            "a request",
            self.nic.post_send(qp, &SendWr::new(WrId(id), op, Data::Gather(&sges))),
        )
    }

    /// The next completion, by polling.
    pub(crate) fn complete(&self) -> Outcome<Wc> {
        let clock = Clock::start();
        let mut wc = [Wc::default()];
        while self.nic.poll_cq(self.cq, &mut wc) == 0 {
            clock.check(&[self])?;
        }
        Ok(wc[0])
    }

    /// The next completion, by an event: arm, look once more, sleep.
    pub(crate) fn sleep_for_completion(&self) -> Outcome<Wc> {
        let mut wc = [Wc::default()];
        loop {
            if self.nic.poll_cq(self.cq, &mut wc) == 1 {
                return Ok(wc[0]);
            }
            self.nic.request_notify(self.cq, Notify::Next);
            if self.nic.poll_cq(self.cq, &mut wc) == 1 {
                return Ok(wc[0]);
            }
            let woken = describe("sleeping", self.channel.wait(Some(PROGRESS_TIMEOUT)))?;
            ensure!(woken == Some(self.cq), "a sleeping thread was not woken: {}", self.counters());
        }
    }

    /// Returns the counters that are not zero.
    pub(crate) fn counters(&self) -> String {
        let engine = self.nic.counters();
        let engine = engine.iter().map(|(counter, count)| (counter.name(), count));
        let all = engine.chain(self.nic.link_counters()).filter(|(_, count)| *count > 0);
        all.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    }
}

/// Time limit of an operation.
pub(crate) struct Clock {
    start: Instant,
    checks: Cell<u32>,
}

/// Number of checks before the thread sleeps between them.
const EAGER: u32 = 500;

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), checks: Cell::new(0) }
    }

    /// Checks that nothing is broken, and that the time is not over. A caller that asks often has
    /// nothing to do, and is slowed down.
    pub(crate) fn check(&self, sides: &[&Side<'_>]) -> Outcome {
        let said = || sides.iter().map(|side| side.counters()).collect::<Vec<_>>();
        if let Some(error) = sides.iter().find_map(|side| side.nic.broken()) {
            return Err(format!("a NIC is broken: {error}: {:?}", said()));
        }
        self.checks.set(self.checks.get().saturating_add(1));
        if self.checks.get() > EAGER {
            std::thread::sleep(Duration::from_micros(200));
        }
        ensure!(self.start.elapsed() < PROGRESS_TIMEOUT, "nothing happens any more: {:?}", said());
        Ok(())
    }
}

/// Returns the attributes by which queue pairs are connected: a busy machine is not a lost peer.
pub(crate) fn connect_attr(dice: &mut Dice) -> Connect {
    let mtu = dice.pick(&[Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096]);
    Connect::default().mtu(mtu).access(ALL).timeout(AckTimeout(Bits::low(15)))
}

/// A queue pair at each side, connected to each other.
pub(crate) fn pair(
    a: &mut Side<'_>,
    b: &mut Side<'_>,
    kind: QpType,
    how: &Connect,
    dice: &mut Dice,
) -> Outcome<(QpHandle, QpHandle)> {
    let (a_qp, b_qp) = (a.add_qp(kind)?, b.add_qp(kind)?);
    let ends =
        [describe("an end", a.nic.endpoint(a_qp))?, describe("an end", b.nic.endpoint(b_qp))?];
    let [a_end, b_end] = ends.map(|end| Endpoint { psn: Psn::new(dice.next() as u32), ..end });
    describe("connecting", a.nic.connect(a_qp, &b_end, &how.psn(a_end.psn)))?;
    describe("connecting", b.nic.connect(b_qp, &a_end, &how.psn(b_end.psn)))?;
    Ok((a_qp, b_qp))
}
