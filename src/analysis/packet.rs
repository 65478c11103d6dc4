//! What the analysis needs to know of one packet.

use crate::time::Instant;
use crate::wire::aeth::Syndrome;
use crate::wire::mad::AttributeId;
use crate::wire::{Gid, IcrcVerdict, Msn, Opcode, Psn, Qpn, RKey};

/// What the analysis needs to know of one packet: a value that can be made on any thread and kept.
#[derive(Clone, Debug)]
pub struct PacketFacts {
    /// Its number in the capture (`frame.number`; of the merged capture, where there are several files).
    pub frame: u64,
    /// Which of the files it is from, counted from 0.
    pub file: u16,
    /// When it was captured. A frame without a time stamp has that of the frame before it.
    pub time: Instant,
    /// The sender's address.
    pub source: Gid,
    /// The receiver's address.
    pub destination: Gid,
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
    /// Whether a switch marked it: ECN field CE.
    pub is_ce_marked: bool,
    /// The verdict on its ICRC.
    pub icrc: IcrcVerdict,
    /// Whether the capture cut it short.
    pub is_cut: bool,
    /// Syndrome and MSN of the AETH, where there is one.
    pub aeth: Option<(Syndrome, Msn)>,
    /// The RETH, where there is one.
    pub reth: Option<RethFacts>,
    /// The same for two captures of one packet, and for copies of it that the network made; almost always different
    /// for different packets. The ICRC that was captured where there is one, else a digest of the headers.
    pub digest: u32,
    /// The message of the connection manager that it carries, where it does.
    pub cm: Option<Box<CmFacts>>,
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

/// What a message of the connection manager says about a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CmFacts {
    /// Which message it is.
    pub attribute: AttributeId,
    /// The sender's communication ID.
    pub local_comm_id: u32,
    /// The receiver's communication ID; 0 where it is not known yet.
    pub remote_comm_id: u32,
    /// The sender's queue pair, where the message names it (REQ, REP, SIDR REP).
    pub qpn: Option<Qpn>,
    /// The first PSN that the sender will send, where the message names it (REQ, REP).
    pub starting_psn: Option<Psn>,
    /// The port that the application connects to, where the service ID is one of the RDMA connection manager's.
    pub application_port: Option<u16>,
    /// The path MTU in bytes (REQ).
    pub path_mtu: Option<u16>,
    /// The retransmission timeout's exponent: 4.096 µs × 2^n (REQ: local ACK timeout).
    pub ack_timeout: Option<u8>,
    /// How often a request is retransmitted without an answer (REQ).
    pub retry_count: Option<u8>,
    /// How often a request is retransmitted after an RNR NAK; 7 means for ever (REQ, REP).
    pub rnr_retry_count: Option<u8>,
    /// READs and ATOMICs that the sender may have in flight.
    pub initiator_depth: Option<u8>,
    /// READs and ATOMICs that the sender accepts.
    pub responder_resources: Option<u8>,
    /// Why the connection was refused (REJ).
    pub reject_reason: Option<u16>,
}
