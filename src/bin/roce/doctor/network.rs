//! Interfaces, the port of RoCE, and socket buffers.

use std::net::{IpAddr, Ipv4Addr};
use std::{fs, io};

use roce::link::interface::{Interface, interfaces};
use roce::link::{OpenError, Spec};
use roce::wire::ROCE_PORT;

use super::Finding;

/// Buffers below this lose packets in bursts: it is what Linux has by default.
const BUFFER_DEFAULT: u64 = 212_992;

/// Buffers below this hold less than a train of segments: most packets are lost.
const BUFFER_MIN: u64 = 65_536;

/// Buffer that links ask for.
const BUFFER_WANTED: u64 = 4 << 20;

pub(super) fn check() -> Vec<Finding> {
    let all = match interfaces() {
        Ok(all) => all,
        Err(error) => {
            let cure = "allow this process netlink sockets and /sys/class/net";
            return vec![Finding::failure(
                "interfaces",
                format!("cannot list them: {error}"),
                cure,
            )];
        }
    };
    let mut findings: Vec<Finding> = all.iter().filter_map(mtu).collect();
    findings.push(devices(&all));
    findings.push(sharing(roce::link::can_share_addresses()));
    findings.push(buffers(fs::read_to_string("/proc/sys/net/core/rmem_max").ok().as_deref()));
    findings
}

/// The MTU of an interface, against those of RoCE. Loopback that is down is told with the devices.
fn mtu(interface: &Interface) -> Option<Finding> {
    let Interface { name, mtu, .. } = interface;
    if !interface.up || interface.addresses.is_empty() {
        return None;
    }
    Some(match interface.verbs_mtu() {
        None => Finding::warning(
            "MTU",
            format!("{name} has an MTU of {mtu}, too small for RoCE: it has no device"),
            format!("ip link set {name} mtu 1500"),
        ),
        Some(payload) if payload.bytes() < 1024 => Finding::warning(
            "MTU",
            format!("{name} has an MTU of {mtu}: packets carry only {} bytes", payload.bytes()),
            format!("ip link set {name} mtu 1500"),
        ),
        Some(payload) => {
            Finding::ok("MTU", format!("{name}: MTU {mtu}, RoCE MTU {}", payload.bytes()))
        }
    })
}

/// Whether a program would have a device that opens.
fn devices(all: &[Interface]) -> Finding {
    let specs = match Spec::of_every_interface() {
        Ok(specs) => specs,
        Err(error) => {
            let cure = "allow this process netlink sockets";
            return Finding::failure("devices", format!("cannot list interfaces: {error}"), cure);
        }
    };
    let loopback = all.iter().find(|interface| interface.loopback);
    let has_loopback = specs.iter().any(Spec::is_any_of_loopback);
    if specs.is_empty() {
        return Finding::failure(
            "devices",
            "no interface is up and has an address, not even loopback: programs find no device",
            "ip link set lo up",
        );
    }
    let tried: Vec<(&Spec, Result<(), OpenError>)> =
        specs.iter().map(|spec| (spec, open(spec))).collect();
    let opened: Vec<String> = tried
        .iter()
        .filter(|(_, result)| result.is_ok())
        .map(|(spec, _)| spec.to_string())
        .collect();
    if let Some((spec, Err(error))) = tried.iter().find(|(_, result)| result.is_err()) {
        return refused(spec, error, &opened);
    }
    if !has_loopback && loopback.is_some() {
        return Finding::warning(
            "devices",
            format!(
                "{} can be used; loopback is down, so programs of this host share no address",
                opened.join(", ")
            ),
            "ip link set lo up",
        );
    }
    Finding::ok(
        "devices",
        format!("{} can be used; UDP port {ROCE_PORT} is free", opened.join(", ")),
    )
}

/// Tries a device. Of loopback, programs take any free address: the one tried here is none of
/// theirs.
fn open(spec: &Spec) -> Result<(), OpenError> {
    if !spec.is_any_of_loopback() {
        return spec.open(None).map(drop);
    }
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let probe = Spec::Udp(IpAddr::V4(Ipv4Addr::new(127, 0x80 | high, middle, low)));
    match probe.open(None) {
        Err(OpenError::NotLocal { .. }) => spec.open(None).map(drop),
        tried => tried.map(drop),
    }
}

/// Tells why a device cannot be used: a failure if none can.
fn refused(spec: &Spec, error: &OpenError, opened: &[String]) -> Finding {
    let (what, cure) = match error {
        OpenError::InUse { address, holder } => (
            format!("UDP port {ROCE_PORT} of {address} is taken by {holder}"),
            format!("{}, or name another address with --device udp:ADDRESS", holder.cure()),
        ),
        OpenError::MtuTooSmall { interface, mtu } => (
            format!("the MTU of {interface}, {mtu}, is too small"),
            format!("ip link set {interface} mtu 1500"),
        ),
        error => {
            let text = format!("{error}");
            let cure = match error {
                OpenError::Forbidden { .. } => "see the finding about system calls",
                _ => "choose other devices with roce run --device",
            };
            (text, cure.to_owned())
        }
    };
    if opened.is_empty() {
        return Finding::failure("devices", format!("{spec} will not open: {what}"), cure);
    }
    let others = opened.join(", ");
    Finding::warning("devices", format!("{spec} will not open: {what}; {others} can be used"), cure)
}

/// Whether programs of this user can be at one address.
fn sharing(can_share: io::Result<()>) -> Finding {
    match can_share {
        Ok(()) => Finding::ok("sharing", "programs of this user share an address"),
        Err(error) => Finding::warning(
            "sharing",
            format!("every program needs an address of its own: {error}"),
            "set XDG_RUNTIME_DIR to a directory of this user that no other can enter (chmod 700)",
        ),
    }
}

/// The limit of socket buffers, as the system's file has it. A network namespace may not have the
/// file: the limit is the host's then.
fn buffers(limit: Option<&str>) -> Finding {
    const CHECK: &str = "buffers";
    let cure =
        format!("sysctl -w net.core.rmem_max={BUFFER_WANTED} net.core.wmem_max={BUFFER_WANTED}");
    let Some(limit) = limit else {
        return Finding::note(
            CHECK,
            "the limit of socket buffers, net.core.rmem_max, is the host's",
        );
    };
    let Ok(limit) = limit.trim().parse::<u64>() else {
        return Finding::note(
            CHECK,
            "the limit of socket buffers, net.core.rmem_max, is unreadable",
        );
    };
    if limit < BUFFER_MIN {
        let text =
            format!("net.core.rmem_max is {limit}: a socket holds less than one train of packets");
        return Finding::warning(CHECK, text, cure);
    }
    if limit < BUFFER_DEFAULT {
        let text =
            format!("net.core.rmem_max is {limit}, below Linux' default: bursts lose packets");
        return Finding::warning(CHECK, text, cure);
    }
    if limit < BUFFER_WANTED {
        let text = format!(
            "net.core.rmem_max is {limit}; {BUFFER_WANTED} would lose fewer packets of large bursts"
        );
        return Finding { cure: Some(cure), ..Finding::note(CHECK, text) };
    }
    Finding::ok(CHECK, format!("net.core.rmem_max is {limit}"))
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn missing_directory_for_sharing_is_a_warning_with_its_cure() {
        assert_eq!(sharing(Ok(())).status, Status::Ok);
        let why = "/tmp/roce-1 is no directory of this user alone";
        let found = sharing(Err(io::Error::other(why)));
        assert_eq!(found.status, Status::Warning);
        assert!(found.finding.ends_with(why) && found.cure.unwrap().contains("XDG_RUNTIME_DIR"));
    }

    #[test]
    fn small_buffers_are_told_with_the_cure() {
        let status = |limit| buffers(limit).status;
        assert_eq!(status(Some("4194304\n")), Status::Ok);
        assert_eq!(status(Some("212992\n")), Status::Note);
        assert_eq!([status(Some("131072\n")), status(Some("4096\n"))], [Status::Warning; 2]);
        assert_eq!([status(None), status(Some("?"))], [Status::Note; 2]);
        assert!(buffers(Some("4096")).cure.unwrap().contains("net.core.rmem_max=4194304"));
    }

    #[test]
    fn interface_without_room_for_roce_has_no_device() {
        let mut lo = interfaces().unwrap().into_iter().find(|it| it.loopback).unwrap();
        (lo.up, lo.addresses) = (true, vec![IpAddr::from([127, 0, 0, 1])]);
        lo.mtu = 200;
        let found = mtu(&lo).unwrap();
        assert_eq!(found.status, Status::Warning);
        assert_eq!(found.cure.unwrap(), "ip link set lo mtu 1500");
        lo.mtu = 800;
        assert!(mtu(&lo).unwrap().finding.contains("only 512 bytes"));
        lo.mtu = 1500;
        assert_eq!(mtu(&lo).unwrap().status, Status::Ok);
        lo.up = false;
        assert!(mtu(&lo).is_none());
    }
}
