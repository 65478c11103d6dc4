//! Connections by the connection manager: what every device's must do, a soft NIC's and the
//! system's alike.
//!
//! Two soft NICs on loopback addresses, unless `ROCE_TEST_DEVICE=verbs:NAME` names a real one,
//! which then is opened twice and connects to itself. `tools/ibverbs/tests/system_cm.rs` has the
//! same file, and runs it so on the system's librdmacm.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use roce::cm;
use roce::connect::{Connection, ConnectionManager, Error, Listener, Options};
use roce::device::Device;
use roce::link::udp;
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::rdma_nic::RdmaNic;
use roce::verbs::{
    Access, CqHandle, Data, MrHandle, PdHandle, QpHandle, QpState, QpType, RecvWr, SendOp, SendWr,
    Sge, WrId,
};

/// Longer than anything takes on a loaded machine.
const WAIT: Duration = Duration::from_secs(60);

const BYTES: usize = 64;

/// A device with its connection manager and what queue pairs need.
struct Node {
    manager: ConnectionManager,
    pd: PdHandle,
    cq: CqHandle,
    buffer: Buffer,
    mr: MrHandle,
    address: IpAddr,
}

/// Two nodes that reach each other. Tests run at once: each has a number of its own.
fn nodes(test: u8) -> [Node; 2] {
    [1, 2].map(|host| {
        let nic: Arc<dyn Device> = match std::env::var("ROCE_TEST_DEVICE") {
            Ok(spec) => {
                let name = spec.strip_prefix("verbs:").expect("ROCE_TEST_DEVICE is verbs:NAME");
                Arc::new(RdmaNic::open(name).unwrap())
            }
            Err(_) => {
                let link = udp::open(&udp::Options::new([127, 19, test, host].into())).unwrap();
                Arc::new(SoftNic::start(link).unwrap())
            }
        };
        Node::new(nic)
    })
}

impl Node {
    fn new(nic: Arc<dyn Device>) -> Self {
        let (pd, cq) = (nic.create_pd().unwrap(), nic.create_cq(64).unwrap());
        let buffer = Buffer::new(BYTES);
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = nic.register(pd, &buffer, access).unwrap();
        let address =
            nic.gids().iter().find_map(|gid| gid.to_ipv4()).expect("it has an IPv4 address");
        let manager = ConnectionManager::start(nic).unwrap();
        Self { manager, pd, cq, buffer, mr, address: address.into() }
    }

    fn nic(&self) -> &dyn Device {
        &**self.manager.nic()
    }

    fn qp(&self) -> QpHandle {
        self.nic().create_simple_qp(self.pd, self.cq, QpType::Rc).unwrap()
    }

    fn listen(&self) -> (Listener, SocketAddr) {
        let listener = self.manager.listen((self.address, 0).into()).unwrap();
        let at = listener.local_addr().unwrap();
        assert_eq!(at.ip(), self.address);
        assert_ne!(at.port(), 0);
        (listener, at)
    }

    fn sge(&self) -> Sge {
        Sge { addr: self.buffer.addr(), length: BYTES as u32, lkey: self.mr.lkey() }
    }

    fn post_recv(&self, qp: QpHandle) {
        self.manager.prepare(qp).unwrap();
        self.nic().post_recv(qp, &RecvWr { id: WrId(1), sges: &[self.sge()] }).unwrap();
    }

    /// Posts a request and waits until it is complete.
    fn run(&self, qp: QpHandle, op: SendOp, data: Data<'_>) {
        self.nic().post_send(qp, &SendWr::new(WrId(2), op, data)).unwrap();
        let wc = self.nic().wait_cq(self.cq).unwrap();
        assert!(wc.is_success(), "{wc:?}");
    }

    fn destroy_qp(&self, qp: QpHandle) {
        self.nic().destroy_qp(qp).unwrap();
    }
}

/// Connects two nodes, each by a queue pair with a receive.
fn connected(server: &Node, client: &Node, options: &Options<'_>) -> [(Connection, QpHandle); 2] {
    let (listener, at) = server.listen();
    let (there, here) = (server.qp(), client.qp());
    server.post_recv(there);
    client.post_recv(here);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let request = listener.accept_timeout(WAIT).unwrap();
            assert_eq!((request.local_addr(), request.peer_addr().ip()), (at, client.address));
            let data = request.private_data().to_vec();
            assert_eq!(data.len(), 56);
            assert!(data.starts_with(options.private_data));
            request.accept(there, &Options::with_private_data(b"welcome")).unwrap()
        });
        let connection = client.manager.connect(here, at, options).unwrap();
        assert_eq!(connection.private_data().len(), 196);
        assert_eq!(&connection.private_data()[..8], b"welcome\0");
        assert_eq!(connection.peer_addr(), Some(at));
        let accepted = accepting.join().unwrap();
        assert_eq!(accepted.peer_addr(), connection.local_addr());
        [(accepted, there), (connection, here)]
    })
}

#[test]
fn messages_are_exchanged_until_the_client_disconnects() {
    let [server, client] = nodes(1);
    let options = Options::with_private_data(b"hi!");
    let [(accepted, there), (connection, here)] = connected(&server, &client, &options);
    for (from, to, qp) in [(&client, &server, here), (&server, &client, there)] {
        from.run(qp, SendOp::Send { imm: None }, Data::Inline(b"data"));
        assert_eq!(to.nic().wait_cq(to.cq).unwrap().byte_len, 4);
        let mut data = [0; 4];
        to.buffer.read(0, &mut data).unwrap();
        assert_eq!(&data, b"data");
    }
    assert!(!accepted.wait_disconnected(Duration::ZERO).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(connection.disconnect(WAIT).unwrap()));
        assert!(accepted.wait_disconnected(WAIT).unwrap());
    });
    assert!(accepted.wait_disconnected(WAIT).unwrap(), "it is remembered");
    assert_eq!(server.nic().qp_state(there), Some(QpState::Rts));
    assert_eq!(client.nic().qp_state(here), Some(QpState::Err));
    drop(accepted);
    assert_eq!(server.nic().qp_state(there), Some(QpState::Err));
}

#[test]
fn reads_in_flight_are_what_both_sides_can_do() {
    let [server, client] = nodes(2);
    let mut options = Options::default();
    // Powers of two: rxe rounds up to one.
    (options.initiator_depth, options.responder_resources) = (4, 2);
    let [(_accepted, there), (_connection, here)] = connected(&server, &client, &options);
    let depth = |node: &Node, qp| {
        let attr = node.nic().query_qp(qp).unwrap();
        (attr.max_rd_atomic, attr.max_dest_rd_atomic)
    };
    assert_eq!(depth(&client, here), (4, 2));
    assert_eq!(depth(&server, there), (2, 4));
    server.buffer.write(0, b"to be read").unwrap();
    let read = SendOp::Read { remote_addr: server.buffer.addr(), rkey: server.mr.rkey() };
    client.run(here, read, Data::Gather(&[client.sge()]));
    let mut data = [0; 10];
    client.buffer.read(0, &mut data).unwrap();
    assert_eq!(&data, b"to be read");
}

#[test]
fn connection_that_is_dropped_ends_at_the_peer() {
    let [server, client] = nodes(3);
    for drops_client in [true, false] {
        let options = Options::default();
        let [(accepted, _), (connection, _)] = connected(&server, &client, &options);
        let (dropped, kept) =
            if drops_client { (connection, accepted) } else { (accepted, connection) };
        drop(dropped);
        assert!(kept.wait_disconnected(WAIT).unwrap());
    }
}

#[test]
fn refusals_have_a_reason_and_data() {
    let [server, client] = nodes(4);
    let (listener, at) = server.listen();
    let connect = |to| {
        let qp = client.qp();
        let connected = client.manager.connect(qp, to, &Options::default());
        client.destroy_qp(qp);
        match connected.unwrap_err() {
            Error::Refused { reason, private_data } => (reason, private_data.as_slice().to_vec()),
            other => panic!("{other}"),
        }
    };
    let taken = server.manager.listen(at).unwrap_err();
    assert_eq!(std::io::Error::from(taken).kind(), std::io::ErrorKind::AddrInUse);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            listener.accept_timeout(WAIT).unwrap().reject(b"not today").unwrap();
            drop(listener.accept_timeout(WAIT).unwrap());
        });
        let (reason, data) = connect(at);
        assert_eq!((reason, &data[..9]), (28, &b"not today"[..]));
        assert_eq!(connect(at).0, 28);
    });
    drop(listener);
    // Nothing listens there any more.
    assert_eq!(connect(at).0, 8);
}

#[test]
fn wildcard_listener_tells_the_address_of_a_request() {
    let [server, client] = nodes(5);
    let listener = server.manager.listen((Ipv4Addr::UNSPECIFIED, 0).into()).unwrap();
    let at = SocketAddr::new(server.address, listener.local_addr().unwrap().port());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.accept_timeout(WAIT).unwrap();
            assert_eq!(request.local_addr(), at);
            drop(request.accept(server.qp(), &Options::default()).unwrap());
        });
        let connection = client.manager.connect(client.qp(), at, &Options::default()).unwrap();
        assert!(connection.wait_disconnected(WAIT).unwrap());
    });
}

#[test]
fn bad_arguments_are_refused_at_once() {
    let [server, client] = nodes(6);
    let (listener, at) = server.listen();
    assert!(matches!(listener.accept_timeout(Duration::ZERO), Err(Error::Timeout)));
    let long = [0; 57];
    let options = Options::with_private_data(&long);
    let error = client.manager.connect(client.qp(), at, &options).unwrap_err();
    let expected = cm::Error::PrivateData { len: 57, max: 56 };
    assert!(matches!(error, Error::Manager(error) if error == expected), "{error}");
    // Two NICs never take the other's queue pairs.
    let error = client.manager.connect(server.qp(), at, &Options::default()).unwrap_err();
    assert!(matches!(error, Error::NoQp), "{error}");
    // An address that no device has.
    let error = server.manager.listen("192.0.2.77:7".parse().unwrap()).unwrap_err();
    let kind = std::io::Error::from(error).kind();
    assert_eq!(kind, std::io::ErrorKind::AddrNotAvailable);
}

#[test]
fn many_connections_at_once_have_each_its_own_peer() {
    const CONNECTIONS: u8 = 16;
    let [server, client] = nodes(7);
    let (listener, at) = server.listen();
    std::thread::scope(|scope| {
        for number in 0..CONNECTIONS {
            scope.spawn(|| {
                let request = listener.accept_timeout(WAIT).unwrap();
                let (qp, asked) = (server.qp(), request.private_data()[0]);
                let answer = [asked + 100];
                let options = Options::with_private_data(&answer);
                let accepted = request.accept(qp, &options).unwrap();
                assert_eq!(accepted.private_data()[0], asked);
                assert!(accepted.wait_disconnected(WAIT).unwrap());
                drop(accepted);
                server.destroy_qp(qp);
            });
            let client = &client;
            scope.spawn(move || {
                let (qp, asked) = (client.qp(), [number]);
                let options = Options::with_private_data(&asked);
                let connection = client.manager.connect(qp, at, &options).unwrap();
                assert_eq!(connection.private_data()[0], number + 100);
                assert!(connection.disconnect(WAIT).unwrap());
                client.destroy_qp(qp);
            });
        }
    });
}
