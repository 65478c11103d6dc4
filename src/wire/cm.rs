//! Messages of the connection manager: the bodies of MADs of class 7.
//!
//! The tables follow chapter 12 of the specification, bit by bit. Each message fills the 232 bytes behind the MAD
//! header; what it does not name is reserved.
// Rule: C-01.1.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::FromBytes;

use super::layout::{header, whole_field};
use super::mad::AttributeId;
use super::num::{Bits, EeContext, Gid, PKey, Psn, QKey, Qpn};
use super::{Layer, ParseError};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    /// The message in `body`, the bytes behind a MAD header with this attribute, or `None` if the connection
    /// manager has no such attribute.
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

/// What the statuses of a service ID resolution mean.
const SIDR_STATUS: &[&str] =
    &["valid", "service not supported", "rejected", "no QP", "redirect", "unsupported version"];

/// What the statuses of an alternate path response mean.
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

/// Why a connection was rejected, in words, or `None` if the number means nothing.
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

impl Req {
    /// The header of the RDMA connection manager at the start of the private data, if its service has one.
    pub fn ip_cm(&self) -> Option<&IpCm> {
        ip_cm_of(self.service_id(), Self::LAYOUT.private_data.slice(self.as_bytes())?)
    }
}

impl SidrReq {
    /// The header of the RDMA connection manager at the start of the private data, if its service has one.
    pub fn ip_cm(&self) -> Option<&IpCm> {
        ip_cm_of(self.service_id(), Self::LAYOUT.private_data.slice(self.as_bytes())?)
    }
}

/// The header of the RDMA connection manager at the start of the private data of a message for `service`.
fn ip_cm_of(service: ServiceId, private: &[u8]) -> Option<&IpCm> {
    service.to_rdma_cm()?;
    IpCm::ref_from_prefix(private).ok().map(|(header, _)| header)
}

header! {
    /// What the RDMA connection manager puts before the consumer's data in a REQ or SIDR_REQ.
    pub struct IpCm, IpCmRepr, IpCmLayout: Layer::IpCm, 36 bytes {
        /// The version, major part.
        major: Bits<4> = 4,
        /// The version, minor part.
        minor: Bits<4> = 4,
        /// 4 or 6.
        ip_version: Bits<4> = 4,
        ~reserved = 4,
        /// The port of the one who asks.
        source_port: u16 = 16,
        /// The address of the one who asks; an IPv4 address fills the last four bytes.
        source: Ipv6Addr = 128,
        /// The address of the one who is asked.
        destination: Ipv6Addr = 128,
    }
}

impl IpCm {
    /// Who asks whom, or `None` if the IP version is neither 4 nor 6.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let address = |wide: Ipv6Addr| match self.ip_version().get() {
            4 => {
                let [.., a, b, c, d] = wide.octets();
                Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
            }
            6 => Some(IpAddr::V6(wide)),
            _ => None,
        };
        Some((address(self.source())?, address(self.destination())?))
    }
}

header! {
    /// Request for a connection.
    pub struct Req, ReqRepr, ReqLayout: Layer::Cm, 232 bytes {
        /// The sender's name for the connection.
        local_comm_id: CommId = 32,
        ~reserved0 = 8,
        /// Who defines the options of an enhanced connection.
        vendor_id: Bits<24> = 24,
        /// The service asked for.
        service_id: ServiceId = 64,
        /// The sender's device.
        local_ca_guid: u64 = 64,
        ~reserved1 = 32,
        /// The sender's queue key.
        local_q_key: QKey = 32,
        /// The sender's queue pair.
        local_qpn: Qpn = 24,
        /// How many READs and atomics the sender can serve at a time.
        responder_resources: u8 = 8,
        /// The sender's end-to-end context.
        local_eecn: EeContext = 24,
        /// How many READs and atomics the sender wants to have outstanding.
        initiator_depth: u8 = 8,
        /// The receiver's end-to-end context.
        remote_eecn: EeContext = 24,
        /// How long the receiver may take to answer: 4.096 µs times two to this power.
        remote_cm_response_timeout: Bits<5> = 5,
        /// 0 RC, 1 UC, 2 RD, 3 see the extended type.
        transport_service_type: Bits<2> = 2,
        /// Whether the sender counts credits.
        flow_control: bool = 1,
        /// The sequence number that the *receiver of this message* shall begin its requests with.
        starting_psn: Psn = 24,
        /// How long the sender may take to answer.
        local_cm_response_timeout: Bits<5> = 5,
        /// How often to retry.
        retry_count: Bits<3> = 3,
        /// The partition.
        partition_key: PKey = 16,
        /// The path MTU: 1 is 256, 5 is 4096.
        path_mtu: Bits<4> = 4,
        /// Whether a reliable datagram channel exists.
        rdc_exists: bool = 1,
        /// How often to retry when the receiver is not ready; 7 is for ever.
        rnr_retry_count: Bits<3> = 3,
        /// How often the sender sends this message again.
        max_cm_retries: Bits<4> = 4,
        /// Whether the sender's queue pair uses a shared receive queue.
        srq: bool = 1,
        /// 1 is XRC.
        extended_transport_type: Bits<3> = 3,
        /// The primary path's local port.
        primary_local_port_lid: u16 = 16,
        /// The primary path's remote port.
        primary_remote_port_lid: u16 = 16,
        /// The primary path's local GID.
        primary_local_port_gid: Gid = 128,
        /// The primary path's remote GID.
        primary_remote_port_gid: Gid = 128,
        /// The primary path's flow label.
        primary_flow_label: Bits<20> = 20,
        ~reserved2 = 6,
        /// The primary path's rate.
        primary_packet_rate: Bits<6> = 6,
        /// The primary path's traffic class.
        primary_traffic_class: u8 = 8,
        /// The primary path's hop limit.
        primary_hop_limit: u8 = 8,
        /// The primary path's service level.
        primary_sl: Bits<4> = 4,
        /// The primary path's scope: whether it stays in the subnet.
        primary_subnet_local: bool = 1,
        ~reserved3 = 3,
        /// The primary path's ACK timeout: 4.096 µs times two to this power.
        primary_local_ack_timeout: Bits<5> = 5,
        ~reserved4 = 3,
        /// The alternate path's local port.
        alternate_local_port_lid: u16 = 16,
        /// The alternate path's remote port.
        alternate_remote_port_lid: u16 = 16,
        /// The alternate path's local GID.
        alternate_local_port_gid: Gid = 128,
        /// The alternate path's remote GID.
        alternate_remote_port_gid: Gid = 128,
        /// The alternate path's flow label.
        alternate_flow_label: Bits<20> = 20,
        ~reserved5 = 6,
        /// The alternate path's rate.
        alternate_packet_rate: Bits<6> = 6,
        /// The alternate path's traffic class.
        alternate_traffic_class: u8 = 8,
        /// The alternate path's hop limit.
        alternate_hop_limit: u8 = 8,
        /// The alternate path's service level.
        alternate_sl: Bits<4> = 4,
        /// The alternate path's scope: whether it stays in the subnet.
        alternate_subnet_local: bool = 1,
        ~reserved6 = 3,
        /// The alternate path's ACK timeout: 4.096 µs times two to this power.
        alternate_local_ack_timeout: Bits<5> = 5,
        /// Whether suggested alternate paths are understood.
        sap_supported: bool = 1,
        ~reserved7 = 2,
        /// The consumer's data.
        private_data: [u8; 92] = 736,
    }
}

header! {
    /// Message receipt acknowledgement: an answer will take longer.
    pub struct Mra, MraRepr, MraLayout: Layer::Cm, 232 bytes {
        /// The sender's name for the connection.
        local_comm_id: CommId = 32,
        /// The receiver's name for the connection.
        remote_comm_id: CommId = 32,
        /// Which message it answers: 0 REQ, 1 REP, 2 LAP.
        message_mraed: Bits<2> = 2,
        ~reserved0 = 6,
        /// How much longer it will take: 4.096 µs times two to this power.
        service_timeout: Bits<5> = 5,
        ~reserved1 = 3,
        /// The consumer's data.
        private_data: [u8; 222] = 1776,
    }
}

header! {
    /// Rejection.
    pub struct Rej, RejRepr, RejLayout: Layer::Cm, 232 bytes {
        /// The sender's name for the connection.
        local_comm_id: CommId = 32,
        /// The receiver's name for the connection.
        remote_comm_id: CommId = 32,
        /// Which message it answers: 0 REQ, 1 REP, 2 none.
        message_rejected: Bits<2> = 2,
        ~reserved0 = 6,
        /// How many bytes of the information count.
        rejected_info_length: Bits<7> = 7,
        ~reserved1 = 1,
        /// Why; see [`reject_reason`].
        reason: u16 = 16,
        /// More about the reason.
        ari: [u8; 72] = 576,
        /// The consumer's data.
        private_data: [u8; 148] = 1184,
    }
}

header! {
    /// Reply to a request.
    pub struct Rep, RepRepr, RepLayout: Layer::Cm, 232 bytes {
        /// The sender's name for the connection.
        local_comm_id: CommId = 32,
        /// The receiver's name for the connection.
        remote_comm_id: CommId = 32,
        /// The sender's queue key.
        local_q_key: QKey = 32,
        /// The sender's queue pair.
        local_qpn: Qpn = 24,
        /// The vendor, high bits.
        vendor_id_h: u8 = 8,
        /// The sender's end-to-end context.
        local_eecn: EeContext = 24,
        /// The vendor, middle bits.
        vendor_id_m: u8 = 8,
        /// The sequence number that the *receiver of this message* shall begin its requests with.
        starting_psn: Psn = 24,
        /// The vendor, low bits.
        vendor_id_l: u8 = 8,
        /// How many READs and atomics the sender can serve at a time.
        responder_resources: u8 = 8,
        /// How many READs and atomics the sender wants to have outstanding.
        initiator_depth: u8 = 8,
        /// How long the sender takes to acknowledge.
        target_ack_delay: Bits<5> = 5,
        /// Whether the alternate path was accepted: 0 yes, 1 not supported, 2 rejected.
        failover_accepted: Bits<2> = 2,
        /// Whether the sender counts credits.
        flow_control: bool = 1,
        /// How often to retry when the receiver is not ready; 7 is for ever.
        rnr_retry_count: Bits<3> = 3,
        /// Whether the sender's queue pair uses a shared receive queue.
        srq: bool = 1,
        ~reserved0 = 4,
        /// The sender's device.
        local_ca_guid: u64 = 64,
        /// The consumer's data.
        private_data: [u8; 196] = 1568,
    }
}

header! {
    /// Ready to use.
    pub struct Rtu, RtuRepr, RtuLayout: Layer::Cm, 232 bytes {
        /// The sender's name for the connection.
        local_comm_id: CommId = 32,
        /// The receiver's name for the connection.
        remote_comm_id: CommId = 32,
        /// The consumer's data.
        private_data: [u8; 224] = 1792,
    }
}

header! {
    /// Request for a disconnection.
    pub struct Dreq, DreqRepr, DreqLayout: Layer::Cm, 232 bytes {
        /// The sender's name for the connection.
        local_comm_id: CommId = 32,
        /// The receiver's name for the connection.
        remote_comm_id: CommId = 32,
        /// The receiver's queue pair or end-to-end context.
        remote_qpn_eecn: Qpn = 24,
        ~reserved0 = 8,
        /// The consumer's data.
        private_data: [u8; 220] = 1760,
    }
}

header! {
    /// Reply to a disconnection request.
    pub struct Drep, DrepRepr, DrepLayout: Layer::Cm, 232 bytes {
        /// The sender's name for the connection.
        local_comm_id: CommId = 32,
        /// The receiver's name for the connection.
        remote_comm_id: CommId = 32,
        /// The consumer's data.
        private_data: [u8; 224] = 1792,
    }
}

header! {
    /// Load alternate path.
    pub struct Lap, LapRepr, LapLayout: Layer::Cm, 232 bytes {
        /// The sender's name for the connection.
        local_comm_id: CommId = 32,
        /// The receiver's name for the connection.
        remote_comm_id: CommId = 32,
        ~reserved0 = 32,
        /// The receiver's queue pair or end-to-end context.
        remote_qpn_eecn: Qpn = 24,
        /// How long the receiver may take to answer: 4.096 µs times two to this power.
        remote_cm_response_timeout: Bits<5> = 5,
        ~reserved1 = 35,
        /// The alternate path's local port.
        alternate_local_port_lid: u16 = 16,
        /// The alternate path's remote port.
        alternate_remote_port_lid: u16 = 16,
        /// The alternate path's local GID.
        alternate_local_port_gid: Gid = 128,
        /// The alternate path's remote GID.
        alternate_remote_port_gid: Gid = 128,
        /// The alternate path's flow label.
        alternate_flow_label: Bits<20> = 20,
        ~reserved2 = 4,
        /// The alternate path's traffic class.
        alternate_traffic_class: u8 = 8,
        /// The alternate path's hop limit.
        alternate_hop_limit: u8 = 8,
        ~reserved3 = 2,
        /// The alternate path's rate.
        alternate_packet_rate: Bits<6> = 6,
        /// The alternate path's service level.
        alternate_sl: Bits<4> = 4,
        /// The alternate path's scope: whether it stays in the subnet.
        alternate_subnet_local: bool = 1,
        ~reserved4 = 3,
        /// The alternate path's ACK timeout: 4.096 µs times two to this power.
        alternate_local_ack_timeout: Bits<5> = 5,
        ~reserved5 = 3,
        /// The consumer's data.
        private_data: [u8; 168] = 1344,
    }
}

header! {
    /// Alternate path response.
    pub struct Apr, AprRepr, AprLayout: Layer::Cm, 232 bytes {
        /// The sender's name for the connection.
        local_comm_id: CommId = 32,
        /// The receiver's name for the connection.
        remote_comm_id: CommId = 32,
        /// How many bytes of the information count.
        additional_information_length: u8 = 8,
        /// 0 accepted, else why not.
        ar_status: u8 = 8,
        ~reserved0 = 16,
        /// More about the status.
        additional_information: [u8; 72] = 576,
        /// The consumer's data.
        private_data: [u8; 148] = 1184,
    }
}

header! {
    /// Service ID resolution request.
    pub struct SidrReq, SidrReqRepr, SidrReqLayout: Layer::Cm, 232 bytes {
        /// The name of the request.
        request_id: CommId = 32,
        /// The partition.
        partition_key: PKey = 16,
        ~reserved0 = 16,
        /// The service asked for.
        service_id: ServiceId = 64,
        /// The consumer's data.
        private_data: [u8; 216] = 1728,
    }
}

header! {
    /// Service ID resolution response.
    pub struct SidrRep, SidrRepRepr, SidrRepLayout: Layer::Cm, 232 bytes {
        /// The name of the request.
        request_id: CommId = 32,
        /// 0 valid, else why not.
        status: u8 = 8,
        /// How many bytes of the information count.
        additional_information_length: u8 = 8,
        /// The vendor, high bits.
        vendor_id_h: u16 = 16,
        /// The service's queue pair.
        qpn: Qpn = 24,
        /// The vendor, low bits.
        vendor_id_l: u8 = 8,
        /// The service asked for.
        service_id: ServiceId = 64,
        /// The service's queue key.
        q_key: QKey = 32,
        /// More about the status.
        additional_information: [u8; 72] = 576,
        /// The consumer's data.
        private_data: [u8; 136] = 1088,
    }
}

#[cfg(test)]
mod tests {
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
