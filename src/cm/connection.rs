//! A connection: what two managers exchange messages about.

use super::message::MadBytes;
use super::state::State;
use super::table::{CmId, DeviceId};
use super::timers::Schedule;
use crate::time::Instant;
use crate::verbs::{AhAttr, Mtu, QpType};
use crate::wire::cm::{CommId, SidrReq};
use crate::wire::{Psn, Qpn};

/// What was agreed on, from this side's view: all that its QP must be set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Negotiated {
    pub(super) qp_type: QpType,
    pub(super) path_mtu: Mtu,
    /// The first PSN that this side expects: it put it into its own message.
    pub(super) rq_psn: Psn,
    /// The first PSN that this side sends: the peer put it into its message.
    pub(super) sq_psn: Psn,
    /// READs and atomics that this side may have outstanding.
    pub(super) initiator_depth: u8,
    /// READs and atomics that this side serves at a time.
    pub(super) responder_resources: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    /// The ACK timeout, as a code.
    pub(super) ack_timeout: u8,
}

/// The answer that a duplicate gets in timewait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// None was given, or it is made anew.
    None,
    /// The answer to the REQ or SIDR_REQ.
    ToRequest(MadBytes),
    /// The REJ that a late RTU gets.
    ToRtu(MadBytes),
}

/// By what a peer's messages find the connection, besides the own comm id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RemoteKeys {
    /// The peer's CA GUID and comm id.
    pub(super) id: Option<(u64, u32)>,
    /// The peer's CA GUID and QPN.
    pub(super) qpn: Option<(u64, u32)>,
    /// The peer's address and SIDR request.
    pub(super) sidr: Option<([u8; 16], u32)>,
}

/// A connection, or a service that is being resolved.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) state: State,
    /// The id that it belongs to, unless it outlives it.
    pub(super) owner: Option<CmId>,
    /// Its place among those that belong to none.
    pub(super) lingering: Option<u64>,
    pub(super) device: DeviceId,
    /// Where messages go.
    pub(super) ah: AhAttr,
    /// Where the QP's packets go.
    pub(super) qp_ah: AhAttr,
    pub(super) local_id: CommId,
    pub(super) remote_id: Option<CommId>,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    pub(super) keys: RemoteKeys,
    pub(super) transaction: u64,
    pub(super) negotiated: Negotiated,
    /// When messages are retransmitted.
    pub(super) schedule: Schedule,
    /// The message in flight, or the RTU that answers a duplicate REP.
    pub(super) message: Option<MadBytes>,
    pub(super) answer: Answer,
    /// The SIDR_REQ that is to be answered.
    pub(super) sidr: Option<SidrReq>,
    pub(super) deadline: Option<Instant>,
}

impl Connection {
    /// The peer's comm id, or 0 as long as it is not known.
    pub(super) fn remote_id_or_zero(&self) -> CommId {
        self.remote_id.unwrap_or_default()
    }
}
