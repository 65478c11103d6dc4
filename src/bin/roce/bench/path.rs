//! Whether two NICs can reach each other, as far as their addresses tell: found out before any
//! packet is lost.

use std::net::IpAddr;

use anyhow::{bail, ensure};
use roce::link::interface::interfaces;

use super::control::messages::Reach;

/// Checks that packets from one NIC can reach the other. `remote` is the address of the peer's host
/// on TCP.
pub(crate) fn check(own: &Reach, peer: &Reach, remote: IpAddr) -> anyhow::Result<()> {
    check_addresses(own.address(), peer.address(), is_this_host(remote))?;
    for (raw, udp) in [(own, peer), (peer, own)] {
        ensure!(
            !(raw.link == "raw" && raw.address().is_loopback() && udp.link == "udp"),
            "one NIC is a raw one on loopback, the other one is on UDP: the kernel gives no packet of raw:lo to UDP \
             sockets; use raw:lo on both sides, or udp:127.0.0.1 and udp:127.0.0.2"
        );
    }
    Ok(())
}

/// Checks that a server's queue pairs are at the address of the server, which a TCP connection
/// proves: a server must not have its clients send to a third party.
pub(crate) fn check_responder(gid: IpAddr, server: IpAddr, any_gid: bool) -> anyhow::Result<()> {
    ensure!(
        any_gid || gid == server.to_canonical(),
        "the server's queue pairs are on {gid}, but it answers on TCP at {server}: connect to {gid}, or allow it with \
         --any-gid if you trust the server"
    );
    Ok(())
}

/// Checks the same of addresses alone.
pub(crate) fn check_addresses(own: IpAddr, peer: IpAddr, same_host: bool) -> anyhow::Result<()> {
    if own.is_ipv4() != peer.is_ipv4() {
        bail!(
            "the NIC here has the address {own}, the other one {peer}: one is of IPv4, the other of IPv6; choose \
             addresses of one family (-d, -x, or the server's address)"
        );
    }
    if (own.is_loopback() || peer.is_loopback()) && !same_host {
        bail!(
            "the NIC here has the address {own}, the other one {peer}: a loopback address reaches its own host only; \
             choose another device (-d)"
        );
    }
    Ok(())
}

/// Returns whether an address is one of this host's.
pub(crate) fn is_this_host(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let listed =
        || interfaces().is_ok_and(|all| all.iter().any(|one| one.addresses.contains(&address)));
    address.is_loopback() || listed()
}

#[cfg(test)]
mod tests {
    use roce::verbs::Endpoint;
    use roce::wire::{Psn, Qpn, RKey};

    use super::*;

    fn reach(link: &str, address: &str) -> Reach {
        let gid = roce::link::interface::gid(address.parse().unwrap());
        let qp = Endpoint { gid, qpn: Qpn::new(17), psn: Psn::new(0) };
        Reach {
            qps: vec![qp],
            addr: 0,
            rkey: RKey::new(0),
            link: link.to_owned(),
            selective_repeat: false,
            reorder_span: 0,
        }
    }

    #[test]
    fn responder_at_another_address_is_refused_unless_it_is_allowed() {
        let (a, b): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        check_responder(a, a, false).unwrap();
        check_responder(a, "::ffff:192.0.2.1".parse().unwrap(), false).unwrap();
        check_responder(a, b, true).unwrap();
        let error = check_responder(a, b, false).unwrap_err().to_string();
        assert!(error.contains("are on 192.0.2.1") && error.contains("--any-gid"), "{error}");
        // Addresses of loopback are hosts of their own here.
        let (lo, lo2) = ("127.0.0.1".parse().unwrap(), "127.0.0.2".parse().unwrap());
        check_responder(lo, lo2, false).unwrap_err();
    }

    #[test]
    fn unreachable_peers_are_refused_with_the_reason() {
        let far = "192.0.2.77".parse().unwrap();
        let near = "127.0.0.1".parse().unwrap();
        let refused =
            |own: &Reach, peer: &Reach, remote| check(own, peer, remote).unwrap_err().to_string();
        let (v4, v6) = (reach("udp", "192.0.2.1"), reach("udp", "2001:db8::1"));
        assert!(refused(&v4, &v6, far).contains("one is of IPv4, the other of IPv6"));
        let (lo, lo2) = (reach("udp", "127.0.0.1"), reach("udp", "127.0.0.2"));
        assert!(refused(&lo, &v4, far).contains("reaches its own host only"));
        assert!(refused(&v4, &lo, far).contains("reaches its own host only"));
        let raw = reach("raw", "127.0.0.1");
        assert!(refused(&raw, &lo2, near).contains("use raw:lo on both sides"));
        assert!(refused(&lo2, &raw, near).contains("use raw:lo on both sides"));
        for (own, peer, remote) in [
            (&lo, &lo2, near),
            (&lo, &v4, near),
            (&raw, &raw, near),
            (&v4, &reach("raw", "192.0.2.2"), far),
            (&v6, &reach("verbs", "2001:db8::2"), far),
        ] {
            check(own, peer, remote).unwrap();
        }
    }
}
