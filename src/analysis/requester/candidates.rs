//! Whether a response can be one to this requester, while it is not known whose it is.

use super::{PacketFacts, Requester};
use crate::observe::mtu::MTUS;
use crate::wire::{OpcodeInfo, Operation};

impl Requester {
    /// Whether a response with this PSN and opcode answers something that this requester has in
    /// flight.
    pub(in crate::analysis) fn can_explain(&self, packet: &PacketFacts, info: &OpcodeInfo) -> bool {
        if !self.progress.space.is_started() {
            return false;
        }
        let sequence = self.sequence_of(packet.psn);
        let first =
            self.progress.records.first().map_or_else(|| self.next(), |record| record.sequence);
        if sequence < first.max(self.progress.unacked.saturating_sub(1)) {
            return false;
        }
        if sequence >= self.next() {
            return info.operation == Operation::ReadResponse
                && self.sizes.may_be_unsized(sequence);
        }
        match info.operation {
            Operation::ReadResponse | Operation::AtomicAcknowledge => self
                .messages
                .find(sequence)
                .is_some_and(|message| message.operation.response().is_by(info.operation)),
            _ => true,
        }
    }

    /// Whether a READ response has as many bytes as the READ that it answers has at that place,
    /// with one of the path MTUs.
    pub(in crate::analysis) fn fits_read(&self, packet: &PacketFacts, info: &OpcodeInfo) -> bool {
        let sequence = self.sequence_of(packet.psn);
        let known = self.messages.find(sequence);
        let known = known.and_then(|message| Some((message.first, message.reth?.length)));
        let Some((read, length)) = known.or_else(|| self.sizes.unsized_read()) else {
            return false;
        };
        let Some(offset) = sequence.checked_sub(read) else { return false };
        MTUS.into_iter().filter(|mtu| [0, *mtu].contains(&self.sizes.mtu())).any(|mtu| {
            let end = offset * u64::from(mtu) + u64::from(packet.payload_len);
            if info.position.ends() {
                end == u64::from(length)
            } else {
                packet.payload_len == mtu && end < u64::from(length)
            }
        })
    }
}
