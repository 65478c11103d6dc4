//! Packets that a requester sent, and how far they are acknowledged.

use super::records::Marks;
use crate::observe::disorder::Disorder;
use crate::observe::sequence::PsnSpace;
use crate::observe::transmissions::Transmissions;
use crate::time::Instant;

/// A frame and its time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) time: Instant,
    pub(super) frame: u64,
}

/// Packets that a requester sent, and how far they are acknowledged.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    pub(super) space: PsnSpace,
    /// First sequence number that is not acknowledged.
    pub(super) unacked: u64,
    /// Frame that acknowledged the last request that is: an ACK, a NAK or a response; 0: none.
    pub(super) frame: u64,
    pub(super) records: Transmissions<Marks>,
    /// PSNs that were skipped and are not known yet to be lost or missed by the capture.
    pub(super) gaps: u64,
    /// Packets that were skipped while others around them were retransmitted, and of which that is
    /// not known.
    pub(super) skips: u64,
    pub(super) disorder: Disorder,
    pub(super) last_request: Seen,
    /// Time when the capture point at the responder saw a request last.
    last_far: Option<Instant>,
    /// Request packets that were new.
    pub(super) new_packets: u64,
}

impl Progress {
    /// Lowest sequence number that is remembered or not acknowledged.
    pub(super) fn lowest(&self) -> u64 {
        let first =
            self.records.first().map_or_else(|| self.space.next(), |record| record.sequence);
        first.min(self.unacked)
    }

    /// Whether something was sent that is not acknowledged.
    pub(super) fn is_unacknowledged(&self) -> bool {
        self.space.is_started() && self.unacked < self.space.next()
    }

    /// Notes the last request, and when the capture point at the responder saw it.
    pub(super) fn note_request(&mut self, request: Seen, far: Option<Instant>) {
        self.last_request = request;
        self.last_far = far.or(self.last_far);
    }

    /// Time when the capture point at the responder saw a request last.
    pub(super) fn last_far(&self) -> Option<Instant> {
        self.last_far
    }
}
