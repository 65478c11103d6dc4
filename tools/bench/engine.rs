//! Speed of the engine: two of them pass packets in memory on one core, every ICRC sealed and
//! checked.
//!
//! ```text
//! cargo run --release --example bench-engine [send|post|scale|write]
//! valgrind --tool=callgrind bench-engine send 100 [64]
//! ```
//!
//! With a number N, `send` and `write` play N rounds of 64 messages, or of another number, and
//! read no clock: the difference of two such runs is the number of instructions of the rounds
//! between. The messages of a round share one ACK.
//!
//! `ROCE_CC` and its like switch congestion control on: nothing is marked.
//!
//! What is compared takes turns in short slices, and of each the best slice counts: what else the
//! machine does in between disturbs both alike. Bandwidth is told as a ratio against `memcpy` and
//! `crc32fast` over the same bytes, twice, which is the least that sender and receiver have to do.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on ends"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant as Clock};

use roce::engine::congestion::Settings;
use roce::engine::{Config, CqHandle, Engine, MrAttr, MrHandle, QpCreate, QpHandle};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, AhAttr, Data, Mtu, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, SendOp, SendWr,
    Sge, Wc, WrId,
};
use roce::wire::{Batch, Gid, Path, Prefixes, Received};

/// The system's allocator, and how often and for how much it was asked.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came; only numbers are kept beside it.
#[expect(unsafe_code, reason = "the trait is, and what it promises the system's allocator keeps")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of messages that are posted at a time.
const BURST: usize = 64;
/// Depth of the queues of one of many queue pairs.
const SMALL: u32 = 4;
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

struct Side {
    engine: Engine,
    gid: Gid,
    cq: CqHandle,
    qps: Vec<QpHandle>,
    mr: MrHandle,
    buffer: Buffer,
    sealing: Prefixes,
    checking: Prefixes,
}

impl Side {
    fn new(number: u8, qps: usize, size: usize) -> Self {
        let gid = Gid::from(Ipv4Addr::new(192, 0, 2, number));
        let mut config = Config::new(gid);
        let option = |name: &str| std::env::var(Settings::variable(name)).ok();
        Settings::read(option).unwrap().apply(&mut config);
        let mut engine = Engine::new(config, u64::from(number));
        let pd = engine.create_pd().unwrap();
        let cq = engine.create_cq(1 << 16).unwrap();
        let depth = if qps > 1 { SMALL } else { BURST as u32 * 2 };
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: true };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qps = (0..qps).map(|_| engine.create_qp(pd, create).unwrap()).collect();
        let buffer = Buffer::new(size.max(4096));
        let attr = MrAttr { region: buffer.region(), base: buffer.addr(), access: ALL };
        let mr = engine.register(pd, attr).unwrap();
        let (sealing, checking) = (Prefixes::new(&Path::NOWHERE), Prefixes::new(&Path::NOWHERE));
        Self { engine, gid, cq, qps, mr, buffer, sealing, checking }
    }

    fn sge(&self, length: usize) -> Sge {
        Sge { addr: self.buffer.addr(), length: length as u32, lkey: self.mr.lkey() }
    }
}

fn connect(a: &mut Side, b: &Side) {
    for (&qp, &peer) in a.qps.iter().zip(&b.qps) {
        let attr = QpAttr {
            qp_access_flags: ALL,
            path_mtu: Mtu::M4096,
            dest_qp_num: b.engine.qp_number(peer).unwrap(),
            ah_attr: AhAttr::new(b.gid, 0),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            ..QpAttr::default()
        };
        a.engine.bring_up(qp, QpState::Rts, &attr).unwrap();
    }
}

/// Passes everything that `from` has to send to `to`: sealed there, checked here.
fn pass(from: &mut Side, to: &mut Side, batch: &mut Batch, now: Instant) -> bool {
    batch.clear();
    if from.engine.poll_transmit(now, batch) == 0 {
        return false;
    }
    to.engine.prefetch_packets(batch.iter().map(|(_, packet)| packet));
    for mut train in batch.trains_mut() {
        let path = train.path;
        from.sealing.set_path(path);
        to.checking.set_path(path);
        train.for_each_outbound(|packet| {
            let prefix = from.sealing.of(packet.byte_len());
            let packet = packet.seal(&prefix).unwrap();
            assert!(to.checking.of(packet.len()).verifies(packet), "the wire is sound");
            to.engine.handle_packet(now, &Received::unchanged(path, packet));
        });
    }
    true
}

/// Traffic of a measurement, and its queue pairs.
struct Traffic<F> {
    qps: usize,
    /// Operation.
    op: F,
    len: usize,
    /// Whether the other side must post receives.
    receives: bool,
    /// Number of messages that are posted before anything is sent.
    burst: usize,
    /// Number of packets that are sent at a time.
    batch: usize,
}

/// Two sides and what passes between them.
struct Pair<F> {
    traffic: Traffic<F>,
    a: Side,
    b: Side,
    batch: Batch,
    wcs: [Wc; BURST],
    now: u64,
    next: usize,
    /// Whether the time of posting and polling alone is measured.
    timing: bool,
    posting: Duration,
    polling: Duration,
}

impl<F: Fn(&Side) -> SendOp> Pair<F> {
    fn new(traffic: Traffic<F>) -> Self {
        let Traffic { qps, len, batch, .. } = traffic;
        let (mut a, mut b) = (Side::new(1, qps, len), Side::new(2, qps, len));
        connect(&mut a, &b);
        connect(&mut b, &a);
        Self {
            traffic,
            a,
            b,
            batch: Batch::new(batch).take_references(true),
            wcs: [Wc::default(); BURST],
            now: 1,
            next: 0,
            timing: false,
            posting: Duration::ZERO,
            polling: Duration::ZERO,
        }
    }

    /// Sends a burst of messages, and waits for the completions of both sides.
    fn round(&mut self) {
        let Self { traffic, a, b, batch, wcs, .. } = self;
        let Traffic { qps, len, receives, burst, .. } = *traffic;
        let sends = self.next..self.next + burst;
        self.next = sends.end % qps;
        if receives {
            let sges = [b.sge(len)];
            b.engine.prefetch_receives(sends.clone().map(|at| b.qps[at % qps]));
            for at in sends.clone() {
                let wr = RecvWr { id: WrId(1), sges: &sges };
                b.engine.post_recv(b.qps[at % qps], &wr).unwrap();
            }
        }
        let sges = [a.sge(len)];
        let start = self.timing.then(Clock::now);
        a.engine.prefetch_sends(sends.clone().map(|at| a.qps[at % qps]));
        for at in sends {
            let wr = SendWr::new(WrId(2), (traffic.op)(b), Data::Gather(&sges));
            a.engine.post_send(a.qps[at % qps], &wr, &[]).unwrap();
        }
        self.posting += start.map_or(Duration::ZERO, |start| start.elapsed());
        self.now += 1000;
        let time = Instant::from_nanos(self.now);
        let (mut sent, mut received) = (0, if receives { 0 } else { burst });
        while sent < burst || received < burst {
            pass(a, b, batch, time);
            pass(b, a, batch, time);
            received += b.engine.poll_cq(b.cq, wcs);
            let start = self.timing.then(Clock::now);
            while a.engine.poll_cq(a.cq, &mut wcs[..1]) == 1 {
                sent += 1;
            }
            self.polling += start.map_or(Duration::ZERO, |start| start.elapsed());
        }
    }
}

/// A thing whose speed is measured.
trait Racer {
    /// Returns the units of one run: messages, or bytes.
    fn units(&self) -> usize;

    fn go(&mut self);
}

impl<F: Fn(&Side) -> SendOp> Racer for Pair<F> {
    fn units(&self) -> usize {
        self.traffic.burst
    }

    fn go(&mut self) {
        self.round();
    }
}

/// Copies and checks the same bytes twice.
struct Rival {
    source: Vec<u8>,
    packet: Vec<u8>,
    target: Vec<u8>,
}

impl Rival {
    fn new(len: usize) -> Self {
        Self { source: vec![1; len], packet: vec![0; len], target: vec![0; len] }
    }
}

impl Racer for Rival {
    fn units(&self) -> usize {
        1
    }

    fn go(&mut self) {
        for (from, to) in self.source.chunks(4096).zip(self.packet.chunks_mut(4096)) {
            to.copy_from_slice(black_box(from));
            black_box(crc32fast::hash(to));
        }
        for (from, to) in self.packet.chunks(4096).zip(self.target.chunks_mut(4096)) {
            black_box(crc32fast::hash(from));
            to.copy_from_slice(black_box(from));
        }
    }
}

/// Length of a slice, and number of slices of each racer.
const SLICE: Duration = Duration::from_millis(60);
const SLICES: usize = 20;

/// Lets racers take turns; for each, the nanoseconds a unit takes in its best slice.
fn race<const N: usize>(mut racers: [&mut dyn Racer; N]) -> [f64; N] {
    let mut best = [f64::MAX; N];
    for _ in 0..SLICES {
        for (racer, best) in racers.iter_mut().zip(&mut best) {
            let (start, mut goes) = (Clock::now(), 0_u32);
            while start.elapsed() < SLICE {
                (0..16).for_each(|_| racer.go());
                goes += 16;
            }
            let each = start.elapsed().as_nanos() as f64 / f64::from(goes);
            *best = best.min(each / racer.units() as f64);
        }
    }
    best
}

fn send(_: &Side) -> SendOp {
    SendOp::Send { imm: None }
}

fn write(b: &Side) -> SendOp {
    SendOp::Write { remote_addr: b.buffer.addr(), rkey: b.mr.rkey(), imm: None }
}

/// Small messages on one queue pair, as many as there is room for.
const SENDS: Traffic<fn(&Side) -> SendOp> =
    Traffic { qps: 1, op: send, len: 64, receives: true, burst: BURST, batch: BURST };

/// 64 KiB WRITEs.
const WRITES: Traffic<fn(&Side) -> SendOp> =
    Traffic { op: write, len: 65_536, receives: false, batch: 8, ..SENDS };

/// Plays rounds for a profiler that counts instructions.
fn play(traffic: Traffic<fn(&Side) -> SendOp>, rounds: usize) {
    let mut pair = Pair::new(traffic);
    (0..rounds).for_each(|_| pair.round());
}

fn bench_send() {
    let mut pair = Pair::new(SENDS);
    let [each] = race([&mut pair]);
    println!(
        "64-byte SENDs, one queue pair: {:.2} million a second, {each:.0} ns each",
        1e3 / each
    );
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..10_000).for_each(|_| pair.round());
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    println!("allocations in {} more of them: {allocations}", 10_000 * BURST);
}

fn bench_post() {
    let mut pair = Pair { timing: true, ..Pair::new(SENDS) };
    let (mut post, mut poll) = (f64::MAX, f64::MAX);
    for _ in 0..SLICES {
        (pair.posting, pair.polling) = (Duration::ZERO, Duration::ZERO);
        (0..2_000).for_each(|_| pair.round());
        let each = |time: Duration| time.as_nanos() as f64 / (2_000 * BURST) as f64;
        (post, poll) = (post.min(each(pair.posting)), poll.min(each(pair.polling)));
    }
    println!("posting one work request: {post:.0} ns; polling one completion: {poll:.0} ns");
}

fn bench_scale() {
    const MANY: usize = 100_000;
    let mut one = Pair::new(Traffic { burst: 1, ..SENDS });
    let before = BYTES.load(Ordering::Relaxed);
    let mut many = Pair::new(Traffic { qps: MANY, ..SENDS });
    // Two engines with all of them each; completion queues and batches are counted, too.
    let bytes = (BYTES.load(Ordering::Relaxed) - before) / (2 * MANY);
    println!("memory of an idle queue pair with {SMALL} + {SMALL} work requests: {bytes} bytes");
    let [one, all] = race([&mut one, &mut many]);
    println!(
        "64-byte SENDs, each acknowledged by itself: {one:.0} ns on one queue pair, {all:.0} ns on {MANY} in turn; \
         {:.2} times the cost",
        all / one
    );
}

fn bench_write() {
    const LEN: usize = WRITES.len;
    let [engine, rival] = race([&mut Pair::new(WRITES), &mut Rival::new(LEN)]);
    println!(
        "64 KiB WRITEs at 4 KiB: {:.2} GB/s; memcpy and crc32fast twice: {:.2} GB/s; {:.2} times as fast",
        LEN as f64 / engine,
        LEN as f64 / rival,
        rival / engine
    );
}

fn main() {
    let wanted = std::env::args().nth(1);
    if let Some(rounds) = std::env::args().nth(2) {
        let traffic = if wanted.as_deref() == Some("write") { WRITES } else { SENDS };
        let burst =
            std::env::args().nth(3).map(|burst| burst.parse().expect("a number of messages"));
        let traffic = Traffic { burst: burst.unwrap_or(BURST), ..traffic };
        return play(traffic, rounds.parse().expect("a number of rounds"));
    }
    let benches: [(&str, fn()); 4] = [
        ("send", bench_send),
        ("post", bench_post),
        ("scale", bench_scale),
        ("write", bench_write),
    ];
    for (name, bench) in benches {
        if wanted.as_deref().is_none_or(|wanted| wanted == name) {
            bench();
        }
    }
}
