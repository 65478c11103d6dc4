//! Peers that were answered and are not yet connected.
//!
//! A listener accepts what is established. A peer that asks and then says nothing holds up no
//! other; the number of such peers is bounded, in all and for each address, and the oldest makes
//! room.

use std::io::{self, Read};
use std::net::{IpAddr, TcpStream};
use std::time::Instant;

use super::connection::Connection;
use super::core::PeerRing;
use super::counters::Counter;
use super::error::Error;
use super::shared::{ConnectionInfo, Prepared, now};
use crate::connect;

/// A peer that was answered.
#[derive(Debug)]
pub(super) struct HalfOpen {
    pub(super) prepared: Prepared,
    pub(super) ring: PeerRing,
    pub(super) info: ConnectionInfo,
    pub(super) by: HalfOpenBy,
}

#[derive(Debug)]
pub(super) enum HalfOpenBy {
    /// A peer that is connected when the connection manager has its RTU.
    Cm(Box<connect::Accepting>),
    /// A peer that is connected when it says so over the stream, which does not block.
    Tcp(TcpStream, Instant),
}

impl HalfOpen {
    /// Waits until the peer is connected.
    pub(super) fn wait(self) -> Result<Connection, Error> {
        let held = match self.by {
            HalfOpenBy::Cm(accepting) => Some(accepting.wait()?),
            HalfOpenBy::Tcp(mut stream, _) => {
                // Reads have a timeout.
                stream.set_nonblocking(false)?;
                stream.read_exact(&mut [0])?;
                None
            }
        };
        Ok(Connection::new(self.prepared.connected(self.ring, self.info, held)?))
    }

    fn source(&self) -> Option<IpAddr> {
        self.info.peer.map(|peer| peer.ip())
    }

    fn poll(&mut self) -> Outcome {
        match &mut self.by {
            HalfOpenBy::Cm(accepting) => match accepting.poll() {
                Ok(Some(held)) => Outcome::Connected(Some(Box::new(held))),
                Ok(None) => Outcome::Pending,
                Err(_) => Outcome::Failed,
            },
            HalfOpenBy::Tcp(stream, deadline) => match stream.read(&mut [0]) {
                Ok(1..) => Outcome::Connected(None),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && now() < *deadline => {
                    Outcome::Pending
                }
                _ => Outcome::Failed,
            },
        }
    }
}

/// The state of a peer that was answered.
enum Outcome {
    Pending,
    Connected(Option<Box<connect::Connection>>),
    Failed,
}

/// Half-open peers, oldest first.
#[derive(Debug, Default)]
pub(super) struct HalfOpens(Vec<HalfOpen>);

/// Events to count.
pub(super) type Count<'a> = &'a dyn Fn(Counter);

impl HalfOpens {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a peer. The oldest of the same address, and then the oldest of all, make room.
    pub(super) fn push(
        &mut self,
        peer: HalfOpen,
        max: usize,
        max_per_source: usize,
        count: Count<'_>,
    ) {
        let sources: Vec<Option<IpAddr>> = self.0.iter().map(HalfOpen::source).collect();
        if let Some(at) = to_forget(&sources, peer.source(), max, max_per_source) {
            self.0.remove(at);
            count(Counter::HalfOpenForgotten);
        }
        self.0.push(peer);
    }

    /// Takes the first that is connected, and forgets those that failed.
    pub(super) fn take_connected(&mut self, count: Count<'_>) -> Option<Result<Connection, Error>> {
        let mut at = 0;
        while let Some(peer) = self.0.get_mut(at) {
            match peer.poll() {
                Outcome::Pending => at += 1,
                Outcome::Failed => {
                    self.0.remove(at);
                    count(Counter::HalfOpenFailed);
                }
                Outcome::Connected(held) => {
                    let HalfOpen { prepared, ring, info, .. } = self.0.remove(at);
                    let held = held.map(|held| *held);
                    return Some(prepared.connected(ring, info, held).map(Connection::new));
                }
            }
        }
        None
    }

    /// Adds others, which are older.
    pub(super) fn prepend(&mut self, mut older: Self) {
        older.0.append(&mut self.0);
        self.0 = older.0;
    }
}

/// Returns the index of the peer, oldest first, that makes room for one of this address.
fn to_forget<S: PartialEq>(
    sources: &[S],
    source: S,
    max: usize,
    max_per_source: usize,
) -> Option<usize> {
    let of_source = sources.iter().filter(|other| **other == source).count();
    if of_source >= max_per_source.max(1) {
        return sources.iter().position(|other| *other == source);
    }
    (sources.len() >= max.max(1)).then_some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_of_the_same_source_makes_room_and_then_the_oldest_of_all() {
        let mut sources = Vec::new();
        let mut push = |source: u32| {
            let forgotten = to_forget(&sources, source, 4, 2).map(|at| sources.remove(at));
            sources.push(source);
            forgotten
        };
        assert_eq!([1, 1, 2].map(&mut push), [None; 3]);
        assert_eq!([1, 1, 1].map(&mut push), [Some(1); 3], "one source has two at a time");
        assert_eq!([3, 4, 5].map(&mut push), [None, Some(2), Some(1)]);
        // A flood from one address leaves the others alone.
        (0..1000).for_each(|_| assert_ne!(push(9), Some(4)));
        assert_eq!(sources, [4, 5, 9, 9]);
    }
}
