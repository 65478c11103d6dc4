//! Responders: an engine executes the requests that a captured responder executed, and its answers
//! are compared with the captured ones.
//!
//! Which requests reached the responder, a capture does not show: the capture point is somewhere on
//! the path. The answers show it. So a request waits (`pending`) until an answer tells that it was
//! executed; then the engine executes it (`target`), and must answer the same (`answers`). A
//! request that was lost behind the capture point is never executed, one that came late is executed
//! late.
//!
//! What does not count, and why:
//!
//! | what | is | because |
//! |---|---|---|
//! | acknowledgements | compared where the device sent one: its PSN must be that of a request that was executed, its MSN the one that belongs to it | a responder may acknowledge any request, and one acknowledgement may do for many (o9-30) |
//! | repeated acknowledgements | accepted, with the MSN of their PSN or the present one | duplicates are acknowledged (C9-105); how often, and with which of both, differs |
//! | credits | not compared, but an RNR NAK must not contradict them | how many are advertised is the responder's choice |
//! | RNR timer | not compared | it is an attribute of the queue pair |
//! | receives | as many as the answers imply | receives do not appear on the wire |
//! | keys, ranges, rights | as the answers imply, as long as answers do not contradict each other; see `keys` | registrations do not appear on the wire |
//! | memory contents | unknown bytes match once, then are fixed until the program of the host shows activity; see `memory` | the memory is the program's |
//! | operands of ATOMICs in memory | little-endian | they are in the byte order of the host, and RoCE hosts are little-endian |
//! | MSN of the first answer | adopted, unless the set-up was captured | the capture may begin in the middle |
//! | NAK 0x61 to SEND, READ, WRITE, ATOMIC; 0x62; 0x63 | accepted where a receive, a right of the queue pair, a key or local memory may be the cause | they do not appear on the wire |
//! | migration request bit, reserved bits, FECN, BECN | left out | their meaning is the network's, or none (C9-6) |
//! | XRC | executed as RC | domains and shared receive queues do not appear on the wire |
//! | invalidation of a key by a SEND | not executed | windows are not rebuilt |
//! | copies that the network made | accepted | the device sent the packet once, and that one was judged |

mod answers;
mod arrivals;
mod data;
mod execute;
mod msn;
mod pending;
mod refusals;
mod reply;
mod requests;
pub(crate) mod rules;
mod target;
mod track;
mod unsent;
mod world;

use std::sync::Arc;

use super::judge::{Input, Judge, Sink, median};
use super::limits::{RESPONDERS_MAX, TARGETS_MAX};
use super::memory::By;
use super::session::Options;
use super::survey::Survey;
use super::verdict::{Step, Subject, Undecided, Verdict};
use crate::analysis::{End, FlowNumber, PacketRole};
use crate::observe::fold_map::FoldMap;
use crate::wire::{OpcodeInfo, Operation, Role, Service};
use target::Executor;
use track::{Suspect, Track};
use world::World;

/// A responder: its connection and its end.
type Key = (FlowNumber, End);

/// All responders of the hosts of a shard.
#[derive(Debug)]
pub(super) struct Responders {
    world: World,
    tracks: FoldMap<Key, Box<Track>>,
    tracks_max: usize,
    targets_max: usize,
    /// Counts packets, to find the track that was used least recently.
    clock: u64,
}

impl Responders {
    /// Returns the responders of one of `shards` at the start of a capture.
    pub(super) fn new(survey: Arc<Survey>, options: &Options, shards: usize) -> Self {
        let world = World::new(survey, options, shards);
        let (tracks_max, targets_max) = (RESPONDERS_MAX / shards, TARGETS_MAX / shards);
        Self { world, tracks: FoldMap::default(), tracks_max, targets_max, clock: 0 }
    }

    /// Whether a request in flight on any connection of the host writes where data differs: then
    /// the data is unknown.
    fn is_race(&mut self, suspect: &Suspect) -> bool {
        let Suspect { at, start, end } = *suspect;
        let mut tracks = self.tracks.values().filter(|track| track.host == at.host);
        let is_race =
            self.world.is_landing(at.host) || tracks.any(|track| track.may_write(start, end));
        if is_race {
            let len = usize::try_from(end - start).unwrap_or(0);
            let by = By { responder: 0, since: u64::MAX, until: 0 };
            self.world.memory.write(at, len, None, by);
        }
        is_race
    }

    /// Makes room for another track.
    fn forget_some(&mut self, out: &mut dyn Sink) {
        let least = median(self.tracks.values().map(|track| track.last_used));
        let world = &mut self.world;
        self.tracks.retain(|_, track| {
            let stays = track.last_used >= least;
            if !stays {
                track.finish(world, out);
                track.free(world);
            }
            stays
        });
    }

    /// Takes the engine's queue pairs from tracks that were not used lately, if there are many, and
    /// the memory of queues.
    fn free_targets(&mut self) {
        if self.world.executor.as_ref().map_or(0, Executor::count) < self.targets_max {
            return;
        }
        let having = self.tracks.values().filter(|track| track.target.is_some());
        let least = median(having.map(|track| track.last_used));
        for track in self.tracks.values_mut().filter(|track| track.last_used < least) {
            track.close_target(&mut self.world);
            track.pending.shrink();
        }
        // Those in the middle of messages stay.
        let left = self.world.executor.as_ref().map_or(0, Executor::count);
        self.targets_max = self.targets_max.max(2 * left);
    }

    /// Finds the track of a packet: that of the responder that it is for, or that sent it. Nothing
    /// if another shard has it.
    fn find(&mut self, input: &Input<'_>, is_request: bool, out: &mut dyn Sink) -> Option<Key> {
        let host = if is_request { input.destination? } else { input.source? };
        let end = input.note.sender.exchanged_if(is_request);
        let key = (input.note.flow, end);
        if !self.tracks.contains_key(&key) {
            if self.tracks.len() >= self.tracks_max {
                self.forget_some(out);
            }
            self.free_targets();
            let id = u32::try_from(self.clock & 0xffff_ffff).unwrap_or(0);
            let mut track = Track::new(id, key, host, &self.world.survey);
            if let Some(established) = self.world.take_established(input.facts, is_request) {
                track.establish(&established);
            }
            self.tracks.insert(key, Box::new(track));
        }
        Some(key)
    }

    fn request(&mut self, input: &Input<'_>, info: &'static OpcodeInfo, out: &mut dyn Sink) {
        let Some(key) = self.find(input, true, out) else { return };
        let Some(track) = self.tracks.get_mut(&key) else { return };
        track.last_used = self.clock;
        let before = track.items();
        track.request(input, info, &mut self.world, out);
        self.world.count_items(before, track.items());
    }

    fn response(&mut self, input: &Input<'_>, info: &'static OpcodeInfo, out: &mut dyn Sink) {
        let Some(key) = self.find(input, false, out) else { return };
        let Some(track) = self.tracks.get_mut(&key) else { return };
        track.last_used = self.clock;
        let before = track.items();
        let verdict = track.response(input, info, &mut self.world);
        self.world.count_items(before, track.items());
        let (flow, host) = (input.note.flow, track.host);
        for mut step in core::mem::take(&mut self.world.late) {
            step.verdict = self.world.doubt(step.verdict, flow, host);
            out.step(step);
        }
        let suspect = self.world.suspect.take();
        let Some(mut verdict) = verdict else { return };
        verdict = self.world.doubt(verdict, flow, host);
        if suspect.is_some_and(|suspect| self.is_race(&suspect)) {
            verdict = Verdict::Agreed;
        }
        out.step(step(input, verdict));
    }

    /// Whether a packet belongs to a connection with selective repeat.
    fn is_selective(&self, input: &Input<'_>) -> bool {
        self.world.survey.is_selective(input.note.flow)
    }

    /// Notes what a packet tells of the memory of the hosts that sent it and that it is for.
    fn note_memory(&mut self, input: &Input<'_>, info: &OpcodeInfo) {
        let facts = input.facts;
        let is_request = info.role == Role::Request;
        for host in [input.source, input.destination].into_iter().flatten() {
            self.world.settle_landing(host, facts.time, facts.frame);
        }
        let is_new = is_request && !input.note.is_retransmission && !input.note.duplicate;
        if let Some(host) = input.source
            && is_new
            && !self.world.survey.is_damaged(facts)
        {
            // A request of its own shows that the program of the sender is active.
            self.world.memory.note_activity(host, facts.frame);
        }
        let Some(host) = input.destination else { return };
        if info.operation == Operation::AtomicAcknowledge
            || info.operation == Operation::ReadResponse && facts.payload_len > 0
        {
            self.world.note_landing(facts, host);
        }
        if is_request && (info.service == Service::Uc || self.is_selective(input)) {
            self.world.forget_written(input, info, host);
        }
    }
}

impl Judge for Responders {
    fn packet(&mut self, input: &Input<'_>, out: &mut dyn Sink) {
        let Some(info) = input.facts.opcode.info() else { return };
        self.clock += 1;
        self.note_memory(input, info);
        if !matches!(info.service, Service::Rc | Service::Xrc)
            || matches!(input.note.role, PacketRole::Cnp | PacketRole::Management)
        {
            return;
        }
        if self.is_selective(input) {
            // What a responder holds, the capture does not tell.
            if info.role == Role::Response && input.source.is_some() {
                out.step(step(input, Verdict::Undecided(Undecided::Unsupported)));
            }
            return;
        }
        match (info.role, self.world.survey.is_damaged(input.facts)) {
            (Role::Request, false) => self.request(input, info, out),
            (Role::Response, false) => self.response(input, info, out),
            (Role::Response, true) if input.source.is_some() => {
                out.step(step(input, Verdict::Undecided(Undecided::Damaged)));
            }
            _ => {}
        }
    }

    fn finish(&mut self, out: &mut dyn Sink) {
        let mut all: Vec<_> = self.tracks.iter_mut().collect();
        all.sort_unstable_by_key(|(key, _)| **key);
        all.into_iter().for_each(|(_, track)| track.finish(&mut self.world, out));
    }
}

/// A verdict on a response.
fn step(input: &Input<'_>, verdict: Verdict) -> Step {
    let (flow, sender) = (input.note.flow, input.note.sender);
    Step { frame: input.facts.frame, flow, sender, subject: Subject::Response, verdict }
}
