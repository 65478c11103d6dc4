//! Bytes in flight of a requester, measured each time it sends.

use std::collections::VecDeque;

use crate::analysis::{Distribution, PacketFacts, PacketNote, PacketRole};
use crate::wire::{Operation, Service};

/// Maximum number of request packets in flight. Of a requester with more the bytes in flight are
/// not told.
const PACKETS_MAX: usize = 16_384;

/// Request packets that are not acknowledged, and the distribution of their bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct InflightMeter {
    /// Sequence number and bytes. Of a READ these are the bytes that it asks for.
    unacknowledged: VecDeque<(u64, u64)>,
    bytes: u64,
    highest: Option<u64>,
    is_answered: bool,
    is_crowded: bool,
    sent: Distribution,
}

impl InflightMeter {
    /// Takes a request of this requester.
    fn request(&mut self, facts: &PacketFacts, sequence: u64) {
        if self.is_crowded || self.highest.is_some_and(|highest| sequence <= highest) {
            return;
        }
        self.highest = Some(sequence);
        let is_read =
            facts.opcode.info().is_some_and(|info| info.operation == Operation::ReadRequest);
        let asked = facts.reth.filter(|_| is_read).map(|reth| reth.length);
        let bytes = u64::from(asked.unwrap_or(facts.payload_len));
        self.unacknowledged.push_back((sequence, bytes));
        self.bytes += bytes;
        self.sent.add(self.bytes);
        if self.unacknowledged.len() > PACKETS_MAX {
            self.is_crowded = true;
            self.unacknowledged = VecDeque::new();
        }
    }

    /// All requests before `end` are acknowledged.
    fn acknowledge(&mut self, end: u64) {
        self.is_answered = true;
        while let Some(&(sequence, bytes)) = self.unacknowledged.front() {
            if sequence >= end {
                break;
            }
            self.bytes -= bytes;
            self.unacknowledged.pop_front();
        }
    }

    /// A response to a READ or an ATOMIC, whose request is the last one that is not behind it.
    fn respond(&mut self, sequence: u64, payload_len: u32) {
        let behind = self.unacknowledged.partition_point(|&(first, _)| first <= sequence);
        let Some(&(first, _)) = behind.checked_sub(1).and_then(|at| self.unacknowledged.get(at))
        else {
            return;
        };
        self.acknowledge(first);
        let Some((_, bytes)) = self.unacknowledged.front_mut() else { return };
        let arrived = u64::from(payload_len).min(*bytes);
        *bytes -= arrived;
        self.bytes -= arrived;
        if *bytes == 0 {
            self.unacknowledged.pop_front();
        }
    }

    /// Bytes in flight after each request; nothing if no answer was captured, or too much was in
    /// flight.
    pub(super) fn sent(&self) -> Option<&Distribution> {
        Some(&self.sent).filter(|_| self.is_answered && !self.is_crowded)
    }
}

/// Takes a packet of a connection, of whose ends each has a meter.
pub(super) fn measure(meters: &mut [InflightMeter; 2], facts: &PacketFacts, note: &PacketNote) {
    let is_reliable = facts
        .opcode
        .info()
        .is_some_and(|info| matches!(info.service, Service::Rc | Service::Xrc | Service::Rd));
    if !is_reliable || note.duplicate {
        return;
    }
    let (sender, sequence) = (note.sender, note.sequence);
    match note.role {
        PacketRole::Request => meters[sender].request(facts, sequence),
        PacketRole::Ack => meters[sender.other()].acknowledge(sequence + 1),
        PacketRole::Nak | PacketRole::Rnr => meters[sender.other()].acknowledge(sequence),
        PacketRole::Response => meters[sender.other()].respond(sequence, facts.payload_len),
        PacketRole::Cnp | PacketRole::Management => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(meter: &InflightMeter) -> (u64, u64) {
        let percentiles = meter.sent().unwrap().percentiles();
        (percentiles.count, percentiles.max)
    }

    fn meter_of(requests: &[(u64, u64)]) -> InflightMeter {
        let mut meter = InflightMeter::default();
        for &(sequence, bytes) in requests {
            meter.unacknowledged.push_back((sequence, bytes));
            meter.bytes += bytes;
            meter.sent.add(meter.bytes);
        }
        meter
    }

    #[test]
    fn acknowledged_bytes_are_not_in_flight() {
        let mut meter = meter_of(&[(5, 1000), (6, 1000), (7, 100)]);
        assert!(meter.sent().is_none());
        meter.acknowledge(7);
        assert_eq!((meter.bytes, sent(&meter)), (100, (3, 2100)));
        meter.acknowledge(7);
        assert_eq!(meter.bytes, 100);
    }

    #[test]
    fn read_is_in_flight_until_its_last_response() {
        // A READ of three packets and a SEND behind it.
        let mut meter = meter_of(&[(5, 2500), (8, 100)]);
        meter.respond(5, 1000);
        meter.respond(6, 1000);
        assert_eq!(meter.bytes, 600);
        meter.respond(7, 500);
        assert_eq!((meter.bytes, meter.unacknowledged.len()), (100, 1));
        meter.respond(3, 1000);
        assert_eq!(meter.bytes, 100);
    }
}
