//! Names of kinds and services in reports.

use super::CaptureFacts;
use super::finding::FindingKind;
use crate::time::nanos;
use crate::wire::Service;

/// The name of a transport service.
pub const fn service_name(service: Service) -> &'static str {
    match service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Rd => "RD",
        Service::Ud => "UD",
        Service::Cnp => "CNP",
        Service::Xrc => "XRC",
    }
}

impl FindingKind {
    /// The name of the kind in JSON, in tables and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RetryLimit => "retry_limit",
            Self::RnrRetryLimit => "rnr_retry_limit",
            Self::Unanswered => "unanswered",
            Self::RequestRefused => "request_refused",
            Self::ConnectionRefused => "connection_refused",
            Self::ConnectionUnanswered => "connection_unanswered",
            Self::ProtocolViolation => "protocol_violation",
            Self::Corruption => "corruption",
            Self::Loss => "loss",
            Self::ReceiverNotReady => "receiver_not_ready",
            Self::Reordering => "reordering",
            Self::Duplication => "duplication",
            Self::Retransmissions => "retransmissions",
            Self::SlowResponder => "slow_responder",
            Self::Delay => "delay",
            Self::Congestion => "congestion",
            Self::MtuMismatch => "mtu_mismatch",
            Self::Stall => "stall",
            Self::CaptureLoss => "capture_loss",
            Self::BeyondLimits => "beyond_limits",
        }
    }

    /// The kind in a few words.
    pub const fn title(self) -> &'static str {
        match self {
            Self::RetryLimit => "retry limit reached",
            Self::RnrRetryLimit => "RNR retry limit reached",
            Self::Unanswered => "requests without an answer",
            Self::RequestRefused => "request refused",
            Self::ConnectionRefused => "connection refused",
            Self::ConnectionUnanswered => "connection request without an answer",
            Self::ProtocolViolation => "protocol violation",
            Self::Corruption => "corruption",
            Self::Loss => "packet loss",
            Self::ReceiverNotReady => "receiver not ready",
            Self::Reordering => "reordering",
            Self::Duplication => "duplication",
            Self::Retransmissions => "retransmissions",
            Self::SlowResponder => "slow responder",
            Self::Delay => "delay",
            Self::Congestion => "congestion",
            Self::MtuMismatch => "MTU mismatch",
            Self::Stall => "stall",
            Self::CaptureLoss => "incomplete capture",
            Self::BeyondLimits => "beyond the limits of the analysis",
        }
    }

    /// Advice on what to look at. Text, page and guide have the same.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::RetryLimit => {
                "Was the peer gone, the path cut, or every retransmission lost? Does every \
                 hop carry packets of this size? Compare the ACK timeout with the path's \
                 RTT."
            }
            Self::RnrRetryLimit => {
                "Post receives earlier or more of them, or raise rnr_retry (7: no limit)."
            }
            Self::Unanswered => {
                "Is the peer up and the path whole? If no packet of full size was ever \
                 answered: does every hop carry the path MTU?"
            }
            Self::RequestRefused => {
                "An error of the program: check R_Key, address, access flags and length of \
                 the request."
            }
            Self::ConnectionRefused => {
                "See the reject reason; is the server listening on this port?"
            }
            Self::ConnectionUnanswered => {
                "Is the host up, is something listening, and are packets of QP 1 filtered?"
            }
            Self::ProtocolViolation => "Look at firmware and driver of that end.",
            Self::Corruption => {
                "Look at links, cables and NIC memory. If all packets of a host are wrong, \
                 the capture was taken before its NIC computed the ICRC."
            }
            Self::Loss => {
                "Look at drop counters of the switches; is the priority lossless (PFC, ECN) \
                 on every hop? Many timeouts mean that the tails of messages are lost."
            }
            Self::ReceiverNotReady => {
                "Post more receives, or earlier; a larger SRQ; a faster consumer; a smaller \
                 RNR timer if they are rare."
            }
            Self::Reordering => {
                "Look for packet spraying or a LAG that hashes per packet: hash per flow."
            }
            Self::Duplication => {
                "Look for loops and mirror ports, or a capture that sees packets on their \
                 way in and out."
            }
            Self::Retransmissions => {
                "Captures at both ends, read together, tell lost packets from late ones."
            }
            Self::SlowResponder => {
                "Look at the responder's CPU and memory, and for a stopped process; a \
                 capture there shows whether answers were delayed on the way."
            }
            Self::Delay => "Look at queues, PFC pauses and routes between these points.",
            Self::Congestion => {
                "Few CNPs for many marks: the receiver's notification point is off. Marks \
                 without slowing down: the sender's reaction point is off."
            }
            Self::MtuMismatch => {
                "Set the same path MTU at both ends; the smaller one costs throughput."
            }
            Self::Stall => {
                "A slow responder: look at its CPU and memory. A slow way: look at PFC \
                 pauses and queues. Captures at both ends tell which."
            }
            Self::CaptureLoss => {
                "Capture with larger buffers, a capture filter or a shorter snap length."
            }
            Self::BeyondLimits => "Split the capture, or use --filter.",
        }
    }

    /// Severity: 0 if a connection or a request failed, 1 if time or packets were lost, 2 if only
    /// the picture is incomplete.
    pub const fn severity(self) -> u8 {
        match self {
            Self::RetryLimit
            | Self::RnrRetryLimit
            | Self::Unanswered
            | Self::RequestRefused
            | Self::ConnectionRefused
            | Self::ConnectionUnanswered
            | Self::ProtocolViolation
            | Self::Corruption => 0,
            Self::Loss
            | Self::ReceiverNotReady
            | Self::Reordering
            | Self::Duplication
            | Self::Retransmissions
            | Self::SlowResponder
            | Self::Delay
            | Self::Congestion
            | Self::MtuMismatch
            | Self::Stall => 1,
            Self::CaptureLoss | Self::BeyondLimits => 2,
        }
    }
}

impl CaptureFacts {
    /// Nanoseconds from the first packet to the last.
    pub fn duration_nanos(&self) -> u64 {
        match (self.first_time, self.last_time) {
            (Some(first), Some(last)) => nanos(last.saturating_since(first)),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_called_the_same_everywhere() {
        for (position, kind) in FindingKind::ALL.into_iter().enumerate() {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
            assert_eq!(kind as usize, position);
        }
    }

    #[test]
    fn guide_has_a_row_for_each_kind_with_the_advice_of_reports() {
        let guide = include_str!("../../docs/flows.md");
        for kind in FindingKind::ALL {
            let (head, tail) = (format!("| {} |", kind.title()), format!("| {} |", kind.advice()));
            let row = guide.lines().find(|line| line.starts_with(&head));
            assert!(row.is_some_and(|row| row.ends_with(&tail)), "{head} … {tail}");
        }
    }
}
