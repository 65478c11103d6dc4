//! Pending responses of a queue pair, and how they are sent.
//!
//! Responses are sent in the order of their requests: an ACK may not pass the READ responses before
//! it. Mostly one ACK is pending, which may be [delayed](super::ack_delay).

use std::collections::VecDeque;

use super::super::env::Env;
use super::super::keys::Refusal;
use super::super::reorder::Bitmap;
use super::super::send_queue::packets;
use super::super::sge::Outgoing as _;
use super::super::{CnpScope, Counter};
use super::ack_delay::DelayedAck;
use super::attr::Attributes;
use super::tx::{pad_for, position};
use crate::table::SlotId;
use crate::time::Instant;
use crate::verbs::{Access, QpType};
use crate::wire::aeth::{Answer, Credits, NakCode};
use crate::wire::batch::{Batch, Draft};
use crate::wire::{
    AethRepr, AtomicAckEthRepr, Bits, BthRepr, CnpRepr, Gid, Headers, Msn, Opcode, Operation, Path,
    Position, Psn, RKey, SackEthRepr,
};

/// Opcodes of READ responses, by position.
const READ_RESPONSES: [Opcode; 4] = Opcode::of_message(Operation::ReadResponse, Headers::empty());

/// A response that is to be sent.
///
/// One `counts` against `max_dest_rd_atomic` unless it is for a FLUSH, of which the requester may
/// have any number in flight, or for a duplicate: the requester may have got the first response
/// meanwhile, and be entitled to a new request.
#[derive(Clone, Copy, Debug)]
pub(super) enum PendingResponse {
    Ack {
        psn: Psn,
        msn: Msn,
        kind: AckKind,
    },
    /// `sent` packets of the response to a READ of `len` bytes are sent.
    Read {
        psn: Psn,
        va: u64,
        rkey: RKey,
        len: u32,
        sent: u32,
        msn: Msn,
        counts: bool,
        part: Part,
    },
    Atomic {
        psn: Psn,
        original: u64,
        msn: Msn,
        counts: bool,
    },
    /// The response to an ATOMIC WRITE or a FLUSH.
    Empty {
        psn: Psn,
        msn: Msn,
        counts: bool,
    },
}

/// Part of a READ's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Whether it begins with the first response, and ends with the last.
    pub(super) begins: bool,
    pub(super) ends: bool,
}

impl Part {
    /// All responses.
    pub(super) const WHOLE: Self = Self { begins: true, ends: true };

    /// Position among all responses of a packet with a position in this part.
    fn position(self, within: Position) -> Position {
        match (within.begins() && self.begins, within.ends() && self.ends) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        }
    }
}

/// Kind of an acknowledge packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckKind {
    Ack,
    RnrNak,
    Nak(NakCode),
    /// A SACK: what is held behind the gap at its PSN is put in when it is sent.
    Sack,
}

/// The memory of a READ is not accessible any more: the response with this PSN cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadFault {
    pub(super) psn: Psn,
}

/// Pending responses of a queue pair.
#[derive(Debug)]
pub(super) struct ResponseQueue {
    /// The newest response is stored inline: mostly it is the only one.
    newest: Option<PendingResponse>,
    earlier: VecDeque<PendingResponse>,
    /// Whether a CNP is to be sent.
    cnp_pending: bool,
    /// Whether the pending ACK is sent before requests: it was passed over, or the peer misses it.
    ack_first: bool,
    delayed_ack: DelayedAck,
    /// Earliest time of the next CNP.
    cnp_after: Instant,
}

impl Default for ResponseQueue {
    fn default() -> Self {
        Self {
            newest: None,
            earlier: VecDeque::new(),
            cnp_pending: false,
            ack_first: false,
            delayed_ack: DelayedAck::default(),
            cnp_after: Instant::ZERO,
        }
    }
}

impl ResponseQueue {
    /// Whether a response or a CNP is to be sent.
    #[inline]
    pub(super) fn is_pending(&self) -> bool {
        self.cnp_pending || self.newest.is_some()
    }

    /// Whether the next packet is data of a READ response.
    #[inline]
    pub(super) fn is_data_next(&self) -> bool {
        !self.cnp_pending
            && matches!(
                self.earlier.front().or(self.newest.as_ref()),
                Some(PendingResponse::Read { .. })
            )
    }

    /// Number of pending responses.
    fn len(&self) -> usize {
        self.earlier.len() + usize::from(self.newest.is_some())
    }

    /// Whether so many responses are pending that no more are accepted.
    pub(super) fn is_backlogged(&self, rd_atomic: u8) -> bool {
        self.len() >= 2 * usize::from(rd_atomic) + 4
    }

    /// Number of pending responses that count against `max_dest_rd_atomic`.
    pub(super) fn rd_atomics(&self) -> usize {
        let counts = |response: &&PendingResponse| match response {
            PendingResponse::Ack { .. } => false,
            PendingResponse::Read { counts, .. }
            | PendingResponse::Atomic { counts, .. }
            | PendingResponse::Empty { counts, .. } => *counts,
        };
        self.earlier.iter().chain(&self.newest).filter(counts).count()
    }

    #[inline]
    fn oldest(&mut self) -> Option<&mut PendingResponse> {
        self.earlier.front_mut().or(self.newest.as_mut())
    }

    #[inline]
    pub(super) fn push(&mut self, response: PendingResponse) {
        if let Some(before) = self.newest.replace(response) {
            self.earlier.push_back(before);
        }
    }

    /// Adds the response to a duplicate READ in front of later ones: a requester that repeats
    /// selectively asks for single packets while the rest is still sent.
    pub(super) fn push_repeated(&mut self, psn: Psn, response: PendingResponse) {
        let is_later = |other: &PendingResponse| match other {
            PendingResponse::Read { psn: first, sent, .. } => first.plus(*sent).since(psn) > 0,
            PendingResponse::Ack { psn: at, .. }
            | PendingResponse::Atomic { psn: at, .. }
            | PendingResponse::Empty { psn: at, .. } => at.since(psn) > 0,
        };
        if let Some(at) = self.earlier.iter().position(is_later) {
            self.earlier.insert(at, response);
        } else if self.newest.as_ref().is_some_and(is_later) {
            self.earlier.push_back(response);
        } else {
            self.push(response);
        }
    }

    #[inline]
    fn pop(&mut self) {
        if self.earlier.pop_front().is_none() {
            self.newest = None;
        }
    }

    /// Forgets all responses: the program moved the queue pair to ERR.
    pub(super) fn clear(&mut self) {
        self.clear_responses();
        self.cnp_pending = false;
    }

    fn clear_responses(&mut self) {
        self.newest = None;
        self.earlier.clear();
    }

    /// Acknowledges everything through `psn`. An ACK that is still pending is coalesced with this
    /// one.
    #[inline]
    pub(super) fn acknowledge(&mut self, psn: Psn, msn: Msn) {
        if let Some(PendingResponse::Ack { psn: gap, kind: AckKind::Sack, .. }) = self.newest {
            // The gap that it reports has closed, or is reported again.
            let psn = if psn.since(gap) >= 0 { psn } else { gap.plus(Psn::HALF * 2 - 1) };
            self.newest = Some(PendingResponse::Ack { psn, msn, kind: AckKind::Ack });
            return;
        }
        // Rule: T-32.
        match &mut self.newest {
            Some(PendingResponse::Ack { psn: old, msn: count, kind: AckKind::Ack }) => {
                // A pending ACK that reaches further is not taken back.
                *old = if psn.since(*old) > 0 { psn } else { *old };
                *count = msn;
            }
            _ => self.push(PendingResponse::Ack { psn, msn, kind: AckKind::Ack }),
        }
    }

    /// Sends a NAK, RNR NAK or SACK, unless the same one is pending. A SACK says what an ACK before
    /// it does.
    pub(super) fn nak(&mut self, psn: Psn, msn: Msn, kind: AckKind) {
        if kind == AckKind::Sack
            && matches!(
                self.newest,
                Some(PendingResponse::Ack { kind: AckKind::Ack | AckKind::Sack, .. })
            )
        {
            self.newest = Some(PendingResponse::Ack { psn, msn, kind });
            return;
        }
        if let Some(PendingResponse::Ack { psn: last, kind: same, .. }) = self.newest
            && (last, same) == (psn, kind)
        {
            return;
        }
        // Rule: P-12.3.
        self.push(PendingResponse::Ack { psn, msn, kind });
    }

    /// Returns PSN and MSN of the SACK that is the next response, if it is one.
    pub(super) fn next_sack(&mut self) -> Option<(Psn, Msn)> {
        if self.cnp_pending {
            return None;
        }
        match self.oldest() {
            Some(PendingResponse::Ack { psn, msn, kind: AckKind::Sack }) => Some((*psn, *msn)),
            _ => None,
        }
    }

    /// Removes the SACK that was sent.
    pub(super) fn sack_sent(&mut self) {
        self.delayed_ack.stop();
        self.pop();
    }

    /// Replaces the SACK that is the next response by an ACK of everything through `psn`.
    pub(super) fn replace_sack(&mut self, through: Psn) {
        if let Some(PendingResponse::Ack { psn, kind, .. }) = self.oldest() {
            (*psn, *kind) = (through, AckKind::Ack);
        }
    }

    /// Notes that a packet from `peer` carried the mark "congestion experienced"; returns whether a
    /// CNP is to be sent for it. There is at most one in each `cnp_interval` of its scope.
    pub(super) fn request_cnp(&mut self, peer: Gid, env: &mut Env) -> bool {
        let after = match env.config.cnp_scope {
            CnpScope::Qp => &mut self.cnp_after,
            CnpScope::Peer => env.cnp_times.of_peer(peer, env.now),
            CnpScope::Port => env.cnp_times.of_port(),
        };
        let due = env.now >= *after;
        if due {
            *after = env.now.saturating_add(env.config.cnp_interval);
            self.cnp_pending = true;
        }
        due
    }

    /// Keeps the time of the next CNP, and forgets everything else.
    pub(super) fn reset(&mut self) {
        *self = Self { cnp_after: self.cnp_after, ..Self::default() };
    }

    /// Notes a request in sequence: the peer does not wait for the ACK that is delayed.
    #[inline]
    pub(super) fn note_request(&mut self) {
        self.delayed_ack.note_packet();
    }

    /// Sends the pending ACK before requests the next time.
    pub(super) fn expedite_ack(&mut self) {
        self.ack_first = true;
    }

    /// Whether the only pending response is an ACK that may be sent behind requests. Resets what
    /// [`expedite_ack`](Self::expedite_ack) set.
    pub(super) fn may_delay_ack(&mut self) -> bool {
        let ack_first = core::mem::take(&mut self.ack_first);
        let only_ack = matches!(self.newest, Some(PendingResponse::Ack { kind: AckKind::Ack, .. }))
            && self.earlier.is_empty();
        !ack_first && !self.cnp_pending && only_ack
    }

    /// Whether an ACK is delayed.
    #[inline]
    pub(super) fn is_ack_delayed(&self) -> bool {
        self.delayed_ack.is_running()
    }

    /// Delays the pending ACK, if the configuration and the peer's behavior allow it; returns
    /// whether it does.
    pub(super) fn delay_ack(&mut self, slot: SlotId, env: &mut Env) -> bool {
        let delay = env.config.ack_delay;
        let until = env.now.saturating_add(delay);
        !delay.is_zero() && self.delayed_ack.start(until, slot, &mut env.delayed_acks)
    }

    /// Takes the expiry of a delay that was to end at `until`; returns whether an ACK is to be sent
    /// now.
    pub(super) fn delay_expired(&mut self, until: Instant) -> bool {
        let due = self.delayed_ack.expired(until) && self.is_pending();
        self.ack_first |= due;
        due
    }

    /// Sends the next packet of the pending responses, if there is one. `credits` is what an ACK
    /// advertises.
    pub(super) fn transmit_next(
        &mut self,
        credits: Credits,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> Result<(), ReadFault> {
        if self.cnp_pending {
            self.cnp_pending = false;
            send_cnp(attr, env, batch);
            return Ok(());
        }
        let Some(response) = self.oldest().copied() else { return Ok(()) };
        match response {
            PendingResponse::Ack { psn, msn, kind } => {
                self.delayed_ack.stop();
                let answer = match kind {
                    AckKind::Ack => Answer::Ack(credits),
                    AckKind::RnrNak => Answer::RnrNak(attr.min_rnr_timer),
                    AckKind::Nak(code) => Answer::Nak(code),
                    AckKind::Sack => Answer::Nak(NakCode::PsnSequenceError),
                };
                send(Opcode::RC_ACKNOWLEDGE, psn, (answer, msn), None, attr, batch);
            }
            PendingResponse::Atomic { psn, original, msn, .. } => {
                let aeth = (Answer::Ack(credits), msn);
                send(Opcode::RC_ATOMIC_ACKNOWLEDGE, psn, aeth, Some(original), attr, batch);
            }
            PendingResponse::Empty { psn, msn, .. } => {
                let aeth = (Answer::Ack(credits), msn);
                send(Opcode::RC_RDMA_READ_RESPONSE_ONLY, psn, aeth, None, attr, batch);
            }
            PendingResponse::Read { .. } => {
                return self.send_read_data(response, credits, attr, env, batch);
            }
        }
        env.count(Counter::Sent);
        self.pop();
        Ok(())
    }

    /// Sends the next packet of a READ response.
    fn send_read_data(
        &mut self,
        response: PendingResponse,
        credits: Credits,
        attr: &Attributes,
        env: &mut Env,
        batch: &mut Batch,
    ) -> Result<(), ReadFault> {
        let PendingResponse::Read { psn, va, rkey, len, sent, msn, counts, part } = response else {
            return Ok(());
        };
        let count = packets(len, attr.mtu);
        let offset = sent * attr.mtu;
        let size = (len - offset).min(attr.mtu);
        let within = position(sent, count);
        let position = part.position(within);
        let opcode = READ_RESPONSES[position as usize];
        let aeth = (position != Position::Middle).then_some((Answer::Ack(credits), msn));
        let psn = psn.plus(sent);
        let mut draft = batch.draft();
        put_headers(&mut draft, opcode, psn, aeth, size, attr);
        draft.allow_reference(!position.ends());
        let filled = append_read(va.wrapping_add(offset.into()), rkey, size, attr, env, &mut draft);
        if filled.is_ok() {
            draft.finish();
        } else {
            drop(draft);
        }
        if filled.is_err() && !counts {
            // An error in the response to a duplicate is never NAKed.
            self.pop();
            env.count(Counter::NoReplay);
            return Ok(());
        }
        if filled.is_err() {
            self.clear_responses();
            return Err(ReadFault { psn });
        }
        env.count(Counter::Sent);
        if within.ends() {
            self.pop();
        } else if let Some(PendingResponse::Read { sent, .. }) = self.oldest() {
            *sent += 1;
        }
        Ok(())
    }
}

/// Sends a response of one packet without payload.
fn send(
    opcode: Opcode,
    psn: Psn,
    aeth: (Answer, Msn),
    original: Option<u64>,
    attr: &Attributes,
    batch: &mut Batch,
) {
    let mut draft = batch.draft();
    put_headers(&mut draft, opcode, psn, Some(aeth), 0, attr);
    if let Some(original) = original {
        draft.put(AtomicAckEthRepr { original }.emit().as_bytes());
    }
    draft.finish();
}

/// Appends BTH and AETH of a response with `payload` bytes.
fn put_headers(
    draft: &mut Draft<'_>,
    opcode: Opcode,
    psn: Psn,
    aeth: Option<(Answer, Msn)>,
    payload: u32,
    attr: &Attributes,
) {
    let bth = BthRepr::new(attr.opcode(opcode), attr.dest, psn);
    let bth = BthRepr { pkey: attr.pkey, pad: pad_for(payload), ..bth };
    draft.put(&bth.to_bytes());
    if let Some((answer, msn)) = aeth {
        draft.put(AethRepr { syndrome: answer.into(), msn }.emit().as_bytes());
    }
}

/// Appends bytes that the peer may read. The key is checked for every packet: the memory may have
/// been deregistered.
fn append_read(
    va: u64,
    rkey: RKey,
    len: u32,
    attr: &Attributes,
    env: &Env,
    draft: &mut Draft<'_>,
) -> Result<(), Refusal> {
    // C9-88: the key of a READ of zero bytes is not checked.
    if len == 0 {
        return Ok(());
    }
    // The domain of an XRC request's memory was checked when the request came.
    let pd = (attr.kind != QpType::XrcRecv).then_some(attr.pd);
    let (owner, needed) = (attr.window_owner(), Access::REMOTE_READ);
    let grant = env.keys.remote(pd, owner, rkey, va, len.into(), needed)?;
    draft.append(grant, len as usize, true)
}

/// Sends a SACK: all from `psn` to `base` is missing, and the packets of the bitmap are held. That
/// of a responder has the AETH of a NAK, that of a requester, for READ responses, of an ACK.
pub(super) fn send_sack(
    psn: Psn,
    aeth: (Answer, Msn),
    base: Psn,
    bitmap: Bitmap,
    attr: &Attributes,
    env: &mut Env,
    batch: &mut Batch,
) {
    let words = bitmap.last().map_or(0, |last| last / 64) + 1;
    let mut draft = batch.draft();
    put_headers(&mut draft, Opcode::RC_SELECTIVE_ACKNOWLEDGE, psn, Some(aeth), 0, attr);
    let sack = SackEthRepr { base, words: Bits::low(words) };
    draft.put(sack.emit().as_bytes());
    for word in bitmap.words().iter().take(words as usize) {
        draft.put(&word.to_be_bytes());
    }
    draft.finish();
    env.count(Counter::SackSent);
    env.count(Counter::Sent);
}

/// Sends a congestion notification.
fn send_cnp(attr: &Attributes, env: &mut Env, batch: &mut Batch) {
    let bth = BthRepr::new(Opcode::CNP, attr.dest, Psn::new(0));
    let bth = BthRepr { becn: true, pkey: attr.pkey, ..bth };
    if env.config.congestion.is_on() {
        // A CNP that waited behind data, or was marked itself, would come too late.
        let traffic_class = env.config.cnp_dscp << 2;
        batch.set_path(&Path { traffic_class, sl: env.config.cnp_priority & 7, ..attr.path });
    }
    let mut draft = batch.draft();
    draft.put(&bth.to_bytes());
    draft.put(CnpRepr {}.emit().as_bytes());
    draft.finish();
    batch.set_path(&attr.path);
    env.count(Counter::CnpSent);
    env.count(Counter::Sent);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty(psn: u32) -> PendingResponse {
        let (psn, msn) = (Psn::new(psn), Msn::new(0));
        PendingResponse::Empty { psn, msn, counts: psn.get().is_multiple_of(2) }
    }

    #[test]
    fn responses_are_sent_in_order() {
        let mut queue = ResponseQueue::default();
        (0..4).for_each(|psn| queue.push(empty(psn)));
        assert_eq!((queue.len(), queue.rd_atomics()), (4, 2));
        for next in 0..4 {
            let oldest = queue.oldest();
            assert!(
                matches!(oldest, Some(PendingResponse::Empty { psn, .. }) if psn.get() == next)
            );
            queue.pop();
        }
        assert!(!queue.is_pending() && queue.oldest().is_none());
    }

    #[test]
    fn acks_are_coalesced_and_never_go_back() {
        let mut queue = ResponseQueue::default();
        for (psn, msn) in [(5, 1), (9, 2), (7, 3)] {
            queue.acknowledge(Psn::new(psn), Msn::new(msn));
        }
        assert_eq!(queue.len(), 1);
        let newest = queue.newest;
        assert!(matches!(newest, Some(PendingResponse::Ack { psn, msn, kind: AckKind::Ack })
            if (psn.get(), msn.get()) == (9, 3)));
    }

    #[test]
    fn an_ack_does_not_pass_a_read_response() {
        let mut queue = ResponseQueue::default();
        queue.acknowledge(Psn::new(1), Msn::new(1));
        queue.push(empty(2));
        queue.acknowledge(Psn::new(3), Msn::new(3));
        assert_eq!(queue.len(), 3);
        assert!(!queue.may_delay_ack(), "it is not the only response");
    }

    #[test]
    fn the_same_nak_is_pending_once() {
        let mut queue = ResponseQueue::default();
        for psn in [4, 4, 4, 5] {
            queue.nak(Psn::new(psn), Msn::new(0), AckKind::RnrNak);
        }
        assert_eq!(queue.len(), 2);
    }

    #[test]
    fn an_expedited_ack_is_not_delayed_once() {
        let mut queue = ResponseQueue::default();
        queue.acknowledge(Psn::new(1), Msn::new(1));
        queue.expedite_ack();
        assert!(!queue.may_delay_ack());
        assert!(queue.may_delay_ack());
    }
}
