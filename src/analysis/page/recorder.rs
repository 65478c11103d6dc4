//! Collects what the page shows while the analysis runs.

use super::record::{LossRecord, MessageRecord, PacketRecord};
use super::thin::Thin;
use crate::analysis::limits::{PAGE_CONNECTION_ITEMS_MAX, PAGE_FLOWS_MAX, PAGE_ITEMS_MAX};
use crate::analysis::{FlowNumber, LossNote, Message, PacketFacts, PacketNote, Report, Sink};

/// Collects the packets, losses and messages of a capture for its page, in bounded memory: beyond
/// [`PAGE_CONNECTION_ITEMS_MAX`] for a connection and [`PAGE_ITEMS_MAX`] in all, every second, every fourth, … is kept.
/// The page says how many were left out.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    /// By provisional flow number.
    flows: Vec<Flow>,
    /// Items that are kept.
    kept: usize,
    /// The time of the latest packet.
    now: u64,
}

/// What is collected of a flow.
#[derive(Clone, Debug, Default)]
struct Flow {
    plain: Thin<PacketRecord>,
    notable: Thin<PacketRecord>,
    losses: Thin<LossRecord>,
    messages: Thin<MessageRecord>,
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

/// What was collected of a connection.
pub(super) struct Recorded {
    pub(super) packets: Vec<PacketRecord>,
    pub(super) losses: Vec<LossRecord>,
    pub(super) messages: Vec<MessageRecord>,
}

impl Recorder {
    /// A recorder of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds to what is collected of `flow`; `add` returns whether the item was kept. Thins out what is too long.
    fn add(&mut self, flow: FlowNumber, add: impl FnOnce(&mut Flow) -> bool) {
        let index = (flow as usize).saturating_sub(1);
        if index >= PAGE_FLOWS_MAX {
            return;
        }
        if index >= self.flows.len() {
            self.flows.resize_with(index + 1, Flow::default);
        }
        let one = &mut self.flows[index];
        self.kept += usize::from(add(one));
        if one.len() > PAGE_CONNECTION_ITEMS_MAX {
            self.kept -= one.halve();
        }
        if self.kept > PAGE_ITEMS_MAX {
            // All that are about as long as the longest, so that this happens seldom.
            let longest = self.flows.iter().map(Flow::len).max().unwrap_or(0);
            for flow in self.flows.iter_mut().filter(|flow| flow.len() > longest / 2) {
                self.kept -= flow.halve();
            }
        }
    }

    /// What was collected, by the final number of its connection (`[n - 1]`).
    pub(super) fn by_connection(&self, report: &Report) -> Vec<Members<'_>> {
        let mut connections = vec![Members(Vec::new()); report.connections.len()];
        for (index, flow) in self.flows.iter().enumerate() {
            let number = FlowNumber::try_from(index + 1).unwrap_or(FlowNumber::MAX);
            let Some((connection, exchanged)) = report.flow_of(number) else { continue };
            let slot = (connection as usize).checked_sub(1);
            if let Some(members) = slot.and_then(|slot| connections.get_mut(slot)) {
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

    /// What was collected of the connection, in the order of time.
    pub(super) fn merged(&self) -> Recorded {
        let mut all = Recorded { packets: vec![], losses: vec![], messages: vec![] };
        for &(flow, exchanged) in &self.0 {
            let packets = flow.plain.items().iter().chain(flow.notable.items()).copied();
            let turned = |packet: PacketRecord| if exchanged { packet.exchanged() } else { packet };
            all.packets.extend(packets.map(turned));
            let side = u8::from(exchanged);
            let losses = flow.losses.items().iter();
            all.losses
                .extend(losses.map(|loss| LossRecord { sender: loss.sender ^ side, ..*loss }));
            let messages = flow.messages.items().iter().copied();
            all.messages.extend(
                messages.map(|message| MessageRecord {
                    requester: message.requester ^ side,
                    ..message
                }),
            );
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
