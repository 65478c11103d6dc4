//! Messages of the connection manager: the bodies of MADs of class 7.
//!
//! The tables follow chapter 12 of the specification, bit by bit. Each message fills the 232 bytes
//! behind the MAD header; what it does not name is reserved.
// Rule: C-01.1.

mod layout;

use core::fmt;

use super::ParseError;
use super::layout::whole_field;
use super::mad::AttributeId;

pub use layout::*;

/// The length of a message: a MAD without its header.
pub const MESSAGE_LEN: usize = 232;

/// A connection as one of its ends calls it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CommId(pub u32);

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// A service as the connection manager knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service at `port` of a port space, as the RDMA connection manager numbers them.
    pub const fn rdma_cm(space: PortSpace, port: u16) -> Self {
        // Rule: C-02.2.
        Self((space.0 as u64) << 16 | port as u64)
    }

    /// The port space and the port, if the RDMA connection manager numbered this service.
    #[expect(clippy::cast_possible_truncation, reason = "the fields are sixteen bits wide")]
    pub const fn to_rdma_cm(self) -> Option<(PortSpace, u16)> {
        let (space, port) = (PortSpace((self.0 >> 16) as u16), self.0 as u16);
        // Its services are those whose upper forty bits are 1, and those of IP over InfiniBand.
        if self.0 >> 24 == 1 || self.0 >> 16 == PortSpace::IPOIB.0 as u64 {
            Some((space, port))
        } else {
            None
        }
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_rdma_cm() {
            Some((space, port)) => write!(f, "{space}:{port}"),
            None => write!(f, "{:#018x}", self.0),
        }
    }
}

/// A port space of the RDMA connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortSpace(pub u16);

impl PortSpace {
    /// Connections.
    pub const TCP: Self = Self(0x0106);
    /// Datagrams.
    pub const UDP: Self = Self(0x0111);
    /// IP over InfiniBand; its services have another prefix than the others'.
    pub const IPOIB: Self = Self(0x0002);
    /// Native InfiniBand addresses.
    pub const IB: Self = Self(0x013f);
}

impl fmt::Display for PortSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TCP => f.write_str("tcp"),
            Self::UDP => f.write_str("udp"),
            Self::IPOIB => f.write_str("ipoib"),
            Self::IB => f.write_str("ib"),
            Self(other) => write!(f, "space {other:#06x}"),
        }
    }
}

whole_field!(CommId(u32), ServiceId(u64));

/// A message of the connection manager.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "each is named by the message it holds")]
pub enum Message<'a> {
    Req(&'a Req),
    Mra(&'a Mra),
    Rej(&'a Rej),
    Rep(&'a Rep),
    Rtu(&'a Rtu),
    Dreq(&'a Dreq),
    Drep(&'a Drep),
    SidrReq(&'a SidrReq),
    SidrRep(&'a SidrRep),
    Lap(&'a Lap),
    Apr(&'a Apr),
}

impl<'a> Message<'a> {
    /// The message in `body`, the bytes behind a MAD header with this attribute, or `None` if the
    /// connection manager has no such attribute.
    pub fn parse(attribute: AttributeId, body: &'a [u8]) -> Result<Option<Self>, ParseError> {
        fn view<H: super::Header>(body: &[u8]) -> Result<&H, ParseError> {
            super::view(body, 0)
        }
        Ok(Some(match attribute {
            AttributeId::CM_REQ => Self::Req(view(body)?),
            AttributeId::CM_MRA => Self::Mra(view(body)?),
            AttributeId::CM_REJ => Self::Rej(view(body)?),
            AttributeId::CM_REP => Self::Rep(view(body)?),
            AttributeId::CM_RTU => Self::Rtu(view(body)?),
            AttributeId::CM_DREQ => Self::Dreq(view(body)?),
            AttributeId::CM_DREP => Self::Drep(view(body)?),
            AttributeId::CM_SIDR_REQ => Self::SidrReq(view(body)?),
            AttributeId::CM_SIDR_REP => Self::SidrRep(view(body)?),
            AttributeId::CM_LAP => Self::Lap(view(body)?),
            AttributeId::CM_APR => Self::Apr(view(body)?),
            _ => return Ok(None),
        }))
    }
}

impl fmt::Display for Message<'_> {
    /// The message's name and what a reader of a trace wants to know of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Req(m) => {
                let (id, service, qp) = (m.local_comm_id(), m.service_id(), m.local_qpn());
                write!(f, "REQ id {id} service {service} qp {qp} psn {}", m.starting_psn())?;
                match m.ip_cm().and_then(|header| header.addresses()) {
                    Some((source, destination)) => write!(f, " from {source} to {destination}"),
                    None => Ok(()),
                }
            }
            Self::Rep(m) => {
                let (local, remote) = (m.local_comm_id(), m.remote_comm_id());
                let (qp, psn) = (m.local_qpn(), m.starting_psn());
                write!(f, "REP id {local} to {remote} qp {qp} psn {psn}")
            }
            Self::Mra(m) => {
                let of = match m.message_mraed().get() {
                    0 => "REQ",
                    1 => "REP",
                    2 => "LAP",
                    _ => "unknown",
                };
                write!(f, "MRA id {} to {} of {of}", m.local_comm_id(), m.remote_comm_id())?;
                write!(f, " timeout {}", m.service_timeout())
            }
            Self::Rej(m) => {
                write!(f, "REJ id {} to {} reason ", m.local_comm_id(), m.remote_comm_id())?;
                match reject_reason(m.reason()) {
                    Some(reason) => f.write_str(reason),
                    None => write!(f, "{}", m.reason()),
                }
            }
            Self::Rtu(m) => write!(f, "RTU id {} to {}", m.local_comm_id(), m.remote_comm_id()),
            Self::Dreq(m) => {
                let (local, remote) = (m.local_comm_id(), m.remote_comm_id());
                write!(f, "DREQ id {local} to {remote} qp {}", m.remote_qpn_eecn())
            }
            Self::Drep(m) => write!(f, "DREP id {} to {}", m.local_comm_id(), m.remote_comm_id()),
            Self::SidrReq(m) => {
                write!(f, "SIDR_REQ id {} service {}", m.request_id(), m.service_id())?;
                match m.ip_cm().and_then(|header| header.addresses()) {
                    Some((source, destination)) => write!(f, " from {source} to {destination}"),
                    None => Ok(()),
                }
            }
            Self::SidrRep(m) => {
                let (id, qp, qkey) = (m.request_id(), m.qpn(), m.q_key());
                write!(f, "SIDR_REP id {id} qp {qp} qkey {qkey} ")?;
                write_status(f, SIDR_STATUS, m.status())
            }
            Self::Lap(m) => {
                write!(f, "LAP id {} to {}", m.local_comm_id(), m.remote_comm_id())?;
                let (qp, local) = (m.remote_qpn_eecn(), m.alternate_local_port_gid());
                write!(f, " qp {qp} path {local} to {}", m.alternate_remote_port_gid())
            }
            Self::Apr(m) => {
                let (local, remote) = (m.local_comm_id(), m.remote_comm_id());
                write!(f, "APR id {local} to {remote} ")?;
                write_status(f, APR_STATUS, m.ar_status())
            }
        }
    }
}

/// Meanings of the statuses of a service ID resolution.
const SIDR_STATUS: &[&str] =
    &["valid", "service not supported", "rejected", "no QP", "redirect", "unsupported version"];

/// Meanings of the statuses of an alternate path response.
const APR_STATUS: &[&str] = &[
    "accepted",
    "invalid communication ID",
    "unsupported",
    "rejected",
    "redirect",
    "already current",
    "invalid QPN or EECN",
    "invalid LID",
    "invalid GID",
    "invalid flow label",
    "invalid traffic class",
    "invalid hop limit",
    "invalid rate",
    "invalid SL",
];

fn write_status(f: &mut fmt::Formatter<'_>, names: &[&str], status: u8) -> fmt::Result {
    match names.get(usize::from(status)) {
        Some(name) => f.write_str(name),
        None => write!(f, "status {status}"),
    }
}

/// Returns the meaning of a reject reason, or `None` if the number means nothing.
pub const fn reject_reason(reason: u16) -> Option<&'static str> {
    Some(match reason {
        1 => "no QP available",
        2 => "no EEC available",
        3 => "no resources",
        4 => "timeout",
        5 => "unsupported request",
        6 => "invalid communication ID",
        7 => "invalid communication instance",
        8 => "invalid service ID",
        9 => "invalid transport service type",
        10 => "stale connection",
        11 => "RDC does not exist",
        12 => "invalid primary GID",
        13 => "invalid primary LID",
        14 => "invalid primary SL",
        15 => "invalid primary traffic class",
        16 => "invalid primary hop limit",
        17 => "invalid primary packet rate",
        18 => "invalid alternate GID",
        19 => "invalid alternate LID",
        20 => "invalid alternate SL",
        21 => "invalid alternate traffic class",
        22 => "invalid alternate hop limit",
        23 => "invalid alternate packet rate",
        24 => "port and CM redirect",
        25 => "port redirect",
        26 => "invalid path MTU",
        27 => "insufficient responder resources",
        28 => "consumer reject",
        29 => "invalid RNR retry count",
        30 => "duplicate local communication ID",
        31 => "invalid class version",
        32 => "invalid flow label",
        33 => "invalid alternate flow label",
        35 => "vendor option not supported",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes as _;

    use super::*;

    #[test]
    fn a_service_says_where_it_is() {
        assert_eq!(ServiceId::rdma_cm(PortSpace::TCP, 7174).to_string(), "tcp:7174");
        assert_eq!(ServiceId::rdma_cm(PortSpace::UDP, 1).to_string(), "udp:1");
        assert_eq!(ServiceId::rdma_cm(PortSpace::IB, 2).to_string(), "ib:2");
        assert_eq!(ServiceId(0x0000_0000_0107_0003).to_string(), "space 0x0107:3");
        assert_eq!(ServiceId(0x10ff_0000_0106_1c06).to_string(), "0x10ff000001061c06");
    }

    #[test]
    fn an_address_is_of_the_version_it_says() {
        let mut bytes = [0; IpCm::LEN];
        bytes[19] = 1;
        bytes[35] = 2;
        let version = |first: u8| {
            let mut bytes = bytes;
            bytes[1] = first;
            IpCm::read_from_bytes(&bytes)
                .unwrap()
                .addresses()
                .map(|(from, to)| format!("{from} {to}"))
        };
        assert_eq!(version(0x4f).as_deref(), Some("0.0.0.1 0.0.0.2"));
        assert_eq!(version(0x60).as_deref(), Some("::1 ::2"));
        assert_eq!(version(0x50), None);
    }

    #[test]
    fn every_message_can_be_said_in_a_line() {
        let body: [u8; MESSAGE_LEN] = core::array::from_fn(|at| at.to_le_bytes()[0]);
        let words = [
            "REQ id 0x00010203 service 0x08090a0b0c0d0e0f qp 0x202122 psn 2895150",
            "MRA id 0x00010203 to 0x04050607 of REQ timeout 1",
            "REJ id 0x00010203 to 0x04050607 reason 2571",
            "REP id 0x00010203 to 0x04050607 qp 0x0c0d0e psn 1316118",
            "RTU id 0x00010203 to 0x04050607",
            "DREQ id 0x00010203 to 0x04050607 qp 0x08090a",
            "DREP id 0x00010203 to 0x04050607",
            "SIDR_REQ id 0x00010203 service 0x08090a0b0c0d0e0f",
            "SIDR_REP id 0x00010203 qp 0x08090a qkey 0x14151617 redirect",
            "LAP id 0x00010203 to 0x04050607 qp 0x0c0d0e path 1819:1a1b:1c1d:1e1f:2021:2223:2425:2627 \
             to 2829:2a2b:2c2d:2e2f:3031:3233:3435:3637",
            "APR id 0x00010203 to 0x04050607 invalid flow label",
        ];
        for (attribute, expected) in (0x10..).zip(words) {
            let message = Message::parse(AttributeId(attribute), &body).unwrap().unwrap();
            assert_eq!(message.to_string(), expected);
        }
    }
}
