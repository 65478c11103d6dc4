//! A packet socket with a receive ring, as bare as it gets.
#![allow(unsafe_code, reason = "system calls, and memory that the kernel writes")]

use std::ffi::CString;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};

use super::SIZE;

/// A kind of frame for experiments on one wire.
const EXPERIMENT: u16 = 0x88b5;

const BLOCK: usize = 1 << 16;
const SLOT: usize = 2048;
const SLOTS: usize = BLOCK / SLOT;
const HEADER: usize = 14;

pub(super) struct PacketSocket {
    fd: libc::c_int,
    ring: *mut u8,
    next: usize,
    frame: [u8; HEADER + SIZE],
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn set<T>(fd: libc::c_int, name: libc::c_int, value: &T) -> io::Result<()> {
    let (place, len) = (std::ptr::from_ref(value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the pointer and the length are those of a value that lives through the call.
    checked(unsafe { libc::setsockopt(fd, libc::SOL_PACKET, name, place, len) }).map(|_| ())
}

impl PacketSocket {
    pub(super) fn open(interface: &str) -> io::Result<Self> {
        let name = CString::new(interface)?;
        // SAFETY: a string that lives through the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        // SAFETY: no memory is involved.
        let fd = checked(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) })?;
        set(fd, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as libc::c_int))?;
        set(fd, libc::PACKET_IGNORE_OUTGOING, &1)?;
        set(fd, libc::PACKET_QDISC_BYPASS, &1)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: 1,
            tp_frame_size: SLOT as u32,
            tp_frame_nr: SLOTS as u32,
        };
        set(fd, libc::PACKET_RX_RING, &request)?;
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let ring = unsafe { libc::mmap(std::ptr::null_mut(), BLOCK, access, flags, fd, 0) };
        if ring == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as u16,
            sll_protocol: EXPERIMENT.to_be(),
            sll_ifindex: index as i32,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let (place, len) = (&raw const address, size_of_val(&address) as libc::socklen_t);
        // SAFETY: an address of a packet socket that lives through the call, and its length.
        checked(unsafe { libc::bind(fd, place.cast(), len) })?;
        let mut frame = [0xff; HEADER + SIZE];
        frame[12..14].copy_from_slice(&EXPERIMENT.to_be_bytes());
        Ok(Self { fd, ring: ring.cast(), next: 0, frame })
    }

    pub(super) fn send_frame(&mut self, message: &[u8; SIZE]) {
        self.frame[HEADER..].copy_from_slice(message);
        // SAFETY: the pointer and the length are those of the frame.
        let sent = unsafe { libc::send(self.fd, self.frame.as_ptr().cast(), self.frame.len(), 0) };
        assert!(sent > 0, "{}", io::Error::last_os_error());
    }

    pub(super) fn receive_frame(&mut self) -> bool {
        let slot = self.ring.wrapping_add(self.next * SLOT);
        // SAFETY: the first word of a slot of the mapping, which both sides use as an atomic.
        let status = unsafe { AtomicU32::from_ptr(slot.cast()) };
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            std::hint::spin_loop();
            return false;
        }
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
        true
    }
}
