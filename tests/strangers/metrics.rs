//! `roce mesh --metrics`: slow, silent and greedy clients keep Prometheus out of nothing.

use std::net::SocketAddr;

use super::harness::{Running, TcpStranger, address};

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

/// Metrics of a mesh whose hosts are not there, and where they are served.
fn start(number: u16) -> (Running, SocketAddr) {
    let at = format!("{}:0", address(number));
    let hosts = [1, 2].map(|port| format!("{}:{port}", address(number)));
    let args = ["mesh", "--metrics", &at, "--every", "1000", &hosts[0], &hosts[1]];
    let mesh = Running::start(&args, &[]);
    let said = mesh.wait_for("/metrics\n");
    let (_, rest) = said.split_once("http://").unwrap();
    let (at, _) = rest.split_once("/metrics").unwrap();
    (mesh, at.parse().unwrap())
}

#[track_caller]
fn scrape(from: u16, to: SocketAddr, request: &[u8]) -> String {
    let mut client = TcpStranger::connect(from, to);
    client.send(request).unwrap();
    client.rest()
}

#[test]
fn slow_clients_keep_no_other_out() {
    let (_mesh, at) = start(520);
    // More than are served at once, of one address and of several; each has begun its request.
    let mut slow: Vec<TcpStranger> =
        (0..40).map(|number| TcpStranger::connect(521 + number % 10, at)).collect();
    for client in &mut slow {
        let _ = client.send(b"G");
    }
    for from in [535, 521] {
        let answer = scrape(from, at, REQUEST);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("roce_mesh_rounds_total"), "{answer}");
    }
    // A client that never finishes its request is disconnected.
    let mut dripping = slow.pop().unwrap();
    while dripping.send(b"E").is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn requests_that_are_too_large_get_an_answer_that_is_not() {
    let (_mesh, at) = start(540);
    let large = [b"GET /".as_slice(), &[b'a'; 64 << 10], b"\r\n\r\n"].concat();
    let mut client = TcpStranger::connect(541, at);
    let _ = client.send(&large);
    client.rest();
    assert!(client.received.bytes < 300, "{:?}", client.received);
    assert!(scrape(541, at, REQUEST).contains("200 OK"));
}

#[test]
fn format_is_the_one_that_the_client_accepts() {
    let (_mesh, at) = start(550);
    let text = scrape(551, at, REQUEST);
    assert!(text.contains("Content-Type: text/plain; version=0.0.4"), "{text}");
    assert!(text.contains("# TYPE roce_mesh_rounds_total counter\n"), "{text}");
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    let accept =
        b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n";
    let open = scrape(551, at, accept);
    assert!(open.contains("Content-Type: application/openmetrics-text"), "{open}");
    assert!(open.contains("# TYPE roce_mesh_rounds counter\n") && open.ends_with("# EOF\n"));
}
