//! Layouts of the messages, and of the header that the RDMA connection manager puts into their
//! private data.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::FromBytes;

use super::{CommId, ServiceId};
use crate::wire::Layer;
use crate::wire::layout::header;
use crate::wire::num::{Bits, EeContext, Gid, PKey, Psn, QKey, Qpn};

impl Req {
    /// The header of the RDMA connection manager at the start of the private data, if its service
    /// has one.
    pub fn ip_cm(&self) -> Option<&IpCm> {
        ip_cm_of(self.service_id(), Self::LAYOUT.private_data.slice(self.as_bytes())?)
    }
}

impl SidrReq {
    /// The header of the RDMA connection manager at the start of the private data, if its service
    /// has one.
    pub fn ip_cm(&self) -> Option<&IpCm> {
        ip_cm_of(self.service_id(), Self::LAYOUT.private_data.slice(self.as_bytes())?)
    }
}

/// The header of the RDMA connection manager at the start of the private data of a message for
/// `service`.
fn ip_cm_of(service: ServiceId, private: &[u8]) -> Option<&IpCm> {
    service.to_rdma_cm()?;
    IpCm::ref_from_prefix(private).ok().map(|(header, _)| header)
}

header! {
    /// Header that the RDMA connection manager puts before the consumer's data in a REQ or
    /// SIDR_REQ.
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
    /// Returns the source and destination addresses, or `None` if the IP version is neither 4 nor
    /// 6.
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
        /// Vendor that defines the options of an enhanced connection.
        vendor_id: Bits<24> = 24,
        /// Service ID.
        service_id: ServiceId = 64,
        /// The sender's device.
        local_ca_guid: u64 = 64,
        ~reserved1 = 31,
        /// Whether the sender does selective repeat. The bit is reserved in the specification: the
        /// last of byte 27, which is reserved in a REP, too. Peers that do not know it ignore it.
        selective_repeat: bool = 1,
        /// The sender's queue key.
        local_q_key: QKey = 32,
        /// The sender's queue pair.
        local_qpn: Qpn = 24,
        /// Number of READs and ATOMICs that the sender can serve at a time.
        responder_resources: u8 = 8,
        /// The sender's end-to-end context.
        local_eecn: EeContext = 24,
        /// Number of READs and ATOMICs that the sender wants to have outstanding.
        initiator_depth: u8 = 8,
        /// The receiver's end-to-end context.
        remote_eecn: EeContext = 24,
        /// Maximum time of the receiver's answer: 4.096 µs times two to this power.
        remote_cm_response_timeout: Bits<5> = 5,
        /// 0 RC, 1 UC, 2 RD, 3 see the extended type.
        transport_service_type: Bits<2> = 2,
        /// Whether the sender counts credits.
        flow_control: bool = 1,
        /// The sequence number that the *receiver of this message* shall begin its requests with.
        starting_psn: Psn = 24,
        /// Maximum time of the sender's answer.
        local_cm_response_timeout: Bits<5> = 5,
        /// Number of retries.
        retry_count: Bits<3> = 3,
        /// The partition.
        partition_key: PKey = 16,
        /// The path MTU: 1 is 256, 5 is 4096.
        path_mtu: Bits<4> = 4,
        /// Whether a reliable datagram channel exists.
        rdc_exists: bool = 1,
        /// Number of retries when the receiver is not ready; 7 is for ever.
        rnr_retry_count: Bits<3> = 3,
        /// Number of times the sender retransmits this message.
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
        /// Message that it answers: 0 REQ, 1 REP, 2 LAP.
        message_mraed: Bits<2> = 2,
        ~reserved0 = 6,
        /// Additional time: 4.096 µs times two to this power.
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
        /// Message that it answers: 0 REQ, 1 REP, 2 none.
        message_rejected: Bits<2> = 2,
        ~reserved0 = 6,
        /// Number of bytes of the information that are used.
        rejected_info_length: Bits<7> = 7,
        ~reserved1 = 1,
        /// Reason; see [`reject_reason`](super::reject_reason).
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
        /// Number of READs and ATOMICs that the sender can serve at a time.
        responder_resources: u8 = 8,
        /// Number of READs and ATOMICs that the sender wants to have outstanding.
        initiator_depth: u8 = 8,
        /// Delay of the sender's acknowledgements.
        target_ack_delay: Bits<5> = 5,
        /// Whether the alternate path was accepted: 0 yes, 1 not supported, 2 rejected.
        failover_accepted: Bits<2> = 2,
        /// Whether the sender counts credits.
        flow_control: bool = 1,
        /// Number of retries when the receiver is not ready; 7 is for ever.
        rnr_retry_count: Bits<3> = 3,
        /// Whether the sender's queue pair uses a shared receive queue.
        srq: bool = 1,
        ~reserved0 = 3,
        /// Whether the connection uses selective repeat: the sender does it, and so does the
        /// receiver by its REQ. The bit is reserved in the specification, at the place of the one
        /// in the REQ.
        selective_repeat: bool = 1,
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
        /// Maximum time of the receiver's answer: 4.096 µs times two to this power.
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
        /// Number of bytes of the information that are used.
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
        /// Service ID.
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
        /// Number of bytes of the information that are used.
        additional_information_length: u8 = 8,
        /// The vendor, high bits.
        vendor_id_h: u16 = 16,
        /// The service's queue pair.
        qpn: Qpn = 24,
        /// The vendor, low bits.
        vendor_id_l: u8 = 8,
        /// Service ID.
        service_id: ServiceId = 64,
        /// The service's queue key.
        q_key: QKey = 32,
        /// More about the status.
        additional_information: [u8; 72] = 576,
        /// The consumer's data.
        private_data: [u8; 136] = 1088,
    }
}
