//! Arrivals at the responder, if the capture was made there: every captured request arrived, in
//! this order, and every answer was captured.

use std::collections::VecDeque;

use super::rules;
use super::track::{State, Track};
use crate::observe::sequence::psn_of;
use crate::replay::judge::Sink;
use crate::replay::limits::OPEN_MAX;
use crate::replay::verdict::{Difference, Step, Verdict};

/// A gap that the responder must report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    /// The sequence number that is missing.
    pub(super) seq: u64,
    /// The frame of the packet behind it.
    pub(super) behind: u64,
    /// The frame of the missing packet, when it came.
    pub(super) arrival: Option<u64>,
}

/// Requests in the order in which they arrived. Answers may lag behind.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrivals {
    /// The sequence number that the responder expects; `None` before the first request.
    expected: Option<u64>,
    /// Whether it refused that one, or its refusal is pending.
    is_refused: bool,
    /// Gaps that were not reported yet.
    gaps: VecDeque<Gap>,
    /// Whether it answered anything.
    is_alive: bool,
}

impl Arrivals {
    /// A request arrives.
    pub(super) fn request(&mut self, seq: u64, span: u64, frame: u64) {
        let expected = *self.expected.get_or_insert(seq);
        if seq > expected && !self.is_refused {
            self.is_refused = true;
            if self.gaps.len() < OPEN_MAX {
                self.gaps.push_back(Gap { seq: expected, behind: frame, arrival: None });
            }
        } else if seq == expected {
            if let Some(gap) = self.gaps.back_mut().filter(|gap| gap.seq == seq) {
                gap.arrival.get_or_insert(frame);
            }
            (self.expected, self.is_refused) = (Some(seq + span), false);
        }
    }

    /// A sequence NAK names the sequence number that it expects. Whether it had arrived, without a
    /// gap before.
    pub(super) fn reported(&mut self, seq: u64) -> bool {
        if !core::mem::replace(&mut self.is_alive, true) {
            // Where the connection stood at first, only this tells.
            self.gaps.clear();
            (self.expected, self.is_refused) = (Some(seq), true);
            return false;
        }
        if let Some(at) = self.gaps.iter().position(|gap| gap.seq == seq) {
            self.gaps.drain(..=at);
            return false;
        }
        let has_arrived = self.expected.is_some_and(|expected| expected > seq);
        if has_arrived {
            (self.expected, self.is_refused) = (Some(seq), true);
        }
        has_arrived
    }

    /// A request was refused, for good or for lack of a receive: what arrived behind it was
    /// dropped.
    pub(super) fn refused(&mut self, seq: u64) {
        self.is_alive = true;
        self.gaps.retain(|gap| gap.seq < seq);
        (self.expected, self.is_refused) = (Some(seq), true);
    }

    /// An acknowledgement or response came. Returns a gap before it that was not reported.
    pub(super) fn answered(&mut self, seq: u64) -> Option<Gap> {
        self.is_alive = true;
        if self.expected.is_none_or(|expected| expected <= seq) {
            (self.expected, self.is_refused) = (Some(seq + 1), false);
        }
        let gap = *self.gaps.front().filter(|gap| gap.seq <= seq && gap.arrival.is_some())?;
        self.gaps.pop_front();
        Some(gap)
    }
}

impl Track {
    /// A gap was not reported.
    pub(super) fn missing_nak(&self, gap: &Gap) -> Step {
        let found = format!("no NAK for PSN {}, and it was retransmitted", psn_of(gap.seq));
        let frame = gap.arrival.unwrap_or(gap.behind);
        self.missing(&rules::NAK_MISSING, found, &[gap.behind], frame)
    }

    fn missing(
        &self,
        rule: &'static crate::replay::Rule,
        found: String,
        frames: &[u64],
        frame: u64,
    ) -> Step {
        let (captured, expected, frames) = (None, None, frames.to_vec());
        let difference = Difference { rule, found, captured, expected, frames };
        self.step(frame, Verdict::Different(Box::new(difference)))
    }

    /// The capture is over: requests that were never answered.
    pub(super) fn finish_arrivals(&self, out: &mut dyn Sink) {
        let Some(arrivals) = &self.arrivals else { return };
        if self.state != State::Known || !arrivals.is_alive || self.may_have_failed {
            return;
        }
        if let Some(front) = self.pending.front()
            && front.seq == self.epsn
            && front.transmissions > 1
            && self.reported.is_none()
            // A key that cannot be invalidated ends a connection without a word (§9.9.6.3).
            && self.pending.iter().all(|request| request.invalidated().is_none())
        {
            let (psn, name) = (psn_of(front.seq), front.info.name);
            let found = format!("{name} with PSN {psn} came {} times", front.transmissions);
            let frames = [front.frame];
            out.step(self.missing(&rules::RESPONSE_MISSING, found, &frames, front.last_frame));
        }
        for (at, asked) in self.asked.iter().enumerate() {
            let is_last = at + 1 == self.asked.len();
            let is_short = asked.next < asked.request.end();
            // A key that was invalidated meanwhile lets duplicates go unanswered.
            let is_valid = !self.has_invalidated;
            if asked.repeats > 0 && is_last && is_valid && (is_short || !asked.is_repeat_answered) {
                let (psn, name) = (psn_of(asked.request.seq), asked.request.info.name);
                let found = format!("{name} with PSN {psn} was retransmitted and not answered");
                let frames = [asked.request.frame];
                let frame = asked.repeat_frame;
                out.step(self.missing(&rules::RESPONSE_MISSING, found, &frames, frame));
            }
        }
    }
}
