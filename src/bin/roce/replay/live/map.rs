//! `--map`: replacement of the numbers of a capture.

use std::fmt::Display;
use std::net::IpAddr;
use std::str::FromStr;

use anyhow::{Result, bail};
use roce::link::interface::gid;
use roce::replay::live::{MemoryMap, Script, Target, VlanMap};
use roce::wire::{Gid, MacAddr, Psn, QKey, Qpn, RKey, XrcSrqn};

/// One rule: every OLD, or all if none is named, becomes NEW.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MapRule {
    Ip(Option<IpAddr>, IpAddr),
    Mac(Option<MacAddr>, MacAddr),
    Vlan(Option<u16>),
    Port(u16),
    Qpn(Option<Qpn>, Qpn),
    SourceQpn(Option<Qpn>, Qpn),
    Psn(Option<Psn>, Psn),
    QKey(QKey),
    RKey(Option<RKey>, RKey),
    Va(u64, u64),
    Srq(XrcSrqn),
}

impl FromStr for MapRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str =
            "expected WHAT:OLD=NEW or WHAT=NEW, for example rkey:0x1234=0x5678 or psn=100";
        let end = text.find([':', '=']).ok_or(FORM)?;
        let (what, rest) = (text.get(..end).unwrap_or_default(), text.get(end + 1..).unwrap_or(""));
        let (old, new) = if text.as_bytes().get(end) == Some(&b':') {
            let (old, new) = rest.split_once('=').ok_or(FORM)?;
            (Some(old), new)
        } else {
            (None, rest)
        };
        let both = |bits: u32| -> Result<(Option<u64>, u64), String> {
            Ok((old.map(|old| number(old, bits)).transpose()?, number(new, bits)?))
        };
        let narrow = |(old, new): (Option<u64>, u64)| {
            let cut = |it: u64| u32::try_from(it).unwrap_or(u32::MAX);
            (old.map(cut), cut(new))
        };
        let only_new = |rule: Self| match old {
            None => Ok(rule),
            Some(_) => Err(format!("{what} is mapped as a whole: {what}=NEW")),
        };
        match what {
            "ip" => Ok(Self::Ip(old.map(word).transpose()?, word(new)?)),
            "mac" => Ok(Self::Mac(old.map(mac).transpose()?, mac(new)?)),
            "vlan" if new == "none" => only_new(Self::Vlan(None)),
            "vlan" => only_new(Self::Vlan(u16::try_from(number(new, 12)?).ok())),
            "port" => only_new(Self::Port(u16::try_from(number(new, 16)?).unwrap_or(0))),
            "qpn" => both(24).map(narrow).map(|(o, n)| Self::Qpn(o.map(Qpn::new), Qpn::new(n))),
            "srcqp" => {
                both(24).map(narrow).map(|(o, n)| Self::SourceQpn(o.map(Qpn::new), Qpn::new(n)))
            }
            "psn" => both(24).map(narrow).map(|(o, n)| Self::Psn(o.map(Psn::new), Psn::new(n))),
            "rkey" => both(32).map(narrow).map(|(o, n)| Self::RKey(o.map(RKey::new), RKey::new(n))),
            "qkey" => only_new(Self::QKey(QKey::new(narrow((None, number(new, 32)?)).1))),
            "srq" => only_new(Self::Srq(XrcSrqn::new(narrow((None, number(new, 24)?)).1))),
            "va" => {
                let (old, new) = both(64)?;
                Ok(Self::Va(old.unwrap_or(0), new))
            }
            _ => Err(format!(
                "there is no '{what}' to map: ip, mac, vlan, port, qpn, srcqp, psn, qkey, rkey, va, srq"
            )),
        }
    }
}

/// A decimal or hexadecimal number of at most `bits` bits.
fn number(text: &str, bits: u32) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let fits = |it: &u64| bits == 64 || *it < 1 << bits;
    parsed.ok().filter(fits).ok_or_else(|| format!("'{text}' is not a number of {bits} bits"))
}

fn word<T: FromStr<Err: Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| format!("'{text}': {error}"))
}

fn mac(text: &str) -> Result<MacAddr, String> {
    let mut bytes = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| (1..=2).contains(&part.len()));
        let value = part.and_then(|part| u8::from_str_radix(part, 16).ok());
        *byte = value.ok_or_else(|| format!("'{text}' is not a hardware address"))?;
    }
    match parts.next() {
        None => Ok(MacAddr(bytes)),
        Some(_) => Err(format!("'{text}' is not a hardware address")),
    }
}

/// Returns the target of a script by rules alone. `scripts` is how many are played: a rule for all
/// of something that only one can have is refused if there are several.
pub(super) fn target(script: &Script, scripts: usize, rules: &[MapRule]) -> Result<Target> {
    let mut target = Target::default();
    let (from, to) = (script.requester, script.responder);
    let macs = script.requests().next().and_then(|it| it.envelope.macs).unwrap_or_default();
    let [old_destination, old_source] = macs;
    let matches_gid = |old: Option<IpAddr>, gid_of: Gid| old.is_some_and(|old| gid(old) == gid_of);
    let mut keys: Vec<(Option<RKey>, RKey)> = Vec::new();
    for rule in rules {
        match *rule {
            MapRule::Ip(None, new) => target.destination = Some(gid(new)),
            MapRule::Ip(old, new) => {
                if matches_gid(old, from.address) {
                    target.source = Some(gid(new));
                }
                if matches_gid(old, to.address) {
                    target.destination = Some(gid(new));
                }
            }
            MapRule::Mac(None, new) => target.destination_mac = Some(new),
            MapRule::Mac(Some(old), new) => {
                if old == old_source {
                    target.source_mac = Some(new);
                }
                if old == old_destination {
                    target.destination_mac = Some(new);
                }
            }
            MapRule::Vlan(None) => target.vlan = VlanMap::Strip,
            MapRule::Vlan(Some(vid)) => target.vlan = VlanMap::Set(vid),
            MapRule::Port(port) => target.source_port = Some(port),
            MapRule::Qpn(old, new) if old.is_none_or(|old| Some(old) == to.qpn) => {
                if old.is_none() && scripts > 1 {
                    bail!(
                        "--map qpn={new}: {scripts} connections cannot have one queue pair: name OLD, or --flow"
                    );
                }
                target.qpn = Some(new);
            }
            MapRule::SourceQpn(old, new) if old.is_none_or(|old| Some(old) == from.qpn) => {
                target.source_qpn = Some(new);
            }
            MapRule::Psn(old, new) if old.is_none_or(|old| old == script.first_psn) => {
                target.first_psn = Some(new);
            }
            MapRule::Qpn(..) | MapRule::SourceQpn(..) | MapRule::Psn(..) => {}
            MapRule::QKey(qkey) => target.qkey = Some(qkey),
            MapRule::Srq(srq) => target.srq = Some(srq),
            MapRule::RKey(old, new) => keys.push((old, new)),
            MapRule::Va(old_start, new_start) => target.memory.push(MemoryMap {
                old_rkey: None,
                old_start,
                len: None,
                new_rkey: None,
                new_start,
            }),
        }
    }
    target.memory = with_keys(target.memory, &keys);
    Ok(target)
}

/// Puts rules for keys and rules for addresses together: each key has all addresses.
fn with_keys(addresses: Vec<MemoryMap>, keys: &[(Option<RKey>, RKey)]) -> Vec<MemoryMap> {
    let whole = MemoryMap { old_rkey: None, old_start: 0, len: None, new_rkey: None, new_start: 0 };
    let starts: Vec<MemoryMap> = std::iter::once(whole).chain(addresses.iter().copied()).collect();
    let keyed = keys.iter().flat_map(|(old_rkey, new)| {
        let (old_rkey, new_rkey) = (*old_rkey, Some(*new));
        starts.iter().map(move |map| MemoryMap { old_rkey, new_rkey, ..*map })
    });
    addresses.iter().copied().chain(keyed).collect()
}
