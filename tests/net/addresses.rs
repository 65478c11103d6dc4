//! Addresses of this machine that other processes have, and all of them at once, in a network of
//! the test's own.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use roce::net::{Connection, Endpoint, Error, Listener};

use crate::common::example::example;
use crate::common::netns::{in_namespace, ip};
use crate::common::process::Child;

/// An echo server in a process of its own, and its port.
fn serve(at: &str) -> (Child, u16) {
    let mut server = example("echo").args(["serve", at]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim_end().rsplit_once(':').unwrap().1.parse().unwrap();
    (server, port)
}

fn echo(host: [u8; 4], port: u16) -> String {
    let connection = Connection::connect((std::net::IpAddr::from(host), port)).unwrap();
    connection.send(b"hello").unwrap();
    assert_eq!(connection.recv().unwrap().as_deref(), Some(&b"hello"[..]));
    connection.local_addr().unwrap().ip().to_string()
}

#[test]
fn server_of_another_process_at_an_address_of_this_machine_is_reached() {
    in_namespace(|| {
        ip("address add 10.30.0.1/24 dev lo");
        let (_server, port) = serve("10.30.0.1:0");
        // The route names the server's own address, which the client shares.
        assert_eq!(echo([10, 30, 0, 1], port), "10.30.0.1");
        // A program that does not share its address has it: the client takes one of loopback.
        ip("address add 10.33.0.1/24 dev lo");
        let _taken = std::net::UdpSocket::bind("10.33.0.1:4791").unwrap();
        let endpoint = Endpoint::towards("10.33.0.1:1".parse().unwrap()).unwrap();
        let connection = endpoint.connect(("10.30.0.1", port)).unwrap();
        let from = connection.local_addr().unwrap().to_string();
        assert!(from.starts_with("127.0.0."), "{from}");
    });
}

#[test]
fn listener_on_the_unspecified_address_has_all() {
    in_namespace(|| {
        ip("address add 10.31.0.1/24 dev lo");
        ip("address add 10.31.0.2/24 dev lo");
        let (_server, port) = serve("0.0.0.0:0");
        for host in [[127, 0, 0, 1], [10, 31, 0, 1], [10, 31, 0, 2]] {
            echo(host, port);
        }
        // Another process can listen at the same addresses, at another port.
        let taken = Listener::bind(("0.0.0.0", port)).unwrap_err();
        assert!(matches!(taken, Error::Connect(_)), "{taken:?}");
        drop(Listener::bind("0.0.0.0:0").unwrap());
        // An address that is taken is left out, as long as there is another.
        ip("address add 10.31.0.3/24 dev lo");
        let _taken = std::net::UdpSocket::bind("10.31.0.3:4791").unwrap();
        let listener = Listener::bind("0.0.0.0:0").unwrap();
        assert_ne!(listener.local_addr().unwrap().ip().to_string(), "10.31.0.3");
    });
}

#[test]
fn connections_to_all_addresses_are_accepted_by_one_listener() {
    in_namespace(|| {
        ip("address add 10.32.0.1/24 dev lo");
        let listener = Listener::bind("0.0.0.0:7000").unwrap();
        assert_eq!(listener.local_addr().unwrap().to_string(), "0.0.0.0:7000");
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                ["127.0.0.1:7000", "10.32.0.1:7000"].map(|to| {
                    let connection = Connection::connect(to).unwrap();
                    connection.send(to.as_bytes()).unwrap();
                    connection.close().unwrap();
                })
            });
            for at in ["127.0.0.1:7000", "10.32.0.1:7000"] {
                let connection = listener.accept().unwrap();
                assert_eq!(connection.local_addr().unwrap().to_string(), at);
                assert_eq!(connection.recv().unwrap().as_deref(), Some(at.as_bytes()));
                connection.close().unwrap();
            }
            client.join().unwrap();
        });
    });
}
