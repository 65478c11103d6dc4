//! Facts about one packet, for the analysis and the replay.

use core::fmt;

use serde::{Serialize, Serializer};

use super::sightings::Sightings;
use crate::decode::address::network_addresses;
use crate::decode::{Context, TrainPosition, address_text};
use crate::time::Instant;
use crate::wire::aeth::{Answer, Syndrome};
use crate::wire::mad::{AttributeId, MgmtClass};
use crate::wire::{
    Bits, Bth, Gid, IcrcVerdict, Msn, Network, Opcode, Packet, Psn, Qpn, RKey, Tunnel, cm,
};

/// Facts about one packet: a value that can be made on any thread and kept.
#[derive(Clone, Debug)]
pub struct PacketFacts {
    /// Number of the frame in the capture (`frame.number`; in the merged capture, if there are
    /// several files).
    pub frame: u64,
    /// Position in the frame, if the frame is a train of several packets.
    pub train: Option<TrainPosition>,
    /// Index of the capture file, from 0.
    pub file: u16,
    /// Time of the capture. A frame without a time stamp has that of the frame before it.
    pub time: Instant,
    /// The sender's address.
    pub source: Gid,
    /// The receiver's address.
    pub destination: Gid,
    /// Tunnel that carries it, where there is one. The other headers are those of the inner packet.
    pub tunnel: Option<Box<TunnelFacts>>,
    /// The UDP source port; 0 where the packet has no UDP header.
    pub source_port: u16,
    /// The opcode.
    pub opcode: Opcode,
    /// Whether the requester asks for an acknowledgement.
    pub ack_request: bool,
    /// The queue pair that it is for.
    pub dest_qp: Qpn,
    /// The queue pair that sent it, where a DETH says so (UD).
    pub source_qp: Option<Qpn>,
    /// The packet sequence number.
    pub psn: Psn,
    /// Payload bytes on the wire.
    pub payload_len: u32,
    /// Bytes of the whole frame on the wire.
    pub wire_len: u32,
    /// The differentiated services code point, where there is an IP header.
    pub dscp: Option<u8>,
    /// Whether a switch marked it: ECN field CE.
    pub is_ce_marked: bool,
    /// The verdict on its ICRC.
    pub icrc: IcrcVerdict,
    /// Whether the capture cut it short.
    pub is_cut: bool,
    /// Whether it cut the packet in its headers.
    pub is_header_cut: bool,
    /// Whether the frame holds several packets that cannot be told apart.
    pub unsplit: Unsplit,
    /// Syndrome and MSN of the AETH, where there is one.
    pub aeth: Option<(Syndrome, Msn)>,
    /// Address, key and length of the RETH or the AtomicETH, where there is one.
    pub reth: Option<RethFacts>,
    /// Identity of the packet: equal for two captures of one packet and for copies of it that the
    /// network made, almost always different for different packets. The ICRC that was captured if
    /// there is one, else a digest of the headers.
    pub digest: u32,
    /// The message of the connection manager that it carries, where it does.
    pub cm: Option<Box<CmFacts>>,
    /// Findings of the other files of the capture about the packet; none if there is one file.
    pub sightings: Option<Box<Sightings>>,
}

/// Whether a frame is a train that is cut before its first packet ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unsplit {
    /// One packet, or a train that can be split.
    #[default]
    No,
    /// The length may be that of one packet, or that of several.
    Possible,
    /// No packet has its length. What else is told of the packet is wrong.
    Certain,
}

impl Unsplit {
    #[inline]
    fn of(context: &Context<'_>, packet: &Packet<'_>) -> Self {
        if context.train.is_some() || !context.frame.is_cut() || packet.has_length_of_one() {
            return Self::No;
        }
        if packet.is_impossible() { Self::Certain } else { Self::Possible }
    }
}

/// A tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TunnelFacts {
    /// Kind of the innermost tunnel.
    #[serde(serialize_with = "kind_name")]
    pub kind: Tunnel,
    /// Outer source and destination address; an MPLS label stack has none.
    #[serde(serialize_with = "outer_addresses")]
    pub outer: Option<[Gid; 2]>,
}

/// The tunnel that carries a packet.
fn tunnel_of(kind: Tunnel, outer: Option<Network<'_>>) -> Box<TunnelFacts> {
    let outer = outer.map(|network| network_addresses(&network).into());
    Box::new(TunnelFacts { kind, outer })
}

impl fmt::Display for TunnelFacts {
    /// As in `VXLAN 192.0.2.1 → 192.0.2.2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        match self.outer.map(|outer| outer.map(address_text)) {
            Some([from, to]) => write!(f, " {from} → {to}"),
            None => Ok(()),
        }
    }
}

fn kind_name<S: Serializer>(kind: &Tunnel, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(kind.name())
}

fn outer_addresses<S: Serializer>(outer: &Option<[Gid; 2]>, out: S) -> Result<S::Ok, S::Error> {
    outer.map(|outer| outer.map(address_text)).serialize(out)
}

/// Address, key and length of an RDMA request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RethFacts {
    /// The address.
    pub virtual_address: u64,
    /// The key.
    pub rkey: RKey,
    /// The length in bytes.
    pub length: u32,
}

/// Facts about a connection in a message of the connection manager.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CmFacts {
    /// Kind of the message.
    pub attribute: AttributeId,
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID; 0 where it is not known yet.
    pub remote_comm_id: u32,
    /// The sender's queue pair, where the message names it (REQ, REP, SIDR REP).
    pub qpn: Option<Qpn>,
    /// The first PSN that the *receiver* of the message will send, where the message names it (REQ,
    /// REP).
    pub starting_psn: Option<Psn>,
    /// The port that the application connects to, where the service ID is one of the RDMA
    /// connection manager's.
    pub application_port: Option<u16>,
    /// The path MTU in bytes (REQ).
    pub path_mtu: Option<u16>,
    /// The retransmission timeout's exponent: 4.096 µs × 2^n (REQ: local ACK timeout).
    pub ack_timeout: Option<u8>,
    /// Maximum number of retransmissions of a request without an answer (REQ).
    pub retry_count: Option<u8>,
    /// Maximum number of retransmissions of a request after RNR NAKs; 7 means no limit (REQ, REP).
    pub rnr_retry_count: Option<u8>,
    /// READs and ATOMICs that the sender may have in flight.
    pub initiator_depth: Option<u8>,
    /// READs and ATOMICs that the sender accepts.
    pub responder_resources: Option<u8>,
    /// Reason of the rejection (REJ).
    pub reject_reason: Option<u16>,
}

#[cfg(test)]
impl PacketFacts {
    /// A SEND of one packet, of which tests state what matters to them.
    pub(crate) fn send_only() -> Self {
        Self {
            frame: 1,
            train: None,
            file: 0,
            time: Instant::ZERO,
            source: Gid::default(),
            destination: Gid::default(),
            tunnel: None,
            source_port: 50_000,
            opcode: Opcode::RC_SEND_ONLY,
            ack_request: true,
            dest_qp: Qpn::new(17),
            source_qp: None,
            psn: Psn::new(5),
            payload_len: 100,
            wire_len: 160,
            dscp: None,
            is_ce_marked: false,
            icrc: IcrcVerdict::Ok,
            is_cut: false,
            is_header_cut: false,
            unsplit: Unsplit::No,
            aeth: None,
            reth: None,
            digest: 0,
            cm: None,
            sightings: None,
        }
    }
}

impl PacketFacts {
    /// Returns the facts about a frame of capture file `file`, or `None` if it holds no transport
    /// packet (neither RoCE nor native InfiniBand, or cut before the end of its BTH).
    #[inline]
    pub fn new(context: &Context<'_>, file: u16) -> Option<Self> {
        Self::with_verdict(context, file, context.icrc()?)
    }

    /// Returns the facts about a frame whose ICRC is not checked: as if the capture had cut it off.
    #[cfg(feature = "replay")]
    #[inline]
    pub(crate) fn unverified(context: &Context<'_>, file: u16) -> Option<Self> {
        context.frame.encapsulation()?;
        Self::with_verdict(context, file, IcrcVerdict::Absent)
    }

    #[inline]
    fn with_verdict(context: &Context<'_>, file: u16, icrc: IcrcVerdict) -> Option<Self> {
        let frame = &context.frame;
        let packet = frame.packet()?;
        let bth = packet.bth();
        let (source, destination) = context.addresses();
        let time = context.time.or(context.previous_time).unwrap_or(Instant::ZERO);
        let payload_len = u32::try_from(packet.payload_len()).unwrap_or(u32::MAX);
        let (dscp, is_ce_marked) = traffic_class(frame.network());
        let has_extensions = packet.header_len() > Bth::LEN;
        let extended = has_extensions.then_some(packet);
        Some(Self {
            frame: context.number,
            train: context.train,
            file,
            time,
            source,
            destination,
            tunnel: frame.tunnel().map(|kind| tunnel_of(kind, frame.outer_network())),
            source_port: frame.udp().map_or(0, |udp| udp.source_port()),
            opcode: bth.opcode(),
            ack_request: bth.ack_req(),
            dest_qp: bth.dest_qp(),
            source_qp: extended.and_then(|it| it.deth()).map(|deth| deth.src_qp()),
            psn: bth.psn(),
            payload_len,
            wire_len: context.wire_len,
            dscp,
            is_ce_marked,
            icrc,
            is_cut: frame.is_cut(),
            is_header_cut: packet.bytes().len() < packet.header_len(),
            unsplit: Unsplit::of(context, packet),
            aeth: extended.and_then(|it| it.aeth()).map(|aeth| (aeth.syndrome(), aeth.msn())),
            reth: extended.and_then(reth_of),
            digest: frame.icrc_bytes().map_or_else(|| digest_of(packet), u32::from_le_bytes),
            cm: if bth.dest_qp() == Qpn::GSI { cm_of(packet) } else { None },
            sightings: None,
        })
    }
}

/// The differentiated services code point of an IP header, and whether the ECN field says
/// "congestion experienced".
#[inline]
fn traffic_class(network: Option<&Network<'_>>) -> (Option<u8>, bool) {
    const CE: Bits<2> = Bits::MAX;
    match network {
        Some(Network::Ipv4 { header, .. }) => (Some(low_byte(header.dscp())), header.ecn() == CE),
        Some(Network::Ipv6 { header, .. }) => (Some(low_byte(header.dscp())), header.ecn() == CE),
        Some(Network::Grh(_)) | None => (None, false),
    }
}

impl PacketFacts {
    /// Returns what identifies a packet in a capture: its frame, and its position in a train or 0.
    pub fn identity(&self) -> (u64, u16) {
        (self.frame, self.train.map_or(0, |train| train.index))
    }

    /// Whether it is a SACK.
    #[inline]
    pub(crate) fn is_sack(&self) -> bool {
        self.opcode == Opcode::RC_SELECTIVE_ACKNOWLEDGE
    }

    /// Whether it is a SACK of READ responses, which a requester sends.
    #[inline]
    pub(crate) fn is_sack_of_responses(&self) -> bool {
        self.is_sack()
            && self.aeth.is_some_and(|(syndrome, _)| matches!(syndrome.answer(), Answer::Ack(_)))
    }

    /// Returns the findings of the other files about the packet.
    #[inline]
    pub fn sightings(&self) -> &Sightings {
        const NONE: &Sightings = &Sightings::NONE;
        self.sightings.as_deref().unwrap_or(NONE)
    }
}

/// Address, key and length of an RDMA or ATOMIC request.
#[inline]
fn reth_of(packet: &Packet<'_>) -> Option<RethFacts> {
    const ATOMIC_LEN: u32 = 8;
    let reth = packet.reth().map(|reth| RethFacts {
        virtual_address: reth.va(),
        rkey: reth.rkey(),
        length: reth.dma_len(),
    });
    reth.or_else(|| {
        let atomic = packet.atomic_eth()?;
        let (virtual_address, rkey) = (atomic.va(), atomic.rkey());
        Some(RethFacts { virtual_address, rkey, length: ATOMIC_LEN })
    })
}

/// A digest of BTH and extension headers, for packets whose ICRC was not captured: FNV-1a.
fn digest_of(packet: &Packet<'_>) -> u32 {
    let headers = packet.bytes().get(..packet.header_len()).unwrap_or_else(|| packet.bytes());
    headers
        .iter()
        .fold(0x811c_9dc5, |hash: u32, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The message of the connection manager that a packet to queue pair 1 carries.
fn cm_of(packet: &Packet<'_>) -> Option<Box<CmFacts>> {
    let mad = packet.mad()?.ok()?;
    if mad.header.class() != MgmtClass::CM {
        return None;
    }
    let attribute = mad.header.attribute();
    let message = cm::Message::parse(attribute, mad.body).ok()??;
    Some(Box::new(CmFacts::new(attribute, &message)))
}

/// The bits of a number as a byte.
fn low_byte<const W: u32>(bits: Bits<W>) -> u8 {
    u8::try_from(bits.get()).unwrap_or(u8::MAX)
}

impl CmFacts {
    /// Returns the facts of a message without contents.
    pub(crate) fn of(attribute: AttributeId) -> Self {
        Self {
            attribute,
            local_comm_id: 0,
            remote_comm_id: 0,
            qpn: None,
            starting_psn: None,
            application_port: None,
            path_mtu: None,
            ack_timeout: None,
            retry_count: None,
            rnr_retry_count: None,
            initiator_depth: None,
            responder_resources: None,
            reject_reason: None,
        }
    }

    /// Reads the facts from a message.
    fn new(attribute: AttributeId, message: &cm::Message<'_>) -> Self {
        let mut facts = Self::of(attribute);
        match message {
            cm::Message::Req(m) => {
                facts.local_comm_id = m.local_comm_id().0;
                facts.qpn = Some(m.local_qpn());
                facts.starting_psn = Some(m.starting_psn());
                facts.application_port = m.service_id().to_rdma_cm().map(|(_, port)| port);
                facts.path_mtu = mtu_of(m.path_mtu());
                facts.ack_timeout = Some(low_byte(m.primary_local_ack_timeout()));
                facts.retry_count = Some(low_byte(m.retry_count()));
                facts.rnr_retry_count = Some(low_byte(m.rnr_retry_count()));
                facts.initiator_depth = Some(m.initiator_depth());
                facts.responder_resources = Some(m.responder_resources());
            }
            cm::Message::Rep(m) => {
                facts.local_comm_id = m.local_comm_id().0;
                facts.remote_comm_id = m.remote_comm_id().0;
                facts.qpn = Some(m.local_qpn());
                facts.starting_psn = Some(m.starting_psn());
                facts.rnr_retry_count = Some(low_byte(m.rnr_retry_count()));
                facts.initiator_depth = Some(m.initiator_depth());
                facts.responder_resources = Some(m.responder_resources());
            }
            cm::Message::Rej(m) => {
                facts.local_comm_id = m.local_comm_id().0;
                facts.remote_comm_id = m.remote_comm_id().0;
                facts.reject_reason = Some(m.reason());
            }
            cm::Message::SidrReq(m) => {
                facts.local_comm_id = m.request_id().0;
                facts.application_port = m.service_id().to_rdma_cm().map(|(_, port)| port);
            }
            cm::Message::SidrRep(m) => {
                facts.remote_comm_id = m.request_id().0;
                facts.qpn = (m.status() == 0).then(|| m.qpn());
                facts.reject_reason = (m.status() != 0).then(|| m.status().into());
            }
            cm::Message::Mra(m) => facts.set_ids(m.local_comm_id(), m.remote_comm_id()),
            cm::Message::Rtu(m) => facts.set_ids(m.local_comm_id(), m.remote_comm_id()),
            cm::Message::Dreq(m) => facts.set_ids(m.local_comm_id(), m.remote_comm_id()),
            cm::Message::Drep(m) => facts.set_ids(m.local_comm_id(), m.remote_comm_id()),
            cm::Message::Lap(m) => facts.set_ids(m.local_comm_id(), m.remote_comm_id()),
            cm::Message::Apr(m) => facts.set_ids(m.local_comm_id(), m.remote_comm_id()),
        }
        facts
    }

    fn set_ids(&mut self, local: cm::CommId, remote: cm::CommId) {
        (self.local_comm_id, self.remote_comm_id) = (local.0, remote.0);
    }
}

/// The path MTU in bytes: code 1 is 256, code 5 is 4096.
fn mtu_of(code: Bits<4>) -> Option<u16> {
    (1..=5).contains(&code.get()).then(|| 128 << code.get())
}
