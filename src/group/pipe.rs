//! A connection of `roce::net` as a link uses it.

use super::link::{Pipe, Take};
use crate::net::{Connection, Error};

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

    fn unconsumed(&self) -> Vec<Vec<u8>> {
        self.unconsumed_staged()
    }

    fn abort(&self) {
        Self::abort(self);
    }
}
