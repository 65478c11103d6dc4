//! What is known more if the capture was made at the responder: every captured request arrived, in this order, and every
//! answer was captured.

use super::rules;
use super::track::{State, Track, psn_of};
use crate::replay::judge::Sink;
use crate::replay::verdict::{Difference, Step, Verdict};

/// Requests in the order in which they arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrivals {
    /// The sequence number that the responder expects; `None` before the first request.
    expected: Option<u64>,
    /// The gap that it must report, and the frame of the packet behind it.
    gap: Option<(u64, u64)>,
    /// Whether it answered anything.
    is_alive: bool,
}

impl Arrivals {
    /// A request arrives. Returns the gap that should have been reported by now, and the packet behind it.
    pub(super) fn request(&mut self, seq: u64, span: u64, frame: u64) -> Option<(u64, u64)> {
        let expected = *self.expected.get_or_insert(seq);
        if seq > expected {
            self.gap.get_or_insert((expected, frame));
            return None;
        }
        if seq < expected {
            return None;
        }
        self.expected = Some(seq + span);
        self.gap.take()
    }

    /// A NAK or RNR NAK names the sequence number that it expects. Whether that one had arrived.
    pub(super) fn refused(&mut self, seq: u64) -> bool {
        self.is_alive = true;
        self.gap = self.gap.filter(|(gap, _)| *gap != seq);
        let has_arrived = self.expected.is_some_and(|expected| expected > seq);
        self.expected = self.expected.map(|expected| expected.min(seq));
        has_arrived
    }

    /// An acknowledgement or response came.
    pub(super) fn answered(&mut self) {
        self.is_alive = true;
    }
}

impl Track {
    /// A gap was not reported.
    pub(super) fn missing_nak(&self, gap: u64, frames: &[u64], frame: u64) -> Step {
        let found = format!("no NAK for PSN {}, and it was retransmitted", psn_of(gap));
        self.missing(&rules::NAK_MISSING, found, frames, frame)
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
        let Some(arrivals) = self.arrivals else { return };
        if self.state != State::Known || !arrivals.is_alive {
            return;
        }
        if let Some(front) = self.pending.front()
            && front.seq == self.epsn
            && front.transmissions > 1
            && self.reported.is_none()
        {
            let (psn, name) = (psn_of(front.seq), front.info.name);
            let found = format!("{name} with PSN {psn} came {} times", front.transmissions);
            let frames = [front.frame];
            out.step(self.missing(&rules::RESPONSE_MISSING, found, &frames, front.last_frame));
        }
        for (at, asked) in self.asked.iter().enumerate() {
            let is_short = asked.next < asked.request.end();
            let is_last = at + 1 == self.asked.len();
            if asked.repeats > 0 && is_last && (is_short || !asked.is_repeat_answered) {
                let (psn, name) = (psn_of(asked.request.seq), asked.request.info.name);
                let found = format!("{name} with PSN {psn} was retransmitted and not answered");
                let frames = [asked.request.frame];
                let frame = asked.repeat_frame;
                out.step(self.missing(&rules::RESPONSE_MISSING, found, &frames, frame));
            }
        }
    }
}
