//! Requests that are sent for the first time: PSN order, opcode sequence, lengths, limits.

use super::limits::{PENDING_BYTES_MAX, REACTION, REORDER};
use super::record::{Marks, Record, counts_as_read};
use super::rules;
use super::shape::{Break, digest};
use super::state::{Checked, Pending, Requester};
use crate::analysis::{PacketFacts, RethFacts};
use crate::observe::mtu::{MTUS, mtu_with, responses_of, span_of_read};
use crate::observe::sequence::psn_of;
use crate::replay::Undecided;
use crate::time::Instant;
use crate::wire::{OpcodeInfo, Operation, Position, Psn};

/// One request packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) facts: &'a PacketFacts,
    pub(super) info: &'static OpcodeInfo,
    pub(super) bytes: &'a [u8],
    pub(super) sequence: u64,
    pub(super) now: Instant,
}

/// Result for a packet whose PSN was not seen before.
pub(super) struct Taken {
    pub(super) checked: Checked,
    /// Waits for the packet before it.
    pub(super) is_pending: bool,
}

impl Requester {
    /// Begins with the first packet captured. Tells how its PSN breaks a rule.
    pub(super) fn begin(&mut self, psn: Psn) -> Option<Break> {
        let sequence = self.sequence_of(psn);
        let Some(start) = self.params.start else {
            self.start_at(sequence);
            return None;
        };
        let ahead = psn.since(start);
        self.start_at(sequence.saturating_sub(u64::try_from(ahead).unwrap_or(0)));
        (ahead < 0).then(|| {
            let found = format!("first PSN {psn}, the connection manager said {start}");
            Break::new(&rules::STARTING_PSN, found)
        })
    }

    /// Returns the number of sequence numbers that a request takes.
    fn span_of(&self, request: &Request<'_>) -> u32 {
        match (request.info.operation, request.facts.reth, self.params.mtu) {
            (Operation::ReadRequest, Some(reth), Some(mtu)) => span_of_read(reth.length, mtu),
            _ => 1,
        }
    }

    /// Takes a packet whose PSN was not seen before: a new one, or one that fills a gap.
    pub(super) fn take_new(&mut self, request: &Request<'_>, broken: Option<Break>) -> Taken {
        let sequence = request.sequence;
        let is_new = sequence >= self.space.next();
        self.fit_read_before(sequence);
        let mut checked = match broken {
            Some(broken) => Err(broken),
            None => Ok(None),
        };
        let mut record = self.record_of(request);
        let before = self.records.before(sequence).copied();
        // Behind a READ whose number of responses is a guess, packets may be missing.
        let is_sure = |before: &Record| !before.is_span_guessed || request.info.position.begins();
        let adjacent = before.filter(|before| before.end() == sequence && is_sure(before));
        self.join_write(&mut record, before.as_ref());
        if checked.is_ok() {
            checked = self.check_write(request, &record).map_or(Ok(None), Err);
        }
        if checked.is_ok()
            && let Some(before) = adjacent
        {
            checked = check_successor(&before, request.info);
        }
        if checked.is_ok() && is_new {
            checked = self.check_limits(request, &record);
        }
        self.count_message(request, &mut record);
        if is_new && let Ok(undecided) = checked {
            checked = self.check_credits(request, &record).map(|other| undecided.or(other));
        }
        let is_first = sequence == self.first && adjacent.is_none();
        let mut is_pending = false;
        if checked.is_ok() && adjacent.is_none() {
            // The beginning of its message may still come, if it was lost and is retransmitted.
            let is_start = is_first || sequence < self.first;
            is_pending = !(is_start && request.info.position.begins());
        }
        record.is_broken = checked.is_err();
        self.gaps += u32::from(!is_new || sequence > self.space.next());
        self.first = self.first.min(sequence);
        if is_pending {
            let is_kept = self.keeps_bytes && self.pending.len() < PENDING_BYTES_MAX;
            let bytes = if is_kept { request.bytes.to_vec() } else { Vec::new() };
            let PacketFacts { frame, opcode, .. } = *request.facts;
            self.pending.push_back(Pending { sequence, frame, opcode, bytes });
        }
        self.space.set_next(self.space.next().max(record.end()));
        self.remember(record);
        Taken { checked, is_pending }
    }

    /// A READ whose number of responses was not known has as many as the next packet says, if that
    /// fits a path MTU.
    fn fit_read_before(&mut self, sequence: u64) {
        if self.params.mtu.is_some() || sequence <= self.space.next() {
            return;
        }
        let Some(last) = self.space.next().checked_sub(1) else { return };
        let Some(read) = self.records.get_mut(last) else { return };
        let is_read = read.opcode.info().is_some_and(|i| i.operation == Operation::ReadRequest);
        let Some(reth) = read.reth.filter(|_| is_read) else { return };
        let Ok(span) = u32::try_from(sequence - read.sequence) else { return };
        if mtu_with(reth.length, span.into(), self.params.least_mtu).is_some() {
            let is_answered = read.answered == read.end();
            (read.span, read.is_span_guessed) = (span, true);
            if is_answered {
                read.answered = read.end();
            }
            self.space.set_next(sequence);
        }
    }

    /// A response behind those of a READ, the last request that was sent, shows that the READ has
    /// one more, if the path MTU is not known. Where the capture was not taken at the requester,
    /// the responses may be another's.
    pub(super) fn lengthen_read(&mut self, info: &OpcodeInfo) {
        if !self.is_local()
            || self.params.mtu.is_some()
            || info.operation != Operation::ReadResponse
        {
            return;
        }
        let Some(last) = self.space.next().checked_sub(1) else { return };
        let Some(read) = self.records.get_mut(last) else { return };
        let is_read = read.opcode.info().is_some_and(|i| i.operation == Operation::ReadRequest);
        let most = read.reth.map_or(1, |reth| responses_of(reth.length, MTUS[0]));
        if !is_read || read.answered != read.end() || u64::from(read.span) >= most {
            return;
        }
        (read.span, read.is_span_guessed) = (read.span + 1, true);
        // It is not answered in full again.
        (self.unanswered, self.reads) = (self.unanswered + 1, self.reads + 1);
        let next = self.space.next();
        if self.recovery.cursor() == next {
            self.recovery.set_cursor(next + 1);
        }
        self.space.set_next(next + 1);
    }

    /// A request inside the PSNs that a READ was thought to have, and that does not ask for a part
    /// of it, shows that it has fewer.
    pub(super) fn unguess_read(&mut self, request: &Request<'_>) {
        let Some(read) = self.records.get(request.sequence).copied() else { return };
        if !read.is_span_guessed || read.sequence == request.sequence {
            return;
        }
        let is_part = match (read.reth, request.facts.reth) {
            (Some(read), Some(part)) if request.info.operation == Operation::ReadRequest => {
                let offset = part.virtual_address.wrapping_sub(read.virtual_address);
                part.rkey == read.rkey && offset < u64::from(read.length)
            }
            _ => false,
        };
        let span = u32::try_from(request.sequence - read.sequence).unwrap_or(1);
        if let Some(read) = self.records.get_mut(read.sequence).filter(|_| !is_part) {
            read.span = span;
        }
    }

    fn record_of(&self, request: &Request<'_>) -> Record {
        let Request { facts, sequence, .. } = *request;
        let write = match (request.info.operation, facts.reth) {
            (Operation::Write, Some(reth)) => Some((sequence, reth.length)),
            _ => None,
        };
        let marks = Marks {
            is_span_guessed: false,
            opcode: facts.opcode,
            is_broken: false,
            is_cut: facts.is_cut,
            digest: digest(request.bytes),
            reth: facts.reth,
            write,
            message: self.credits.last(),
            answered: sequence,
        };
        let pass = self.recovery.rewind().pass;
        Record::new(sequence, self.span_of(request), pass, facts, marks)
    }

    /// Finds out to which WRITE a MIDDLE or LAST belongs, across packets that were not captured if
    /// need be.
    fn join_write(&self, record: &mut Record, before: Option<&Record>) {
        let (Some(before), None) = (before, record.write) else { return };
        let Some(info) = record.opcode.info() else { return };
        let Some((begin, length)) = before.write.filter(|_| before.open_message().is_some()) else {
            return;
        };
        let Some(mtu) = self.params.mtu else { return };
        let end = begin + responses_of(length, mtu);
        if info.operation == Operation::Write
            && (before.end() == record.sequence || record.sequence < end)
        {
            record.write = Some((begin, length));
        }
    }

    /// Holds the payloads of a WRITE until this packet against its DMA length.
    fn check_write(&self, request: &Request<'_>, record: &Record) -> Option<Break> {
        let ((begin, length), mtu) = (record.write?, self.params.mtu?);
        let position = request.info.position;
        if position.begins() {
            return None;
        }
        let before = (record.sequence - begin) * u64::from(mtu);
        let total = before + u64::from(request.facts.payload_len);
        let is_right = match position {
            Position::Last => total == u64::from(length),
            _ => total < u64::from(length),
        };
        if is_right {
            return None;
        }
        let frame = self.records.get(begin).map_or(0, |first| first.frame);
        let verb = if position == Position::Last { "ends after" } else { "goes on behind" };
        let found = format!("the WRITE {verb} {total} bytes, its DMA length is {length}");
        Some(Break::new(&rules::WRITE_DMA_LENGTH, found).with_frame(frame))
    }

    /// The window of PSNs, and the READs in flight.
    fn check_limits(&self, request: &Request<'_>, record: &Record) -> Checked {
        let inflight = record.end().saturating_sub(self.progress.una());
        if inflight > u64::from(Psn::HALF) {
            if !self.params.is_answered && !self.has_all_responses() {
                return Ok(Some(Undecided::OneDirection));
            }
            let found =
                format!("{inflight} PSNs in flight from PSN {} on", psn_of(self.progress.una()));
            return Err(Break::new(&rules::PSN_WINDOW, found));
        }
        let Some(depth) = self.params.depth.map(u32::from) else { return Ok(None) };
        if !counts_as_read(request.info) || self.reads < depth {
            return Ok(None);
        }
        if !self.has_all_responses() {
            let passed = self.records.from(self.progress.acknowledged()).filter(|record| {
                record.is_unanswered() && record.opcode.info().is_some_and(counts_as_read)
            });
            let is_over = u32::try_from(passed.count()).unwrap_or(u32::MAX) >= depth;
            return Ok(is_over.then_some(Undecided::MissingPackets));
        }
        let found = format!("{} READs and ATOMICs in flight, agreed were {depth}", self.reads + 1);
        Err(Break::new(&rules::READS_IN_FLIGHT, found))
    }

    /// Counts messages as they begin.
    fn count_message(&mut self, request: &Request<'_>, record: &mut Record) {
        let Request { info, .. } = *request;
        let is_new = record.sequence >= self.space.next();
        let takes_receive = takes_receive(info);
        if is_new && info.position.begins() {
            record.message.number = self.credits.begin(takes_receive);
        } else if is_new && takes_receive && info.operation == Operation::Write {
            // Only its last packet tells that the WRITE takes a receive.
            self.credits.take_receive();
        }
        if !info.position.begins()
            && let Some(before) = self.records.before(record.sequence)
        {
            record.message = before.message;
        }
    }

    /// End-to-end credits.
    fn check_credits(&self, request: &Request<'_>, record: &Record) -> Checked {
        let Some((limit, since)) = self.credits.limit() else { return Ok(None) };
        let number = record.message.number;
        // What packets that were not captured began is not known.
        let is_sure = self.gaps == 0 && self.progress.una() < record.sequence;
        let takes = takes_receive(request.info)
            && (request.info.position.begins() || request.info.operation == Operation::Write);
        if !takes || !is_sure || number <= limit.saturating_add(1) {
            return Ok(None);
        }
        // The ACK that first told of a limit was on its way, or not handled yet, or it was lost
        // behind the capture point.
        let delay = if self.is_local() { REACTION } else { REORDER };
        if request.now <= since.saturating_add(delay) {
            return Ok(None);
        }
        if !self.is_local() {
            return Ok(Some(Undecided::MissingPackets));
        }
        // The limit holds for messages that begin: one in flight when the responder first told of
        // it goes on.
        let began = record.write.and_then(|(begin, _)| self.records.get(begin));
        if began.is_some_and(|it| it.time <= since || it.transmissions > 1) {
            return Ok(None);
        }
        let found = format!("message {number} while the limit is {limit}, counted from the first");
        Err(Break::new(&rules::CREDITS, found))
    }
}

/// Whether a packet makes its message take a receive.
fn takes_receive(info: &OpcodeInfo) -> bool {
    info.receive.takes() || info.operation == Operation::Send
}

/// A request whose PSN is one of those of a READ.
pub(super) fn inside_read(request: &Request<'_>, read: &Record) -> Break {
    let found = format!(
        "PSN {} is one of the {} of the READ with PSN {}",
        psn_of(request.sequence),
        read.span,
        psn_of(read.sequence)
    );
    Break::new(&rules::PSN_ORDER, found).with_frame(read.frame)
}

/// Whether a packet may stand behind another.
pub(super) fn check_successor(before: &Record, info: &OpcodeInfo) -> Checked {
    if before.is_broken {
        return Ok(None);
    }
    let is_right = match (before.open_message(), info.position) {
        (None, position) => position.begins(),
        (Some(operation), Position::Middle | Position::Last) => operation == info.operation,
        (Some(_), Position::First | Position::Only) => false,
    };
    if is_right {
        return Ok(None);
    }
    let found = format!("{} behind {}", info.name, before.opcode);
    Err(Break::new(&rules::OPCODE_SEQUENCE, found).with_frame(before.frame))
}

/// Whether a retried READ asks for what is left of the one before.
pub(super) fn is_rest_of(read: &RethFacts, retry: &RethFacts, skipped: u64, mtu: u32) -> bool {
    let bytes = skipped * u64::from(mtu);
    retry.rkey == read.rkey
        && retry.virtual_address == read.virtual_address.wrapping_add(bytes)
        && u64::from(retry.length) + bytes == u64::from(read.length)
}
