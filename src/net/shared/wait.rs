//! Waiting threads: each polls for a while; then one sleeps on the completion channel, the others
//! on a condition variable.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use super::{Shared, State, now};
use crate::net::error::Error;
use crate::verbs::Notify;

/// Number of polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 16;

impl Shared {
    /// Waits until `check` has an answer, or the connection fails.
    pub(in crate::net) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut check: impl FnMut(&mut State) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let mut state = self.lock();
        if let Some(answer) = check(&mut state)? {
            return Ok(answer);
        }
        let begun = now();
        let deadline = timeout.and_then(|timeout| begun.checked_add(timeout));
        let mut polls = 0_u32;
        loop {
            self.progress(&mut state);
            if let Some(answer) = check(&mut state)? {
                return Ok(answer);
            }
            if let Some(failure) = state.core.failure() {
                return Err(failure.into());
            }
            polls += 1;
            if !polls.is_multiple_of(POLLS_PER_LOOK) {
                drop(state);
                std::hint::spin_loop();
                state = self.lock();
                continue;
            }
            let now = now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::TimedOut);
            }
            if now - begun >= self.config.busy_poll {
                let left = deadline.map(|deadline| deadline - now);
                state = self.sleep(state, left)?;
            } else {
                drop(state);
                state = self.lock();
            }
        }
    }

    /// Sleeps until there may be progress. If nothing comes for a while, the peer's NIC has to show
    /// that it is there.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        left: Option<Duration>,
    ) -> Result<MutexGuard<'a, State>, Error> {
        let timeout = left.map_or(self.config.keepalive, |left| left.min(self.config.keepalive));
        if state.has_leader {
            state.waiters += 1;
            let slept = self.changed.wait_timeout(state, timeout);
            let (mut state, _) = slept.unwrap_or_else(PoisonError::into_inner);
            state.waiters -= 1;
            return Ok(state);
        }
        if !self.arm(&mut state) {
            return Ok(state);
        }
        state.has_leader = true;
        drop(state);
        let channel = self.cq.channel().expect("the completion queue was created with one");
        let slept = channel.wait(Some(timeout));
        let mut state = self.lock();
        state.has_leader = false;
        if state.waiters > 0 {
            // Another thread takes over.
            self.changed.notify_one();
        }
        match slept {
            Ok(Some(_)) => state.is_armed = false,
            Ok(None) => self.keep_alive(&mut state)?,
            Err(error) => return Err(error.into()),
        }
        Ok(state)
    }

    /// Has the completion queue tell of the next completion. Returns whether none came meanwhile.
    pub(in crate::net) fn arm(&self, state: &mut State) -> bool {
        if !state.is_armed {
            state.is_armed = true;
            self.cq.request_notify(Notify::Next);
        }
        // One that came before does not count.
        !self.progress(state)
    }

    /// The completion channel told of a completion.
    pub(in crate::net) fn disarm(&self, state: &mut State) {
        state.is_armed = false;
    }

    /// Has the peer's NIC show that it is there, because nothing came for a while.
    pub(in crate::net) fn keep_alive(&self, state: &mut State) -> Result<(), Error> {
        if let Some(error) = self.cq.context().device().broken() {
            return Err(error.into());
        }
        state.core.probe();
        self.transmit(state);
        Ok(())
    }
}
