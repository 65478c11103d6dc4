//! Checks of the findings: each has a reason, and each reason has a finding.

use roce::analysis::{Certainty, Finding, FindingKind};
use roce::link::fault::Action;
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
            if !self.has_own_frames(finding) {
                self.say(format!("finding with another connection's frames: {finding:?}"));
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

    /// Whether a fault was injected into a packet of the connection, or of any if there is none.
    fn is_injected(&self, connection: Option<usize>, is: impl Fn(Action) -> bool) -> bool {
        self.truth.injected.iter().any(|fault| {
            let of = self.truth.transmissions[fault.transmission].connection;
            connection.is_none_or(|connection| connection == of) && is(fault.action)
        })
    }

    /// Whether a frame of the connection that `is` was captured, or of any if there is none.
    fn is_captured(
        &self,
        connection: Option<usize>,
        is: impl Fn(&Captured, &Transmission) -> bool,
    ) -> bool {
        self.seen.frames.iter().any(|(_, captured)| {
            let packet = &self.truth.transmissions[captured.transmission];
            connection.is_none_or(|connection| connection == packet.connection)
                && is(captured, packet)
        })
    }

    fn has_completed(&self, connection: Option<usize>, status: WcStatus) -> bool {
        self.truth.completed.iter().any(|done| {
            connection.is_none_or(|connection| connection == done.connection)
                && done.status == Some(status)
        })
    }

    /// The connection of the scenario that a finding is about.
    fn connection_of(&self, finding: &Finding) -> Option<usize> {
        let flow = finding.flow?;
        let known = self.seen.report.connections.iter().find(|known| known.flow == flow)?;
        self.seen.scenario_of(self.truth, known).map(|(index, _)| index)
    }

    /// Whether the frames of a finding are of the connection that it is about. What is damaged of a
    /// packet may be the queue pair number.
    fn has_own_frames(&self, finding: &Finding) -> bool {
        let Some(connection) = self.connection_of(finding) else { return true };
        finding.frames.iter().all(|&frame| {
            let captured = self.seen.frame(frame).1;
            captured.is_corrupted
                || self.truth.transmissions[captured.transmission].connection == connection
        })
    }

    /// Whether what a finding is about happened, on its connection.
    fn is_allowed(&self, finding: &Finding) -> bool {
        let is_likely = finding.certainty == Certainty::Likely;
        let of = self.connection_of(finding);
        let is_lost =
            |action: Action| matches!(action, Action::Drop | Action::Corrupt | Action::Delay(_));
        let loses = self.is_injected(of, is_lost);
        let is_datagram =
            of.is_some_and(|index| self.scenario.connections[index].kind == QpType::Ud);
        match finding.kind {
            FindingKind::Loss => loses,
            FindingKind::Corruption => self.is_captured(of, |captured, _| captured.is_corrupted),
            FindingKind::ReceiverNotReady => self.is_captured(of, |_, packet| packet.is_nak),
            FindingKind::Reordering | FindingKind::Delay => {
                self.is_injected(of, |action| matches!(action, Action::Delay(_)))
                    || (finding.kind == FindingKind::Reordering
                        && (self.is_answered_twice(of) || self.has_copy_of_lost(of)))
            }
            FindingKind::Duplication => self.is_copy_allowed(of),
            FindingKind::Congestion => self.is_injected(of, |action| action == Action::Mark),
            FindingKind::RetryLimit => self.has_completed(of, WcStatus::RetryExcErr),
            FindingKind::RnrRetryLimit => {
                self.has_completed(of, WcStatus::RnrRetryExcErr)
                    || (is_likely && self.is_silent_behind_rnr())
            }
            FindingKind::RequestRefused => self.has_completed(of, WcStatus::RemAccessErr),
            FindingKind::Retransmissions | FindingKind::Unanswered => {
                let mut packets = self.truth.transmissions.iter();
                packets.any(|packet| {
                    packet.cause.is_some() && of.is_none_or(|of| of == packet.connection)
                })
            }
            FindingKind::SlowResponder => {
                self.is_injected(of, |action| matches!(action, Action::Delay(_)))
            }
            FindingKind::Stall => {
                let mut packets = self.truth.transmissions.iter();
                loses
                    || packets.any(|packet| {
                        packet.cause.is_some() && of.is_none_or(|of| of == packet.connection)
                    })
            }
            // Datagrams of which PSNs are missing: likely lost.
            FindingKind::CaptureLoss => loses && is_datagram,
            _ => false,
        }
    }

    /// Whether the network copied a request: its second answer may come where a late first one
    /// would; see `cannot_tell_order`.
    fn is_answered_twice(&self, connection: Option<usize>) -> bool {
        let mut injected = self.truth.injected.iter();
        let is = !self.has_both_ends()
            && injected.any(|fault| {
                let packet = &self.truth.transmissions[fault.transmission];
                fault.action == Action::Duplicate
                    && packet.class == Class::Request
                    && connection.is_none_or(|connection| connection == packet.connection)
            });
        self.excuse("finding: reordering by a second answer", is)
    }

    /// Whether only the copy of a packet arrived; see `is_copy_of_lost`.
    fn has_copy_of_lost(&self, connection: Option<usize>) -> bool {
        let mut packets = self.truth.transmissions.iter().enumerate();
        packets.any(|(number, packet)| {
            connection.is_none_or(|connection| connection == packet.connection)
                && self.is_copy_of_lost(number)
        })
    }

    /// Whether the network made copies, or something that cannot be told from one; see
    /// `cannot_tell_copy`.
    fn is_copy_allowed(&self, connection: Option<usize>) -> bool {
        if self.is_injected(connection, |action| action == Action::Duplicate) {
            return true;
        }
        let numbers = 0..self.truth.transmissions.len();
        let mut numbers = numbers.filter(|&number| {
            let of = self.truth.transmissions[number].connection;
            connection.is_none_or(|connection| connection == of)
        });
        let is_late = |action| matches!(action, Action::Delay(_));
        let is_blind = |number: usize| {
            let packet = &self.truth.transmissions[number];
            packet.cause.is_some()
                && !self.has_point_of(packet.sender)
                && self.cannot_know_cause(number)
        };
        numbers.any(|number| self.is_delayed_twin(number) || is_blind(number))
            || self.excuse(
                "finding: copies by a delay",
                !self.has_both_ends() && self.is_injected(connection, is_late),
            )
    }

    /// The findings that there must be.
    fn needed(&self) -> Vec<(FindingKind, bool)> {
        let a_fails = |status| {
            let mut done = self.truth.completed.iter();
            self.has_point_of(0)
                && done.any(|done| {
                    (done.requester, done.status) == (0, Some(status))
                        && !self.cannot_know_outcome(done.connection, 0)
                })
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
            (FindingKind::Corruption, self.is_captured(None, |captured, _| captured.is_corrupted)),
        ]
    }
}
