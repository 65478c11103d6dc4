//! Speed of raw links, and of links by AF_XDP, on a wire between two interfaces of this machine.
//!
//! ```text
//! cargo build --release --example bench-raw && unshare -Urn target/release/examples/bench-raw
//! ```
//!
//! Round trips of 64 bytes, both ends spinning, against ordinary UDP sockets that do the same over
//! `lo` in the same run; and how much passes one way in trains of 64 packets, sealed and checked.
//! `FRAMES=60` sets the size of the rings. Links by AF_XDP are left out unless this runs as root of
//! the initial user namespace (`sudo unshare -n`).
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark has a clock and a terminal, and fails when it cannot go on"
)]

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant as Clock};

use roce::link::raw::{self, Config};
use roce::link::{Link, Receiver, Sender, xdp};
use roce::time::Instant;
use roce::wire::{Batch, Bits, BthRepr, Gid, MacAddr, Opcode, Path, Psn, Qpn};

const LEFT: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 1);
const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 8, 0, 2);
const MACS: [MacAddr; 2] = [MacAddr([2, 0, 0, 0, 0, 1]), MacAddr([2, 0, 0, 0, 0, 2])];
const ROUNDS: usize = 20_000;

fn main() {
    for arguments in [
        "link set lo up",
        "link add left mtu 9000 address 02:00:00:00:00:01 type veth peer name right mtu 9000 address 02:00:00:00:00:02",
        "address add 10.8.0.1/24 dev left",
        "address add 10.8.0.2/24 dev right",
        "link set left up",
        "link set right up",
    ] {
        let done = Command::new("ip").args(arguments.split_whitespace()).status().unwrap();
        assert!(done.success(), "ip {arguments}: run this with `unshare -Urn`");
    }
    let udp = udp_round_trip();
    println!("round trip of 64 bytes, p50, spinning");
    println!("  UDP over lo        {:6.2} µs", udp);
    let here = Ipv4Addr::LOCALHOST;
    let lo = || open("lo", here, MACS[0]);
    let time = round_trip([lo(), lo()], [path(here, here); 2]);
    println!("  raw over lo        {time:6.2} µs   {:.2} of UDP", time / udp);
    let veth = || [open("left", RIGHT, MACS[1]), open("right", LEFT, MACS[0])];
    let paths = [path(LEFT, RIGHT), path(RIGHT, LEFT)];
    let time = round_trip(veth(), paths);
    println!("  raw over veth      {time:6.2} µs   {:.2} of UDP", time / udp);
    println!("one way over veth, trains of 64");
    for payload in [64, 1024, 4096] {
        print_stream("raw", veth(), &paths[0], payload);
    }
    if xdp::check().is_err() {
        return;
    }
    let mtu = ["left", "right"].map(|name| {
        Command::new("ip").args(["link", "set", name, "mtu", "3000"]).status().unwrap()
    });
    assert!(mtu.iter().all(|done| done.success()));
    for (name, rings) in [("xdp", false), ("xdp, by rings", true)] {
        let links =
            || [open_xdp("left", RIGHT, MACS[1], rings), open_xdp("right", LEFT, MACS[0], rings)];
        let time = round_trip(links(), paths);
        println!("{name}: round trip of 64 bytes {time:.2} µs");
        for payload in [64, 1024] {
            print_stream(name, links(), &paths[0], payload);
        }
    }
}

/// Prints the rate at which packets pass one way.
fn print_stream(name: &str, [from, to]: [Link; 2], path: &Path, payload: usize) {
    let (rate, lost) = stream(from, to, path, payload);
    let packets = rate * 1000.0 / (payload * 8) as f64;
    println!(
        "  {name:13} {payload:4} bytes  {rate:6.2} Gb/s  {packets:5.2} M/s  {:.1}% lost",
        lost * 100.0
    );
}

fn open_xdp(interface: &str, other: Ipv4Addr, mac: MacAddr, rings: bool) -> Link {
    let mut config = xdp::Config::new(interface);
    config.addresses = vec![if other == RIGHT { LEFT } else { RIGHT }.into()];
    config.neighbors = vec![(IpAddr::from(other), mac)];
    config.always_rings = rings;
    xdp::open(&config).unwrap()
}

fn open(interface: &str, other: Ipv4Addr, mac: MacAddr) -> Link {
    let mut config = Config::new(interface);
    config.addresses = if interface == "lo" {
        vec![Ipv4Addr::LOCALHOST.into()]
    } else if other == RIGHT {
        vec![LEFT.into()]
    } else {
        vec![RIGHT.into()]
    };
    config.neighbors = vec![(IpAddr::from(other), mac)];
    if let Ok(frames) = std::env::var("FRAMES") {
        config.frames = frames.parse().unwrap();
    }
    raw::open(&config).unwrap()
}

fn path(source: Ipv4Addr, destination: Ipv4Addr) -> Path {
    let (source, destination) = (Gid::from(source), Gid::from(destination));
    Path {
        source,
        destination,
        source_port: 0xc000,
        traffic_class: 0,
        hop_limit: 64,
        sl: 0,
        flow_label: Bits::ZERO,
    }
}

fn packet(qp: u32, payload: usize) -> Vec<u8> {
    let bth = BthRepr::new(Opcode::RC_SEND_ONLY, Qpn::new(qp), Psn::new(0)).emit();
    [bth.as_bytes().as_slice(), &vec![7; payload]].concat()
}

/// Waits for a packet to a queue pair.
fn wait_for(receiver: &mut dyn Receiver, qp: u8, until: Clock) -> bool {
    loop {
        let mut found = false;
        if receiver.receive(Instant::ZERO).unwrap() > 0 {
            receiver.for_each(&mut |received| found |= received.packet[7] == qp);
        }
        if found || Clock::now() > until {
            return found;
        }
        std::hint::spin_loop();
    }
}

fn p50(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_nanos() as f64 / 1000.0
}

fn round_trip(links: [Link; 2], paths: [Path; 2]) -> f64 {
    let [mut here, mut there] = links;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (answer, mut batch) = (packet(1, 64), Batch::new(1));
            while !done.load(Ordering::Relaxed) {
                let soon = Clock::now() + Duration::from_millis(10);
                if wait_for(&mut *there.receiver, 2, soon) {
                    send(&mut *there.sender, &mut batch, &paths[1], &answer);
                }
            }
        });
        let (question, mut batch) = (packet(2, 64), Batch::new(1));
        let mut times = Vec::with_capacity(ROUNDS);
        while times.len() < ROUNDS {
            let start = Clock::now();
            send(&mut *here.sender, &mut batch, &paths[0], &question);
            let soon = start + Duration::from_millis(100);
            if wait_for(&mut *here.receiver, 1, soon) {
                times.push(start.elapsed());
            }
        }
        done.store(true, Ordering::Relaxed);
        p50(times)
    })
}

fn send(sender: &mut dyn Sender, batch: &mut Batch, path: &Path, packet: &[u8]) {
    batch.clear();
    assert!(batch.push(path, packet));
    sender.send(Instant::ZERO, batch).unwrap();
}

fn udp_round_trip() -> f64 {
    let sockets = [0, 1].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    let [here, there] = &sockets;
    here.connect(there.local_addr().unwrap()).unwrap();
    there.connect(here.local_addr().unwrap()).unwrap();
    sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 100];
            while !done.load(Ordering::Relaxed) {
                if there.recv(&mut buffer).is_ok() {
                    there.send(&[7; 80]).unwrap();
                }
            }
        });
        let mut buffer = [0; 100];
        let times = (0..ROUNDS).map(|_| {
            let start = Clock::now();
            here.send(&[7; 80]).unwrap();
            while here.recv(&mut buffer).is_err() {}
            start.elapsed()
        });
        let time = p50(times.collect());
        done.store(true, Ordering::Relaxed);
        time
    })
}

/// Gigabits of payload a second, and which part of the packets was lost.
fn stream(mut from: Link, mut to: Link, path: &Path, payload: usize) -> (f64, f64) {
    let done = AtomicBool::new(false);
    let (start, time) = (Clock::now(), Duration::from_secs(2));
    thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                if to.receiver.receive(Instant::ZERO).unwrap() == 0 {
                    std::hint::spin_loop();
                }
                to.receiver
                    .for_each(&mut |received| count += usize::from(received.packet.len() > 16));
            }
            count
        });
        let (packet, mut batch, mut sent) = (packet(2, payload), Batch::new(64), 0);
        while start.elapsed() < time {
            batch.clear();
            while batch.push(path, &packet) {}
            sent += batch.len();
            from.sender.send(Instant::ZERO, &mut batch).unwrap();
        }
        done.store(true, Ordering::Relaxed);
        let count = receiver.join().unwrap();
        let bits = (count * payload * 8) as f64;
        (bits / start.elapsed().as_nanos() as f64, 1.0 - count as f64 / sent as f64)
    })
}
