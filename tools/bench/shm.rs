//! Two soft NICs of one process that talk through shared memory: small enough for a profiler.
//!
//! ```text
//! cargo run --release --example bench-shm -- together COUNT
//! cargo run --release --example bench-shm -- latency|asleep|sends|write [SECONDS [BYTES]]
//! cargo run --release --example bench-shm -- threads [SECONDS [BYTES [THREADS]]]
//! ```
//!
//! `together` is a ping-pong of SENDs of which one thread plays both sides: nothing waits, so
//! instructions can be counted. `latency`, `sends` and `write` have a thread a side; so has
//! `asleep`, a round trip to a program that waits for events and has slept before. Of `threads`,
//! each plays both sides between two queue pairs of its own, all on the same two NICs; it compares
//! one thread with all. Prints nanoseconds a message and GB/s, or messages a second.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark that cannot go on ends"
)]

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant as Clock};

use roce::device::{AnyQp, Context, Cq, Mr, Pd};
use roce::link::udp::{Options, open};
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::verbs::{
    Access, Connect, Data, QpType, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc, WrId,
};

/// Length of queues, and number of messages of which one has a completion.
const QUEUE: usize = 512;
const SIGNAL: usize = 32;

/// Completions that are polled at a time, and messages that are posted at a time.
const BATCH: usize = 16;

/// A queue pair with what it needs.
struct Side {
    cq: Cq,
    qp: AnyQp,
    mr: Mr,
    sge: Sge,
}

fn nic(last: u8) -> (Context, Pd) {
    let mut options = Options::new(IpAddr::V4(Ipv4Addr::new(127, 48, 9, last)));
    options.uses_shared_memory = true;
    let context = Context::new(SoftNic::start(open(&options).unwrap()).unwrap());
    let pd = context.create_pd().unwrap();
    (context, pd)
}

impl Side {
    fn new((context, pd): &(Context, Pd), bytes: usize) -> Self {
        let cq = context.create_cq_with_events(4 * QUEUE).unwrap();
        let queue = QUEUE as u32;
        let qp = pd.qp(&cq).depth(queue, queue).build_any(QpType::Rc).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.register(&Buffer::new(bytes), access).unwrap();
        let sge = Sge { addr: mr.addr(), length: bytes as u32, lkey: mr.lkey() };
        Self { cq, qp, mr, sge }
    }

    fn connect(&self, peer: &Self) {
        self.qp.connect(&peer.qp.endpoint().unwrap(), &Connect::default()).unwrap();
    }

    fn receive(&self) {
        let sges = [self.sge];
        self.qp.post_recv(&RecvWr { id: WrId(1), sges: &sges }).unwrap();
    }

    fn send(&self) {
        let sges = [self.sge];
        let op = SendOp::Send { imm: None };
        self.qp.post_send(&SendWr::new(WrId(2), op, Data::Gather(&sges))).unwrap();
    }

    /// Polls; returns the numbers of completed sends and receives.
    fn poll(&self) -> (usize, usize) {
        let mut wcs = [Wc::default(); BATCH];
        let count = self.cq.poll_wcs(&mut wcs);
        let wcs = wcs.get(..count).unwrap();
        assert!(wcs.iter().all(Wc::is_success), "{wcs:?}");
        let receives = wcs.iter().filter(|wc| wc.id == WrId(1)).count();
        (count - receives, receives)
    }
}

/// Both sides of a ping-pong in one thread.
#[inline(never)]
fn together(sides: &[Side; 2], count: usize) {
    for message in 0..count {
        let [from, to] = if message % 2 == 0 { [0, 1] } else { [1, 0] }.map(|at| &sides[at]);
        from.send();
        // As a program that polls: what is deferred goes out with its polls.
        loop {
            from.poll();
            let (_, received) = to.poll();
            if received > 0 {
                to.receive();
                break;
            }
        }
    }
}

/// WRITEs of one thread that plays both sides.
fn writes(sides: &[Side; 2], count: usize) {
    let [from, to] = sides;
    let (remote_addr, rkey) = (to.mr.addr(), to.mr.rkey());
    let op = SendOp::Write { remote_addr, rkey, imm: None };
    for _ in 0..count {
        let sges = [from.sge];
        from.qp.post_send(&SendWr::new(WrId(2), op, Data::Gather(&sges))).unwrap();
        while from.poll() == (0, 0) {
            to.poll();
        }
    }
}

/// Ends the measurement when time is over; looks at the clock now and then.
fn is_over(polls: &mut u32, end: Clock, stop: &AtomicBool) -> bool {
    *polls += 1;
    if polls.is_multiple_of(256) && Clock::now() >= end {
        stop.store(true, Ordering::Relaxed);
    }
    stop.load(Ordering::Relaxed)
}

/// Messages that threads exchange on the same two NICs, each thread between two queue pairs of its
/// own.
fn side_by_side(pairs: &[[Side; 2]], end: Clock) -> f64 {
    let (start, count) = (Clock::now(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for sides in pairs {
            scope.spawn(|| {
                while Clock::now() < end {
                    together(sides, 64);
                    count.fetch_add(64, Ordering::Relaxed);
                }
            });
        }
    });
    count.into_inner() as f64 / start.elapsed().as_secs_f64()
}

fn ping_pong(side: &Side, first: bool, end: Clock, stop: &AtomicBool, count: &AtomicU64) {
    let mut polls = 0;
    let mut times = Vec::with_capacity(if first { 1 << 22 } else { 0 });
    let mut sent_at = Clock::now();
    if first {
        side.send();
    }
    while !is_over(&mut polls, end, stop) {
        let (_, received) = side.poll();
        if received > 0 {
            if times.len() < times.capacity() {
                let now = Clock::now();
                times.push((now - sent_at).as_nanos() / 2);
                sent_at = now;
            }
            side.receive();
            side.send();
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
    if first {
        print_percentiles("one way", times);
    }
}

/// Prints times in which other programs took part, and times in which they did not.
fn print_percentiles(what: &str, mut times: Vec<u128>) {
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    println!("{what}: 10 % {} ns, median {} ns, 90 % {} ns", at(10), at(50), at(90));
}

/// Pause before each round trip to a program that sleeps: longer than it drives before it sleeps.
const PAUSE: Duration = Duration::from_micros(300);

/// Replies to each message, and waits for the next by an event.
fn reply(side: &Side, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(wc) = side.cq.wait(Some(Duration::from_millis(100))) else { continue };
        if wc.wc.id == WrId(1) {
            side.receive();
            side.send();
        }
    }
}

/// Prints the nanoseconds of round trips to a side that sleeps.
fn to_sleeper(side: &Side, end: Clock) {
    let mut times = Vec::new();
    while Clock::now() < end {
        std::thread::sleep(PAUSE);
        let start = Clock::now();
        side.send();
        while side.poll().1 == 0 {}
        times.push(start.elapsed().as_nanos());
        side.receive();
    }
    print_percentiles("round trip", times);
}

/// Sends as fast as completions come.
fn stream(side: &Side, op: SendOp, depth: usize, end: Clock, stop: &AtomicBool, count: &AtomicU64) {
    let mut polls = 0;
    let sges = [side.sge];
    let signal = SIGNAL.min(depth / 2).max(1);
    let (mut posted, mut done) = (0_usize, 0_usize);
    while !is_over(&mut polls, end, stop) {
        while posted - done + signal <= depth {
            let wrs: [SendWr<'_>; SIGNAL] = std::array::from_fn(|at| {
                let mut wr = SendWr::new(WrId(2), op, Data::Gather(&sges));
                if (at + 1) % signal != 0 {
                    wr.flags = SendFlags::empty();
                }
                wr
            });
            side.qp.post_sends(&wrs[..signal]).unwrap();
            posted += signal;
        }
        let (sent, _) = side.poll();
        done += sent * signal;
        count.fetch_add((sent * signal) as u64, Ordering::Relaxed);
    }
}

fn sink(side: &Side, stop: &AtomicBool) {
    let sges = [side.sge];
    let wr = RecvWr { id: WrId(1), sges: &sges };
    while !stop.load(Ordering::Relaxed) {
        let (_, received) = side.poll();
        if received > 0 {
            (0..received).for_each(|_| side.qp.post_recv(&wr).unwrap());
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mode = arguments.first().map_or("latency", String::as_str);
    let number =
        |at: usize, default| arguments.get(at).map_or(default, |text| text.parse().unwrap());
    let amount: usize = number(1, 2);
    let bytes: usize = number(2, if mode == "write" { 1 << 20 } else { 64 });
    let pairs: usize = number(3, if mode == "threads" { 2 } else { 1 });
    let nics = [nic(1), nic(2)];
    let sides: Vec<[Side; 2]> =
        (0..pairs).map(|_| [0, 1].map(|at| Side::new(&nics[at], bytes))).collect();
    for [left, right] in &sides {
        left.connect(right);
        right.connect(left);
        if mode != "write" {
            for side in [left, right] {
                (0..QUEUE - 1).for_each(|_| side.receive());
            }
        }
    }
    // Until they have found each other.
    let begin = Clock::now();
    while begin.elapsed() < Duration::from_millis(300) {
        match mode {
            "write" => sides.iter().for_each(|sides| writes(sides, 1)),
            _ => sides.iter().for_each(|sides| together(sides, 16)),
        }
    }
    // Until all that was sent has completed.
    let quiet = Clock::now() + Duration::from_millis(50);
    while Clock::now() < quiet {
        sides.iter().flatten().for_each(|side| _ = side.poll());
    }
    if mode == "together" {
        together(&sides[0], 1000);
        let start = Clock::now();
        together(&sides[0], amount);
        println!("{:.0} ns", start.elapsed().as_nanos() as f64 / amount as f64);
        return;
    }
    if mode == "asleep" {
        let [left, right] = &sides[0];
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| reply(right, &stop));
            to_sleeper(left, Clock::now() + Duration::from_secs(amount as u64));
            stop.store(true, Ordering::Relaxed);
        });
        return;
    }
    if mode == "threads" {
        let time = Duration::from_secs(amount as u64);
        let alone = side_by_side(&sides[..1], Clock::now() + time);
        let all = side_by_side(&sides, Clock::now() + time);
        println!("1 thread {alone:.0} a second, {pairs} threads {all:.0}: {:.2}", all / alone);
        return;
    }
    // No thread sleeps meanwhile, so that all may have a real-time priority.
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Clock::now();
    let end = start + Duration::from_secs(amount as u64);
    std::thread::scope(|scope| {
        let (stop, count) = (&stop, &count);
        for [left, right] in &sides {
            match mode {
                "latency" => {
                    scope.spawn(move || ping_pong(right, false, end, stop, count));
                    scope.spawn(move || ping_pong(left, true, end, stop, count));
                }
                "sends" => {
                    scope.spawn(move || sink(right, stop));
                    let op = SendOp::Send { imm: None };
                    scope.spawn(move || stream(left, op, QUEUE, end, stop, count));
                }
                _ => {
                    scope.spawn(move || sink(right, stop));
                    let (remote_addr, rkey) = (right.mr.addr(), right.mr.rkey());
                    let op = SendOp::Write { remote_addr, rkey, imm: None };
                    let depth = ((2 << 20) / bytes).clamp(2, QUEUE);
                    scope.spawn(move || stream(left, op, depth, end, stop, count));
                }
            }
        }
    });
    let (time, messages) = (start.elapsed().as_nanos() as f64, count.into_inner() as f64);
    println!("{:.0} ns, {:.2} GB/s", time / messages, messages * bytes as f64 / time);
}
