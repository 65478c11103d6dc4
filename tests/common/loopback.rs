//! Loopback addresses of tests: each process has its own, so that tests that run beside each other
//! do not meet.

use std::net::Ipv4Addr;

/// Returns a loopback address of this process. Tests of one process differ by `net`.
pub(crate) fn loopback(net: u8, host: u8) -> Ipv4Addr {
    // 127.0 and 127.1 are for programs that choose an address themselves.
    let run = u8::try_from(std::process::id() % 250).unwrap_or(0);
    Ipv4Addr::new(127, 2 + run, net, host)
}
