//! One responder: what it was sent, what it has executed, what it was asked for.

use std::collections::VecDeque;

use super::World;
use super::pending::{Added, Pending, PendingQueue};
use super::target::Target;
use crate::analysis::FlowNumber;
use crate::replay::Rule;
use crate::replay::judge::{Input, Sink};
use crate::replay::limits::{
    ASKED_MAX, DUPLICATES_MAX, MSN_HISTORY_MAX, PENDING_BYTES_MAX, PENDING_PACKETS_MAX, SKIP_MAX,
};
use crate::replay::memory::{HostId, Location};
use crate::replay::survey::Survey;
use crate::replay::verdict::{Difference, Step, Subject, Undecided, Verdict};
use crate::verbs::Mtu;
use crate::wire::aeth::Answer;
use crate::wire::{Msn, OpcodeInfo, Operation, PKey, Packet, Psn, Qpn};

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
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) request: Pending,
    /// The MSN of its answers, as captured ones count.
    pub(super) msn: Msn,
    /// The next response that was not captured; the sequence number behind it if all were.
    pub(super) next: u64,
    /// What an ATOMIC returned.
    pub(super) original: Option<u64>,
    /// Whether it was requested once more.
    pub(super) again: bool,
}

/// A verdict that waits for what the requester sends next.
#[derive(Debug)]
pub(super) struct Open {
    /// The packet is wrong if the requester sends this sequence number for the first time later.
    pub(super) unsent: u64,
    pub(super) frame: u64,
    pub(super) difference: Box<Difference>,
}

/// How far the execution of requests came.
#[derive(Debug)]
pub(super) enum Advance {
    /// To where it should.
    Reached,
    /// To a request that was not captured.
    Missing(u64),
    /// To a request that must be refused: the engine's answer, and the frame of the request.
    Refused(Vec<u8>, u64),
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
    pub(super) pkey: Option<PKey>,
    /// Its connection's set-up was captured, and says that this is the first PSN.
    first_psn: Option<Psn>,
    pub(super) state: State,
    pub(super) target: Option<Target>,
    /// All before this was executed.
    pub(super) epsn: u64,
    /// What captured MSNs count more than those of the engine.
    pub(super) msn_offset: u32,
    /// Whether that is not known.
    pub(super) adopts_msn: bool,
    /// The MSN of the last request that was executed, as captured ones count.
    pub(super) msn: Msn,
    /// Whether the next request may be in the middle of a message whose beginning was not captured.
    pub(super) in_message: bool,
    /// Behind the last request that was captured; `None` before the first packet.
    pub(super) top: Option<u64>,
    pub(super) pending: PendingQueue,
    pub(super) asked: VecDeque<Asked>,
    /// Where the next packet of the WRITE that is being executed writes: address and key.
    pub(super) writing: Option<(u64, u32)>,
    /// The READ whose responses the engine has yet to give, from this one on.
    pub(super) streaming: Option<(u64, u64)>,
    /// Requests that came once more after they had been answered.
    pub(super) duplicates: VecDeque<Pending>,
    /// Last sequence number of messages, and their MSN.
    pub(super) history: VecDeque<(u64, u32)>,
    /// The gap that was reported: its sequence number and the frame of the NAK.
    pub(super) reported: Option<(u64, u64)>,
    /// RNR NAKs of the expected request.
    pub(super) rnrs: u32,
    /// Receives that were advertised and not taken.
    pub(super) credits: Option<i64>,
    pub(super) open: Vec<Open>,
}

/// Sequence numbers begin here, so that earlier ones have a place.
const START: u64 = 1 << 32;

impl Track {
    pub(super) fn new(
        id: u32,
        (flow, end): (FlowNumber, u8),
        host: HostId,
        survey: &Survey,
    ) -> Self {
        let connection = survey.connection(flow);
        let mtu = connection.and_then(|connection| connection.path_mtu);
        let mtu = mtu.and_then(|bytes| Mtu::from_bytes(bytes.into())).unwrap_or(Mtu::M4096);
        let requester = usize::from(1 - end.min(1));
        let setup = connection.and_then(|connection| connection.setup.as_ref());
        let first_psn = setup.and_then(|setup| setup.starting_psns.get(requester).copied()?);
        Self {
            id,
            flow,
            end,
            host,
            last_used: 0,
            mtu,
            pkey: None,
            first_psn,
            state: State::Unknown(Undecided::BeforeCapture),
            target: None,
            epsn: 0,
            msn_offset: 0,
            adopts_msn: false,
            msn: Msn::new(0),
            in_message: false,
            top: None,
            pending: PendingQueue::default(),
            asked: VecDeque::new(),
            writing: None,
            streaming: None,
            duplicates: VecDeque::new(),
            history: VecDeque::new(),
            reported: None,
            rnrs: 0,
            credits: None,
            open: Vec::new(),
        }
    }

    /// A PSN as a sequence number that counts on beyond 2^24.
    pub(super) fn unwrap(&self, psn: Psn) -> u64 {
        let near = self.top.unwrap_or(START + u64::from(psn.get()));
        let near_psn = psn_of(near);
        near.saturating_add_signed(i64::from(psn.since(near_psn)))
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
        let span = self.span_of(input, info);
        let is_new = self.top.is_none_or(|top| seq >= top);
        self.top = Some(self.top.unwrap_or(seq).max(seq + span));
        if is_new {
            self.resolve_open(seq, out);
        }
        if matches!(self.state, State::Failed(_)) {
            return;
        }
        let at = (facts.frame, facts.time);
        let Some(mut request) = Pending::new(seq, span, at, info, input.packet, facts.payload_len)
        else {
            // Cut in its headers.
            return self.forget(Undecided::Cut, world);
        };
        request.ack_request = facts.ack_request;
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
        match self.pending.add(request) {
            Added::New => {}
            Added::Again => world.pending_bytes = world.pending_bytes.saturating_sub(bytes),
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

    fn span_of(&self, input: &Input<'_>, info: &OpcodeInfo) -> u64 {
        match input.facts.reth {
            Some(reth) if info.operation == Operation::ReadRequest => {
                packets(reth.length, self.mtu).min(u64::from(Psn::HALF))
            }
            _ => 1,
        }
    }

    /// A request came once more whose answer was captured.
    fn add_duplicate(&mut self, request: Pending) {
        if let Some(asked) = self.asked_mut(request.seq) {
            asked.again = true;
        }
        if self.duplicates.len() >= DUPLICATES_MAX {
            self.duplicates.pop_front();
        }
        self.duplicates.push_back(request);
    }

    /// The READ or ATOMIC that a sequence number belongs to.
    pub(super) fn asked_mut(&mut self, seq: u64) -> Option<&mut Asked> {
        let covers = |asked: &Asked| (asked.request.seq..asked.request.end()).contains(&seq);
        self.asked.iter_mut().rev().find(|asked| covers(asked))
    }

    /// Packets that waited for what the requester sends next: it sends `seq` for the first time.
    fn resolve_open(&mut self, seq: u64, out: &mut dyn Sink) {
        if self.open.is_empty() {
            return;
        }
        let mut is_wrong = false;
        for open in core::mem::take(&mut self.open) {
            if open.unsent < seq {
                // It was sent, and not captured.
                out.step(self.step(open.frame, Verdict::Undecided(Undecided::MissingPackets)));
                continue;
            }
            is_wrong = true;
            out.step(self.step(open.frame, Verdict::Different(open.difference)));
        }
        if is_wrong {
            // The answer was wrong, and so is the state that was adopted from it.
            self.state = State::Unknown(Undecided::MissingPackets);
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
        self.asked.clear();
        self.duplicates.clear();
        self.history.clear();
        (self.streaming, self.reported, self.credits) = (None, None, None);
    }

    /// The capture, or the time of this responder, is over.
    pub(super) fn finish(&mut self, world: &mut World, out: &mut dyn Sink) {
        for open in core::mem::take(&mut self.open) {
            out.step(self.step(open.frame, Verdict::Undecided(Undecided::MissingPackets)));
        }
        while let Some(request) = self.pending.pop_front() {
            self.write_unknown(&request, world);
        }
    }

    /// A request may have been executed: what it writes is unknown from now on.
    fn write_unknown(&self, request: &Pending, world: &mut World) {
        world.pending_bytes = world.pending_bytes.saturating_sub(request.payload_bytes());
        let len = request.payload_len as usize;
        if let Some((address, rkey)) = request.place {
            let at = Location { host: self.host, rkey, address };
            world.memory.write(at, len, None, (self.id, request.frame));
        }
    }

    /// Sets the engine up so that it expects `seq`, with an MSN that is to be adopted from the next answer.
    pub(super) fn start_at(&mut self, seq: u64, dest: Qpn) -> bool {
        let psn = psn_of(seq);
        match &mut self.target {
            Some(target) => target.reset(psn),
            None => self.target = Target::new(self.mtu, dest, psn),
        }
        (self.epsn, self.state) = (seq, State::Known);
        (self.msn_offset, self.msn) = (0, Msn::new(0));
        self.adopts_msn = self.first_psn != Some(psn);
        (self.streaming, self.reported, self.rnrs) = (None, None, 0);
        self.in_message = true;
        self.asked.clear();
        self.history.clear();
        self.target.is_some()
    }

    /// Adopts the state that an answer implies: all before `seq` was executed, with this MSN.
    pub(super) fn adopt(&mut self, seq: u64, msn: Msn, dest: Qpn, world: &mut World) {
        while self.pending.front().is_some_and(|front| front.seq < seq) {
            if let Some(request) = self.pending.pop_front() {
                self.write_unknown(&request, world);
            }
        }
        self.start_at(seq, dest);
        (self.msn_offset, self.msn, self.adopts_msn) = (msn.get(), msn, false);
    }

    /// Executes all requests before `target`.
    pub(super) fn advance(&mut self, target: u64, frame: u64, world: &mut World) -> Advance {
        while self.epsn < target {
            match self.pending.front() {
                Some(front) if front.seq == self.epsn => {}
                _ => return Advance::Missing(self.epsn),
            }
            let Some(request) = self.pending.pop_front() else { break };
            if let Some(refused) = self.execute(request, frame, world) {
                return refused;
            }
        }
        Advance::Reached
    }

    /// Executes the request that is expected, which the device executed at the latest at `frame`.
    fn execute(&mut self, request: Pending, frame: u64, world: &mut World) -> Option<Advance> {
        if self.in_message && !request.info.position.begins() {
            // The beginning of its message was not captured.
            self.forget(Undecided::MissingPackets, world);
            return Some(Advance::Missing(request.seq));
        }
        self.in_message = false;
        self.skip_stream(world);
        let target = self.target.as_mut()?;
        target.feed(&request.request(), true, &mut world.scratch);
        let answer = target.answer(&mut world.scratch).map(<[u8]>::to_vec);
        let parsed = answer.as_deref().and_then(|bytes| Packet::parse(bytes).ok());
        let Some(aeth) = parsed.and_then(|packet| packet.aeth()) else {
            // Silence: the engine keeps no more answers. It cannot be, since all are taken.
            self.forget(Undecided::Unsupported, world);
            return Some(Advance::Missing(request.seq));
        };
        if !matches!(aeth.syndrome().answer(), Answer::Ack(_)) {
            let (bytes, frame) = (answer.clone().unwrap_or_default(), request.frame);
            return Some(Advance::Refused(bytes, frame));
        }
        let msn = Msn::new((aeth.msn().get().wrapping_add(self.msn_offset)) & 0xff_ffff);
        if msn != self.msn {
            if self.history.len() >= MSN_HISTORY_MAX {
                self.history.pop_front();
            }
            self.history.push_back((request.seq, msn.get()));
        }
        self.msn = msn;
        self.epsn = request.end();
        (self.reported, self.rnrs) = (None, 0);
        self.apply(request, frame, world);
        None
    }

    /// What an executed request does beside being answered.
    fn apply(&mut self, mut request: Pending, frame: u64, world: &mut World) {
        if request.info.receive.takes() {
            self.credits = self.credits.map(|credits| credits - 1);
        }
        if request.info.receive.completes() {
            world.memory.note_activity(self.host, frame);
        }
        if matches!(request.info.operation, Operation::Write | Operation::AtomicWrite) {
            world.pending_bytes = world.pending_bytes.saturating_sub(request.payload_bytes());
            let payload = request.payload.take();
            self.write(&request, payload.as_deref(), frame, world);
        }
        let is_asked = matches!(
            request.info.operation,
            Operation::ReadRequest
                | Operation::CompareSwap
                | Operation::FetchAdd
                | Operation::Flush
                | Operation::AtomicWrite
        );
        if is_asked {
            if request.span > 1 {
                self.streaming = Some((request.seq + 1, request.end()));
            }
            if self.asked.len() >= ASKED_MAX {
                self.asked.pop_front();
            }
            let (msn, next, again) = (self.msn, request.seq, request.transmissions > 1);
            self.asked.push_back(Asked { request, msn, next, original: None, again });
        }
    }

    /// A WRITE changes memory.
    fn write(&mut self, request: &Pending, payload: Option<&[u8]>, frame: u64, world: &mut World) {
        let reth = request.reth().map(|(address, rkey, _)| (address, rkey));
        let Some((address, rkey)) = reth.or(self.writing) else { return };
        let next = (address.wrapping_add(request.payload_len.into()), rkey);
        self.writing = (!request.info.position.ends()).then_some(next);
        if world.program_writes {
            return;
        }
        // The program may have written to it since.
        let payload = payload.filter(|_| request.frame > world.memory.last_activity(self.host));
        let at = Location { host: self.host, rkey, address };
        world.memory.write(at, request.payload_len as usize, payload, (self.id, frame));
    }

    /// Passes over the rest of the answer to a READ.
    pub(super) fn skip_stream(&mut self, world: &mut World) {
        let Some((next, end)) = self.streaming.take() else { return };
        let Some(target) = &mut self.target else { return };
        if end - next > SKIP_MAX {
            target.reset(psn_of(self.epsn));
            self.msn_offset = self.msn.get();
            return;
        }
        for _ in next..end {
            if target.answer(&mut world.scratch).is_none() {
                break;
            }
        }
    }
}

/// The PSN of a sequence number.
pub(super) fn psn_of(seq: u64) -> Psn {
    Psn::new(u32::try_from(seq & 0xff_ffff).unwrap_or(0))
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
