//! TAP devices: Ethernet interfaces of the kernel whose cable ends in a program.
#![allow(unsafe_code, reason = "system calls")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::interface::request_about;

/// The file by which TAP devices are made and opened.
pub(in crate::link) const TUN: &str = "/dev/net/tun";

/// `TUNSETIFF` of `linux/if_tun.h`.
const SET_INTERFACE: u32 = 0x4004_54ca;
/// `IFF_TAP | IFF_NO_PI`: Ethernet frames and nothing before them.
const TAP_WITHOUT_HEADER: i16 = 0x1002;

/// Opens [`TUN`], without blocking reads.
pub(in crate::link) fn open_tun() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(TUN)
}

/// Makes a file the other end of a TAP device, which is made if there is none of this name. It then
/// lasts as long as the file.
pub(in crate::link) fn attach(tun: &File, name: &str) -> io::Result<()> {
    let mut request = request_about(name)?;
    request.ifr_ifru.ifru_flags = TAP_WITHOUT_HEADER;
    let command = libc::Ioctl::from(SET_INTERFACE);
    // SAFETY: this request reads a name, which ends with zero, and flags, and writes the name.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), command, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Switches an interface on, by means of any socket.
pub(in crate::link) fn set_up(any: BorrowedFd<'_>, name: &str) -> io::Result<()> {
    let mut request = request_about(name)?;
    let (fd, get, set) = (any.as_raw_fd(), libc::SIOCGIFFLAGS, libc::SIOCSIFFLAGS);
    // SAFETY: this request reads a name, which ends with zero, and writes flags.
    if unsafe { libc::ioctl(fd, get as libc::Ioctl, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the request wrote this member, and every member is plain numbers anyway.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    let up = i16::try_from(libc::IFF_UP).unwrap_or(0);
    request.ifr_ifru.ifru_flags = flags | up;
    // SAFETY: this request reads a name and flags.
    if unsafe { libc::ioctl(fd, set as libc::Ioctl, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
