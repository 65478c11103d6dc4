//! Cost of `roce::net`: against TCP by the standard library, and against bare posts on the same
//! NICs.
//!
//! ```text
//! cargo run --release --example bench-net [-- SECONDS [ROW]]      # or tools/bench/net, which builds it as a release is built
//! ```
//!
//! Both sides are threads of one process, each on a core of its own with its soft NIC at a loopback
//! address; TCP goes over loopback, too. With the path of a network namespace in `ROCE_BENCH_PEER`,
//! side 1 is there, and a veth joins both: side 0 has 10.22.0.1 and 10.22.1.1, side 1 10.22.0.2 and
//! 10.22.1.2. Each figure is the median of five slices, taken in turns. ROW is a part of a row's
//! name: only those are measured.
#![allow(
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark has a clock and a terminal, and fails when it cannot go on"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use roce::device::{AnyQp, Cq, Mr, MrSlice};
use roce::net::{Connection, Endpoint};
use roce::verbs::{
    Access, Connect, Data, Mtu, QpType, RecvWr, SendFlags, SendOp, SendWr, Target, Wc, WrId,
};

const SMALL: usize = 64;
const LARGE: usize = 64 << 10;
const SLICES: usize = 5;
/// Messages of one doorbell.
const BATCH: usize = 16;

/// Two ends of something that carries messages: what one sends the other receives.
trait Pipe: Sync {
    /// Sends a message of `len` bytes; `is_last` if it must not wait for others.
    fn send(&self, side: usize, len: usize, is_last: bool);
    /// Receives a message of `len` bytes.
    fn receive(&self, side: usize, len: usize, room: &mut Vec<u8>);
}

struct Net([Connection; 2]);

impl Pipe for Net {
    fn send(&self, side: usize, len: usize, is_last: bool) {
        let message = &[7; LARGE][..len];
        if is_last {
            self.0[side].send(message).unwrap();
        } else {
            self.0[side].queue(message).unwrap();
        }
    }

    fn receive(&self, side: usize, len: usize, room: &mut Vec<u8>) {
        assert!(self.0[side].recv_into(room).unwrap() && room.len() == len);
    }
}

/// A connection whose messages lie in registered memory.
struct Regions<'a> {
    net: &'a Net,
    message: MrSlice,
}

impl Pipe for Regions<'_> {
    fn send(&self, side: usize, _len: usize, _is_last: bool) {
        self.net.0[side].send_region(&self.message).unwrap();
    }

    fn receive(&self, side: usize, len: usize, room: &mut Vec<u8>) {
        self.net.receive(side, len, room);
    }
}

struct Tcp([TcpStream; 2]);

impl Pipe for Tcp {
    fn send(&self, side: usize, len: usize, _is_last: bool) {
        (&self.0[side]).write_all(&[7; LARGE][..len]).unwrap();
    }

    fn receive(&self, side: usize, len: usize, room: &mut Vec<u8>) {
        room.resize(len, 0);
        (&self.0[side]).read_exact(room).unwrap();
    }
}

/// Bare WRITEs with immediate data, as many ahead as there are receives.
struct Bare([BareSide; 2]);

struct BareSide {
    qp: AnyQp,
    cq: Cq,
    memory: Mr,
    peer: (u64, roce::wire::RKey),
    posted: AtomicU64,
    completed: AtomicU64,
    received: AtomicU64,
}

const DEPTH: u32 = 512;

fn main() {
    let seconds: f64 = std::env::args().nth(1).map_or(5.0, |text| text.parse().unwrap());
    let slice = Duration::from_secs_f64(seconds / SLICES as f64 / 2.0);
    let net = Net(connect());
    let tcp = Tcp(connect_tcp());
    let over = if peer_namespace().is_some() { "over a veth" } else { "over loopback" };
    println!("{over:<44}{:>14}{:>14}{:>9}", "roce::net", "rival", "ratio");
    row("64-byte ping-pong, µs (TCP)", ping_pong, &net, &tcp, slice, true);
    let large = |pipe: &dyn Pipe, time| stream(pipe, time, LARGE, 1) * LARGE as f64 / 1e9;
    row("64 KiB messages, GB/s (TCP)", large, &net, &tcp, slice, false);
    let region = net.0[0].pd().allocate(LARGE, Access::LOCAL_WRITE).unwrap();
    let regions = Regions { net: &net, message: region.slice(..).unwrap() };
    row("64 KiB of registered memory, GB/s (TCP)", large, &regions, &tcp, slice, false);
    let one = |pipe: &dyn Pipe, time| stream(pipe, time, SMALL, 1) / 1e6;
    row("64-byte messages, million/s (TCP)", one, &net, &tcp, slice, false);
    let many = |pipe: &dyn Pipe, time| stream(pipe, time, SMALL, BATCH) / 1e6;
    row("the same, 16 a doorbell (TCP: 1 a write)", many, &net, &tcp, slice, false);
    let bare = Bare(connect_bare());
    row("64-byte messages, million/s (bare posts)", one, &net, &bare, slice, false);
    row("the same, 16 a doorbell (bare posts)", many, &net, &bare, slice, false);
    row("64 KiB messages, GB/s (bare posts)", large, &net, &bare, slice, false);
}

/// Prints a figure of both, and how much better ours is.
fn row(
    name: &str,
    measure: impl Fn(&dyn Pipe, Duration) -> f64,
    ours: &dyn Pipe,
    rival: &dyn Pipe,
    slice: Duration,
    less_is_better: bool,
) {
    if std::env::args().nth(2).is_some_and(|wanted| !name.contains(&wanted)) {
        return;
    }
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..SLICES {
        a.push(measure(ours, slice));
        b.push(measure(rival, slice));
    }
    let [a, b] = [a, b].map(|mut figures| {
        figures.sort_by(f64::total_cmp);
        figures[SLICES / 2]
    });
    let ratio = if less_is_better { b / a } else { a / b };
    println!("{name:<44}{a:>14.3}{b:>14.3}{ratio:>9.2}");
}

/// Median microseconds of a message there and back.
fn ping_pong(pipe: &dyn Pipe, time: Duration) -> f64 {
    const ROUNDS: usize = 100;
    let (mut times, end) = (Vec::new(), Instant::now() + time);
    while Instant::now() < end {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(1);
                let mut room = Vec::new();
                for _ in 0..ROUNDS {
                    pipe.receive(1, SMALL, &mut room);
                    pipe.send(1, SMALL, true);
                }
            });
            pin(0);
            let mut room = Vec::new();
            for _ in 0..ROUNDS {
                let begun = Instant::now();
                pipe.send(0, SMALL, true);
                pipe.receive(0, SMALL, &mut room);
                times.push(begun.elapsed());
            }
        });
    }
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Messages per second in one direction, received.
fn stream(pipe: &dyn Pipe, time: Duration, len: usize, batch: usize) -> f64 {
    // As many as take about the time, by doubling.
    let mut count = 64 * batch;
    loop {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin(0);
                (0..count).for_each(|at| pipe.send(0, len, (at + 1) % batch == 0));
            });
            pin(1);
            let mut room = Vec::new();
            (0..count).for_each(|_| pipe.receive(1, len, &mut room));
        });
        let taken = begun.elapsed();
        if taken * 2 >= time {
            return count as f64 / taken.as_secs_f64();
        }
        count *= 2;
    }
}

/// Runs the calling thread, and those that it creates, on one core: side 0 on the first, side 1 on
/// the second.
fn pin(side: usize) {
    let mut cores = rustix::thread::CpuSet::new();
    cores.set(side);
    rustix::thread::sched_setaffinity(None, &cores).unwrap();
}

/// Runs `open` where a side has its sockets: side 1 may be in a network namespace of its own.
fn at_side<T: Send>(side: usize, open: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            pin(side);
            if let (1, Some(path)) = (side, peer_namespace()) {
                let namespace = std::fs::File::open(path).unwrap();
                let kind = Some(rustix::thread::LinkNameSpaceType::Network);
                rustix::thread::move_into_link_name_space(namespace.as_fd(), kind).unwrap();
            }
            open()
        });
        opening.join().unwrap()
    })
}

fn peer_namespace() -> Option<std::ffi::OsString> {
    std::env::var_os("ROCE_BENCH_PEER")
}

/// The address of a side; each has two.
fn address(side: usize, which: usize) -> String {
    let first = if peer_namespace().is_some() { 10 } else { 127 };
    format!("{first}.22.{which}.{}", side + 1)
}

fn open(side: usize, which: usize) -> Endpoint {
    at_side(side, || Endpoint::open(&format!("udp:{}", address(side, which))).unwrap())
}

fn connect() -> [Connection; 2] {
    let [client, server] = [0, 1].map(|side| open(side, 0));
    let listener = at_side(1, || server.listen((address(1, 0), 0)).unwrap());
    let at = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| at_side(1, || listener.accept().unwrap()));
        [at_side(0, || client.connect(at).unwrap()), accepting.join().unwrap()]
    })
}

fn connect_tcp() -> [TcpStream; 2] {
    let listener = at_side(1, || TcpListener::bind((address(1, 0), 0)).unwrap());
    let client = at_side(0, || TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    let server = listener.accept().unwrap().0;
    [client, server].map(|stream| {
        stream.set_nodelay(true).unwrap();
        stream
    })
}

fn connect_bare() -> [BareSide; 2] {
    let sides = [0, 1].map(|side| {
        let pd = open(side, 1).pd().clone();
        let cq = pd.context().create_cq(2048).unwrap();
        let qp = pd.qp(&cq).depth(DEPTH, DEPTH).max_inline_data(256).build_any(QpType::Rc).unwrap();
        let memory = pd.allocate(LARGE, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        (qp, cq, memory)
    });
    let ends = sides.each_ref().map(|(qp, ..)| qp.endpoint().unwrap());
    let keys = sides.each_ref().map(|(.., memory)| (memory.addr(), memory.rkey()));
    let mut other = [1, 0].into_iter();
    sides.map(|(qp, cq, memory)| {
        let other = other.next().unwrap();
        qp.connect(&ends[other], &Connect::default().mtu(Mtu::M4096)).unwrap();
        for _ in 0..DEPTH {
            qp.post_recv(&RecvWr { id: WrId(1 << 63), sges: &[] }).unwrap();
        }
        let [posted, completed, received] = [(); 3].map(|()| AtomicU64::new(0));
        BareSide { qp, cq, memory, peer: keys[other], posted, completed, received }
    })
}

impl BareSide {
    fn poll(&self) {
        let mut wcs = [Wc::default(); 32];
        let count = self.cq.poll_wcs(&mut wcs);
        for wc in wcs.iter().take(count) {
            assert!(wc.is_success(), "{wc:?}");
            if wc.id.0 >> 63 == 0 {
                self.completed.store(wc.id.0, Relaxed);
            } else {
                self.received.fetch_add(1, Relaxed);
                self.qp.post_recv(&RecvWr { id: WrId(1 << 63), sges: &[] }).unwrap();
            }
        }
    }
}

thread_local! {
    /// Messages of a batch that are not posted yet.
    static QUEUED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Pipe for Bare {
    fn send(&self, side: usize, len: usize, is_last: bool) {
        let side = &self.0[side];
        QUEUED.set(QUEUED.get() + 1);
        if !is_last {
            return;
        }
        let count = QUEUED.replace(0);
        while side.posted.load(Relaxed) - side.completed.load(Relaxed) + count as u64
            > u64::from(DEPTH) / 2
        {
            side.poll();
        }
        let (remote_addr, rkey) = side.peer;
        let (message, sges) = ([7; 256], [side.memory.sge(0, len)]);
        let op = SendOp::Write { remote_addr, rkey, imm: Some([0; 4]) };
        let wrs: [SendWr<'_>; BATCH] = std::array::from_fn(|at| {
            let number = side.posted.load(Relaxed) + at as u64 + 1;
            let is_signaled = number.is_multiple_of(32);
            let flags = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            let data = message.get(..len).map_or(Data::Gather(&sges), Data::Inline);
            SendWr { id: WrId(number), data, flags, target: Target::Peer, op }
        });
        side.qp.post_sends(&wrs[..count]).unwrap();
        side.posted.fetch_add(count as u64, Relaxed);
    }

    fn receive(&self, side: usize, len: usize, room: &mut Vec<u8>) {
        let side = &self.0[side];
        while side.received.load(Relaxed) == 0 {
            side.poll();
        }
        side.received.fetch_sub(1, Relaxed);
        room.resize(len, 0);
        side.memory.read(0, room).unwrap();
    }
}
