//! Whether a NIC is at an address of this host. A kernel answers for every address that it has, and
//! rejects a request for which no program listens; the address of a soft NIC is a process's, and
//! without the process nothing answers.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use roce::link::route::route_to;
use roce::time::Instant;

/// The UDP port of RoCEv2 (4791), as the kernel's tables of sockets write it.
const PORT: &str = "12B7";

/// Time for which an address that a NIC was at is not checked.
const TRUSTED_FOR: Duration = Duration::from_secs(1);

/// The most addresses that are remembered.
const KNOWN_MAX: usize = 64;

/// Addresses of this host that NICs of other processes were at, with the time.
#[derive(Debug, Default)]
pub(super) struct Presence {
    known: BTreeMap<IpAddr, Instant>,
}

impl Presence {
    /// Whether an address is one of this host at which no NIC is.
    pub(super) fn is_absent(&mut self, now: Instant, address: IpAddr) -> bool {
        let is_trusted = |seen: &Instant| now.saturating_since(*seen) < TRUSTED_FOR;
        if self.known.get(&address).is_some_and(is_trusted) {
            return false;
        }
        let is_local =
            route_to(SocketAddr::new(address, 0), None).is_ok_and(|route| route.is_local);
        let is_absent = is_local && !has_socket(address);
        if !is_absent {
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(address, now);
        }
        is_absent
    }
}

/// Whether a socket is bound to the port of RoCEv2 at an address, or at all addresses. What cannot
/// be read has one.
fn has_socket(address: IpAddr) -> bool {
    ["/proc/net/udp", "/proc/net/udp6"].into_iter().any(|table| {
        let found = fs::read_to_string(table).map(|table| is_in(&table, address));
        found.unwrap_or(table == "/proc/net/udp")
    })
}

/// Whether a table of sockets has one at this address.
fn is_in(table: &str, address: IpAddr) -> bool {
    let bound = table.lines().filter_map(|line| {
        let (bound, port) = line.split_whitespace().nth(1)?.split_once(':')?;
        if port == PORT { parse(bound) } else { None }
    });
    bound.into_iter().any(|bound| bound.is_unspecified() || bound.to_canonical() == address)
}

/// An address as these tables write it: words of 32 bits in the order of the processor.
fn parse(text: &str) -> Option<IpAddr> {
    let (words, rest) = text.as_bytes().as_chunks::<8>();
    if !rest.is_empty() {
        return None;
    }
    let word = |word: &[u8; 8]| {
        let text = str::from_utf8(word).ok()?;
        u32::from_str_radix(text, 16).ok().map(u32::to_ne_bytes)
    };
    match words {
        [one] => Some(Ipv4Addr::from(word(one)?).into()),
        [a, b, c, d] => {
            let bytes = [word(a)?, word(b)?, word(c)?, word(d)?].concat();
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: [u8; 4]) -> String {
        format!("{:08X}", u32::from_ne_bytes(bytes))
    }

    #[test]
    fn sockets_are_found_by_address_and_port() {
        let line = |address: &str, port: &str| {
            format!(
                "   sl  local_address rem_address\n 123: {address}:{port} 00000000:0000 07 0:0\n"
            )
        };
        let at = IpAddr::from([127, 0, 0, 9]);
        let own = word([127, 0, 0, 9]);
        assert!(is_in(&line(&own, "12B7"), at));
        assert!(!is_in(&line(&own, "12B8"), at));
        assert!(!is_in(&line(&word([127, 0, 0, 8]), "12B7"), at));
        assert!(is_in(&line(&word([0; 4]), "12B7"), at), "a wildcard");
        let mapped = [word([0; 4]), word([0; 4]), word([0, 0, 255, 255]), own].concat();
        assert!(is_in(&line(&mapped, "12B7"), at));
        let v6 = [word([0xfd, 0, 0, 9]), word([0; 4]), word([0; 4]), word([0, 0, 0, 1])].concat();
        assert!(is_in(&line(&v6, "12B7"), "fd00:9::1".parse().unwrap()));
        assert!(!is_in(&line("12", "12B7"), at) && !is_in("", at));
    }

    #[test]
    fn only_addresses_of_this_host_can_be_absent() {
        let mut presence = Presence::default();
        let now = Instant::ZERO;
        // Of 127.0.0.0/8 an address that no test uses.
        assert!(presence.is_absent(now, [127, 9, 99, 99].into()));
        assert!(!presence.is_absent(now, [192, 0, 2, 77].into()));
    }
}
