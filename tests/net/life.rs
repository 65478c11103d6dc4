//! Begin and end of connections.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use roce::connect::{ConnectionManager, Options};
use roce::device::Context;
use roce::link::{cable, udp};
use roce::net::{Config, Connection, Endpoint, Error, Listener};
use roce::nic::SoftNic;
use roce::verbs::QpType;
use roce::wire::Gid;

use crate::common::process::Command;
use crate::{WAIT, config, endpoint, loopback, pair};

#[test]
fn private_data_is_exchanged_and_a_peer_may_be_refused() {
    let (client, server) = (endpoint(loopback(10, 1), None), endpoint(loopback(10, 2), None));
    let listener = server.listen((loopback(10, 2), 0)).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = listener.request().unwrap();
            assert_eq!(request.private_data(), b"may I?");
            request.refuse(b"no").unwrap();
            let request = listener.request_timeout(WAIT).unwrap();
            assert_eq!(request.private_data(), [7; 36]);
            let connection = request.accept_with(b"welcome").unwrap();
            assert_eq!(connection.private_data(), [7; 36]);
            assert_eq!(connection.recv().unwrap(), None);
        });
        match client.connect_with(at, b"may I?") {
            Err(Error::Refused { private_data }) => assert_eq!(private_data, b"no"),
            other => panic!("{other:?}"),
        }
        let connection = client.connect_with(at, &[7; 36]).unwrap();
        assert_eq!(connection.private_data(), b"welcome");
        assert_eq!(connection.peer_addr(), Some(at));
    });
    let long = client.connect_with(at, &[0; 37]);
    assert!(matches!(long, Err(Error::PrivateData { len: 37, max: 36 })));
}

#[test]
fn where_nothing_listens_a_connection_is_refused() {
    let (client, _server) = (endpoint(loopback(11, 1), None), endpoint(loopback(11, 2), None));
    let refused = client.connect((loopback(11, 2), 99)).unwrap_err();
    assert!(matches!(refused, Error::Connect(roce::connect::Error::Refused { reason: 8, .. })));
}

/// A program that uses the connection manager and does not speak this protocol.
#[test]
fn a_foreign_peer_is_refused_and_the_next_is_accepted() {
    let server = endpoint(loopback(12, 2), None);
    let listener = server.listen((loopback(12, 2), 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let nic = SoftNic::start(udp::open(&udp::Options::new(loopback(12, 3).into())).unwrap());
    let manager = ConnectionManager::start(std::sync::Arc::new(nic.unwrap())).unwrap();
    let (pd, cq) = (manager.nic().create_pd().unwrap(), manager.nic().create_cq(16).unwrap());
    let qp = manager.nic().create_simple_qp(pd, cq, QpType::Rc).unwrap();
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap());
        manager.connect(qp, at, &Options::with_private_data(b"hello")).unwrap_err();
        let connection = endpoint(loopback(12, 1), None).connect(at).unwrap();
        connection.send(b"x").unwrap();
        assert_eq!(accepting.join().unwrap().recv().unwrap().as_deref(), Some(&b"x"[..]));
    });
}

#[test]
fn nonsense_over_tcp_does_not_stop_a_listener() {
    let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
    let (a, b) = cable(gids[0], gids[1]).unwrap();
    let [a, b] = [a, b].map(|link| {
        Endpoint::over_tcp(Context::new(SoftNic::start(link).unwrap())).unwrap().with(config())
    });
    let listener = b.listen("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let _silent_and_gone = TcpStream::connect(at).unwrap().shutdown(std::net::Shutdown::Both);
    TcpStream::connect(at).unwrap().write_all(&[0x55; 200]).unwrap();
    // More than a listener waits for: none of them says all that it should, and none ends.
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(at).unwrap()).collect();
    silent.iter().step_by(2).for_each(|mut stream| stream.write_all(b"half").unwrap());
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().unwrap());
        let connection = a.connect(at).unwrap();
        accepting.join().unwrap().send(b"x").unwrap();
        assert_eq!(connection.recv().unwrap().as_deref(), Some(&b"x"[..]));
        let refused = scope.spawn(|| a.connect_with(at, b"?").unwrap_err());
        listener.request().unwrap().refuse(b"full").unwrap();
        let refused = refused.join().unwrap();
        assert!(matches!(refused, Error::Refused { private_data } if private_data == b"full"));
    });
}

#[test]
fn what_was_sent_before_a_drop_arrives() {
    let (client, server) = (endpoint(loopback(13, 1), None), endpoint(loopback(13, 2), None));
    let (a, b) = pair(&server, (loopback(13, 2), 0).into(), &client);
    for number in 0..20 {
        a.send(&[number; 100]).unwrap();
    }
    drop(a);
    for number in 0..20 {
        assert_eq!(b.recv().unwrap(), Some(vec![number; 100]));
    }
    assert_eq!(b.recv().unwrap(), None);
    b.close().unwrap();
}

#[test]
fn both_sides_may_close_at_once() {
    let (client, server) = (endpoint(loopback(14, 1), None), endpoint(loopback(14, 2), None));
    let (a, b) = pair(&server, (loopback(14, 2), 0).into(), &client);
    std::thread::scope(|scope| {
        for connection in [&a, &b] {
            scope.spawn(|| {
                (0..500).for_each(|_| connection.try_send(&[0; 500]).unwrap_or_default());
                connection.close().unwrap();
            });
        }
    });
}

#[test]
fn close_does_not_wait_for_a_peer_that_has_gone() {
    let [client, server] =
        [1, 2].map(|host| endpoint(loopback(17, host), None).with(config().linger(10 * WAIT)));
    let (a, b) = pair(&server, (loopback(17, 2), 0).into(), &client);
    drop(a);
    assert_eq!(b.recv().unwrap(), None, "the peer has closed");
    let (done, is_done) = std::sync::mpsc::channel();
    let closing = std::thread::spawn(move || {
        b.close().unwrap();
        done.send(()).unwrap();
    });
    is_done.recv_timeout(WAIT).expect("it waits for acknowledgments of a peer that is gone");
    closing.join().unwrap();
}

#[test]
fn bind_and_connect_open_nics_by_themselves() {
    let listener = Listener::bind((loopback(15, 1), 0)).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let connection = listener.accept().unwrap();
            while let Some(message) = connection.recv().unwrap() {
                connection.send(&message).unwrap();
            }
        });
        let connection = Connection::connect(at).unwrap();
        connection.send(b"there and back").unwrap();
        assert_eq!(connection.recv().unwrap().as_deref(), Some(&b"there and back"[..]));
        connection.close().unwrap();
    });
    assert!(Listener::bind("198.51.100.7:1").is_err(), "not an address of this machine");
}

/// The peer of the next test: run by it, and by nothing else.
#[test]
fn peer_process() {
    if std::env::var_os("ROCE_NET_PEER").is_none() {
        return;
    }
    let server = endpoint(loopback(16, 2), None);
    let listener = server.listen((loopback(16, 2), 0)).unwrap();
    println!("\nat {}", listener.local_addr().unwrap());
    let connection = listener.accept().unwrap();
    connection.send(b"one").unwrap();
    while connection.recv().unwrap().is_some() {}
}

#[test]
fn a_killed_peer_is_an_error_for_idle_and_busy_callers() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "life::peer_process", "--nocapture"])
        .env("ROCE_NET_PEER", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let at =
        lines.map_while(Result::ok).find_map(|line| Some(line.strip_prefix("at ")?.to_owned()));
    let quick = Config::default().keepalive(Duration::from_millis(200)).linger(WAIT);
    let client = endpoint(loopback(16, 1), None).with(quick);
    let connection = client.connect(at.unwrap()).unwrap();
    let mut message = Vec::new();
    assert!(connection.recv_timeout(&mut message, WAIT).unwrap());
    child.kill().unwrap();
    child.wait().unwrap();
    // A reader that only waits, and a writer.
    let lost = connection.recv_timeout(&mut message, WAIT);
    assert!(matches!(lost, Err(Error::Lost(_))), "{lost:?}");
    assert!(matches!(connection.send(b"hello?"), Err(Error::Lost(_))));
}
