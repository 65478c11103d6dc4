//! Loopback addresses of tests: each run has its own, so that tests that run beside each other do
//! not meet.
#![allow(dead_code, reason = "each test is a crate of its own and uses a part of it")]

use std::net::Ipv4Addr;

/// Variable with the number of a run, for a process that has to use the addresses of its parent.
pub(crate) const RUN: &str = "ROCE_TEST_RUN";

/// Returns the number of this run.
pub(crate) fn run() -> u8 {
    let given = std::env::var(RUN).ok().and_then(|run| run.parse().ok());
    given.unwrap_or_else(|| u8::try_from(std::process::id() % 250).unwrap_or(0))
}

/// Returns a loopback address of this run. Tests of one process differ by `net`.
pub(crate) fn loopback(net: u8, host: u8) -> Ipv4Addr {
    // 127.0 and 127.1 are for programs that choose an address themselves.
    Ipv4Addr::new(127, 2 + run(), net, host)
}

/// Returns the name of a soft NIC on a loopback address of this run.
pub(crate) fn device(net: u8, host: u8) -> String {
    format!("udp:{}", loopback(net, host))
}
