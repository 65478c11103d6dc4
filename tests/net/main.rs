//! `roce::net` as a program uses it: on a cable, on loopback, over a bad network, with peers that
//! vanish.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod addresses;
mod cable;
#[path = "../common/mod.rs"]
mod common;
mod examples;
mod faults;
mod life;
mod many;
mod remote;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::loopback::loopback;
use roce::link::{fault, udp};
use roce::net::{Config, Connection, Endpoint};
use roce::nic::SoftNic;

/// Longer than anything takes on a loaded machine.
pub const WAIT: Duration = Duration::from_secs(60);

/// A configuration that waits long where a test would fail.
pub fn config() -> Config {
    Config::default().ring(64 << 10).linger(WAIT).connect_timeout(WAIT)
}

/// An endpoint on a soft NIC at a loopback address, over a network with faults.
pub fn endpoint(address: impl Into<IpAddr>, faults: Option<&str>) -> Endpoint {
    let link = udp::open(&udp::Options::new(address.into())).unwrap();
    let link = match faults {
        Some(spec) => fault::inject(link, &spec.parse().unwrap()),
        None => link,
    };
    Endpoint::new(Arc::new(SoftNic::start(link).unwrap())).unwrap().with(config())
}

/// Two connected sides.
pub fn pair(server: &Endpoint, at: SocketAddr, client: &Endpoint) -> (Connection, Connection) {
    let listener = server.listen(at).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap());
        let connection = client.connect(at).unwrap();
        (connection, accepting.join().unwrap())
    })
}

/// A message that follows from its number.
pub fn message(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((number * 31 + at * 7) % 251).unwrap()).collect()
}

/// Lengths around every boundary, small, large and very large.
pub fn lengths(connection_ring: usize) -> Vec<usize> {
    let eager = connection_ring / 4;
    vec![
        0,
        1,
        7,
        8,
        64,
        239,
        240,
        241,
        4096,
        eager - 9,
        eager - 8,
        eager - 7,
        eager,
        3 * connection_ring,
    ]
}
