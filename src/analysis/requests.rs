//! What a requester of a reliable service sends: new packets, retransmissions, and copies that the network made.

use super::evidence::Evidence;
use super::inflight::needs_response;
use super::losses::Loss;
use super::message::Outcome;
use super::records::{Record, RecordFlags};
use super::requester::{
    Asked, RTT_NANOS_LEAST, Requester, Scene, TIMEOUT_NANOS_LEAST, Trigger, Verdict,
    retransmitted_mut,
};
use super::{Certainty, PacketFacts, PacketRole, RetransmissionCause, Sink};
use crate::wire::{OpcodeInfo, Operation};

/// What a packet is that has a lower sequence number than the next one.
enum Repeat {
    /// The requester went back, because of this response if one is known.
    Rewind(RetransmissionCause, Option<Trigger>),
    /// The network made it of a packet that was sent once.
    Copy,
    /// The network delivered it later than packets that were sent after it.
    Late,
}

impl Requester {
    /// Handles a request packet.
    pub(super) fn handle_request<S: Sink>(
        &mut self,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        scene: &mut Scene<'_, S>,
    ) -> Verdict {
        let sequence = self.sequence_of(packet.psn);
        if !self.is_started {
            self.is_started = true;
            (self.next, self.cursor) = (sequence, sequence);
            self.unacked = self.unacked.max(sequence);
        }
        self.learn_mtu(packet, info, sequence);
        let span = self.span_of(packet, info, sequence);
        let mut verdict = Verdict { sequence, ..Verdict::default() };
        if packet.sightings.is_copy {
            verdict.duplicate = true;
            self.handle_copy(sequence, packet, info);
            return verdict;
        }
        if sequence < self.cursor || self.is_stopped_at(sequence, packet) {
            match self.judge_repeat(sequence, packet) {
                Repeat::Rewind(cause, trigger) => {
                    verdict.retransmission = Some(cause);
                    self.rewind(sequence, cause, trigger, packet, scene);
                    self.begin_before(sequence);
                }
                Repeat::Copy => {
                    verdict.duplicate = true;
                    self.handle_copy(sequence, packet, info);
                    return verdict;
                }
                Repeat::Late => {
                    verdict.reordered = true;
                    self.handle_late(sequence, &mut verdict, packet);
                }
            }
        } else if sequence < self.next {
            verdict.retransmission = self.pass_cause.or(Some(RetransmissionCause::Timeout));
        } else if let Some((frame, time)) = self.take_resent_corrupt(sequence, packet) {
            verdict.retransmission =
                Some(self.resend_corrupt(sequence, (frame, time), packet, scene));
        }
        let is_new = sequence >= self.next;
        if is_new && info.position.begins() {
            self.pass_rnr(packet.time.as_nanos());
        }
        self.transmit(sequence, span, packet, &verdict, scene);
        self.count_request(&verdict, packet);
        // A packet of a message that ended is not one of a new message.
        if is_new || sequence >= self.unacked || self.messages.find_mut(sequence).is_some() {
            self.follow_message(sequence, span, packet, info, &verdict, scene);
        } else if let Some(again) = self.ended_read(sequence) {
            *again = true;
        }
        self.apply_sightings(packet, &mut verdict, scene);
        verdict
    }

    /// A packet before the first that was captured, while nothing is acknowledged: the connection begins with it.
    fn begin_before(&mut self, sequence: u64) {
        let is_before = self.records.first().is_some_and(|first| sequence < first.sequence);
        if is_before && self.last_ack.frame == 0 {
            self.unacked = self.unacked.min(sequence);
        }
    }

    /// Whether the requester goes back to `sequence` once more after a timeout: it had gone back for a NAK, and came no
    /// further, so far as was captured.
    fn is_stopped_at(&self, sequence: u64, packet: &PacketFacts) -> bool {
        if sequence != self.cursor
            || sequence >= self.next
            || self.pass_cause != Some(RetransmissionCause::SequenceNak)
        {
            return false;
        }
        let since = self.last_request.0.max(self.last_ack.time);
        let pause = packet.time.as_nanos().saturating_sub(since);
        // A requester that is only slow has long round trips, too.
        pause >= self.timeout_least()
            && pause > self.srtt.saturating_mul(SLOW_ROUND_TRIPS)
            && self.records.get(sequence).is_some_and(Record::is_seen)
    }

    /// The requester sends a new message: if the receiver was not ready, and the RNR timer has expired, it has retransmitted
    /// what it had to wait with.
    fn pass_rnr(&mut self, now: u64) {
        let Some(trigger) = self.trigger.filter(|known| known.cause == RetransmissionCause::Rnr)
        else {
            return;
        };
        let round_trip = self.srtt.saturating_add(self.peer_srtt);
        let wait = self.rnr_timer_nanos().saturating_add(round_trip);
        if now.saturating_sub(trigger.time) >= wait {
            self.trigger = Some(Trigger { asked: Asked::Passed, ..trigger });
        }
    }

    /// What several capture points tell of a request.
    pub(super) fn apply_sightings<S: Sink>(
        &mut self,
        packet: &PacketFacts,
        verdict: &mut Verdict,
        scene: &mut Scene<'_, S>,
    ) {
        let (sequence, sightings) = (verdict.sequence, packet.sightings);
        if !sightings.is_overtaken && sightings.lost.is_none() && !verdict.reordered {
            return;
        }
        if sightings.is_overtaken && !verdict.reordered {
            verdict.reordered = true;
            self.statistics.reordered += 1;
            self.evidence().reordered.push(packet.frame);
        }
        if sightings.lost.is_some() {
            self.report_between(sequence, PacketRole::Request, packet, scene);
        }
        if let Some(record) = self.records.get_mut(sequence) {
            record.flags.set(RecordFlags::LATE, verdict.reordered);
            if sightings.lost.is_some() {
                record.flags |= RecordFlags::LOSS_REPORTED;
            }
        }
    }

    /// Learns the path MTU from a packet that fills it, or from where the packet behind a READ begins.
    fn learn_mtu(&mut self, packet: &PacketFacts, info: &OpcodeInfo, sequence: u64) {
        if let Some((read, _)) = self.guessed_read
            && sequence > read
            && info.operation != Operation::ReadRequest
            && self.records.get(read).is_some_and(|record| sequence < record.end())
        {
            // It lies where responses of the READ would: the guess was wrong.
            self.size_read(sequence - 1);
        }
        if !info.position.ends() && !packet.is_cut {
            self.note_full(0, packet);
            self.set_mtu(packet.payload_len);
        } else if let Some((read, length)) = self.unsized_read
            && sequence > read
        {
            let span = sequence - read;
            // One response fits several path MTUs, more fit one only, if no packet is missing between.
            match MTUS.into_iter().find(|&mtu| span > 1 && responses_of(length, mtu) == span) {
                Some(mtu) => self.set_mtu(mtu),
                None => self.unsized_read = None,
            }
            if span > 1 {
                self.guessed_read = Some((read, length));
            }
        }
    }

    /// Notes the payload of a packet that fills the path MTU: 0 a request, 1 a response.
    pub(super) fn note_full(&mut self, kind: usize, packet: &PacketFacts) {
        if self.statistics.full_payload[kind] < packet.payload_len {
            self.statistics.full_payload[kind] = packet.payload_len;
            self.full_frames[kind] = packet.frame;
        }
    }

    /// The path MTU became known, and so does how many sequence numbers the last READ has.
    pub(super) fn set_mtu(&mut self, mtu: u32) {
        if !MTUS.contains(&mtu) {
            return;
        }
        if let Some((read, length)) = self.guessed_read.take()
            && self.mtu != mtu
        {
            self.mtu = mtu;
            self.resize_read(read, responses_of(length, mtu));
            self.resize_last_read(read);
        }
        if self.mtu != 0 {
            return;
        }
        self.mtu = mtu;
        if let Some((read, length)) = self.unsized_read.take() {
            let span = responses_of(length, mtu);
            if let Some(record) = self.records.last_mut()
                && record.sequence == read
            {
                record.span = u32::try_from(span).unwrap_or(u32::MAX);
                if self.cursor == self.next {
                    self.cursor = read + span;
                }
                self.next = read + span;
            }
            if let Some(message) = self.messages.find_mut(read) {
                message.last = message.first + span - 1;
            }
        }
    }

    /// A READ has another number of sequence numbers than was guessed.
    fn resize_read(&mut self, read: u64, span: u64) {
        let span32 = u32::try_from(span).unwrap_or(u32::MAX);
        let end = |requester: &Self| requester.records.get(read).map(Record::end);
        let was_at_end = end(self) == Some(self.cursor) && self.cursor < self.next;
        let Some((before, after)) = self.records.resize(read, span32) else { return };
        self.gaps = self.gaps.saturating_sub(before) + after;
        if was_at_end {
            self.cursor = end(self).unwrap_or(self.cursor);
        }
        if let Some(message) = self.messages.find_mut(read) {
            message.last = message.first + span - 1;
        }
    }

    /// The path MTU is another one than was guessed from the READ at `guessed`: if a READ behind it is the last request, its
    /// number of responses was worked out with the wrong one.
    fn resize_last_read(&mut self, guessed: u64) {
        let mtu = self.mtu;
        let Some(record) = self.records.last_mut().filter(|record| record.sequence > guessed)
        else {
            return;
        };
        let Some(message) = self.messages.find_mut(record.sequence) else { return };
        let (Operation::ReadRequest, Some(reth)) = (message.operation, message.reth) else {
            return;
        };
        let span = if mtu == 0 { 1 } else { responses_of(reth.length, mtu) };
        record.span = u32::try_from(span).unwrap_or(u32::MAX);
        message.last = message.first + span - 1;
        let is_at_end = self.cursor == self.next;
        self.next = record.end();
        self.cursor = if is_at_end { self.next } else { self.cursor.min(self.next) };
        if mtu == 0 && reth.length > MTUS[0] {
            self.unsized_read = Some((record.sequence, reth.length));
        }
    }

    /// The response that ends a READ tells how many sequence numbers it has.
    pub(super) fn size_read(&mut self, sequence: u64) {
        if let Some((read, length)) = self.guessed_read.filter(|(read, _)| *read <= sequence)
            && self.messages.find(read).is_some_and(|message| message.last != sequence)
        {
            // The path MTU is unknown again.
            let span = sequence - read + 1;
            self.guessed_read = None;
            self.mtu = MTUS
                .into_iter()
                .find(|&mtu| span > 1 && responses_of(length, mtu) == span)
                .unwrap_or(0);
            self.resize_read(read, span);
            self.resize_last_read(read);
        }
        let Some((read, _)) = self.unsized_read.filter(|(read, _)| *read <= sequence) else {
            return;
        };
        self.unsized_read = None;
        let span = sequence - read + 1;
        if let Some(record) = self.records.last_mut()
            && record.sequence == read
        {
            record.span = u32::try_from(span).unwrap_or(u32::MAX);
            if self.cursor == self.next {
                self.cursor = read + span;
            }
            self.next = read + span;
        }
        if let Some(message) = self.messages.find_mut(read) {
            message.last = sequence;
        }
    }

    /// How many sequence numbers a request takes: one, but a READ takes one for each response.
    fn span_of(&mut self, packet: &PacketFacts, info: &OpcodeInfo, sequence: u64) -> u32 {
        let Some(reth) = packet.reth.filter(|_| info.operation == Operation::ReadRequest) else {
            return 1;
        };
        let mtu = match self.mtu {
            0 if sequence < self.next => {
                let span = self.skipped_read(sequence, reth.length);
                if span > 1 {
                    self.guessed_read = Some((sequence, reth.length));
                }
                return span;
            }
            0 => {
                self.unsized_read = (reth.length > MTUS[0]).then_some((sequence, reth.length));
                return 1;
            }
            mtu => mtu,
        };
        // A READ has at most half of the PSNs (§9.7.3.1); what asks for more is not believed.
        let span = responses_of(reth.length, mtu).min(crate::wire::Psn::HALF.into());
        u32::try_from(span).unwrap_or(1)
    }

    /// How many sequence numbers a READ takes whose first transmission was not captured while the path MTU is not known: all
    /// that were skipped from there on, if it has as many responses with one of the path MTUs. So are those before the first
    /// that was captured.
    fn skipped_read(&self, sequence: u64, length: u32) -> u32 {
        let end = match (self.records.get(sequence), self.records.first()) {
            (Some(gap), _) if !gap.is_seen() => gap.end(),
            (None, Some(first)) if sequence < first.sequence => first.sequence,
            _ => return 1,
        };
        let span = end - sequence;
        let fits = MTUS.into_iter().any(|mtu| responses_of(length, mtu) == span);
        u32::try_from(span).ok().filter(|_| fits).unwrap_or(1)
    }

    /// What a packet is that was transmitted before, or that others overtook.
    fn judge_repeat(&self, sequence: u64, packet: &PacketFacts) -> Repeat {
        let now = packet.time.as_nanos();
        let Some(record) = self.records.get(sequence) else {
            // The first packet of the connection, lost before the capture point, or the rest of a READ that was.
            let mut known = [self.implied, self.trigger].into_iter().flatten();
            if let Some(trigger) = known.find(|trigger| trigger.sequence == sequence) {
                return Repeat::Rewind(trigger.cause, Some(trigger));
            }
            // So old that it is forgotten: acknowledged long ago.
            return Repeat::Rewind(RetransmissionCause::Timeout, None);
        };
        let elapsed = now.saturating_sub(record.time);
        let is_copy = record.digest == packet.digest && elapsed < RTT_NANOS_LEAST;
        if let Some(trigger) = self.trigger_of(sequence, record, is_copy, now) {
            let cause = self.cause_of(&trigger, record, now);
            return Repeat::Rewind(cause, Some(trigger));
        }
        let least = self.timeout_least();
        let in_this_pass =
            record.is_seen() && (record.pass == self.pass || sequence < self.pass_start);
        if elapsed >= least {
            return Repeat::Rewind(RetransmissionCause::Timeout, None);
        }
        if !in_this_pass {
            return Repeat::Late;
        }
        if record.digest == packet.digest {
            return Repeat::Copy;
        }
        // Too soon for a timeout: if a later response is missing here, an earlier one did not come to the requester.
        let later = self.implied.filter(|implied| implied.sequence > sequence);
        let later = later.filter(|implied| implied.asked == Asked::Missing);
        let cause = later.map_or(RetransmissionCause::Timeout, |implied| implied.cause);
        Repeat::Rewind(cause, later)
    }

    /// The response that makes the requester go back to `sequence`: one that names it, else the latest one that names an
    /// earlier packet, which was not captured then.
    fn trigger_of(
        &self,
        sequence: u64,
        record: &Record,
        is_copy: bool,
        now: u64,
    ) -> Option<Trigger> {
        let known = [self.implied, self.trigger].into_iter().flatten();
        let known = known.filter(|trigger| trigger.is_current(now)).filter(|trigger| {
            trigger.time >= record.time || self.is_after_rnr_timer(trigger, record, now)
        });
        let named =
            |trigger: &Trigger| trigger.sequence == sequence || self.is_read_of(trigger, sequence);
        // What comes again sooner than any round trip takes is a copy, unless a response, seen on its last steps to the
        // requester, implied a NAK of just this packet since.
        let is_implied = |trigger: &Trigger| {
            trigger.cause == RetransmissionCause::ImpliedNak && trigger.time > record.time
        };
        let is_named = |trigger: &Trigger| named(trigger) && (!is_copy || is_implied(trigger));
        known.clone().find(is_named).or_else(|| {
            let before = known.filter(|trigger| !is_copy && sequence > trigger.sequence);
            before.max_by_key(|trigger| trigger.time)
        })
    }

    /// Whether a packet that was in flight when the receiver was not ready is transmitted when the RNR timer has expired.
    fn is_after_rnr_timer(&self, trigger: &Trigger, record: &Record, now: u64) -> bool {
        let expires = trigger.time.saturating_add(self.rnr_timer_nanos());
        trigger.cause == RetransmissionCause::Rnr && record.time < expires && now >= expires
    }

    /// Whether `sequence` is in the READ whose response is missing: the requester may request all of it.
    fn is_read_of(&self, trigger: &Trigger, sequence: u64) -> bool {
        trigger.cause == RetransmissionCause::ImpliedNak
            && self
                .records
                .get(trigger.sequence)
                .is_some_and(|read| (read.sequence..read.end()).contains(&sequence))
    }

    /// The cause of a rewind after `trigger`: if it comes only when the timeout does, the trigger was lost on its way.
    fn cause_of(&self, trigger: &Trigger, record: &Record, now: u64) -> RetransmissionCause {
        // It went back at once, but that transmission was damaged, or did not come to the capture point.
        let is_due = |since: u64| now.saturating_sub(since) >= self.timeout_least();
        let resent = self.resent_corrupt(trigger).map(|(_, time)| time);
        let passed = (trigger.asked == Asked::Passed).then_some(record.time);
        if resent.or(passed).is_some_and(is_due) {
            return RetransmissionCause::Timeout;
        }
        let (rto, wait_least) = match (self.rto_setup, self.rto_seen) {
            // Behind the capture point the way to the requester and back may be long, as far as the requests of the other end
            // do not tell.
            (0, 0) if trigger.cause == RetransmissionCause::ImpliedNak => {
                // That a response is missing is seen near the requester.
                let least = TIMEOUT_NANOS_LEAST.max(8 * self.srtt);
                (least, least)
            }
            (0, 0) if self.peer_srtt == 0 => return trigger.cause,
            (0, 0) => {
                let least = TIMEOUT_NANOS_LEAST.max(2 * (self.srtt + self.peer_srtt));
                (least, least)
            }
            (0, seen) => (seen / 8 * 7, seen / 16 * 7),
            (setup, _) => (setup, setup / 2),
        };
        let since_trigger = now.saturating_sub(trigger.time);
        let is_late = now.saturating_sub(record.time) >= rto
            && since_trigger >= wait_least
            && since_trigger > self.srtt.saturating_mul(2);
        if is_late && trigger.cause != RetransmissionCause::Rnr {
            RetransmissionCause::Timeout
        } else {
            trigger.cause
        }
    }

    /// The requester went back to `sequence`.
    fn rewind<S: Sink>(
        &mut self,
        sequence: u64,
        cause: RetransmissionCause,
        trigger: Option<Trigger>,
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) {
        let now = packet.time.as_nanos();
        let before = self.records.get(sequence).map_or(now, |record| record.time);
        let wait = now.saturating_sub(before);
        let counter = retransmitted_mut(&mut self.statistics, cause);
        counter.rewinds += 1;
        counter.wait_nanos += wait;
        let evidence = self.evidence();
        evidence.rewinds[Evidence::slot(cause)].push(packet.frame);
        let longest = &mut evidence.longest_wait[Evidence::slot(cause)];
        *longest = (*longest).max(wait);
        if cause == RetransmissionCause::Timeout {
            self.rto_seen = if self.rto_seen == 0 { wait } else { self.rto_seen.min(wait) };
        }
        if let Some(since) = self.rnr_since.take() {
            let wait = now.saturating_sub(since);
            self.statistics.rnr_wait_nanos += wait;
            self.rnr_wait_max = self.rnr_wait_max.max(wait);
        }
        let used = trigger;
        self.judge_losses(sequence, cause, trigger, packet, scene);
        self.missing_responses.retain(|&missing| missing < sequence);
        if self.attempts > 0 {
            let interval = now.saturating_sub(self.attempt_time);
            self.attempt_interval = self.attempt_interval.max(interval);
        } else {
            self.attempt_interval = wait;
        }
        self.attempts += 1;
        self.attempt_time = now;
        self.begin_recovery();
        self.messages.reopen_reads(sequence);
        if used.is_some_and(|used| matches!(used.asked, Asked::Late | Asked::Replayed)) {
            // What it went back for reaches it meanwhile.
            self.end_recovery();
        }
        self.pass = self.pass.wrapping_add(1);
        self.pass_frame = packet.frame;
        (self.pass_start, self.pass_cause, self.cursor) = (sequence, Some(cause), sequence);
        // A late packet behind the one that is asked for looks like a retransmission: that of the one asked for follows.
        let is_nak = |trigger: &Trigger| trigger.cause == RetransmissionCause::SequenceNak;
        self.trigger =
            self.trigger.filter(|trigger| is_nak(trigger) && trigger.sequence < sequence);
        let is_read = self.implied.is_some_and(|implied| self.is_read_of(&implied, sequence));
        self.implied = self.implied.filter(|implied| implied.sequence < sequence && !is_read);
        for trigger in [&mut self.trigger, &mut self.implied].into_iter().flatten() {
            if used.is_some_and(|used| used.frame == trigger.frame) {
                trigger.asked = Asked::Told;
            }
        }
    }

    /// The first transmission of a new packet that was captured with a wrong ICRC only: the packet comes again because a NAK
    /// asks for it, or so late that the requester can have timed out. Without that the PSN was damaged as well.
    fn take_resent_corrupt(&mut self, sequence: u64, packet: &PacketFacts) -> Option<(u64, u64)> {
        let &(_, _, time) = self.corrupt.iter().find(|(corrupt, ..)| *corrupt == sequence)?;
        let elapsed = packet.time.as_nanos().saturating_sub(time);
        let is_asked_for = self.trigger.is_some_and(|trigger| trigger.sequence == sequence);
        let corrupt = self.take_corrupt(sequence);
        corrupt.filter(|_| is_asked_for || elapsed >= self.timeout_least())
    }

    /// The requester retransmits a packet whose first transmission was captured with a wrong ICRC only.
    fn resend_corrupt<S: Sink>(
        &mut self,
        sequence: u64,
        (frame, time): (u64, u64),
        packet: &PacketFacts,
        scene: &mut Scene<'_, S>,
    ) -> RetransmissionCause {
        let trigger = self.trigger.take_if(|trigger| trigger.sequence == sequence);
        let cause = trigger.map_or(RetransmissionCause::Timeout, |trigger| trigger.cause);
        let proof = trigger.map_or(packet.frame, |trigger| trigger.frame);
        let counter = retransmitted_mut(&mut self.statistics, cause);
        counter.rewinds += 1;
        counter.wait_nanos += packet.time.as_nanos().saturating_sub(time);
        self.evidence().rewinds[Evidence::slot(cause)].push(packet.frame);
        let (role, certainty, is_corrupt) = (PacketRole::Request, Certainty::Proven, true);
        let frame = Some(frame);
        self.report(Loss { sequence, role, frame, proof, certainty, is_corrupt }, scene);
        cause
    }

    /// The network delivered a packet twice.
    fn handle_copy(&mut self, sequence: u64, packet: &PacketFacts, info: &OpcodeInfo) {
        self.statistics.duplicate_packets += 1;
        self.evidence().duplicates.push(packet.frame);
        self.reanswers += 1;
        (self.repeat_frame, self.copy_frame) = (packet.frame, packet.frame);
        if let Some(record) = self.records.get_mut(sequence) {
            record.flags |= RecordFlags::COPIED;
        }
        if needs_response(info.operation)
            && let Some(message) = self.messages.find_mut(sequence)
        {
            message.requests += 1;
        } else if let Some(again) = self.ended_read(sequence) {
            *again = true;
        }
    }

    /// Packets that were sent later arrived earlier.
    fn handle_late(&mut self, sequence: u64, verdict: &mut Verdict, packet: &PacketFacts) {
        self.statistics.reordered += 1;
        self.evidence().reordered.push(packet.frame);
        if self.records.get(sequence).is_some_and(Record::is_seen) {
            verdict.retransmission = self.pass_cause;
        }
    }

    /// Remembers a packet, and where the requester stands then.
    fn transmit<S: Sink>(
        &mut self,
        sequence: u64,
        span: u32,
        packet: &PacketFacts,
        verdict: &Verdict,
        scene: &mut Scene<'_, S>,
    ) {
        let (time, frame) = (packet.time.as_nanos(), packet.frame);
        let mut flags = RecordFlags::empty();
        flags.set(RecordFlags::ACK_REQUEST, packet.ack_request);
        flags.set(RecordFlags::LATE, verdict.reordered);
        if sequence >= self.next {
            if sequence > self.next {
                let skipped = u32::try_from(sequence - self.next).unwrap_or(u32::MAX);
                self.gaps += u64::from(skipped);
                self.push_record(
                    Record {
                        sequence: self.next,
                        span: skipped,
                        digest: 0,
                        time,
                        frame,
                        pass: self.pass,
                        transmissions: 0,
                        flags: RecordFlags::empty(),
                    },
                    scene,
                );
            }
            let (digest, pass) = (packet.digest, self.pass);
            self.push_record(
                Record { sequence, span, digest, time, frame, pass, transmissions: 1, flags },
                scene,
            );
            self.new_packets += 1;
            self.next = sequence + u64::from(span);
            self.cursor = self.next;
        } else {
            let end = self.retransmit(sequence, span, packet, flags);
            if !verdict.reordered {
                self.cursor = end.unwrap_or_else(|| sequence + u64::from(span)).min(self.next);
            }
        }
        self.last_request = (time, frame);
    }

    /// Notes another transmission of a packet, and returns the sequence number behind it.
    fn retransmit(
        &mut self,
        sequence: u64,
        span: u32,
        packet: &PacketFacts,
        flags: RecordFlags,
    ) -> Option<u64> {
        self.reanswers += 1;
        self.repeat_frame = packet.frame;
        self.records.isolate(sequence, span);
        let pass = self.pass;
        let record = self.records.get_mut(sequence)?;
        self.gaps = self.gaps.saturating_sub(record.open_gap());
        if !record.is_seen() && record.flags.contains(RecordFlags::NOT_CAPTURED) {
            self.statistics.not_captured = self.statistics.not_captured.saturating_sub(1);
        }
        record.transmissions = record.transmissions.saturating_add(1);
        (record.time, record.frame) = (packet.time.as_nanos(), packet.frame);
        (record.digest, record.pass) = (packet.digest, pass);
        record.flags = flags | (record.flags & RecordFlags::COPIED);
        let end = record.end();
        // Responses that were missing are requested again.
        self.missing_responses.retain(|missing| !(sequence..end).contains(missing));
        Some(end)
    }

    fn push_record<S: Sink>(&mut self, record: Record, scene: &mut Scene<'_, S>) {
        let (history, most) = (scene.budget.history_max(), scene.budget.packets_max());
        while let Some(first) = self.records.first()
            && self.records.len() >= history
            && (first.end() <= self.unacked || self.records.len() >= most)
        {
            self.gaps = self.gaps.saturating_sub(first.open_gap());
            self.records.pop_first();
            scene.budget.packets = scene.budget.packets.saturating_sub(1);
        }
        self.records.push(record);
        scene.budget.packets += 1;
    }

    fn count_request(&mut self, verdict: &Verdict, packet: &PacketFacts) {
        let statistics = &mut self.statistics;
        statistics.request_packets += 1;
        if let Some(cause) = verdict.retransmission {
            self.count_retransmitted(cause, packet.wire_len);
        }
    }

    /// Follows the message that the packet belongs to.
    fn follow_message<S: Sink>(
        &mut self,
        sequence: u64,
        span: u32,
        packet: &PacketFacts,
        info: &OpcodeInfo,
        verdict: &Verdict,
        scene: &mut Scene<'_, S>,
    ) {
        let before = self.messages.len();
        self.messages.handle_packet(sequence, span, packet, info);
        let after = self.messages.len();
        if after > before {
            self.count_begun(info.operation);
            scene.budget.messages += 1;
            self.forget_messages(scene);
        } else if after < before {
            // Two parts turned out to be one message.
            scene.budget.messages = scene.budget.messages.saturating_sub(1);
            self.uncount_begun(info.operation);
        }
        let depth = self.messages.reads();
        let most = &mut self.statistics.read_atomic_depth;
        *most = (*most).max(depth);
        if verdict.retransmission.is_some()
            && let Some(message) = self.messages.find_mut(sequence)
        {
            message.retransmitted_packets += 1;
            message.retransmitted_bytes += u64::from(packet.wire_len);
        }
        if self.unacked > sequence && verdict.retransmission.is_none() {
            // Its acknowledgement was captured before it was.
            self.messages.acknowledge(self.unacked, (packet.time, packet.frame));
            self.complete(scene);
        }
    }

    /// Forgets the oldest messages if there are too many.
    fn forget_messages<S: Sink>(&mut self, scene: &mut Scene<'_, S>) {
        while self.messages.len() > scene.budget.messages_max() {
            let Some(message) = self.messages.pop_first() else { return };
            scene.budget.messages = scene.budget.messages.saturating_sub(1);
            scene.budget.forgotten_messages += 1;
            self.tell(&message, Outcome::InFlight, scene);
        }
    }

    fn uncount_begun(&mut self, operation: Operation) {
        let statistics = &mut self.statistics.operations;
        if let Some(known) = statistics.iter_mut().find(|known| known.operation == operation) {
            known.messages = known.messages.saturating_sub(1);
        }
    }
}

/// A pause of so many round trips while requests are retransmitted is no slowness of the requester.
const SLOW_ROUND_TRIPS: u64 = 32;

/// The path MTUs that there are, in bytes.
pub(super) const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// How many responses a READ of `length` bytes has.
pub(super) fn responses_of(length: u32, mtu: u32) -> u64 {
    u64::from(length.div_ceil(mtu.max(1))).max(1)
}
