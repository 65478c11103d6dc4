//! Sockets of AF_XDP: memory that is shared with the kernel, and rings of descriptors of the parts
//! that belong to either side.
#![allow(unsafe_code, reason = "system calls, and memory that the kernel writes")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use socket2::{Domain, Socket, Type};

use super::ring::set_any_option;

/// Length of a chunk of memory, which holds one frame.
pub(in crate::link) const CHUNK: usize = 4096;

/// Bytes before a frame that the kernel keeps for itself (`XDP_PACKET_HEADROOM`).
pub(in crate::link) const HEADROOM: usize = 256;

/// Number of descriptors of each ring, and of chunks for either direction.
pub(in crate::link) const RING_LEN: u32 = 2048;

const CHUNKS: usize = 2 * RING_LEN as usize;

/// Memory of a mapping, unmapped when it is dropped.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to no thread, and those who share one agree on who uses which part.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize, flags: i32, fd: i32, offset: i64) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { start, len })
    }

    /// Returns a place of the mapping that is `len` bytes long and aligned to `align`.
    fn at(&self, offset: usize, len: usize, align: usize) -> Option<*mut u8> {
        let place = self.start.as_ptr().wrapping_add(offset);
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        (is_inside && place.addr().is_multiple_of(align)).then_some(place)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is its own, of this length, and nothing borrows it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// One ring of descriptors of type `T`.
#[derive(Debug)]
struct Ring<T> {
    mapping: Mapping,
    offsets: libc::xdp_ring_offset,
    /// Own index: of the producer in a ring that is filled here, of the consumer in one that is
    /// emptied.
    index: u32,
    kind: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn new(socket: &Socket, offsets: libc::xdp_ring_offset, at: u64) -> io::Result<Self> {
        let at = i64::try_from(at).map_err(io::Error::other)?;
        let desc = usize::try_from(offsets.desc).map_err(io::Error::other)?;
        let len = desc + RING_LEN as usize * size_of::<T>();
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let mapping = Mapping::new(len, flags, socket.as_raw_fd(), at)?;
        let ring = Self { mapping, offsets, index: 0, kind: std::marker::PhantomData };
        let words = [offsets.producer, offsets.consumer, offsets.flags];
        let is_sound = words.iter().all(|offset| ring.place(*offset).is_some());
        if is_sound { Ok(ring) } else { Err(io::Error::other("the kernel's ring is too short")) }
    }

    fn place(&self, offset: u64) -> Option<*mut u8> {
        self.mapping.at(usize::try_from(offset).ok()?, 4, 4)
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        let place = self.place(offset).expect("`new` has looked");
        // SAFETY: four bytes within the mapping, aligned, which both sides use as an atomic.
        unsafe { AtomicU32::from_ptr(place.cast()) }
    }

    /// The place of a descriptor.
    fn slot(&self, index: u32) -> *mut T {
        let desc = usize::try_from(self.offsets.desc).unwrap_or(0);
        let offset = desc + (index % RING_LEN) as usize * size_of::<T>();
        self.mapping.start.as_ptr().wrapping_add(offset).cast()
    }

    /// Number of descriptors that can be put in.
    fn room(&self) -> u32 {
        let consumer = self.word(self.offsets.consumer).load(Ordering::Acquire);
        RING_LEN - self.index.wrapping_sub(consumer).min(RING_LEN)
    }

    /// Puts a descriptor in, of which the kernel learns with [`publish`](Self::publish). There must
    /// be [`room`](Self::room).
    fn put(&mut self, descriptor: T) {
        // SAFETY: the slot is within the mapping, whose length `new` computed, and the kernel does
        // not read it before it is published; it is aligned as the mapping and its offset are.
        unsafe { self.slot(self.index).write(descriptor) };
        self.index = self.index.wrapping_add(1);
    }

    fn publish(&self) {
        self.word(self.offsets.producer).store(self.index, Ordering::Release);
    }

    /// Takes the next descriptor that the kernel has put in. It goes back with
    /// [`release`](Self::release).
    fn take(&mut self) -> Option<T> {
        if self.word(self.offsets.producer).load(Ordering::Acquire) == self.index {
            return None;
        }
        // SAFETY: the slot is within the mapping, and the kernel has written it and does not write
        // it again before it is released.
        let descriptor = unsafe { self.slot(self.index).read() };
        self.index = self.index.wrapping_add(1);
        Some(descriptor)
    }

    fn release(&self) {
        self.word(self.offsets.consumer).store(self.index, Ordering::Release);
    }

    /// Whether the kernel wants to be woken before it goes on.
    fn needs_wakeup(&self) -> bool {
        self.word(self.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// Memory of a socket: chunks for frames that arrive, and behind them those for frames that leave.
#[derive(Debug)]
struct Memory(Mapping);

impl Memory {
    /// A range of the memory, if it is within one chunk.
    fn range(&self, at: usize, len: usize) -> Option<*mut u8> {
        if at % CHUNK + len > CHUNK {
            return None;
        }
        self.0.at(at, len, 1)
    }
}

/// The receiving side of a socket.
#[derive(Debug)]
pub(in crate::link) struct XskRx {
    socket: Arc<Socket>,
    memory: Arc<Memory>,
    arrived: Ring<libc::xdp_desc>,
    fill: Ring<u64>,
    /// Chunks that were taken since the last [`give_back`](Self::give_back).
    taken: Vec<libc::xdp_desc>,
}

/// The sending side of a socket.
#[derive(Debug)]
pub(in crate::link) struct XskTx {
    socket: Arc<Socket>,
    memory: Arc<Memory>,
    leaving: Ring<libc::xdp_desc>,
    done: Ring<u64>,
    /// Chunks that are free.
    free: Vec<u64>,
}

/// Opens a socket on a queue of an interface. Frames arrive once a program passes them to it.
pub(in crate::link) fn open(interface: u32, queue: u32) -> io::Result<(XskRx, XskTx)> {
    let socket = Arc::new(xdp_socket()?);
    // Shared, so that a fork does not part it from what the kernel writes to.
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    let memory = Arc::new(Memory(Mapping::new(CHUNKS * CHUNK, flags, -1, 0)?));
    let request = libc::xdp_umem_reg {
        addr: memory.0.start.as_ptr().addr() as u64,
        len: memory.0.len as u64,
        chunk_size: u32::try_from(CHUNK).map_err(io::Error::other)?,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    let level = libc::SOL_XDP;
    set_any_option(&socket, level, libc::XDP_UMEM_REG, &request)?;
    for ring in [
        libc::XDP_UMEM_FILL_RING,
        libc::XDP_UMEM_COMPLETION_RING,
        libc::XDP_RX_RING,
        libc::XDP_TX_RING,
    ] {
        set_any_option(&socket, level, ring, &RING_LEN)?;
    }
    let offsets = offsets(&socket)?;
    let mut fill = Ring::new(&socket, offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING)?;
    let done = Ring::new(&socket, offsets.cr, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?;
    let page = |offset: libc::off_t| u64::try_from(offset).map_err(io::Error::other);
    let arrived = Ring::new(&socket, offsets.rx, page(libc::XDP_PGOFF_RX_RING)?)?;
    let leaving = Ring::new(&socket, offsets.tx, page(libc::XDP_PGOFF_TX_RING)?)?;
    let chunk = |number: u32| u64::from(number) * CHUNK as u64;
    (0..RING_LEN).for_each(|number| fill.put(chunk(number)));
    fill.publish();
    bind(&socket, interface, queue)?;
    let free = (RING_LEN..2 * RING_LEN).map(chunk).collect();
    let taken = Vec::with_capacity(RING_LEN as usize);
    let (same, shared) = (Arc::clone(&socket), Arc::clone(&memory));
    let rx = XskRx { socket: same, memory: shared, arrived, fill, taken };
    Ok((rx, XskTx { socket, memory, leaving, done, free }))
}

/// A socket of AF_XDP, for which the program needs a capability.
pub(in crate::link) fn xdp_socket() -> io::Result<Socket> {
    Socket::new(Domain::from(libc::AF_XDP), Type::RAW, None)
}

fn offsets(socket: &Socket) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: it is made of numbers, for all of which zero is a value.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    get_option(socket, libc::XDP_MMAP_OFFSETS, &mut offsets)?;
    Ok(offsets)
}

/// Frames that the kernel dropped: too long for a chunk or refused, and for want of room.
pub(in crate::link) fn drops(socket: &Socket) -> io::Result<(u64, u64)> {
    // SAFETY: it is made of numbers, for all of which zero is a value.
    let mut found: libc::xdp_statistics = unsafe { std::mem::zeroed() };
    get_option(socket, libc::XDP_STATISTICS, &mut found)?;
    Ok((found.rx_dropped, found.rx_ring_full + found.rx_fill_ring_empty_descs))
}

/// Whether the driver takes and fills chunks without a copy.
pub(in crate::link) fn is_zero_copy(socket: &Socket) -> bool {
    let mut options = libc::xdp_options { flags: 0 };
    let found = get_option(socket, libc::XDP_OPTIONS, &mut options);
    found.is_ok() && options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0
}

fn get_option<T>(socket: &Socket, name: i32, value: &mut T) -> io::Result<()> {
    let mut len = libc::socklen_t::try_from(size_of::<T>()).map_err(io::Error::other)?;
    let (fd, place) = (socket.as_raw_fd(), ptr::from_mut(value).cast());
    // SAFETY: the place and its length are those of a structure of numbers, and the kernel writes
    // no more than that.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_XDP, name, place, &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn bind(socket: &Socket, interface: u32, queue: u32) -> io::Result<()> {
    // Without a flag for either, the kernel takes zero copy where the driver has it.
    let address = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).unwrap_or(0),
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    // SAFETY: the address and its length are those of a value that lives through the call.
    let result = unsafe { libc::bind(socket.as_raw_fd(), ptr::from_ref(&address).cast(), len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets reads of a socket drive its queue for so many microseconds at a time.
pub(in crate::link) fn prefer_busy_poll(socket: &Socket, micros: i32) -> io::Result<()> {
    const BUDGET: i32 = 64;
    for (option, value) in [
        (libc::SO_PREFER_BUSY_POLL, 1),
        (libc::SO_BUSY_POLL, micros),
        (libc::SO_BUSY_POLL_BUDGET, BUDGET),
    ] {
        super::ring::set_option(socket, libc::SOL_SOCKET, option, value)?;
    }
    Ok(())
}

impl XskRx {
    pub(in crate::link) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Takes the next frame, if there is one: its number is to be asked for with
    /// [`frame`](Self::frame).
    pub(in crate::link) fn take(&mut self) -> Option<usize> {
        self.taken.push(self.arrived.take()?);
        Some(self.taken.len() - 1)
    }

    fn place(&self, number: usize) -> Option<(*mut u8, usize)> {
        let taken = self.taken.get(number)?;
        let at = usize::try_from(taken.addr).ok()?;
        let is_own = at < RING_LEN as usize * CHUNK;
        let place = self.memory.range(at, taken.len as usize).filter(|_| is_own)?;
        Some((place, taken.len as usize))
    }

    /// The frame that was taken as the `number`th since the last [`give_back`](Self::give_back).
    pub(in crate::link) fn frame(&self, number: usize) -> Option<&[u8]> {
        let (place, len) = self.place(number)?;
        // SAFETY: bytes of one chunk for frames that arrive, which is this side's until it is given
        // back, for which the socket must be borrowed mutably.
        Some(unsafe { std::slice::from_raw_parts(place, len) })
    }

    /// Returns the frame to be changed.
    pub(in crate::link) fn frame_mut(&mut self, number: usize) -> Option<&mut [u8]> {
        let (place, len) = self.place(number)?;
        // SAFETY: as in `frame`; and the socket is borrowed mutably, so there is no other reference
        // to its chunks. The kernel has each chunk in one ring at a time.
        Some(unsafe { std::slice::from_raw_parts_mut(place, len) })
    }

    /// Gives all chunks that were taken back to the kernel.
    pub(in crate::link) fn give_back(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        self.arrived.release();
        for taken in self.taken.drain(..) {
            // There are as many chunks as the ring has places.
            self.fill.put(taken.addr & !(CHUNK as u64 - 1));
        }
        self.fill.publish();
        if self.fill.needs_wakeup() {
            self.wake();
        }
    }

    /// Lets the kernel look for frames, and drive the queue where busy polling is on.
    pub(in crate::link) fn wake(&self) {
        let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: nothing is received into no bytes. An error is one of the queue, which the next
        // look at the socket finds.
        let _ = unsafe { libc::recv(fd, ptr::null_mut(), 0, flags) };
    }
}

impl AsFd for XskRx {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl XskTx {
    /// Whether a frame can be put in.
    pub(in crate::link) fn has_room(&mut self) -> bool {
        if self.free.is_empty() {
            self.reclaim();
        }
        !self.free.is_empty() && self.leaving.room() > 0
    }

    /// Puts a frame of `len` bytes in, which `write` fills. The kernel learns of it with
    /// [`kick`](Self::kick). Returns whether there was room.
    pub(in crate::link) fn put(&mut self, len: usize, write: impl FnOnce(&mut [u8])) -> bool {
        if !self.has_room() {
            return false;
        }
        let Some(addr) = self.free.pop() else { return false };
        let at = usize::try_from(addr).unwrap_or(usize::MAX);
        let (Some(place), Ok(short)) = (self.memory.range(at, len), u32::try_from(len)) else {
            self.free.push(addr);
            return false;
        };
        // SAFETY: bytes of one chunk for frames that leave, which is free: the kernel does not look
        // at it, and nothing refers to it.
        write(unsafe { std::slice::from_raw_parts_mut(place, len) });
        self.leaving.put(libc::xdp_desc { addr, len: short, options: 0 });
        self.leaving.publish();
        true
    }

    /// Takes the chunks of frames back that have been sent.
    fn reclaim(&mut self) {
        let before = self.free.len();
        while let Some(addr) = self.done.take() {
            self.free.push(addr);
        }
        if self.free.len() > before {
            self.done.release();
        }
    }

    /// Lets the kernel send what was put in; an error is one of the interface.
    pub(in crate::link) fn kick(&mut self) -> io::Result<()> {
        // The kernel takes a part of the ring with each call.
        const CALLS_MAX: u32 = 2 * RING_LEN / 16;
        for _ in 0..CALLS_MAX {
            if self.leaving.room() == RING_LEN || !self.leaving.needs_wakeup() {
                break;
            }
            let (fd, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
            // SAFETY: no bytes are sent, to no address.
            let sent = unsafe { libc::sendto(fd, ptr::null(), 0, flags, ptr::null(), 0) };
            if sent < 0 {
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => {}
                    // No room anywhere: the caller tries again.
                    Some(libc::EBUSY | libc::ENOBUFS) => break,
                    _ => return Err(error),
                }
            }
        }
        self.reclaim();
        Ok(())
    }
}
