//! Links by AF_XDP on a wire between two network namespaces that the test makes, as root: the
//! kernel lets no user namespace load a program of XDP.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot go on fails, and a wire has a clock"
)]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use roce::device::{Context, Device, Rc};
use roce::link::{Link, OpenError, Spec, fault, xdp};
use roce::nic::SoftNic;
use roce::verbs::{Access, Connect, Endpoint};

mod common;
use common::command::{command, roce};
use common::needs;
use common::netns::{Host, wire_of};
use common::process::{Child, Command};

const MAX: Duration = Duration::from_secs(60);

/// The wire of a test; `None` if the test cannot run here.
fn wire_with(test: &str, mtu: usize, queues: u32) -> Option<(Host, Host)> {
    if xdp::check().is_err() {
        needs::skip(test, "AF_XDP needs root in the initial user namespace: `sudo -E cargo test`");
        return None;
    }
    Some(wire_of(mtu, queues))
}

/// Opens a link.
fn open(host: &Host, spec: &str) -> Link {
    let spec: Spec = spec.parse().unwrap();
    open_by(host, || spec.open(None))
}

/// Opens a link by AF_XDP that sends by its rings, as it does where the driver has zero copy.
fn open_with_rings(host: &Host, interface: &str) -> Link {
    let mut config = xdp::Config::new(interface);
    config.always_rings = true;
    open_by(host, || xdp::open(&config))
}

/// Opens a link. A process that another test has just forked may hold the program of the one
/// before for a moment longer.
fn open_by(host: &Host, open: impl Fn() -> Result<Link, OpenError> + Sync) -> Link {
    let deadline = Instant::now() + MAX;
    loop {
        match host.run(&open) {
            Err(OpenError::XdpProgram { .. } | OpenError::XdpQueue { .. })
                if Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap(),
        }
    }
}

fn counter(counters: &[(&'static str, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name}")).1
}

/// SEND, WRITE and READ between two links over `pairs` queue pairs; returns the counters of the
/// NICs.
fn talk(a: Link, b: Link, index: [usize; 2], pairs: usize) -> [Vec<(&'static str, u64)>; 2] {
    let gids = [a.port.gids[index[0]], b.port.gids[index[1]]];
    let nics = [a, b].map(|link| Arc::new(SoftNic::start(link).unwrap()));
    let contexts = [0, 1].map(|side: usize| Context::from(nics[side].clone() as Arc<dyn Device>));
    let how = |index: usize| {
        let mut how = Connect::default();
        how.gid_index = u8::try_from(index).unwrap();
        how
    };
    for round in 0..pairs {
        let open = |context: &Context| {
            let (pd, cq) = (context.create_pd().unwrap(), context.create_cq(64).unwrap());
            let qp = pd.qp(&cq).build::<Rc>().unwrap();
            (pd, cq, qp)
        };
        let ((a_pd, a_cq, a), (b_pd, b_cq, b)) = (open(&contexts[0]), open(&contexts[1]));
        let a_end = Endpoint { gid: gids[0], ..a.endpoint().unwrap() };
        let b_end = Endpoint { gid: gids[1], ..b.endpoint().unwrap() };
        let a = a.connect(&b_end, &how(index[0])).unwrap();
        let b = b.connect(&a_end, &how(index[1])).unwrap();
        let wait = |cq: &roce::device::Cq| cq.wait(Some(MAX)).unwrap().into_result().unwrap();
        b.recv(1, b_pd.create_buf(200_000).unwrap()).unwrap();
        let mut message = a_pd.create_buf(200_000).unwrap();
        let mark = [u8::try_from(round).unwrap(), 7];
        message.write(199_998, &mark).unwrap();
        a.send(2, message).unwrap();
        let message = wait(&a_cq).into_buf().unwrap();
        assert_eq!(wait(&b_cq).payload()[199_998..], mark);
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let shared = b_pd.allocate(200_000, rights).unwrap();
        a.write(3, message, shared.slice(..).unwrap().remote()).unwrap();
        wait(&a_cq);
        let tail = shared.slice(199_998..).unwrap().remote();
        a.read(4, tail, a_pd.create_buf(2).unwrap()).unwrap();
        assert_eq!(wait(&a_cq).payload(), mark);
    }
    nics.map(|nic| nic.link_counters())
}

#[test]
fn queue_pairs_pass_between_xdp_and_every_other_link() {
    let test = "queue_pairs_pass_between_xdp_and_every_other_link";
    let Some((left, right)) = wire_with(test, 1500, 1) else { return };
    // By IPv4 and by IPv6.
    for index in [0, 1] {
        let udp =
            if index == 0 { format!("udp:{}", right.v4) } else { format!("udp:{}", right.v6) };
        let at = open(&left, "xdp:left").port.gids;
        assert_eq!(at.len(), 3, "{at:?}");
        talk(open(&left, "xdp:left"), open(&right, &udp), [index, 0], 2);
        talk(open(&right, &udp), open(&left, "xdp:left"), [0, index], 2);
        talk(open(&left, "xdp:left"), open(&right, "raw:right"), [index, index], 2);
        talk(open(&left, "xdp:left"), open(&right, "xdp:right"), [index, index], 2);
        talk(open_with_rings(&left, "left"), open(&right, &udp), [index, 0], 2);
        talk(open_with_rings(&left, "left"), open(&right, "xdp:right"), [index, index], 2);
    }
}

#[test]
fn queue_pairs_are_spread_over_two_queues() {
    let test = "queue_pairs_are_spread_over_two_queues";
    let Some((left, right)) = wire_with(test, 1500, 2) else { return };
    let (a, b) = (open_with_rings(&left, "left"), open_with_rings(&right, "right"));
    // Of each, its port says which queue it leaves by; the peer's receives by the same.
    let [a, b] = talk(a, b, [0, 0], 16);
    for counters in [&a, &b] {
        assert_eq!(counter(counters, "tx_queues"), 2, "{counters:?}");
        assert_eq!(counter(counters, "rx_queues"), 2, "{counters:?}");
    }
    // By packet sockets, the kernel chooses.
    let [a, b] = talk(open(&left, "xdp:left"), open(&right, "xdp:right"), [0, 0], 16);
    for counters in [&a, &b] {
        assert_eq!(counter(counters, "rx_queues"), 2, "{counters:?}");
    }
}

#[test]
fn interface_may_have_a_large_mtu_and_faults_are_survived() {
    let test = "interface_may_have_a_large_mtu_and_faults_are_survived";
    let Some((left, right)) = wire_with(test, 9000, 1) else { return };
    let link = open(&left, "xdp:left");
    assert_eq!(link.port.mtu.bytes(), 2048);
    let faults = "loss=3%,dup=3%,reorder=3%,corrupt=1%,seed=11".parse().unwrap();
    for link in [Some(link), None] {
        let link = link.unwrap_or_else(|| open_with_rings(&left, "left"));
        let udp = open(&right, &format!("udp:{}", right.v4));
        let [xdp, _] = talk(fault::inject(link, &faults), fault::inject(udp, &faults), [0, 0], 4);
        assert!(counter(&xdp, "rx_icrc") > 0, "{xdp:?}");
    }
}

#[test]
fn other_traffic_of_the_interface_is_unharmed() {
    let test = "other_traffic_of_the_interface_is_unharmed";
    let Some((left, right)) = wire_with(test, 1500, 1) else { return };
    let nic = SoftNic::start(open(&left, "xdp:left")).unwrap();
    // TCP, in both directions.
    for (server, client) in [(&left, &right), (&right, &left)] {
        let listener = server.run(|| TcpListener::bind((server.v4, 7000)).unwrap());
        let sender = {
            let mut stream = client.run(|| TcpStream::connect((server.v4, 7000)).unwrap());
            std::thread::spawn(move || stream.write_all(&vec![0x5a; 8 << 20]).unwrap())
        };
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        sender.join().unwrap();
        assert!(bytes.len() == 8 << 20 && bytes.iter().all(|byte| *byte == 0x5a));
    }
    // UDP to other ports, with other addresses' hardware addresses asked for anew.
    left.ip("neighbor flush dev left");
    let there = left.run(|| UdpSocket::bind((left.v4, 7001)).unwrap());
    there.set_read_timeout(Some(MAX)).unwrap();
    let here = right.run(|| UdpSocket::bind((right.v4, 7001)).unwrap());
    here.send_to(b"?", (left.v4, 7001)).unwrap();
    assert_eq!(there.recv(&mut [0; 10]).unwrap(), 1);
    // Ping.
    let (from, to) = (right.v4, left.v4);
    right.run(|| ping(from, to));
    assert_eq!(nic.link_counters().iter().map(|(_, count)| *count).sum::<u64>(), 0);
}

/// Sends echo requests until one is answered.
fn ping(from: Ipv4Addr, to: Ipv4Addr) {
    use socket2::{Domain, Protocol, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
    socket.bind(&std::net::SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&std::net::SocketAddr::from((to, 0)).into()).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    // Type 8, and the checksum of the rest.
    let message = [8, 0, !8, !0 - 1, 0, 0, 0, 1];
    let deadline = Instant::now() + MAX;
    let mut buffer = [0; 200];
    while Instant::now() < deadline {
        socket.send(&message).unwrap();
        while let Ok(len) = (&socket).read(&mut buffer) {
            if len >= 28 && buffer[20] == 0 {
                return;
            }
        }
    }
    panic!("{to} does not answer");
}

#[test]
fn packets_to_the_link_itself_come_back() {
    let test = "packets_to_the_link_itself_come_back";
    let Some((left, _right)) = wire_with(test, 1500, 1) else { return };
    for with_rings in [false, true] {
        let link =
            if with_rings { open_with_rings(&left, "left") } else { open(&left, "xdp:left") };
        talk_to_itself(link);
    }
}

/// Sends a message between two queue pairs of one link; checks that nothing left by the interface.
fn talk_to_itself(link: Link) {
    let soft = Arc::new(SoftNic::start(link).unwrap());
    let nic = Context::from(soft.clone() as Arc<dyn Device>);
    let (pd, cq) = (nic.create_pd().unwrap(), nic.create_cq(64).unwrap());
    let (a, b) = (pd.qp(&cq).build::<Rc>().unwrap(), pd.qp(&cq).build::<Rc>().unwrap());
    let (a_end, b_end) = (a.endpoint().unwrap(), b.endpoint().unwrap());
    let a = a.connect(&b_end, &Connect::default()).unwrap();
    let b = b.connect(&a_end, &Connect::default()).unwrap();
    b.recv(1, pd.create_buf(5000).unwrap()).unwrap();
    a.send(2, pd.create_buf(5000).unwrap()).unwrap();
    for _ in 0..2 {
        assert!(cq.wait(Some(MAX)).unwrap().wc.is_success());
    }
    let counters = soft.link_counters();
    assert!(counter(&counters, "tx_looped") > 0, "{counters:?}");
    assert_eq!(counter(&counters, "tx_frames"), 0, "{counters:?}");
}

#[test]
fn interface_with_another_program_is_refused_and_the_program_named() {
    let test = "interface_with_another_program_is_refused_and_the_program_named";
    let Some((left, _right)) = wire_with(test, 1500, 1) else { return };
    let first = open(&left, "xdp:left");
    let again = || left.run(|| "xdp:left".parse::<Spec>().unwrap().open(None).map(drop));
    let error = again().unwrap_err().to_string();
    assert!(error.contains("XDP program already, that of another `roce` (id "), "{error}");
    drop(first);
    drop(open(&left, "xdp:left"));
}

/// A server of the command on the left side.
fn serve(left: &Host) -> Child {
    left.run(|| {
        let mut serve = command(&["serve", "-d", "xdp:left"]);
        serve.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    })
}

#[test]
fn killed_server_leaves_nothing_behind_and_can_be_started_again() {
    let test = "killed_server_leaves_nothing_behind_and_can_be_started_again";
    let Some((left, right)) = wire_with(test, 1500, 1) else { return };
    for _ in 0..3 {
        let mut server = serve(&left);
        let deadline = Instant::now() + MAX;
        loop {
            let output = right.run(|| {
                let (from, to) = (format!("udp:{}", right.v4), left.v4.to_string());
                roce(&["bench", "send", "lat", "-n", "100", "-d", &from, &to])
            });
            if output.status.success() {
                break;
            }
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(Instant::now() < deadline, "{said}");
            std::thread::sleep(Duration::from_millis(20));
        }
        // SIGKILL: nothing of the program runs any more.
        server.kill().unwrap();
        server.wait().unwrap();
        let shown = left.run(|| {
            let output = Command::new("ip").args(["link", "show", "left"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        });
        assert!(!shown.contains("xdp"), "{shown}");
    }
}

#[test]
fn scenarios_agree_between_xdp_and_udp() {
    let test = "scenarios_agree_between_xdp_and_udp";
    let Some((left, right)) = wire_with(test, 1500, 1) else { return };
    let mut server = left.run(|| {
        command(&["conform", "serve", "-d", "xdp:left"]).stderr(Stdio::null()).spawn().unwrap()
    });
    let deadline = Instant::now() + MAX;
    while right.run(|| TcpStream::connect((left.v4, 18516)).is_err()) {
        assert!(Instant::now() < deadline, "the server does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = right.run(|| {
        let (from, to) = (format!("udp:{}", right.v4), left.v4.to_string());
        command(&["conform", "-d", &from, &to]).deadline(Duration::from_secs(500)).output().unwrap()
    });
    server.kill().unwrap();
    server.wait().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && text.contains("0 differences"), "{text}{errors}");
}
