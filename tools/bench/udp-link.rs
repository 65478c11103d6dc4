//! Speed of a link over UDP sockets: one way on loopback, every ICRC sealed and checked, nothing
//! lost.
//!
//! ```text
//! cargo run --release --example bench-udp-link
//! ```
//!
//! It is told as a ratio against a rival measured in the same run: plain UDP sockets that send and
//! receive the same bytes in trains of the same length, as fast as the kernel cuts and joins them,
//! and look at none.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(unsafe_code, reason = "one option of the rival's sockets")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on ends")]

use std::ffi::c_int;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant as Clock};

use roce::link::udp::{IcrcCheck, Options, open};
use roce::time::Instant;
use roce::wire::{Batch, Bits, BthRepr, Gid, Opcode, Path, Psn, Qpn};
use socket2::SockRef;

const HERE: Ipv4Addr = Ipv4Addr::new(127, 48, 0, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(127, 48, 0, 2);

/// Maximum number of bytes in flight: what fits the buffers that every system has.
const WINDOW: u64 = 192 * 1024;

/// Time of one measurement, and number of measurements of each; the best counts.
const TIME: Duration = Duration::from_millis(700);
const ROUNDS: usize = 5;

/// Returns the number of packets of a train: as many as fit a datagram.
fn train(payload: usize) -> usize {
    (65_507 / (payload + 16)).min(64)
}

/// Counters that both sides share.
#[derive(Default)]
struct Progress {
    received: AtomicU64,
    stop: AtomicBool,
}

/// Sends until time is up, never more than the window ahead; returns bits of payload a second.
fn measure(
    payload: usize,
    mut send: impl FnMut(),
    mut receive: impl FnMut() -> usize + Send,
) -> f64 {
    let progress = Progress::default();
    let size = payload as u64;
    let (window, burst) = (WINDOW / size, train(payload) as u64);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !progress.stop.load(Ordering::Relaxed) {
                let count = receive() as u64;
                if count == 0 {
                    thread::yield_now();
                }
                progress.received.fetch_add(count, Ordering::Release);
            }
        });
        let (start, mut sent) = (Clock::now(), 0);
        while start.elapsed() < TIME {
            send();
            sent += burst;
            let waiting = Clock::now();
            while sent + burst > progress.received.load(Ordering::Acquire) + window {
                let lost = waiting.elapsed() > Duration::from_secs(5);
                progress.stop.store(lost, Ordering::Relaxed);
                assert!(!lost, "packets were lost");
                thread::yield_now();
            }
        }
        let received = progress.received.load(Ordering::Acquire);
        let seconds = start.elapsed().as_secs_f64();
        progress.stop.store(true, Ordering::Relaxed);
        (received * size * 8) as f64 / seconds
    })
}

fn link(payload: usize, icrc: IcrcCheck) -> f64 {
    let mut options = Options::new(THERE.into());
    options.icrc = icrc;
    let (mut a, mut b) = (open(&Options::new(HERE.into())).unwrap(), open(&options).unwrap());
    let path = Path {
        source: Gid::from(HERE),
        destination: Gid::from(THERE),
        source_port: 0xc123,
        traffic_class: 2,
        hop_limit: 64,
        sl: 0,
        flow_label: Bits::ZERO,
    };
    let bth = BthRepr::new(Opcode::RC_RDMA_WRITE_MIDDLE, Qpn::new(17), Psn::new(1)).emit();
    let packet = [bth.as_bytes().as_slice(), &vec![0x5a; payload]].concat();
    let mut batch = Batch::new(train(payload));
    (0..train(payload)).for_each(|_| assert!(batch.push(&path, &packet)));
    let speed = measure(
        payload,
        || a.sender.send(Instant::ZERO, &mut batch).unwrap(),
        || b.receiver.receive(Instant::ZERO).unwrap(),
    );
    let bad = b.receiver.counters().into_iter().find(|(name, _)| *name == "bad_icrc");
    assert_eq!(bad, Some(("bad_icrc", 0)));
    speed
}

fn sockets(payload: usize) -> f64 {
    let (a, b) = (UdpSocket::bind((HERE, 0)).unwrap(), UdpSocket::bind((THERE, 0)).unwrap());
    let to = b.local_addr().unwrap();
    b.set_nonblocking(true).unwrap();
    SockRef::from(&a).set_send_buffer_size(4 << 20).unwrap();
    SockRef::from(&b).set_recv_buffer_size(8 << 20).unwrap();
    set(&a, libc::UDP_SEGMENT, c_int::try_from(payload + 16).unwrap());
    set(&b, libc::UDP_GRO, 1);
    let bytes = vec![0x5a; train(payload) * (payload + 16)];
    let mut room = vec![0; 1 << 16];
    measure(
        payload,
        || assert_eq!(a.send_to(&bytes, to).unwrap(), bytes.len()),
        || b.recv(&mut room).map_or(0, |len| len / (payload + 16)),
    )
}

fn set(socket: &UdpSocket, option: c_int, value: c_int) {
    let place = (&raw const value).cast();
    // SAFETY: it is given a number of four bytes, which lives until the call returns.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, option, place, 4) };
    assert_eq!(result, 0);
}

fn main() {
    println!("payload   link, checked   link, trusting   UDP sockets   checked / sockets");
    for payload in [256, 1024, 4096] {
        let (mut checked, mut trusting, mut plain) = (0.0_f64, 0.0_f64, 0.0_f64);
        for _ in 0..ROUNDS {
            checked = checked.max(link(payload, IcrcCheck::Verify));
            trusting = trusting.max(link(payload, IcrcCheck::Trust));
            plain = plain.max(sockets(payload));
        }
        let gigabits = |bits: f64| format!("{:.1} Gb/s", bits / 1e9);
        let (a, b, c) = (gigabits(checked), gigabits(trusting), gigabits(plain));
        println!("{payload:>7}   {a:>13}   {b:>14}   {c:>11}   {:>17.2}", checked / plain);
    }
}
