//! Messages of offers: a client asks a server for a queue pair and memory, and sends packets to
//! them that it builds itself, as `roce replay` does.
//!
//! 1. The client's request is a [`Wish`]; the server answers with a [`Grant`].
//! 2. The client sends [`Command`]s, and the server a [`Report`] for those that ask for one.
//! 3. The client sends [`Command::Bye`], and everything that was made for it is destroyed.

use std::net::IpAddr;

use anyhow::ensure;
use roce::control::Channel;
use roce::control::limits::LINE_WAIT;
use roce::verbs::{Access, Endpoint, Mtu};
use roce::wire::{QKey, RKey};
use serde::{Deserialize, Serialize};

use super::messages::address_of;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RegionWish {
    pub(crate) bytes: u64,
    pub(crate) write: bool,
    pub(crate) read: bool,
    pub(crate) atomic: bool,
}

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grant {
    /// MTU of the queue pair, at most that of the wish.
    pub(crate) mtu: Mtu,
    pub(crate) qp: Endpoint,
    pub(crate) qkey: QKey,
    /// Address and key of each region.
    pub(crate) regions: Vec<(u64, RKey)>,
}

/// Memory of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Area {
    Region(usize),
    Receives,
}

/// Command of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Command {
    /// Writes to an area.
    Fill {
        area: Area,
        offset: u64,
        #[serde(with = "hex")]
        bytes: Vec<u8>,
    },
    /// Asks for the SHA-256 of bytes.
    Digest { area: Area, offset: u64, length: u64 },
    /// Asks for the number of receives that completed.
    Received,
    /// Asks for the state of the queue pair.
    State,
    /// Ends the offer.
    Bye,
}

/// Answer of a server to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Report {
    /// SHA-256, in hexadecimal digits.
    Digest(String),
    /// Number of receives that completed.
    Received(u64),
    /// State of the queue pair.
    State(String),
}

impl RegionWish {
    /// Returns the access rights. Remote WRITEs and ATOMICs require local write access.
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
    /// Returns the maximum number of bytes that the objects take on the server.
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

    /// Checks what a client asks for, before anything is made.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!(self.receives <= RECEIVES_MAX, "more than {RECEIVES_MAX} receives");
        ensure!(
            self.receive_bytes <= RECEIVE_BYTES_MAX,
            "receives of more than {RECEIVE_BYTES_MAX} bytes"
        );
        ensure!(self.regions.len() <= REGIONS_MAX, "more than {REGIONS_MAX} regions");
        ensure!(self.regions.iter().all(|region| region.bytes > 0), "a region of no bytes");
        Ok(())
    }
}

impl Grant {
    /// Receives what a server gives for a wish.
    pub(crate) fn receive(control: &mut Channel, wish: &Wish) -> anyhow::Result<Self> {
        let grant: Self = control.receive(LINE_WAIT, "a grant")?;
        let (count, wanted) = (grant.regions.len(), wish.regions.len());
        ensure!(count == wanted, "the server gives {count} regions instead of {wanted}");
        Ok(grant)
    }
}

/// Bytes as hexadecimal digits in messages.
mod hex {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::FILL_MAX;

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        to.serialize_str(&digits)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let digits = String::deserialize(from)?;
        let sound = digits.len().is_multiple_of(2) && digits.len() <= 2 * FILL_MAX;
        let pairs = digits.as_bytes().chunks(2);
        let byte = |pair: &[u8]| {
            let text = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(text, 16).ok().filter(|_| !text.starts_with('+'))
        };
        let bytes = pairs.map(byte).collect::<Option<_>>().filter(|_| sound);
        let limit = format_args!("at most {FILL_MAX} bytes, two hexadecimal digits each");
        bytes.ok_or_else(|| D::Error::custom(limit))
    }
}

#[cfg(test)]
mod tests {
    use roce::wire::{Gid, Psn, Qpn};

    use super::*;

    fn parse(text: &str) -> serde_json::Result<Command> {
        serde_json::from_str(text)
    }

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
            let text = serde_json::to_string(&command).unwrap();
            assert_eq!(parse(&text).unwrap(), command, "{text}");
        }
    }

    #[test]
    fn unsound_commands_are_refused() {
        let fill = |digits: &str| {
            format!(r#"{{"fill":{{"area":{{"region":0}},"offset":0,"bytes":"{digits}"}}}}"#)
        };
        assert!(parse(&fill("00ff")).is_ok() && parse(&fill(&"00".repeat(FILL_MAX))).is_ok());
        for digits in ["0", "+1", "0x", "äö", &"00".repeat(FILL_MAX + 1)] {
            assert!(parse(&fill(digits)).is_err(), "{digits}");
        }
        for text in ["", "\"stat\"", r#"{"digest":{"area":"receives","offset":-1,"length":1}}"#] {
            assert!(parse(text).is_err(), "{text}");
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
