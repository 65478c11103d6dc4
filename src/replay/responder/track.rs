//! One responder: what it was sent, what it has executed, what it was asked for.

use std::collections::VecDeque;

use super::World;
use super::arrivals::Arrivals;
use super::msn::Msns;
use super::pending::{Pending, PendingQueue};
use super::reply::Reply;
use super::target::Target;
use super::unsent::Open;
use crate::analysis::FlowNumber;
use crate::observe::end::End;
use crate::observe::sequence::{self, PSN_JUMP_MAX, psn_of};
use crate::replay::Rule;
use crate::replay::connection::Surveyed;
use crate::replay::judge::Sink;
use crate::replay::memory::{HostId, Location};
use crate::replay::session::Established;
use crate::replay::survey::Survey;
use crate::replay::verdict::{Difference, Step, Subject, Undecided, Verdict};
use crate::time::Instant;
use crate::verbs::{Access, Mtu};
use crate::wire::aeth::NakCode;
use crate::wire::{Msn, Operation, PKey, Psn};

/// State of knowledge of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Unknown, and why its answers cannot be judged.
    Unknown(Undecided),
    /// Known: what it executed.
    Known,
    /// Failed: refused a request for good in this frame, and answers no more.
    Failed(u64),
}

impl Default for State {
    fn default() -> Self {
        Self::Unknown(Undecided::BeforeCapture)
    }
}

/// Evidence of the path MTU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum MtuBasis {
    /// None: it is not known.
    #[default]
    Unknown,
    /// The PSNs behind READs: packets that the capture misses make it wrong.
    Guessed,
    /// The set-up, or packets that fill it.
    Shown,
}

/// A READ or ATOMIC that was executed, or whatever else is answered by more than an
/// acknowledgement.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: Pending,
    /// The MSN of its answers, as captured ones count.
    pub(super) msn: Msn,
    /// The next response that was not captured; the sequence number behind it if all were.
    pub(super) next: u64,
    /// Value that an ATOMIC returned.
    pub(super) original: Option<u64>,
    /// Value that it must return, if that is known, and since which frame.
    pub(super) expected: Option<(u64, u64)>,
    /// The responder that executed it, and at which frame at the latest.
    pub(super) executed: (u32, u64),
    /// The frame of a later acknowledgement that was captured before all responses were.
    pub(super) passed: Option<u64>,
    /// Answers that began since.
    pub(super) answers: u32,
    /// Number of duplicates, the frame of the last one, and whether that was answered.
    pub(super) repeats: u32,
    pub(super) repeat_frame: u64,
    pub(super) is_repeat_answered: bool,
}

impl Asked {
    pub(super) fn covers(&self, seq: u64) -> bool {
        (self.request.seq..self.request.end()).contains(&seq)
    }

    /// Whether a request with one of its sequence numbers asks for the same, or a part of it.
    /// Others are not answered.
    pub(super) fn is_repeated_by(&self, again: &Pending, mtu: u64) -> bool {
        let (Some((address, rkey, length)), Some(same)) = (again.reth(), self.request.reth())
        else {
            return true;
        };
        let skipped = (again.seq - self.request.seq) * mtu;
        again.info.operation == self.request.info.operation
            && rkey == same.1
            && address == same.0.wrapping_add(skipped)
            && u64::from(length) + skipped <= u64::from(same.2)
    }

    pub(super) fn is_atomic(&self) -> bool {
        matches!(self.request.info.operation, Operation::CompareSwap | Operation::FetchAdd)
    }

    pub(super) fn is_read(&self) -> bool {
        self.request.info.operation == Operation::ReadRequest
    }
}

/// A mistake in the execution of a request.
#[derive(Debug)]
pub(super) struct Complaint {
    pub(super) rule: &'static Rule,
    pub(super) found: String,
    pub(super) frames: Vec<u64>,
}

/// Data that differs from what is known: it may have been written by a request whose execution no
/// answer tells yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    pub(super) at: Location,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Progress of the execution of requests.
#[derive(Debug)]
pub(super) enum Advance {
    /// Reached the target.
    Reached,
    /// Reached a request that was not captured.
    Missing(u64),
    /// Reached a request that must be refused: the engine's answer, and the frame of the request.
    Refused(Reply, u64),
}

/// One responder.
#[derive(Debug, Default)]
pub(super) struct Track {
    pub(super) id: u32,
    pub(super) flow: FlowNumber,
    pub(super) end: End,
    pub(super) host: HostId,
    pub(super) last_used: u64,
    pub(super) mtu: Mtu,
    pub(super) mtu_basis: MtuBasis,
    /// The longest payload that was captured: a READ of no more has one response.
    pub(super) least_mtu: u32,
    pub(super) pkey: Option<PKey>,
    /// First PSN, if the set-up of its connection was captured.
    first_psn: Option<Psn>,
    pub(super) state: State,
    /// The engine's queue pair, from the first request on that is executed.
    pub(super) target: Option<Box<Target>>,
    /// All before this was executed, from `since` on.
    pub(super) epsn: u64,
    pub(super) since: u64,
    pub(super) msns: Msns,
    /// Whether the next request may be in the middle of a message whose beginning was not captured.
    pub(super) in_message: bool,
    /// Whether the last request that was executed does not end its message.
    pub(super) is_message_open: bool,
    /// The first request that was captured and not forgotten, or that must be there: from it on the
    /// capture has all that were sent, if it `is_complete`.
    pub(super) first: Option<u64>,
    /// Whether the last request that was executed was captured more than once.
    pub(super) is_last_repeated: bool,
    /// The request that was refused for good, and why.
    pub(super) refusal: Option<(u64, NakCode)>,
    /// Behind the last request that was captured; `None` before the first packet.
    pub(super) top: Option<u64>,
    /// Time of the last request, and whether it was a retransmission.
    pub(super) last_request: (Instant, bool),
    /// Whether the capture was made at one of the ends, so that all that it sent, or got, is in it.
    pub(super) is_complete: bool,
    pub(super) pending: PendingQueue,
    pub(super) asked: VecDeque<Asked>,
    /// Whether some were forgotten.
    pub(super) forgot_asked: bool,
    /// Address and key of the next packet of the WRITE that is being executed.
    pub(super) writing: Option<(u64, u32)>,
    /// The last request that wrote to memory.
    pub(super) last_write: u64,
    /// Requests that came once more after they had been answered.
    pub(super) duplicates: VecDeque<Pending>,
    /// The gap that was reported: its sequence number and the frame of the NAK.
    pub(super) reported: Option<(u64, u64)>,
    /// RNR NAKs of the expected request.
    pub(super) rnrs: u32,
    /// Sequence NAKs for the gap that was reported.
    pub(super) naks: u32,
    /// Whether the request that is being refused had arrived, where that is known.
    pub(super) is_refused_here: bool,
    /// Receives that were advertised and not taken.
    pub(super) credits: Option<i64>,
    /// Rights of the queue pair that were used.
    pub(super) rights: Access,
    pub(super) open: Vec<Open>,
    /// Whether a request came more than once.
    pub(super) has_repeats: bool,
    /// Whether a SEND invalidated a key.
    pub(super) has_invalidated: bool,
    /// Answers that came more than once though their requests did not: the network made copies, or
    /// the capture misses the requests.
    pub(super) copies: u32,
    /// Whether the queue pair may have failed for the sake of its own requests.
    pub(super) may_have_failed: bool,
    /// Arrivals, if the capture was made at this responder.
    pub(super) arrivals: Option<Box<Arrivals>>,
}

impl Track {
    pub(super) fn new(
        id: u32,
        (flow, end): (FlowNumber, End),
        host: HostId,
        survey: &Survey,
    ) -> Self {
        let connection = survey.connection(flow);
        let mtu = connection.and_then(Surveyed::path_mtu);
        let mtu_basis = match mtu {
            None => MtuBasis::Unknown,
            Some(_) if connection.is_some_and(Surveyed::is_mtu_guessed) => MtuBasis::Guessed,
            Some(_) => MtuBasis::Shown,
        };
        let is_at =
            |end: End| connection.is_some_and(|it| survey.point == Some(it.ends[end].address));
        let is_here = is_at(end);
        let is_complete = is_here || is_at(end.other());
        let may_have_failed = connection.is_some_and(|it| it.directions[end].has_failed);
        let first_psn = connection.and_then(|it| it.setup.starting_psns[end.other()]);
        Self {
            id,
            flow,
            end,
            host,
            mtu: mtu.unwrap_or(Mtu::M4096),
            mtu_basis,
            least_mtu: connection.map_or(0, Surveyed::least_mtu),
            first_psn,
            is_complete,
            may_have_failed,
            arrivals: is_here.then(Box::default),
            ..Self::default()
        }
    }

    /// The path MTU in bytes.
    pub(super) fn mtu_bytes(&self) -> u32 {
        u32::try_from(self.mtu.bytes()).unwrap_or(0)
    }

    /// Begins with the state that the set-up of the connection gives.
    pub(super) fn establish(&mut self, setup: &Established) {
        (self.mtu, self.mtu_basis) = (setup.mtu, MtuBasis::Shown);
        (self.pkey, self.first_psn) = (Some(setup.pkey), Some(setup.first_psn));
        let first = sequence::first(setup.first_psn);
        (self.first, self.top) = (Some(first), Some(first));
        self.start_at(first);
        self.in_message = false;
    }

    /// A PSN as a sequence number that counts on beyond 2^24.
    ///
    /// A responder counts from the PSN that it expects. While that is not known, or is left behind
    /// because its answers are not captured, the last request counts.
    pub(super) fn unwrap(&self, psn: Psn) -> u64 {
        let top = self.top.unwrap_or_else(|| sequence::first(psn));
        let is_followed = self.state == State::Known && top - self.epsn.min(top) < Psn::HALF.into();
        let near = if is_followed { self.epsn } else { top };
        sequence::unwrap(psn, near)
    }

    /// The PSN of an answer as a sequence number: one near those in flight, however far these are
    /// apart.
    pub(super) fn unwrap_answer(&self, psn: Psn) -> u64 {
        let by_top = self.unwrap(psn);
        let first = match self.state {
            State::Known => Some(self.epsn),
            _ => self.pending.front().map(|front| front.seq),
        };
        let Some(first) = first else { return by_top };
        let by_expected = sequence::unwrap(psn, first);
        let inflight = first.saturating_sub(PSN_JUMP_MAX)..self.top.unwrap_or(first) + PSN_JUMP_MAX;
        if inflight.contains(&by_expected) { by_expected } else { by_top }
    }

    pub(super) fn step(&self, frame: u64, verdict: Verdict) -> Step {
        let (flow, sender, subject) = (self.flow, self.end, Subject::Response);
        Step { frame, flow, sender, subject, verdict }
    }

    /// Forgets everything, until a message begins.
    pub(super) fn forget(&mut self, why: Undecided, world: &mut World) {
        while let Some(request) = self.pending.pop_front() {
            self.write_unknown(&request, world);
        }
        self.state = State::Unknown(why);
        self.first = None;
        self.asked.clear();
        self.duplicates.clear();
        self.msns.forget();
        (self.reported, self.credits) = (None, None);
    }

    /// The capture, or the time of this responder, is over.
    pub(super) fn finish(&mut self, world: &mut World, out: &mut dyn Sink) {
        for open in core::mem::take(&mut self.open) {
            // What was not captured at one of the ends was not sent, or did not arrive.
            let verdict = if self.is_complete {
                Verdict::Different(open.difference)
            } else {
                Verdict::Undecided(Undecided::MissingPackets)
            };
            out.step(self.step(open.frame, verdict));
        }
        self.finish_arrivals(out);
        while let Some(request) = self.pending.pop_front() {
            self.write_unknown(&request, world);
        }
    }

    /// Whether a request that may have been executed writes to these addresses, or makes the
    /// program of the host do so.
    pub(super) fn may_write(&self, start: u64, end: u64) -> bool {
        // An answer that waits may tell of a request that was not captured.
        let is_missing = !self.is_complete && !self.open.is_empty();
        is_missing
            || self.pending.iter().any(|request| match request.info.operation {
                Operation::Write if request.info.receive.completes() => true,
                Operation::Write => request.place.is_none_or(|(address, _)| {
                    address < end && start < address.saturating_add(request.payload_len.into())
                }),
                Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicWrite => {
                    request.reth().is_some_and(|(address, ..)| {
                        address < end && start < address.saturating_add(8)
                    })
                }
                // Where its receive is does not appear on the wire.
                Operation::Send => true,
                _ => false,
            })
    }

    /// A request may have been executed: what it writes is unknown from now on.
    pub(super) fn write_unknown(&self, request: &Pending, world: &mut World) {
        world.release(request.payload_bytes());
        let len = request.payload_len as usize;
        if let Some((address, rkey)) = request.place {
            let at = Location { host: self.host, rkey, address };
            world.memory.write(at, len, None, self.by(request, request.frame));
        }
    }

    /// Begins at `seq`, with an MSN that is to be adopted from the next answer.
    pub(super) fn start_at(&mut self, seq: u64) {
        let psn = psn_of(seq);
        if let Some(target) = &mut self.target {
            target.forget();
        }
        (self.epsn, self.since, self.state) = (seq, seq, State::Known);
        self.msns.restart(self.first_psn != Some(psn));
        (self.reported, self.rnrs) = (None, 0);
        (self.in_message, self.is_message_open) = (true, false);
        self.asked.clear();
        self.duplicates.clear();
        self.credits = None;
    }

    /// Executes the request that is expected, and returns the engine's answer.
    pub(super) fn run(
        &mut self,
        request: &Pending,
        receive: bool,
        world: &mut World,
    ) -> Option<Reply> {
        let executor = world.executor.as_mut()?;
        if self.target.is_none() {
            self.target = executor.open(self.mtu).map(Box::new);
        }
        let target = self.target.as_mut()?;
        if target.is_fresh() {
            // The engine counts from 0.
            self.msns.offset = self.msns.current.get();
        }
        executor.execute(target, &request.request(), receive)
    }

    /// Gives the engine's queue pair back, unless it is in the middle of a message.
    pub(super) fn close_target(&mut self, world: &mut World) {
        if let Some(executor) = &mut world.executor
            && let Some(target) = self.target.take_if(|_| !self.is_message_open)
        {
            executor.close(&target);
        }
    }

    /// Gives back all that it shares with others.
    pub(super) fn free(&mut self, world: &mut World) {
        world.count_items(self.items(), 0);
        self.is_message_open = false;
        self.close_target(world);
    }

    /// Returns the number of requests, answers and messages that it remembers.
    pub(super) fn items(&self) -> usize {
        let answers = self.asked.len() + self.open.len();
        self.pending.len() + answers + self.duplicates.len() + self.msns.remembered() / 8
    }

    /// Adopts the state that an answer implies: all before `seq` was executed, with this MSN.
    /// Without one the MSN is that of the next answer that has one.
    pub(super) fn adopt(&mut self, seq: u64, msn: Option<Msn>, world: &mut World) {
        while self.pending.front().is_some_and(|front| front.seq < seq) {
            if let Some(request) = self.pending.pop_front() {
                self.write_unknown(&request, world);
            }
        }
        self.start_at(seq);
        self.msns.adopts = msn.is_none();
        if let Some(msn) = msn {
            (self.msns.offset, self.msns.current) = (msn.get(), msn);
        }
    }
}

/// The P_Key of a packet.
pub(super) fn packet_pkey(packet: &[u8]) -> Option<PKey> {
    let bytes: [u8; 2] = packet.get(2..4)?.try_into().ok()?;
    Some(PKey::new(u16::from_be_bytes(bytes)))
}

/// A difference.
pub(super) fn differs(
    rule: &'static Rule,
    found: String,
    captured: &[u8],
    expected: Option<Vec<u8>>,
    frames: &[u64],
) -> Verdict {
    let (captured, frames) = (Some(captured.to_vec()), frames.to_vec());
    Verdict::Different(Box::new(Difference { rule, found, captured, expected, frames }))
}
