//! One responder: what it was sent, what it has executed, what it was asked for.

use std::collections::VecDeque;

use super::World;
use super::arrivals::Arrivals;
use super::pending::{Added, Dropped, Pending, PendingQueue};
use super::reply::Reply;
use super::target::Target;
use crate::analysis::FlowNumber;
use crate::observe::sequence::{self, psn_of};
use crate::replay::Rule;
use crate::replay::judge::{Input, Sink};
use crate::replay::limits::{DUPLICATES_MAX, PENDING_BYTES_MAX, PENDING_PACKETS_MAX};
use crate::replay::memory::{HostId, Location};
use crate::replay::session::Established;
use crate::replay::survey::Survey;
use crate::replay::verdict::{Difference, Step, Subject, Undecided, Verdict};
use crate::time::Instant;
use crate::verbs::{Access, Mtu};
use crate::wire::aeth::NakCode;
use crate::wire::{Msn, OpcodeInfo, Operation, PKey, Psn, Qpn};

/// What is known of a responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing: why its answers cannot be judged.
    Unknown(Undecided),
    /// What it executed.
    Known,
    /// It refused a request for good in this frame, and answers no more.
    Failed(u64),
}

/// A READ or ATOMIC that was executed, or whatever else is answered by more than an acknowledgement.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) request: Pending,
    /// The MSN of its answers, as captured ones count.
    pub(super) msn: Msn,
    /// The next response that was not captured; the sequence number behind it if all were.
    pub(super) next: u64,
    /// What an ATOMIC returned.
    pub(super) original: Option<u64>,
    /// What it must return, if that is known, and since which frame.
    pub(super) expected: Option<(u64, u64)>,
    /// By whom, and at which frame at the latest, it was executed.
    pub(super) executed: (u32, u64),
    /// The frame of a later acknowledgement that was captured before all responses were.
    pub(super) passed: Option<u64>,
    /// Answers that began since.
    pub(super) answers: u32,
    /// How often it was requested once more, when last, and whether that was answered.
    pub(super) repeats: u32,
    pub(super) repeat_frame: u64,
    pub(super) is_repeat_answered: bool,
}

impl Asked {
    pub(super) fn covers(&self, seq: u64) -> bool {
        (self.request.seq..self.request.end()).contains(&seq)
    }

    /// Whether a request with one of its sequence numbers asks for the same, or a part of it. Others are not answered.
    fn is_repeated_by(&self, again: &Pending, mtu: u64) -> bool {
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

/// The responses to a READ that the engine has yet to give.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// The next one, and the sequence number behind the last.
    pub(super) next: u64,
    pub(super) end: u64,
    /// The next one, if the engine gave it already.
    pub(super) reply: Option<Reply>,
    /// Whether the next one is the first.
    pub(super) is_start: bool,
}

/// A verdict that waits for what the requester sends next.
#[derive(Debug)]
pub(super) struct Open {
    /// The packet is wrong if the requester sends this sequence number for the first time later.
    pub(super) unsent: u64,
    /// What it says otherwise: all before this was executed, and this is the MSN, if it has one.
    pub(super) target: u64,
    pub(super) msn: Option<Msn>,
    pub(super) dest: Qpn,
    pub(super) frame: u64,
    pub(super) time: Instant,
    /// Whether its MSN counts requests that were not captured.
    pub(super) is_counted: bool,
    /// What kind of answer it is, if it is no NAK.
    pub(super) needs: Option<Operation>,
    pub(super) difference: Box<Difference>,
}

/// What is wrong with the execution of a request.
#[derive(Debug)]
pub(super) struct Complaint {
    pub(super) rule: &'static Rule,
    pub(super) found: String,
    pub(super) frames: Vec<u64>,
}

/// Data that differs from what is known: it may have been written by a request whose execution no answer tells yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suspect {
    pub(super) at: Location,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// How far the execution of requests came.
#[derive(Debug)]
pub(super) enum Advance {
    /// To where it should.
    Reached,
    /// To a request that was not captured.
    Missing(u64),
    /// To a request that must be refused: the engine's answer, and the frame of the request.
    Refused(Reply, u64),
}

/// One responder.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) id: u32,
    pub(super) flow: FlowNumber,
    pub(super) end: u8,
    pub(super) host: HostId,
    pub(super) last_used: u64,
    pub(super) mtu: Mtu,
    is_mtu_known: bool,
    /// The longest payload that was captured: a READ of no more has one response.
    least_mtu: u32,
    pub(super) pkey: Option<PKey>,
    /// Its connection's set-up was captured, and says that this is the first PSN.
    first_psn: Option<Psn>,
    pub(super) state: State,
    pub(super) target: Option<Target>,
    /// All before this was executed, from `since` on.
    pub(super) epsn: u64,
    pub(super) since: u64,
    /// The highest MSN that was captured.
    pub(super) top_msn: Option<Msn>,
    /// What captured MSNs count more than those of the engine.
    pub(super) msn_offset: u32,
    /// Whether that is not known.
    pub(super) adopts_msn: bool,
    /// The MSN of the last request that was executed, as captured ones count.
    pub(super) msn: Msn,
    /// Whether the next request may be in the middle of a message whose beginning was not captured.
    pub(super) in_message: bool,
    /// Whether the last request that was executed does not end its message.
    pub(super) is_message_open: bool,
    /// The first request that was captured and not forgotten, or that must be there: from it on the capture has all that
    /// were sent, if it `is_complete`.
    pub(super) first: Option<u64>,
    /// Whether the last request that was executed was captured more than once.
    pub(super) is_last_repeated: bool,
    /// The request that was refused for good, and why.
    pub(super) refusal: Option<(u64, NakCode)>,
    /// Behind the last request that was captured; `None` before the first packet.
    pub(super) top: Option<u64>,
    /// When the last request was captured, and whether it was a retransmission.
    last_request: (Instant, bool),
    /// Whether the capture was made at one of the ends, so that all that it sent, or got, is in it.
    pub(super) is_complete: bool,
    pub(super) pending: PendingQueue,
    pub(super) asked: VecDeque<Asked>,
    /// Whether some were forgotten.
    pub(super) forgot_asked: bool,
    /// Where the next packet of the WRITE that is being executed writes: address and key.
    pub(super) writing: Option<(u64, u32)>,
    /// The last request that wrote to memory.
    pub(super) last_write: u64,
    pub(super) stream: Option<Stream>,
    /// Requests that came once more after they had been answered.
    pub(super) duplicates: VecDeque<Pending>,
    /// Last sequence number of messages, and their MSN.
    pub(super) history: VecDeque<(u64, u32)>,
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
    pub(super) complaint: Option<Complaint>,
    pub(super) suspect: Option<Suspect>,
    /// Verdicts on earlier packets that became clear.
    pub(super) late: Vec<Step>,
    /// Whether a request came more than once.
    pub(super) has_repeats: bool,
    /// Whether a SEND invalidated a key.
    pub(super) has_invalidated: bool,
    /// Answers that came more than once though their requests did not: the network made copies, or the capture misses
    /// the requests.
    pub(super) copies: u32,
    /// Whether the queue pair may have failed for the sake of its own requests.
    pub(super) may_have_failed: bool,
    /// What arrived, if the capture was made at this responder.
    pub(super) arrivals: Option<Arrivals>,
}

/// How far a PSN may be from those in flight. What is further belongs to no request of the connection.
pub(super) const FAR: u64 = 1 << 16;

/// Retransmissions follow each other within this time.
const PASS_NANOS: u64 = 10_000;

/// The shortest retransmission timeout, about.
const TIMEOUT_NANOS: u64 = 500_000;

impl Track {
    pub(super) fn new(
        id: u32,
        (flow, end): (FlowNumber, u8),
        host: HostId,
        (is_here, is_complete): (bool, bool),
        survey: &Survey,
    ) -> Self {
        let connection = survey.connection(flow);
        let mtu = survey.path_mtu(flow).and_then(|bytes| Mtu::from_bytes(bytes.into()));
        let (is_mtu_known, mtu) = (mtu.is_some(), mtu.unwrap_or(Mtu::M4096));
        let requester = usize::from(1 - end.min(1));
        let own =
            connection.and_then(|connection| connection.directions.get(usize::from(end.min(1))));
        let may_have_failed =
            own.is_some_and(|own| own.operations.iter().any(|operation| operation.failed > 0));
        let setup = connection.and_then(|connection| connection.setup.as_ref());
        let first_psn = setup.and_then(|setup| setup.starting_psns.get(requester).copied()?);
        Self {
            id,
            flow,
            end,
            host,
            last_used: 0,
            mtu,
            is_mtu_known,
            least_mtu: survey.least_mtu(flow),
            pkey: None,
            first_psn,
            state: State::Unknown(Undecided::BeforeCapture),
            target: None,
            epsn: 0,
            since: 0,
            top_msn: None,
            msn_offset: 0,
            adopts_msn: false,
            msn: Msn::new(0),
            in_message: false,
            is_message_open: false,
            first: None,
            is_last_repeated: false,
            refusal: None,
            top: None,
            last_request: (Instant::ZERO, false),
            is_complete,
            pending: PendingQueue::default(),
            asked: VecDeque::new(),
            forgot_asked: false,
            writing: None,
            last_write: 0,
            stream: None,
            duplicates: VecDeque::new(),
            history: VecDeque::new(),
            reported: None,
            rnrs: 0,
            naks: 0,
            is_refused_here: false,
            credits: None,
            rights: Access::empty(),
            open: Vec::new(),
            complaint: None,
            suspect: None,
            late: Vec::new(),
            has_repeats: false,
            has_invalidated: false,
            copies: 0,
            may_have_failed,
            arrivals: is_here.then(Arrivals::default),
        }
    }

    /// Begins with the state that the set-up of the connection gives.
    pub(super) fn establish(&mut self, setup: &Established) {
        (self.mtu, self.is_mtu_known) = (setup.mtu, true);
        (self.pkey, self.first_psn) = (Some(setup.pkey), Some(setup.first_psn));
        let (_, dest) = setup.requester;
        let first = sequence::first(setup.first_psn);
        (self.first, self.top) = (Some(first), Some(first));
        self.start_at(first, dest);
        self.in_message = false;
    }

    /// A PSN as a sequence number that counts on beyond 2^24.
    ///
    /// A responder counts from the PSN that it expects. While that is not known, or is left behind because its answers
    /// are not captured, the last request counts.
    pub(super) fn unwrap(&self, psn: Psn) -> u64 {
        let top = self.top.unwrap_or_else(|| sequence::first(psn));
        let is_followed = self.state == State::Known && top - self.epsn.min(top) < Psn::HALF.into();
        let near = if is_followed { self.epsn } else { top };
        sequence::unwrap(psn, near)
    }

    /// The PSN of an answer as a sequence number: one near those in flight, however far these are apart.
    pub(super) fn unwrap_answer(&self, psn: Psn) -> u64 {
        let by_top = self.unwrap(psn);
        let first = match self.state {
            State::Known => Some(self.epsn),
            _ => self.pending.front().map(|front| front.seq),
        };
        let Some(first) = first else { return by_top };
        let by_expected = sequence::unwrap(psn, first);
        let inflight = first.saturating_sub(FAR)..self.top.unwrap_or(first) + FAR;
        if inflight.contains(&by_expected) { by_expected } else { by_top }
    }

    /// Takes a request.
    pub(super) fn request(
        &mut self,
        input: &Input<'_>,
        info: &'static OpcodeInfo,
        world: &mut World,
        out: &mut dyn Sink,
    ) {
        let facts = input.facts;
        let seq = self.unwrap(facts.psn);
        if self.pkey.is_none() {
            self.pkey = packet_pkey(input.packet);
        }
        self.first.get_or_insert(seq);
        let span = self.span_of(input, info);
        let is_new = self.top.is_none_or(|top| seq >= top);
        self.top = Some(self.top.unwrap_or(seq).max(seq + span));
        if is_new {
            self.resolve_open((seq, span, info.operation), facts.time, world, out);
        }
        self.last_request = (facts.time, !is_new);
        if matches!(self.state, State::Failed(_)) {
            return;
        }
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.request(seq, span, facts.frame);
        }
        let at = (facts.frame, facts.time);
        let Some(mut request) = Pending::new(seq, span, at, info, input.packet, facts.payload_len)
        else {
            // Cut in its headers.
            return self.forget(Undecided::Cut, world);
        };
        request.ack_request = facts.ack_request;
        request.is_unsized = self.is_unsized(input, info);
        if self.state == State::Known && seq < self.epsn {
            return self.add_duplicate(request);
        }
        let writes = matches!(info.operation, Operation::Write | Operation::AtomicWrite);
        if writes && !facts.is_cut && world.pending_bytes < PENDING_BYTES_MAX {
            let payload = input.packet.get(info.header_len..);
            let payload = payload.and_then(|rest| rest.get(..facts.payload_len as usize));
            request.payload = payload.map(Into::into);
            world.pending_bytes += facts.payload_len as usize;
        }
        request.place = self.place_of(&request);
        let (again, bytes) = (request.without_payload(), request.payload_bytes());
        // What was in flight behind a NAK was dropped.
        let dropped = self.reported.map(|(from, frame)| Dropped { from, frame });
        match self.pending.add(request, dropped) {
            Added::New => {}
            Added::Instead(old) => {
                world.pending_bytes = world.pending_bytes.saturating_sub(old);
            }
            Added::Again => {
                self.has_repeats = true;
                world.pending_bytes = world.pending_bytes.saturating_sub(bytes);
            }
            Added::Part => {
                world.pending_bytes = world.pending_bytes.saturating_sub(bytes);
                self.add_duplicate(again);
            }
        }
        if self.pending.len() > PENDING_PACKETS_MAX {
            self.forget(Undecided::BeyondLimits, world);
        }
    }

    /// Where a WRITE packet writes.
    fn place_of(&self, request: &Pending) -> Option<(u64, u32)> {
        if request.info.operation != Operation::Write {
            return None;
        }
        if let Some((address, rkey, _)) = request.reth() {
            return Some((address, rkey));
        }
        if request.seq == self.epsn {
            return self.writing;
        }
        let before = self.pending.find(request.seq.checked_sub(1)?)?;
        let (address, rkey) = before.place?;
        Some((address.wrapping_add(before.payload_len.into()), rkey))
    }

    /// Whether it is not known how many sequence numbers a READ takes.
    fn is_unsized(&self, input: &Input<'_>, info: &OpcodeInfo) -> bool {
        !self.is_mtu_known
            && info.operation == Operation::ReadRequest
            && input.facts.reth.is_some_and(|reth| reth.length > self.least_mtu)
    }

    fn span_of(&self, input: &Input<'_>, info: &OpcodeInfo) -> u64 {
        if self.is_unsized(input, info) {
            // The next request tells.
            return 1;
        }
        match input.facts.reth {
            Some(reth) if info.operation == Operation::ReadRequest => {
                packets(reth.length, self.mtu).min(u64::from(Psn::HALF))
            }
            _ => 1,
        }
    }

    /// A request came once more whose answer was captured.
    fn add_duplicate(&mut self, request: Pending) {
        self.has_repeats = true;
        let mtu = self.mtu.bytes() as u64;
        if let Some(asked) = self.asked.iter_mut().rev().find(|asked| asked.covers(request.seq))
            && asked.is_repeated_by(&request, mtu)
        {
            asked.repeats += 1;
            asked.repeat_frame = request.frame;
            asked.is_repeat_answered = false;
        }
        if self.duplicates.len() >= DUPLICATES_MAX {
            self.duplicates.pop_front();
        }
        self.duplicates.push_back(request);
    }

    /// Packets that waited for what the requester sends next: it sends `seq` for the first time.
    fn resolve_open(
        &mut self,
        (seq, span, operation): (u64, u64, Operation),
        now: Instant,
        world: &mut World,
        out: &mut dyn Sink,
    ) {
        if self.open.is_empty() {
            return;
        }
        // A packet that goes on where retransmissions stop, or that comes as late as one, may be a retransmission, too.
        let since = |then: Instant| now.as_nanos().saturating_sub(then.as_nanos());
        let (last, is_retransmission) = self.last_request;
        let is_pass = is_retransmission && since(last) < PASS_NANOS;
        let is_sure = self.is_complete;
        if !is_sure && world.is_incomplete(self.flow) {
            self.copies += 1;
        }
        let opens = core::mem::take(&mut self.open);
        // What the packets wait for was sent before and not captured, if one of them proves it.
        let is_proven = opens.iter().any(|open| {
            // It is what the answer answers, so it was sent before.
            let is_within = (seq..seq + span).contains(&open.unsent);
            let is_answered = match open.needs {
                Some(Operation::ReadResponse) => is_within && operation == Operation::ReadRequest,
                Some(Operation::AtomicAcknowledge) => {
                    is_within && matches!(operation, Operation::CompareSwap | Operation::FetchAdd)
                }
                // A NAK is answered by what it names.
                None => open.target == seq,
                _ => false,
            };
            is_answered || open.is_counted
        });
        for open in opens {
            // So late it may be a retransmission, and so soon it was on its way before.
            let is_late = since(open.time) >= TIMEOUT_NANOS;
            let is_soon = since(open.time) < PASS_NANOS;
            // Behind a NAK the requester goes back first, unless that was not captured.
            let is_ahead = open.needs.is_none() && !is_retransmission;
            let may_be_again =
                is_pass || is_late || is_soon || is_ahead || is_proven || self.copies > 0;
            if open.unsent >= seq && (is_sure || !may_be_again) {
                out.step(self.step(open.frame, Verdict::Different(open.difference)));
                continue;
            }
            // It was sent, and not captured: what the packet says is adopted.
            out.step(self.step(open.frame, Verdict::Undecided(Undecided::MissingPackets)));
            if open.target > self.epsn && self.state == State::Known {
                // What the missing requests wrote is unknown.
                world.memory.note_activity(self.host, open.frame);
                self.adopt(open.target, open.msn, open.dest, world);
            }
        }
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
        self.history.clear();
        (self.stream, self.reported, self.credits, self.top_msn) = (None, None, None, None);
    }

    /// The capture, or the time of this responder, is over.
    pub(super) fn finish(&mut self, world: &mut World, out: &mut dyn Sink) {
        for open in core::mem::take(&mut self.open) {
            out.step(self.step(open.frame, Verdict::Undecided(Undecided::MissingPackets)));
        }
        self.finish_arrivals(out);
        while let Some(request) = self.pending.pop_front() {
            self.write_unknown(&request, world);
        }
    }

    /// Whether a request that may have been executed writes to these addresses, or makes the program of the host do so.
    pub(super) fn may_write(&self, start: u64, end: u64) -> bool {
        self.pending.iter().any(|request| match request.info.operation {
            Operation::Write if request.info.receive.completes() => true,
            Operation::Write => request.place.is_none_or(|(address, _)| {
                address < end && start < address.saturating_add(request.payload_len.into())
            }),
            Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicWrite => request
                .reth()
                .is_some_and(|(address, ..)| address < end && start < address.saturating_add(8)),
            // Where its receive is does not appear on the wire.
            Operation::Send => true,
            _ => false,
        })
    }

    /// A request may have been executed: what it writes is unknown from now on.
    fn write_unknown(&self, request: &Pending, world: &mut World) {
        world.pending_bytes = world.pending_bytes.saturating_sub(request.payload_bytes());
        let len = request.payload_len as usize;
        if let Some((address, rkey)) = request.place {
            let at = Location { host: self.host, rkey, address };
            world.memory.write(at, len, None, self.by(request, request.frame));
        }
    }

    /// Sets the engine up so that it expects `seq`, with an MSN that is to be adopted from the next answer.
    pub(super) fn start_at(&mut self, seq: u64, dest: Qpn) -> bool {
        let psn = psn_of(seq);
        match &mut self.target {
            Some(target) => target.reset(psn),
            None => self.target = Target::new(self.mtu, dest, psn),
        }
        (self.epsn, self.since, self.state) = (seq, seq, State::Known);
        (self.msn_offset, self.msn) = (0, Msn::new(0));
        self.adopts_msn = self.first_psn != Some(psn);
        (self.stream, self.reported, self.rnrs) = (None, None, 0);
        (self.in_message, self.is_message_open) = (true, false);
        self.asked.clear();
        self.duplicates.clear();
        self.history.clear();
        self.credits = None;
        self.target.is_some()
    }

    /// Adopts the state that an answer implies: all before `seq` was executed, with this MSN. Without one the MSN is that of
    /// the next answer that has one.
    pub(super) fn adopt(&mut self, seq: u64, msn: Option<Msn>, dest: Qpn, world: &mut World) {
        while self.pending.front().is_some_and(|front| front.seq < seq) {
            if let Some(request) = self.pending.pop_front() {
                self.write_unknown(&request, world);
            }
        }
        self.start_at(seq, dest);
        self.adopts_msn = msn.is_none();
        if let Some(msn) = msn {
            (self.msn_offset, self.msn) = (msn.get(), msn);
        }
    }
}

/// How many responses a READ of `length` bytes has.
pub(super) fn packets(length: u32, mtu: Mtu) -> u64 {
    u64::from(length).div_ceil(mtu.bytes() as u64).max(1)
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
