//! Causes of retransmissions, and the retransmissions for each.

use serde::Serialize;

use crate::observe::requester::recovery::Signal;

/// Cause of a retransmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RetransmissionCause {
    /// No acknowledgement came within the retransmission timeout.
    Timeout,
    /// The responder reported a gap: NAK with the code PSN sequence error.
    SequenceNak,
    /// A later response arrived while that of an earlier READ or ATOMIC was missing (§9.7.5.1.1
    /// "implied NAK").
    ImpliedNak,
    /// The responder had no receive posted: RNR NAK.
    Rnr,
    /// None that was due: the first transmissions were answered too, after the requester had timed
    /// out. This shows only later: a packet's own note has the cause for which it was sent.
    Spurious,
    /// None that the capture shows: no response asked for it, and it came too soon for a timeout.
    Unexplained,
}

impl From<Signal> for RetransmissionCause {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::SequenceError => Self::SequenceNak,
            Signal::ImpliedNak => Self::ImpliedNak,
            Signal::RnrNak => Self::Rnr,
        }
    }
}

impl RetransmissionCause {
    /// Number of causes.
    pub(crate) const COUNT: usize = 6;

    /// All causes.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Timeout,
        Self::SequenceNak,
        Self::ImpliedNak,
        Self::Rnr,
        Self::Spurious,
        Self::Unexplained,
    ];

    /// Name in reports for machines.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::SequenceNak => "sequence_nak",
            Self::ImpliedNak => "implied_nak",
            Self::Rnr => "rnr",
            Self::Spurious => "spurious",
            Self::Unexplained => "unexplained",
        }
    }

    /// Name in reports for people.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::SequenceNak => "sequence NAK",
            Self::ImpliedNak => "implied NAK",
            Self::Rnr => "RNR",
            Self::Spurious => "spurious",
            Self::Unexplained => "unexplained",
        }
    }
}

/// Retransmitted packets by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Retransmissions {
    /// Retransmissions after a timeout.
    pub timeout: Retransmitted,
    /// Retransmissions after a NAK with the code PSN sequence error.
    pub sequence_nak: Retransmitted,
    /// Retransmissions after a response that implied the loss of an earlier one.
    pub implied_nak: Retransmitted,
    /// Retransmissions after an RNR NAK.
    pub rnr: Retransmitted,
    /// Retransmissions that were not needed: the first transmissions were answered too.
    pub spurious: Retransmitted,
    /// Retransmissions for no cause that the capture shows.
    pub unexplained: Retransmitted,
}

/// Retransmissions for one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Retransmitted {
    /// Number of times that the requester went back.
    pub rewinds: u64,
    /// Packets that it retransmitted.
    pub packets: u64,
    /// Wire bytes of these packets.
    pub bytes: u64,
    /// Nanoseconds between the first transmission of the packet it went back to (the last, if it
    /// had gone back to it before) and the retransmission, in all.
    pub wait_nanos: u64,
}

impl Retransmissions {
    /// Retransmissions for one cause.
    pub const fn of(&self, cause: RetransmissionCause) -> &Retransmitted {
        match cause {
            RetransmissionCause::Timeout => &self.timeout,
            RetransmissionCause::SequenceNak => &self.sequence_nak,
            RetransmissionCause::ImpliedNak => &self.implied_nak,
            RetransmissionCause::Rnr => &self.rnr,
            RetransmissionCause::Spurious => &self.spurious,
            RetransmissionCause::Unexplained => &self.unexplained,
        }
    }

    /// Retransmissions for one cause.
    pub(super) const fn of_mut(&mut self, cause: RetransmissionCause) -> &mut Retransmitted {
        match cause {
            RetransmissionCause::Timeout => &mut self.timeout,
            RetransmissionCause::SequenceNak => &mut self.sequence_nak,
            RetransmissionCause::ImpliedNak => &mut self.implied_nak,
            RetransmissionCause::Rnr => &mut self.rnr,
            RetransmissionCause::Spurious => &mut self.spurious,
            RetransmissionCause::Unexplained => &mut self.unexplained,
        }
    }

    /// All causes together.
    pub fn total(&self) -> Retransmitted {
        let mut total = Retransmitted::default();
        RetransmissionCause::ALL.iter().for_each(|&cause| total.add(self.of(cause)));
        total
    }

    pub(super) fn add(&mut self, other: &Self) {
        RetransmissionCause::ALL.iter().for_each(|&cause| self.of_mut(cause).add(other.of(cause)));
    }
}

impl Retransmitted {
    fn add(&mut self, other: &Self) {
        self.rewinds += other.rewinds;
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.wait_nanos += other.wait_nanos;
    }
}
