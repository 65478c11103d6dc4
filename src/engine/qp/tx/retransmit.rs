//! Retransmission: go-back-N, RNR wait, retransmission timeout.

use super::super::super::Counter;
use super::super::super::env::Env;
use super::super::super::reorder::SPAN;
use super::super::Failure;
use super::super::attr::Attributes;
use super::Tx;
use crate::time::Instant;
use crate::verbs::WcStatus;
use crate::wire::aeth::RnrTimer;

/// Maximum number of times that the retransmission timeout doubles while the peer responds but
/// acknowledges nothing: it lasts from T to 4 T, as the specification allows (C9-141). For a silent
/// peer it stays T: a dead one is reported after T for each retry and one more.
const RTO_BACKOFF_MAX: u8 = 2;

/// Number of packets that must be acknowledged after a loss before the sender uses the whole window
/// again: 256 MiB in packets of 4 KiB. A peer with a small receive buffer then loses packets once
/// in that many.
pub(super) const LOSS_FREE: u32 = 1 << 16;

impl Tx {
    /// Takes a wake-up of the timer; returns whether the timer expires now.
    pub(in super::super) fn timer_expired(
        &mut self,
        wakeup: Instant,
        attr: &Attributes,
        env: &mut Env,
    ) -> bool {
        self.timer.is_due(wakeup, env.now, attr.slot, &mut env.timers)
    }

    /// Handles the expiry of the timer: the end of an RNR wait, or the retransmission timeout.
    pub(in super::super) fn handle_timer(
        &mut self,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Failure> {
        if self.rnr_wait().is_some_and(|until| until <= env.now) {
            self.rnr_until = Instant::ZERO;
            self.restart_rto(attr, env);
        } else if env.peer_windows.is_stalled(&self.credit) {
            // It waits for the peer window in the middle of a message, and not for an ACK: this is
            // no retry.
            self.restart_rto(attr, env);
        } else if self.is_waiting() && !self.sq.is_empty() {
            if attr.is_selective() && self.handle_early_timeout(attr, env) {
                return Ok(());
            }
            env.count(Counter::Timeout);
            if core::mem::take(&mut self.peer_alive) {
                // The peer responds, but cannot keep up: the same load once more would not help.
                self.rto_backoff = (self.rto_backoff + 1).min(RTO_BACKOFF_MAX);
            }
            self.go_back_n(attr, env)?;
        }
        Ok(())
    }

    /// Starts the retransmission timer unless it runs: the oldest packet in flight decides.
    #[inline]
    pub(super) fn start_rto(&mut self, attr: &Attributes, env: &mut Env) {
        let is_needed = attr.timeout.duration().is_some() || attr.is_selective();
        if is_needed && !self.timer.runs() {
            self.restart_rto(attr, env);
        }
    }

    /// Restarts the retransmission timer, or stops it if nothing is in flight. A `timeout` of 0
    /// never expires (P-07).
    pub(super) fn restart_rto(&mut self, attr: &Attributes, env: &mut Env) {
        if let Some(until) = self.rnr_wait() {
            // A responder that asked for a wait sends no ACK meanwhile.
            return self.timer.set(until, attr.slot, &mut env.timers);
        }
        if attr.is_selective() {
            return self.restart_early_timeout(attr, env);
        }
        match attr.timeout.duration() {
            Some(timeout) if self.is_waiting() => {
                // Rule: P-07.4.
                let timeout = timeout.saturating_mul(1 << self.rto_backoff);
                self.timer.set(env.now.saturating_add(timeout), attr.slot, &mut env.timers);
            }
            _ => self.timer.clear(),
        }
    }

    /// Maximum number of packets in flight now: less for a while after a loss.
    #[inline]
    pub(super) fn window(&self, attr: &Attributes) -> u32 {
        let window = if self.since_loss < LOSS_FREE { attr.loss_window } else { attr.window };
        if attr.is_selective() { window.min(SPAN) } else { window }
    }

    /// Retransmits from the oldest packet in flight, once for each loss.
    pub(super) fn retry(&mut self, attr: &Attributes, env: &mut Env) -> Result<(), Failure> {
        // A responder that asked for an RNR wait may NAK what was in flight behind; all of that is
        // retransmitted anyway.
        // Rule: Q-07.
        if self.recovering || self.rnr_wait().is_some() {
            return Ok(());
        }
        self.go_back_n(attr, env)
    }

    /// Retransmits from the oldest packet in flight, or fails its request when `retry_cnt` is used
    /// up (P-07).
    fn go_back_n(&mut self, attr: &Attributes, env: &mut Env) -> Result<(), Failure> {
        // Rules: P-02.1, P-07.2.
        if self.retries >= attr.retry_cnt.limit() {
            env.count(Counter::RetryExceeded);
            return Err(self.fail_request(self.sq.head(), WcStatus::RetryExcErr, attr, env));
        }
        self.retries += 1;
        self.recovering = true;
        self.since_loss = 0;
        env.count(Counter::Retry);
        self.rewind(env);
        self.restart_rto(attr, env);
        Ok(())
    }

    /// Sets the cursor to the oldest packet in flight.
    fn rewind(&mut self, env: &mut Env) {
        env.peer_windows.clear(&mut self.credit, &mut env.active);
        self.forget_reports();
        self.cursor = self.sq.head();
        self.packet = 0;
        self.skip_acknowledged();
    }

    /// Moves the cursor past packets of its work request that are acknowledged.
    pub(super) fn skip_acknowledged(&mut self) {
        let index = self.cursor;
        if index == self.sq.tail() || !self.sq.get(index).is_begun() {
            return;
        }
        let ahead = self.una.since(self.sq.get(index).psn());
        let acknowledged = u32::try_from(ahead).unwrap_or(0);
        self.packet = self.packet.max(acknowledged);
    }

    /// Handles an RNR NAK: waits as long as the responder asks, then retransmits from there (P-06).
    pub(super) fn wait_for_receiver(
        &mut self,
        timer: RnrTimer,
        attr: &Attributes,
        env: &mut Env,
    ) -> Result<(), Failure> {
        if self.rnr_wait().is_some() {
            return Ok(());
        }
        // Rule: P-06.2.
        if attr.rnr_retry.limit().is_some_and(|limit| self.rnr_retries >= limit) {
            env.count(Counter::RnrRetryExceeded);
            return Err(self.fail_request(self.sq.head(), WcStatus::RnrRetryExcErr, attr, env));
        }
        self.rnr_retries = self.rnr_retries.saturating_add(1);
        // Rule: P-06.1.
        self.rnr_until = env.now.saturating_add(timer.duration());
        self.rewind(env);
        self.restart_rto(attr, env);
        Ok(())
    }

    /// Forward progress: resets the retry counters.
    pub(super) fn made_progress(&mut self) {
        // Rule: P-07.3.
        (self.retries, self.rnr_retries, self.recovering) = (0, 0, false);
        (self.rto_backoff, self.peer_alive) = (0, false);
    }
}
