//! MSNs of answers.

use std::collections::VecDeque;

use super::answers::{Captured, undecided};
use super::rules;
use super::track::Track;
use crate::observe::sequence::PSN_JUMP_MAX;
use crate::replay::verdict::{Undecided, Verdict};
use crate::wire::Msn;

/// An MSN that is less by up to this much does not come from an old connection whose MSN is about
/// to wrap.
const FEWER_MAX: i32 = 1 << 16;

/// MSNs of one responder.
#[derive(Debug, Default)]
pub(super) struct Msns {
    /// MSN of the last request that was executed, as captured ones count.
    pub(super) current: Msn,
    /// The highest that was captured.
    top: Option<Msn>,
    /// Difference of captured ones and those of the engine.
    pub(super) offset: u32,
    /// Whether that is not known, and adopted from the next answer.
    pub(super) adopts: bool,
    /// Requests that the one that was adopted may count beyond the one that it answered.
    slack: i32,
    /// Last sequence number of messages, and their MSN.
    history: VecDeque<(u64, u32)>,
}

impl Msns {
    /// Forgets what was captured.
    pub(super) fn forget(&mut self) {
        self.history.clear();
        self.top = None;
    }

    /// Begins to count; `adopts`: from where, the next answer tells.
    pub(super) fn restart(&mut self, adopts: bool) {
        self.history.clear();
        let history = core::mem::take(&mut self.history);
        *self = Self { top: self.top, adopts, history, ..Self::default() };
    }

    /// Takes the MSN of an answer.
    pub(super) fn note(&mut self, msn: Msn) {
        if self.top.is_none_or(|top| msn.since(top) > 0) {
            self.top = Some(msn);
        }
    }

    /// Takes the MSN, as the engine counts, behind a request with this sequence number. At most
    /// `most` messages are remembered.
    pub(super) fn execute(&mut self, seq: u64, msn: Msn, most: usize) {
        let msn = msn.plus(self.offset);
        if msn != self.current {
            while self.history.len() >= most {
                self.history.pop_front();
            }
            self.history.push_back((seq, msn.get()));
        }
        self.current = msn;
    }

    /// Number of messages that are remembered.
    pub(super) fn remembered(&self) -> usize {
        self.history.len()
    }

    /// The MSN when this was executed; nothing if that is forgotten.
    pub(super) fn at(&self, seq: u64) -> Option<Msn> {
        let at = self.history.partition_point(|(last, _)| *last <= seq);
        let (_, msn) = self.history.get(at.checked_sub(1)?)?;
        Some(Msn::new(*msn))
    }
}

impl Track {
    /// Compares the MSN of an answer with that of the last request that was executed.
    pub(super) fn check_msn(&mut self, it: &Captured<'_>, frames: &[u64]) -> Option<Verdict> {
        let msn = it.msn?;
        if self.msns.adopts {
            self.msns.adopts = false;
            // The answer to a duplicate may have the MSN of its request, or the present one.
            let may_be_repeated = self.has_repeats || !self.is_complete;
            let is_ahead = may_be_repeated && self.counts_ahead(msn);
            self.msns.slack = if is_ahead { msn.since(self.msns.current) } else { 0 };
            if msn == self.msns.current {
                return None;
            }
            if (-FEWER_MAX..0).contains(&msn.since(self.msns.current)) {
                // However old the connection is, it counts what was executed since.
                return Some(self.wrong_msn(it, msn, frames));
            }
            // The connection is older than the capture.
            self.move_msn(msn.since(self.msns.current));
            return undecided(Undecided::BeforeCapture);
        }
        if self.corrects_msn(msn, self.msns.current) {
            return undecided(Undecided::BeforeCapture);
        }
        (msn != self.msns.current).then(|| self.wrong_msn(it, msn, frames))
    }

    /// Takes the MSN that was adopted for one that counted later requests, too, if that explains
    /// this one. Returns whether it does.
    pub(super) fn corrects_msn(&mut self, msn: Msn, expected: Msn) -> bool {
        let behind = expected.since(msn);
        let is_it = (1..=self.msns.slack).contains(&behind);
        if is_it {
            self.move_msn(-behind);
            self.msns.slack = 0;
        }
        is_it
    }

    /// Counts so many requests more, or less.
    fn move_msn(&mut self, by: i32) {
        let offset = u32::try_from(by & 0xff_ffff).unwrap_or(0);
        self.msns.offset = self.msns.offset.wrapping_add(offset) & 0xff_ffff;
        self.msns.history.clear();
        for asked in &mut self.asked {
            asked.msn = asked.msn.plus(offset);
        }
        self.msns.current = self.msns.current.plus(offset);
    }

    fn wrong_msn(&self, it: &Captured<'_>, msn: Msn, frames: &[u64]) -> Verdict {
        let found = format!("MSN {msn}, expected {}", self.msns.current);
        let expected = with_msn(it.packet, self.msns.current);
        // A NAK that counts fewer requests than come before its PSN names the wrong PSN.
        let is_behind = it.is_nak() && msn.since(self.msns.current) < 0;
        let rule = if is_behind { &rules::NAK_PSN } else { &rules::RESPONSE_MSN };
        it.differs(rule, found, Some(expected), frames)
    }

    /// Whether an answer to a duplicate may have this MSN: the present one, which counts requests
    /// that were executed and whose answers were not captured.
    pub(super) fn may_count(&self, msn: Msn) -> bool {
        msn == self.msns.current || self.has_repeats && self.counts_ahead(msn)
    }

    /// Whether an MSN counts requests whose answers were not captured yet, and no more.
    pub(super) fn counts_ahead(&self, msn: Msn) -> bool {
        let ahead = msn.since(self.msns.current);
        let unanswered = self.pending.iter().filter(|request| request.info.position.ends()).count();
        usize::try_from(ahead).is_ok_and(|ahead| ahead <= unanswered)
    }

    /// Whether an MSN may count requests that were not captured: between those whose answers were
    /// not captured yet, or behind the last one.
    pub(super) fn counts_missing(&self, msn: Msn) -> bool {
        let ahead = u64::try_from(msn.since(self.msns.current));
        !self.is_complete && ahead.is_ok_and(|ahead| ahead < PSN_JUMP_MAX)
    }

    /// Whether the answer to a duplicate that was not captured, or that the network made behind the
    /// capture point, may have this MSN: it counts requests whose answers were not captured yet, or
    /// that were not captured and another answer counts.
    pub(super) fn may_answer_unseen(&self, msn: Msn) -> bool {
        let is_known = !self.is_complete && self.msns.top.is_some_and(|top| msn.since(top) <= 0);
        self.arrivals.is_none()
            && (self.counts_ahead(msn) || is_known && msn.since(self.msns.current) >= 0)
    }
}

/// The packet with another MSN.
pub(super) fn with_msn(packet: &[u8], msn: Msn) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if let Some(place) = packet.get_mut(13..16) {
        place.copy_from_slice(msn.get().to_be_bytes().get(1..).unwrap_or_default());
    }
    packet
}
