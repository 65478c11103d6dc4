//! Packet sockets: their options, a ring of frames shared with the kernel, and many frames sent at
//! once.
#![allow(unsafe_code, reason = "system calls, and memory that the kernel writes")]

use std::io::{self, IoSlice};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// The header before each frame that tells of segments to come: `virtio_net_hdr`.
pub(in crate::link) const VNET_LEN: usize = 10;

/// A packet socket that sees nothing yet, with [`VNET_LEN`] bytes before every frame.
pub(in crate::link) fn packet_socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    Ok(socket)
}

/// Sets an option that is an `int`.
pub(in crate::link) fn set_option(
    socket: &Socket,
    level: i32,
    name: i32,
    value: i32,
) -> io::Result<()> {
    set_any_option(socket, level, name, &value)
}

pub(super) fn set_any_option<T: Copy>(
    socket: &Socket,
    level: i32,
    name: i32,
    value: &T,
) -> io::Result<()> {
    let len = len_of::<T>();
    // SAFETY: the pointer and the length are those of a value that lives through the call, which
    // reads it only.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, ptr::from_ref(value).cast(), len)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Binds a packet socket to an interface. With `every_protocol`, frames begin to arrive.
pub(in crate::link) fn bind(socket: &Socket, index: u32, every_protocol: bool) -> io::Result<()> {
    let protocol = if every_protocol { ETH_P_ALL.to_be() } else { 0 };
    let fill = |storage: *mut socket2::SockAddrStorage, len: *mut libc::socklen_t| {
        let address = libc::sockaddr_ll {
            sll_family: AF_PACKET,
            sll_protocol: protocol,
            sll_ifindex: i32::try_from(index).map_err(io::Error::other)?,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        // SAFETY: the storage has room for any address, and is aligned for each.
        unsafe { storage.cast::<libc::sockaddr_ll>().write(address) };
        // SAFETY: the caller lends a place for the length.
        unsafe { len.write(len_of::<libc::sockaddr_ll>()) };
        Ok(())
    };
    // SAFETY: the closure fills in a whole address of a packet socket, and its length.
    let ((), address) = unsafe { SockAddr::try_init(fill) }?;
    socket.bind(&address)
}

/// Lets a packet socket take frames that are for others, too.
pub(in crate::link) fn take_all(socket: &Socket, index: u32) -> io::Result<()> {
    let request = libc::packet_mreq {
        mr_ifindex: i32::try_from(index).map_err(io::Error::other)?,
        mr_type: PROMISCUOUS,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_any_option(socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &request)
}

#[expect(clippy::cast_possible_truncation, reason = "it is 1")]
const PROMISCUOUS: u16 = libc::PACKET_MR_PROMISC as u16;

#[expect(clippy::cast_possible_truncation, reason = "it is 3")]
const ETH_P_ALL: u16 = libc::ETH_P_ALL as u16;

#[expect(clippy::cast_possible_truncation, reason = "it is 17")]
const AF_PACKET: u16 = libc::AF_PACKET as u16;

/// The length of a structure that is handed to the kernel.
#[expect(clippy::cast_possible_truncation, reason = "no such structure is that long")]
const fn len_of<T>() -> libc::socklen_t {
    size_of::<T>() as libc::socklen_t
}

/// The most frames that are sent at once.
pub(in crate::link) const FRAMES_MAX: usize = 64;

/// Sends frames in order, each in two pieces: returns how many were sent, at least one if there is
/// one. An error speaks of the first.
pub(in crate::link) fn send_frames(
    socket: &Socket,
    frames: &[[IoSlice<'_>; 2]],
) -> io::Result<usize> {
    if let [frame] = frames {
        return socket.send_vectored(frame).map(|_| 1);
    }
    // SAFETY: a message header of zeros is one without address, data or control.
    let mut headers: [libc::mmsghdr; FRAMES_MAX] = unsafe { std::mem::zeroed() };
    let mut count: libc::c_uint = 0;
    for (header, pieces) in headers.iter_mut().zip(frames) {
        // An `IoSlice` is an `iovec` by definition, and sending only reads it.
        header.msg_hdr.msg_iov = pieces.as_ptr().cast_mut().cast();
        header.msg_hdr.msg_iovlen = pieces.len() as _;
        count += 1;
    }
    // SAFETY: the first `count` headers point to pieces that `frames` keeps alive through the call.
    let sent = unsafe {
        libc::syscall(libc::SYS_sendmmsg, socket.as_raw_fd(), headers.as_mut_ptr(), count, 0)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Returns the number of frames that arrived and of those that were dropped since the last call.
pub(in crate::link) fn statistics(socket: &Socket) -> io::Result<(u32, u32)> {
    let mut found = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = len_of::<libc::tpacket_stats>();
    let (fd, place) = (socket.as_raw_fd(), ptr::from_mut(&mut found).cast());
    // SAFETY: the place and its length are those of `found`, and the kernel writes no more than
    // that.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, place, &mut len) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok((found.tp_packets, found.tp_drops))
    }
}

/// A ring of frames that the kernel fills and this side empties, without a system call.
///
/// Each slot belongs to one side at a time, as its first word tells. Slots that are ours are
/// *taken* in order, may be looked at, and are all given back at once.
#[derive(Debug)]
pub(in crate::link) struct Ring {
    socket: Socket,
    start: NonNull<u8>,
    blocks: usize,
    /// The slot that the kernel fills next, of those we have not taken.
    next: usize,
    /// Number of frames before it that user space owns.
    taken: usize,
}

// SAFETY: the mapping belongs to the ring alone, and to no thread.
unsafe impl Send for Ring {}

/// The kernel's description of a frame.
#[derive(Clone, Copy, Debug)]
pub(in crate::link) struct RingFrame {
    /// Header of virtio before it: `virtio_net_hdr`.
    pub(in crate::link) vnet: [u8; VNET_LEN],
    /// Whether it did not fit into the slot.
    pub(in crate::link) cut: bool,
    /// The VLAN tag that the kernel took out of it.
    pub(in crate::link) vlan: Option<u16>,
}

impl Ring {
    /// The memory of a block, which the kernel wants in one piece.
    const BLOCK: usize = 1 << 20;
    /// The slots of a block: each has room for 64 KiB and all headers. Their distance is no power
    /// of two, or all frames would compete for the same lines of the cache.
    const SLOTS: usize = 15;
    const SLOT: usize = Self::BLOCK / Self::SLOTS / 64 * 64;

    /// A ring of at least so many slots for what a socket receives.
    pub(in crate::link) fn new(socket: Socket, slots: usize) -> io::Result<Self> {
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        set_option(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, version)?;
        let blocks = slots.div_ceil(Self::SLOTS).max(1);
        let number = |n: usize| u32::try_from(n).map_err(io::Error::other);
        let request = libc::tpacket_req {
            tp_block_size: number(Self::BLOCK)?,
            tp_block_nr: number(blocks)?,
            tp_frame_size: number(Self::SLOT)?,
            tp_frame_nr: number(blocks * Self::SLOTS)?,
        };
        set_any_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
        let (len, access) = (blocks * Self::BLOCK, libc::PROT_READ | libc::PROT_WRITE);
        let (flags, fd) = (libc::MAP_SHARED | libc::MAP_POPULATE, socket.as_raw_fd());
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Self { socket, start, blocks, next: 0, taken: 0 })
    }

    pub(in crate::link) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Returns the number of slots.
    pub(in crate::link) fn slots(&self) -> usize {
        self.blocks * Self::SLOTS
    }

    /// Returns the start of a slot.
    fn slot(&self, number: usize) -> *mut u8 {
        let number = number % self.slots();
        let offset = number / Self::SLOTS * Self::BLOCK + number % Self::SLOTS * Self::SLOT;
        self.start.as_ptr().wrapping_add(offset)
    }

    /// The word of a slot that says whose it is.
    fn status(&self, number: usize) -> &AtomicU32 {
        let place = self.slot(number).wrapping_add(offset_of!(libc::tpacket2_hdr, tp_status));
        // SAFETY: `slot` gives a place within the mapping, which lives as long as the ring; a slot
        // is aligned to 64 bytes; and this side and the kernel both use the word as an atomic.
        unsafe { AtomicU32::from_ptr(place.cast()) }
    }

    /// Takes the next frame, if there is one: its number is to be asked for with
    /// [`frame`](Self::frame).
    pub(in crate::link) fn take(&mut self) -> Option<usize> {
        let full = self.taken == self.slots();
        if full || self.status(self.next).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        self.taken += 1;
        self.next = (self.next + 1) % self.slots();
        Some(self.taken - 1)
    }

    /// Returns the frame that was taken as the `number`th since the last
    /// [`give_back`](Self::give_back), and the kernel's description of it.
    fn taken(&self, number: usize) -> Option<(*mut u8, libc::tpacket2_hdr)> {
        if number >= self.taken {
            return None;
        }
        let slot = self.slot(self.next + self.slots() - self.taken + number);
        // SAFETY: a taken slot begins with a header that the kernel has written, and does not write
        // again before the slot is given back.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let (mac, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        let sound = mac >= size_of::<libc::tpacket2_hdr>() + VNET_LEN && mac + len <= Self::SLOT;
        sound.then(|| (slot.wrapping_add(mac), header))
    }

    /// The frame that was taken as the `number`th, from the Ethernet header on, without a VLAN tag.
    pub(in crate::link) fn frame(&self, number: usize) -> Option<&[u8]> {
        let (start, header) = self.taken(number)?;
        // SAFETY: as many bytes as `taken` saw to lie within the slot, which is ours until it is
        // given back, for which the ring must be borrowed mutably.
        Some(unsafe { std::slice::from_raw_parts(start, header.tp_snaplen as usize) })
    }

    /// Returns the frame to be changed, and the kernel's description of it.
    pub(in crate::link) fn frame_mut(&mut self, number: usize) -> Option<(RingFrame, &mut [u8])> {
        let (start, header) = self.taken(number)?;
        let before = start.wrapping_sub(VNET_LEN).cast::<[u8; VNET_LEN]>();
        // SAFETY: the bytes just before the frame and behind the slot's header, as `taken` saw to.
        let vnet = unsafe { before.read() };
        // SAFETY: as in `frame`; and the ring is borrowed mutably, so there is no other reference
        // into it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, header.tp_snaplen as usize) };
        let tagged = header.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
        let (vlan, cut) = (tagged.then_some(header.tp_vlan_tci), header.tp_len > header.tp_snaplen);
        Some((RingFrame { vnet, cut, vlan }, bytes))
    }

    /// Gives all slots that were taken back to the kernel.
    pub(in crate::link) fn give_back(&mut self) {
        for number in 0..self.taken {
            let slot = self.next + self.slots() - self.taken + number;
            self.status(slot).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.taken = 0;
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping is the ring's own, of this length, and nothing borrows it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.blocks * Self::BLOCK) };
    }
}
