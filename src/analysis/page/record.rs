//! Records of packets, losses and messages that the page keeps.

use crate::analysis::{
    Certainty, LossNote, LossPlace, Message, Outcome, PacketFacts, PacketNote, PacketRole,
    RetransmissionCause,
};
use crate::observe::end::End;
use crate::wire::{IcrcVerdict, Operation};

/// Record of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketRecord {
    pub(super) time: u64,
    pub(super) sequence: u64,
    pub(super) frame: u64,
    pub(super) payload_len: u32,
    pub(super) wire_len: u32,
    /// The MSN of the AETH, or the length of the RETH; `flags` say whether there is one.
    pub(super) extra: u32,
    pub(super) flags: u16,
    pub(super) opcode: u8,
    pub(super) syndrome: u8,
}

/// The bits of [`PacketRecord::flags`]; `decode.js` has the same.
mod flag {
    pub(super) const SENDER: u16 = 1;
    pub(super) const ROLE_SHIFT: u16 = 1;
    pub(super) const CAUSE_SHIFT: u16 = 4;
    pub(super) const DUPLICATE: u16 = 1 << 7;
    pub(super) const REORDERED: u16 = 1 << 8;
    pub(super) const CE: u16 = 1 << 9;
    pub(super) const CORRUPT: u16 = 1 << 10;
    pub(super) const ACK_REQUEST: u16 = 1 << 11;
    pub(super) const AETH: u16 = 1 << 12;
    pub(super) const RETH: u16 = 1 << 13;
}

impl PacketRecord {
    pub(super) fn new(facts: &PacketFacts, note: &PacketNote) -> Self {
        let mut flags = role_code(note.role) << flag::ROLE_SHIFT;
        flags |= note.retransmission.map_or(0, cause_code) << flag::CAUSE_SHIFT;
        for (is_set, bit) in [
            (note.sender == End::B, flag::SENDER),
            (note.duplicate, flag::DUPLICATE),
            (note.reordered, flag::REORDERED),
            (facts.is_ce_marked, flag::CE),
            (facts.icrc == IcrcVerdict::Bad, flag::CORRUPT),
            (facts.ack_request, flag::ACK_REQUEST),
            (facts.aeth.is_some(), flag::AETH),
            (facts.reth.is_some(), flag::RETH),
        ] {
            flags |= if is_set { bit } else { 0 };
        }
        Self {
            time: facts.time.as_nanos(),
            sequence: note.sequence,
            frame: facts.frame,
            payload_len: facts.payload_len,
            wire_len: facts.wire_len,
            extra: match (facts.aeth, facts.reth) {
                (Some((_, msn)), _) => msn.get(),
                (None, Some(reth)) => reth.length,
                (None, None) => 0,
            },
            flags,
            opcode: facts.opcode.0,
            syndrome: facts.aeth.map_or(0, |(syndrome, _)| syndrome.0),
        }
    }

    /// Whether it tells more than that traffic flowed: such packets are thinned out last.
    pub(super) fn is_notable(&self) -> bool {
        let role = (self.flags >> flag::ROLE_SHIFT) & 7;
        let plain = [PacketRole::Request, PacketRole::Ack, PacketRole::Response].map(role_code);
        let cause = (self.flags >> flag::CAUSE_SHIFT) & 7;
        let marks = flag::DUPLICATE | flag::REORDERED | flag::CORRUPT;
        !plain.contains(&role) || cause != 0 || self.flags & marks != 0
    }

    /// Returns the record for exchanged ends of the connection.
    pub(super) fn exchanged(mut self) -> Self {
        self.flags ^= flag::SENDER;
        self
    }

    pub(super) fn has_aeth(&self) -> bool {
        self.flags & flag::AETH != 0
    }

    pub(super) fn has_extra(&self) -> bool {
        self.flags & (flag::AETH | flag::RETH) != 0
    }

    /// Returns the end whose PSN space the packet belongs to.
    pub(super) fn requester(&self) -> End {
        let sender = End::A.exchanged_if(self.flags & flag::SENDER != 0);
        let role = (self.flags >> flag::ROLE_SHIFT) & 7;
        let own = [PacketRole::Request, PacketRole::Management].map(role_code);
        sender.exchanged_if(!own.contains(&role))
    }
}

fn role_code(role: PacketRole) -> u16 {
    match role {
        PacketRole::Request => 0,
        PacketRole::Ack => 1,
        PacketRole::Response => 2,
        PacketRole::Nak => 3,
        PacketRole::Rnr => 4,
        PacketRole::Cnp => 5,
        PacketRole::Management => 6,
    }
}

fn cause_code(cause: RetransmissionCause) -> u16 {
    match cause {
        RetransmissionCause::Timeout => 1,
        RetransmissionCause::SequenceNak => 2,
        RetransmissionCause::ImpliedNak => 3,
        RetransmissionCause::Rnr => 4,
        RetransmissionCause::Spurious => 5,
        RetransmissionCause::Unexplained => 6,
    }
}

/// Record of a lost packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossRecord {
    /// Time at which the loss became known.
    pub(super) time: u64,
    pub(super) sequence: u64,
    /// Frame of the packet; 0 if it was not captured.
    pub(super) frame: u64,
    pub(super) proof: u64,
    pub(super) sender: End,
    pub(super) is_request: bool,
    pub(super) is_likely: bool,
    /// Place of the loss; 0: before the capture point; 1: after it; 2: between two.
    pub(super) place: u8,
}

impl LossRecord {
    pub(super) fn new(note: &LossNote, time: u64) -> Self {
        Self {
            time,
            sequence: note.sequence,
            frame: note.frame.unwrap_or(0),
            proof: note.proof,
            sender: note.sender,
            is_request: note.role == PacketRole::Request,
            is_likely: note.certainty == Certainty::Likely,
            place: match note.place {
                LossPlace::BeforeCapturePoint => 0,
                LossPlace::AfterCapturePoint => 1,
                LossPlace::Between { .. } => 2,
            },
        }
    }

    pub(super) fn flags(&self) -> u8 {
        self.sender as u8
            | u8::from(self.is_request) << 1
            | u8::from(self.is_likely) << 2
            | self.place << 3
    }
}

/// Record of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageRecord {
    pub(super) start: u64,
    /// Time of the end; of the begin, if the message did not end.
    pub(super) end: u64,
    pub(super) bytes: u64,
    pub(super) first_frame: u64,
    /// Frame that ended it; 0 if none did.
    pub(super) end_frame: u64,
    pub(super) requester: End,
    pub(super) operation: Operation,
    pub(super) outcome: u8,
}

impl MessageRecord {
    pub(super) fn new(message: &Message) -> Self {
        Self {
            start: message.start.as_nanos(),
            end: message.end.unwrap_or(message.start).as_nanos(),
            bytes: message.bytes,
            first_frame: message.first_frame,
            end_frame: message.end_frame.unwrap_or(0),
            requester: message.requester,
            operation: message.operation,
            outcome: match message.outcome {
                Outcome::Completed => 0,
                Outcome::Refused(_) => 1,
                Outcome::RnrRetryExceeded => 2,
                Outcome::RetryExceeded => 3,
                Outcome::Flushed => 4,
                Outcome::InFlight => 5,
                Outcome::Incomplete => 6,
            },
        }
    }

    pub(super) fn flags(&self) -> u8 {
        self.requester as u8 | self.outcome << 1
    }
}
