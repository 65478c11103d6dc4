//! Operations on memory that the peer has published.

use std::sync::PoisonError;
use std::time::Duration;

use super::connection::Connection;
use super::directory::{self, Entry};
use super::error::Error;
use super::limits::PUBLISHED_MAX;
use super::shared::{Published, State, now};
use crate::device::{Buf, Memory, MrSlice, RemoteSlice};
use crate::verbs::SendOp;

/// One-sided operations: the peer's program does nothing for them.
///
/// ```
/// use roce::net::{Connection, Listener};
///
/// let listener = Listener::bind("127.20.3.1:0")?;
/// let at = listener.local_addr()?;
/// let server = std::thread::spawn(move || {
///     let connection = listener.accept()?;
///     let memory = listener.endpoint().allocate(4096)?;
///     connection.publish(1, &memory.slice(..).unwrap())?;
///     connection.send(b"published")?;
///     connection.recv()?;
///     Ok::<_, roce::net::Error>(memory.to_vec())
/// });
/// let connection = Connection::connect(at)?;
/// connection.recv()?;
/// let memory = connection.lookup(1)?.expect("the peer has published it");
/// connection.write(b"written", memory)?;
/// assert_eq!(connection.read(memory.part(0, 7).unwrap())?, b"written");
/// let counter = memory.part(8, 8).unwrap();
/// assert_eq!(connection.fetch_add(counter, 5)?, 0);
/// assert_eq!(connection.compare_swap(counter, 5, 9)?, 5);
/// connection.close()?;
/// assert_eq!(server.join().unwrap()?[..9], *b"written\0\x09");
/// # Ok::<(), roce::net::Error>(())
/// ```
impl Connection {
    /// Publishes memory under a number: the peer finds it by [`lookup`](Self::lookup), and may do
    /// with it what the rights of its region allow. What was published under the number before is
    /// replaced.
    pub fn publish(&self, id: u64, memory: &MrSlice) -> Result<(), Error> {
        self.publish_as(&memory.remote(), Published { id, _memory: Some(memory.clone()) })
    }

    /// Publishes memory by its address and key, for memory that was registered without an
    /// [`Mr`](crate::device::Mr), such as memory of a program in another language. The caller keeps
    /// it registered until it has [withdrawn](Self::unpublish) it, or the connection has ended.
    pub fn publish_remote(&self, id: u64, memory: RemoteSlice) -> Result<(), Error> {
        self.publish_as(&memory, Published { id, _memory: None })
    }

    fn publish_as(&self, memory: &RemoteSlice, new: Published) -> Result<(), Error> {
        let id = new.id;
        let shared = &self.shared;
        let mut published = shared.published.lock().unwrap_or_else(PoisonError::into_inner);
        let known = published.iter().position(|entry| entry.as_ref().is_some_and(|it| it.id == id));
        let at = known.or_else(|| published.iter().position(Option::is_none));
        let at = at.unwrap_or(published.len());
        if at == PUBLISHED_MAX {
            return Err(Error::DirectoryFull(PUBLISHED_MAX));
        }
        self.write_entry(at, &directory::emit(id, memory));
        match published.get_mut(at) {
            Some(entry) => *entry = Some(new),
            None => published.push(Some(new)),
        }
        Ok(())
    }

    /// Withdraws what was published under a number: [`lookup`](Self::lookup) finds it no more.
    /// Returns whether there was something. A peer that has looked it up before keeps its key,
    /// which works as long as the memory is registered.
    pub fn unpublish(&self, id: u64) -> bool {
        let shared = &self.shared;
        let mut published = shared.published.lock().unwrap_or_else(PoisonError::into_inner);
        let known = published.iter().position(|entry| entry.as_ref().is_some_and(|it| it.id == id));
        let Some(at) = known else { return false };
        self.write_entry(at, &[0; directory::ENTRY]);
        published.get_mut(at).and_then(Option::take).is_some()
    }

    fn write_entry(&self, at: usize, entry: &[u8; directory::ENTRY]) {
        let offset = self.shared.directory_at + at * directory::ENTRY;
        self.shared.ring.write(offset, entry).expect("the directory lies in the region");
    }

    /// Finds memory that the peer has published under a number. It reads the peer's directory: the
    /// peer's program does nothing for it.
    pub fn lookup(&self, id: u64) -> Result<Option<RemoteSlice>, Error> {
        self.lookup_timeout(id, Duration::MAX)
    }

    /// Finds memory that the peer has published, but waits no longer than `timeout`.
    pub fn lookup_timeout(&self, id: u64, timeout: Duration) -> Result<Option<RemoteSlice>, Error> {
        let deadline = now().checked_add(timeout);
        let (addr, rkey) = self.shared.peer_directory;
        let table = RemoteSlice { addr, len: directory::BYTES as u64, rkey };
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now()));
            let bytes = self.read_timeout(table, left.unwrap_or(Duration::MAX))?;
            let entries = bytes.as_chunks().0.iter().map(directory::parse);
            let mut is_torn = false;
            for entry in entries {
                match entry {
                    Entry::Published(known, slice) if known == id => return Ok(Some(slice)),
                    Entry::Torn => is_torn = true,
                    _ => {}
                }
            }
            if !is_torn {
                return Ok(None);
            }
        }
    }

    /// Writes bytes to the beginning of the peer's memory, and waits until they are there.
    pub fn write(&self, bytes: &[u8], to: RemoteSlice) -> Result<(), Error> {
        self.write_timeout(bytes, to, Duration::MAX)
    }

    /// Writes bytes to the beginning of the peer's memory, but waits no longer than `timeout`: then
    /// it fails, and the bytes may be written later.
    pub fn write_timeout(
        &self,
        bytes: &[u8],
        to: RemoteSlice,
        timeout: Duration,
    ) -> Result<(), Error> {
        check(&to, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let mut buf = self.pd().create_buf(bytes.len())?;
        buf.write(0, bytes).expect("it was made for them");
        let op = SendOp::Write { remote_addr: to.addr, rkey: to.rkey, imm: None };
        self.complete(op, buf, timeout).map(drop)
    }

    /// Reads the peer's memory.
    pub fn read(&self, from: RemoteSlice) -> Result<Vec<u8>, Error> {
        self.read_timeout(from, Duration::MAX)
    }

    /// Reads the peer's memory, but waits no longer than `timeout`.
    pub fn read_timeout(&self, from: RemoteSlice, timeout: Duration) -> Result<Vec<u8>, Error> {
        let len = usize::try_from(from.len).unwrap_or(usize::MAX);
        if len == 0 {
            return Ok(Vec::new());
        }
        let op = SendOp::Read { remote_addr: from.addr, rkey: from.rkey };
        Ok(self.complete(op, self.pd().create_buf(len)?, timeout)?.to_vec())
    }

    /// Replaces the eight bytes at `at` by `new` if they are `expected`; returns what they were.
    pub fn compare_swap(&self, at: RemoteSlice, expected: u64, new: u64) -> Result<u64, Error> {
        self.compare_swap_timeout(at, expected, new, Duration::MAX)
    }

    /// Compares and swaps, but waits no longer than `timeout`: then it fails, and may be done
    /// later.
    pub fn compare_swap_timeout(
        &self,
        at: RemoteSlice,
        expected: u64,
        new: u64,
        timeout: Duration,
    ) -> Result<u64, Error> {
        let (remote_addr, rkey) = (at.addr, at.rkey);
        let op = SendOp::CompareSwap { remote_addr, rkey, compare: expected, swap: new };
        self.atomic(at, op, timeout)
    }

    /// Adds to the eight bytes at `at`; returns what they were.
    pub fn fetch_add(&self, at: RemoteSlice, add: u64) -> Result<u64, Error> {
        self.fetch_add_timeout(at, add, Duration::MAX)
    }

    /// Adds, but waits no longer than `timeout`: then it fails, and may be done later.
    pub fn fetch_add_timeout(
        &self,
        at: RemoteSlice,
        add: u64,
        timeout: Duration,
    ) -> Result<u64, Error> {
        self.atomic(at, SendOp::FetchAdd { remote_addr: at.addr, rkey: at.rkey, add }, timeout)
    }

    fn atomic(&self, at: RemoteSlice, op: SendOp, timeout: Duration) -> Result<u64, Error> {
        check(&at, 8)?;
        let memory = self.complete(op, self.pd().create_buf(8)?, timeout)?;
        let bytes = memory.to_vec();
        let word = bytes.first_chunk().copied().unwrap_or_default();
        Ok(u64::from_ne_bytes(word))
    }

    /// Begins to write registered memory to the peer's, without a copy. Up to 64 operations may be
    /// begun at a time; it waits while there are more. A message that is sent later arrives after
    /// what is written.
    pub fn begin_write(
        &self,
        from: impl Into<Memory>,
        to: RemoteSlice,
    ) -> Result<Operation<'_>, Error> {
        let from = from.into();
        check(&to, from.len() as u64)?;
        let op = SendOp::Write { remote_addr: to.addr, rkey: to.rkey, imm: None };
        self.operate(op, from, None)
    }

    /// Begins to read the peer's memory into as many bytes of registered memory.
    pub fn begin_read(
        &self,
        from: RemoteSlice,
        into: impl Into<Memory>,
    ) -> Result<Operation<'_>, Error> {
        let into = into.into();
        check(&from, into.len() as u64)?;
        self.operate(SendOp::Read { remote_addr: from.addr, rkey: from.rkey }, into, None)
    }

    /// Begins an operation, and waits for it.
    fn complete(&self, op: SendOp, buf: Buf, timeout: Duration) -> Result<Memory, Error> {
        let deadline = now().checked_add(timeout);
        let left = || deadline.map(|deadline| deadline.saturating_duration_since(now()));
        self.operate(op, buf, left())?.wait_for(left())
    }

    fn operate(
        &self,
        op: SendOp,
        memory: impl Into<Memory>,
        timeout: Option<Duration>,
    ) -> Result<Operation<'_>, Error> {
        let mut memory = Some(memory.into());
        let number = self.shared.wait(timeout, |state| {
            let given = memory.take().unwrap_or_default();
            match self.shared.try_operate(state, op, given)? {
                Ok(number) => Ok(Some(number)),
                Err(returned) => {
                    memory = Some(returned);
                    Ok(None)
                }
            }
        })?;
        Ok(Operation { connection: self, number, is_taken: false })
    }
}

pub(super) fn check(slice: &RemoteSlice, needed: u64) -> Result<(), Error> {
    let len = slice.len;
    if needed > len { Err(Error::TooShort { needed, len }) } else { Ok(()) }
}

/// An operation in flight. Dropping it does not end it: its memory is kept until it is done.
#[derive(Debug)]
#[must_use = "its memory comes back by `wait`"]
pub struct Operation<'a> {
    connection: &'a Connection,
    number: u64,
    is_taken: bool,
}

impl Operation<'_> {
    /// Waits until it is done; returns its memory. An operation that the peer's NIC refuses ends
    /// the connection.
    pub fn wait(self) -> Result<Memory, Error> {
        self.wait_for(None)
    }

    fn wait_for(mut self, timeout: Option<Duration>) -> Result<Memory, Error> {
        let number = self.number;
        let take = |state: &mut State| Ok(state.take_operation(number));
        let memory = self.connection.shared.wait(timeout, take)?;
        self.is_taken = true;
        Ok(memory)
    }

    /// Whether it is done.
    pub fn is_done(&self) -> bool {
        let shared = &self.connection.shared;
        let state = &mut *shared.lock();
        shared.progress(state);
        self.number < state.core.operations_done()
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if !self.is_taken {
            let state = &mut *self.connection.shared.lock();
            drop(state.abandon(self.number));
            state.release();
        }
    }
}
