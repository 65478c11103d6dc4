//! The next message of a connection: it stays the next one until a buffer holds it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use library::net::{self, Error};

use super::error::{Code, Failure};
use super::pointer::now;

/// Bytes of a buffer that is kept for the next message, at most.
const SPARE_MAX: usize = 64 << 10;

#[derive(Debug, Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    /// A thread has received, or given up.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a thread waits for the connection.
    is_receiving: bool,
    next: Option<Vec<u8>>,
    spare: Vec<u8>,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next message, and returns what `look` makes of it. It is taken unless that
    /// fails.
    pub(crate) fn take<T>(
        &self,
        connection: &net::Connection,
        timeout: Duration,
        look: impl FnOnce(&[u8]) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.with_next(connection, timeout, |state| {
            let message = state.next.take().unwrap_or_default();
            match look(&message) {
                Ok(value) => {
                    if message.capacity() <= SPARE_MAX {
                        state.spare = message;
                    }
                    Ok(value)
                }
                Err(failure) => {
                    state.next = Some(message);
                    Err(failure)
                }
            }
        })
    }

    /// Waits for the next message, and returns its length.
    pub(crate) fn peek(
        &self,
        connection: &net::Connection,
        timeout: Duration,
    ) -> Result<usize, Failure> {
        let len = |state: &mut State| state.next.as_ref().map_or(0, Vec::len);
        self.with_next(connection, timeout, |state| Ok(len(state)))
    }

    fn with_next<T>(
        &self,
        connection: &net::Connection,
        timeout: Duration,
        look: impl FnOnce(&mut State) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let deadline = now().checked_add(timeout);
        let left = || deadline.map(|at| at.saturating_duration_since(now()));
        let mut state = self.lock();
        while state.is_receiving {
            let Some(left) = left() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if left.is_zero() {
                return Err(Error::TimedOut.into());
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.next.is_none() {
            state.is_receiving = true;
            let mut message = std::mem::take(&mut state.spare);
            drop(state);
            let receiving = Receiving(self);
            let received = connection.recv_timeout(&mut message, left().unwrap_or(Duration::MAX));
            state = self.lock();
            state.next = matches!(received, Ok(true)).then_some(message);
            receiving.end(&mut state);
            if !received? {
                let text = "the peer has closed the connection: no message will come";
                return Err(Failure::new(Code::Closed, text));
            }
        }
        look(&mut state)
    }
}

/// A thread that waits for the connection. When it is dropped because of a panic, another one may.
struct Receiving<'a>(&'a Inbox);

impl Receiving<'_> {
    fn end(self, state: &mut State) {
        state.is_receiving = false;
        self.0.changed.notify_all();
        std::mem::forget(self);
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        self.0.lock().is_receiving = false;
        self.0.changed.notify_all();
    }
}
