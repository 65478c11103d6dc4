//! Shared by the responders of a shard: memory, keys, engines, room for what waits.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use super::target::Executor;
use super::track::{Complaint, Suspect};
use super::{Key, rules};
use crate::analysis::{FlowNumber, PacketFacts};
use crate::replay::judge::Input;
use crate::replay::keys::Keys;
use crate::replay::limits::{ALL_ITEMS_MAX, PENDING_BYTES_MAX};
use crate::replay::memory::{By, HostId, Location, Memory};
use crate::replay::session::{Established, Options};
use crate::replay::survey::Survey;
use crate::replay::verdict::{Step, Undecided, Verdict};
use crate::time::Instant;
use crate::wire::{OpcodeInfo, Operation, Psn};

/// The longest WRITE of an unreliable connection whose place is remembered. A longer one makes all
/// memory of its host unknown.
const UNRELIABLE_WRITE_MAX: u32 = 1 << 20;

/// Maximum number of WRITEs of unreliable connections that are followed. The packets of others make
/// all memory of their host unknown.
const UNRELIABLE_WRITES_MAX: usize = 4096;

/// Longest time of a response on its way behind the capture point, in nanoseconds.
const LANDING: Duration = Duration::from_millis(1);

/// State that all responders of a shard share.
#[derive(Debug)]
pub(super) struct World {
    pub(super) survey: Arc<Survey>,
    pub(super) program_writes: bool,
    pub(super) memory: Memory,
    pub(super) keys: Keys,
    pub(super) executor: Option<Executor>,
    /// Bytes of payload that wait, and how many may.
    pending_bytes: usize,
    pending_bytes_max: usize,
    /// Requests, answers and MSNs that all responders remember, and from how many on each of them
    /// remembers few.
    items: usize,
    items_max: usize,
    /// Hosts to which data is on its way that they asked for, until when.
    landings: HashMap<HostId, Instant>,
    /// PSN of the next packet of the WRITE that an unreliable connection sends.
    unreliable_writes: HashMap<Key, Psn>,
    /// Connections whose set-up the user told, and that have not begun yet.
    established: Vec<Established>,
    /// Results of judging one answer: a mistake in the execution of a request, data that may be
    /// right for all that, verdicts on earlier packets.
    pub(super) complaint: Option<Complaint>,
    pub(super) suspect: Option<Suspect>,
    pub(super) late: Vec<Step>,
}

impl World {
    pub(super) fn new(survey: Arc<Survey>, options: &Options, shards: usize) -> Self {
        let mut keys = Keys::new(shards);
        for &region in &options.regions {
            if let Some(host) = survey.host(region.host) {
                keys.register(host, region);
            }
        }
        Self {
            survey,
            program_writes: options.program_writes,
            memory: Memory::new(shards),
            keys,
            executor: Executor::new(),
            pending_bytes: 0,
            pending_bytes_max: PENDING_BYTES_MAX / shards,
            items: 0,
            items_max: ALL_ITEMS_MAX / shards,
            landings: HashMap::new(),
            unreliable_writes: HashMap::new(),
            established: options.connections.clone(),
            complaint: None,
            suspect: None,
            late: Vec::new(),
        }
    }

    /// A WRITE of an unreliable connection, or of one with selective repeat, changes memory at a
    /// time that no answer shows, and so does an ATOMIC. Where a WRITE does is not known if the
    /// beginning of its message was not captured.
    pub(super) fn forget_written(&mut self, input: &Input<'_>, info: &OpcodeInfo, host: HostId) {
        match info.operation {
            Operation::Write => {}
            Operation::CompareSwap | Operation::FetchAdd => {
                return self.memory.note_activity(host, input.facts.frame);
            }
            _ => return,
        }
        let (key, psn) = ((input.note.flow, input.note.sender), input.facts.psn);
        let is_next = self.unreliable_writes.remove(&key) == Some(psn);
        if !info.position.ends() && self.unreliable_writes.len() < UNRELIABLE_WRITES_MAX {
            self.unreliable_writes.insert(key, psn.plus(1));
        }
        let Some(reth) = input.facts.reth else {
            if !is_next {
                self.memory.note_activity(host, input.facts.frame);
            }
            return;
        };
        if reth.length > UNRELIABLE_WRITE_MAX {
            return self.memory.note_activity(host, input.facts.frame);
        }
        let (rkey, address) = (reth.rkey.get(), reth.virtual_address);
        let by = By { responder: 0, since: input.facts.frame, until: u64::MAX };
        self.memory.write(Location { host, rkey, address }, reth.length as usize, None, by);
    }

    /// A response with data changes the memory of the host that asked for it: when it arrives,
    /// which is later than it was captured, unless it was captured there.
    pub(super) fn note_landing(&mut self, facts: &PacketFacts, host: HostId) {
        self.memory.note_activity(host, facts.frame);
        if self.survey.point != Some(facts.destination) {
            self.landings.insert(host, facts.time.saturating_add(LANDING));
        }
    }

    /// Whatever was on its way to a host has arrived by now, before `frame`: what was known
    /// meanwhile may have been changed.
    pub(super) fn settle_landing(&mut self, host: HostId, now: Instant, frame: u64) {
        if !self.landings.is_empty() && self.landings.get(&host).is_some_and(|until| now > *until) {
            self.landings.remove(&host);
            self.memory.note_activity(host, frame - 1);
        }
    }

    /// Whether data is on its way to a host.
    pub(super) fn is_landing(&self, host: HostId) -> bool {
        self.landings.contains_key(&host)
    }

    /// The verdict, or that it cannot be told if the capture misses packets of the connection, or
    /// of one of the host, and they may be why it is a difference.
    pub(super) fn doubt(&self, verdict: Verdict, flow: FlowNumber, host: HostId) -> Verdict {
        let Verdict::Different(difference) = &verdict else { return verdict };
        let survey = &self.survey;
        let depends = rules::may_come_from_missing(difference.rule);
        let is_about_memory = rules::is_about_memory(difference.rule);
        let is_missing = depends && (survey.is_host_incomplete(host) || survey.is_incomplete(flow))
            || is_about_memory && survey.is_host_half(host);
        if is_missing {
            return Verdict::Undecided(Undecided::MissingPackets);
        }
        if depends && survey.connection(flow).is_some_and(|connection| connection.is_guessed()) {
            return Verdict::Undecided(Undecided::Pairing);
        }
        verdict
    }

    /// The set-up that the user told of the connection of a packet. A queue pair that begins a
    /// second time in the capture has another one.
    pub(super) fn take_established(
        &mut self,
        facts: &PacketFacts,
        is_request: bool,
    ) -> Option<Established> {
        let to = (facts.destination, facts.dest_qp);
        let is_it = |it: &Established| to == if is_request { it.responder } else { it.requester };
        let at = self.established.iter().position(is_it)?;
        Some(self.established.swap_remove(at))
    }

    /// Takes room for the payload of a request that waits. Whether there is.
    pub(super) fn reserve(&mut self, bytes: usize) -> bool {
        let is_room = self.pending_bytes < self.pending_bytes_max;
        if is_room {
            self.pending_bytes += bytes;
        }
        is_room
    }

    /// Gives room for payload back.
    pub(super) fn release(&mut self, bytes: usize) {
        self.pending_bytes = self.pending_bytes.saturating_sub(bytes);
    }

    /// Whether so much is remembered that each responder must do with few of all.
    pub(super) fn is_crowded(&self) -> bool {
        self.items >= self.items_max
    }

    /// A responder remembers `now` items, where it remembered `before`.
    pub(super) fn count_items(&mut self, before: usize, now: usize) {
        self.items = (self.items + now).saturating_sub(before);
    }
}
