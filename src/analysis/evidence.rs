//! Frames that show what went wrong, kept for the findings.

use super::limits::EVIDENCE_MAX;
use super::message::Message;
use super::{RethFacts, RetransmissionCause};
use crate::wire::aeth::{NakCode, RnrTimer};

/// The first few frames of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frames {
    frames: [u64; EVIDENCE_MAX],
    len: u8,
}

impl Frames {
    /// Adds a frame, if there is room for it.
    pub(super) fn push(&mut self, frame: u64) {
        if let Some(slot) = self.frames.get_mut(usize::from(self.len)) {
            *slot = frame;
            self.len += 1;
        }
    }

    /// Removes a frame.
    pub(super) fn remove(&mut self, frame: u64) {
        let before = core::mem::take(self);
        before.as_slice().iter().filter(|&&one| one != frame).for_each(|&one| self.push(one));
    }

    /// The frames in the order in which they were added.
    pub(super) fn as_slice(&self) -> &[u64] {
        self.frames.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// Evidence that a direction keeps for its findings. Most directions have none.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    /// Lost requests: the packet where it was captured, and the frame that proves the loss.
    pub(super) lost_requests: Frames,
    pub(super) lost_responses: Frames,
    /// Losses that are only likely.
    pub(super) likely_losses: u64,
    /// Losses by where they happened: before the capture point, behind it.
    pub(super) places: [u64; 2],
    /// Losses between two capture points: the files, and how many.
    pub(super) between: Vec<(u16, u16, u64)>,
    /// Lost packets whose ICRC was wrong where they were captured.
    pub(super) corrupted_losses: u64,
    /// The first packet of each rewind, by cause.
    pub(super) rewinds: [Frames; RetransmissionCause::COUNT],
    /// The longest wait for a rewind, by cause.
    pub(super) longest_wait: [u64; RetransmissionCause::COUNT],
    pub(super) duplicates: Frames,
    pub(super) reordered: Frames,
    pub(super) icrc_errors: Frames,
    pub(super) ce_marks: Frames,
    pub(super) cnps: Frames,
    pub(super) naks: Frames,
    pub(super) rnrs: Frames,
    pub(super) rnr_timer: Option<RnrTimer>,
    pub(super) rnr_timers_differ: bool,
    pub(super) not_captured: Frames,
    /// NAKs of PSNs that had been acknowledged: the NAK and the acknowledgement.
    pub(super) naks_of_acknowledged: Frames,
    /// Answers that came long after the last retransmission.
    pub(super) slow_answers: Frames,
    /// Responses to PSNs that the requester never sent.
    pub(super) ghost_responses: Frames,
    /// Responses in packets of another size than the requests: the response, the request.
    pub(super) mtu_frames: [u64; 2],
    pub(super) refusals: Vec<Refusal>,
    pub(super) failure: Option<Failure>,
}

impl Evidence {
    /// Counts a loss between two capture points.
    pub(super) fn add_between(&mut self, from: u16, to: u16) {
        let known = self.between.iter_mut().find(|known| (known.0, known.1) == (from, to));
        if let Some((.., count)) = known {
            *count += 1;
        } else if self.between.len() < EVIDENCE_MAX {
            self.between.push((from, to, 1));
        }
    }

    /// The slot of a cause in the tables above.
    pub(super) const fn slot(cause: RetransmissionCause) -> usize {
        cause as usize
    }
}

/// A request that was refused.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) code: NakCode,
    pub(super) frame: u64,
    pub(super) message: Message,
    pub(super) reth: Option<RethFacts>,
}

/// The failure of a requester that gave up.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// Rewinds without progress before it.
    pub(super) attempts: u32,
    /// The frame of the last ACK, NAK or response that acknowledged a request; 0 if there was none.
    pub(super) first_frame: u64,
    /// The frame of its last packet, or of the last RNR NAK.
    pub(super) last_frame: u64,
    /// Time from the first transmission of the request to `last_frame`.
    pub(super) time_nanos: u64,
    /// Time from `last_frame` to the end of the capture.
    pub(super) silence_nanos: u64,
    /// The last PSN that was acknowledged.
    pub(super) last_acked: Option<u32>,
    /// Whether it has given up; else the capture ends first.
    pub(super) is_over: bool,
    pub(super) message: Message,
    /// Messages in flight behind it.
    pub(super) flushed: u64,
}
