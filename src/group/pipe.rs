//! A connection of `roce::net` as a link uses it.

use super::link::{Pipe, Take};
use crate::net::{Connection, Error, Unconsumed};

impl Pipe for Connection {
    fn queue(&self, message: &[u8]) -> bool {
        self.queue_staged(message)
    }

    fn take(&self, out: &mut Vec<u8>) -> Take {
        match self.try_recv(out) {
            Ok(true) => Take::Message,
            Err(Error::WouldBlock) => Take::Nothing,
            Ok(false) | Err(Error::Closed) => Take::Closed,
            Err(_) => Take::Lost,
        }
    }

    fn begin(&self) {
        self.begin_keeping();
    }

    fn unconsumed(&self) -> Unconsumed {
        self.unconsumed_staged()
    }

    fn close(&self) {
        self.begin_close();
    }

    fn is_delivered(&self) -> bool {
        self.is_closed_and_delivered()
    }

    fn has_failed(&self) -> bool {
        self.poll();
        Self::has_failed(self)
    }

    fn abort(&self) {
        Self::abort(self);
    }
}
