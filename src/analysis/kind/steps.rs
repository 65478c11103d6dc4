//! Steps from one PSN of a flow to the next: whether a capture was sampled.

use super::super::{PacketFacts, Unsplit};
use crate::wire::aeth::{Answer, NakCode};
use crate::wire::{Operation, Position, Psn, Role, Service};

/// Flows whose latest PSN is remembered. A flow that takes the slot of another begins anew.
const FLOWS: usize = 1024;

/// Longest step that is a gap; a longer one is another connection's.
const GAP_MAX: i32 = 1 << 16;

/// Fewest steps by which a capture is said to be sampled.
const STEPS_MIN: u64 = 8;

/// Fewest steps if all of them are gaps.
const GAPS_MIN: u64 = 4;

/// Shortest packet from its BTH through its ICRC.
const PACKET_MIN: u32 = 16;

/// Smallest share of gaps among the steps of a sampled capture, in percent: of one that has every
/// second packet by chance, half of the steps are gaps.
const GAPS_MIN_PERCENT: u64 = 40;

/// Largest share of reactions to loss for each gap of a sampled capture, in percent. Where packets
/// are lost, NAKs and retransmissions follow.
const REACTIONS_MAX_PERCENT: u64 = 10;

/// Payload that one response carries with any path MTU.
const ONE_RESPONSE: u32 = 256;

/// Steps between packets of a flow that follow each other in a capture.
#[derive(Clone, Debug, Default)]
pub(super) struct Steps {
    /// Steps to the next PSN.
    plain: u64,
    /// Steps over other PSNs, and how many they are.
    gaps: u64,
    skipped: u64,
    /// Gaps of them behind frames that may be trains, and not longer than those.
    behind_trains: u64,
    /// NAKs for a PSN sequence error, and steps back.
    reactions: u64,
    latest: Vec<Option<Latest>>,
}

/// Latest packet of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Latest {
    key: u64,
    psn: Psn,
    /// Whether the PSN of the packet behind it is known: not behind a READ of several responses.
    tells_next: bool,
    /// Maximum number of packets in its frame.
    packets: u16,
}

// A quarter of a line of a cache.
const _: () = assert!(size_of::<Option<Latest>>() == 16);

impl Steps {
    /// Counts the step to a packet.
    #[inline]
    pub(super) fn add(&mut self, packet: &PacketFacts) {
        let Some(info) = packet.opcode.info() else { return };
        if let Some((syndrome, _)) = packet.aeth
            && syndrome.answer() == Answer::Nak(NakCode::PsnSequenceError)
        {
            self.reactions += 1;
        }
        let is_response = info.role == Role::Response;
        let is_counted = !matches!(info.service, Service::Ud | Service::Rd | Service::Cnp)
            && (!is_response || info.operation == Operation::ReadResponse);
        if !is_counted {
            return;
        }
        let [.., a, b, c, d] = packet.source.0;
        let source = u64::from(u32::from_be_bytes([a, b, c, d]));
        let own = u64::from(packet.dest_qp.get()) | u64::from(is_response) << 24;
        let key = source << 32 | own | u64::from(packet.file) << 25;
        let tells_next = info.operation != Operation::ReadRequest
            || packet.reth.is_some_and(|reth| reth.length <= ONE_RESPONSE);
        let packets = match packet.unsplit {
            Unsplit::No => 1,
            _ => u16::try_from(packet.payload_len / PACKET_MIN).unwrap_or(u16::MAX),
        };
        let latest = Latest { key, psn: packet.psn, tells_next, packets };
        if self.latest.is_empty() {
            self.latest = vec![None; FLOWS];
        }
        let slot = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize;
        let Some(slot) = self.latest.get_mut(slot) else { return };
        let before = slot.replace(latest);
        // A sampler takes frames, so the packets of a train are one.
        let is_behind = packet.train.is_some_and(|train| train.index > 1);
        // Between READs there may be other requests.
        let begins = is_response && matches!(info.position, Position::First | Position::Only);
        if let Some(before) = before.filter(|before| before.key == key && before.tells_next)
            && !is_behind
            && !begins
        {
            self.count(before, packet.psn);
        }
    }

    /// Counts a step.
    #[inline]
    fn count(&mut self, from: Latest, to: Psn) {
        match to.since(from.psn) {
            1 => self.plain += 1,
            gap @ 2..=GAP_MAX => {
                self.gaps += 1;
                self.behind_trains += u64::from(gap <= from.packets.into());
                self.skipped += u64::from(gap.unsigned_abs() - 1);
            }
            ..=0 => self.reactions += 1,
            _ => {}
        }
    }

    /// Whether nothing shows that packets were lost in the gaps.
    fn is_calm(&self) -> bool {
        self.reactions * 100 <= self.gaps * REACTIONS_MAX_PERCENT
    }

    /// Returns the number of frames that are trains by what follows them: those before gaps, if
    /// there are no other gaps.
    pub(super) fn trains_behind_gaps(&self) -> u64 {
        if self.behind_trains == self.gaps && self.is_calm() { self.gaps } else { 0 }
    }

    /// Returns of how many packets about one is in the capture, if it was sampled.
    pub(super) fn sampled_one_in(&self) -> Option<u64> {
        let steps = self.plain + self.gaps;
        let has_gaps = steps >= STEPS_MIN && self.gaps * 100 >= steps * GAPS_MIN_PERCENT;
        let has_only_gaps = steps >= GAPS_MIN && self.plain == 0;
        let is_sampled = (has_gaps || has_only_gaps) && self.is_calm();
        is_sampled.then(|| (2 * (steps + self.skipped) + steps) / (2 * steps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps over a flow of which the packets with these PSNs were captured.
    fn steps(psns: impl IntoIterator<Item = u32>) -> Steps {
        let mut steps = Steps::default();
        let mut before = None;
        for psn in psns.into_iter().map(Psn::new) {
            let latest = Latest { key: 1, psn, tells_next: true, packets: 1 };
            if let Some(before) = before.replace(latest) {
                steps.count(before, psn);
            }
        }
        steps
    }

    #[test]
    fn sampled_flow_has_gaps_and_no_reactions() {
        for one_in in [2, 3, 10, 1000] {
            let sampled = steps((0xff_ff00..).step_by(one_in).take(50));
            assert_eq!(sampled.sampled_one_in(), Some(one_in as u64));
        }
        assert_eq!(steps(0..1000).sampled_one_in(), None);
        // Too few packets to tell.
        assert_eq!(steps([0, 10, 20]).sampled_one_in(), None);
    }

    #[test]
    fn lossy_flow_is_not_sampled() {
        // Every tenth packet is lost.
        let lossy = steps((0..1000).filter(|psn| psn % 10 != 3));
        assert_eq!(lossy.sampled_one_in(), None);
        // Every second packet is lost and retransmitted.
        let lossy = steps((0..200).flat_map(|at| [2 * at, 2 * at + 2, 2 * at + 1]));
        assert_eq!(lossy.sampled_one_in(), None);
    }
}
