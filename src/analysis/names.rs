//! How kinds and services are called in reports.

use super::CaptureFacts;
use super::finding::FindingKind;
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
    /// The kind in a few words.
    pub const fn title(self) -> &'static str {
        match self {
            Self::RetryLimit => "retry limit reached",
            Self::RnrRetryLimit => "RNR retry limit reached",
            Self::RequestRefused => "request refused",
            Self::ConnectionRefused => "connection refused",
            Self::ProtocolViolation => "protocol violation",
            Self::Corruption => "corruption",
            Self::Loss => "packet loss",
            Self::ReceiverNotReady => "receiver not ready",
            Self::Reordering => "reordering",
            Self::Duplication => "duplication",
            Self::Delay => "delay",
            Self::Congestion => "congestion",
            Self::MtuMismatch => "MTU mismatch",
            Self::Stall => "stall",
            Self::CaptureLoss => "incomplete capture",
            Self::BeyondLimits => "beyond the limits of the analysis",
        }
    }

    /// How bad it is: 0 where a connection or a request failed, 1 where time or packets were lost, 2 where only the
    /// picture is incomplete.
    pub const fn severity(self) -> u8 {
        match self {
            Self::RetryLimit
            | Self::RnrRetryLimit
            | Self::RequestRefused
            | Self::ConnectionRefused
            | Self::ProtocolViolation
            | Self::Corruption => 0,
            Self::Loss
            | Self::ReceiverNotReady
            | Self::Reordering
            | Self::Duplication
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
            (Some(first), Some(last)) => last.as_nanos().saturating_sub(first.as_nanos()),
            _ => 0,
        }
    }
}
