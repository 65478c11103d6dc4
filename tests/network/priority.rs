//! Service levels: each is the priority of a packet within this machine, which a socket on loopback
//! is told of.
#![allow(unsafe_code, reason = "a system call that tells the priority of a packet")]

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use roce::device::Device as _;
use roce::link::interface::gid;
use roce::link::raw::{self, Config};
use roce::link::udp;
use roce::verbs::{AhAttr, Data, Mtu, QpType, SendWr, Target, UdTarget, WrId};
use roce::wire::{Bits, Qpn, ROCE_PORT};
use socket2::{Domain, Socket, Type};

use crate::common::netns::{in_namespace, ip};
use crate::stage::{Kind, SEND, Side, connect_attr};

/// A socket that is told the priorities of what it receives, as Linux does from 6.14 on.
fn witness(address: Ipv4Addr) -> Socket {
    const SO_RCVPRIORITY: i32 = 82;
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let on: i32 = 1;
    // SAFETY: the option is a number that lives through the call, and its size is told.
    let result = unsafe {
        let value = (&raw const on).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_RCVPRIORITY, value, 4)
    };
    assert_eq!(result, 0, "SO_RCVPRIORITY: {}", std::io::Error::last_os_error());
    socket.bind(&std::net::SocketAddr::from((address, ROCE_PORT)).into()).unwrap();
    socket
}

/// The priority of the next datagram, and the last bytes before its ICRC.
fn receive(socket: &Socket) -> (u32, Vec<u8>) {
    let (mut bytes, mut control) = ([0_u8; 2000], [0_u64; 16]);
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a header of zeros points nowhere.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header points to room for bytes and control messages, of the lengths that it
    // tells.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) };
    let len = usize::try_from(len).expect("a datagram");
    // One control message: its length, its level and kind, and the priority.
    let kind = libc::SO_PRIORITY.cast_unsigned();
    let (level, told) = (control[1] as u32, (control[1] >> 32) as u32);
    assert_eq!((level, told), (libc::SOL_SOCKET.cast_unsigned(), kind));
    (control[2] as u32, bytes[len - 8..len - 4].to_vec())
}

#[test]
fn service_levels_are_priorities() {
    in_namespace(|| {
        let [here, there] = [Ipv4Addr::new(10, 5, 0, 1), Ipv4Addr::new(10, 5, 0, 2)];
        ip("address add 10.5.0.1/32 dev lo");
        ip("address add 10.5.0.2/32 dev lo");
        // The kernel shall take frames with an address of its own, which a raw link puts on its
        // loopback interface.
        std::fs::write("/proc/sys/net/ipv4/conf/lo/accept_local", "1").unwrap();
        for kind in [Kind::Udp, Kind::Raw] {
            let link = match kind {
                Kind::Udp => udp::open(&udp::Options::new(here.into())).unwrap(),
                Kind::Raw => {
                    let mut config = Config::new("lo");
                    config.addresses = vec![here.into()];
                    raw::open(&config).unwrap()
                }
            };
            let (side, witness) = (Side::new(link), witness(there));
            let (qp, how) = (side.qp(QpType::Ud), connect_attr(Mtu::M1024));
            side.nic.open_datagram(qp, &how).unwrap();
            for level in [0_u8, 3, 0, 5, 7, 7, 3] {
                let mut attr = AhAttr::new(gid(there.into()), 0);
                attr.sl = Bits::low(level.into());
                let ah = side.nic.create_ah(side.pd, attr).unwrap();
                let target = Target::Ud(UdTarget { ah, qpn: Qpn::new(7), qkey: how.qkey });
                side.buffer.write(0, &[level; 64]).unwrap();
                let sges = [side.sge(0, 64)];
                let wr = SendWr::new(WrId(1), SEND, Data::Gather(&sges));
                side.nic.post_send(qp, &SendWr { target, ..wr }).unwrap();
                side.done(1);
                assert_eq!(receive(&witness), (level.into(), vec![level; 4]), "{kind:?}");
            }
        }
    });
}
