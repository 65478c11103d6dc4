//! Connections per second by the connection manager, against the usual exchange of queue pair
//! numbers over TCP; and many connections in turn, to see that memory and descriptors stay as they
//! are.
//!
//! ```text
//! cargo run --release --example bench-connect -- [--seconds 3]
//! cargo run --release --example bench-connect -- --soak 100000
//! ```
//!
//! Two soft NICs of this process, at loopback addresses of their own. A connection is a queue pair
//! at each side, taken to RTS, disconnected, and destroyed. The two ways take turns. The soak ends
//! with status 1 if at the end the process holds more than [`GROWTH_KIB`] of memory, or one
//! descriptor, more than after half of the connections. By then as many connections are in timewait
//! as ever will be.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a tool that cannot go on ends, and it reads the clock"
)]

#[path = "../soak/usage.rs"]
#[allow(dead_code, reason = "the other tool uses all of it")]
mod usage;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use roce::connect::{ConnectionManager, Listener, Options};
use roce::device::Device;
use roce::link::udp;
use roce::nic::SoftNic;
use roce::verbs::{Connect, CqHandle, Endpoint, PdHandle, QpHandle, QpType};
use roce::wire::{Gid, Psn, Qpn};
use usage::Usage;

/// Maximum growth of memory during a soak.
const GROWTH_KIB: u64 = 4096;

/// Longer than anything takes.
const WAIT: Duration = Duration::from_secs(60);

struct Node {
    manager: ConnectionManager,
    pd: PdHandle,
    cq: CqHandle,
}

impl Node {
    fn start(address: IpAddr) -> Self {
        let link = udp::open(&udp::Options::new(address)).unwrap();
        let nic = Arc::new(SoftNic::start(link).unwrap());
        let (pd, cq) = (nic.create_pd().unwrap(), nic.create_cq(64).unwrap());
        Self { manager: ConnectionManager::start(nic).unwrap(), pd, cq }
    }

    fn nic(&self) -> &dyn Device {
        &**self.manager.nic()
    }

    /// Lends a new queue pair.
    fn with_qp(&self, run: impl FnOnce(QpHandle)) {
        let qp = self.nic().create_simple_qp(self.pd, self.cq, QpType::Rc).unwrap();
        run(qp);
        self.nic().destroy_qp(qp).unwrap();
    }

    fn accept(&self, listener: &Listener) -> bool {
        // The last one waits for a connection that does not come.
        let Ok(request) = listener.accept_timeout(Duration::from_secs(1)) else { return false };
        self.with_qp(|qp| {
            let connection = request.accept(qp, &Options::default()).unwrap();
            assert!(connection.wait_disconnected(WAIT).unwrap());
        });
        true
    }

    fn connect(&self, to: SocketAddr) {
        self.with_qp(|qp| {
            let connection = self.manager.connect(qp, to, &Options::default()).unwrap();
            assert!(connection.disconnect(WAIT).unwrap());
        });
    }

    /// Exchanges endpoints over a TCP connection, and connects; its end ends the connection.
    fn exchange(&self, mut stream: TcpStream, is_server: bool) {
        self.with_qp(|qp| {
            let own = self.nic().endpoint(qp).unwrap();
            let mut bytes = [0; 24];
            bytes[..16].copy_from_slice(&own.gid.0);
            bytes[16..20].copy_from_slice(&own.qpn.get().to_be_bytes());
            bytes[20..].copy_from_slice(&own.psn.get().to_be_bytes());
            stream.write_all(&bytes).unwrap();
            stream.read_exact(&mut bytes).unwrap();
            let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
            let gid = Gid(bytes[..16].try_into().unwrap());
            let peer = Endpoint { gid, qpn: Qpn::new(word(16)), psn: Psn::new(word(20)) };
            self.nic().connect(qp, &peer, &Connect::default()).unwrap();
            // Ready, as an RTU tells; then the end of the stream, as a DREQ and a DREP do.
            stream.write_all(&[1]).unwrap();
            stream.read_exact(&mut [0]).unwrap();
            if is_server {
                assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            } else {
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                assert_eq!(stream.read(&mut [0]).unwrap(), 0);
            }
        });
    }
}

/// Connections per second of `clients` threads, each with a thread at the other side.
fn measure(clients: usize, time: Duration, connect: impl Fn() + Sync) -> f64 {
    let (count, begin) = (AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                while begin.elapsed() < time {
                    connect();
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    #[expect(clippy::cast_precision_loss, reason = "it is printed")]
    let count = count.load(Ordering::Relaxed) as f64;
    count / begin.elapsed().as_secs_f64()
}

fn compare(server: &Node, client: &Node, time: Duration) {
    let listener = server.manager.listen("127.0.0.1:7174".parse().unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp_at = tcp.local_addr().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| while server.accept(&listener) || !is_over.load(Ordering::Relaxed) {});
            scope.spawn(|| {
                loop {
                    let (stream, _) = tcp.accept().unwrap();
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    stream.set_nodelay(true).unwrap();
                    server.exchange(stream, true);
                }
            });
        }
        for clients in [1, 16] {
            let by_cm = measure(clients, time, || client.connect(at));
            let by_tcp = measure(clients, time, || {
                let stream = TcpStream::connect(tcp_at).unwrap();
                stream.set_nodelay(true).unwrap();
                client.exchange(stream, false);
            });
            println!(
                "{clients:2} at a time: {by_cm:7.0} connections/s by the connection manager, {by_tcp:7.0} by exchange over \
                 TCP: {:.2} times as many",
                by_cm / by_tcp
            );
        }
        is_over.store(true, Ordering::Relaxed);
        (0..16).for_each(|_| drop(TcpStream::connect(tcp_at)));
    });
}

fn soak(server: &Node, client: &Node, count: u64) -> ExitCode {
    let listener = server.manager.listen("127.0.0.1:7174".parse().unwrap()).unwrap();
    let at = listener.local_addr().unwrap();
    let mut halfway = None;
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..count).for_each(|_| while !server.accept(&listener) {}));
        for done in 1..=count {
            client.connect(at);
            if done % count.div_ceil(10) == 0 {
                let usage = Usage::now();
                if done >= count / 2 {
                    halfway.get_or_insert(usage);
                }
                println!("{done:7} connections: {usage:?}");
            }
        }
    });
    // What timewait remembers is gone after half a second.
    std::thread::sleep(Duration::from_secs(1));
    let (halfway, last) = (halfway.unwrap(), Usage::now());
    println!("{count} connections in {:.1?}: {last:?}", begin.elapsed());
    let is_constant =
        last.rss_kib <= halfway.rss_kib + GROWTH_KIB && last.descriptors <= halfway.descriptors;
    if is_constant { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.get(at + 1)?.parse::<u64>().ok()
    };
    let (server, client) = (Node::start([127, 0, 0, 1].into()), Node::start([127, 0, 0, 2].into()));
    match number("--soak") {
        Some(count) => soak(&server, &client, count),
        None => {
            compare(&server, &client, Duration::from_secs(number("--seconds").unwrap_or(3)));
            ExitCode::SUCCESS
        }
    }
}
