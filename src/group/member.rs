//! A thread's side of a group: messages to and from its peers.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::error::Error;
use super::limits::POLL_MAX;
use super::link::{Change, Link, Next, Standing};
use super::mesh::{Mesh, lock};
use super::remote::Remote;
use crate::net::{self, Connection};

/// Handler of the messages and changes that a [`Member`] polls. A closure `FnMut(usize, &[u8])` is
/// one, which is called with each message and the number of the server that it is from.
///
/// It may send by the member that polls.
pub trait Handler {
    /// Called with each message.
    fn message(&mut self, from: usize, message: &[u8]);

    /// Called when a peer is connected or lost, in order with its messages.
    fn change(&mut self, peer: usize, change: Change) {
        let _ = (peer, change);
    }
}

impl<F: FnMut(usize, &[u8])> Handler for F {
    fn message(&mut self, from: usize, message: &[u8]) {
        self(from, message);
    }
}

/// The member of a thread: connected to the members of the same thread at the other servers.
///
/// No call waits, except [`wait`](Self::wait). Messages to a peer arrive in order, each once. They
/// are written straight into a circular buffer, from which the NIC sends, and go with the next
/// doorbell: after [`doorbell_batch`](super::Config::doorbell_batch) messages, with
/// [`flush`](Self::flush), or when the member polls.
///
/// A peer that restarts is a new one: [`Handler::change`] tells so. A connection that is lost
/// between two that go on is made again, and no message is lost by it.
///
/// ```
/// use std::io::Write;
/// use std::time::Duration;
///
/// use roce::group::{Config, Group, Hosts};
///
/// let hosts: Hosts = "127.20.11.1:7000,127.20.11.2:7000".parse()?;
/// let groups = [0, 1].map(|own| Group::open(&hosts, own, &Config::default()));
/// let [a, b] = groups;
/// let (a, b) = (a?, b?);
/// a.wait_connected(Duration::from_secs(60))?;
/// b.wait_connected(Duration::from_secs(60))?;
/// let (sender, receiver) = (a.member(0)?, b.member(0)?);
/// // Written in place: nothing is copied to be sent.
/// let mut record = sender.reserve(1, 10)?;
/// record.write_all(b"ten").unwrap();
/// record.write_at(3, b" bytes.")?;
/// record.commit()?;
/// // Or copied, and several with one doorbell.
/// sender.post(1, b"second")?;
/// sender.post(1, b"third")?;
/// sender.flush_all()?;
/// let mut received = Vec::new();
/// while received.len() < 3 {
///     receiver.wait(Duration::from_secs(1))?;
///     receiver.poll(&mut |from: usize, message: &[u8]| received.push((from, message.to_vec())))?;
/// }
/// assert_eq!(received[0], (0, b"ten bytes.".to_vec()));
/// assert_eq!(received[2], (0, b"third".to_vec()));
/// # Ok::<(), roce::group::Error>(())
/// ```
#[derive(Debug)]
pub struct Member {
    mesh: Arc<Mesh>,
    thread: usize,
    /// Buffer of messages while the program handles them: allocated once.
    message: RefCell<Vec<u8>>,
}

impl Member {
    pub(super) fn new(mesh: Arc<Mesh>, thread: usize) -> Self {
        Self { mesh, thread, message: RefCell::default() }
    }

    /// Returns the number of its server.
    pub fn own(&self) -> usize {
        self.mesh.own
    }

    /// Returns the number of its thread.
    pub fn thread(&self) -> usize {
        self.thread
    }

    /// Returns the numbers of the other servers.
    pub fn peers(&self) -> impl Iterator<Item = usize> {
        let links = self.links().iter().enumerate();
        links.filter_map(|(server, link)| link.as_ref().map(|_| server))
    }

    /// Whether a peer is connected, as far as is known.
    pub fn is_connected(&self, peer: usize) -> bool {
        self.link(peer).is_ok_and(|link| link.pipe().is_some())
    }

    /// Returns the incarnation of a peer: a random number of each run of its server. `None` before
    /// the first connection.
    pub fn incarnation(&self, peer: usize) -> Result<Option<u64>, Error> {
        let incarnation = self.link(peer)?.peer();
        Ok((incarnation != 0).then_some(incarnation))
    }

    fn links(&self) -> &[Option<Mutex<Link<Connection>>>] {
        self.mesh.threads.get(self.thread).map_or(&[], |thread| &thread.links)
    }

    fn link(&self, peer: usize) -> Result<MutexGuard<'_, Link<Connection>>, Error> {
        let link = self.links().get(peer).and_then(Option::as_ref);
        link.map(lock).ok_or(Error::NoPeer(peer))
    }

    /// Fails if a peer is gone: with [`Error::Left`] if it has ended its group, with
    /// [`Error::Lost`] if it was not connected for [`lost_after`](super::Config::lost_after). All
    /// that it sent is polled before. A member that waits for a message of the peer asks this each
    /// time that nothing came.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use roce::group::{Config, Error, Group, Hosts};
    ///
    /// let hosts: Hosts = "127.20.44.1:7000,127.20.44.2:7000".parse()?;
    /// let (a, b) = (Group::open(&hosts, 0, &Config::default())?, Group::open(&hosts, 1, &Config::default())?);
    /// a.wait_connected(Duration::from_secs(60))?;
    /// b.wait_connected(Duration::from_secs(60))?;
    /// b.member(0)?.post(0, b"the last word")?;
    /// b.close()?;
    /// let (member, mut words) = (a.member(0)?, Vec::new());
    /// let gone = loop {
    ///     if member.poll(&mut |_: usize, message: &[u8]| words.push(message.to_vec()))? == 0 {
    ///         if let Err(gone) = member.check(1) {
    ///             break gone;
    ///         }
    ///         member.wait(Duration::from_secs(1))?;
    ///     }
    /// };
    /// assert!(matches!(gone, Error::Left(1)), "{gone}");
    /// assert_eq!(words, [b"the last word"]);
    /// # Ok::<(), roce::group::Error>(())
    /// ```
    pub fn check(&self, peer: usize) -> Result<(), Error> {
        match self.link(peer)?.standing() {
            Standing::Connected | Standing::Disconnected => Ok(()),
            Standing::Left => Err(Error::Left(peer)),
            Standing::Lost => Err(Error::Lost(peer)),
        }
    }

    // Sending.

    /// Reserves a message of `len` bytes in the circular send buffer of a peer. It is sent when it
    /// is [committed](Record::commit); until then no other message can be sent to that peer. Bytes
    /// that are not written are what the buffer held. Fails with [`Error::Full`] while the peer is
    /// behind by as much as its ring holds.
    pub fn reserve(&self, peer: usize, len: usize) -> Result<Record<'_>, Error> {
        let mut link = self.link(peer)?;
        if link.is_reserved() {
            return Err(Error::Reserved(peer));
        }
        let is_clear = link.pump();
        let connection = open_pipe(&link, peer)?.clone();
        check_len(&connection, len)?;
        if !is_clear {
            return Err(Error::Full(peer));
        }
        match connection.reserve(len) {
            Ok(at) => {
                link.set_reserved(true);
                let generation = link.generation();
                Ok(Record { member: self, peer, connection, generation, at, len, filled: 0 })
            }
            Err(net::Error::WouldBlock) => Err(Error::Full(peer)),
            Err(_) => {
                link.handle_lost(self.mesh.now());
                Err(Error::Disconnected(peer))
            }
        }
    }

    /// Queues a message: it goes with the next doorbell. Fails with [`Error::Full`] while the peer
    /// is behind by as much as its ring holds; then poll, and try again. Fails with
    /// [`Error::Disconnected`] while the peer is not connected, and with [`Error::Left`] or
    /// [`Error::Lost`] when it is not expected back.
    pub fn post(&self, peer: usize, message: &[u8]) -> Result<(), Error> {
        let mut link = self.link(peer)?;
        if link.is_reserved() {
            return Err(Error::Reserved(peer));
        }
        check_len(open_pipe(&link, peer)?, message.len())?;
        if !link.post(message) {
            if link.pipe().is_some_and(|connection| connection.ending().is_some()) {
                link.handle_lost(self.mesh.now());
                return Err(Error::Disconnected(peer));
            }
            return Err(Error::Full(peer));
        }
        if link.unflushed() >= self.mesh.config.doorbell_batch {
            flush(&mut link);
        }
        Ok(())
    }

    /// Queues a message, and rings the doorbell.
    pub fn send(&self, peer: usize, message: &[u8]) -> Result<(), Error> {
        self.post(peer, message)?;
        // If the connection has just been lost, the message is kept for the next one: it is sent
        // all the same.
        let _ = self.flush(peer);
        Ok(())
    }

    /// Rings the doorbell for the messages that were queued for a peer.
    pub fn flush(&self, peer: usize) -> Result<(), Error> {
        let mut link = self.link(peer)?;
        link.pump();
        flush(&mut link);
        open_pipe(&link, peer).map(|_| ())
    }

    /// Rings the doorbell for the messages to every peer that is connected.
    pub fn flush_all(&self) -> Result<(), Error> {
        for link in self.links().iter().flatten() {
            let mut link = lock(link);
            link.pump();
            flush(&mut link);
        }
        Ok(())
    }

    /// Returns the number of bytes that a message to a peer may have: a quarter of its ring, less a
    /// header.
    pub fn message_max(&self, peer: usize) -> Result<usize, Error> {
        let link = self.link(peer)?;
        Ok(link.pipe().ok_or(Error::Disconnected(peer))?.staged_max())
    }

    // Polling.

    /// Polls the sending side of a peer: what was queued is posted as far as there is room. Returns
    /// the bytes of its ring that are in use as far as this side knows. The peer tells what it has
    /// consumed with its own messages, or when that is half of the ring.
    pub fn poll_send(&self, peer: usize) -> Result<usize, Error> {
        let mut link = self.link(peer)?;
        link.pump();
        let connection = link.pipe().ok_or(Error::Disconnected(peer))?;
        connection.poll();
        let backlog = connection.backlog();
        link.handle_flushed();
        Ok(backlog)
    }

    /// Polls the receiving side of a peer: the handler gets what has arrived, up to 64 messages.
    /// Returns their number.
    pub fn poll_receive(&self, peer: usize, handler: &mut impl Handler) -> Result<usize, Error> {
        let mut message = self.message.take();
        let mut count = 0;
        while count < POLL_MAX {
            // The lock is not held while the handler runs: it may send.
            let next = self.link(peer)?.poll(&mut message, self.mesh.now());
            match next {
                Next::Message => handler.message(peer, &message),
                Next::Change(change) => {
                    handler.change(peer, change);
                    continue;
                }
                Next::Nothing => break,
            }
            count += 1;
        }
        self.message.replace(message);
        Ok(count)
    }

    /// Polls both sides of all peers. Returns the number of messages that were handled.
    pub fn poll(&self, handler: &mut impl Handler) -> Result<usize, Error> {
        let mut count = 0;
        for peer in self.peers() {
            count += self.poll_receive(peer, handler)?;
            let _ = self.poll_send(peer);
        }
        Ok(count)
    }

    /// Sleeps until there may be something to poll, or `timeout` is over. What was queued is sent
    /// before.
    pub fn wait(&self, timeout: Duration) -> Result<(), Error> {
        let mut connections = Vec::new();
        for link in self.links().iter().flatten() {
            let mut link = lock(link);
            link.pump();
            flush(&mut link);
            if link.has_next() {
                return Ok(());
            }
            if let Some(connection) = link.pipe() {
                // It polls after it has armed the channel: nothing is missed.
                if !connection.arm() || connection.is_readable() {
                    return Ok(());
                }
                connections.push(connection.clone());
            }
        }
        let Some(thread) = self.mesh.threads.get(self.thread) else { return Ok(()) };
        let fds = connections.iter().map(|connection| connection.channel().as_fd());
        let fds = fds.chain([thread.wake.as_fd()]);
        let mut fds: Vec<PollFd<'_>> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(net::Error::Io(error.into()).into()),
        }
        let is_ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (connection, _) in connections.iter().zip(&is_ready).filter(|(_, ready)| **ready) {
            connection.disarm();
        }
        // It does not block: nothing to read is no error.
        let _ = rustix::io::read(&thread.wake, &mut [0; 8]);
        Ok(())
    }

    // Memory.

    /// Finds memory that a peer has [published](super::Group::publish) under a number, in its
    /// present incarnation: address, length and key. The peer's program does nothing for it.
    pub fn lookup(&self, peer: usize, id: u64) -> Result<Option<Remote>, Error> {
        let connection = self.link(peer)?.pipe().ok_or(Error::Disconnected(peer))?.clone();
        match connection.lookup(id) {
            Ok(found) => Ok(found.map(|slice| Remote::new(connection, slice))),
            Err(_) => {
                self.link(peer)?.handle_lost(self.mesh.now());
                Err(Error::Disconnected(peer))
            }
        }
    }

    /// Ends the connection to a peer. It is made again, and no message is lost by it.
    pub fn reconnect(&self, peer: usize) -> Result<(), Error> {
        self.link(peer)?.handle_lost(self.mesh.now());
        Ok(())
    }
}

/// The connection to a peer, by which messages can be sent.
fn open_pipe(link: &Link<Connection>, peer: usize) -> Result<&Connection, Error> {
    match link.pipe() {
        Some(connection) if !link.is_closing() => Ok(connection),
        Some(_) => Err(net::Error::Finished.into()),
        None => Err(match link.standing() {
            Standing::Left => Error::Left(peer),
            Standing::Lost => Error::Lost(peer),
            Standing::Connected | Standing::Disconnected => Error::Disconnected(peer),
        }),
    }
}

fn check_len(connection: &Connection, len: usize) -> Result<(), Error> {
    let max = connection.staged_max();
    if len > max { Err(Error::TooLong { len, max }) } else { Ok(()) }
}

fn flush(link: &mut Link<Connection>) {
    if let Some(connection) = link.pipe() {
        connection.transmit();
        link.handle_flushed();
    }
}

/// A message that is reserved in the circular send buffer. Dropping it sends nothing.
///
/// [`io::Write`] writes its bytes one behind the other.
#[derive(Debug)]
#[must_use = "it is sent when it is committed"]
pub struct Record<'a> {
    member: &'a Member,
    peer: usize,
    connection: Connection,
    generation: u64,
    at: u64,
    len: usize,
    /// Bytes that were written one behind the other.
    filled: usize,
}

impl Record<'_> {
    /// Returns its number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes bytes into it, from `at` on.
    pub fn write_at(&mut self, at: usize, bytes: &[u8]) -> Result<(), Error> {
        let (len, max) = (at.saturating_add(bytes.len()), self.len);
        if len > max {
            return Err(Error::TooLong { len, max });
        }
        let written = self.connection.fill(self.at + at as u64, bytes);
        if written { Ok(()) } else { Err(Error::TooLong { len, max }) }
    }

    /// Sends it with the next doorbell. Fails if the connection was lost since it was reserved:
    /// then it is not sent.
    pub fn commit(self) -> Result<(), Error> {
        let mut link = self.member.link(self.peer)?;
        let is_present = link.generation() == self.generation && link.pipe().is_some();
        let flush = link.unflushed() + 1 >= self.member.mesh.config.doorbell_batch;
        if !is_present || self.connection.commit(self.len, flush).is_err() {
            return Err(Error::Disconnected(self.peer));
        }
        link.handle_posted();
        if flush {
            link.handle_flushed();
        }
        Ok(())
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        if let Ok(mut link) = self.member.link(self.peer)
            && link.generation() == self.generation
        {
            link.set_reserved(false);
        }
    }
}

impl io::Write for Record<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let part = bytes.get(..bytes.len().min(self.len - self.filled)).unwrap_or_default();
        self.write_at(self.filled, part).map_err(io::Error::other)?;
        self.filled += part.len();
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
