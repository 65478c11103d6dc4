//! Retransmissions: the same contents, for a cause, from the right place on.

use super::attempts::Cause;
use super::limits::{REACTION, REORDER, RNR_SLACK};
use super::record::Record;
use super::requests::{Request, inside_read, is_rest_of};
use super::rules;
use super::shape::{Break, digest};
use super::state::{Checked, Requester};
use crate::observe::requester::causes::{Causes, Tolerance};
use crate::observe::requester::recovery::{Signal, Trigger};
use crate::observe::sequence::psn_of;
use crate::observe::timing::NAK_REACTION;
use crate::replay::Undecided;
use crate::time::Instant;
use crate::wire::Operation;

/// Kinds of packets whose PSN was transmitted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    /// The network made it of a packet that was sent once, or delivered it late.
    Copy,
    /// The requester goes on with what it retransmits.
    Continue,
    /// The requester went back, and whether an RNR NAK made it do so.
    Rewind(Cause),
}

impl Requester {
    /// Takes a packet whose PSN was seen before, in `record`.
    pub(super) fn take_again(
        &mut self,
        request: &Request<'_>,
        record: &Record,
        broken: Option<Break>,
    ) -> Checked {
        let contents = broken.map_or_else(|| self.check_contents(request, record), Err);
        let (repeat, cause) = self.judge_repeat(request, record);
        let counted = self.apply(request, record, repeat);
        let undecided = contents?.or(cause?);
        counted.map_or(Ok(undecided), Err)
    }

    /// Takes a packet of a connection with selective repeat whose PSN was seen before. Its contents
    /// must be those that were sent. If no SACK asks for it, its cause is undecided: timers of the
    /// requester are not in the capture.
    pub(super) fn take_selective(
        &mut self,
        request: &Request<'_>,
        record: &Record,
        broken: Option<Break>,
    ) -> Checked {
        let contents = broken.map_or_else(|| self.check_contents(request, record), Err);
        let sack = self.recovery.sack_of(request.sequence, record);
        self.note_again(request, true);
        let undecided = sack.is_none().then_some(Undecided::Unsupported);
        contents.map(|cut| cut.or(undecided))
    }

    /// Takes a packet of an unreliable connection whose PSN was seen before: only the network makes
    /// copies.
    pub(super) fn take_copy(
        &mut self,
        request: &Request<'_>,
        record: &Record,
        broken: Option<Break>,
    ) -> Checked {
        let contents = broken.map_or_else(|| self.check_contents(request, record), Err);
        let elapsed = request.now.saturating_since(record.time);
        if !record.is_broken && (self.is_local() || elapsed > REORDER) {
            let found =
                format!("PSN {} again after {} µs", psn_of(request.sequence), elapsed.as_micros());
            let broken = Break::new(&rules::UNRELIABLE_REPEATED, found).with_frame(record.frame);
            return contents.and(Err(broken));
        }
        contents
    }

    /// A retransmission repeats what was sent, or asks for the rest of a READ.
    fn check_contents(&self, request: &Request<'_>, record: &Record) -> Checked {
        if record.is_broken {
            return Ok(None);
        }
        let is_read = record.opcode.info().is_some_and(|i| i.operation == Operation::ReadRequest);
        let skipped = request.sequence - record.sequence;
        if is_read && request.facts.opcode == record.opcode {
            return self.check_read(request, record, skipped);
        }
        if skipped > 0 {
            return Err(inside_read(request, record));
        }
        let changed = |what: String| {
            Err(Break::new(&rules::RETRANSMISSION_CHANGED, what).with_frame(record.frame))
        };
        if request.facts.opcode != record.opcode {
            return changed(format!("{} where {} was", request.facts.opcode, record.opcode));
        }
        if digest(request.bytes) == record.digest {
            return Ok(request.facts.is_cut.then_some(Undecided::Cut));
        }
        if request.facts.is_cut != record.is_cut {
            return Ok(Some(Undecided::Cut));
        }
        changed("headers or payload differ from those before".into())
    }

    fn check_read(&self, request: &Request<'_>, record: &Record, skipped: u64) -> Checked {
        let (Some(read), Some(retry)) = (record.reth, request.facts.reth) else { return Ok(None) };
        let is_right = match (skipped, self.params.mtu) {
            (0, _) => retry == read,
            (_, Some(mtu)) => is_rest_of(&read, &retry, skipped, mtu),
            (_, None) => return Ok(Some(Undecided::BeforeCapture)),
        };
        if is_right {
            return Ok(None);
        }
        let bytes = skipped * u64::from(self.params.mtu.unwrap_or(0));
        let found = format!(
            "{:#x}, R_Key {}, {} bytes at PSN {}; expected {:#x}, R_Key {}, {} bytes",
            retry.virtual_address,
            retry.rkey,
            retry.length,
            psn_of(request.sequence),
            read.virtual_address.wrapping_add(bytes),
            read.rkey,
            u64::from(read.length).saturating_sub(bytes),
        );
        Err(Break::new(&rules::READ_RETRY_RETH, found).with_frame(record.frame))
    }

    /// Returns what made the packet come again, and whether that may be.
    fn judge_repeat(&self, request: &Request<'_>, record: &Record) -> (Repeat, Checked) {
        let causes = self.causes(request, record);
        if self.is_local() {
            self.judge_at_requester(request, record, causes)
        } else {
            self.judge_elsewhere(request, record, causes)
        }
    }

    fn causes(&self, request: &Request<'_>, record: &Record) -> Causes {
        let tolerance = Tolerance { timeout: self.timeout_least(), copy: REORDER };
        self.recovery.causes(request.sequence, record, request.now, tolerance)
    }

    /// The last NAK, if the requester did not go back since.
    fn unserved_nak(&self) -> Option<Trigger> {
        self.recovery.open(Signal::SequenceError).filter(|nak| !nak.is_served())
    }

    /// Judges a packet that was captured at the requester: all that it sends is seen, in order,
    /// and once.
    fn judge_at_requester(
        &self,
        request: &Request<'_>,
        record: &Record,
        causes: Causes,
    ) -> (Repeat, Checked) {
        let Request { sequence, now, .. } = *request;
        let una = self.progress.una();
        if causes.contains(Causes::CONTINUED) {
            let is_in_order = sequence == self.recovery.cursor() || sequence <= una;
            let checked = if is_in_order { Ok(None) } else { Err(self.skips(sequence)) };
            return (Repeat::Continue, checked);
        }
        let settled = self.progress.settled(now);
        let is_timeout = causes.contains(Causes::TIMEOUT);
        if record.end() <= settled && record.sequence < settled {
            let found = format!("PSN {} was acknowledged", psn_of(sequence));
            let broken = Break::new(&rules::RETRANSMISSION_CAUSE, found);
            return (
                Repeat::Rewind(Cause::Unknown),
                Err(broken.with_frame(self.progress.last_frame())),
            );
        }
        if causes.contains(Causes::NAK) {
            return (Repeat::Rewind(Cause::Loss), Ok(None));
        }
        let is_start = self.progress.is_start(sequence, record.sequence..record.end());
        if causes.contains(Causes::SETTLED_NAK)
            || is_start && causes.contains(Causes::SETTLED_EARLIER_NAK)
        {
            // Progress since then lets it count anew.
            return (Repeat::Rewind(Cause::Unknown), Ok(None));
        }
        if let Some(rnr) = self.recovery.settled_rnr_of(sequence, record).filter(|_| is_start)
            && early(&rnr, now).is_none()
            && now <= rnr.expires().saturating_add(REACTION)
        {
            return (Repeat::Rewind(Cause::Unknown), Ok(None));
        }
        if let Some(rnr) = self.recovery.rnr_of(record) {
            let is_crossing = is_timeout && now.saturating_since(rnr.time) <= REACTION;
            let checked = match early(&rnr, now) {
                Some(broken) if !is_crossing => Err(broken),
                _ => Ok(None),
            };
            return (Repeat::Rewind(Cause::Rnr), checked);
        }
        // A PSN that was never sent is another matter.
        let is_sent = |sequence: u64| self.records.get(sequence).is_some();
        let oldest = self.records.get(una).map_or(u64::MAX, |record| record.end() - 1);
        let unserved = self.unserved_nak();
        let checked = if unserved.is_some_and(|nak| !is_sent(nak.from)) {
            Ok(None)
        } else if let Some(nak) = unserved.filter(|_| !is_timeout) {
            let found = format!(
                "goes back to PSN {}, the NAK names PSN {}",
                psn_of(sequence),
                psn_of(nak.from)
            );
            Err(Break::new(&rules::RETRANSMISSION_START, found).with_frame(nak.frame))
        } else if !is_timeout {
            Err(self.without_cause(request, record))
        } else if sequence > oldest {
            let found = format!(
                "goes back to PSN {}, not acknowledged is PSN {}",
                psn_of(sequence),
                psn_of(una)
            );
            Err(Break::new(&rules::RETRANSMISSION_START, found))
        } else {
            Ok(None)
        };
        (Repeat::Rewind(Cause::Loss), checked)
    }

    /// Judges a packet that was captured elsewhere: packets may be lost, copied or reordered before
    /// the capture point, and responses lost behind it.
    fn judge_elsewhere(
        &self,
        request: &Request<'_>,
        record: &Record,
        causes: Causes,
    ) -> (Repeat, Checked) {
        if causes.contains(Causes::CONTINUED) {
            return (Repeat::Continue, Ok(None));
        }
        if causes.contains(Causes::OVERTAKEN) {
            return (Repeat::Copy, Ok(None));
        }
        let is_timeout = causes.contains(Causes::TIMEOUT);
        if causes.contains(Causes::NAK) {
            // It may go on with what a packet began that was lost, or taken for a copy.
            let cause = if is_timeout { Cause::Loss } else { Cause::Unknown };
            return (Repeat::Rewind(cause), Ok(None));
        }
        if let Some(rnr) = self.recovery.rnr_of(record) {
            let cause = if is_timeout { Cause::Unknown } else { Cause::Rnr };
            return match early(&rnr, request.now) {
                None => (Repeat::Rewind(cause), Ok(None)),
                Some(_) if is_timeout => (Repeat::Rewind(Cause::Loss), Ok(None)),
                Some(_) if causes.contains(Causes::COPY) => (Repeat::Copy, Ok(None)),
                Some(broken) if self.has_all_responses() => (Repeat::Rewind(cause), Err(broken)),
                Some(_) => (Repeat::Rewind(cause), Ok(Some(Undecided::MissingPackets))),
            };
        }
        if causes.contains(Causes::OVERTAKEN_FIRST) {
            return (Repeat::Copy, Ok(None));
        }
        if is_timeout {
            return (Repeat::Rewind(Cause::Loss), Ok(None));
        }
        if causes.contains(Causes::COPY) {
            return (Repeat::Copy, Ok(None));
        }
        let checked = if !self.params.is_answered {
            Ok(Some(Undecided::OneDirection))
        } else if causes.contains(Causes::EARLIER_NAK)
            || !self.has_all_responses()
            || self.may_miss_response(request.sequence)
        {
            // The first packets that it retransmitted may have been lost, or the capture may miss a
            // NAK, or a response was lost behind it.
            Ok(Some(Undecided::MissingPackets))
        } else {
            Err(self.without_cause(request, record))
        };
        (Repeat::Rewind(Cause::Loss), checked)
    }

    /// Whether a READ or ATOMIC up to a sequence number is remembered: its response may have been
    /// lost on its way from the capture point to the requester, and a later one implied a NAK.
    fn may_miss_response(&self, sequence: u64) -> bool {
        self.records.up_to(sequence).any(|record| record.needs_response())
    }

    /// Follows the requester after a packet that fills a gap: it went back to it, unless the packet
    /// is late.
    pub(super) fn follow_fill(&mut self, request: &Request<'_>) {
        let Some(&record) = self.records.get(request.sequence) else { return };
        let behind =
            self.records.after(request.sequence).map_or(Instant::ZERO, |behind| behind.time);
        let is_timeout = request.now.saturating_since(behind) >= self.timeout_least();
        let causes = self.causes(request, &record);
        if causes.contains(Causes::NAK) || is_timeout {
            self.go_back(request, &record);
            self.recovery.set_cursor(record.end());
            if let Some(known) = self.records.get_mut(request.sequence) {
                known.pass = self.recovery.rewind().pass;
            }
        }
    }

    /// The requester went back to a packet.
    fn go_back(&mut self, request: &Request<'_>, record: &Record) {
        self.recovery.go_back(request.sequence, request.now, request.facts.frame);
        self.recovery.serve(request.sequence, record.time);
    }

    fn without_cause(&self, request: &Request<'_>, record: &Record) -> Break {
        let elapsed = request.now.saturating_since(record.time);
        let found = format!(
            "PSN {} again after {} µs, no NAK asks for it, and the timeout is at least {} µs",
            psn_of(request.sequence),
            elapsed.as_micros(),
            self.timeout_least().as_micros()
        );
        Break::new(&rules::RETRANSMISSION_CAUSE, found)
    }

    /// Not all before `sequence` that is not acknowledged was retransmitted.
    fn skips(&self, sequence: u64) -> Break {
        let found = format!(
            "PSN {} follows, PSN {} was not retransmitted",
            psn_of(sequence),
            psn_of(self.recovery.cursor().max(self.progress.una()))
        );
        Break::new(&rules::RETRANSMISSION_START, found)
    }

    /// Checks whether an older packet should have come before a new one.
    pub(super) fn check_unserved(&self, request: &Request<'_>) -> Option<Break> {
        if !self.is_local() || self.params.is_selective {
            return None;
        }
        let una = self.progress.una();
        if let Some(nak) = self.unserved_nak()
            && self.recovery.open(Signal::RnrNak).is_none()
            && !self.attempts.is_retrying(una)
            && request.now > nak.time.saturating_add(NAK_REACTION)
            && request.sequence > nak.until
        {
            let found = format!(
                "PSN {} follows, the NAK asks for PSN {}",
                psn_of(request.sequence),
                psn_of(nak.from)
            );
            return Some(Break::new(&rules::RETRANSMISSION_START, found).with_frame(nak.frame));
        }
        // Behind what was retransmitted all up to here must have been.
        (self.recovery.cursor() < self.space.next()
            && una < self.space.next()
            && request.sequence >= self.space.next())
        .then(|| self.skips(request.sequence))
    }

    /// Follows the requester, and tells if it went back too often.
    fn apply(&mut self, request: &Request<'_>, record: &Record, repeat: Repeat) -> Option<Break> {
        let sequence = request.sequence;
        let mut broken = None;
        if let Repeat::Rewind(cause) = repeat {
            self.go_back(request, record);
            self.attempts.count(cause, sequence, self.progress.una());
            broken = self.check_attempts(cause);
        }
        if repeat != Repeat::Copy {
            self.recovery.set_cursor(record.end());
        }
        self.note_again(request, repeat != Repeat::Copy);
        broken
    }

    /// Notes that a packet came again; `is_sent`: the requester sent it, and the network did not
    /// copy it.
    fn note_again(&mut self, request: &Request<'_>, is_sent: bool) {
        let pass = self.recovery.rewind().pass;
        let Some(known) = self.records.get_mut(request.sequence) else { return };
        if is_sent || known.pass != pass {
            known.transmissions = known.transmissions.saturating_add(1);
            (known.time, known.pass) = (request.now, pass);
        }
        if known.is_broken {
            // What it was before counts for nothing.
            known.digest = digest(request.bytes);
            (known.opcode, known.reth) = (request.facts.opcode, request.facts.reth);
        }
    }

    /// Checks the number of rewinds since the last progress against the retry counts.
    fn check_attempts(&self, cause: Cause) -> Option<Break> {
        let (rule, count, most, kind) = match cause {
            Cause::Unknown => return None,
            Cause::Rnr => {
                let most = self.params.rnr_retry_count.filter(|&count| count < 7)?;
                (&rules::RNR_RETRY_COUNT, self.attempts.rnrs, most, "RNR retry")
            }
            Cause::Loss => {
                (&rules::RETRY_COUNT, self.attempts.losses, self.params.retry_count?, "retry")
            }
        };
        (count > u32::from(most))
            .then(|| Break::new(rule, format!("{kind} {count}, the {kind} count is {most}")))
    }
}

/// Checks whether a retransmission at `now` is too early after an RNR NAK.
fn early(rnr: &Trigger, now: Instant) -> Option<Break> {
    let waited = now.saturating_since(rnr.time);
    let least = rnr.timer.saturating_sub(rnr.timer / 8).saturating_sub(RNR_SLACK);
    (waited < least).then(|| {
        let found = format!(
            "retransmitted {} µs after the RNR NAK, whose timer is {} µs",
            waited.as_micros(),
            rnr.timer.as_micros()
        );
        Break::new(&rules::RNR_TIMER, found).with_frame(rnr.frame)
    })
}
