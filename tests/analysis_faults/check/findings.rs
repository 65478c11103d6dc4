//! What the findings may be about, and what they must be about.

use roce::analysis::{Certainty, Finding, FindingKind};
use roce::link::mem::Action;
use roce::verbs::{QpType, WcStatus};

use super::super::plan::Class;
use super::super::truth::{Captured, Transmission};
use super::Check;

impl Check<'_> {
    /// No finding without a reason, and one for everything that was counted.
    pub(super) fn findings(&self) {
        for finding in &self.seen.report.findings {
            if !self.is_allowed(finding) {
                self.say(format!("finding without a reason: {:?} {}", finding.kind, finding.text));
            }
        }
        for (kind, is_needed) in self.needed() {
            if is_needed && !self.has(kind) {
                self.say(format!("no finding {kind:?}"));
            }
        }
    }

    fn has(&self, kind: FindingKind) -> bool {
        self.seen.report.findings.iter().any(|finding| finding.kind == kind)
    }

    fn is_injected(&self, is: impl Fn(Action) -> bool) -> bool {
        self.truth.injected.iter().any(|fault| is(fault.action))
    }

    fn is_captured(&self, is: impl Fn(&Captured) -> bool) -> bool {
        self.seen.frames.iter().any(|(_, captured)| is(captured))
    }

    fn has_completed(&self, status: WcStatus) -> bool {
        self.truth.completed.iter().any(|done| done.status == Some(status))
    }

    /// Whether what a finding is about happened.
    fn is_allowed(&self, finding: &Finding) -> bool {
        let is_likely = finding.certainty == Certainty::Likely;
        let loses = self.is_injected(|action| {
            matches!(action, Action::Drop | Action::Corrupt | Action::Delay(_))
        });
        let has_datagrams = self.scenario.connections.iter().any(|plan| plan.kind == QpType::Ud);
        match finding.kind {
            FindingKind::Loss => loses,
            FindingKind::Corruption => self.is_captured(|captured| captured.is_corrupted),
            FindingKind::ReceiverNotReady => {
                self.is_captured(|captured| self.truth.transmissions[captured.transmission].is_nak)
            }
            FindingKind::Reordering | FindingKind::Delay => {
                self.is_injected(|action| matches!(action, Action::Delay(_)))
                    || (finding.kind == FindingKind::Reordering && self.is_answered_twice())
            }
            FindingKind::Duplication => self.is_copy_allowed(),
            FindingKind::Congestion => self.is_injected(|action| action == Action::Mark),
            FindingKind::RetryLimit => self.has_completed(WcStatus::RetryExcErr),
            FindingKind::RnrRetryLimit => {
                self.has_completed(WcStatus::RnrRetryExcErr)
                    || (is_likely && self.is_silent_behind_rnr())
            }
            FindingKind::RequestRefused => self.has_completed(WcStatus::RemAccessErr),
            FindingKind::Stall => {
                loses || self.truth.transmissions.iter().any(|packet| packet.cause.is_some())
            }
            // Datagrams of which PSNs are missing: likely lost.
            FindingKind::CaptureLoss => loses && has_datagrams,
            _ => false,
        }
    }

    /// Whether the network copied a request: its second answer may come where a late first one would; see
    /// `cannot_tell_order`.
    fn is_answered_twice(&self) -> bool {
        let mut injected = self.truth.injected.iter();
        !self.has_both_ends()
            && injected.any(|fault| {
                fault.action == Action::Duplicate
                    && self.truth.transmissions[fault.transmission].class == Class::Request
            })
    }

    /// Whether the network made copies, or something that cannot be told from one.
    fn is_copy_allowed(&self) -> bool {
        // See `cannot_tell_copy`.
        let is_blind = |packet: &Transmission| {
            packet.cause.is_some()
                && !self.has_point_of(packet.sender)
                && self.cannot_know_cause(packet)
        };
        self.is_injected(|action| action == Action::Duplicate)
            || self.truth.transmissions.iter().any(|packet| self.is_delayed_twin(packet))
            || (!self.has_both_ends()
                && self.is_injected(|action| matches!(action, Action::Delay(_))))
            || self.truth.transmissions.iter().any(is_blind)
    }

    /// The findings that there must be.
    fn needed(&self) -> Vec<(FindingKind, bool)> {
        let a_fails = |status| {
            let mut done = self.truth.completed.iter();
            self.has_point_of(0)
                && done.any(|done| done.requester == 0 && done.status == Some(status))
        };
        let statistics = &self.seen.report.totals.all;
        let is_rnr_counted = statistics.rnr_naks > 0 && !self.has(FindingKind::RnrRetryLimit);
        vec![
            (FindingKind::RnrRetryLimit, a_fails(WcStatus::RnrRetryExcErr)),
            (FindingKind::RequestRefused, a_fails(WcStatus::RemAccessErr)),
            (FindingKind::RetryLimit, a_fails(WcStatus::RetryExcErr)),
            (FindingKind::Loss, statistics.lost_requests + statistics.lost_responses > 0),
            (FindingKind::Duplication, statistics.duplicate_packets > 0),
            (FindingKind::Reordering, statistics.reordered > 0),
            (FindingKind::Congestion, statistics.ce_marked > 0),
            (FindingKind::ReceiverNotReady, is_rnr_counted),
            (FindingKind::Corruption, self.is_captured(|captured| captured.is_corrupted)),
        ]
    }
}
