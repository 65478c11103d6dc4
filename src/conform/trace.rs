//! Observations of the run of an instance.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Side;
use super::scenario::limits::{BUFFERS_MAX, EVENTS_MAX, FAULTS_MAX, POSTS_MAX, QPS_MAX};
use super::wire::SEEN_MAX;
use crate::control::text::printable;
use crate::link::fault::Effect;

/// Observations of the run of an instance, at both sides and between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Outcome at the requester.
    pub requester: Outcome,
    /// Outcome at the responder.
    pub responder: Outcome,
}

impl Trace {
    /// Returns the outcome at a side.
    pub fn side(&self, side: Side) -> &Outcome {
        match side {
            Side::Requester => &self.requester,
            Side::Responder => &self.responder,
        }
    }

    /// Returns the packets that a side sent, as [`sent_by`](Self::sent_by) does, each with the
    /// effect of a fault on it.
    pub fn sent_with_effects(&self, side: Side) -> Vec<(&Packet, Option<Effect>)> {
        let outcomes = [side, side.other()].map(|at| self.side(at));
        let Some(outcome) = outcomes.into_iter().find(|it| it.packets.is_some()) else {
            return Vec::new();
        };
        let all = outcome.packets.iter().flatten().enumerate();
        let own = all.filter(|(_, packet)| packet.from == side);
        own.map(|(at, packet)| (packet, outcome.effects.get(&at).copied())).collect()
    }

    /// Returns the packets that a side sent, seen where they left or, if that was not observed,
    /// where they arrived. `None` if neither was.
    pub fn sent_by(&self, side: Side) -> Option<Vec<&Packet>> {
        let seen =
            [side, side.other()].into_iter().find_map(|at| self.side(at).packets.as_ref())?;
        Some(seen.iter().filter(|packet| packet.from == side).collect())
    }
}

/// Outcome of an instance at one side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Completions: of each queue pair in order, first its sends, then its receives.
    pub completions: Vec<Completion>,
    /// Checksum of each buffer, without the bytes that may be anything.
    pub memory: BTreeMap<String, u32>,
    /// Ranges of buffers with wrong contents.
    pub mismatches: Vec<String>,
    /// The state of each queue pair.
    pub states: Vec<String>,
    /// Asynchronous events, sorted by name.
    pub events: Vec<String>,
    /// Both directions, as they passed this side; `None` if they could not be observed.
    pub packets: Option<Vec<Packet>>,
    /// The effects of the faults that this side injects, by the position of the packet.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub effects: BTreeMap<usize, Effect>,
    /// The faults of the scenario that this side injects, by number, and how often each was: `None`
    /// if it has no wire.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub faults: Option<BTreeMap<usize, u32>>,
    /// Failure: an object could not be created, or an operation was refused or never ended.
    pub trouble: Option<String>,
    /// Missing capability of the device, because of which the instance did not run.
    pub unable: Option<String>,
}

/// Maximum length of a text in the outcome of another machine, in characters.
const TEXT_MAX: usize = 300;

impl Outcome {
    /// The outcome that another machine reported, if it can be one: no list is longer than the
    /// bounds of a scenario allow, and every text can be shown.
    pub(super) fn received(mut self) -> Result<Self, String> {
        let packets = self.packets.as_deref().unwrap_or_default();
        let faults = self.faults.as_ref().map_or(0, BTreeMap::len);
        let bounds = [
            ("completions", self.completions.len() as u64, 2 * POSTS_MAX),
            ("buffers", self.memory.len() as u64, BUFFERS_MAX as u64),
            ("mismatches", self.mismatches.len() as u64, BUFFERS_MAX as u64),
            ("states", self.states.len() as u64, QPS_MAX as u64),
            ("events", self.events.len() as u64, POSTS_MAX + EVENTS_MAX as u64),
            ("packets", packets.len() as u64, SEEN_MAX as u64),
            ("faults", faults as u64, FAULTS_MAX as u64),
            ("effects of faults", self.effects.len() as u64, SEEN_MAX as u64),
        ];
        if let Some((what, is, most)) = bounds.into_iter().find(|(_, is, most)| is > most) {
            return Err(format!("{is} {what} are more than {most}"));
        }
        // A datagram to a queue pair that the peer does not have counts as one to the next.
        if packets.iter().any(|packet| packet.qp > QPS_MAX) {
            return Err("a packet is for no queue pair".to_owned());
        }
        let Self {
            completions, memory, mismatches, states, events, packets, trouble, unable, ..
        } = &mut self;
        let texts = completions.iter_mut().flat_map(|it| {
            let (opcode, window) = (it.opcode.as_mut(), it.invalidated.as_mut());
            [Some(&mut it.status), opcode, window].into_iter().flatten()
        });
        let lines = packets.iter_mut().flatten().map(|packet| &mut packet.line);
        let lists = [mismatches, states, events].into_iter().flatten();
        for text in texts.chain(lines).chain(lists).chain(trouble).chain(unable) {
            *text = printable(text, TEXT_MAX);
        }
        *memory = std::mem::take(memory)
            .into_iter()
            .map(|(name, sum)| (printable(&name, TEXT_MAX), sum))
            .collect();
        Ok(self)
    }
}

/// A completion, without what verbs leave open.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Completion {
    /// Index of the queue pair, from 0.
    pub qp: usize,
    /// Whether it is of a receive.
    pub recv: bool,
    /// Identifier of the request: requests of a side are counted from 1.
    pub id: u64,
    /// Status, as the constant of verbs without `IBV_WC_`, in lower case.
    pub status: String,
    /// Opcode; only of success.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub opcode: Option<String>,
    /// Number of bytes; only where verbs define it: receives, READs, ATOMICs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub byte_len: Option<u32>,
    /// Immediate data.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub imm: Option<u32>,
    /// The window that was invalidated, by name.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub invalidated: Option<String>,
    /// Whether a receive buffer begins with a network header.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub grh: bool,
}

impl std::fmt::Display for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let queue = if self.recv { "recv" } else { "send" };
        write!(f, "{queue} {}: {}", self.id, self.status)?;
        if self.qp > 0 {
            write!(f, " qp {}", self.qp)?;
        }
        if let Some(opcode) = &self.opcode {
            write!(f, " {opcode}")?;
        }
        if let Some(len) = self.byte_len {
            write!(f, " byte_len {len}")?;
        }
        if let Some(imm) = self.imm {
            write!(f, " imm {imm:#010x}")?;
        }
        if let Some(window) = &self.invalidated {
            write!(f, " invalidated {window}")?;
        }
        if self.grh {
            f.write_str(" grh")?;
        }
        Ok(())
    }
}

/// A packet, with everything replaced that is different each time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Packet {
    /// Sender.
    pub from: Side,
    /// Index of the peer's queue pair, from 0.
    pub qp: usize,
    /// Opcode.
    pub opcode: u8,
    /// PSN, from the first of the requests that it belongs to.
    pub psn: u32,
    /// The syndrome of its AETH, if it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub syndrome: Option<u8>,
    /// The packet as `roce decode` tells it.
    pub line: String,
    /// A checksum of its payload.
    pub payload: u32,
}
