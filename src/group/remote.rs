//! Memory of a peer that was looked up.

use std::marker::PhantomData;
use std::rc::Rc;

use super::error::Error;
use crate::device::{MrSlice, Pd, RemoteSlice};
use crate::net::{Connection, Operation};

/// Memory that a peer has published, in one incarnation of it. Its program does nothing for these
/// operations.
///
/// It belongs to the connection by which it was found: after a new connection it is to be [looked
/// up](super::Member::lookup) again, and an operation on it fails until then. It stays in the
/// thread of its member.
///
/// ```
/// use std::time::Duration;
///
/// use roce::group::{Config, Group, Hosts};
///
/// let hosts: Hosts = "127.20.12.1:7000,127.20.12.2:7000".parse()?;
/// let (a, b) = (Group::open(&hosts, 0, &Config::default())?, Group::open(&hosts, 1, &Config::default())?);
/// let memory = b.allocate(4096)?;
/// b.publish(7, &memory.slice(..).unwrap())?;
/// a.wait_connected(Duration::from_secs(60))?;
/// let member = a.member(0)?;
/// let remote = member.lookup(1, 7)?.expect("server 1 has published it");
/// assert_eq!(remote.len(), 4096);
/// remote.write(8, b"written")?;
/// assert_eq!(remote.read(8, 7)?, b"written");
/// assert_eq!((remote.fetch_add(0, 5)?, remote.compare_swap(0, 5, 9)?), (0, 5));
/// assert_eq!(memory.to_vec()[..9], *b"\x09\0\0\0\0\0\0\0w");
/// assert!(member.lookup(1, 8)?.is_none());
/// # Ok::<(), roce::group::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Remote {
    connection: Connection,
    slice: RemoteSlice,
    /// The member's thread sleeps on the channel of the connection: another one must not.
    of_thread: PhantomData<Rc<()>>,
}

impl Remote {
    pub(super) fn new(connection: Connection, slice: RemoteSlice) -> Self {
        Self { connection, slice, of_thread: PhantomData }
    }

    /// Returns its address, length and key.
    pub fn slice(&self) -> RemoteSlice {
        self.slice
    }

    /// Returns its number of bytes.
    pub fn len(&self) -> u64 {
        self.slice.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.slice.len == 0
    }

    /// Returns the protection domain that local memory of operations is of.
    pub fn pd(&self) -> &Pd {
        self.connection.pd()
    }

    fn part(&self, at: u64, len: u64) -> Result<RemoteSlice, Error> {
        let needed = at.saturating_add(len);
        let too_short = || crate::net::Error::TooShort { needed, len: self.slice.len };
        Ok(self.slice.part(at, len).ok_or_else(too_short)?)
    }

    /// Reads `len` bytes from `at` on.
    pub fn read(&self, at: u64, len: u64) -> Result<Vec<u8>, Error> {
        Ok(self.connection.read(self.part(at, len)?)?)
    }

    /// Writes bytes from `at` on, and waits until they are there.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        Ok(self.connection.write(bytes, self.part(at, bytes.len() as u64)?)?)
    }

    /// Adds to the eight bytes at `at`; returns what they were.
    pub fn fetch_add(&self, at: u64, add: u64) -> Result<u64, Error> {
        Ok(self.connection.fetch_add(self.part(at, 8)?, add)?)
    }

    /// Replaces the eight bytes at `at` by `new` if they are `expected`; returns what they were.
    pub fn compare_swap(&self, at: u64, expected: u64, new: u64) -> Result<u64, Error> {
        Ok(self.connection.compare_swap(self.part(at, 8)?, expected, new)?)
    }

    /// Begins to read as many bytes as `into` has, without a copy. READs of one peer are done in
    /// order.
    pub fn begin_read(&self, at: u64, into: &MrSlice) -> Result<Operation<'_>, Error> {
        let from = self.part(at, into.len() as u64)?;
        Ok(self.connection.begin_read(from, into.clone())?)
    }

    /// Begins to write the bytes of `from`, without a copy.
    pub fn begin_write(&self, at: u64, from: &MrSlice) -> Result<Operation<'_>, Error> {
        let to = self.part(at, from.len() as u64)?;
        Ok(self.connection.begin_write(from.clone(), to)?)
    }
}
