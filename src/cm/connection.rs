//! Connections: state, identifiers and negotiated parameters of each.

use super::Manager;
use super::loss::Transmission;
use super::state::{Input, State};
use super::table::{CmId, ConnectionId, DeviceId};
use super::timers::Schedule;
use crate::time::Instant;
use crate::verbs::{AhAttr, Mtu, QpType};
use crate::wire::cm::{CommId, SidrReq};
use crate::wire::mad::MAD_LEN;
use crate::wire::{Psn, Qpn};

/// Parameters that both sides agreed on, from this side's view: all that its QP must be set to.
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
    /// Whether it uses selective repeat; of a REQ or REP that is not answered, whether its sender
    /// offers that.
    pub(super) selective_repeat: bool,
}

/// The answer that a duplicate gets in timewait.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// No answer was given, or it is made anew.
    None,
    /// The answer to the REQ or SIDR_REQ.
    ToRequest([u8; MAD_LEN]),
    /// The REJ that a late RTU gets.
    ToRtu([u8; MAD_LEN]),
}

/// A number of a peer: its address, its CA GUID, and the comm id or QPN. The address is part of it,
/// because a GUID is a claim: a peer elsewhere that makes the same one is another peer.
pub(super) type RemoteKey = ([u8; 16], u64, u32);

/// Keys by which a peer's messages find the connection, besides the own comm id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RemoteKeys {
    /// The peer's comm id.
    pub(super) id: Option<RemoteKey>,
    /// The peer's QPN.
    pub(super) qpn: Option<RemoteKey>,
    /// The peer's address and SIDR request.
    pub(super) sidr: Option<([u8; 16], u32)>,
}

/// A connection, or a service that is being resolved.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) state: State,
    /// The id that it belongs to, unless it outlives it.
    pub(super) owner: Option<CmId>,
    /// Number among the connections that belong to no id.
    pub(super) lingering: Option<u64>,
    pub(super) device: DeviceId,
    /// Destination of messages.
    pub(super) ah: AhAttr,
    /// Destination of the QP's packets.
    pub(super) qp_ah: AhAttr,
    pub(super) local_id: CommId,
    pub(super) remote_id: Option<CommId>,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    pub(super) keys: RemoteKeys,
    pub(super) transaction: u64,
    pub(super) negotiated: Negotiated,
    /// Schedule of retransmissions.
    pub(super) schedule: Schedule,
    /// The message in flight, or the RTU that answers a duplicate REP.
    pub(super) message: Option<[u8; MAD_LEN]>,
    /// State of its transmission.
    pub(super) transmission: Transmission,
    pub(super) answer: Answer,
    /// The SIDR_REQ that is to be answered.
    pub(super) sidr: Option<SidrReq>,
    /// Number of messages the peer may still get before it answers; `None` if it has answered, or
    /// was asked by this side.
    pub(super) allowance: Option<u8>,
    /// Number of times that its RTU is still repeated.
    pub(super) rtu_repeats: u8,
    /// Number among the half-open connections.
    pub(super) half_open: Option<u64>,
    pub(super) deadline: Option<Instant>,
}

impl Connection {
    /// Returns a connection of an id that has sent and received nothing.
    pub(super) fn new(
        owner: CmId,
        device: DeviceId,
        ah: AhAttr,
        negotiated: Negotiated,
        schedule: Schedule,
    ) -> Self {
        Self {
            state: State::Idle,
            owner: Some(owner),
            lingering: None,
            device,
            ah,
            qp_ah: ah,
            local_id: CommId(0),
            remote_id: None,
            local_qpn: Qpn::new(0),
            remote_qpn: Qpn::new(0),
            keys: RemoteKeys::default(),
            transaction: 0,
            negotiated,
            schedule,
            message: None,
            transmission: Transmission::default(),
            answer: Answer::None,
            sidr: None,
            allowance: None,
            half_open: None,
            rtu_repeats: 0,
            deadline: None,
        }
    }

    /// The peer's comm id, or 0 as long as it is not known.
    pub(super) fn remote_id_or_zero(&self) -> CommId {
        self.remote_id.unwrap_or_default()
    }
}

impl Manager {
    /// Returns the number of messages that wait for an answer and are retransmitted until it comes.
    pub fn unanswered(&self) -> usize {
        self.connections.iter().filter(|(_, entry)| entry.state.is_retransmitting()).count()
    }

    /// A new connection, found by its own comm id, which cannot be guessed.
    pub(super) fn insert_connection(&mut self, mut connection: Connection) -> Option<ConnectionId> {
        let local_id = self.random_comm_id();
        connection.local_id = local_id;
        let (owner, peer) = (connection.owner, connection.ah.dgid);
        let name = self.connections.insert(connection)?;
        self.peers.join(peer);
        self.by_local_id.insert(local_id.0, name);
        if let Some(id) = owner.and_then(|id| self.ids.get_mut(id)) {
            id.connection = Some(name);
            id.connected_once = true;
        }
        Some(name)
    }

    /// Returns a comm id that is not 0 and not in use: all of its bits are random, so that peers
    /// cannot guess it.
    fn random_comm_id(&mut self) -> CommId {
        loop {
            #[expect(clippy::cast_possible_truncation, reason = "a comm id has 32 bits")]
            let number = self.random.next() as u32;
            if number != 0 && !self.by_local_id.contains_key(&number) {
                return CommId(number);
            }
        }
    }

    pub(super) fn random_psn(&mut self) -> Psn {
        #[expect(clippy::cast_possible_truncation, reason = "a PSN has 24 bits")]
        Psn::new(self.random.next() as u32)
    }

    /// Changes the state of a connection by the table; its new state, or `None` if it refuses the
    /// input.
    pub(super) fn step(&mut self, name: ConnectionId, input: Input) -> Option<State> {
        let connection = self.connections.get_mut(name)?;
        let (before, after) = (connection.state, connection.state.after(input)?);
        connection.state = after;
        if before.is_retransmitting() && input.is_received() {
            self.peers.answered(connection.ah.dgid, &mut connection.transmission);
        }
        if input.proves_peer() {
            connection.allowance = None;
        }
        if !after.is_half_open() {
            self.leave_half_open(name);
        }
        Some(after)
    }

    /// Forgets a connection.
    pub(super) fn free(&mut self, name: ConnectionId) {
        self.set_deadline(name, None);
        self.forget_remote_qpn(name);
        self.leave_half_open(name);
        let Some(connection) = self.connections.remove(name) else { return };
        self.peers.leave(connection.ah.dgid);
        self.by_local_id.remove(&connection.local_id.0);
        connection.keys.id.map(|key| self.by_remote_id.remove(&key));
        connection.keys.sidr.map(|key| self.by_sidr.remove(&key));
        connection.lingering.map(|serial| self.lingering.remove(&serial));
        if let Some(id) = connection.owner.and_then(|id| self.ids.get_mut(id)) {
            id.connection = None;
        }
    }

    /// The peer's QP may be connected anew.
    pub(super) fn forget_remote_qpn(&mut self, name: ConnectionId) {
        let Some(connection) = self.connections.get_mut(name) else { return };
        if let Some(key) = connection.keys.qpn.take() {
            self.by_remote_qpn.remove(&key);
        }
    }
}
