//! One requester: its PSN space, what it has in flight, and what is known of the path to its
//! responder.
//!
//! The state is what an observer between the two ends can know, in parts:
//!
//! - [`Progress`]: packets that it sent, and how far they are acknowledged; [`ReadSizes`]: how many
//!   of them a READ takes; [`InflightMessages`]: the messages that they belong to.
//! - [`Answers`]: acknowledgements and NAKs; [`ReadResponses`]: responses with data;
//!   [`NotReady`]: RNR NAKs.
//! - [`Recovery`]: where it went back to, and what asks for that; [`Reaction`]: why it did so;
//!   [`RoundTrip`]: times that tell one cause from another.
//! - [`Corrupt`], [`Losses`]: what was damaged and what was lost, until that is told.
//!
//! A packet enters by `handle_request`, `handle_response` or `handle_unreliable`.

mod answers;
mod candidates;
mod corrupt;
mod counting;
mod ending;
mod inflight;
mod losses;
mod lost_packets;
mod naks;
mod not_ready;
mod progress;
mod read_responses;
mod read_sizes;
mod records;
mod recovery;
mod requests;
mod responses;
mod retransmissions;
mod spurious;
mod unreliable;

use core::time::Duration;

use answers::Answers;
use corrupt::Corrupt;
pub(super) use counting::operation_mut;
use inflight::InflightMessages;
use losses::Losses;
use not_ready::NotReady;
use progress::Progress;
use read_responses::ReadResponses;
use read_sizes::ReadSizes;
use recovery::{Reaction, Tentative};
pub(super) use responses::role_of;

use super::budget::Budget;
use super::connection::{Blame, Direction};
use super::evidence::{Evidence, Frames};
use super::{
    Certainty, End, FlowNumber, LossNote, LossPlace, LostBetween, Message, PacketFacts, PacketRole,
    RethFacts, RetransmissionCause, Sink, limits,
};
use crate::observe::requester::recovery::Recovery;
use crate::observe::round_trip::RoundTrip;
use crate::wire::{Psn, Role, Service};

/// Context of a requester: its flow and end, and the sink that it reports to.
pub(super) struct Scene<'a> {
    pub(super) sink: &'a mut dyn Sink,
    pub(super) budget: &'a mut Budget,
    pub(super) flow: FlowNumber,
    /// End of the flow that the requester is.
    pub(super) requester: End,
}

/// Meaning of one packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Verdict {
    pub(super) sequence: u64,
    pub(super) retransmission: Option<RetransmissionCause>,
    pub(super) duplicate: bool,
    pub(super) reordered: bool,
}

/// State of one requester.
#[derive(Clone, Debug, Default)]
pub(super) struct Requester {
    progress: Progress,
    sizes: ReadSizes,
    messages: InflightMessages,
    answers: Answers,
    reads: ReadResponses,
    not_ready: NotReady,
    recovery: Recovery,
    reaction: Reaction,
    /// A rewind of one packet so far: the next packet shows whether that was late instead.
    tentative: Option<Box<Tentative>>,
    round_trip: RoundTrip,
    corrupt: Corrupt,
    losses: Losses,
    /// Whether a NAK or silence ended it.
    is_failed: bool,
    /// UC: whether a message is incomplete, so that its further packets do not count.
    is_dropping: bool,
    /// Greatest latency of a message that ended since it was last asked for.
    latency_max: u64,
    statistics: Direction,
    evidence: Option<Box<Evidence>>,
}

impl Requester {
    fn evidence(&mut self) -> &mut Evidence {
        self.evidence.get_or_insert_default()
    }

    /// Sequence number behind the highest that it sent.
    fn next(&self) -> u64 {
        self.progress.space.next()
    }

    /// Returns the sequence number of a PSN: the one nearest to what is sent next.
    #[inline]
    fn sequence_of(&self, psn: Psn) -> u64 {
        self.progress.space.sequence_of(psn)
    }

    /// Whether a PSN is so far from everything in flight that it cannot belong to this connection.
    #[inline]
    pub(super) fn is_far(&self, psn: Psn) -> bool {
        self.progress.space.is_far(psn, self.progress.lowest())
    }

    /// Whether requests are in flight, as far as the capture tells.
    pub(super) fn is_inflight(&self) -> bool {
        !self.is_failed && (!self.messages.is_empty() || self.progress.is_unacknowledged())
    }

    /// Whether a NAK or silence ended it.
    pub(super) fn is_failed(&self) -> bool {
        self.is_failed
    }

    /// Returns the statistics.
    pub(super) fn statistics(&self) -> &Direction {
        &self.statistics
    }

    /// Returns the statistics.
    pub(super) fn statistics_mut(&mut self) -> &mut Direction {
        &mut self.statistics
    }

    /// Frames that show what went wrong, if anything did.
    pub(super) fn evidence_or_none(&self) -> Option<&Evidence> {
        self.evidence.as_deref()
    }

    /// Path MTU in bytes, if it is known.
    pub(super) fn path_mtu(&self) -> Option<u16> {
        u16::try_from(self.sizes.mtu()).ok().filter(|&mtu| mtu > 0)
    }

    /// Takes what the connection manager agreed: the retransmission timeout and the path MTU.
    pub(super) fn agree(&mut self, timeout: Option<Duration>, path_mtu: Option<u16>) {
        self.round_trip.agree_timeout(timeout);
        path_mtu.into_iter().for_each(|mtu| self.set_mtu(mtu.into()));
    }

    /// Whether a response may make it go back, so that the round trips of the other end matter.
    #[inline]
    pub(super) fn is_asked_to_go_back(&self) -> bool {
        self.recovery.is_asked()
    }

    /// Takes whether its host paused before the request that is handled next.
    #[inline]
    pub(super) fn set_paused(&mut self, has_paused: bool) {
        self.reaction.has_paused = has_paused;
    }

    /// Whether it retransmits, and had no answer since.
    pub(super) fn is_unanswered(&self) -> bool {
        self.reaction.attempts > 0
    }

    /// Takes the round-trip time of the requests of the other end.
    pub(super) fn set_peer_round_trip(&mut self, peer: &RoundTrip) {
        self.round_trip.set_peer(peer);
    }

    /// Round-trip time and timeouts.
    pub(super) fn round_trip(&self) -> &RoundTrip {
        &self.round_trip
    }

    /// Takes the greatest latency of a message that ended since the last call.
    pub(super) fn take_latency_max(&mut self) -> u64 {
        core::mem::take(&mut self.latency_max)
    }

    /// Returns the place where most of a silence passed that a response ends, if capture points at
    /// both ends tell.
    pub(super) fn blame_for(&self, packet: &PacketFacts, silence: Duration) -> Option<Blame> {
        let answered = packet.sightings().far?;
        let info = packet.opcode.info().filter(|info| info.role == Role::Response)?;
        let requested = self.progress.last_far().filter(|_| info.service != Service::Ud)?;
        let at_responder = answered.saturating_since(requested);
        Some(if at_responder > silence / 2 { Blame::Responder } else { Blame::Network })
    }

    /// Keeps frames with marks and CNPs as evidence.
    pub(super) fn keep_congestion_frames(&mut self, marks: Option<Frames>, cnps: Option<Frames>) {
        marks.into_iter().for_each(|frames| self.evidence().ce_marks = frames);
        cnps.into_iter().for_each(|frames| self.evidence().cnps = frames);
    }
}
