//! Offers: a client asks a server for a queue pair and memory, to send packets to that no library
//! made.
//!
//! Lines as in the protocol of `roce bench`:
//!
//! 1. The client sends a [`Wish`], and `end`; the server answers with a [`Grant`], and `end`.
//! 2. The client sends [`Command`]s, one line each: `fill REGION OFFSET HEX` writes to a region,
//!    `digest REGION OFFSET LENGTH` is answered with the SHA-256 of these bytes, `received` with
//!    how many receives completed, `state` with the state of the queue pair. `REGION` is a number,
//!    or `receives` for the memory of all receives.
//! 3. The client sends `bye`, and everything that was made for it is destroyed.

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Context, bail, ensure};
use roce::verbs::{Access, Endpoint, Mtu};
use roce::wire::{QKey, RKey};

use super::lines::Control;
use super::messages::{address_of, endpoint, find, hex, number, read_mtu};
use super::plan::Connection;

/// Maximum number of memory regions.
pub(crate) const REGIONS_MAX: usize = 16;

/// Maximum number of receives.
pub(crate) const RECEIVES_MAX: u32 = 4096;

/// Maximum length of a receive.
pub(crate) const RECEIVE_BYTES_MAX: u32 = 8 << 20;

/// Maximum number of bytes that one `fill` writes.
pub(crate) const FILL_MAX: usize = 192;

/// Upper bounds for what a NIC keeps for a queue pair, a receive with its completion, and a region.
const QP_BYTES: u64 = 8192;
const RECEIVE_OVERHEAD: u64 = 192;
const REGION_OVERHEAD: u64 = 4096;

/// Memory that a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionWish {
    pub(crate) bytes: u64,
    pub(crate) write: bool,
    pub(crate) read: bool,
    pub(crate) atomic: bool,
}

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) connection: Connection,
    pub(crate) mtu: Mtu,
    /// The client's queue pair, and the PSN of its first request.
    pub(crate) peer: Endpoint,
    pub(crate) receives: u32,
    pub(crate) receive_bytes: u32,
    pub(crate) regions: Vec<RegionWish>,
}

/// Objects that a server grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Not more than what was asked for.
    pub(crate) mtu: Mtu,
    pub(crate) qp: Endpoint,
    pub(crate) qkey: QKey,
    /// Address and key of each region.
    pub(crate) regions: Vec<(u64, RKey)>,
}

/// Memory of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    Region(usize),
    Receives,
}

/// Command of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Fill { area: Area, offset: u64, bytes: Vec<u8> },
    Digest { area: Area, offset: u64, length: u64 },
    Received,
    State,
    Bye,
}

impl RegionWish {
    /// The rights of it. Memory that a peer may change, its owner may change too.
    pub(crate) fn access(&self) -> Access {
        let mut access = Access::empty();
        access.set(Access::LOCAL_WRITE, self.write || self.atomic);
        access.set(Access::REMOTE_WRITE, self.write);
        access.set(Access::REMOTE_READ, self.read);
        access.set(Access::REMOTE_ATOMIC, self.atomic);
        access
    }
}

impl Wish {
    /// Maximum number of bytes that it takes of a server.
    pub(crate) fn memory(&self) -> u64 {
        let regions = self.regions.iter().map(|it| it.bytes.saturating_add(REGION_OVERHEAD));
        let receive = u64::from(self.receive_bytes) + RECEIVE_OVERHEAD;
        let receives = u64::from(self.receives) * receive;
        regions.fold(QP_BYTES.saturating_add(receives), u64::saturating_add)
    }

    /// Returns the address that answers go to.
    pub(crate) fn address(&self) -> IpAddr {
        address_of(self.peer.gid)
    }

    /// Returns the lines of the message.
    pub(crate) fn to_lines(&self) -> String {
        let mut text = String::new();
        let Endpoint { gid, qpn, psn } = self.peer;
        let _ = writeln!(text, "offer {}", self.connection.name());
        let _ = writeln!(text, "mtu {}", self.mtu);
        let _ = writeln!(text, "peer {gid} {:#x} {:#x}", qpn.get(), psn.get());
        let _ = writeln!(text, "receives {} {}", self.receives, self.receive_bytes);
        for region in &self.regions {
            let RegionWish { bytes, write, read, atomic } = *region;
            let _ = writeln!(text, "region {bytes} {}", rights(write, read, atomic));
        }
        text.push_str("end\n");
        text
    }

    /// Receives what a client asks for. Everything is bounded before anything is made.
    pub(crate) fn read(control: &mut Control) -> anyhow::Result<Self> {
        let connection = find(&Connection::ALL, &control.expect("offer")?, Connection::name)?;
        let mtu = read_mtu(control)?;
        let words = control.expect("peer")?;
        let [gid, qpn, psn] = words.split(' ').collect::<Vec<_>>()[..] else {
            bail!("'peer {words}' is no queue pair");
        };
        let peer = endpoint(gid, qpn, psn)?;
        let words = control.expect("receives")?;
        let (receives, bytes) = words.split_once(' ').context("'receives' without a length")?;
        let (receives, receive_bytes) = (number(receives)?, number(bytes)?);
        ensure!(receives <= RECEIVES_MAX, "more than {RECEIVES_MAX} receives");
        ensure!(
            receive_bytes <= RECEIVE_BYTES_MAX,
            "receives of more than {RECEIVE_BYTES_MAX} bytes"
        );
        let mut regions = Vec::new();
        loop {
            let line = control.line()?;
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["end"] => break,
                ["region", bytes, rights] => regions.push(region(bytes, rights)?),
                _ => bail!("'{line}' instead of a region"),
            }
            ensure!(regions.len() <= REGIONS_MAX, "more than {REGIONS_MAX} regions");
        }
        Ok(Self { connection, mtu, peer, receives, receive_bytes, regions })
    }
}

fn rights(write: bool, read: bool, atomic: bool) -> String {
    let all = [(write, 'w'), (read, 'r'), (atomic, 'a')];
    let text: String = all.iter().filter(|(has, _)| *has).map(|(_, letter)| *letter).collect();
    if text.is_empty() { "-".to_owned() } else { text }
}

fn region(bytes: &str, rights: &str) -> anyhow::Result<RegionWish> {
    let bytes = number(bytes)?;
    ensure!(bytes > 0, "a region of no bytes");
    let known = rights == "-" || rights.chars().all(|letter| "wra".contains(letter));
    ensure!(known && rights.len() <= 3, "'{rights}' are no rights");
    let has = |letter| rights.contains(letter);
    Ok(RegionWish { bytes, write: has('w'), read: has('r'), atomic: has('a') })
}

impl Grant {
    /// Returns the lines of the message.
    pub(crate) fn to_lines(&self) -> String {
        let mut text = format!("mtu {}\n", self.mtu);
        let Endpoint { gid, qpn, psn } = self.qp;
        let _ = writeln!(text, "qp {gid} {:#x} {:#x}", qpn.get(), psn.get());
        let _ = writeln!(text, "qkey {:#x}", self.qkey.get());
        for (address, rkey) in &self.regions {
            let _ = writeln!(text, "region {address:#x} {:#x}", rkey.get());
        }
        text.push_str("end\n");
        text
    }

    /// Receives what a server gives for a wish.
    pub(crate) fn read(control: &mut Control, wish: &Wish) -> anyhow::Result<Self> {
        let mtu = read_mtu(control)?;
        let words = control.expect("qp")?;
        let [gid, qpn, psn] = words.split(' ').collect::<Vec<_>>()[..] else {
            bail!("'qp {words}' is no queue pair");
        };
        let qp = endpoint(gid, qpn, psn)?;
        let qkey = QKey::new(u32::try_from(hex(&control.expect("qkey")?)?)?);
        let mut regions = Vec::new();
        loop {
            let line = control.line()?;
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["end"] => break,
                ["region", address, rkey] => {
                    regions.push((hex(address)?, RKey::new(u32::try_from(hex(rkey)?)?)));
                }
                _ => bail!("'{line}' instead of a region"),
            }
            ensure!(regions.len() <= REGIONS_MAX, "more than {REGIONS_MAX} regions");
        }
        let (count, wanted) = (regions.len(), wish.regions.len());
        ensure!(count == wanted, "the server gives {count} regions instead of {wanted}");
        Ok(Self { mtu, qp, qkey, regions })
    }
}

impl Area {
    fn parse(word: &str) -> anyhow::Result<Self> {
        if word == "receives" { Ok(Self::Receives) } else { Ok(Self::Region(number(word)?)) }
    }

    fn name(self) -> String {
        match self {
            Self::Region(index) => index.to_string(),
            Self::Receives => "receives".to_owned(),
        }
    }
}

impl Command {
    /// Returns the line of the message.
    pub(crate) fn to_line(&self) -> String {
        match self {
            Self::Fill { area, offset, bytes } => {
                let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("fill {} {offset} {digits}\n", area.name())
            }
            Self::Digest { area, offset, length } => {
                format!("digest {} {offset} {length}\n", area.name())
            }
            Self::Received => "received\n".to_owned(),
            Self::State => "state\n".to_owned(),
            Self::Bye => "bye\n".to_owned(),
        }
    }

    /// Parses a line of a client.
    pub(crate) fn parse(line: &str) -> anyhow::Result<Self> {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["fill", area, offset, digits] => {
                let bytes = bytes_of(digits)?;
                Ok(Self::Fill { area: Area::parse(area)?, offset: number(offset)?, bytes })
            }
            ["digest", area, offset, length] => {
                let (offset, length) = (number(offset)?, number(length)?);
                Ok(Self::Digest { area: Area::parse(area)?, offset, length })
            }
            ["received"] => Ok(Self::Received),
            ["state"] => Ok(Self::State),
            ["bye"] => Ok(Self::Bye),
            _ => bail!("'{line}' is no command of an offer"),
        }
    }
}

fn bytes_of(digits: &str) -> anyhow::Result<Vec<u8>> {
    let sound = digits.len().is_multiple_of(2) && digits.len() <= 2 * FILL_MAX && digits.is_ascii();
    ensure!(sound, "'fill' takes up to {FILL_MAX} bytes, two digits each");
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let text = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'))
    };
    pairs.map(byte).collect::<Option<_>>().context("'fill' with what are no digits")
}

#[cfg(test)]
mod tests {
    use roce::wire::{Gid, Psn, Qpn};

    use super::*;

    #[test]
    fn commands_are_read_as_they_are_written() {
        let bytes = vec![0, 0xff, 0x10];
        for command in [
            Command::Fill { area: Area::Region(3), offset: 7, bytes },
            Command::Fill { area: Area::Receives, offset: 0, bytes: Vec::new() },
            Command::Digest { area: Area::Receives, offset: 1, length: 1 << 40 },
            Command::Received,
            Command::State,
            Command::Bye,
        ] {
            let line = command.to_line();
            assert_eq!(Command::parse(line.trim_end_matches('\n')).unwrap(), command);
        }
    }

    #[test]
    fn unsound_commands_are_refused() {
        let long = format!("fill 0 0 {}", "00".repeat(FILL_MAX + 1));
        for line in
            ["", "fill 0 0 0", "fill 0 0 +1", "fill x 0 00", "digest 0 -1 1", "state now", &long]
        {
            assert!(Command::parse(line).is_err(), "{line}");
        }
        for (bytes, rights) in
            [("0", "w"), ("1", "x"), ("1", "wwww"), ("18446744073709551616", "w")]
        {
            assert!(region(bytes, rights).is_err(), "{bytes} {rights}");
        }
    }

    #[test]
    fn memory_of_a_wish_cannot_overflow() {
        let peer = Endpoint { gid: Gid::default(), qpn: Qpn::new(1), psn: Psn::new(0) };
        let region = RegionWish { bytes: u64::MAX, write: true, read: true, atomic: true };
        let wish = Wish {
            connection: Connection::Rc,
            mtu: Mtu::M1024,
            peer,
            receives: RECEIVES_MAX,
            receive_bytes: RECEIVE_BYTES_MAX,
            regions: vec![region; REGIONS_MAX],
        };
        assert_eq!(wish.memory(), u64::MAX);
    }
}
