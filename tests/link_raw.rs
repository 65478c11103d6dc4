//! Raw links on a wire of the test's own: two network namespaces and a veth between them, without
//! privileges.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and a wire has a clock"
)]

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;
use std::time::Duration;

use roce::link::OpenError;
use roce::link::raw::{self, Config};
use roce::link::{Link, Receiver, Sender, fault, tap};
use roce::time::Instant;
use roce::wire::{
    Batch, Bits, BthRepr, EtherType, Frame, Gid, IcrcVerdict, LinkType, MacAddr, Network, Opcode,
    Path, Psn, Qpn, ROCE_PORT, Received,
};
use socket2::{Domain, Protocol, Socket, Type};

mod common;
use common::netns::{Host, in_namespace, wire};
use common::process::Command;
use common::tmp::Scratch;

fn now() -> Instant {
    static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
    Instant::from_nanos(START.elapsed().as_nanos() as u64)
}

fn gid(address: impl Into<IpAddr>) -> Gid {
    match address.into() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn path(source: impl Into<IpAddr>, destination: impl Into<IpAddr>) -> Path {
    Path {
        source: gid(source),
        destination: gid(destination),
        source_port: 0xc123,
        traffic_class: 0x6a,
        hop_limit: 17,
        sl: 5,
        flow_label: Bits::low(0x5_a5a5),
    }
}

/// A packet to queue pair `qp` with `payload` bytes of payload.
fn packet(qp: u32, psn: u32, payload: usize) -> Vec<u8> {
    let bth = BthRepr::new(Opcode::RC_SEND_MIDDLE, Qpn::new(qp), Psn::new(psn)).emit();
    let payload = (0..payload).map(|at| (at as u32).wrapping_mul(psn + 7) as u8);
    bth.as_bytes().iter().copied().chain(payload).collect()
}

/// Sends packets in batches of 64.
fn send(sender: &mut dyn Sender, path: &Path, packets: &[Vec<u8>]) {
    let mut batch = Batch::new(64);
    for some in packets.chunks(64) {
        batch.clear();
        assert!(some.iter().all(|packet| batch.push(path, packet)));
        sender.send(now(), &mut batch).unwrap();
    }
}

/// A packet as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Arrived {
    source: Gid,
    destination: Gid,
    source_port: u16,
    ecn: u8,
    network: Vec<u8>,
    packet: Vec<u8>,
}

impl From<&Received<'_>> for Arrived {
    fn from(received: &Received<'_>) -> Self {
        Self {
            source: received.source,
            destination: received.destination,
            source_port: received.source_port,
            ecn: received.ecn,
            network: received.network.to_vec(),
            packet: received.packet.to_vec(),
        }
    }
}

/// Takes in `count` packets, and then all that come within a moment.
fn receive(receiver: &mut dyn Receiver, count: usize) -> Vec<Arrived> {
    let mut arrived = Vec::new();
    let deadline = now().saturating_add(Duration::from_secs(5));
    let mut moment = None;
    loop {
        receiver.receive(now()).unwrap();
        receiver.for_each(&mut |received| arrived.push(Arrived::from(received)));
        if arrived.len() >= count && moment.is_none() {
            moment = Some(now().saturating_add(Duration::from_millis(20)));
        }
        if moment.is_some_and(|moment| now() > moment) || now() > deadline {
            return arrived;
        }
        std::thread::yield_now();
    }
}

fn bytes(arrived: &[Arrived]) -> Vec<Vec<u8>> {
    arrived.iter().map(|arrived| arrived.packet.clone()).collect()
}

fn counter(counters: &[(&'static str, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}")).1
}

fn open(host: &Host) -> Link {
    open_with(host, |_| {})
}

fn open_with(host: &Host, change: impl FnOnce(&mut Config) + Send) -> Link {
    host.run(|| {
        let mut config = Config::new(host.interface);
        config.frames = 64;
        change(&mut config);
        raw::open(&config).unwrap()
    })
}

/// Sees every frame that enters or leaves a host.
struct Witness(Socket);

impl Witness {
    fn new(host: &Host) -> Self {
        let every = i32::from((libc::ETH_P_ALL as u16).to_be());
        let socket =
            host.run(|| Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(every))));
        let socket = socket.unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        // As much as may be had.
        socket.set_recv_buffer_size(1 << 24).unwrap();
        Self(socket)
    }

    fn frames(&self) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; 1 << 17];
        let mut frames = Vec::new();
        while let Ok(len) = (&self.0).read(&mut buffer) {
            frames.push(buffer[..len].to_vec());
        }
        frames
    }
}

/// Whether a frame is ICMP, or an error of ICMPv6, by which neighbors are looked for too.
fn is_complaint(frame: &[u8]) -> bool {
    match frame[12..14] {
        [0x08, 0x00] => frame[14 + 9] == 1,
        [0x86, 0xdd] => frame[14 + 6] == 58 && frame[14 + 40] < 128,
        _ => false,
    }
}

/// The RoCE frames among those that were seen, all of them sound; and that no ICMP error answered
/// any.
fn roce(frames: &[Vec<u8>]) -> Vec<Frame<'_>> {
    let mut found = Vec::new();
    for bytes in frames {
        let frame = Frame::parse(LinkType::ETHERNET, bytes, ROCE_PORT);
        assert!(!is_complaint(bytes), "ICMP: {bytes:x?}");
        if frame.packet().is_some() {
            assert_eq!((frame.icrc(), frame.error()), (Some(IcrcVerdict::Ok), None));
            found.push(frame);
        }
    }
    found
}

#[test]
fn packets_pass_with_every_header_as_told() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        // They have met; now they forget.
        a.ip("neighbor flush dev left");
        let witness = Witness::new(&b);
        let (mut here, mut there) = (open(&a), open(&b));
        assert_eq!(here.port.name, "raw:left");
        assert_eq!(here.port.gids, [gid(a.v4), gid(a.v6), gid(a.link_local)]);
        let ways = [path(a.v4, b.v4), path(a.v6, b.v6), path(a.link_local, b.link_local)];
        let mut expected = 0;
        for way in ways {
            for psn in 0..20 {
                let packets = [packet(7, psn, 4 * psn as usize)];
                send(&mut *here.sender, &way, &packets);
                let arrived = receive_one(&mut *there.receiver);
                assert_eq!(bytes(&arrived), packets);
                let Arrived { source, destination, source_port, ecn, network, .. } = &arrived[0];
                assert_eq!((*source, *destination), (way.source, way.destination));
                assert_eq!((*source_port, *ecn), (0xc123, 2));
                let hops = if network.len() == 20 { network[8] } else { network[7] };
                assert_eq!(hops, 17);
                if network.len() == 40 {
                    let word = u32::from_be_bytes(*network.first_chunk().unwrap());
                    assert_eq!(word & 0xf_ffff, 0x5_a5a5, "the flow label");
                }
                expected += 1;
                // Until the next query of the kernel.
                std::thread::sleep(Duration::from_millis(1));
            }
            // And back.
            let back = Path { source: way.destination, destination: way.source, ..way };
            send(&mut *there.sender, &back, &[packet(8, 1, 64)]);
            assert_eq!(receive_one(&mut *here.receiver).len(), 1);
            expected += 1;
        }
        let frames = witness.frames();
        let seen = roce(&frames);
        assert_eq!(seen.len(), expected);
        let counters = here.sender.counters();
        // Three addresses that the kernel had to look for; the rest went as frames.
        assert!(counter(&counters, "tx_through_kernel") >= 3, "{counters:?}");
        assert!(counter(&counters, "tx_frames") >= 50, "{counters:?}");
        assert_eq!(counter(&counters, "tx_refused"), 0);
        // Identifications count up, whichever way a packet went.
        let ids: Vec<u16> = seen.iter().filter_map(|frame| id_of(frame, a.v4)).collect();
        assert_eq!(ids, (0..20).collect::<Vec<u16>>());
    });
}

fn receive_one(receiver: &mut dyn Receiver) -> Vec<Arrived> {
    let deadline = now().saturating_add(Duration::from_secs(5));
    while receiver.receive(now()).unwrap() == 0 {
        assert!(now() < deadline, "nothing arrives: {:?}", receiver.counters());
        std::thread::yield_now();
    }
    let mut arrived = Vec::new();
    receiver.for_each(&mut |received| arrived.push(Arrived::from(received)));
    arrived
}

/// The identification of an IPv4 frame from `source`.
fn id_of(frame: &Frame<'_>, source: Ipv4Addr) -> Option<u16> {
    match frame.network()? {
        Network::Ipv4 { header, .. } if header.source() == source => Some(header.id()),
        _ => None,
    }
}

/// Some packets of a message: one length, a shorter last, and then others.
fn message() -> Vec<Vec<u8>> {
    let lengths = [1040, 1024, 1024, 1024, 1024, 1024, 300, 1024, 1024, 4, 8, 8, 8, 4, 0, 0];
    let lengths = lengths.iter().cycle().take(200);
    lengths.zip(0..).map(|(len, psn)| packet(9, psn, *len)).collect()
}

#[test]
fn trains_pass_whole_and_are_taken_apart_in_order() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let (mut here, mut there) = (open_with(&a, |_| {}), open_with(&b, |c| c.frames = 1000));
        for way in [path(a.v4, b.v4), path(a.v6, b.v6)] {
            // The neighbor is known from here on.
            send(&mut *here.sender, &way, &[packet(9, 0, 4)]);
            receive(&mut *there.receiver, 1);
            let before = counter(&here.sender.counters(), "tx_frames");
            send(&mut *here.sender, &way, &message());
            let arrived = receive(&mut *there.receiver, 200);
            assert_eq!(bytes(&arrived), message());
            let frames = counter(&here.sender.counters(), "tx_frames") - before;
            assert!(frames < 140, "{frames} frames for 200 packets");
            // Each has the header that it would have had by itself.
            for arrived in &arrived {
                let udp = 8 + arrived.packet.len() + 4;
                let network = &arrived.network;
                let at = if network.len() == 20 { 2 } else { 4 };
                let len = u16::from_be_bytes([network[at], network[at + 1]]);
                let whole = if network.len() == 20 { udp + 20 } else { udp };
                assert_eq!(usize::from(len), whole);
            }
            if arrived[0].network.len() == 20 {
                let id = |arrived: &Arrived| {
                    u16::from_be_bytes([arrived.network[4], arrived.network[5]])
                };
                assert!(arrived.windows(2).all(|two| id(&two[1]) == id(&two[0]).wrapping_add(1)));
            }
        }
        let counters = there.receiver.counters();
        assert!(counters.iter().all(|(_, count)| *count == 0), "{counters:?}");
    });
}

#[test]
fn trains_that_are_cut_on_the_wire_are_sound_packet_by_packet() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        // Frames that are longer are cut before they are on the wire.
        a.ip("link set left gso_max_size 500");
        let long: Vec<_> =
            message().into_iter().filter(|packet| packet.len() > 200).take(60).collect();
        let witness = Witness::new(&b);
        let (mut here, mut there) = (open(&a), open_with(&b, |config| config.frames = 1000));
        for way in [path(a.v4, b.v4), path(a.v6, b.v6)] {
            send(&mut *here.sender, &way, &[packet(9, 0, 4)]);
            receive(&mut *there.receiver, 1);
            witness.frames();
            send(&mut *here.sender, &way, &long);
            assert_eq!(bytes(&receive(&mut *there.receiver, long.len())), long);
            let frames = witness.frames();
            assert_eq!(roce(&frames).len(), long.len(), "{:?}", here.sender.counters());
        }
    });
}

#[test]
fn a_wrong_icrc_is_refused_and_counted() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let (here, mut there) = (open(&a), open(&b));
        let spec = "corrupt=9:3:1,corrupt=9:50:1,dup=9:4,drop=9:5:1".parse().unwrap();
        let mut here = fault::inject(here, &spec);
        let packets: Vec<_> = (0..60).map(|psn| packet(9, psn, 256)).collect();
        let way = path(a.v4, b.v4);
        send(&mut *here.sender, &way, &packets);
        let arrived = receive(&mut *there.receiver, 58);
        let psn = |packet: &Vec<u8>| u32::from_be_bytes([0, packet[9], packet[10], packet[11]]);
        let psns: Vec<u32> = bytes(&arrived).iter().map(psn).collect();
        let mut expected: Vec<u32> = (0..60).filter(|psn| ![3, 5, 50].contains(psn)).collect();
        expected.insert(4, 4);
        assert_eq!(psns, expected);
        assert_eq!(counter(&there.receiver.counters(), "rx_icrc"), 2);
        assert_eq!(counter(&here.sender.counters(), "fault_corrupted"), 2);
    });
}

#[test]
fn frames_that_are_no_roce_of_ours_are_refused_by_name() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let mut there = open(&b);
        let raw = a.run(|| {
            let raw = Some(Protocol::from(libc::IPPROTO_RAW));
            let socket = Socket::new(Domain::IPV4, Type::RAW, raw).unwrap();
            let to = std::net::SocketAddr::from((b.v4, 0)).into();
            move |frame: &[u8]| socket.send_to(frame, &to).map(|_| ())
        });
        let way = path(a.v4, b.v4);
        let mut sealed = packet(9, 1, 16);
        sealed.extend([0; 4]);
        let headers = way.seal(&mut sealed);
        let good = [headers.as_bytes().0, headers.as_bytes().1, &sealed].concat();
        let with = |changes: &[(usize, u8)]| {
            let mut frame = good.clone();
            changes.iter().for_each(|(at, byte)| frame[*at] = *byte);
            frame
        };
        raw(&good).unwrap();
        assert_eq!(receive(&mut *there.receiver, 1).len(), 1);
        // Another port and another protocol do not pass the filter at all.
        raw(&with(&[(23, 0xb8)])).unwrap();
        raw(&with(&[(9, 6)])).unwrap();
        // Part of a datagram; a UDP length that is not the datagram's; too short for a BTH and an
        // ICRC; damage.
        raw(&with(&[(6, 0x20)])).unwrap();
        raw(&with(&[(25, good[25] - 1)])).unwrap();
        raw(&[&with(&[(25, 23)])[..20], &with(&[(25, 23)])[20..43]].concat()).unwrap();
        raw(&with(&[(40, 1)])).unwrap();
        assert!(receive(&mut *there.receiver, 1).is_empty());
        let counters = there.receiver.counters();
        for name in ["rx_fragment", "rx_udp_length", "rx_short", "rx_icrc"] {
            assert_eq!(counter(&counters, name), 1, "{name}: {counters:?}");
        }
        assert_eq!(counters.iter().map(|(_, count)| count).sum::<u64>(), 4, "{counters:?}");
    });
}

#[test]
fn programs_share_an_address_and_a_filter_keeps_them_apart() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let witness = Witness::new(&b);
        let (mut here, mut one, mut two) = (open(&a), open(&b), open(&b));
        let way = path(a.v4, b.v4);
        let both = [packet(1, 0, 16), packet(2, 0, 20), packet(1, 1, 32)];
        send(&mut *here.sender, &way, &both);
        assert_eq!(bytes(&receive(&mut *one.receiver, 3)), both);
        assert_eq!(bytes(&receive(&mut *two.receiver, 3)), both);
        one.receiver.set_qpn_filter(Some(&[Qpn::new(5), Qpn::new(1)]));
        two.receiver.set_qpn_filter(Some(&[Qpn::new(2)]));
        send(&mut *here.sender, &way, &both);
        assert_eq!(bytes(&receive(&mut *one.receiver, 2)), [&both[0][..], &both[2]]);
        assert_eq!(bytes(&receive(&mut *two.receiver, 1)), [&both[1][..]]);
        two.receiver.set_qpn_filter(Some(&[]));
        one.receiver.set_qpn_filter(None);
        let v6 = path(a.v6, b.v6);
        send(&mut *here.sender, &v6, &both);
        assert_eq!(bytes(&receive(&mut *one.receiver, 3)), both);
        assert!(receive(&mut *two.receiver, 0).is_empty());
        // A program with an ordinary socket at the address is not robbed.
        let plain = b.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.bind(&std::net::SocketAddr::from((b.v4, ROCE_PORT)).into()).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            socket
        });
        send(&mut *here.sender, &way, &both[..1]);
        assert_eq!((&plain).read(&mut [0; 100]).unwrap(), 12 + 16 + 4);
        roce(&witness.frames());
    });
}

#[test]
fn packets_to_the_own_address_arrive_at_every_link_of_the_host() {
    in_namespace(|| {
        let (a, b) = wire(4200);
        let witness = Witness::new(&b);
        let (mut one, mut two) = (open(&a), open(&a));
        one.receiver.set_qpn_filter(Some(&[Qpn::new(1)]));
        two.receiver.set_qpn_filter(Some(&[Qpn::new(2)]));
        // More than 64 KiB, in trains, from each link to itself and to the other.
        let to = |qp: u32| (0..20).map(|psn| packet(qp, psn, 4096)).collect::<Vec<_>>();
        for (from, qp) in [(1, 1), (1, 2), (2, 1)] {
            for way in [path(a.v4, a.v4), path(a.v6, a.v6), path(a.link_local, a.link_local)] {
                let sender = if from == 1 { &mut one.sender } else { &mut two.sender };
                send(&mut **sender, &way, &to(qp));
                let receiver = if qp == 1 { &mut one.receiver } else { &mut two.receiver };
                assert_eq!(bytes(&receive(&mut **receiver, 20)), to(qp), "{from} to {qp}");
            }
        }
        assert!(
            receive(&mut *one.receiver, 0).is_empty() && receive(&mut *two.receiver, 0).is_empty()
        );
        assert_eq!(roce(&witness.frames()).len(), 0, "the wire carries none of it");
    });
}

#[test]
fn no_icmp_port_unreachable_is_sent() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let witness = Witness::new(&b);
        let mut here = open(&a);
        let complaints = || witness.frames().iter().filter(|frame| is_complaint(frame)).count();
        let ways = [path(a.v4, b.v4), path(a.v6, b.v6)];
        // With no link there, the kernel of the other side complains of IPv4. Of IPv6 it drops
        // packets whose UDP checksum is zero before it looks at their port.
        for way in &ways {
            send(&mut *here.sender, way, &[packet(9, 1, 64)]);
        }
        assert_eq!(complaints(), 1);
        let mut there = open(&b);
        for way in &ways {
            send(&mut *here.sender, way, &message());
            receive(&mut *there.receiver, 1);
        }
        assert_eq!(complaints(), 0);
    });
}

#[test]
fn frames_are_tagged_with_a_vlan_and_a_priority() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let (sent, macs) = (Witness::new(&a), [mac(&a), mac(&b)]);
        let on = |host: &Host, vlan: Option<u16>, other: (IpAddr, MacAddr)| {
            open_with(host, move |config| {
                config.vlan = vlan;
                config.neighbors = vec![other];
                config.frames = 1000;
            })
        };
        let mut here = on(&a, Some(5), (b.v4.into(), macs[1]));
        let mut there = on(&b, Some(5), (a.v4.into(), macs[0]));
        let (mut plain, mut six) =
            (on(&b, None, (a.v4.into(), macs[0])), on(&b, Some(6), (a.v4.into(), macs[0])));
        let way = path(a.v4, b.v4);
        send(&mut *here.sender, &way, &message());
        assert_eq!(bytes(&receive(&mut *there.receiver, 200)), message());
        let frames = sent.frames();
        let tagged: Vec<_> = frames.iter().filter(|frame| frame[12..14] == [0x81, 0]).collect();
        assert!(!tagged.is_empty());
        for frame in tagged {
            assert_eq!(u16::from_be_bytes([frame[14], frame[15]]), 5 << 13 | 5);
            assert_eq!(frame[16..18], EtherType::IPV4.0.to_be_bytes());
        }
        for other in [&mut plain, &mut six] {
            assert!(receive(&mut *other.receiver, 0).is_empty());
            assert!(counter(&other.receiver.counters(), "rx_other_vlan") > 0);
        }
        // An unknown neighbor cannot be reached: there is no kernel to ask.
        send(&mut *here.sender, &path(a.v6, b.v6), &[packet(1, 1, 0)]);
        assert_eq!(counter(&here.sender.counters(), "tx_unresolved"), 1);
        // A priority without a VLAN is for everybody.
        let mut here = on(&a, Some(0), (b.v4.into(), macs[1]));
        send(&mut *here.sender, &way, &[packet(1, 1, 0)]);
        assert_eq!(receive(&mut *plain.receiver, 1).len(), 1);
        assert!(receive(&mut *six.receiver, 0).is_empty());
    });
}

#[test]
fn a_group_is_joined_on_a_vlan_too() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let on = |host: &Host, vlan| open_with(host, move |config| config.vlan = vlan);
        let (mut here, mut there, mut plain) = (on(&a, Some(5)), on(&b, Some(5)), on(&b, None));
        let sent = Witness::new(&a);
        let v4 = (path(a.v4, Ipv4Addr::new(239, 1, 129, 3)), [0x01, 0x00, 0x5e, 1, 129, 3]);
        let v6: IpAddr = "ff05::1:2:3".parse().unwrap();
        for (way, mac) in [v4, (path(a.v6, v6), [0x33, 0x33, 0, 2, 0, 3])] {
            let group = way.destination;
            let packets: Vec<_> = (0..3).map(|psn| packet(0xff_ffff, psn, 64)).collect();
            send(&mut *here.sender, &way, &packets);
            for link in [&mut there, &mut plain] {
                assert!(receive(&mut *link.receiver, 0).is_empty(), "it is not in the group");
                b.run(|| link.receiver.join(group)).unwrap();
            }
            sent.frames();
            send(&mut *here.sender, &way, &packets);
            assert_eq!(bytes(&receive(&mut *there.receiver, 3)), packets);
            let frames = sent.frames();
            let tagged: Vec<_> = frames.iter().filter(|frame| frame[12..14] == [0x81, 0]).collect();
            assert!(!tagged.is_empty() && tagged.iter().all(|frame| frame[..6] == mac));
            // A packet to the group that is for one queue pair is for no queue pair.
            send(&mut *here.sender, &way, &[packet(9, 1, 64)]);
            assert!(receive(&mut *there.receiver, 0).is_empty());
            assert!(receive(&mut *plain.receiver, 0).is_empty());
            there.receiver.leave(group);
            send(&mut *here.sender, &way, &packets);
            assert!(receive(&mut *there.receiver, 0).is_empty(), "it has left");
            plain.receiver.leave(group);
        }
        assert!(counter(&plain.receiver.counters(), "rx_other_vlan") > 0);
    });
}

fn mac(host: &Host) -> MacAddr {
    let interface = host.interface;
    let command = || Command::new("ip").args(["-br", "link", "show", interface]).output().unwrap();
    let text = String::from_utf8(host.run(command).stdout).unwrap();
    let mac = text.split_whitespace().nth(2).unwrap();
    let bytes: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
    MacAddr(bytes.try_into().unwrap())
}

#[test]
fn a_gateway_is_found_and_a_neighbor_that_moves_is_found_again() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let far = Ipv4Addr::new(10, 77, 0, 1);
        b.ip("address add 10.77.0.1/32 dev right");
        a.ip(&format!("route add 10.77.0.0/24 via {}", b.v4));
        let (mut here, mut there) = (open(&a), open(&b));
        let way = path(a.v4, far);
        let mut sends = |from: u32| {
            for psn in from..from + 5 {
                send(&mut *here.sender, &way, &[packet(9, psn, 16)]);
                std::thread::sleep(Duration::from_millis(2));
            }
            here.sender.counters()
        };
        let counters = sends(0);
        assert_eq!(receive(&mut *there.receiver, 5).len(), 5);
        assert!(counter(&counters, "tx_frames") >= 3, "{counters:?}");
        // What is known holds for five seconds, then the kernel is queried once more.
        b.ip("link set right address 02:00:00:00:00:99");
        std::thread::sleep(Duration::from_secs(5));
        a.ip("neigh flush dev left");
        sends(5);
        assert_eq!(receive(&mut *there.receiver, 5).len(), 5);
    });
}

#[test]
fn the_loopback_interface_has_no_hardware_addresses() {
    in_namespace(|| {
        let mut config = Config::new("lo");
        config.frames = 64;
        let mut raw = raw::open(&config).unwrap();
        let v4 = Ipv4Addr::LOCALHOST;
        for way in
            [path(v4, v4), path(std::net::Ipv6Addr::LOCALHOST, std::net::Ipv6Addr::LOCALHOST)]
        {
            let packets: Vec<_> = (0..30).map(|psn| packet(3, psn, 1000)).collect();
            send(&mut *raw.sender, &way, &packets);
            assert_eq!(bytes(&receive(&mut *raw.receiver, 30)), packets);
        }
    });
}

#[test]
fn a_tap_around_a_raw_link_writes_what_is_on_the_wire() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let file = Scratch::name("tap.pcapng");
        let sink = std::io::BufWriter::new(std::fs::File::create(file.path()).unwrap());
        let (here, mut there) = (open(&a), open_with(&b, |config| config.frames = 1000));
        let mut here = tap::tap(here, sink, Instant::ZERO).unwrap();
        send(&mut *here.sender, &path(a.v4, b.v4), &message());
        let arrived = receive(&mut *there.receiver, 200);
        drop(here);
        let mut reader = roce::capture::open(file.as_path()).unwrap();
        let mut seen = Vec::new();
        while let Some(record) = reader.next().unwrap() {
            let frame = Frame::parse(record.link, record.data, ROCE_PORT);
            assert_eq!((frame.icrc(), frame.error()), (Some(IcrcVerdict::Ok), None));
            seen.push((id_of(&frame, a.v4).unwrap(), frame.packet().unwrap().bytes().to_vec()));
        }
        let id = |at: &Arrived| u16::from_be_bytes([at.network[4], at.network[5]]);
        let arrived: Vec<_> = arrived.iter().map(|at| (id(at), at.packet.clone())).collect();
        assert_eq!(seen, arrived);
    });
}

#[test]
fn a_burst_that_finds_no_room_is_counted() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let (mut here, mut there) = (open(&a), open_with(&b, |config| config.frames = 15));
        let way = path(a.v4, b.v4);
        send(&mut *here.sender, &way, &[packet(9, 0, 16)]);
        receive(&mut *there.receiver, 1);
        for psn in 1..=40 {
            send(&mut *here.sender, &way, &[packet(9, psn, 16)]);
        }
        let arrived = receive(&mut *there.receiver, 1);
        let lost = counter(&there.receiver.counters(), "rx_ring_full");
        assert!(lost > 0);
        assert_eq!(arrived.len() as u64 + lost, 40);
    });
}

#[test]
fn what_cannot_be_opened_says_why() {
    in_namespace(|| {
        let (a, _b) = wire(1500);
        let error = |name: &str, vlan| {
            let mut config = Config::new(name);
            config.vlan = vlan;
            a.run(|| raw::open(&config).unwrap_err().to_string())
        };
        let unknown = error("eth7", None);
        assert!(unknown.starts_with("there is no interface eth7; this machine has "), "{unknown}");
        assert!(unknown.contains("left"), "{unknown}");
        assert_eq!(error("left", Some(4095)), "there is no VLAN 4095: the last is 4094");
        a.ip("address flush dev left");
        assert!(error("left", None).starts_with("left has no address"));
        a.ip("address add 10.9.0.1/24 dev left");
        a.ip("link set left mtu 200");
        assert!(error("left", None).starts_with("left has an MTU of 200"));
    });
}

#[test]
fn a_missing_capability_is_named_with_the_ways_around_it() {
    const INSIDE: &str = "ROCE_TEST_WITHOUT_CAPABILITIES";
    if std::env::var_os(INSIDE).is_some() {
        let error = raw::open(&Config::new("lo")).unwrap_err();
        assert!(matches!(&error, OpenError::Privilege { interface } if interface == "lo"));
        let text = error.to_string();
        for word in ["CAP_NET_RAW", "setcap cap_net_raw+ep", "unshare -Urn", "udp:ADDRESS"] {
            assert!(text.contains(word), "{text}");
        }
        return;
    }
    // In a user namespace without a mapping, a program has no capabilities; an ordinary user has
    // none anyway.
    let this = std::env::current_exe().unwrap();
    let name = "a_missing_capability_is_named_with_the_ways_around_it";
    let mut command = if rustix::process::geteuid().is_root() {
        if !common::needs::can_have_namespaces(name) {
            return;
        }
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--"]).arg(this);
        unshare
    } else {
        Command::new(this)
    };
    let output = command.args([name, "--exact", "--nocapture"]).env(INSIDE, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
}
