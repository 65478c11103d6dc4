//! Connections, with calls that block.

use std::io::IoSlice;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use super::endpoint::{EVERY_RIGHT, Endpoint, first};
use super::error::Error;
use super::shared::{Shared, State};
use crate::device::{Mr, MrSlice, Pd};

/// Bytes of a message from which on it is not copied if it lies in registered memory: a smaller one
/// takes less time to copy than another entry of a scatter/gather list.
const LEND_MIN: usize = 4096;

/// A connection: messages in order, each whole, in both directions, and memory of the peer's that
/// can be read and written.
///
/// Any number of threads may use it. Cloning gives another handle to the same connection, which is
/// closed with the last of them. Then the peer's [`recv`](Self::recv) ends after the last message.
///
/// ```
/// use roce::net::{Connection, Listener};
///
/// let listener = Listener::bind("127.20.2.1:0")?;
/// let at = listener.local_addr()?;
/// let echo = std::thread::spawn(move || {
///     let connection = listener.accept()?;
///     while let Some(message) = connection.recv()? {
///         connection.send(&message)?;
///     }
///     connection.close()
/// });
/// let connection = Connection::connect(at)?;
/// // Many messages, one doorbell.
/// for number in 0..10_u8 {
///     connection.queue(&[number; 100])?;
/// }
/// connection.flush()?;
/// let mut message = Vec::new();
/// for number in 0..10_u8 {
///     assert!(connection.recv_into(&mut message)?);
///     assert_eq!(message, [number; 100]);
/// }
/// // A message of any size.
/// let large = vec![7; 3 << 20];
/// connection.send(&large)?;
/// assert_eq!(connection.recv()?, Some(large));
/// connection.close()?;
/// echo.join().unwrap()?;
/// # Ok::<(), roce::net::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Connection {
    pub(super) shared: Arc<Shared>,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Connects to a listener, from the soft NIC of this machine that reaches it.
    pub fn connect(to: impl ToSocketAddrs) -> Result<Self, Error> {
        let to = first(to)?;
        Endpoint::towards(to)?.connect(to)
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.shared.info.peer
    }

    /// Returns the own address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.shared.info.local
    }

    /// Returns what the peer's program had to say when it connected or accepted.
    pub fn private_data(&self) -> &[u8] {
        &self.shared.info.private_data
    }

    /// Returns the protection domain: memory of it can be sent, published and operated with.
    pub fn pd(&self) -> &Pd {
        self.shared.qp.pd()
    }

    /// Allocates memory that can be [published](Self::publish) with every right.
    pub fn allocate(&self, len: usize) -> Result<Mr, Error> {
        Ok(self.pd().allocate(len, EVERY_RIGHT)?)
    }

    /// Sends a message. It waits while the peer's ring is full: a peer that does not read holds up
    /// the sender, and takes no memory.
    pub fn send(&self, message: &[u8]) -> Result<(), Error> {
        self.send_parts(&[message], None)
    }

    /// Sends a message, but waits no longer than `timeout`: then it fails, and nothing is sent.
    pub fn send_timeout(&self, message: &[u8], timeout: Duration) -> Result<(), Error> {
        self.send_parts(&[message], Some(timeout))
    }

    /// Sends a message that lies in several parts.
    pub fn send_vectored(&self, parts: &[IoSlice<'_>]) -> Result<(), Error> {
        let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
        self.send_parts(&parts, None)
    }

    fn send_parts(&self, parts: &[&[u8]], timeout: Option<Duration>) -> Result<(), Error> {
        let message = self.shared.outgoing(parts)?;
        let try_send = |state: &mut State| {
            let sent = self.shared.try_send(state, &message, true)?;
            Ok(sent.then_some(()))
        };
        self.shared.wait(timeout, try_send)
    }

    /// Sends a message if that can be done at once, and fails with [`Error::WouldBlock`] otherwise.
    pub fn try_send(&self, message: &[u8]) -> Result<(), Error> {
        let parts = [message];
        let message = self.shared.outgoing(&parts)?;
        let state = &mut *self.shared.lock();
        if self.shared.try_send(state, &message, true)? {
            return Ok(());
        }
        self.shared.progress(state);
        let sent = self.shared.try_send(state, &message, true)?;
        if sent { Ok(()) } else { Err(Error::WouldBlock) }
    }

    /// Queues a message without a doorbell: it goes with the next [`flush`](Self::flush) or message
    /// that is sent, or when the ring is full. Messages that are queued one behind the other share
    /// packets.
    pub fn queue(&self, message: &[u8]) -> Result<(), Error> {
        let parts = [message];
        let message = self.shared.outgoing(&parts)?;
        let try_send = |state: &mut State| {
            let sent = self.shared.try_send(state, &message, false)?;
            Ok(sent.then_some(()))
        };
        self.shared.wait(None, try_send)
    }

    /// Sends what was queued.
    pub fn flush(&self) -> Result<(), Error> {
        self.shared.wait(None, |state| {
            self.shared.transmit(state);
            Ok(state.core.is_flushed().then_some(()))
        })
    }

    /// Sends a message that lies in registered memory, without a copy on this side. Its bytes must
    /// stay as they are until [`wait_read`](Self::wait_read) returns. The peer reads a message that
    /// is too large for its ring from the region, which must allow
    /// [`REMOTE_READ`](crate::verbs::Access::REMOTE_READ) then. A message of less than 4 KiB is
    /// copied.
    pub fn send_region(&self, message: &MrSlice) -> Result<(), Error> {
        if message.len() < LEND_MIN {
            return self.send(&message.to_vec());
        }
        self.shared.wait(None, |state| {
            let sent = self.shared.try_send_region(state, message)?;
            Ok(sent.then_some(()))
        })
    }

    /// Waits until memory that was sent by [`send_region`](Self::send_region) may change: the peer
    /// has its bytes, and its program has taken messages that are too large for its ring.
    pub fn wait_read(&self) -> Result<(), Error> {
        self.shared.wait(None, |state| Ok(state.core.has_delivered_lent().then_some(())))
    }

    /// Waits for the next message; `None` when the peer has closed its side.
    pub fn recv(&self) -> Result<Option<Vec<u8>>, Error> {
        let mut message = Vec::new();
        Ok(self.recv_into(&mut message)?.then_some(message))
    }

    /// Waits for the next message, which replaces the contents of `message`: a buffer that is used
    /// for all messages is allocated once. False when the peer has closed its side.
    pub fn recv_into(&self, message: &mut Vec<u8>) -> Result<bool, Error> {
        self.shared.wait(None, |state| Ok(self.shared.try_recv(state, message)))
    }

    /// Receives a message, but waits no longer than `timeout`.
    pub fn recv_timeout(&self, message: &mut Vec<u8>, timeout: Duration) -> Result<bool, Error> {
        self.shared.wait(Some(timeout), |state| Ok(self.shared.try_recv(state, message)))
    }

    /// Takes a message that is there, and fails with [`Error::WouldBlock`] otherwise.
    pub fn try_recv(&self, message: &mut Vec<u8>) -> Result<bool, Error> {
        let state = &mut *self.shared.lock();
        if let Some(taken) = self.shared.try_recv(state, message) {
            return Ok(taken);
        }
        self.shared.progress(state);
        match self.shared.try_recv(state, message) {
            Some(taken) => Ok(taken),
            None => Err(state.core.failure().map_or(Error::WouldBlock, Into::into)),
        }
    }

    /// Tells the peer, behind all messages, that no other follows: its [`recv`](Self::recv) ends.
    /// Messages of the peer can still be received.
    pub fn finish(&self) -> Result<(), Error> {
        self.finish_timeout(Duration::MAX)
    }

    /// Finishes this side, but waits no longer than `timeout`: then it fails, and the peer is told
    /// when its ring has room.
    pub fn finish_timeout(&self, timeout: Duration) -> Result<(), Error> {
        self.shared.wait(Some(timeout), |state| {
            state.core.finish();
            self.shared.transmit(state);
            Ok(state.core.is_flushed().then_some(()))
        })
    }

    /// Closes the connection: returns when all messages have arrived at the peer, and large ones
    /// were taken by its program. Messages that were not received are dropped, and the peer cannot
    /// send any more. Fails with [`Error::Undelivered`] if messages did not arrive within
    /// [`linger`](super::Config::linger), or because the peer has gone. Dropping the last handle
    /// does the same, and tells nothing.
    ///
    /// A process that ends without either, by [`std::process::exit`] for example, sends what its
    /// NIC has sent until then.
    pub fn close(&self) -> Result<(), Error> {
        self.shared.close(self.shared.config.linger)
    }

    /// Ends the connection at once: messages that have not arrived are lost, and the peer notices
    /// when it sends or waits.
    pub fn abort(&self) {
        self.shared.abort();
    }

    /// Returns the bytes of the peer's ring that are in use: a measure of how far it is behind.
    pub fn backlog(&self) -> usize {
        usize::try_from(self.shared.lock().core.ring_used()).unwrap_or(usize::MAX)
    }

    /// Polls once: completions are handled, and what they allow is posted. Calls that wait do so by
    /// themselves.
    pub fn poll(&self) -> bool {
        self.shared.progress(&mut self.shared.lock())
    }
}
