//! Several links and several programs at one address, programs that sleep, and many queue pairs.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use roce::device::{Channel, Device};
use roce::engine::{Counter, CqHandle, Notify, QpHandle};
use roce::link::CHOSEN_MAX;
use roce::link::{OpenError, udp};
use roce::verbs::{Data, Mtu, QpType, SendFlags, SendOp, SendWr, Wc, WrId};
use roce::wire::ROCE_PORT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::common::netns::{Host, in_namespace, wire};
use crate::stage::{Kind, MEMORY, PROGRESS_TIMEOUT, SEND, Side, Stage, Version, WIRE_MTU};
use crate::stage::{connect, connect_attr, open, pair, pattern};

/// Sends something each way, reads and writes.
fn talk(a: &Side, a_qp: QpHandle, b: &Side, b_qp: QpHandle, rounds: u64) {
    for round in 0..rounds {
        let bytes = pattern(round, 3000);
        for (from, from_qp, to, to_qp) in [(a, a_qp, b, b_qp), (b, b_qp, a, a_qp)] {
            from.buffer.write(0, &bytes).unwrap();
            let (remote_addr, rkey) = (to.buffer.addr() + 8192, to.mr.rkey());
            to.recv(to_qp, round, &[to.sge(4096, 4096)]);
            from.send(
                from_qp,
                1,
                SendOp::Write { remote_addr, rkey, imm: None },
                &[from.sge(0, 3000)],
            );
            from.send(from_qp, 2, SEND, &[from.sge(0, 3000)]);
            from.send(from_qp, 3, SendOp::Read { remote_addr, rkey }, &[from.sge(12288, 3000)]);
            to.done(round);
            for id in 1..=3 {
                from.done(id);
            }
            assert!(to.read(4096, 3000) == bytes && to.read(8192, 3000) == bytes);
            assert!(from.read(12288, 3000) == bytes);
        }
    }
}

/// Waits until a side has seen packets to queue pairs of others.
#[track_caller]
fn sees_others(side: &Side) {
    let start = Instant::now();
    while side.nic.counters().get(Counter::NoQp) == 0 {
        side.check_alive(start);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns the number of packets that a raw link has sent.
fn sent_by_raw(side: &Side) -> u64 {
    side.link_counter("tx_frames") + side.link_counter("tx_through_kernel")
}

#[test]
fn two_programs_share_an_address_over_raw() {
    in_namespace(|| {
        for version in [Version::V4, Version::V6] {
            let (left, right) = wire(WIRE_MTU);
            let there = version.of(&right);
            let a = Side::new(open(Kind::Raw, &left, version.of(&left)));
            let [one, two] = [0, 1].map(|_| Side::new(open(Kind::Raw, &right, there)));
            let how = connect_attr(Mtu::M2048);
            let (a_one, one_qp) = pair(&a, &one, QpType::Rc, &how);
            talk(&a, a_one, &one, one_qp, 10);
            // The other saw nothing of it, and said nothing.
            assert_eq!(sent_by_raw(&two), 0, "{:?}", two.nic.link_counters());
            // Both at once.
            let (a_two, two_qp) = pair(&a, &two, QpType::Rc, &how);
            for _ in 0..3 {
                talk(&a, a_one, &one, one_qp, 3);
                talk(&a, a_two, &two, two_qp, 3);
            }
            // One of them ends; the other goes on.
            drop(one);
            talk(&a, a_two, &two, two_qp, 3);
            for side in [&a, &two] {
                let received = side.nic.counters().get(Counter::NoQp);
                assert_eq!(received, 0, "a packet for another NIC was received");
            }
        }
    });
}

#[test]
fn more_queue_pairs_than_a_filter_holds_are_heard_all_the_same() {
    in_namespace(|| {
        let (left, right) = wire(WIRE_MTU);
        let a = Side::new(open(Kind::Raw, &left, left.v4.into()));
        let [one, two] = [0, 1].map(|_| Side::new(open(Kind::Raw, &right, right.v4.into())));
        let how = connect_attr(Mtu::M1024);
        let pairs: Vec<_> = (0..CHOSEN_MAX + 2).map(|_| pair(&a, &one, QpType::Rc, &how)).collect();
        let (a_two, two_qp) = pair(&a, &two, QpType::Rc, &how);
        for (a_qp, one_qp) in [pairs[0], pairs[CHOSEN_MAX], pairs[CHOSEN_MAX + 1]] {
            talk(&a, a_qp, &one, one_qp, 1);
        }
        // With that number of queue pairs its filter passes everything, packets to the other NIC
        // included.
        talk(&a, a_two, &two, two_qp, 1);
        sees_others(&one);
        assert_eq!(two.nic.counters().get(Counter::NoQp), 0);
        // With fewer its filter drops them again.
        for (_, one_qp) in &pairs[..2] {
            one.nic.destroy_qp(*one_qp).unwrap();
        }
        let (a_qp, one_qp) = pairs[CHOSEN_MAX + 1];
        talk(&a, a_qp, &one, one_qp, 1);
        let heard = one.nic.counters().get(Counter::NoQp);
        talk(&a, a_two, &two, two_qp, 3);
        talk(&a, a_qp, &one, one_qp, 1);
        assert_eq!(one.nic.counters().get(Counter::NoQp), heard);
    });
}

#[test]
fn nics_of_a_user_share_an_address_over_udp() {
    in_namespace(|| {
        for version in [Version::V4, Version::V6] {
            let (left, right) = wire(WIRE_MTU);
            let open = |host: &Host| Side::new(open(Kind::Udp, host, version.of(host)));
            let here: Vec<Side> = (0..3).map(|_| open(&left)).collect();
            let mut there: Vec<Side> = (0..2).map(|_| open(&right)).collect();
            let how = connect_attr(Mtu::M2048);
            // Each of one host with each of the other, and those of a host among them.
            let mut pairs = Vec::new();
            for (a, b) in here.iter().flat_map(|a| there.iter().map(move |b| (a, b))) {
                pairs.push((a, b, pair(a, b, QpType::Rc, &how)));
            }
            for (a, b) in [(0, 1), (1, 2), (2, 0)] {
                let (a, b) = (&here[a], &here[b]);
                pairs.push((a, b, pair(a, b, QpType::Rc, &how)));
            }
            for _ in 0..3 {
                pairs.iter().for_each(|(a, b, (a_qp, b_qp))| talk(a, *a_qp, b, *b_qp, 2));
            }
            for side in here.iter().chain(&there) {
                assert_eq!(side.nic.counters().get(Counter::NoQp), 0, "a packet for another");
            }
            // The first one that was there ends; others come and talk with those that stay.
            drop(pairs);
            drop(there.remove(0));
            there.push(open(&right));
            for b in &there {
                let (a_qp, b_qp) = pair(&here[1], b, QpType::Rc, &how);
                talk(&here[1], a_qp, b, b_qp, 2);
            }
        }
    });
}

#[test]
fn address_that_is_not_shared_is_had_by_one() {
    in_namespace(|| {
        let (left, right) = wire(WIRE_MTU);
        for version in [Version::V4, Version::V6] {
            for raw_first in [false, true] {
                let address = version.of(&left);
                // With a raw link at the same address, and without.
                let raw = raw_first.then(|| open(Kind::Raw, &left, address));
                let mut alone = udp::Options::new(address);
                alone.is_shared = false;
                let one = left.run(|| udp::open(&alone).unwrap());
                let error = left.run(|| udp::open(&udp::Options::new(address)).unwrap_err());
                assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
                let text = error.to_string();
                assert!(
                    text.starts_with(&format!("UDP port 4791 of {address} is taken")),
                    "{text}"
                );
                drop((one, raw));
                // When it is given up, others can have it.
                drop(open(Kind::Udp, &left, address));
            }
        }
        drop(right);
    });
}

#[test]
fn udp_and_raw_share_an_address_whichever_comes_first() {
    in_namespace(|| {
        for version in [Version::V4, Version::V6] {
            for kinds in [[Kind::Udp, Kind::Raw], [Kind::Raw, Kind::Udp]] {
                let (left, right) = wire(WIRE_MTU);
                let there = version.of(&right);
                let a = Side::new(open(Kind::Udp, &left, version.of(&left)));
                let [one, two] = kinds.map(|kind| Side::new(open(kind, &right, there)));
                let how = connect_attr(Mtu::M4096);
                let (a_one, one_qp) = pair(&a, &one, QpType::Rc, &how);
                let (a_two, two_qp) = pair(&a, &two, QpType::Rc, &how);
                talk(&a, a_one, &one, one_qp, 5);
                talk(&a, a_two, &two, two_qp, 5);
                // The socket at the address sees what is for the other; the other has a filter.
                let [udp, raw] = if kinds[0] == Kind::Udp { [&one, &two] } else { [&two, &one] };
                sees_others(udp);
                assert_eq!(raw.nic.counters().get(Counter::NoQp), 0);
            }
        }
    });
}

#[test]
fn a_raw_link_keeps_its_port_quiet_beside_a_udp_link_at_another_address() {
    in_namespace(|| {
        let (left, right) = wire(WIRE_MTU);
        let (v4, v6) = (Ipv4Addr::new(10, 9, 0, 7), Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 7));
        right.ip("address add 10.9.0.7/24 dev right");
        right.ip("address add fd09::7/64 dev right nodad");
        let udp = [IpAddr::V4(right.v4), IpAddr::V6(right.v6)];
        let _udp = udp.map(|address| open(Kind::Udp, &right, address));
        refuses_each_time(&right);
        for (from, to) in [(left.v4.into(), v4.into()), (left.v6.into(), v6.into())] {
            // The first answers may be late: the hosts look for each other's address.
            assert!((0..10).any(|_| is_refused(&left, from, to)), "{to}");
            let raw = open(Kind::Raw, &right, to);
            assert!(!is_refused(&left, from, to), "{to}");
            // And a link over UDP can be had there too, and hears what is for it.
            let a = Side::new(open(Kind::Udp, &left, from));
            let b = Side::new(open(Kind::Udp, &right, to));
            let (a_qp, b_qp) = pair(&a, &b, QpType::Rc, &connect_attr(Mtu::M1024));
            talk(&a, a_qp, &b, b_qp, 1);
            drop(raw);
        }
    });
}

/// Whether the kernel of a peer says that its port is unreachable, which it tells a connected
/// socket.
fn is_refused(host: &Host, from: IpAddr, to: IpAddr) -> bool {
    let socket = host.run(|| UdpSocket::bind((from, 0)).unwrap());
    socket.connect((to, ROCE_PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    socket.send(b"?").unwrap();
    socket.recv(&mut [0]).unwrap_err().kind() == ErrorKind::ConnectionRefused
}

/// Lets the kernel of a host say each time that a port is unreachable.
fn refuses_each_time(host: &Host) {
    for limit in ["ipv4/icmp_ratelimit", "ipv6/icmp/ratelimit"] {
        host.run(|| std::fs::write(format!("/proc/sys/net/{limit}"), "0").unwrap());
    }
}

#[test]
fn a_raw_link_takes_the_port_over_when_a_udp_link_gives_it_up() {
    in_namespace(|| {
        for version in [Version::V4, Version::V6] {
            for polls in [false, true] {
                let (left, right) = wire(WIRE_MTU);
                let (from, to) = (version.of(&left), version.of(&right));
                refuses_each_time(&right);
                let udp = Side::new(open(Kind::Udp, &right, to));
                // Two of them, either of which may take it.
                let raw = [0, 1].map(|_| Side::new(open(Kind::Raw, &right, to)));
                let start = Instant::now();
                let wait_until = |refused: bool| {
                    while is_refused(&left, from, to) != refused {
                        let polled = if polls { raw[0].nic.poll_cq(raw[0].cq, &mut []) } else { 0 };
                        assert_eq!(polled, 0);
                        raw[0].check_alive(start);
                    }
                };
                wait_until(false);
                drop(udp);
                wait_until(false);
                // It stays so, and a link over UDP can be had again, and hears what is for it.
                assert!((0..3).all(|_| !is_refused(&left, from, to)));
                let a = Side::new(open(Kind::Udp, &left, from));
                let b = Side::new(open(Kind::Udp, &right, to));
                let (a_qp, b_qp) = pair(&a, &b, QpType::Rc, &connect_attr(Mtu::M1024));
                talk(&a, a_qp, &b, b_qp, 1);
                drop(raw);
                drop((a, b));
                assert!(is_refused(&left, from, to), "no NIC is left");
            }
        }
    });
}

/// Sleeps on the channel's descriptor until there is a completion.
fn sleep_for(side: &Side, channel: &Channel, cq: CqHandle, notify: Notify) -> Wc {
    let mut wc = [Wc::default()];
    loop {
        side.nic.request_notify(cq, notify);
        // One that came before the event was asked for.
        if side.nic.poll_cq(cq, &mut wc) == 1 {
            return wc[0];
        }
        let mut fds = [PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN)];
        let timeout = Timespec::try_from(PROGRESS_TIMEOUT).unwrap();
        assert_eq!(poll(&mut fds, Some(&timeout)).unwrap(), 1, "no thread was woken");
        assert_eq!(channel.wait(Some(PROGRESS_TIMEOUT)).unwrap(), Some(cq));
        if side.nic.poll_cq(cq, &mut wc) == 1 {
            return wc[0];
        }
    }
}

/// One end of a pingpong whose ends sleep for every completion.
fn sleep_and_answer(side: &Side, end: &(Channel, CqHandle, QpHandle), first: bool) {
    const ROUNDS: u64 = 300;
    const LENGTH: usize = 2000;
    let (channel, cq, qp) = end;
    let send = |round: u64| {
        side.buffer.write(0, &pattern(round, LENGTH)).unwrap();
        side.send(*qp, 1000 + round, SEND, &[side.sge(0, LENGTH)]);
    };
    let recv = |round: u64| side.recv(*qp, round, &[side.sge(8192, LENGTH)]);
    let done = |id: u64, other: &mut Vec<u64>| {
        while !other.contains(&id) {
            let wc = sleep_for(side, channel, *cq, Notify::Next);
            assert!(wc.is_success(), "{wc:?}");
            other.push(wc.id.0);
        }
        other.retain(|known| *known != id);
    };
    let mut ids = Vec::new();
    recv(0);
    for round in 0..ROUNDS {
        if first {
            send(round);
        }
        done(round, &mut ids);
        assert!(side.read(8192, LENGTH) == pattern(round, LENGTH), "round {round}");
        recv(round + 1);
        if !first {
            send(round);
        }
        done(1000 + round, &mut ids);
    }
}

#[test]
fn programs_that_sleep_are_woken() {
    in_namespace(|| {
        let Stage { a, b, .. } = &Stage::new([Kind::Udp, Kind::Udp], Version::V4);
        let make = |side: &Side| {
            let channel = side.nic.create_channel().unwrap();
            let cq = side.nic.create_cq_on(64, &channel).unwrap();
            let qp = side.nic.create_simple_qp(side.pd, cq, QpType::Rc).unwrap();
            (channel, cq, qp)
        };
        let (a_end, b_end) = (make(a), make(b));
        connect(a, a_end.2, b, b_end.2, &connect_attr(Mtu::M1024));
        std::thread::scope(|scope| {
            scope.spawn(|| sleep_and_answer(a, &a_end, true));
            scope.spawn(|| sleep_and_answer(b, &b_end, false));
        });
    });
}

/// Waits for the next completion in a call, which may receive packets itself.
fn wait_for(side: &Side, channel: &Channel, cq: CqHandle) -> Wc {
    let mut wc = [Wc::default()];
    loop {
        side.nic.request_notify(cq, Notify::Next);
        if side.nic.poll_cq(cq, &mut wc) == 1 {
            return wc[0];
        }
        assert_eq!(channel.wait(Some(PROGRESS_TIMEOUT)).unwrap(), Some(cq));
        if side.nic.poll_cq(cq, &mut wc) == 1 {
            return wc[0];
        }
    }
}

#[test]
fn nic_of_a_program_that_no_longer_waits_answers() {
    in_namespace(|| {
        // The other host stays: without it the interface of this one goes away.
        let (host, _peer) = wire(WIRE_MTU);
        let [a, b] = [0, 1].map(|_| Side::new(open(Kind::Udp, &host, host.v4.into())));
        let [a_end, b_end] = [&a, &b].map(|side| {
            let channel = side.nic.create_channel().unwrap();
            let cq = side.nic.create_cq_on(64, &channel).unwrap();
            (side.nic.create_simple_qp(side.pd, cq, QpType::Rc).unwrap(), channel, cq)
        });
        connect(&a, a_end.0, &b, b_end.0, &connect_attr(Mtu::M1024));
        let (remote_addr, rkey) = (b.buffer.addr(), b.mr.rkey());
        for round in 0..300 {
            b.recv(b_end.0, round, &[b.sge(8192, 64)]);
            std::thread::scope(|scope| {
                // Its wait ends while it polls the NIC itself, mostly.
                scope.spawn(|| assert!(wait_for(&b, &b_end.1, b_end.2).is_success()));
                a.send(a_end.0, round, SEND, &[a.sge(0, 64)]);
                assert!(wait_for(&a, &a_end.1, a_end.2).is_success());
            });
            // Now `b` does nothing.
            let bytes = pattern(round, 64);
            b.buffer.write(0, &bytes).unwrap();
            a.send(a_end.0, round, SendOp::Read { remote_addr, rkey }, &[a.sge(4096, 64)]);
            assert!(wait_for(&a, &a_end.1, a_end.2).is_success());
            assert!(a.read(4096, 64) == bytes, "round {round}");
        }
        assert!(a.link_counter("shm_packets_sent") >= 300);
    });
}

#[test]
fn only_what_is_solicited_wakes() {
    in_namespace(|| {
        let Stage { a, b, .. } = &Stage::new([Kind::Udp, Kind::Udp], Version::V6);
        let channel = b.nic.create_channel().unwrap();
        let cq = b.nic.create_cq_on(64, &channel).unwrap();
        let b_qp = b.nic.create_simple_qp(b.pd, cq, QpType::Rc).unwrap();
        let a_qp = a.qp(QpType::Rc);
        connect(a, a_qp, b, b_qp, &connect_attr(Mtu::M1024));
        (0..4).for_each(|id| b.recv(b_qp, id, &[b.sge(0, 64)]));
        b.nic.request_notify(cq, Notify::Solicited);
        (0..3).for_each(|id| a.send(a_qp, id, SEND, &[a.sge(0, 64)]));
        for id in 0..3 {
            a.done(id);
        }
        assert_eq!(channel.wait(Some(Duration::from_millis(20))).unwrap(), None);
        let sges = [a.sge(0, 64)];
        let wr = SendWr::new(WrId(3), SEND, Data::Gather(&sges));
        let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
        a.nic.post_send(a_qp, &SendWr { flags, ..wr }).unwrap();
        assert_eq!(channel.wait(Some(PROGRESS_TIMEOUT)).unwrap(), Some(cq));
        let mut wcs = [Wc::default(); 8];
        assert_eq!(b.nic.poll_cq(cq, &mut wcs), 4);
    });
}

const QPS: usize = 64;
const MESSAGES: usize = 16;
const LENGTH: usize = 512;

/// Returns the offset from which a message is sent; it is received half the memory behind.
fn place(qp: usize, message: usize) -> usize {
    (qp * MESSAGES + message) * LENGTH
}

/// Uses all queue pairs of a side at once; messages follow from `seed`, and those of the peer from
/// `peer_seed`.
fn use_all(side: &Side, qps: &[QpHandle], seed: u64, peer_seed: u64) {
    let (start, half) = (Instant::now(), MEMORY / 2);
    let bytes_of = |seed: u64, place: usize| pattern(seed + place as u64, LENGTH);
    for message in 0..MESSAGES {
        for (index, qp) in qps.iter().enumerate() {
            let at = place(index, message);
            side.recv(*qp, 1000 + message as u64, &[side.sge(half + at, LENGTH)]);
            side.buffer.write(at, &bytes_of(seed, at)).unwrap();
            side.send(*qp, message as u64, SEND, &[side.sge(at, LENGTH)]);
        }
    }
    let numbers: Vec<_> = qps.iter().map(|qp| side.nic.qp_number(*qp)).collect();
    let (mut received, mut sent) = ([0; QPS], [0; QPS]);
    let mut wcs = [Wc::default(); 64];
    while received.iter().chain(&sent).any(|count| *count < MESSAGES as u64) {
        let count = side.nic.poll_cq(side.cq, &mut wcs);
        for wc in &wcs[..count] {
            assert!(wc.is_success(), "{wc:?}");
            let index = numbers.iter().position(|qp| *qp == Some(wc.qp_num)).unwrap();
            let counts = if wc.id.0 >= 1000 { &mut received } else { &mut sent };
            assert_eq!(wc.id.0 % 1000, counts[index], "each queue pair keeps its order");
            counts[index] += 1;
        }
        side.check_alive(start);
    }
    for at in (0..QPS * MESSAGES).map(|number| number * LENGTH) {
        assert!(side.read(half + at, LENGTH) == bytes_of(peer_seed, at), "what is at {at}");
    }
}

fn many(kinds: [Kind; 2], version: Version) {
    let Stage { a, b, .. } = &Stage::new(kinds, version);
    let pairs = (0..QPS).map(|_| pair(a, b, QpType::Rc, &connect_attr(Mtu::M256)));
    let (a_qps, b_qps): (Vec<_>, Vec<_>) = pairs.unzip();
    std::thread::scope(|scope| {
        scope.spawn(|| use_all(a, &a_qps, 1 << 32, 2 << 32));
        scope.spawn(|| use_all(b, &b_qps, 2 << 32, 1 << 32));
    });
}

namespace_tests! {
    many_queue_pairs_on_udp: many([Kind::Udp, Kind::Udp], Version::V4);
    many_queue_pairs_on_raw: many([Kind::Raw, Kind::Raw], Version::V6);
}
