//! Multicast groups: each member gets one copy of each packet, on the sender's machine and on
//! others.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

use roce::device::Device as _;
use roce::engine::Counter;
use roce::link::interface::gid;
use roce::link::{Link, fault, tap};
use roce::verbs::{
    AhAttr, AhHandle, CreateError, Data, Mtu, Notify, QpHandle, QpType, SendOp, SendWr, Target,
    UdTarget, Wc, WcOpcode, WrId,
};
use roce::wire::{Gid, Qpn};

use crate::common::netns::{Host, in_namespace, wire};
use crate::stage::{Kind, Side, Version, WIRE_MTU, connect_attr, open, pattern};

/// Number of receives of a member.
const RECEIVES: usize = 128;

/// Length of a message.
const LENGTH: usize = 600;

/// Length of a receive: the GRH and a message.
const RECEIVE_BYTES: usize = LENGTH + 40;

/// A datagram queue pair on a host.
struct Member<'h> {
    host: &'h Host,
    side: Side,
    qp: QpHandle,
    posted: u64,
}

impl<'h> Member<'h> {
    fn new(host: &'h Host, link: Link) -> Self {
        let side = Side::new(link);
        let qp = side.qp(QpType::Ud);
        side.nic.open_datagram(qp, &connect_attr(Mtu::M1024)).unwrap();
        let mut member = Self { host, side, qp, posted: 0 };
        (0..RECEIVES).for_each(|_| member.post_receive());
        member
    }

    fn post_receive(&mut self) {
        let offset = self.posted as usize % RECEIVES * RECEIVE_BYTES;
        self.side.recv(self.qp, self.posted, &[self.side.sge(offset, RECEIVE_BYTES)]);
        self.posted += 1;
    }

    fn attach(&self, group: Gid) -> Result<(), CreateError> {
        self.host.run(|| self.side.nic.attach_multicast(self.qp, group))
    }

    fn detach(&self, group: Gid) {
        self.side.nic.detach_multicast(self.qp, group).unwrap();
    }

    fn ah(&self, to: Gid) -> AhHandle {
        self.side.nic.create_ah(self.side.pd, AhAttr::new(to, 0)).unwrap()
    }

    /// Sends messages with these numbers.
    fn send(&self, ah: AhHandle, qpn: Qpn, numbers: impl IntoIterator<Item = u32>) {
        let qkey = connect_attr(Mtu::M1024).qkey;
        for number in numbers {
            let offset = RECEIVES * RECEIVE_BYTES + number as usize % 64 * LENGTH;
            self.side.buffer.write(offset, &pattern(number.into(), LENGTH)).unwrap();
            let sges = [self.side.sge(offset, LENGTH)];
            let op = SendOp::Send { imm: Some(number.to_be_bytes()) };
            let wr = SendWr::new(WrId(u64::MAX), op, Data::Gather(&sges));
            let target = Target::Ud(UdTarget { ah, qpn, qkey });
            self.side.nic.post_send(self.qp, &SendWr { target, ..wr }).unwrap();
        }
    }

    /// Receives the next message, and checks its content. Returns its number and its destination.
    #[track_caller]
    fn receive(&mut self) -> (u32, IpAddr) {
        let wc = self.next_received();
        assert_eq!(wc.byte_len as usize, RECEIVE_BYTES);
        let number = u32::from_be_bytes(wc.imm().unwrap());
        let bytes = self.side.read(wc.id.0 as usize % RECEIVES * RECEIVE_BYTES, RECEIVE_BYTES);
        assert!(bytes[40..] == pattern(number.into(), LENGTH), "message {number} is damaged");
        self.post_receive();
        let header = &bytes[..40];
        let to = match header[0] >> 4 {
            6 => Ipv6Addr::from(<[u8; 16]>::try_from(&header[24..40]).unwrap()).into(),
            _ => Ipv4Addr::from(<[u8; 4]>::try_from(&header[36..40]).unwrap()).into(),
        };
        (number, to)
    }

    #[track_caller]
    fn next_received(&self) -> Wc {
        let start = Instant::now();
        loop {
            let mut wc = [Wc::default()];
            if self.side.nic.poll_cq(self.side.cq, &mut wc) == 1 {
                assert!(wc[0].is_success(), "{wc:?}");
                if wc[0].opcode == WcOpcode::Recv {
                    return wc[0];
                }
            }
            self.side.check_alive(start);
            std::thread::yield_now();
        }
    }

    /// Checks that the next messages are these, sent to `group`, in order and without duplicates.
    #[track_caller]
    fn receives(&mut self, group: IpAddr, numbers: impl IntoIterator<Item = u32>) {
        for number in numbers {
            assert_eq!(self.receive(), (number, group));
        }
    }
}

fn groups(version: Version) -> [IpAddr; 2] {
    match version {
        Version::V4 => [Ipv4Addr::new(239, 1, 2, 3).into(), Ipv4Addr::new(239, 1, 2, 4).into()],
        Version::V6 => ["ff05::1:2:3".parse().unwrap(), "ff02::1:2:4".parse().unwrap()],
    }
}

/// Adds a second address to a host.
fn second(host: &Host, version: Version, number: u8) -> IpAddr {
    match version {
        Version::V4 => {
            host.ip(&format!("address add 10.9.0.{number}/24 dev {}", host.interface));
            Ipv4Addr::new(10, 9, 0, number).into()
        }
        Version::V6 => {
            host.ip(&format!("address add fd09::{number:x}/64 dev {} nodad", host.interface));
            Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, number.into()).into()
        }
    }
}

/// Checks that each of four NICs in a group, two on each of two hosts, gets one copy of each
/// packet. The sender is of kind `from`.
fn each_member_gets_one_copy(from: Kind, to: Kind, version: Version) {
    let (left, right) = wire(WIRE_MTU);
    let addresses = [second(&left, version, 7), second(&right, version, 8)];
    let mut members = [
        Member::new(&left, open(from, &left, version.of(&left))),
        Member::new(&left, open(to, &left, addresses[0])),
        Member::new(&right, open(to, &right, version.of(&right))),
        Member::new(&right, open(from, &right, addresses[1])),
    ];
    let [group, other] = groups(version);
    for member in &members {
        member.attach(gid(group)).unwrap();
    }
    // Groups are separate, and a member of two groups gets the packets of both.
    members[2].attach(gid(other)).unwrap();
    let (ah, other_ah) = (members[0].ah(gid(group)), members[0].ah(gid(other)));
    members[0].send(ah, Qpn::MULTICAST, 0..1);
    members.iter_mut().for_each(|member| member.receives(group, 0..1));
    members[0].send(ah, Qpn::MULTICAST, 1..40);
    members.iter_mut().for_each(|member| member.receives(group, 1..40));
    members[0].send(other_ah, Qpn::MULTICAST, 100..103);
    members[2].receives(other, 100..103);
    // A member that leaves gets no more packets, although others on its machine do: the next
    // message that it gets is one that was sent to it later.
    members[2].detach(gid(group));
    members[3].send(members[3].ah(gid(group)), Qpn::MULTICAST, 40..45);
    for member in [0, 1, 3] {
        members[member].receives(group, 40..45);
    }
    let end = members[2].side.nic.endpoint(members[2].qp).unwrap();
    members[0].send(members[0].ah(end.gid), end.qpn, 45..46);
    members[2].receives(version.of(&right), 45..46);
    members[0].send(other_ah, Qpn::MULTICAST, 103..105);
    members[2].receives(other, 103..105);
    // A member that joins again gets packets again.
    members[2].attach(gid(group)).unwrap();
    members[0].send(ah, Qpn::MULTICAST, 46..60);
    members.iter_mut().for_each(|member| member.receives(group, 46..60));
    for member in &members {
        let counters = member.side.nic.counters();
        assert_eq!(counters.get(Counter::NoGroup), 0, "a packet had no group");
        member.detach(gid(group));
    }
    members[2].detach(gid(other));
}

namespace_tests! {
    udp_of_ipv4: each_member_gets_one_copy(Kind::Udp, Kind::Udp, Version::V4);
    udp_of_ipv6: each_member_gets_one_copy(Kind::Udp, Kind::Udp, Version::V6);
    raw_of_ipv4: each_member_gets_one_copy(Kind::Raw, Kind::Raw, Version::V4);
    raw_of_ipv6: each_member_gets_one_copy(Kind::Raw, Kind::Raw, Version::V6);
    udp_and_raw_of_ipv4: each_member_gets_one_copy(Kind::Udp, Kind::Raw, Version::V4);
    udp_and_raw_of_ipv6: each_member_gets_one_copy(Kind::Udp, Kind::Raw, Version::V6);
    raw_and_udp_of_ipv4: each_member_gets_one_copy(Kind::Raw, Kind::Udp, Version::V4);
    raw_and_udp_of_ipv6: each_member_gets_one_copy(Kind::Raw, Kind::Udp, Version::V6);
}

#[test]
fn the_queue_pairs_of_a_nic_join_and_leave_together() {
    in_namespace(|| {
        for kind in [Kind::Udp, Kind::Raw] {
            let (left, right) = wire(WIRE_MTU);
            let [group, _] = groups(Version::V4);
            let sender = Member::new(&left, open(kind, &left, left.v4.into()));
            let mut member = Member::new(&right, open(kind, &right, right.v4.into()));
            let idle = member.side.qp(QpType::Ud);
            member.attach(gid(group)).unwrap();
            right.run(|| member.side.nic.attach_multicast(idle, gid(group))).unwrap();
            let is_in = |host: &Host| {
                let text = host.run(|| std::fs::read_to_string("/proc/thread-self/net/igmp"));
                // As the kernel writes 239.1.2.3.
                text.unwrap().contains("030201EF")
            };
            assert!(is_in(&right) && !is_in(&left));
            // The idle queue pair is not ready to receive, which does not affect the other.
            let ah = sender.ah(gid(group));
            sender.send(ah, Qpn::MULTICAST, 0..3);
            member.receives(group, 0..3);
            member.side.nic.detach_multicast(idle, gid(group)).unwrap();
            assert!(is_in(&right), "there is a queue pair left");
            sender.send(ah, Qpn::MULTICAST, 3..6);
            member.receives(group, 3..6);
            member.detach(gid(group));
            assert!(!is_in(&right));
            assert_eq!(member.side.nic.counters().get(Counter::WrongState), 3);
            // A NIC that is dropped leaves its groups.
            member.attach(gid(group)).unwrap();
            drop(member);
            assert!(!is_in(&right));
        }
    });
}

#[test]
fn a_member_that_sleeps_is_woken() {
    in_namespace(|| {
        for kind in [Kind::Udp, Kind::Raw] {
            let (left, right) = wire(WIRE_MTU);
            let [group, _] = groups(Version::V4);
            let sender = Member::new(&left, open(kind, &left, left.v4.into()));
            let side = Side::new(open(kind, &right, right.v4.into()));
            let channel = side.nic.create_channel().unwrap();
            let cq = side.nic.create_cq_on(64, &channel).unwrap();
            let qp = side.nic.create_simple_qp(side.pd, cq, QpType::Ud).unwrap();
            side.nic.open_datagram(qp, &connect_attr(Mtu::M1024)).unwrap();
            right.run(|| side.nic.attach_multicast(qp, gid(group))).unwrap();
            side.recv(qp, 1, &[side.sge(0, RECEIVE_BYTES)]);
            side.nic.request_notify(cq, Notify::Next);
            sender.send(sender.ah(gid(group)), Qpn::MULTICAST, 0..1);
            let woken = channel.wait(Some(crate::stage::PROGRESS_TIMEOUT)).unwrap();
            assert_eq!(woken, Some(cq), "{kind:?}");
        }
    });
}

#[test]
fn wrappers_pass_groups_on() {
    in_namespace(|| {
        let (left, right) = wire(WIRE_MTU);
        let [group, _] = groups(Version::V6);
        let wrap = |link| {
            let spec = "dup=0xffffff:1".parse().unwrap();
            let link = tap::tap(link, Vec::new(), roce::time::Instant::ZERO).unwrap();
            fault::inject(link, &spec)
        };
        let sender = Member::new(&left, wrap(open(Kind::Udp, &left, left.v6.into())));
        let mut member = Member::new(&right, wrap(open(Kind::Raw, &right, right.v6.into())));
        member.attach(gid(group)).unwrap();
        sender.send(sender.ah(gid(group)), Qpn::MULTICAST, 0..4);
        // The impairment duplicates one message.
        let mut seen: Vec<u32> = (0..5).map(|_| member.receive().0).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 1, 2, 3]);
        member.detach(gid(group));
    });
}

#[test]
fn refused_group_is_named_with_the_reason() {
    in_namespace(|| {
        let (left, _right) = wire(WIRE_MTU);
        let member = Member::new(&left, open(Kind::Udp, &left, left.v4.into()));
        let error = |group: IpAddr| member.attach(gid(group)).unwrap_err().to_string();
        let not_a_group = "a multicast address is in ff00::/8 or 224.0.0.0/4";
        assert_eq!(error(left.v4.into()), not_a_group);
        assert_eq!(error(left.v6.into()), not_a_group);
        let other_version = "the group and the link are of different versions of IP";
        assert_eq!(error(groups(Version::V6)[0]), other_version);
        // Groups that were not joined do not keep the queue pair in use.
        member.side.nic.destroy_qp(member.qp).unwrap();
        let member = Member::new(&left, open(Kind::Raw, &left, second(&left, Version::V4, 9)));
        for number in 0..64 {
            member.attach(Ipv4Addr::new(239, 9, 9, number).into()).unwrap();
        }
        let error = member.attach(Ipv4Addr::new(239, 9, 9, 64).into());
        assert_eq!(error, Err(CreateError::Full));
    });
}
