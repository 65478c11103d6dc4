//! Soft NICs at the other end of a TAP device, with the kernel as their neighbor, and on devices of
//! a program.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and a wire has a clock"
)]

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use roce::device::{Context, Rc};
use roce::link::{Link, Spec, fault, tap};
use roce::nic::SoftNic;
use roce::verbs::{Access, Connect, Endpoint};
use socket2::{Domain, Protocol, Socket, Type};

mod common;
use common::command::{command, stdout};
use common::example::example;
use common::netns::{in_namespace, ip};
use common::process::Command;
use common::tmp::Scratch;

/// The device, and the addresses of the kernel's end and of the NIC.
const TAP: &str = "tap:tap0@10.9.0.2/24+fd09::2/64";
const KERNEL: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1)),
];
const NIC: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2)),
];

/// The rest of a test, in a namespace, if it can have a TAP device.
macro_rules! with_tap {
    ($name:literal, $body:expr) => {
        if common::needs::can_have_tap($name) {
            in_namespace($body);
        }
    };
}

/// Gives the kernel's end its addresses.
fn configure() {
    ip("address add 10.9.0.1/24 dev tap0");
    ip("address add fd09::1/64 dev tap0 nodad");
}

fn make_tap() {
    ip("tuntap add tap0 mode tap");
    ip("link set tap0 mtu 9000 up");
    configure();
}

fn open(spec: &str) -> Link {
    spec.parse::<Spec>().unwrap().open(None).unwrap()
}

/// Sends echo requests until one is answered, as ping does.
fn ping(to: IpAddr) {
    let (domain, protocol, request) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128),
    };
    let socket = Socket::new(domain, Type::RAW, Some(protocol)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut message = vec![request, 0, 0, 0, 0x12, 0x34, 0, 1];
    message.extend([0x5a; 56]);
    if to.is_ipv4() {
        let words = message.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let sum: u32 = words.sum();
        let sum = !u16::try_from((sum & 0xffff) + (sum >> 16)).unwrap();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    socket.connect(&SocketAddr::new(to, 0).into()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut buffer = [0; 2000];
    while Instant::now() < deadline {
        // Until the neighbor is found, there may be errors.
        let _ = socket.send(&message);
        while let Ok(len) = (&socket).read(&mut buffer) {
            // A raw socket of IPv4 shows the IP header, too.
            let (start, answer) = if to.is_ipv4() { (20, 0) } else { (0, 129) };
            let got = &buffer[start..len];
            if got[0] == answer && got[4..] == message[4..] {
                return;
            }
        }
    }
    panic!("{to} does not answer");
}

/// The hardware address of a neighbor, as the kernel knows it.
fn neighbor(address: IpAddr) -> String {
    let mut command = Command::new("ip");
    let output = command.args(["neighbor", "show", &address.to_string()]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn kernel_finds_the_nic_and_its_pings_are_answered() {
    with_tap!("kernel_finds_the_nic_and_its_pings_are_answered", || {
        // The device is made, and is gone with its link.
        let nic = SoftNic::start(open(TAP)).unwrap();
        configure();
        for address in NIC {
            ping(address);
            assert!(neighbor(address).contains("lladdr"), "{}", neighbor(address));
        }
        let counters = nic.link_counters();
        let control = counters.iter().find(|(name, _)| *name == "rx_control").unwrap().1;
        assert!(control >= 4, "{counters:?}");
        drop(nic);
        let there = roce::link::interface::interfaces().unwrap();
        assert!(there.iter().all(|interface| interface.name != "tap0"), "{there:?}");
    });
}

/// SEND, WRITE and READ between two links, from `a` to `b`, with the GIDs of these indices.
fn talk(a: Link, b: Link, from: usize, to: usize) {
    let (from_gid, to_gid) = (a.port.gids[from], b.port.gids[to]);
    let open = |link| {
        let context = Context::new(SoftNic::start(link).unwrap());
        let (pd, cq) = (context.create_pd().unwrap(), context.create_cq(64).unwrap());
        let qp = pd.qp(&cq).build::<Rc>().unwrap();
        (pd, cq, qp)
    };
    let ((a_pd, a_cq, a), (b_pd, b_cq, b)) = (open(a), open(b));
    let how = |index: usize| {
        let mut how = Connect::default();
        how.gid_index = u8::try_from(index).unwrap();
        how
    };
    let a_end = Endpoint { gid: from_gid, ..a.endpoint().unwrap() };
    let b_end = Endpoint { gid: to_gid, ..b.endpoint().unwrap() };
    let a = a.connect(&b_end, &how(from)).unwrap();
    let b = b.connect(&a_end, &how(to)).unwrap();
    let wait = |cq: &roce::device::Cq| {
        let completion = cq.wait(Some(Duration::from_secs(30))).unwrap();
        completion.into_result().unwrap()
    };
    for round in 0..20_u8 {
        b.recv(1, b_pd.create_buf(50_000).unwrap()).unwrap();
        let mut message = a_pd.create_buf(50_000).unwrap();
        message.write(49_999, &[round]).unwrap();
        a.send(2, message).unwrap();
        wait(&a_cq);
        assert_eq!(wait(&b_cq).payload()[49_999], round);
    }
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let shared = b_pd.allocate(50_000, rights).unwrap();
    let mut message = a_pd.create_buf(50_000).unwrap();
    message.write(49_995, b"hello").unwrap();
    a.write(3, message, shared.slice(..).unwrap().remote()).unwrap();
    wait(&a_cq);
    let tail = shared.slice(49_995..).unwrap().remote();
    a.read(4, tail, a_pd.create_buf(5).unwrap()).unwrap();
    assert_eq!(wait(&a_cq).payload(), b"hello");
}

#[test]
fn queue_pairs_pass_between_the_nic_and_sockets_of_the_kernel() {
    with_tap!("queue_pairs_pass_between_the_nic_and_sockets_of_the_kernel", || {
        make_tap();
        for (index, address) in KERNEL.into_iter().enumerate() {
            let udp = format!("udp:{address}");
            talk(open(TAP), open(&udp), index, 0);
            talk(open(&udp), open(TAP), 0, index);
        }
    });
}

#[test]
fn faults_and_captures_work_around_the_link() {
    with_tap!("faults_and_captures_work_around_the_link", || {
        make_tap();
        let faults = "loss=5%,dup=5%,reorder=5%,seed=7".parse().unwrap();
        let capture = Scratch::name("phy.pcapng");
        let file = std::fs::File::create(capture.path()).unwrap();
        let tapped = tap::tap(open(TAP), file, roce::time::Instant::ZERO).unwrap();
        talk(fault::inject(tapped, &faults), open("udp:10.9.0.1"), 0, 0);
        let text = stdout(&["decode", "--summary", capture.path()]);
        assert!(text.contains("10.9.0.2") && !text.contains("bad ICRC"), "{text}");
    });
}

#[test]
fn scenarios_agree_between_the_nic_and_a_socket() {
    with_tap!("scenarios_agree_between_the_nic_and_a_socket", || {
        make_tap();
        let mut conform =
            command(&["conform", "-d", "tap:tap0@10.9.0.2/24", "--peer", "udp:10.9.0.1"]);
        let output = conform.deadline(Duration::from_secs(500)).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{text}{errors}");
        assert!(text.contains("0 differences"), "{text}");
    });
}

#[test]
fn tap_device_that_cannot_be_had_is_named_with_the_cure() {
    with_tap!("tap_device_that_cannot_be_had_is_named_with_the_cure", || {
        make_tap();
        let _first = open(TAP);
        let error = TAP.parse::<Spec>().unwrap().open(None).unwrap_err().to_string();
        assert!(error.contains("another program has the TAP device tap0"), "{error}");
        let error = "tap:lo".parse::<Spec>().unwrap().open(None).unwrap_err().to_string();
        assert!(error.contains("lo"), "{error}");
        let mut other = Command::new("setpriv");
        other.args(["--bounding-set", "-net_admin", env!("CARGO_BIN_EXE_roce"), "conform"]);
        let output = other.args(["-d", "tap:tap1", "--peer", "udp:10.9.0.1"]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains("tap:tap1 needs the capability CAP_NET_ADMIN"), "{errors}");
    });
}

#[test]
fn nic_ends_when_its_device_is_deleted() {
    with_tap!("nic_ends_when_its_device_is_deleted", || {
        make_tap();
        let nic = SoftNic::start(open(TAP)).unwrap();
        ip("link delete tap0");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !nic.has_failed() {
            assert!(Instant::now() < deadline, "the NIC has not noticed");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

#[test]
fn example_of_a_device_in_memory_passes_a_message() {
    let output = example("smoltcp_device").output().unwrap();
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success() && text.contains("received: "), "{output:?}");
}

#[test]
fn example_on_a_tap_device_talks_to_a_socket() {
    with_tap!("example_on_a_tap_device_talks_to_a_socket", || {
        make_tap();
        let output =
            example("tap_nic").args(["tap:tap0@10.9.0.2/24", "udp:10.9.0.1"]).output().unwrap();
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(text.matches("SEND, WRITE and READ done").count(), 2, "{text}");
    });
}
