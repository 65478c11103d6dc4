//! `NETLINK_RDMA`: by a socket of this protocol programs ask the kernel for its RDMA devices, which
//! are not those of this process. `rdma link` and `rdma dev` of iproute2 list devices so, and UCX
//! looks up ports.
//!
//! | file | holds |
//! |---|---|
//! | `message` | messages, byte for byte |
//! | `nldev` | the answers |
//!
//! The program gets a netlink socket of the protocol that is for programs (`NETLINK_USERSOCK`), so
//! that the kernel does all but the answers: addresses, options, `poll`, `recvmsg`. What the
//! program sends is answered here: a second socket of this protocol puts the answers into the first
//! one's queue. The first is connected to the second, which keeps messages of other processes out.

mod message;
mod nldev;

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use roce::device::Device as _;
use roce::link::interface::interfaces;

use crate::behind::{Behind, call_behind};
use crate::call::{Failed, Result, number};
use crate::device::Device;
use crate::fd_set::FdSet;

/// The protocol of RDMA devices.
const NETLINK_RDMA: c_int = 20;

/// Most bytes of a request that are looked at.
const REQUEST_MAX: usize = 4096;

static SOCKET: Behind = Behind::new(c"socket");
static SEND: Behind = Behind::new(c"send");
static SENDTO: Behind = Behind::new(c"sendto");
static SENDMSG: Behind = Behind::new(c"sendmsg");

/// Sockets whose requests are answered here. A program with more descriptors has a socket of the
/// kernel's.
static SOCKETS: FdSet<{ (1 << 16) / 64 }> = FdSet::new();

/// Finds what programs may call in signal handlers.
pub(crate) fn resolve() {
    for behind in [&SOCKET, &SEND, &SENDTO, &SENDMSG] {
        behind.address();
    }
}

/// A descriptor is closed, or stands for something else.
pub(crate) fn forget(fd: c_int) {
    SOCKETS.remove(fd);
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn old_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let is_rdma = domain == libc::AF_NETLINK && protocol == NETLINK_RDMA;
    let protocol = if is_rdma { libc::NETLINK_USERSOCK } else { protocol };
    let fd = call_behind!(SOCKET, fn(c_int, c_int, c_int) -> c_int, (domain, kind, protocol), -1);
    if fd >= 0 && is_rdma && !SOCKETS.insert(fd) {
        crate::call::set_errno(libc::EMFILE);
        // SAFETY: it was just made, and the program does not have it.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        return -1;
    }
    if fd >= 0 && !is_rdma {
        SOCKETS.remove(fd);
    }
    fd
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn old_send(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: the program hands over `len` bytes.
    if let Some(sent) = unsafe { answered(fd, bytes, len) } {
        return sent;
    }
    call_behind!(SEND, fn(c_int, *const c_void, usize, c_int) -> isize, (fd, bytes, len, flags), -1)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn old_sendto(
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    to_len: libc::socklen_t,
) -> isize {
    // SAFETY: the program hands over `len` bytes.
    if let Some(sent) = unsafe { answered(fd, bytes, len) } {
        return sent;
    }
    call_behind!(
        SENDTO,
        fn(c_int, *const c_void, usize, c_int, *const libc::sockaddr, libc::socklen_t) -> isize,
        (fd, bytes, len, flags, to, to_len),
        -1
    )
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn old_sendmsg(
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> isize {
    if SOCKETS.contains(fd) == Some(true) && !message.is_null() {
        // SAFETY: the program hands over a message.
        let message = unsafe { &*message };
        // Programs put a request into one piece.
        if message.msg_iovlen == 1 && !message.msg_iov.is_null() {
            // SAFETY: there is a piece.
            let piece = unsafe { &*message.msg_iov };
            // SAFETY: the piece has `iov_len` bytes.
            if let Some(sent) = unsafe { answered(fd, piece.iov_base, piece.iov_len) } {
                return sent;
            }
        }
    }
    call_behind!(SENDMSG, fn(c_int, *const libc::msghdr, c_int) -> isize, (fd, message, flags), -1)
}

/// Answers what is sent to a socket of [`SOCKETS`], and returns what the call returns; `None` for
/// any other descriptor.
///
/// # Safety
///
/// `bytes` points to `len` bytes that can be read.
#[inline]
pub(crate) unsafe fn answered(fd: c_int, bytes: *const c_void, len: usize) -> Option<isize> {
    if SOCKETS.contains(fd) != Some(true) {
        return None;
    }
    // SAFETY: the caller vouches for it.
    unsafe { answer_socket(fd, bytes, len) }
}

#[cold]
unsafe fn answer_socket(fd: c_int, bytes: *const c_void, len: usize) -> Option<isize> {
    // Closed behind this library's back, the number may stand for another file by now.
    if option(fd, libc::SO_DOMAIN) != Some(libc::AF_NETLINK)
        || option(fd, libc::SO_PROTOCOL) != Some(libc::NETLINK_USERSOCK)
        || bytes.is_null()
    {
        SOCKETS.remove(fd);
        return None;
    }
    // SAFETY: the caller vouches for it.
    let request = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len.min(REQUEST_MAX)) };
    let request = request.to_vec();
    let done: c_int = number(|| deliver(fd, &request).map(|()| 0));
    Some(if done < 0 { -1 } else { isize::try_from(len).unwrap_or(isize::MAX) })
}

fn option(fd: c_int, name: c_int) -> Option<c_int> {
    let (mut value, mut len): (c_int, libc::socklen_t) = (0, size_of::<c_int>().try_into().ok()?);
    let (to, room) = ((&raw mut value).cast(), &raw mut len);
    // SAFETY: there is room for a number.
    let got = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, to, room) };
    (got == 0).then_some(value)
}

/// Puts the answers to a request into the queue of the program's socket.
fn deliver(fd: RawFd, request: &[u8]) -> Result<()> {
    let answering = usersock()?;
    let own = address_of(answering.as_raw_fd())?;
    connect(fd, own)?;
    let port_id = address_of(fd)?;
    let devices = devices()?;
    for datagram in nldev::answer(request, port_id, &devices) {
        send_to(answering.as_raw_fd(), &datagram, port_id)?;
    }
    Ok(())
}

/// A socket of the protocol for programs, with an address.
fn usersock() -> Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // Not the function that stands in front of the C library's.
    // SAFETY: a system call without pointers.
    let fd =
        unsafe { libc::syscall(libc::SYS_socket, libc::AF_NETLINK, kind, libc::NETLINK_USERSOCK) };
    let fd = RawFd::try_from(fd).map_err(|_| Failed::EINVAL)?;
    if fd < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: it was just made, and belongs to nothing else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let (any, len) = netlink_address(0);
    // SAFETY: the address is as long as that.
    let bound = unsafe { libc::bind(fd, (&raw const any).cast(), len) };
    if bound < 0 { Err(io::Error::last_os_error().into()) } else { Ok(socket) }
}

fn netlink_address(port_id: u32) -> (libc::sockaddr_nl, libc::socklen_t) {
    // SAFETY: it is made of numbers, for which zero is a value.
    let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = u16::try_from(libc::AF_NETLINK).unwrap_or_default();
    address.nl_pid = port_id;
    let len = size_of::<libc::sockaddr_nl>().try_into().unwrap_or_default();
    (address, len)
}

/// The port id of a socket.
fn address_of(fd: RawFd) -> Result<u32> {
    let (mut address, mut len) = netlink_address(0);
    // SAFETY: there is room for an address of this family.
    let got = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) };
    if got < 0 { Err(io::Error::last_os_error().into()) } else { Ok(address.nl_pid) }
}

/// Lets a socket receive from this one only; it gets an address, if it has none.
fn connect(fd: RawFd, to: u32) -> Result<()> {
    let (address, len) = netlink_address(to);
    // SAFETY: the address is as long as that.
    let connected = unsafe { libc::connect(fd, (&raw const address).cast(), len) };
    if connected < 0 { Err(io::Error::last_os_error().into()) } else { Ok(()) }
}

fn send_to(fd: RawFd, datagram: &[u8], to: u32) -> Result<()> {
    let (address, len) = netlink_address(to);
    let (bytes, count) = (datagram.as_ptr(), datagram.len());
    // SAFETY: `bytes` and `count` are the datagram's, and `len` is the size of `address`.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            fd,
            bytes,
            count,
            libc::MSG_DONTWAIT,
            &raw const address,
            len,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error().into()) } else { Ok(()) }
}

/// The devices of this process.
fn devices() -> Result<Vec<nldev::Device>> {
    let interfaces = interfaces().unwrap_or_default();
    let describe = |device: &'static Device| {
        let files = device.files();
        let interface = files.interface.and_then(|name| {
            let found = interfaces.iter().find(|interface| interface.name == name)?;
            Some((found.index, name))
        });
        nldev::Device {
            index: u32::try_from(device.number()).unwrap_or(u32::MAX),
            name: device.name.clone(),
            guid: u64::from_be_bytes(files.guid.0),
            state: files.state,
            interface,
            // A device that this process has not opened has counted nothing.
            counters: device.running().map(|nic| nic.statistics()).unwrap_or_default(),
        }
    };
    Ok(Device::list()?.into_iter().map(describe).collect())
}
