//! Links over UDP sockets: on loopback, and on wires of the tests' own where every frame is looked
//! at.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::time::Duration;

use common::netns::{Host, in_namespace, wire};
use roce::link::OpenError;
use roce::link::udp::{self, IcrcCheck, Options};
use roce::link::{Link, Receiver, Sender};
use roce::time::Instant;
use roce::verbs::Mtu;
use roce::wire::{
    Batch, Bits, BthRepr, Frame, Gid, IcrcVerdict, Ipv4, Ipv6, LinkType, Network, Opcode, Path,
    Psn, Qpn, ROCE_PORT, view,
};
use socket2::{Domain, Protocol, Socket, Type};

const NOW: Instant = Instant::ZERO;

fn gid(address: impl Into<IpAddr>) -> Gid {
    roce::link::interface::gid(address.into())
}

fn open(address: impl Into<IpAddr>) -> Link {
    udp::open(&Options::new(address.into())).unwrap()
}

fn path(source: Gid, destination: Gid) -> Path {
    Path {
        source,
        destination,
        source_port: 0xc123,
        traffic_class: 0,
        hop_limit: 64,
        sl: 0,
        flow_label: Bits::ZERO,
    }
}

/// A packet with `payload` bytes of payload, which follow from `psn`.
fn packet(psn: u32, payload: usize) -> Vec<u8> {
    let bth = BthRepr::new(Opcode::RC_RDMA_WRITE_MIDDLE, Qpn::new(0x11), Psn::new(psn)).emit();
    let payload = (0..payload).map(|at| (at + psn as usize).to_le_bytes()[0]);
    bth.as_bytes().iter().copied().chain(payload).collect()
}

fn batch(path: &Path, packets: &[Vec<u8>]) -> Batch {
    let mut batch = Batch::new(packets.len());
    packets.iter().for_each(|packet| assert!(batch.push(path, packet)));
    batch
}

/// A received packet, as far as a test needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Got {
    source: Gid,
    destination: Gid,
    ecn: u8,
    network: Vec<u8>,
    packet: Vec<u8>,
}

/// Takes in packets until there are so many, or none has come for a while.
fn receive(receiver: &mut dyn Receiver, count: usize) -> Vec<Got> {
    let mut all = Vec::new();
    let mut attempts = 100;
    while all.len() < count && attempts > 0 {
        if receiver.receive(NOW).unwrap() == 0 {
            attempts -= 1;
            std::thread::sleep(Duration::from_millis(2));
        }
        receiver.for_each(&mut |received| {
            all.push(Got {
                source: received.source,
                destination: received.destination,
                ecn: received.ecn,
                network: received.network.to_vec(),
                packet: received.packet.to_vec(),
            })
        });
    }
    all
}

fn packets(got: &[Got]) -> Vec<Vec<u8>> {
    got.iter().map(|got| got.packet.clone()).collect()
}

#[track_caller]
fn counter(counters: Vec<(&'static str, u64)>, name: &str) -> u64 {
    counters.iter().find(|(same, _)| *same == name).unwrap_or_else(|| panic!("no {name}")).1
}

fn sent(link: &Link, name: &str) -> u64 {
    counter(link.sender.counters(), name)
}

fn taken(link: &Link, name: &str) -> u64 {
    counter(link.receiver.counters(), name)
}

/// Loopback addresses that no other test uses.
fn loopback(test: u8) -> (Ipv4Addr, Ipv4Addr) {
    (common::loopback::loopback(test, 1), common::loopback::loopback(test, 2))
}

#[test]
fn packets_pass_both_ways_on_loopback() {
    let (here, there) = loopback(1);
    let (mut a, mut b) = (open(here), open(there));
    assert_eq!(
        (a.port.name.as_str(), a.port.gids.as_slice()),
        (format!("udp:{here}").as_str(), &[gid(here)][..])
    );
    assert_eq!((a.port.interface.as_deref(), a.port.mtu), (Some("lo"), Mtu::M4096));
    let all: Vec<_> = (0..200).map(|psn| packet(psn, psn as usize * 4)).collect();
    a.sender.send(NOW, &mut batch(&path(gid(here), gid(there)), &all)).unwrap();
    let got = receive(&mut *b.receiver, all.len());
    assert_eq!(packets(&got), all);
    assert!(got.iter().all(|got| (got.source, got.destination) == (gid(here), gid(there))));
    b.sender.send(NOW, &mut batch(&path(gid(there), gid(here)), &all)).unwrap();
    assert_eq!(packets(&receive(&mut *a.receiver, all.len())), all);
    assert_eq!((sent(&a, "packets_sent"), taken(&a, "packets_received")), (200, 200));
}

#[test]
fn packets_pass_on_loopback_of_ipv6() {
    in_namespace(|| {
        let mut link = open(Ipv6Addr::LOCALHOST);
        let (own, all) =
            (gid(Ipv6Addr::LOCALHOST), [packet(1, 4096), packet(2, 4096), packet(3, 12)]);
        let path = Path { traffic_class: 0x22, hop_limit: 7, ..path(own, own) };
        link.sender.send(NOW, &mut batch(&path, &all)).unwrap();
        let got = receive(&mut *link.receiver, all.len());
        assert_eq!(packets(&got), all);
        let header = view::<Ipv6>(&got[2].network, 0).unwrap();
        assert_eq!((header.payload_len(), header.hop_limit(), header.dscp().get()), (36, 7, 8));
        assert_eq!(got[2].ecn, 2);
    });
}

#[test]
fn trains_arrive_joined() {
    let (here, there) = loopback(2);
    let (mut a, mut b) = (open(here), open(there));
    let mut all: Vec<_> = (0..120).map(|psn| packet(psn, 1024)).collect();
    all.push(packet(120, 8));
    a.sender.send(NOW, &mut batch(&path(gid(here), gid(there)), &all)).unwrap();
    let got = receive(&mut *b.receiver, all.len());
    assert_eq!(packets(&got), all);
    // What comes first is taken by itself, and then everything behind it.
    assert_eq!((sent(&a, "send_calls"), taken(&b, "receive_calls")), (1, 2));
    // Two runs, each of which is numbered from 0.
    let ids: Vec<_> = got.iter().map(|got| view::<Ipv4>(&got.network, 0).unwrap().id()).collect();
    assert_eq!(ids[..64], (0..62).chain([0, 1]).collect::<Vec<u16>>());
    assert_eq!(ids[120], 120 - 62, "the shorter one belongs to the second");
}

#[test]
fn congestion_is_told_both_ways() {
    let (here, there) = loopback(3);
    let (mut a, mut b) = (open(here), open(there));
    for (class, hops) in [(0, 0), (1, 1), (2, 64), (3, 255), (0x62, 9)] {
        let path = Path { traffic_class: class, hop_limit: hops, ..path(gid(here), gid(there)) };
        a.sender.send(NOW, &mut batch(&path, &[packet(0, 64), packet(1, 64)])).unwrap();
        let got = receive(&mut *b.receiver, 2);
        assert_eq!(got.len(), 2);
        for got in got {
            let header = view::<Ipv4>(&got.network, 0).unwrap();
            let told = header.dscp().get() << 2 | header.ecn().get();
            assert_eq!((told, got.ecn), (class.into(), class & 3));
            assert_eq!(header.ttl(), if hops == 0 { 64 } else { hops });
            assert_eq!((header.total_len(), got.network.len()), (20 + 8 + 12 + 64 + 4, 20));
        }
    }
}

#[test]
fn what_is_damaged_is_dropped_and_counted() {
    // Rule: Q-36.
    let (here, there) = loopback(4);
    let mut b = open(there);
    let port = UdpSocket::bind((here, 0)).unwrap();
    let (source, to) = (gid(here), (there, ROCE_PORT));
    let path = Path { source_port: port.local_addr().unwrap().port(), ..path(source, gid(there)) };
    let mut sound = [packet(1, 256), vec![0; 4]].concat();
    path.prefix(sound.len()).with_identification(0xbeef).seal(&mut sound);
    for at in [0, 5, 20, 267, 268, 271] {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x10;
        port.send_to(&damaged, to).unwrap();
    }
    for odd in [vec![], vec![1; 15], vec![1; 16], vec![1; 4200], vec![1; 65_507]] {
        port.send_to(&odd, to).unwrap();
    }
    port.send_to(&sound, to).unwrap();
    let got = receive(&mut *b.receiver, 1);
    assert_eq!(packets(&got), [packet(1, 256)]);
    assert_eq!(view::<Ipv4>(&got[0].network, 0).unwrap().id(), 0xbeef);
    assert_eq!((taken(&b, "bad_icrc"), taken(&b, "packets_received")), (7, 1));
    // An empty datagram has no packet in it.
    assert_eq!((taken(&b, "too_short"), taken(&b, "too_long")), (1, 2));
}

#[test]
fn a_link_that_trusts_takes_what_has_no_icrc() {
    let (here, there) = loopback(5);
    let mut options = Options::new(there.into());
    assert_eq!(options.icrc, IcrcCheck::Verify, "unless it is asked to");
    options.icrc = IcrcCheck::Trust;
    let mut b = udp::open(&options).unwrap();
    let port = UdpSocket::bind((here, 0)).unwrap();
    port.send_to(&[packet(7, 32), vec![0xee; 4]].concat(), (there, ROCE_PORT)).unwrap();
    assert_eq!(packets(&receive(&mut *b.receiver, 1)), [packet(7, 32)]);
}

#[test]
fn flows_have_source_ports_of_their_own_as_far_as_there_are() {
    let (here, there) = loopback(6);
    let mut options = Options::new(here.into());
    options.source_ports = 4;
    let mut a = udp::open(&options).unwrap();
    // Another socket has the first one.
    let _taken = UdpSocket::bind((here, 0xc000)).unwrap();
    let peer = UdpSocket::bind((there, ROCE_PORT)).unwrap();
    let mut ports = Vec::new();
    for source_port in [0xc000, 0xc001, 0xc002, 0xc003, 0xc001, 0xc006, 0xffff, 0x1000, 0xc004] {
        let path = Path { source_port, ..path(gid(here), gid(there)) };
        a.sender.send(NOW, &mut batch(&path, &[packet(1, 4)])).unwrap();
        let (_, from) = peer.recv_from(&mut [0; 100]).unwrap();
        ports.push(from.port());
    }
    let first_four = [ROCE_PORT, 0xc001, 0xc002, 0xc003];
    assert_eq!(ports, [&first_four[..], &[0xc001, 0xc002, 0xc003, ROCE_PORT, ROCE_PORT]].concat());
    assert_eq!(sent(&a, "source_ports"), 4);
}

#[test]
fn flows_that_share_a_batch_keep_their_order_and_their_icrcs() {
    let (here, there) = loopback(7);
    let (mut a, mut b) = (open(here), open(there));
    let mut batch = Batch::new(256);
    for psn in 0..256 {
        let source_port = 0xc000 + u16::try_from(psn % 40).unwrap();
        let path = Path { source_port, ..path(gid(here), gid(there)) };
        assert!(batch.push(&path, &packet(psn, 512)));
    }
    a.sender.send(NOW, &mut batch).unwrap();
    let got = receive(&mut *b.receiver, 256);
    let psns: Vec<u32> = got.iter().map(|got| u32::from(got.packet[11])).collect();
    for flow in 0..40 {
        let own: Vec<u32> = psns.iter().copied().filter(|psn| psn % 40 == flow).collect();
        assert!(own.is_sorted(), "{own:?}");
    }
    assert_eq!(psns.iter().collect::<BTreeSet<_>>().len(), 256);
    assert_eq!(sent(&a, "source_ports"), 17);
}

#[test]
fn windows_pass_without_loss_through_the_buffers_that_every_system_has() {
    let (here, there) = loopback(8);
    let mut options = Options::new(there.into());
    options.receive_buffer = 212_992;
    let (mut a, mut b) = (open(here), udp::open(&options).unwrap());
    assert_eq!(taken(&b, "receive_buffer"), 2 * 212_992, "the system counts its own share in");
    for payload in [256, 1024, 4096] {
        let count = 192 * 1024 / u32::try_from(payload).unwrap();
        let window: Vec<_> = (0..count).map(|psn| packet(psn, payload)).collect();
        for _ in 0..50 {
            for part in window.chunks(64) {
                a.sender.send(NOW, &mut batch(&path(gid(here), gid(there)), part)).unwrap();
            }
            let got = receive(&mut *b.receiver, window.len());
            assert!(packets(&got) == window, "{} of {}", got.len(), window.len());
        }
    }
    assert_eq!(taken(&b, "overflowed"), 0);
}

#[test]
fn what_the_kernel_drops_for_want_of_room_is_counted() {
    let (here, there) = loopback(9);
    let mut options = Options::new(there.into());
    options.receive_buffer = 10_000;
    let (mut a, mut b) = (open(here), udp::open(&options).unwrap());
    for _ in 0..20 {
        let all: Vec<_> = (0..20).map(|psn| packet(psn, 1024)).collect();
        a.sender.send(NOW, &mut batch(&path(gid(here), gid(there)), &all)).unwrap();
    }
    let before = receive(&mut *b.receiver, 400).len();
    // It is told with the next that arrives.
    a.sender.send(NOW, &mut batch(&path(gid(here), gid(there)), &[packet(0, 4)])).unwrap();
    assert_eq!(receive(&mut *b.receiver, 1).len(), 1);
    assert!(before < 400 && taken(&b, "overflowed") > 0, "{before} {:?}", b.receiver.counters());
}

#[test]
fn errors_name_the_cure() {
    // In a process of its own: one that another test starts has a port for a moment that was given
    // up.
    in_namespace(|| {
        let (here, _) = loopback(10);
        let failure = |options: &Options| udp::open(options).unwrap_err();
        let link = open(here);
        let mut alone = Options::new(here.into());
        alone.is_shared = false;
        let error = failure(&alone);
        assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
        let process = std::process::id();
        let name = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(
            error.to_string(),
            format!(
                "UDP port 4791 of {here} is taken by {} (process {process}): kill {process}, or use another address of this \
             machine",
                name.trim()
            )
        );
        drop(link);
        drop(open(here));
        // An address of IPv4 that is written as one of IPv6 is the same.
        assert_eq!(open(here.to_ipv6_mapped()).port.gids, [gid(here)]);

        let error = failure(&Options::new([203, 0, 113, 1].into())).to_string();
        let expected = "203.0.113.1 is not an address of this machine, which has ";
        assert!(error.starts_with(expected) && error.contains("127.0.0.1"), "{error}");
        for address in ["0.0.0.0", "::", "224.0.0.1", "ff02::1"] {
            let error = failure(&Options::new(address.parse().unwrap()));
            assert!(matches!(error, OpenError::NotOneHost(_)), "{error:?}");
        }
        let mut options = Options::new(here.into());
        options.interface = Some("nowhere".into());
        let error = failure(&options).to_string();
        assert!(error.starts_with("there is no interface nowhere; this machine has lo"), "{error}");
    });
}

/// Every frame that passes an interface of the machine it is opened on.
struct Capture(Socket);

impl Capture {
    fn new() -> Self {
        let all = Protocol::from(i32::from(3_u16.to_be()));
        let socket =
            Socket::new(Domain::from(libc::AF_PACKET), Type::from(libc::SOCK_RAW), Some(all))
                .unwrap();
        socket.set_recv_buffer_size(64 << 20).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        Self(socket)
    }

    /// The frames of RoCE that have passed.
    fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut room = vec![0; 1 << 17];
        while let Ok(len) = (&self.0).read(&mut room) {
            let frame = &room[..len];
            let parsed = Frame::parse(LinkType::ETHERNET, frame, ROCE_PORT);
            if parsed.udp().is_some_and(|udp| udp.destination_port() == ROCE_PORT) {
                frames.push(frame.to_vec());
            }
        }
        frames
    }
}

/// Sends packets of many lengths in trains of many lengths, and looks at every frame on the wire.
fn every_frame_is_sound(here: IpAddr, there: IpAddr, a: &Host, b: &Host) {
    // The interface takes packets one by one, so the kernel cuts trains apart before they are seen.
    a.ip(&format!("link set {} gso_max_segs 1", a.interface));
    let (mut from, mut to) = (a.run(|| open(here)), b.run(|| open(there)));
    let mut capture = b.run(Capture::new);
    let mut batch = Batch::new(1024);
    let mut expected = Vec::new();
    let (source, destination) = (gid(here), gid(there));
    for (train, (count, payload)) in
        [(1, 0), (2, 4), (63, 1024), (64, 1024), (65, 1024), (200, 16), (130, 256), (7, 4096)]
            .into_iter()
            .enumerate()
    {
        let source_port = 0xc000 + u16::try_from(train).unwrap();
        let traffic_class = u8::try_from(train % 4).unwrap();
        let path = Path { source_port, traffic_class, ..path(source, destination) };
        for psn in 0..count {
            // Now and then one is shorter, as the last of a message is.
            let payload = if psn % 90 == 89 { payload / 8 * 4 } else { payload };
            let packet = packet(psn, payload);
            assert!(batch.push(&path, &packet));
            expected.push((source_port, traffic_class, packet));
        }
    }
    from.sender.send(NOW, &mut batch).unwrap();
    let frames = capture.frames();
    assert_eq!(frames.len(), expected.len());
    let mut seen = Vec::new();
    let mut numbers = BTreeSet::new();
    for bytes in &frames {
        let frame = Frame::parse(LinkType::ETHERNET, bytes, ROCE_PORT);
        assert_eq!((frame.icrc(), frame.error()), (Some(IcrcVerdict::Ok), None));
        let ecn = match frame.network().unwrap() {
            Network::Ipv4 { header, .. } => {
                numbers.insert(header.id());
                header.ecn().get()
            }
            Network::Ipv6 { header, .. } => header.ecn().get(),
            other => panic!("{other:?}"),
        };
        let udp = frame.udp().unwrap();
        let transport =
            bytes[bytes.len() + 8 - usize::from(udp.length())..bytes.len() - 4].to_vec();
        seen.push((udp.source_port(), u8::try_from(ecn).unwrap(), transport));
    }
    seen.sort_by_key(|(port, ..)| *port);
    expected.sort_by_key(|(port, ..)| *port);
    let differ = seen.iter().zip(&expected).position(|(seen, expected)| seen != expected);
    assert_eq!(differ.map(|at| (&seen[at], &expected[at])), None, "in order, flow by flow");
    if here.is_ipv4() {
        assert_eq!(numbers, (0..64).collect(), "packets of a run are numbered");
    }
    assert_eq!(receive(&mut *to.receiver, frames.len()).len(), frames.len());
    assert_eq!(taken(&to, "bad_icrc"), 0);
}

#[test]
fn every_frame_on_a_wire_of_ipv4_is_sound() {
    in_namespace(|| {
        let (a, b) = wire(9000);
        every_frame_is_sound(a.v4.into(), b.v4.into(), &a, &b);
    });
}

#[test]
fn every_frame_on_a_wire_of_ipv6_is_sound() {
    in_namespace(|| {
        let (a, b) = wire(9000);
        every_frame_is_sound(a.v6.into(), b.v6.into(), &a, &b);
    });
}

#[test]
fn every_frame_between_link_local_addresses_is_sound() {
    in_namespace(|| {
        let (a, b) = wire(9000);
        every_frame_is_sound(a.link_local.into(), b.link_local.into(), &a, &b);
    });
}

#[test]
fn what_a_wire_cannot_carry_is_counted_and_the_rest_arrives() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let (mut from, mut to) = (a.run(|| open(a.v4)), b.run(|| open(b.v4)));
        assert_eq!((from.port.mtu, from.port.interface.as_deref()), (Mtu::M1024, Some("left")));
        let (own, peer) = (gid(a.v4), gid(b.v4));
        let unreachable = gid([203, 0, 113, 1]);
        let mut batch = Batch::new(16);
        for (destination, payload) in [(peer, 1024), (peer, 4096), (unreachable, 64), (peer, 1024)]
        {
            let path = path(own, destination);
            assert!(
                batch.push(&path, &packet(1, payload)) && batch.push(&path, &packet(2, payload))
            );
        }
        // From an address that is not the link's.
        assert!(batch.push(&path(gid(a.v6), gid(b.v6)), &packet(9, 4)));
        from.sender.send(NOW, &mut batch).unwrap();
        assert_eq!(receive(&mut *to.receiver, 4).len(), 4);
        assert_eq!((sent(&from, "packets_sent"), sent(&from, "refused_too_long")), (4, 2));
        assert_eq!(
            (sent(&from, "refused_unreachable"), sent(&from, "refused_foreign_source")),
            (2, 1)
        );
        assert_eq!(receive(&mut *to.receiver, 1), []);
    });
}

#[test]
fn a_peer_numbers_its_packets_as_it_likes() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        let mut to = b.run(|| open(b.v4));
        let raw = a.run(|| {
            Socket::new(Domain::IPV4, Type::from(libc::SOCK_RAW), Some(Protocol::from(255)))
                .unwrap()
        });
        let path = Path { traffic_class: 2, ..path(gid(a.v4), gid(b.v4)) };
        let ids = [1, 0x1234, 0xffff, 0x8000];
        for id in ids {
            let mut bytes = [packet(id.into(), 100), vec![0; 4]].concat();
            path.prefix(bytes.len()).with_identification(id).seal(&mut bytes);
            let headers = path.headers(bytes.len());
            let (ip, udp) = headers.as_bytes();
            let mut frame = [ip, udp, &bytes].concat();
            frame[4..6].copy_from_slice(&id.to_be_bytes());
            raw.send_to(&frame, &std::net::SocketAddr::from((b.v4, 0)).into()).unwrap();
        }
        let got = receive(&mut *to.receiver, ids.len());
        let seen: Vec<_> =
            got.iter().map(|got| view::<Ipv4>(&got.network, 0).unwrap().id()).collect();
        assert_eq!(seen, ids);
    });
}

#[test]
fn a_link_local_address_of_two_interfaces_needs_the_name_of_one() {
    in_namespace(|| {
        let (a, _b) = wire(1500);
        a.ip("link add other type veth peer name another");
        a.ip(&format!("address add {}/64 dev other nodad", a.link_local));
        a.ip("link set other up");
        let mut options = Options::new(a.link_local.into());
        let error = a.run(|| udp::open(&options).unwrap_err());
        assert!(error.to_string().ends_with("say which interface is meant"), "{error}");
        options.interface = Some("left".into());
        let link = a.run(|| udp::open(&options).unwrap());
        assert_eq!(link.port.interface.as_deref(), Some("left"));
        a.ip("link set left mtu 1280");
        options.interface = Some("other".into());
        options.mtu = Some(Mtu::M256);
        assert_eq!(a.run(|| udp::open(&options).unwrap()).port.mtu, Mtu::M256);
    });
}

#[test]
fn halves_work_in_threads_of_their_own() {
    let (here, there) = loopback(11);
    let (a, b) = (open(here), open(there));
    let (mut sender, mut receiver): (Box<dyn Sender>, Box<dyn Receiver>) = (a.sender, b.receiver);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for psn in 0..20 {
                let mut batch = batch(&path(gid(here), gid(there)), &[packet(psn, 1024)]);
                sender.send(NOW, &mut batch).unwrap();
            }
        });
        assert_eq!(receive(&mut *receiver, 20).len(), 20);
    });
}
