//! Registered memory: regions shared with the NIC, and buffers lent to it and returned.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use super::context::Pd;
use crate::memory::{AccessError, Buffer};
use crate::verbs::{Access, KeyError, LKey, MrHandle, Sge};
use crate::wire::RKey;

/// A memory region: bytes that the program shares with the NIC and, as far as its rights go, with
/// peers.
///
/// The program reads and writes them by copying, at any time. While the NIC or a peer writes the
/// same bytes, what is read may be torn. Cloning gives another handle to the same region, which is
/// deregistered with the last of them.
///
/// ```
/// # use roce::{device::Context, link::cable, nic::SoftNic, wire::Gid};
/// # let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
/// # let (link, _other_end) = cable(gids[0], gids[1])?;
/// # let pd = Context::new(SoftNic::start(link)?).create_pd()?;
/// use roce::verbs::Access;
///
/// let mr = pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// mr.write(100, b"published")?;
/// // What a peer is told: where, how much, and the key to it.
/// let published = mr.slice(100..109)?.remote();
/// assert_eq!((published.len, published.rkey), (9, mr.rkey()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mr(Arc<MrInner>);

#[derive(Debug)]
struct MrInner {
    pd: Pd,
    handle: MrHandle,
    buffer: Buffer,
}

impl Drop for MrInner {
    fn drop(&mut self) {
        let _ = self.pd.device().deregister(self.handle);
    }
}

impl Mr {
    pub(super) fn new(pd: &Pd, buffer: &Buffer, access: Access) -> Result<Self, KeyError> {
        let handle = pd.device().register(pd.handle(), buffer, access)?;
        Ok(Self(Arc::new(MrInner { pd: pd.clone(), handle, buffer: buffer.clone() })))
    }

    /// Returns its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Returns its handle, for [`Device`](super::Device).
    pub fn handle(&self) -> MrHandle {
        self.0.handle
    }

    /// Returns the key for work requests of the program.
    pub fn lkey(&self) -> LKey {
        self.0.handle.lkey()
    }

    /// Returns the key for a peer.
    pub fn rkey(&self) -> RKey {
        self.0.handle.rkey()
    }

    /// Returns the address of its first byte.
    pub fn addr(&self) -> u64 {
        self.0.buffer.addr()
    }

    /// Returns the number of its bytes.
    pub fn len(&self) -> usize {
        self.0.buffer.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns its memory.
    pub fn buffer(&self) -> &Buffer {
        &self.0.buffer
    }

    /// Copies bytes out, from `offset` on.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        self.0.buffer.read(offset, out)
    }

    /// Copies bytes in, from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.0.buffer.write(offset, bytes)
    }

    /// Returns a copy of all its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.buffer.to_vec()
    }

    /// Returns a part of it, to be lent to work requests or named to a peer.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<MrSlice, AccessError> {
        let (offset, len) = within(range, self.len())?;
        Ok(MrSlice { mr: self.clone(), offset, len })
    }

    /// Returns a scatter/gather entry for `len` bytes from `offset` on. It is not checked here: the
    /// device checks it when the work request is executed.
    #[inline]
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        let length = u32::try_from(len).unwrap_or(u32::MAX);
        Sge { addr: self.addr().wrapping_add(offset as u64), length, lkey: self.lkey() }
    }

    /// Returns the whole region as a peer is told of it.
    pub fn remote(&self) -> RemoteSlice {
        RemoteSlice { addr: self.addr(), len: self.len() as u64, rkey: self.rkey() }
    }
}

/// Start and length of a range within `len` bytes.
fn within(range: impl RangeBounds<usize>, len: usize) -> Result<(usize, usize), AccessError> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(end) => end.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => len,
    };
    match end.checked_sub(start) {
        Some(count) if end <= len => Ok((start, count)),
        count => Err(AccessError::OutOfRange {
            offset: start as u64,
            len: count.unwrap_or(0),
            size: len,
        }),
    }
}

/// A part of a memory region. It keeps the region registered.
///
/// Work requests borrow it: the program may use the region meanwhile (see [`Mr`]).
#[derive(Clone, Debug)]
pub struct MrSlice {
    mr: Mr,
    offset: usize,
    len: usize,
}

impl MrSlice {
    /// Returns the region.
    pub fn mr(&self) -> &Mr {
        &self.mr
    }

    /// Returns where it begins in the region.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of its bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes out, from `offset` on.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        self.mr.read(self.at(offset, out.len())?, out)
    }

    /// Copies bytes in, from `offset` on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.mr.write(self.at(offset, bytes.len())?, bytes)
    }

    /// Returns a copy of all its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes).expect("a slice is within its region");
        bytes
    }

    /// Returns a part of it.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self, AccessError> {
        let (offset, len) = within(range, self.len)?;
        Ok(Self { mr: self.mr.clone(), offset: self.offset + offset, len })
    }

    /// Returns it as a peer is told of it.
    pub fn remote(&self) -> RemoteSlice {
        let addr = self.mr.addr().wrapping_add(self.offset as u64);
        RemoteSlice { addr, len: self.len as u64, rkey: self.mr.rkey() }
    }

    fn sge(&self) -> Sge {
        self.mr.sge(self.offset, self.len)
    }

    /// Offset in the region of `len` bytes that lie within the slice.
    fn at(&self, offset: usize, len: usize) -> Result<usize, AccessError> {
        let outside = AccessError::OutOfRange { offset: offset as u64, len, size: self.len };
        let end = offset.checked_add(len).ok_or(outside)?;
        if end > self.len { Err(outside) } else { Ok(self.offset + offset) }
    }
}

/// A registered buffer that belongs to one owner at a time: the program, or, from when it is posted
/// until its completion is polled, the NIC.
///
/// No key to it is given out, so that no peer reaches it by READ or WRITE.
///
/// ```
/// # use roce::{device::Context, link::cable, nic::SoftNic, wire::Gid};
/// # let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
/// # let (link, _other_end) = cable(gids[0], gids[1])?;
/// # let pd = Context::new(SoftNic::start(link)?).create_pd()?;
/// let mut buf = pd.create_buf(8)?;
/// buf.write(2, b"four")?;
/// let (head, tail) = buf.split_at(4);
/// assert_eq!((head.to_vec(), tail.to_vec()), (b"\0\0fo".to_vec(), b"ur\0\0".to_vec()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Buf(MrSlice);

impl Buf {
    /// A buffer of a whole region, of which there must be no other handle.
    pub(super) fn new(mr: Mr) -> Self {
        let len = mr.len();
        Self(MrSlice { mr, offset: 0, len })
    }

    /// Returns the number of its bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Copies bytes out, from `offset` on.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        self.0.read(offset, out)
    }

    /// Copies bytes in, from `offset` on.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.0.write(offset, bytes)
    }

    /// Returns a copy of all its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// Divides it into two: `at` bytes, or all if there are fewer, and the rest.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let MrSlice { mr, offset, len } = self.0;
        let at = at.min(len);
        let head = MrSlice { mr: mr.clone(), offset, len: at };
        (Self(head), Self(MrSlice { mr, offset: offset + at, len: len - at }))
    }
}

/// Lends parts of regions, and gets each back when its [`Loan`] is dropped.
pub trait Lender: fmt::Debug + Send + Sync {
    /// Takes back what was lent.
    fn take_back(&self, slice: &MrSlice);
}

/// A part of a region that belongs to one owner at a time, as a [`Buf`] does, and returns to its
/// lender when it is dropped: by the program, or with the completion of the work request that it
/// was moved into. [`pool`](crate::pool) lends them.
#[derive(Debug)]
pub struct Loan {
    slice: MrSlice,
    lender: Arc<dyn Lender>,
}

impl Loan {
    /// Lends a part of a region, of which the lender keeps no other handle in use.
    pub fn new(slice: MrSlice, lender: Arc<dyn Lender>) -> Self {
        Self { slice, lender }
    }

    /// Returns the number of its bytes.
    pub fn len(&self) -> usize {
        self.slice.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.slice.len == 0
    }

    /// Copies bytes out, from `offset` on.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        self.slice.read(offset, out)
    }

    /// Copies bytes in, from `offset` on.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.slice.write(offset, bytes)
    }

    /// Returns a copy of all its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.slice.to_vec()
    }

    /// Returns it as a peer is told of it, which reaches it if the region's rights allow that.
    pub fn remote(&self) -> RemoteSlice {
        self.slice.remote()
    }

    /// Returns who lent it.
    pub fn lender(&self) -> &Arc<dyn Lender> {
        &self.lender
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.lender.take_back(&self.slice);
    }
}

/// The local memory of a work request.
#[derive(Debug, Default)]
pub enum Memory {
    /// No memory.
    #[default]
    None,
    /// A buffer, which is the NIC's until the work request completes.
    Owned(Buf),
    /// Memory that was lent, which is the NIC's until the work request completes.
    Lent(Loan),
    /// A part of a region, which the program may use meanwhile.
    Shared(MrSlice),
    /// Several, in order: a scatter/gather list.
    List(Vec<Self>),
}

impl From<Buf> for Memory {
    fn from(buf: Buf) -> Self {
        Self::Owned(buf)
    }
}

impl From<Loan> for Memory {
    fn from(loan: Loan) -> Self {
        Self::Lent(loan)
    }
}

impl From<MrSlice> for Memory {
    fn from(slice: MrSlice) -> Self {
        Self::Shared(slice)
    }
}

impl<M: Into<Self>> From<Vec<M>> for Memory {
    fn from(list: Vec<M>) -> Self {
        Self::List(list.into_iter().map(Into::into).collect())
    }
}

impl Memory {
    /// Returns the number of its bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Owned(buf) => buf.len(),
            Self::Lent(loan) => loan.len(),
            Self::Shared(slice) => slice.len(),
            Self::List(list) => list.iter().map(Self::len).sum(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a copy of all its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.append_to(self.len(), &mut bytes);
        bytes
    }

    /// Appends a copy of its first `len` bytes to `out`.
    pub(super) fn append_to(&self, len: usize, out: &mut Vec<u8>) {
        let slice = match self {
            Self::None => return,
            Self::Owned(buf) => &buf.0,
            Self::Lent(loan) => &loan.slice,
            Self::Shared(slice) => slice,
            Self::List(list) => {
                let end = out.len() + len;
                list.iter().for_each(|it| it.append_to(end - out.len(), out));
                return;
            }
        };
        let (from, len) = (out.len(), len.min(slice.len));
        out.resize(from + len, 0);
        let room = out.get_mut(from..).unwrap_or_default();
        slice.read(0, room).expect("no more bytes than there are");
    }

    /// Calls `with` for each part.
    pub(super) fn for_each(&self, with: &mut impl FnMut(&MrSlice)) {
        match self {
            Self::None => {}
            Self::Owned(buf) => with(&buf.0),
            Self::Lent(loan) => with(&loan.slice),
            Self::Shared(slice) => with(slice),
            Self::List(list) => list.iter().for_each(|memory| memory.for_each(with)),
        }
    }

    /// Appends its scatter/gather entries; returns whether all of them are of this protection
    /// domain.
    pub(crate) fn gather(&self, pd: &Pd, sges: &mut Vec<Sge>) -> bool {
        let mut own = true;
        self.for_each(&mut |slice| {
            own &= slice.mr.pd().is_same(pd);
            sges.push(slice.sge());
        });
        own
    }
}

/// Memory of a peer: what it tells of a region or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    /// Address of its first byte.
    pub addr: u64,
    /// Number of its bytes.
    pub len: u64,
    /// The key to it.
    pub rkey: RKey,
}

impl RemoteSlice {
    /// Returns `len` bytes from `offset` on, if they are within.
    pub fn part(&self, offset: u64, len: u64) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self { addr: self.addr.wrapping_add(offset), len, ..*self })
    }
}
