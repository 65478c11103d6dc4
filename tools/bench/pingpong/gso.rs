//! Bulk over bare UDP sockets: packets as long as those of a WRITE, in trains as long as a link's,
//! which the kernel segments (GSO) and joins (GRO). Nothing is looked at.
#![allow(unsafe_code, reason = "one option of the sockets")]

use std::ffi::c_int;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::PORT;

/// Payload of a packet, and its length with BTH and ICRC.
const PAYLOAD: usize = 4096;
const PACKET: usize = PAYLOAD + 16;

/// Packets of a train: as many as a datagram has room for.
const TRAIN: usize = 65_507 / PACKET;

/// Maximum number of payload bytes in flight, as a queue pair has it.
const WINDOW: usize = 512 << 10;

/// Trains that one acknowledgment is for.
const ACKNOWLEDGED: usize = 4;

/// Bytes of the sockets' buffers.
const BUFFER: usize = 8 << 20;

/// Time without an acknowledgment after which trains count as lost.
const LOST: Duration = Duration::from_millis(20);

fn socket(at: (&str, u16), option: c_int, value: usize) -> UdpSocket {
    let socket = UdpSocket::bind(at).unwrap();
    socket.set_nonblocking(true).unwrap();
    SockRef::from(&socket).set_send_buffer_size(BUFFER).unwrap();
    SockRef::from(&socket).set_recv_buffer_size(BUFFER).unwrap();
    let value = c_int::try_from(value).unwrap();
    let place = (&raw const value).cast();
    // SAFETY: it is given a number of four bytes, which lives until the call returns.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, option, place, 4) };
    assert_eq!(set, 0);
    socket
}

/// Receives, and tells the sender how many packets came.
pub(super) fn serve(at: &str) {
    let socket = socket((at, PORT), libc::UDP_GRO, 1);
    let (mut room, mut packets, mut told) = (vec![0; 1 << 16], 0, 0);
    loop {
        match socket.recv_from(&mut room) {
            Ok((len, from)) => {
                packets += len / PACKET;
                if packets - told >= ACKNOWLEDGED * TRAIN {
                    told = packets;
                    let _ = socket.send_to(&(packets as u64).to_ne_bytes(), from);
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends for this long; prints Gb/s of payload that arrived.
pub(super) fn send(to: &str, time: Duration) {
    let socket = socket(("0.0.0.0", 0), libc::UDP_SEGMENT, PACKET);
    let bytes = vec![0x5a; TRAIN * PACKET];
    let (mut sent, mut received, mut lost) = (0_usize, 0, 0);
    let (start, mut heard) = (Instant::now(), Instant::now());
    let mut number = [0; 8];
    while start.elapsed() < time {
        while socket.recv(&mut number).is_ok() {
            (received, heard) = (u64::from_ne_bytes(number) as usize, Instant::now());
        }
        if sent.saturating_sub(received + lost) * PAYLOAD < WINDOW {
            match socket.send_to(&bytes, (to, PORT)) {
                Ok(_) => sent += TRAIN,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        } else if heard.elapsed() > LOST {
            (lost, heard) = (sent.saturating_sub(received), Instant::now());
        }
    }
    let bits = (received * PAYLOAD * 8) as f64;
    println!("{:.2}", bits / start.elapsed().as_nanos() as f64);
}
