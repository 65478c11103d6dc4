//! Collects what the page shows while the analysis runs.

use super::inflight::{InflightMeter, measure};
use super::record::{LossRecord, MessageRecord, PacketRecord};
use super::thin::Thin;
use crate::analysis::limits::{PAGE_CONNECTION_ITEMS_MAX, PAGE_FLOWS_MAX, PAGE_ITEMS_MAX};
use crate::analysis::{
    Distribution, FlowNumber, LossNote, Message, PacketFacts, PacketNote, Report, Sink,
};
use crate::observe::end::End;

/// Collects the packets, losses and messages of a capture for its page, in bounded memory: beyond
/// [`PAGE_CONNECTION_ITEMS_MAX`] for a connection and [`PAGE_ITEMS_MAX`] in all, every second,
/// every fourth, … is kept. The page says how many were left out.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// The most items of a flow, and in all.
    limits: [usize; 2],
    /// Flows by provisional flow number.
    flows: Vec<Flow>,
    /// Items that are kept.
    kept: usize,
    /// The time of the latest packet.
    now: u64,
}

/// Records of a flow.
#[derive(Clone, Debug, Default)]
struct Flow {
    plain: Thin<PacketRecord>,
    notable: Thin<PacketRecord>,
    losses: Thin<LossRecord>,
    messages: Thin<MessageRecord>,
    /// Meters by requester.
    inflight: [InflightMeter; 2],
}

impl Flow {
    fn len(&self) -> usize {
        self.plain.items().len()
            + self.notable.items().len()
            + self.losses.items().len()
            + self.messages.items().len()
    }

    /// Halves the longest of its lists. Returns how many items were dropped.
    fn halve(&mut self) -> usize {
        let lengths = [
            self.plain.items().len(),
            self.notable.items().len(),
            self.losses.items().len(),
            self.messages.items().len(),
        ];
        match (0..4).max_by_key(|&list| (lengths[list], 4 - list)).unwrap_or(0) {
            0 => self.plain.halve(),
            1 => self.notable.halve(),
            2 => self.losses.halve(),
            _ => self.messages.halve(),
        }
    }
}

/// Records of a connection.
pub(super) struct Recorded {
    pub(super) packets: Vec<PacketRecord>,
    pub(super) losses: Vec<LossRecord>,
    pub(super) messages: Vec<MessageRecord>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder {
    /// A recorder of nothing yet.
    pub fn new() -> Self {
        Self::with_limits([PAGE_CONNECTION_ITEMS_MAX, PAGE_ITEMS_MAX])
    }

    fn with_limits(limits: [usize; 2]) -> Self {
        Self { limits, flows: Vec::new(), kept: 0, now: 0 }
    }

    /// Adds to what is collected of `flow`; `add` returns whether the item was kept. Thins out what
    /// is too long.
    fn add(&mut self, flow: FlowNumber, add: impl FnOnce(&mut Flow) -> bool) {
        let Some(index) = flow.index().filter(|&index| index < PAGE_FLOWS_MAX) else { return };
        if index >= self.flows.len() {
            self.flows.resize_with(index + 1, Flow::default);
        }
        let one = &mut self.flows[index];
        self.kept += usize::from(add(one));
        let [flow_max, all_max] = self.limits;
        if one.len() > flow_max {
            self.kept -= one.halve();
        }
        if self.kept > all_max {
            // All that are about as long as the longest, so that this happens seldom.
            let longest = self.flows.iter().map(Flow::len).max().unwrap_or(0);
            for flow in self.flows.iter_mut().filter(|flow| flow.len() > longest / 2) {
                self.kept -= flow.halve();
            }
        }
    }

    /// Returns the records by the final number of their connection (`[n - 1]`).
    pub(super) fn by_connection(&self, report: &Report) -> Vec<Members<'_>> {
        let mut connections = vec![Members(Vec::new()); report.connections.len()];
        for (index, flow) in self.flows.iter().enumerate() {
            let number = FlowNumber::at(index);
            let Some((connection, exchanged)) = report.flow_of(number) else { continue };
            if let Some(members) = connection.index().and_then(|at| connections.get_mut(at)) {
                members.0.push((flow, exchanged));
            }
        }
        connections
    }
}

/// The flows that are one connection, and whether their ends are exchanged.
#[derive(Clone)]
pub(super) struct Members<'a>(Vec<(&'a Flow, bool)>);

impl Members<'_> {
    /// Packets and messages that were left out.
    pub(super) fn left_out(&self) -> [u64; 2] {
        let sum = |of: fn(&Flow) -> u64| self.0.iter().map(|(flow, _)| of(flow)).sum();
        [
            sum(|flow| flow.plain.left_out() + flow.notable.left_out()),
            sum(|flow| flow.messages.left_out()),
        ]
    }

    /// Bytes in flight of an end's requests.
    pub(super) fn inflight(&self, requester: End) -> impl Iterator<Item = &Distribution> {
        let meters = self
            .0
            .iter()
            .map(move |(flow, exchanged)| &flow.inflight[requester.exchanged_if(*exchanged)]);
        meters.filter_map(InflightMeter::sent)
    }

    /// Returns the records of the connection, in the order of time.
    pub(super) fn merged(&self) -> Recorded {
        let mut all = Recorded { packets: vec![], losses: vec![], messages: vec![] };
        for &(flow, exchanged) in &self.0 {
            let packets = flow.plain.items().iter().chain(flow.notable.items()).copied();
            let turned = |packet: PacketRecord| if exchanged { packet.exchanged() } else { packet };
            all.packets.extend(packets.map(turned));
            let losses = flow.losses.items().iter();
            all.losses.extend(
                losses.map(|loss| LossRecord {
                    sender: loss.sender.exchanged_if(exchanged),
                    ..*loss
                }),
            );
            let messages = flow.messages.items().iter().copied();
            all.messages.extend(messages.map(|message| MessageRecord {
                requester: message.requester.exchanged_if(exchanged),
                ..message
            }));
        }
        all.packets.sort_by_key(|packet| (packet.time, packet.frame));
        all.messages.sort_by_key(|message| message.end);
        all
    }
}

impl Sink for Recorder {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        self.now = facts.time.as_nanos();
        let record = PacketRecord::new(facts, note);
        self.add(note.flow, |flow| {
            measure(&mut flow.inflight, facts, note);
            let list = if record.is_notable() { &mut flow.notable } else { &mut flow.plain };
            list.push(record)
        });
    }

    fn loss(&mut self, note: &LossNote) {
        let record = LossRecord::new(note, self.now);
        self.add(note.flow, |flow| flow.losses.push(record));
    }

    fn message(&mut self, message: &Message) {
        self.add(message.flow, |flow| flow.messages.push(MessageRecord::new(message)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{PacketRole, RetransmissionCause};
    use crate::time::Instant;

    fn facts(frame: u64) -> PacketFacts {
        let time = Instant::from_nanos(frame * 1000);
        PacketFacts { frame, time, ..PacketFacts::send_only() }
    }

    fn note(flow: FlowNumber, retransmission: Option<RetransmissionCause>) -> PacketNote {
        PacketNote {
            flow,
            sender: End::A,
            role: PacketRole::Request,
            sequence: 5,
            retransmission,
            duplicate: false,
            reordered: false,
        }
    }

    #[test]
    fn items_stay_within_limits_and_notable_ones_are_kept_longest() {
        let mut recorder = Recorder::with_limits([1000, 1500]);
        for frame in 1..=20_000 {
            let flow = FlowNumber(1 + u32::try_from(frame % 3).unwrap());
            let cause = (frame % 100 == 0).then_some(RetransmissionCause::Timeout);
            recorder.packet(&facts(frame), &note(flow, cause));
            let kept: Vec<_> = recorder.flows.iter().map(Flow::len).collect();
            assert_eq!(recorder.kept, kept.iter().sum::<usize>());
            assert!(recorder.kept <= 1500 && kept.iter().all(|&len| len <= 1000), "{kept:?}");
        }
        let left_out: u64 =
            recorder.flows.iter().map(|flow| Members(vec![(flow, false)]).left_out()[0]).sum();
        assert_eq!(left_out, 20_000 - recorder.kept as u64);
        for flow in &recorder.flows {
            assert_eq!(flow.notable.left_out(), 0);
            let frames: Vec<_> = flow.plain.items().iter().map(|packet| packet.frame).collect();
            assert!(frames.first() < Some(&100) && frames.last() > Some(&19_000), "{frames:?}");
        }
    }

    #[test]
    fn flows_beyond_the_limit_take_no_memory() {
        let mut recorder = Recorder::new();
        recorder.packet(&facts(1), &note(FlowNumber(u32::MAX), None));
        assert_eq!((recorder.flows.len(), recorder.kept), (0, 0));
    }

    #[test]
    fn flows_of_one_connection_are_merged_in_order_of_time() {
        let mut recorder = Recorder::new();
        for frame in 1..=6 {
            recorder.packet(&facts(frame), &note(FlowNumber(1 + u32::from(frame % 2 == 0)), None));
        }
        let [one, other] = recorder.flows.as_slice() else { panic!("two flows") };
        let merged = Members(vec![(one, false), (other, true)]).merged();
        let found: Vec<_> = merged
            .packets
            .iter()
            .map(|packet| (packet.frame, packet.requester().index()))
            .collect();
        assert_eq!(found, [(1, 0), (2, 1), (3, 0), (4, 1), (5, 0), (6, 1)]);
    }
}
