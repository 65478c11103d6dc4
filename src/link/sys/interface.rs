//! The interfaces that the kernel has, and their addresses.
#![allow(unsafe_code, reason = "system calls")]

use std::ffi::{CStr, c_int};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// An entry of the kernel's list of interfaces and addresses.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The interface's name.
    pub(crate) name: String,
    /// `IFF_UP` and others.
    pub(crate) flags: u32,
    /// An address.
    pub(crate) address: Address,
}

/// An address of an interface.
#[derive(Debug)]
pub(crate) enum Address {
    /// An IPv4 or IPv6 address.
    Ip(IpAddr),
    /// Link-layer address: the interface's index, its kind (`ARPHRD_ETHER` and others), and six
    /// bytes.
    Link(c_int, u16, [u8; 6]),
}

/// All that there are, in the kernel's order.
pub(crate) fn entries() -> io::Result<Vec<Entry>> {
    let mut list = List(ptr::null_mut());
    // SAFETY: it is given a place for a pointer.
    if unsafe { libc::getifaddrs(&raw mut list.0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let (mut entries, mut next) = (Vec::new(), list.0);
    // SAFETY: `next` is null or an element of the list, which lives until `list` is dropped.
    while let Some(element) = unsafe { next.as_ref() } {
        next = element.ifa_next;
        // SAFETY: an element's name is a string that ends with zero and lives as long as the list.
        let name = unsafe { CStr::from_ptr(element.ifa_name) };
        if let Some(address) = address(element.ifa_addr) {
            let name = name.to_string_lossy().into_owned();
            entries.push(Entry { name, flags: element.ifa_flags, address });
        }
    }
    Ok(entries)
}

/// The list of the C library, to be freed.
struct List(*mut libc::ifaddrs);

impl Drop for List {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: it came from `getifaddrs`, is freed once, and nothing borrows from it any
            // more.
            unsafe { libc::freeifaddrs(self.0) }
        }
    }
}

/// An address of a list's element, if it is of a kind that is known.
fn address(at: *const libc::sockaddr) -> Option<Address> {
    // SAFETY: an element's address is null or begins with a family.
    let family = c_int::from(unsafe { at.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: by its family it is a whole `sockaddr_in`.
            let address = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Address::Ip(Ipv4Addr::from(address.sin_addr.s_addr.to_ne_bytes()).into()))
        }
        libc::AF_INET6 => {
            // SAFETY: by its family it is a whole `sockaddr_in6`.
            let address = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Address::Ip(Ipv6Addr::from(address.sin6_addr.s6_addr).into()))
        }
        libc::AF_PACKET => {
            // SAFETY: by its family it is a whole `sockaddr_ll`.
            let address = unsafe { at.cast::<libc::sockaddr_ll>().read_unaligned() };
            let [a, b, c, d, e, f, ..] = address.sll_addr;
            Some(Address::Link(address.sll_ifindex, address.sll_hatype, [a, b, c, d, e, f]))
        }
        _ => None,
    }
}

/// A request about an interface. A name that is too long is no interface's.
pub(super) fn request_about(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: it is made of numbers, bytes and pointers, for all of which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::NotFound.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte.cast_signed();
    }
    Ok(request)
}

/// The MTU of an interface, asked for by means of any socket.
pub(crate) fn mtu(any: BorrowedFd<'_>, name: &str) -> io::Result<usize> {
    let mut request = request_about(name)?;
    // SAFETY: this request reads a name, which ends with zero, and writes a number, both into
    // `request`.
    if unsafe { libc::ioctl(any.as_raw_fd(), libc::SIOCGIFMTU as libc::Ioctl, &raw mut request) }
        < 0
    {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the request wrote this member, and every member is plain numbers anyway.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// `struct ethtool_cmd` of `linux/ethtool.h`, as far as the speed is in it.
#[derive(Debug, Default)]
#[repr(C)]
struct EthtoolCmd {
    cmd: u32,
    supported: u32,
    advertising: u32,
    speed: u16,
    _modes: [u8; 6],
    _packets: [u32; 2],
    speed_hi: u16,
    _crossover: [u8; 2],
    _partner: u32,
    _reserved: [u32; 2],
}

const _: () = assert!(size_of::<EthtoolCmd>() == 44);

/// The speed of an interface in Mb/s, asked for by means of any socket; `None` if it has none, as
/// loopback.
pub(crate) fn speed(any: BorrowedFd<'_>, name: &str) -> Option<u32> {
    const ETHTOOL_GSET: u32 = 1;
    const SIOCETHTOOL: u16 = 0x8946;
    let mut settings = EthtoolCmd { cmd: ETHTOOL_GSET, ..EthtoolCmd::default() };
    let mut request = request_about(name).ok()?;
    request.ifr_ifru.ifru_data = (&raw mut settings).cast();
    let (fd, command) = (any.as_raw_fd(), SIOCETHTOOL.into());
    // SAFETY: this request reads a name, which ends with zero, and writes the settings behind the
    // pointer.
    if unsafe { libc::ioctl(fd, command, &raw mut request) } < 0 {
        return None;
    }
    let speed = u32::from(settings.speed_hi) << 16 | u32::from(settings.speed);
    // All ones: the driver does not know.
    (speed != 0 && speed != u32::MAX && speed != u32::from(u16::MAX)).then_some(speed)
}

/// `struct ethtool_channels` of `linux/ethtool.h`.
#[derive(Debug, Default)]
#[repr(C)]
struct EthtoolChannels {
    cmd: u32,
    _max: [u32; 4],
    rx: u32,
    _tx: u32,
    _other: u32,
    combined: u32,
}

/// Number of queues by which an interface receives, asked for by means of any socket; `None` if the
/// driver does not tell.
pub(crate) fn receive_queues(any: BorrowedFd<'_>, name: &str) -> Option<u32> {
    const ETHTOOL_GCHANNELS: u32 = 0x3c;
    const SIOCETHTOOL: u16 = 0x8946;
    let mut channels = EthtoolChannels { cmd: ETHTOOL_GCHANNELS, ..EthtoolChannels::default() };
    let mut request = request_about(name).ok()?;
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    let (fd, command) = (any.as_raw_fd(), SIOCETHTOOL.into());
    // SAFETY: this request reads a name, which ends with zero, and writes the numbers behind the
    // pointer.
    if unsafe { libc::ioctl(fd, command, &raw mut request) } < 0 {
        return None;
    }
    Some(channels.rx.saturating_add(channels.combined)).filter(|count| *count > 0)
}
