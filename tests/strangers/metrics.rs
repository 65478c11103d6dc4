//! `roce mesh --metrics` and `roce devices --metrics`: slow, silent and greedy clients keep
//! Prometheus out of nothing.

use std::net::SocketAddr;

use super::harness::{Running, TcpStranger, address, spawn};

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

/// A command that serves metrics.
#[derive(Clone, Copy, Debug)]
enum Exporter {
    /// A mesh whose hosts are not there.
    Mesh,
    /// The NICs of this user.
    Devices,
}

impl Exporter {
    const ALL: [Self; 2] = [Self::Mesh, Self::Devices];

    /// A metric that it always has.
    fn metric(self) -> &'static str {
        match self {
            Self::Mesh => "roce_mesh_rounds",
            Self::Devices => "roce_qps",
        }
    }

    /// Starts the command; returns the address where it serves.
    fn start(self, number: u16) -> (Running, SocketAddr) {
        let at = format!("{}:0", address(number));
        let hosts = [1, 2].map(|port| format!("{}:{port}", address(number)));
        let process = match self {
            Self::Mesh => {
                let args = ["mesh", "--metrics", &at, "--every", "1000", &hosts[0], &hosts[1]];
                spawn(&args, &[])
            }
            Self::Devices => spawn(&["devices", "--metrics", &at], &[]),
        };
        let said = process.wait_for("/metrics\n");
        let (_, rest) = said.split_once("http://").unwrap();
        let (at, _) = rest.split_once("/metrics").unwrap();
        (process, at.parse().unwrap())
    }
}

#[track_caller]
fn scrape(from: u16, to: SocketAddr, request: &[u8]) -> String {
    let mut client = TcpStranger::connect(from, to);
    client.send(request).unwrap();
    client.rest()
}

#[test]
fn slow_clients_keep_no_other_out() {
    for (exporter, first) in Exporter::ALL.into_iter().zip([520, 560]) {
        let (_process, at) = exporter.start(first);
        // More than are served at once, of one address and of several; each has begun its request.
        let mut slow: Vec<TcpStranger> =
            (0..40).map(|number| TcpStranger::connect(first + 1 + number % 10, at)).collect();
        for client in &mut slow {
            let _ = client.send(b"G");
        }
        for from in [first + 15, first + 1] {
            let answer = scrape(from, at, REQUEST);
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(answer.contains(exporter.metric()), "{answer}");
        }
        // A client that never finishes its request is disconnected.
        let mut dripping = slow.pop().unwrap();
        while dripping.send(b"E").is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }
}

#[test]
fn requests_that_are_too_large_get_an_answer_that_is_not() {
    for (exporter, number) in Exporter::ALL.into_iter().zip([540, 580]) {
        let (_process, at) = exporter.start(number);
        let large = [b"GET /".as_slice(), &[b'a'; 64 << 10], b"\r\n\r\n"].concat();
        let mut client = TcpStranger::connect(number + 1, at);
        let _ = client.send(&large);
        client.rest();
        assert!(client.received.bytes < 300, "{:?}", client.received);
        assert!(scrape(number + 1, at, REQUEST).contains("200 OK"));
    }
}

#[test]
fn other_requests_get_no_metrics() {
    for (exporter, number) in Exporter::ALL.into_iter().zip([545, 585]) {
        let (_process, at) = exporter.start(number);
        for request in [
            "POST /metrics HTTP/1.1\r\nContent-Length: 4\r\n\r\nabcd",
            "HEAD /metrics HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n",
            "get /metrics HTTP/1.1\r\n\r\n",
            "\0\u{1}\u{2}\r\n\r\n",
        ] {
            let answer = scrape(number + 1, at, request.as_bytes());
            assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{request}: {answer}");
            assert!(answer.len() < 300 && !answer.contains(exporter.metric()), "{answer}");
        }
        assert!(scrape(number + 1, at, REQUEST).contains(exporter.metric()));
    }
}

#[test]
fn format_is_the_one_that_the_client_accepts() {
    let (_mesh, at) = Exporter::Mesh.start(550);
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
