//! Responders: an engine executes the requests that a captured responder executed, and its answers are compared with
//! the captured ones.
//!
//! Which requests reached the responder, a capture does not show: the capture point is somewhere on the path. The answers
//! show it. So a request waits (`pending`) until an answer tells that it was executed; then the engine executes it
//! (`target`), and must answer the same (`answers`). A request that was lost behind the capture point is never
//! executed, one that came late is executed late.
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
mod pending;
mod refusals;
mod reply;
pub mod rules;
mod target;
mod track;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::judge::{Input, Judge, Sink};
use super::keys::Keys;
use super::limits::RESPONDERS_MAX;
use super::memory::{By, HostId, Location, Memory};
use super::session::{Established, Options};
use super::survey::Survey;
use super::verdict::{Step, Subject, Undecided, Verdict};
use crate::analysis::{Connection, End, FlowNumber, PacketFacts, PacketRole, Pairing};
use crate::time::Instant;
use crate::wire::{Gid, Operation, Role, Service};
use target::Scratch;
use track::{Suspect, Track};

/// The longest WRITE of an unreliable connection whose place is remembered. A longer one makes all memory of its host
/// unknown.
const UNRELIABLE_WRITE_MAX: u32 = 1 << 20;

/// How long a response may be on its way behind the capture point, in nanoseconds.
const LANDING_NANOS: u64 = 1_000_000;

/// What all responders share.
#[derive(Debug)]
struct World {
    survey: Arc<Survey>,
    program_writes: bool,
    point: Option<Gid>,
    memory: Memory,
    keys: Keys,
    scratch: Scratch,
    /// Bytes of payload that wait.
    pending_bytes: usize,
    hosts: HashMap<Gid, HostId>,
    /// Hosts to which data is on its way that they asked for, until when.
    landings: Vec<(HostId, Instant)>,
    /// Hosts with a connection of which the capture misses packets.
    incomplete_hosts: HashSet<HostId>,
    /// Hosts with a connection of which the capture has only one direction.
    half_hosts: HashSet<HostId>,
    /// Connections whose set-up the user told, and that have not begun yet.
    established: Vec<Established>,
}

impl World {
    /// A WRITE of an unreliable connection changes memory at a time that no answer shows.
    fn forget_written(&mut self, input: &Input<'_>) {
        let Some(reth) = input.facts.reth else { return };
        let host = self.host(input.facts.destination);
        if reth.length > UNRELIABLE_WRITE_MAX {
            return self.memory.note_activity(host, input.facts.frame);
        }
        let (rkey, address) = (reth.rkey.get(), reth.virtual_address);
        let by = By { responder: 0, since: input.facts.frame, until: u64::MAX };
        self.memory.write(Location { host, rkey, address }, reth.length as usize, None, by);
    }

    /// A response with data changes the memory of the host that asked for it: when it arrives, which is later than it was
    /// captured, unless it was captured there.
    fn note_landing(&mut self, input: &Input<'_>) {
        let facts = input.facts;
        let host = self.host(facts.destination);
        self.memory.note_activity(host, facts.frame);
        if self.point == Some(facts.destination) {
            return;
        }
        let until = Instant::from_nanos(facts.time.as_nanos().saturating_add(LANDING_NANOS));
        match self.landings.iter_mut().find(|(known, _)| *known == host) {
            Some((_, end)) => *end = until,
            None => self.landings.push((host, until)),
        }
    }

    /// Whatever was on its way has arrived by now: what was known meanwhile may have been changed.
    fn settle_landings(&mut self, now: Instant, frame: u64) {
        let memory = &mut self.memory;
        self.landings.retain(|&(host, until)| {
            if now > until {
                memory.note_activity(host, frame);
            }
            now <= until
        });
    }

    /// The verdict, or that it cannot be told if the capture misses packets of the connection, or of one of the host, and
    /// they may be why it is a difference.
    fn doubt(&self, verdict: Verdict, flow: FlowNumber, host: HostId) -> Verdict {
        match &verdict {
            Verdict::Different(difference)
                if rules::may_come_from_missing(difference.rule)
                    && (self.incomplete_hosts.contains(&host) || self.is_incomplete(flow)) =>
            {
                Verdict::Undecided(Undecided::MissingPackets)
            }
            Verdict::Different(difference)
                if rules::is_about_memory(difference.rule) && self.half_hosts.contains(&host) =>
            {
                Verdict::Undecided(Undecided::MissingPackets)
            }
            Verdict::Different(difference)
                if rules::may_come_from_missing(difference.rule) && self.is_guessed(flow) =>
            {
                Verdict::Undecided(Undecided::Pairing)
            }
            _ => verdict,
        }
    }

    /// Whether the two queue pairs of a connection belong to others, it seems: the packets of both are of different sizes.
    fn is_guessed(&self, flow: FlowNumber) -> bool {
        self.survey.connection(flow).is_some_and(|connection| {
            let full = connection.directions.iter().flat_map(|direction| direction.full_payload);
            let mut sizes: Vec<u32> = full.filter(|&size| size > 0).collect();
            sizes.sort_unstable();
            sizes.dedup();
            let is_path = |size: &u32| crate::verbs::Mtu::from_bytes(*size as usize).is_some();
            connection.pairing != Pairing::ConnectionManager
                && sizes.iter().filter(|size| is_path(size)).count() > 1
        })
    }

    /// The set-up that the user told of the connection of a packet. A queue pair that begins a second time in the capture
    /// has another one.
    fn take_established(&mut self, facts: &PacketFacts, is_request: bool) -> Option<Established> {
        let to = (facts.destination, facts.dest_qp);
        let is_it = |it: &Established| to == if is_request { it.responder } else { it.requester };
        let at = self.established.iter().position(is_it)?;
        Some(self.established.swap_remove(at))
    }

    /// Whether the capture misses packets of a connection. One that was made at one of its ends does not.
    fn is_incomplete(&self, flow: FlowNumber) -> bool {
        let connection = self.survey.connection(flow);
        connection.is_some_and(|connection| {
            let is_here = |end: &End| self.point == Some(end.address);
            connection.directions.iter().any(|direction| direction.not_captured > 0)
                && !connection.ends.iter().any(is_here)
        })
    }

    /// Whether the capture has only one direction of a connection, so that it does not show what was written through it.
    fn is_half(&self, connection: &Connection) -> bool {
        let is_unasked = connection
            .directions
            .iter()
            .any(|direction| direction.request_packets == 0 && direction.response_packets > 0);
        let is_unpaired =
            connection.pairing == Pairing::Unpaired && connection.service != Service::Uc;
        let is_here = |end: &End| self.point == Some(end.address);
        (is_unasked || is_unpaired) && !connection.ends.iter().any(is_here)
    }

    fn host(&mut self, address: Gid) -> HostId {
        let next = HostId::try_from(self.hosts.len()).unwrap_or(HostId::MAX);
        *self.hosts.entry(address).or_insert(next)
    }
}

/// All responders of a capture.
#[derive(Debug)]
pub struct Responders {
    world: World,
    tracks: HashMap<(FlowNumber, u8), Box<Track>>,
    /// Counts packets, to find the track that was used least recently.
    clock: u64,
}

impl Responders {
    /// At the start of a capture.
    pub fn new(survey: Arc<Survey>, options: &Options) -> Self {
        let mut world = World {
            survey,
            program_writes: options.program_writes,
            point: options.point,
            memory: Memory::default(),
            keys: Keys::default(),
            scratch: Scratch::new(),
            pending_bytes: 0,
            hosts: HashMap::new(),
            landings: Vec::new(),
            incomplete_hosts: HashSet::new(),
            half_hosts: HashSet::new(),
            established: options.connections.clone(),
        };
        let survey = Arc::clone(&world.survey);
        for connection in &survey.report.connections {
            if world.is_incomplete(connection.flow) {
                let ends = connection.ends.iter().map(|end| world.host(end.address));
                let ends: Vec<HostId> = ends.collect();
                world.incomplete_hosts.extend(ends);
            }
            if world.is_half(connection) {
                let ends = connection.ends.iter().map(|end| world.host(end.address));
                let ends: Vec<HostId> = ends.collect();
                world.half_hosts.extend(ends);
            }
        }
        for &region in &options.regions {
            let host = world.host(region.host);
            world.keys.register(host, region);
        }
        Self { world, tracks: HashMap::new(), clock: 0 }
    }

    /// Whether a request in flight on any connection of the host writes where data differs: then the data is unknown.
    fn is_race(&mut self, suspect: &Suspect) -> bool {
        let Suspect { at, start, end } = *suspect;
        let mut tracks = self.tracks.values().filter(|track| track.host == at.host);
        let is_landing = self.world.landings.iter().any(|(host, _)| *host == at.host);
        let is_race = is_landing || tracks.any(|track| track.may_write(start, end));
        if is_race {
            let len = usize::try_from(end - start).unwrap_or(0);
            let by = By { responder: 0, since: u64::MAX, until: 0 };
            self.world.memory.write(at, len, None, by);
        }
        is_race
    }

    /// Makes room for another track.
    fn forget_some(&mut self, out: &mut dyn Sink) {
        let mut used: Vec<u64> = self.tracks.values().map(|track| track.last_used).collect();
        let middle = used.len() / 2;
        let (_, &mut least, _) = used.select_nth_unstable(middle);
        let world = &mut self.world;
        self.tracks.retain(|_, track| {
            let stays = track.last_used >= least;
            if !stays {
                track.finish(world, out);
            }
            stays
        });
    }
}

impl Judge for Responders {
    fn packet(&mut self, input: &Input<'_>, out: &mut dyn Sink) {
        let Some(info) = input.facts.opcode.info() else { return };
        self.clock += 1;
        let is_request = info.role == Role::Request;
        self.world.settle_landings(input.facts.time, input.facts.frame);
        if info.operation == Operation::AtomicAcknowledge
            || info.operation == Operation::ReadResponse && input.facts.payload_len > 0
        {
            self.world.note_landing(input);
        }
        let is_new = is_request && input.note.retransmission.is_none() && !input.note.duplicate;
        if is_new && !self.world.survey.is_damaged(input.facts) {
            // A request of its own shows that the program of the sender is active.
            let sender = self.world.host(input.facts.source);
            self.world.memory.note_activity(sender, input.facts.frame);
        }
        if info.service == Service::Uc && is_request {
            self.world.forget_written(input);
        }
        if !matches!(info.service, Service::Rc | Service::Xrc)
            || matches!(input.note.role, PacketRole::Cnp | PacketRole::Management)
        {
            return;
        }
        let end = if is_request { 1 - input.note.sender.min(1) } else { input.note.sender };
        if self.world.survey.is_damaged(input.facts) {
            if !is_request {
                out.step(step(input, Verdict::Undecided(Undecided::Damaged)));
            }
            return;
        }
        let key = (input.note.flow, end);
        if !self.tracks.contains_key(&key) {
            if self.tracks.len() >= RESPONDERS_MAX {
                self.forget_some(out);
            }
            let address = if is_request { input.facts.destination } else { input.facts.source };
            let host = self.world.host(address);
            let ends = [input.facts.source, input.facts.destination];
            let is_here = self.world.point == Some(address);
            let is_complete = self.world.point.is_some_and(|point| ends.contains(&point));
            let id = u32::try_from(self.clock & 0xffff_ffff).unwrap_or(0);
            let mut track = Track::new(id, key, host, (is_here, is_complete), &self.world.survey);
            if let Some(established) = self.world.take_established(input.facts, is_request) {
                track.establish(&established);
            }
            self.tracks.insert(key, Box::new(track));
        }
        let Some(track) = self.tracks.get_mut(&key) else { return };
        track.last_used = self.clock;
        if is_request {
            track.request(input, info, &mut self.world, out);
            return;
        }
        let verdict = track.response(input, info, &mut self.world);
        let (flow, host) = (input.note.flow, track.host);
        for mut step in track.late.drain(..) {
            step.verdict = self.world.doubt(step.verdict, flow, host);
            out.step(step);
        }
        let suspect = track.suspect.take();
        let Some(mut verdict) = verdict else { return };
        verdict = self.world.doubt(verdict, flow, host);
        if let Some(suspect) = suspect
            && self.is_race(&suspect)
        {
            verdict = Verdict::Agreed;
        }
        out.step(step(input, verdict));
    }

    fn finish(&mut self, out: &mut dyn Sink) {
        let mut keys: Vec<_> = self.tracks.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            if let Some(track) = self.tracks.get_mut(&key) {
                track.finish(&mut self.world, out);
            }
        }
    }
}

/// A verdict on a response.
fn step(input: &Input<'_>, verdict: Verdict) -> Step {
    let (flow, sender) = (input.note.flow, input.note.sender);
    Step { frame: input.facts.frame, flow, sender, subject: Subject::Response, verdict }
}
