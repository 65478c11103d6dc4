//! Spurious retransmissions: the requester timed out, and the first transmissions were answered
//! too, so that it need not have retransmitted them.
//!
//! Three observations prove it: the answer had passed the capture point, and the requester's host
//! was silent meanwhile, though the other end retransmitted requests to it; or the answer left the
//! responder before the first repeated packet came there, as capture points at both ends show; or
//! the last request in flight was repeated once and is answered twice. Acknowledgements prove that
//! for one packet only: a responder acknowledges every packet that it gets again, and the
//! acknowledgement of the first transmissions may have been lost.

use core::time::Duration;

use super::{Evidence, PacketFacts, Requester, RetransmissionCause};
use crate::observe::timing::RTT_LEAST;
use crate::time::{Instant, nanos};

/// Packets that a requester retransmitted, going back once, and for which no response asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    cause: RetransmissionCause,
    pass: u32,
    /// First frame.
    frame: u64,
    /// Sequence number behind all that was in flight when the first answer came.
    end: u64,
    packets: u64,
    bytes: u64,
    wait: Duration,
    /// Time when the first of them came to the capture point at the responder.
    arrived: Option<Instant>,
    /// Time when all that was in flight had been answered since.
    answered: Option<Instant>,
    is_spurious: bool,
}

impl Requester {
    /// The requester went back to `sequence` for `cause`, `wait` after it was transmitted last.
    pub(super) fn begin_round(
        &mut self,
        sequence: u64,
        cause: RetransmissionCause,
        wait: Duration,
        packet: &PacketFacts,
    ) {
        use RetransmissionCause::{Timeout, Unexplained};
        // An acknowledgement that passed the capture point did not reach the requester.
        let is_answered = self.is_spurious_after_pause(sequence);
        let is_open = is_answered || sequence >= self.progress.unacked;
        let is_open = is_open && matches!(cause, Timeout | Unexplained);
        self.reaction.round = is_open.then(|| Round {
            cause,
            pass: self.recovery.rewind().pass,
            frame: packet.frame,
            end: self.next(),
            packets: 0,
            bytes: 0,
            wait,
            arrived: None,
            answered: None,
            is_spurious: false,
        });
        if is_answered {
            self.count_spurious();
        }
    }

    /// Whether the requester's host had paused while the answer to `sequence`, which passed the
    /// capture point, waited for it.
    pub(super) fn is_spurious_after_pause(&self, sequence: u64) -> bool {
        self.reaction.has_paused && (sequence < self.progress.unacked || self.is_answered(sequence))
    }

    /// Adds a packet to the round that it belongs to. Returns the cause to count it for.
    pub(super) fn add_to_round(
        &mut self,
        cause: RetransmissionCause,
        packet: &PacketFacts,
    ) -> RetransmissionCause {
        let pass = self.recovery.rewind().pass;
        let round = self.reaction.round.as_mut();
        let Some(round) = round.filter(|round| (round.pass, round.cause) == (pass, cause)) else {
            return cause;
        };
        round.packets += 1;
        round.bytes += u64::from(packet.wire_len);
        round.arrived = round.arrived.or_else(|| packet.sightings().far);
        if round.is_spurious { RetransmissionCause::Spurious } else { cause }
    }

    /// A packet was sent that the capture point did not see before. If nothing was answered since
    /// the requester went back, its first transmission may have been lost before the point.
    pub(super) fn extend_round(&mut self) {
        let next = self.next();
        if let Some(round) = self.reaction.round.as_mut().filter(|round| round.answered.is_none()) {
            round.end = next;
        }
    }

    /// All before `acknowledged` is answered for the first time.
    pub(super) fn answer_round(&mut self, acknowledged: u64, packet: &PacketFacts) {
        let Some(round) = &mut self.reaction.round else { return };
        if acknowledged < round.end || round.answered.is_some() {
            return;
        }
        round.answered = Some(packet.time);
        let left = packet.sightings().far;
        if left.zip(round.arrived).is_some_and(|(left, arrived)| left < arrived) {
            self.count_spurious();
        }
    }

    /// The responder answers `sequence` once more; `is_response`: with data. What comes soon after
    /// the first answer may be a copy of it.
    pub(super) fn answer_round_again(
        &mut self,
        sequence: u64,
        is_response: bool,
        packet: &PacketFacts,
    ) {
        let apart = RTT_LEAST.max(self.round_trip.smoothed() / 2);
        let is_later = |answered: Instant| packet.time.saturating_since(answered) >= apart;
        let is_proof = |round: &Round| {
            round.answered.is_some_and(is_later)
                && sequence + 1 == round.end
                && (is_response || round.packets == 1)
        };
        // A repeated packet that is late is answered behind the others, too.
        if self.reaction.round.as_ref().is_some_and(is_proof) && !self.losses.has_late() {
            self.count_spurious();
        }
    }

    /// Counts the round as spurious, instead of for its cause.
    fn count_spurious(&mut self) {
        let Some(round) = self.reaction.round.as_mut().filter(|round| !round.is_spurious) else {
            return;
        };
        round.is_spurious = true;
        let Round { cause, frame, packets, bytes, wait, .. } = *round;
        let counter = self.statistics.retransmissions.of_mut(cause);
        counter.rewinds = counter.rewinds.saturating_sub(1);
        counter.packets = counter.packets.saturating_sub(packets);
        counter.bytes = counter.bytes.saturating_sub(bytes);
        counter.wait_nanos = counter.wait_nanos.saturating_sub(nanos(wait));
        let counter = self.statistics.retransmissions.of_mut(RetransmissionCause::Spurious);
        counter.rewinds += 1;
        counter.packets += packets;
        counter.bytes += bytes;
        counter.wait_nanos += nanos(wait);
        let evidence = self.evidence();
        evidence.rewinds[Evidence::slot(cause)].remove(frame);
        evidence.rewinds[Evidence::slot(RetransmissionCause::Spurious)].push(frame);
    }
}
