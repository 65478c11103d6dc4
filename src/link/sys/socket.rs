//! Datagrams, many at a time, with what goes along with them.
//!
//! Addresses and control messages are kept as the bytes that the kernel reads and writes, and are
//! put together and taken apart by safe code. What is left for `unsafe` is to hand over pointers
//! and lengths.
//!
//! A program's thread may run this with a `pthread_cancel` pending. The C library's functions for
//! these system calls are cancellation points, which would unwind through Rust; `syscall` is none.
#![allow(unsafe_code, reason = "system calls")]

use std::alloc::{self, Layout};
use std::array;
use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

/// Maximum number of datagrams of one system call.
pub(crate) const MESSAGES_MAX: usize = 32;

/// Sets an option that is a number.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    to: c_int,
) -> io::Result<()> {
    let value: *const c_int = &raw const to;
    // SAFETY: `value` points to a number that lives until the call returns, and its size is told.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.cast(), SIZE_OF_INT) };
    checked(result).map(|_| ())
}

/// A `sock_fprog` without bytes between its fields, which the kernel would copy unset.
#[repr(C)]
struct SteeringProgram {
    len: u16,
    padding: [u8; size_of::<usize>() - size_of::<u16>()],
    instructions: *const libc::sock_filter,
}

const _: () = assert!(size_of::<SteeringProgram>() == size_of::<libc::sock_fprog>());

/// Lets a program choose the socket that gets a packet, of those that share the port of this one.
pub(crate) fn attach_steering(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let value = SteeringProgram { len, padding: [0; _], instructions: program.as_ptr() };
    let (value, size) = ((&raw const value).cast(), size_of::<SteeringProgram>());
    let size = libc::socklen_t::try_from(size).map_err(io::Error::other)?;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF);
    // SAFETY: `value` points to a program of `len` instructions, which both live until the call
    // returns, and its size is told. The kernel copies and checks the instructions.
    checked(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value, size) }).map(|_| ())
}

/// Reads an option that is a number.
pub(crate) fn option(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let (mut value, mut size): (c_int, _) = (0, SIZE_OF_INT);
    let place = (&raw mut value).cast();
    // SAFETY: `place` has room for a number, as `size` tells, and both live until the call returns.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, place, &raw mut size) };
    checked(result).map(|_| value)
}

/// Waits until a socket has room for more, for this long at the most; returns whether it has.
pub(crate) fn wait_for_room(fd: BorrowedFd<'_>, at_most: Duration) -> io::Result<bool> {
    let mut poll = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::OUT)];
    let at_most = rustix::event::Timespec::try_from(at_most).ok();
    match rustix::event::poll(&mut poll, at_most.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// A send: one datagram, or as many as its control messages say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing<'a> {
    /// Destination.
    pub(crate) to: &'a Name,
    /// Control messages.
    pub(crate) control: &'a Control,
    /// The payload.
    pub(crate) bytes: &'a [u8],
}

/// Sends as many as there is room for, of the first [`MESSAGES_MAX`]; returns how many. An error is
/// that of the first.
pub(crate) fn send<'a>(
    fd: BorrowedFd<'_>,
    messages: impl Iterator<Item = Outgoing<'a>> + Clone,
) -> io::Result<usize> {
    // Headers take time to make, and mostly there are few.
    if messages.clone().nth(FEW).is_none() {
        send_up_to::<FEW>(fd, messages)
    } else {
        send_up_to::<MESSAGES_MAX>(fd, messages)
    }
}

/// Number of datagrams for which no memory is allocated: most calls have no more.
const FEW: usize = 2;

fn send_up_to<'a, const N: usize>(
    fd: BorrowedFd<'_>,
    messages: impl Iterator<Item = Outgoing<'a>>,
) -> io::Result<usize> {
    let nothing = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    let mut payloads = [nothing; N];
    let mut headers = [empty_header(); N];
    let mut count = 0;
    for ((header, payload), message) in headers.iter_mut().zip(&mut payloads).zip(messages) {
        payload.iov_base = message.bytes.as_ptr().cast_mut().cast();
        payload.iov_len = message.bytes.len();
        let header = &mut header.msg_hdr;
        header.msg_name = message.to.bytes.as_ptr().cast_mut().cast();
        header.msg_namelen = message.to.len;
        header.msg_iov = payload;
        header.msg_iovlen = 1;
        if message.control.len > 0 {
            header.msg_control = message.control.bytes.as_ptr().cast_mut().cast();
            header.msg_controllen = message.control.len as _;
        }
        count += 1;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if let (1, [only, ..]) = (count, &headers[..]) {
        // SAFETY: as below, for the one header.
        let sent = unsafe {
            libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const only.msg_hdr, flags)
        };
        return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) };
    }
    let first = headers.as_mut_ptr();
    // SAFETY: `count` headers were filled in. Each points to an address, a payload and control
    // messages of the lengths that it tells, which are borrowed for `'a`, longer than the call
    // takes, and which the kernel only reads.
    let sent = unsafe { libc::syscall(libc::SYS_sendmmsg, fd.as_raw_fd(), first, count, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Room for what is received, used again and again.
#[derive(Debug)]
pub(crate) struct RecvBuffers {
    bytes: Box<[u8]>,
    slots: [Slot; MESSAGES_MAX],
    /// Number of datagrams that were received last.
    len: usize,
}

/// Number of datagrams that are asked for where fewer came before.
const SOME: usize = 4;

/// A payload may be as long as IP allows.
const ROOM: usize = 1 << 16;

/// Zeroes, which take memory only where they are written to.
fn zeroes(len: usize) -> io::Result<Box<[u8]>> {
    let layout = Layout::array::<u8>(len.max(1)).map_err(io::Error::other)?;
    // SAFETY: the layout is not empty.
    let bytes = unsafe { alloc::alloc_zeroed(layout) };
    if bytes.is_null() {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    // SAFETY: so many bytes were allocated as a box of them would be, and they are initialized.
    Ok(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(bytes, len.max(1))) })
}

/// Address and control messages of a datagram.
#[derive(Clone, Copy, Debug)]
struct Slot {
    from: Name,
    control: Control,
    len: usize,
    whole: bool,
}

impl RecvBuffers {
    pub(crate) fn new() -> io::Result<Self> {
        let slot = Slot { from: Name::NONE, control: Control::new(), len: 0, whole: false };
        Ok(Self { bytes: zeroes(MESSAGES_MAX * ROOM)?, slots: [slot; MESSAGES_MAX], len: 0 })
    }

    /// Takes in what has arrived, without waiting; returns how many datagrams. The ones before are
    /// forgotten.
    ///
    /// As long as nothing arrives it asks for one: that takes the least time, and a waiting thread
    /// has it at once. Where something came there may be more: a few are asked for, and many where
    /// all of these came, because headers take time to make.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        match std::mem::take(&mut self.len) {
            0 => self.receive_up_to::<1>(fd),
            before if before < SOME => self.receive_up_to::<SOME>(fd),
            _ => self.receive_up_to::<MESSAGES_MAX>(fd),
        }
    }

    fn receive_up_to<const N: usize>(&mut self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let mut rooms = self.bytes.chunks_exact_mut(ROOM);
        let mut payloads: [libc::iovec; N] = array::from_fn(|_| {
            let room = rooms.next().unwrap_or_default();
            libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() }
        });
        let mut headers = [empty_header(); N];
        for ((header, payload), slot) in headers.iter_mut().zip(&mut payloads).zip(&mut self.slots)
        {
            let header = &mut header.msg_hdr;
            header.msg_name = slot.from.bytes.as_mut_ptr().cast();
            header.msg_namelen = NAME_ROOM;
            header.msg_iov = payload;
            header.msg_iovlen = 1;
            header.msg_control = slot.control.bytes.as_mut_ptr().cast();
            header.msg_controllen = CONTROL_ROOM as _;
        }
        let flags = libc::MSG_DONTWAIT;
        self.len = if let [only] = &mut headers[..] {
            // SAFETY: as below, for the one header.
            let len = unsafe {
                libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut only.msg_hdr, flags)
            };
            only.msg_len = u32::try_from(len).map_err(|_| io::Error::last_os_error())?;
            1
        } else {
            let (first, count) = (headers.as_mut_ptr(), u32::try_from(N).unwrap_or(0));
            let (call, limit) = (libc::SYS_recvmmsg, ptr::null_mut::<libc::timespec>());
            // SAFETY: there are `count` headers. Each points to room of its own for an address, a
            // payload and control messages, as large as it tells, which is borrowed mutably until
            // after the call. No time limit is given.
            let received =
                unsafe { libc::syscall(call, fd.as_raw_fd(), first, count, flags, limit) };
            usize::try_from(received).map_err(|_| io::Error::last_os_error())?
        };
        for (slot, header) in self.slots.iter_mut().zip(&headers).take(self.len) {
            slot.len = header.msg_len as usize;
            slot.from.len = header.msg_hdr.msg_namelen;
            #[allow(
                clippy::unnecessary_cast,
                reason = "not every C library has the same type for it"
            )]
            let control_len = header.msg_hdr.msg_controllen as usize;
            slot.control.len = control_len;
            slot.whole = header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0;
        }
        Ok(self.len)
    }

    /// The datagrams that were received last, in order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = Incoming<'_>> {
        let rooms = self.bytes.chunks_exact_mut(ROOM).zip(&self.slots).take(self.len);
        rooms.map(|(room, slot)| {
            let bytes = room.get_mut(..slot.len).unwrap_or_default();
            Incoming { from: &slot.from, control: &slot.control, whole: slot.whole, bytes }
        })
    }

    /// Returns the payload of a datagram.
    pub(crate) fn bytes(&self, index: usize) -> &[u8] {
        self.bytes.get(index * ROOM..(index + 1) * ROOM).unwrap_or_default()
    }
}

/// A received datagram.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    /// Source.
    pub(crate) from: &'a Name,
    /// Control messages.
    pub(crate) control: &'a Control,
    /// Whether nothing of it was cut off.
    pub(crate) whole: bool,
    /// The payload.
    pub(crate) bytes: &'a mut [u8],
}

/// An address and a port, as the kernel writes them: `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct Name {
    bytes: [u8; NAME_ROOM as usize],
    len: u32,
}

/// The size of a `sockaddr_in6`.
const NAME_ROOM: u32 = 28;

impl Name {
    const NONE: Self = Self { bytes: [0; _], len: 0 };

    pub(crate) fn new(address: SocketAddr) -> Self {
        let mut name = Self::NONE;
        let port = address.port().to_be_bytes();
        match address {
            SocketAddr::V4(address) => {
                name.put(&FAMILY_IPV4.to_ne_bytes());
                name.put(&port);
                name.put(&address.ip().octets());
                name.put(&[0; 8]);
            }
            SocketAddr::V6(address) => {
                name.put(&FAMILY_IPV6.to_ne_bytes());
                name.put(&port);
                name.put(&address.flowinfo().to_be_bytes());
                name.put(&address.ip().octets());
                name.put(&address.scope_id().to_ne_bytes());
            }
        }
        name
    }

    fn put(&mut self, bytes: &[u8]) {
        for (place, byte) in self.bytes.iter_mut().skip(self.len as usize).zip(bytes) {
            *place = *byte;
            self.len += 1;
        }
    }

    /// The address and the port.
    pub(crate) fn get(&self) -> Option<(IpAddr, u16)> {
        let bytes = self.bytes.get(..self.len as usize)?;
        let (family, rest) = bytes.split_first_chunk()?;
        let (port, rest) = rest.split_first_chunk()?;
        let address = match u16::from_ne_bytes(*family) {
            FAMILY_IPV4 => IpAddr::from(*rest.first_chunk::<4>()?),
            FAMILY_IPV6 => Ipv6Addr::from(*rest.get(4..)?.first_chunk::<16>()?).into(),
            _ => return None,
        };
        Some((address, u16::from_be_bytes(*port)))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a family has sixteen bits")]
const FAMILY_IPV4: u16 = libc::AF_INET as u16;
#[expect(clippy::cast_possible_truncation, reason = "a family has sixteen bits")]
const FAMILY_IPV6: u16 = libc::AF_INET6 as u16;

/// Control messages, as the kernel writes them: each a length, a level, a type and data, aligned as
/// a word.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(crate) struct Control {
    bytes: [u8; CONTROL_ROOM],
    len: usize,
}

/// Room for five numbers.
const CONTROL_ROOM: usize = 5 * (CONTROL_HEADER + WORD);

const WORD: usize = size_of::<usize>();
const CONTROL_HEADER: usize = size_of::<libc::cmsghdr>();

impl Control {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; _], len: 0 }
    }

    /// Adds a message of at most a word, if there is room for it.
    pub(crate) fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let length = (CONTROL_HEADER + data.len()).to_ne_bytes();
        let (level, kind) = (level.to_ne_bytes(), kind.to_ne_bytes());
        debug_assert_eq!(length.len() + level.len() + kind.len(), CONTROL_HEADER);
        let Some(room) = self.bytes.get_mut(self.len..self.len + CONTROL_HEADER + WORD) else {
            return;
        };
        let message = length.iter().chain(&level).chain(&kind).chain(data);
        room.iter_mut().zip(message).for_each(|(place, byte)| *place = *byte);
        self.len += CONTROL_HEADER + WORD;
    }

    /// The messages: their levels, types and data.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (c_int, c_int, &[u8])> {
        let mut rest = self.bytes.get(..self.len).unwrap_or_default();
        std::iter::from_fn(move || {
            let (length, body) = rest.split_first_chunk()?;
            let (level, body) = body.split_first_chunk()?;
            let (kind, body) = body.split_first_chunk()?;
            let length = usize::from_ne_bytes(*length);
            let data = body.get(..length.checked_sub(CONTROL_HEADER)?)?;
            rest = rest.get(length.next_multiple_of(WORD)..).unwrap_or_default();
            Some((c_int::from_ne_bytes(*level), c_int::from_ne_bytes(*kind), data))
        })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "it is four")]
const SIZE_OF_INT: libc::socklen_t = size_of::<c_int>() as libc::socklen_t;

/// A header that points nowhere.
fn empty_header() -> libc::mmsghdr {
    // SAFETY: it is made of numbers and pointers, for all of which zero is a value.
    unsafe { std::mem::zeroed() }
}

/// Returns the result of a system call, or its error.
fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_went() {
        for address in ["192.0.2.1:4791", "[2001:db8::1]:49153", "[fe80::1%7]:4791"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(Name::new(address).get(), Some((address.ip(), address.port())));
        }
        assert_eq!(Name::NONE.get(), None);
    }

    #[test]
    fn names_are_those_of_the_system() {
        for address in ["192.0.2.1:4791", "[2001:db8::1]:49153", "[fe80::1%7]:4791"] {
            let address: SocketAddr = address.parse().unwrap();
            let theirs = socket2::SockAddr::from(address);
            assert_eq!(Name::new(address).len, theirs.len());
        }
    }

    #[test]
    fn control_messages_come_back_as_they_went() {
        let mut control = Control::new();
        assert_eq!(control.iter().count(), 0);
        control.put(17, 103, &1040_u16.to_ne_bytes());
        control.put(0, 1, &2_u32.to_ne_bytes());
        control.put(0, 2, &64_u32.to_ne_bytes());
        let all: Vec<_> =
            control.iter().map(|(level, kind, data)| (level, kind, data[0])).collect();
        assert_eq!(all, [(17, 103, 16), (0, 1, 2), (0, 2, 64)]);
        let before = control.len;
        (0..9).for_each(|_| control.put(0, 2, &[]));
        assert_eq!(
            control.len,
            before + 2 * (CONTROL_HEADER + WORD),
            "no more than there is room for"
        );
    }

    #[test]
    fn nonsense_from_the_kernel_is_no_control_message() {
        let mut control = Control::new();
        control.len = 40;
        assert_eq!(control.iter().count(), 0, "a length of 0");
        control.bytes[0] = 200;
        assert_eq!(control.iter().count(), 0, "longer than there are bytes");
        control.len = 4000;
        assert_eq!(control.iter().count(), 0);
    }
}
