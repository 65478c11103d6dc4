//! Cost of a packet with many paced queue pairs.
//!
//! ```text
//! cargo run --release --example bench-paced
//! ```
//!
//! Of 100,000 queue pairs, 10,000 send in turn, so that caches miss alike; of these, 10 or 10,000
//! are paced: each of their packets waits for its pacer. The two take turns, and of each the best
//! slice counts. A round is a message of each, in virtual time. A turn of a queue pair is one
//! packet, so that one that is not paced does not send a whole message while its state is in a
//! cache.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on ends"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant as Clock};

use roce::engine::congestion::{Congestion, Nvidia};
use roce::engine::{Config, Counter, CqHandle, Engine, MrAttr, QpCreate, QpHandle};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, Connect, Data, Endpoint, Mtu, QpCap, QpInitAttr, QpType, SendOp, SendWr, Sge, Wc, WrId,
};
use roce::wire::{Batch, BthRepr, Extensions, Gid, Opcode, PacketRepr, Psn, Qpn, Received};

/// The system's allocator, and how often it was asked.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came; only a number is kept beside it.
#[expect(unsafe_code, reason = "the trait is, and what it promises the system's allocator keeps")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const QPS: usize = 100_000;
const SENDERS: usize = 10_000;

/// Packets of a message.
const PACKETS: usize = 8;
const MTU: usize = 256;

/// Time between two rounds: less than the gap of a paced queue pair, so that each packet waits.
const ROUND: u64 = 5_000;

fn gid(last: u8) -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, last))
}

struct Many {
    engine: Engine,
    qps: Vec<QpHandle>,
    cq: CqHandle,
    batch: Batch,
    now: u64,
    data: Sge,
    _buffer: Buffer,
}

impl Many {
    fn new(paced: usize) -> Self {
        let mut config = Config::new(gid(1));
        // A CNP sets 85 Mb/s, and increases are too small and too seldom to be seen.
        config.congestion = Congestion::Nvidia(Nvidia {
            rp_rate_to_set_on_first_cnp: 85,
            rp_time_reset: u32::MAX,
            rp_byte_reset: u32::MAX,
            ..Nvidia::default()
        });
        config.quantum = 1;
        let mut engine = Engine::new(config, 7);
        let (pd, cq) = (engine.create_pd().unwrap(), engine.create_cq(1 << 15).unwrap());
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, ..QpCap::default() };
        let init = QpInitAttr { qp_type: QpType::Uc, cap, sq_sig_all: true };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qps: Vec<QpHandle> = (0..QPS)
            .map(|number| {
                let qp = engine.create_qp(pd, create).unwrap();
                let (qpn, psn) = (Qpn::new(0x100 + number as u32), Psn::new(0));
                let end = Endpoint { gid: gid(2), qpn, psn };
                engine.connect(qp, &end, &Connect::default().psn(psn).mtu(Mtu::M256)).unwrap();
                qp
            })
            .collect();
        let buffer = Buffer::new(PACKETS * MTU);
        let (region, base) = (buffer.region(), buffer.addr());
        let mr = engine.register(pd, MrAttr { region, base, access: Access::LOCAL_WRITE }).unwrap();
        let data = Sge { addr: base, length: (PACKETS * MTU) as u32, lkey: mr.lkey() };
        let mut many =
            Self { engine, qps, cq, batch: Batch::new(256), now: 1, data, _buffer: buffer };
        // The senders are spread over the table.
        for at in 0..paced {
            many.congest(many.sender(at * (SENDERS / paced)));
        }
        many
    }

    fn sender(&self, at: usize) -> QpHandle {
        self.qps[at * (QPS / SENDERS)]
    }

    /// Hands the engine a CNP for a queue pair.
    fn congest(&mut self, qp: QpHandle) {
        let bth = BthRepr::new(Opcode::CNP, self.engine.qp_number(qp).unwrap(), Psn::new(0));
        let (mut packet, ext) = (Vec::new(), Extensions::default());
        let bth = BthRepr { becn: true, ..bth };
        PacketRepr::new(bth, ext, &[0; 16]).unwrap().emit(&mut packet);
        let received = Received {
            source: gid(2),
            destination: gid(1),
            source_port: 0xc000,
            ecn: 0,
            network: &[],
            packet: &packet,
            payload: None,
        };
        self.engine.handle_packet(Instant::from_nanos(self.now), &received);
    }

    /// Posts a message on each sender, and sends until all are gone.
    fn round(&mut self) {
        let sges = [self.data];
        for at in 0..SENDERS {
            let wr = SendWr::new(WrId(0), SendOp::Send { imm: None }, Data::Gather(&sges));
            self.engine.post_send(self.sender(at), &wr, &[]).unwrap();
        }
        self.now += ROUND;
        let mut sent = 0;
        loop {
            self.batch.clear();
            sent += self.engine.poll_transmit(Instant::from_nanos(self.now), &mut self.batch);
            if sent == SENDERS * PACKETS {
                break;
            }
            if !self.engine.has_transmit() {
                self.now = self.engine.poll_timeout().unwrap().as_nanos();
                self.engine.handle_timeout(Instant::from_nanos(self.now));
            }
        }
        let mut done = [Wc::default(); 64];
        while self.engine.poll_cq(self.cq, &mut done) > 0 {}
    }
}

fn main() {
    let mut many = [10, SENDERS].map(Many::new);
    // Memory of queues is taken at first use.
    many.iter_mut().for_each(|many| (0..3).for_each(|_| many.round()));
    let mut best = [f64::MAX; 2];
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..20 {
        for (many, best) in many.iter_mut().zip(&mut best) {
            let (start, mut rounds) = (Clock::now(), 0_u32);
            while start.elapsed() < Duration::from_millis(100) {
                many.round();
                rounds += 1;
            }
            let each =
                start.elapsed().as_nanos() as f64 / f64::from(rounds) / (SENDERS * PACKETS) as f64;
            *best = best.min(each);
        }
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    let [few, all] = best;
    println!(
        "{QPS} queue pairs, of which {SENDERS} send: {few:.0} ns a packet with 10 paced, {all:.0} ns \
         with {SENDERS} paced; {:.2} times the cost",
        all / few
    );
    let waits = many.map(|many| many.engine.counters().get(Counter::PacedWait));
    println!("waits: {} and {}; allocations: {allocations}", waits[0], waits[1]);
}
