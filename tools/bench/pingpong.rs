//! The rivals of a ping-pong: 64 bytes there and back over a bare socket, both sides spinning, or
//! both asleep until the other's message comes (`tcp-asleep`); and of bulk, trains of UDP packets
//! (`gso`). Beside them two soft NICs, which are no rivals, whose programs poll (`nic`) or sleep
//! (`nic-asleep`).
//!
//! ```text
//! cargo run --release --example bench-pingpong -- KIND ADDRESS [SECONDS]         # the other side: serve-KIND ADDRESS
//! cargo run --release --example bench-pingpong -- packet INTERFACE [SECONDS]     # the other side: serve-packet INTERFACE
//! ```
//!
//! Prints the median and the 99th percentile of round trips in microseconds; of `gso`, Gb/s of
//! payload. `tcp` has TCP_NODELAY; `udp` is an unconnected socket, as one that serves many peers
//! has it; `packet` is a packet socket with a receive ring that is looked at without a system call,
//! and sends past the queueing discipline, frames of a kind of its own that nothing else in the
//! kernel looks at: the least that whole frames can take.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark has a clock and a terminal, and fails when it cannot go on"
)]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

#[path = "pingpong/asleep.rs"]
mod asleep;
#[path = "pingpong/gso.rs"]
mod gso;
#[path = "pingpong/packet.rs"]
mod packet;

use asleep::Nic;
use packet::PacketSocket;

const PORT: u16 = 4799;

/// Length of a message over every transport.
pub(crate) const SIZE: usize = 64;

/// A carrier of messages.
trait Wire {
    fn send(&mut self, message: &[u8; SIZE]);

    /// Whether a message has come.
    fn receive(&mut self) -> bool;
}

impl Wire for TcpStream {
    fn send(&mut self, message: &[u8; SIZE]) {
        self.write_all(message).unwrap();
    }

    fn receive(&mut self) -> bool {
        let mut room = [0; SIZE];
        match self.read(&mut room) {
            Ok(SIZE) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Ok(0) => std::process::exit(0),
            other => panic!("{other:?}"),
        }
    }
}

/// A UDP socket and to whom it speaks.
struct Udp(UdpSocket, Option<std::net::SocketAddr>);

impl Wire for Udp {
    fn send(&mut self, message: &[u8; SIZE]) {
        self.0.send_to(message, self.1.unwrap()).unwrap();
    }

    fn receive(&mut self) -> bool {
        let mut room = [0; SIZE];
        match self.0.recv_from(&mut room) {
            Ok((_, from)) => {
                self.1 = Some(from);
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => panic!("{error}"),
        }
    }
}

impl Wire for PacketSocket {
    fn send(&mut self, message: &[u8; SIZE]) {
        self.send_frame(message);
    }

    fn receive(&mut self) -> bool {
        self.receive_frame()
    }
}

fn open(kind: &str, at: &str) -> Box<dyn Wire> {
    match kind {
        "serve-tcp" => Box::new(spinning(accept(at))),
        "tcp" => Box::new(spinning(TcpStream::connect((at, PORT)).unwrap())),
        "serve-tcp-asleep" => Box::new(asleep(accept(at))),
        "tcp-asleep" => Box::new(asleep(TcpStream::connect((at, PORT)).unwrap())),
        "serve-udp" => {
            let socket = UdpSocket::bind((at, PORT)).unwrap();
            socket.set_nonblocking(true).unwrap();
            Box::new(Udp(socket, None))
        }
        "udp" => {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            let to = format!("{at}:{PORT}").parse().unwrap();
            Box::new(Udp(socket, Some(to)))
        }
        "serve-nic-asleep" => Box::new(Nic::serve(at, false)),
        "nic-asleep" => Box::new(Nic::reach(at, false)),
        "serve-nic" => Box::new(Nic::serve(at, true)),
        "nic" => Box::new(Nic::reach(at, true)),
        "serve-packet" | "packet" => Box::new(PacketSocket::open(at).unwrap()),
        other => panic!("{other} is none of tcp, tcp-asleep, udp, nic, nic-asleep, packet, gso"),
    }
}

fn accept(at: &str) -> TcpStream {
    TcpListener::bind((at, PORT)).unwrap().accept().unwrap().0
}

/// A stream whose reads block.
fn asleep(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).unwrap();
    stream
}

fn spinning(stream: TcpStream) -> TcpStream {
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, at, rest @ ..] = &arguments[..] else { panic!("see tools/bench/pingpong.rs") };
    let seconds = rest.first().map_or(3, |seconds| seconds.parse().unwrap());
    match kind.as_str() {
        "serve-gso" => gso::serve(at),
        "gso" => return gso::send(at, Duration::from_secs(seconds)),
        _ => {}
    }
    let mut wire = open(kind, at);
    let message = [7; SIZE];
    if kind.starts_with("serve-") {
        loop {
            if wire.receive() {
                wire.send(&message);
            }
        }
    }
    let (start, mut times) = (Instant::now(), Vec::new());
    let mut before = start;
    while before - start < Duration::from_secs(seconds) {
        wire.send(&message);
        while !wire.receive() {}
        let now = Instant::now();
        times.push(now - before);
        before = now;
    }
    times.sort_unstable();
    let us = |percent: usize| times[times.len() * percent / 100].as_nanos() as f64 / 1000.0;
    println!("{:.2} {:.2}", us(50), us(99));
}
