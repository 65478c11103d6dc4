//! What came of an instance.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Side;

/// What came of an instance, at both sides and between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// At the requester.
    pub requester: Outcome,
    /// At the responder.
    pub responder: Outcome,
}

impl Trace {
    /// What came of it at a side.
    pub fn side(&self, side: Side) -> &Outcome {
        match side {
            Side::Requester => &self.requester,
            Side::Responder => &self.responder,
        }
    }

    /// What a side sent, seen where it left or, if nobody could look there, where it arrived. `None` if nobody saw.
    pub fn sent_by(&self, side: Side) -> Option<Vec<&Packet>> {
        let seen =
            [side, side.other()].into_iter().find_map(|at| self.side(at).packets.as_ref())?;
        Some(seen.iter().filter(|packet| packet.from == side).collect())
    }
}

/// What came of an instance at one side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// What completed: of each queue pair in order, first its sends, then its receives.
    pub completions: Vec<Completion>,
    /// What each buffer held, as a checksum of what does not count as anything.
    pub memory: BTreeMap<String, u32>,
    /// Where a buffer is not what it must be.
    pub mismatches: Vec<String>,
    /// The state of each queue pair.
    pub states: Vec<String>,
    /// What happened beside the work, in the order of names.
    pub events: Vec<String>,
    /// Both directions, as they passed this side; `None` if nobody could look.
    pub packets: Option<Vec<Packet>>,
    /// What went wrong: something could not be made, was refused, or never ended.
    pub trouble: Option<String>,
    /// What the device cannot do, so that nothing came of it.
    pub unable: Option<String>,
}

/// A completion, without what verbs leave open.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Completion {
    /// Which queue pair, from 0.
    pub qp: usize,
    /// Whether it is of a receive.
    pub recv: bool,
    /// What the request was called: requests of a side are counted from 1.
    pub id: u64,
    /// Its status, as the constant of verbs without `IBV_WC_`, in small letters.
    pub status: String,
    /// What it was; only of success.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub opcode: Option<String>,
    /// How many bytes; only where verbs say so: receives, reads, atomics.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// Who sent it.
    pub from: Side,
    /// To which queue pair of the peer, from 0.
    pub qp: usize,
    /// Its opcode.
    pub opcode: u8,
    /// Its PSN, from the first of the requests that it belongs to.
    pub psn: u32,
    /// The syndrome of its AETH, if it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub syndrome: Option<u8>,
    /// The packet as `roce decode` tells it.
    pub line: String,
    /// A checksum of its payload.
    pub payload: u32,
}
