//! Connections of programs in Rust: `roce::connect`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use roce::cm::EventKind;
use roce::connect::{Config, Connection, ConnectionManager, Error, Options};
use roce::device::Device;
use roce::engine::{Recovery, RecoveryOptions};
use roce::link::{fault, udp};
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::verbs::{
    Access, CqHandle, Data, PdHandle, QpHandle, QpState, QpType, RecvWr, SendOp, SendWr, Sge, Wc,
    WrId,
};

use crate::common::loopback::loopback;
use crate::common::netns::{in_namespace, wire};

/// Longer than anything takes on a loaded machine.
const WAIT: Duration = Duration::from_secs(60);

/// A NIC with what queue pairs need.
struct Node {
    manager: ConnectionManager,
    pd: PdHandle,
    cq: CqHandle,
    address: IpAddr,
}

impl Node {
    fn start(address: impl Into<IpAddr>, faults: Option<&str>) -> Self {
        Self::start_with(address, faults, Config::default(), |_| {})
    }

    fn start_with(
        address: impl Into<IpAddr>,
        faults: Option<&str>,
        config: Config,
        configure: impl FnOnce(&mut roce::engine::Config),
    ) -> Self {
        let address = address.into();
        let link = udp::open(&udp::Options::new(address)).unwrap();
        let link = match faults {
            Some(spec) => fault::inject(link, &spec.parse().unwrap()),
            None => link,
        };
        let nic = Arc::new(SoftNic::start_with(link, configure).unwrap());
        let (pd, cq) = (nic.create_pd().unwrap(), nic.create_cq(64).unwrap());
        let manager = ConnectionManager::start_with(nic, config).unwrap();
        Self { manager, pd, cq, address }
    }

    fn nic(&self) -> &dyn Device {
        &**self.manager.nic()
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }

    fn qp(&self) -> QpHandle {
        self.nic().create_simple_qp(self.pd, self.cq, QpType::Rc).unwrap()
    }
}

/// Connects two nodes, sends a message in each direction, and disconnects.
fn exchange(server: &Node, client: &Node) {
    let listener = server.manager.listen(server.at(0)).unwrap();
    let at = listener.local_addr().unwrap();
    let (client_qp, server_qp) = (client.qp(), server.qp());
    let connection = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let request = listener.accept_timeout(WAIT).unwrap();
            assert_eq!(&request.private_data()[..3], b"hi!");
            assert_eq!((request.local_addr(), request.peer_addr().ip()), (at, client.address));
            server.manager.prepare(server_qp).unwrap();
            post_recv(server, server_qp);
            request.accept(server_qp, &Options::with_private_data(b"welcome")).unwrap()
        });
        client.manager.prepare(client_qp).unwrap();
        let buffer = post_recv(client, client_qp);
        let options = Options::with_private_data(b"hi!");
        let connection = client.manager.connect(client_qp, at, &options).unwrap();
        assert_eq!(&connection.private_data()[..7], b"welcome");
        let accepted = accepting.join().unwrap();
        assert_eq!(accepted.peer_addr(), connection.local_addr());
        for (from, to, qp) in [(client, server, client_qp), (server, client, server_qp)] {
            let op = SendOp::Send { imm: None };
            from.nic().post_send(qp, &SendWr::new(WrId(2), op, Data::Inline(b"data"))).unwrap();
            assert!(from.nic().wait_cq(from.cq).unwrap().is_success());
            assert_eq!(to.nic().wait_cq(to.cq).unwrap().byte_len, 4);
        }
        drop(buffer);
        assert!(!accepted.wait_disconnected(Duration::ZERO).unwrap());
        (connection, accepted)
    });
    let (connection, accepted): (Connection, Connection) = connection;
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(connection.disconnect(WAIT).unwrap()));
        assert!(accepted.wait_disconnected(WAIT).unwrap());
    });
    assert!(accepted.wait_disconnected(WAIT).unwrap(), "it is remembered");
    // The peer's DREQ leaves the queue pair as it was; the own disconnect does not.
    assert_eq!(server.nic().qp_state(server_qp), Some(QpState::Rts));
    assert_eq!(client.nic().qp_state(client_qp), Some(QpState::Err));
    drop(accepted);
    assert_eq!(server.nic().qp_state(server_qp), Some(QpState::Err));
}

fn post_recv(node: &Node, qp: QpHandle) -> Buffer {
    let buffer = Buffer::new(64);
    let mr = node.nic().register(node.pd, &buffer, Access::LOCAL_WRITE).unwrap();
    let sges = [Sge { addr: buffer.addr(), length: 64, lkey: mr.lkey() }];
    node.nic().post_recv(qp, &RecvWr { id: WrId(1), sges: &sges }).unwrap();
    buffer
}

#[test]
fn message_is_exchanged_over_ipv4() {
    let (server, client) = (Node::start(loopback(1, 2), None), Node::start(loopback(1, 1), None));
    exchange(&server, &client);
}

#[test]
fn hosts_on_a_wire_connect_over_both_versions_of_ip() {
    in_namespace(|| {
        let (a, b) = wire(1500);
        for v6 in [false, true] {
            let address = |host: &crate::common::netns::Host| -> IpAddr {
                if v6 { host.v6.into() } else { host.v4.into() }
            };
            let server = b.run(|| Node::start(address(&b), None));
            a.run(|| {
                let client = Node::start(address(&a), None);
                exchange(&server, &client);
                // A host that does not exist is noticed when its address is resolved.
                let nowhere: IpAddr =
                    if v6 { "fd00:9::77".parse().unwrap() } else { [10, 9, 0, 77].into() };
                let nowhere = match (nowhere, address(&b)) {
                    (IpAddr::V4(_), IpAddr::V4(b)) => {
                        let [x, y, z, _] = b.octets();
                        IpAddr::from([x, y, z, 77])
                    }
                    (IpAddr::V6(_), IpAddr::V6(b)) => {
                        let mut octets = b.octets();
                        octets[15] = 77;
                        octets.into()
                    }
                    _ => nowhere,
                };
                let mut options = Options::default();
                options.timeout = Duration::from_millis(100);
                let failed = client.manager.connect(client.qp(), (nowhere, 7).into(), &options);
                let failed = failed.unwrap_err();
                assert!(matches!(failed, Error::Unresolved { .. } | Error::Timeout), "{failed}");
            });
        }
    });
}

/// Programs of one host whose ports have different MTUs: one at an Ethernet, one that had to take
/// an address of loopback.
#[test]
fn path_mtu_is_the_smaller_of_two_ports_of_one_host() {
    in_namespace(|| {
        let (a, _b) = wire(1500);
        a.run(|| {
            let (ethernet, loopback) = (Node::start(a.v4, None), Node::start([127, 0, 0, 1], None));
            let mtu = |node: &Node| node.nic().query_port().unwrap().active_mtu;
            assert!(mtu(&ethernet) < mtu(&loopback));
            exchange(&ethernet, &loopback);
            exchange(&loopback, &ethernet);
        });
    });
}

#[test]
fn nic_connects_to_itself() {
    let node = Node::start(std::net::Ipv6Addr::LOCALHOST, None);
    let listener = node.manager.listen(node.at(0)).unwrap();
    let at = listener.local_addr().unwrap();
    let (here, there) = (node.qp(), node.qp());
    std::thread::scope(|scope| {
        let accepting =
            scope.spawn(|| listener.accept().unwrap().accept(there, &Options::default()).unwrap());
        let connection = node.manager.connect(here, at, &Options::default()).unwrap();
        let accepted = accepting.join().unwrap();
        scope.spawn(|| assert!(connection.disconnect(WAIT).unwrap()));
        assert!(accepted.wait_disconnected(WAIT).unwrap());
    });
}

#[test]
fn refusals_have_a_reason_and_data() {
    let (server, client) = (Node::start(loopback(2, 2), None), Node::start(loopback(2, 1), None));
    let connect = |port| {
        let connected = client.manager.connect(client.qp(), server.at(port), &Options::default());
        match connected.unwrap_err() {
            Error::Refused { reason, private_data } => (reason, private_data.as_slice().to_vec()),
            other => panic!("{other}"),
        }
    };
    assert_eq!(connect(7174).0, 8);
    let listener = server.manager.listen(server.at(7174)).unwrap();
    let taken = server.manager.listen(server.at(7174)).unwrap_err();
    assert_eq!(std::io::Error::from(taken).kind(), std::io::ErrorKind::AddrInUse);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            listener.accept().unwrap().reject(b"not today").unwrap();
            drop(listener.accept().unwrap());
        });
        let (reason, data) = connect(7174);
        assert_eq!((reason, &data[..9]), (28, &b"not today"[..]));
        assert_eq!(connect(7174).0, 28);
    });
    drop(listener);
    assert_eq!(connect(7174).0, 8);
}

/// Streams WRITEs in both directions over a network that loses packets, in rounds until each side
/// has sent a SACK, or at most in `rounds`; returns how many each side has sent. `selective` says
/// which of them do selective repeat.
fn sacks(net: u8, selective: [bool; 2], rounds: usize) -> [u64; 2] {
    const LEN: u32 = 64 << 10;
    const WRITES: u64 = 30;
    let start = |host: u8, is_selective: bool| {
        let mut config = Config::default();
        // An ACK timeout of some milliseconds.
        config.manager.packet_life_time = 10;
        let recovery = if is_selective { Recovery::SELECTIVE } else { Recovery::GoBackN };
        let options = RecoveryOptions { recovery: Some(recovery), ..RecoveryOptions::default() };
        let faults = Some("loss=3%");
        Node::start_with(loopback(net, host), faults, config, |engine| options.apply(engine))
    };
    let sides = [start(1, selective[0]), start(2, selective[1])];
    let [client, server] = &sides;
    let listener = server.manager.listen(server.at(0)).unwrap();
    let at = listener.local_addr().unwrap();
    let qps = sides.each_ref().map(Node::qp);
    let connections = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let request = listener.accept_timeout(WAIT).unwrap();
            request.accept(qps[1], &Options::default()).unwrap()
        });
        let connection = client.manager.connect(qps[0], at, &Options::default()).unwrap();
        [connection, accepting.join().unwrap()]
    });
    let buffers = [(); 2].map(|()| Buffer::new(LEN as usize));
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let regions = [0, 1].map(|side: usize| {
        sides[side].nic().register(sides[side].pd, &buffers[side], access).unwrap()
    });
    let counted = |counter: &str| {
        sides.each_ref().map(|side| {
            let statistics = side.nic().statistics();
            statistics.iter().find(|(name, _)| name == counter).unwrap().1
        })
    };
    for _ in 0..rounds {
        std::thread::scope(|scope| {
            for (from, to) in [(0, 1), (1, 0)] {
                let (sides, buffers, regions, qps) = (&sides, &buffers, &regions, &qps);
                scope.spawn(move || {
                    let node = &sides[from];
                    let lkey = regions[from].lkey();
                    let sges = [Sge { addr: buffers[from].addr(), length: LEN, lkey }];
                    let (remote_addr, rkey) = (buffers[to].addr(), regions[to].rkey());
                    let op = SendOp::Write { remote_addr, rkey, imm: None };
                    for id in 0..WRITES {
                        let wr = SendWr::new(WrId(id), op, Data::Gather(&sges));
                        node.nic().post_send(qps[from], &wr).unwrap();
                    }
                    for _ in 0..WRITES {
                        assert!(node.nic().wait_cq(node.cq).unwrap().is_success());
                    }
                });
            }
        });
        if counted("sack_sent").iter().all(|sent| *sent > 0) {
            break;
        }
    }
    connections.into_iter().for_each(Connection::abort);
    // The packets go through shared memory, whose payload is held as well.
    assert_eq!(counted("drop_reorder_full"), [0; 2]);
    counted("sack_sent")
}

#[test]
fn sacks_are_sent_if_both_sides_do_selective_repeat() {
    // On a busy machine gaps are closed by timeouts in most rounds.
    let both = sacks(8, [true, true], 100);
    assert!(both.iter().all(|sacks| *sacks > 0), "{both:?}");
}

#[test]
fn no_sack_is_sent_if_one_side_uses_go_back_n() {
    assert_eq!(sacks(9, [true, false], 2), [0; 2]);
    assert_eq!(sacks(10, [false, true], 2), [0; 2]);
}

/// End of a connection at one side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Established,
    Refused,
}

/// Many connections at once over a bad network: each is established at both sides, or at none.
/// `CM_CONNECTIONS` says how many.
#[test]
fn both_sides_agree_over_a_lossy_network() {
    const THREADS: usize = 32;
    let connections = std::env::var("CM_CONNECTIONS").map_or(250, |count| count.parse().unwrap());
    let faults = Some("loss=10%,dup=5%,reorder=5%");
    let server = Node::start(loopback(3, 2), faults);
    let client = Node::start(loopback(3, 1), faults);
    let listener = server.manager.listen(server.at(7174)).unwrap();
    let (next, accepted) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let outcomes = [(); 2].map(|()| Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while accepted.fetch_add(1, Ordering::Relaxed) < connections {
                    let request = listener.accept_timeout(WAIT).unwrap();
                    let number =
                        u32::from_le_bytes(request.private_data()[..4].try_into().unwrap());
                    let outcome = if number % 7 == 0 {
                        request.reject(&[]).unwrap();
                        Outcome::Refused
                    } else {
                        let qp = server.qp();
                        let connection = request.accept(qp, &Options::default()).unwrap();
                        assert!(connection.wait_disconnected(WAIT).unwrap());
                        drop(connection);
                        server.nic().destroy_qp(qp).unwrap();
                        Outcome::Established
                    };
                    let before = outcomes[0].lock().unwrap().insert(number, outcome);
                    assert_eq!(before, None, "one request was delivered twice");
                }
            });
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= connections {
                        return;
                    }
                    let number = u32::try_from(number).unwrap();
                    let (qp, data) = (client.qp(), number.to_le_bytes());
                    let mut options = Options::with_private_data(&data);
                    options.timeout = WAIT;
                    let connected = client.manager.connect(qp, server.at(7174), &options);
                    let outcome = match connected {
                        Ok(connection) => {
                            assert!(connection.disconnect(WAIT).unwrap());
                            Outcome::Established
                        }
                        Err(Error::Refused { reason: 28, .. }) => Outcome::Refused,
                        Err(error) => panic!("{number}: {error}"),
                    };
                    client.nic().destroy_qp(qp).unwrap();
                    outcomes[1].lock().unwrap().insert(number, outcome);
                }
            });
        }
    });
    let [there, here] = outcomes.map(|outcomes| outcomes.into_inner().unwrap());
    assert_eq!(here.len(), connections);
    assert_eq!(here, there);
    let usage = client.manager.service().unwrap().command(|manager, _| manager.usage()).unwrap();
    assert_eq!((usage.ids, usage.events, usage.transmits), (0, 0, 0), "{usage:?}");
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Many connections in turn leave nothing behind, but for what timewait remembers for half a
/// second.
#[test]
fn connections_in_turn_leave_nothing() {
    in_namespace(|| {
        let server = Node::start(loopback(4, 2), None);
        let client = Node::start(loopback(4, 1), None);
        let listener = server.manager.listen(server.at(7174)).unwrap();
        let before = descriptors();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    let qp = server.qp();
                    let request = listener.accept_timeout(WAIT).unwrap();
                    let connection = request.accept(qp, &Options::default()).unwrap();
                    assert!(connection.wait_disconnected(WAIT).unwrap());
                    drop(connection);
                    server.nic().destroy_qp(qp).unwrap();
                }
            });
            for _ in 0..200 {
                let qp = client.qp();
                let connected = client.manager.connect(qp, server.at(7174), &Options::default());
                assert!(connected.unwrap().disconnect(WAIT).unwrap());
                client.nic().destroy_qp(qp).unwrap();
            }
        });
        assert_eq!(descriptors(), before);
        for node in [&server, &client] {
            let usage =
                node.manager.service().unwrap().command(|manager, _| manager.usage()).unwrap();
            let listeners = usize::from(node.address == server.address);
            assert_eq!((usage.ids, usage.bindings), (listeners, listeners), "{usage:?}");
            assert_eq!((usage.events, usage.queries, usage.transmits), (0, 0, 0), "{usage:?}");
            assert_eq!(usage.connections, usage.lingering, "{usage:?}");
        }
    });
}

/// A peer that asks and never answers keeps no other waiting, and its request fails alone.
#[test]
fn half_open_request_blocks_no_accept() {
    let server = Node::start(loopback(14, 1), None);
    let listener = server.manager.listen(server.at(0)).unwrap();
    let at = listener.local_addr().unwrap();
    let silent = crate::service::Node::start_with_short_timers(&loopback(14, 2).to_string());
    silent.connect(at, b"silent");
    let answer = || {
        let request = listener.accept_timeout(WAIT).unwrap();
        let mut options = Options::default();
        options.timeout = WAIT;
        request.begin_accept(server.qp(), &options).unwrap()
    };
    let mut half_open = answer();
    silent.expect(EventKind::ConnectResponse);
    std::thread::scope(|scope| {
        let client = Node::start(loopback(14, 3), None);
        let connecting = scope.spawn(move || {
            let connection = client.manager.connect(client.qp(), at, &Options::default()).unwrap();
            (client, connection)
        });
        let accepted = answer().wait().unwrap();
        assert!(half_open.poll().unwrap().is_none(), "the silent one is not established");
        let (client, connection) = connecting.join().unwrap();
        assert_eq!(accepted.peer_addr(), connection.local_addr());
        drop((connection, client));
        assert!(accepted.wait_disconnected(WAIT).unwrap());
    });
    drop(half_open);
    silent.expect(EventKind::Rejected);
}

/// Data that comes before the RTU, which is lost, establishes the connection.
#[test]
fn data_establishes_a_connection_whose_rtu_is_lost() {
    let server = Node::start(loopback(15, 1), None);
    let listener = server.manager.listen(server.at(0)).unwrap();
    let at = listener.local_addr().unwrap();
    // Of what it sends to queue pair 1, only the REQ arrives.
    let faults: Vec<_> = (2..40).map(|nth| format!("drop=1:*:{nth}")).collect();
    let client = Node::start(loopback(15, 2), Some(&faults.join(",")));
    let server_qp = server.qp();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let request = listener.accept_timeout(WAIT).unwrap();
            server.manager.prepare(server_qp).unwrap();
            let buffer = post_recv(&server, server_qp);
            let mut options = Options::default();
            options.timeout = WAIT;
            (request.accept(server_qp, &options).unwrap(), buffer)
        });
        let qp = client.qp();
        let connection = client.manager.connect(qp, at, &Options::default()).unwrap();
        let op = SendOp::Send { imm: None };
        client.nic().post_send(qp, &SendWr::new(WrId(2), op, Data::Inline(b"data"))).unwrap();
        let (accepted, _buffer) = accepting.join().unwrap();
        assert_eq!(server.nic().wait_cq(server.cq).unwrap().byte_len, 4);
        drop((accepted, connection));
    });
}

/// The end of a connection, by a call or by dropping it, comes after what was posted.
#[test]
fn end_of_a_connection_delivers_what_was_posted() {
    const MESSAGES: usize = 12;
    for (number, is_dropped) in [(1, false), (2, true)] {
        let faults = Some("loss=10%");
        let server = Node::start(loopback(16, number), faults);
        let client = Node::start(loopback(17, number), faults);
        let listener = server.manager.listen(server.at(0)).unwrap();
        let at = listener.local_addr().unwrap();
        let (client_qp, server_qp) = (client.qp(), server.qp());
        std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                let request = listener.accept_timeout(WAIT).unwrap();
                server.manager.prepare(server_qp).unwrap();
                let buffers: Vec<_> =
                    (0..MESSAGES).map(|_| post_recv(&server, server_qp)).collect();
                (request.accept(server_qp, &Options::default()).unwrap(), buffers)
            });
            let connection = client.manager.connect(client_qp, at, &Options::default()).unwrap();
            let (accepted, _buffers) = accepting.join().unwrap();
            for _ in 0..MESSAGES {
                let op = SendOp::Send { imm: None };
                let send = SendWr::new(WrId(2), op, Data::Inline(b"data"));
                client.nic().post_send(client_qp, &send).unwrap();
            }
            if is_dropped {
                drop(connection);
            } else {
                scope.spawn(move || connection.disconnect(WAIT).unwrap());
            }
            let (mut received, mut looks) = (0, 0);
            while received < MESSAGES {
                let mut completions = [Wc::default(); MESSAGES];
                let count = server.nic().poll_cq(server.cq, &mut completions);
                assert!(completions[..count].iter().all(Wc::is_success), "{completions:?}");
                received += count;
                looks += 1;
                assert!(looks < 30_000, "{received} of {MESSAGES} messages came");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(accepted.wait_disconnected(WAIT).unwrap());
        });
    }
}
