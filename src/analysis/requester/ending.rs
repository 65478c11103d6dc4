//! The end of a requester: the capture ends, its queue pair begins anew, or it gets no answer.

use core::time::Duration;

use super::progress::Seen;
use super::recovery::Reaction;
use super::{Budget, PacketFacts, Requester, RetransmissionCause, Scene};
use crate::analysis::connection::Stall;
use crate::analysis::evidence::Failure;
use crate::analysis::message::Outcome;
use crate::observe::responses::Missing;
use crate::observe::sequence::psn_of;
use crate::time::{Instant, nanos};
use crate::wire::Service;

/// The end of a requester that gets no answer.
#[derive(Clone, Copy, Debug)]
struct Ending {
    outcome: Outcome,
    attempts: u32,
    /// Time when the request was transmitted first, and when the requester was heard last.
    first_time: Instant,
    last_time: Instant,
    last_frame: u64,
    /// Whether the requester has given up.
    is_over: bool,
}

/// A requester that goes back so often to the same packet, and then falls silent, gave up.
const REPEATS_LEAST: u32 = 2;

/// The most retransmissions that a queue pair can be set to: `retry_cnt` has three bits.
const RETRIES_MAX: u32 = 7;

impl Requester {
    /// Ends what is in flight when the capture does, or when the queue pair begins anew: `silence`,
    /// if it was long since the last packet of the connection.
    pub(in crate::analysis) fn end(
        &mut self,
        service: Service,
        silence: Option<Stall>,
        end_time: Instant,
        scene: &mut Scene<'_>,
    ) {
        match service {
            Service::Uc | Service::Ud => {
                while self.progress.records.len() > 0 {
                    self.forget_unreliable(service == Service::Ud, scene);
                }
                self.tell_open_losses(scene);
            }
            _ => {
                self.end_reliable(end_time, scene);
                if let Some(stall) = silence
                    && !self.messages.is_empty()
                    && !self.is_failed
                {
                    self.add_stall(stall);
                }
            }
        }
        let [requests, responses] = self.statistics.full_payload;
        if requests > 0 && responses > 0 && requests != responses {
            let [request, response] = self.sizes.full_frames();
            self.evidence().mtu_frames = [response, request];
        }
        self.release_records(scene.budget);
        // What was on its way when the responder refused an earlier one is flushed.
        let outcome = if self.is_failed { Outcome::Flushed } else { Outcome::InFlight };
        self.tell_all(core::iter::repeat(outcome), scene);
        self.sum_up();
    }

    /// Works out the figures that need all packets.
    fn sum_up(&mut self) {
        let statistics = &mut self.statistics;
        for operation in &statistics.operations {
            statistics.latency.merge(&operation.latency);
        }
        let acks = statistics.acks.max(1);
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let ratio = self.progress.new_packets as f64 / acks as f64;
        statistics.packets_per_ack = if statistics.acks == 0 { 0.0 } else { ratio };
    }

    /// Forgets what is in flight, because the PSNs that follow have nothing to do with it.
    pub(in crate::analysis) fn resynchronize(
        &mut self,
        packet: &PacketFacts,
        scene: &mut Scene<'_>,
    ) {
        self.release_records(scene.budget);
        self.tell_all(core::iter::repeat(Outcome::InFlight), scene);
        let sequence = self.sequence_of(packet.psn);
        self.progress.space.set_next(sequence);
        self.progress.unacked = sequence;
        self.recovery.set_cursor(sequence);
        self.recovery.forget_triggers();
        (self.reaction.open_timeout, self.tentative) = (None, None);
        self.reads.resynchronize();
        self.tell_open_losses(scene);
        self.sizes.resynchronize();
        self.reaction.is_recovering = false;
    }

    /// Forgets the packets in flight.
    fn release_records(&mut self, budget: &mut Budget) {
        budget.packets = budget.packets.saturating_sub(self.progress.records.len());
        self.progress.records.clear();
        (self.progress.gaps, self.progress.skips) = (0, 0);
    }

    /// Decides how messages in flight ended when the capture does, or when the queue pair begins
    /// anew.
    fn end_reliable(&mut self, end_time: Instant, scene: &mut Scene<'_>) {
        self.accept_missing_responses(scene);
        let settled = self.reads.runs.settle(u64::MAX);
        settled.into_iter().for_each(|(open, arrival)| self.take_settled(open, arrival, scene));
        let mut unanswered = self.reads.runs.take_unanswered(self.progress.unacked);
        let least = self.round_trip.timeout_least();
        unanswered.retain(|run| end_time.saturating_since(run.time) >= least);
        if !unanswered.is_empty() {
            // Without an acknowledgment the requests themselves are all that shows it.
            let requests = unanswered.iter().map(|run| run.frame);
            let proof = requests.fold(self.answers.last.frame, u64::max);
            self.report_missing(&Missing { unanswered, ..Missing::default() }, proof, scene);
        }
        let ending = self.ending(end_time);
        if ending.is_some() {
            self.tell_unseen(scene);
        }
        self.tell_open_losses(scene);
        let Some(ending) = ending else { return };
        let silence = end_time.saturating_since(ending.last_time);
        self.statistics.is_given_up = self.reaction.repeats >= REPEATS_LEAST
            && silence > self.reaction.attempt_interval.saturating_mul(3);
        let Some(first) = self.messages.first() else { return };
        let told = first.message(scene.flow, scene.requester, ending.outcome);
        self.evidence().failure = Some(Failure {
            attempts: ending.attempts,
            first_frame: self.progress.frame,
            last_frame: ending.last_frame,
            time_nanos: nanos(ending.last_time.saturating_since(ending.first_time)),
            silence_nanos: nanos(end_time.saturating_since(ending.last_time)),
            last_acked: self.last_acked_psn(),
            is_over: ending.is_over,
            message: told,
            flushed: (self.messages.len() - 1) as u64,
        });
        if !ending.is_over {
            return;
        }
        self.is_failed = true;
        let outcomes = [ending.outcome].into_iter().chain(core::iter::repeat(Outcome::Flushed));
        self.tell_all(outcomes, scene);
    }

    /// Returns the end of a requester that retransmits without an answer, and whether it has given
    /// up: its silence is longer than it waited before.
    fn ending(&self, end_time: Instant) -> Option<Ending> {
        let first = self.messages.first()?;
        let Reaction { attempts, attempts_since, attempt_interval, cause, .. } = self.reaction;
        if let Some(Seen { time: last_time, frame: last_frame }) = self.not_ready.last()
            && last_time >= self.progress.last_request.time
        {
            let wait = match self.not_ready.wait_max() {
                Duration::ZERO => self.rnr_timer().saturating_mul(8),
                wait => wait,
            };
            let is_over = end_time.saturating_since(last_time) > wait.saturating_mul(4);
            let (outcome, attempts) = (Outcome::RnrRetryExceeded, self.not_ready.attempts());
            let first_time = self.not_ready.since().unwrap_or(last_time);
            let ending = Ending { outcome, attempts, first_time, last_time, last_frame, is_over };
            return is_over.then_some(ending);
        }
        if attempts == 0 || (self.progress.unacked > first.last && !first.needs_response()) {
            return None;
        }
        let Seen { time: last_time, frame: last_frame } = self.progress.last_request;
        let silence = end_time.saturating_since(last_time);
        let is_over = silence > attempt_interval.saturating_mul(3) || attempts >= RETRIES_MAX;
        let is_timeout = cause == Some(RetransmissionCause::Timeout);
        let (outcome, first_time) = (Outcome::RetryExceeded, attempts_since);
        let ending = Ending { outcome, attempts, first_time, last_time, last_frame, is_over };
        (is_over || (is_timeout && attempts > 1)).then_some(ending)
    }

    /// Time that a receiver that is not ready asks to wait; zero if none did.
    pub(super) fn rnr_timer(&self) -> Duration {
        let timer = self.evidence_or_none().and_then(|evidence| evidence.rnr_timer);
        timer.map(|timer| Duration::from_micros(timer.micros().into())).unwrap_or_default()
    }

    /// Ends READs that seem to wait for responses although later requests were answered and the
    /// requester did not go back: it has the responses, and the capture may miss some.
    fn accept_missing_responses(&mut self, scene: &mut Scene<'_>) {
        while let Some(read) = self.messages.first_read() {
            let (first, last, end) = (read.first, read.last, read.passed_end);
            let is_passed = self.progress.unacked > last + 1
                && self.reaction.attempts == 0
                && self.recovery.cursor() > last + 1;
            if !is_passed {
                break;
            }
            let missing = self.reads.missing_in(first..=last);
            // Responses that the requester seemed to drop passed the capture point.
            let missing = missing.filter(|response| self.reads.runs.is_missing(*response));
            let count = missing.count() as u64 + (last + 1).saturating_sub(end);
            self.statistics.not_captured += count;
            self.losses.disprove_all(|loss| loss.is_response_in(first..=last));
            let (time, frame) = (self.answers.last.time, self.answers.last.frame);
            self.messages.end_first_read((time, frame));
            if count > 0 {
                self.evidence().not_captured.push(frame);
            }
        }
        self.complete(scene);
    }

    /// The last PSN that was acknowledged.
    fn last_acked_psn(&self) -> Option<u32> {
        (self.answers.last.frame > 0).then(|| psn_of(self.progress.unacked.saturating_sub(1)).get())
    }
}
