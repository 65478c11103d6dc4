//! READ responses and ATOMIC acknowledgements that a requester was sent, and those that are
//! missing.

use core::ops::Range;
use std::collections::VecDeque;

use super::limits::{ENDED_READS_MAX, MISSING_RESPONSES_MAX, RESPONSES_MAX, STRAY_SKIPS_MAX};
use crate::observe::responses::ResponseRuns;

/// A READ or ATOMIC that ended lately.
#[derive(Clone, Copy, Debug)]
struct EndedRead {
    first: u64,
    last: u64,
    /// Whether it was requested more than once.
    is_repeated: bool,
}

/// A response that was captured.
#[derive(Clone, Copy, Debug)]
struct Captured {
    sequence: u64,
    frame: u64,
}

/// READ responses and ATOMIC acknowledgements of one requester.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadResponses {
    pub(super) runs: ResponseRuns,
    /// Last responses.
    captured: VecDeque<Captured>,
    /// Responses that are missing.
    missing: Vec<u64>,
    /// Responses that were lost between two capture points.
    lost_between: Vec<u64>,
    /// READs and ATOMICs that ended lately.
    ended: VecDeque<EndedRead>,
    /// The answer that the responder repeats, if the last response belongs to one.
    pub(super) stray: Option<StrayRun>,
}

/// Responses to a request that was answered before or was not captured: the responder sends all
/// of them, in order.
#[derive(Clone, Debug)]
pub(super) struct StrayRun {
    last: u64,
    /// Responses before the last one that did not come yet.
    skipped: Range<u64>,
}

impl StrayRun {
    /// Returns the run of a response, which is the first of it that was captured.
    pub(super) fn new(sequence: u64) -> Self {
        Self { last: sequence, skipped: 0..0 }
    }

    /// Takes a response; returns whether it belongs to the run: it is the next one, one that
    /// overtook a few, or one that was overtaken.
    pub(super) fn take(&mut self, sequence: u64) -> bool {
        let next = self.last + 1;
        if (next..=next + STRAY_SKIPS_MAX).contains(&sequence) {
            if sequence > next {
                self.skipped = next..sequence;
            }
            self.last = sequence;
            return true;
        }
        self.skipped.contains(&sequence)
    }

    /// Whether a response has the sequence number of the last one.
    pub(super) fn is_last(&self, sequence: u64) -> bool {
        self.last == sequence
    }
}

impl ReadResponses {
    /// Remembers a response.
    pub(super) fn remember(&mut self, sequence: u64, frame: u64) {
        if self.captured.len() >= RESPONSES_MAX {
            self.captured.pop_front();
        }
        self.captured.push_back(Captured { sequence, frame });
    }

    /// Returns the frame of the last response with a sequence number.
    pub(super) fn frame_of(&self, sequence: u64) -> Option<u64> {
        let mut captured = self.captured.iter().rev();
        captured.find(|response| response.sequence == sequence).map(|response| response.frame)
    }

    /// Remembers a READ or ATOMIC that ended.
    pub(super) fn remember_ended(&mut self, first: u64, last: u64, is_repeated: bool) {
        if self.ended.len() >= ENDED_READS_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(EndedRead { first, last, is_repeated });
    }

    fn ended(&self, sequence: u64) -> Option<usize> {
        self.ended.iter().rposition(|read| (read.first..=read.last).contains(&sequence))
    }

    /// Whether the READ or ATOMIC that ended lately and has a sequence number was requested more
    /// than once.
    pub(super) fn is_ended_repeated(&self, sequence: u64) -> Option<bool> {
        self.ended.get(self.ended(sequence)?).map(|read| read.is_repeated)
    }

    /// Notes that a READ or ATOMIC that ended lately was requested once more.
    pub(super) fn repeat_ended(&mut self, sequence: u64) {
        if let Some(read) = self.ended(sequence).and_then(|at| self.ended.get_mut(at)) {
            read.is_repeated = true;
        }
    }

    /// Adds responses that are missing, as many as there is room for.
    pub(super) fn add_missing(&mut self, sequences: Range<u64>) {
        let room = MISSING_RESPONSES_MAX.saturating_sub(self.missing.len());
        self.missing.extend(sequences.take(room));
    }

    /// Whether a response is missing.
    pub(super) fn is_missing(&self, sequence: u64) -> bool {
        self.missing.contains(&sequence)
    }

    /// The first response that is missing.
    pub(super) fn first_missing(&self) -> Option<u64> {
        self.missing.iter().copied().min()
    }

    /// Takes a response that was missing. Returns whether it was.
    pub(super) fn take_missing(&mut self, sequence: u64) -> bool {
        let at = self.missing.iter().position(|&missing| missing == sequence);
        at.map(|at| self.missing.swap_remove(at)).is_some()
    }

    /// Responses of a READ that are missing.
    pub(super) fn missing_in(
        &self,
        sequences: core::ops::RangeInclusive<u64>,
    ) -> impl Iterator<Item = u64> {
        self.missing.iter().copied().filter(move |missing| sequences.contains(missing))
    }

    /// Forgets responses that are missing and are requested again.
    pub(super) fn request_again(&mut self, sequences: Range<u64>) {
        self.missing.retain(|missing| !sequences.contains(missing));
    }

    /// Forgets all requests and what is missing.
    pub(super) fn resynchronize(&mut self) {
        self.runs.clear();
        self.missing.clear();
    }

    /// Remembers a response that was lost between two capture points.
    pub(super) fn remember_lost(&mut self, sequence: u64) {
        if self.lost_between.len() >= MISSING_RESPONSES_MAX {
            self.lost_between.remove(0);
        }
        self.lost_between.push(sequence);
    }

    /// Takes a response that was lost between two capture points. Returns whether it was.
    pub(super) fn take_lost(&mut self, sequence: u64) -> bool {
        let before = self.lost_between.len();
        self.lost_between.retain(|&lost| lost != sequence);
        self.lost_between.len() < before
    }
}
