//! Openings and requests of clients of `roce serve`, as strangers write them.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::Duration;

use roce::control::Protocol;
use serde_json::{Value, json};

/// A nonce of a client, which takes no trouble over it.
pub const NONCE: &str = "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f";

/// First line of a client.
pub fn first_line(protocol: Protocol) -> String {
    format!("{} {NONCE}\n", protocol.magic())
}

fn line(request: &Value) -> String {
    format!("{request}\n")
}

fn gid_of(address: Ipv4Addr) -> String {
    address.to_ipv6_mapped().to_string()
}

/// Wishes of a client of `roce bench`.
pub struct Bench {
    pub gid: Ipv4Addr,
    pub op: &'static str,
    pub connection: &'static str,
    /// `{"seconds": 600}` or `{"iterations": 5}`.
    pub extent: Value,
    pub qps: u32,
    pub tx_depth: u32,
}

impl Bench {
    /// A client that wants traffic at a GID for ten minutes.
    pub fn new(gid: Ipv4Addr, op: &'static str, connection: &'static str) -> Self {
        Self { gid, op, connection, extent: json!({"seconds": 600}), qps: 1, tx_depth: 128 }
    }

    pub fn request(&self) -> String {
        let qp = |q: u32| json!({"gid": gid_of(self.gid), "qpn": 0x1000 + q, "psn": 7});
        let plan = json!({
            "op": self.op, "metric": "bw", "connection": self.connection, "sizes": [4096],
            "extent": self.extent, "qps": self.qps, "mtu": 4096, "tx_depth": self.tx_depth,
            "bidirectional": true, "verify": false,
        });
        let qps: Vec<Value> = (0..self.qps).map(qp).collect();
        let client = json!({"qps": qps, "addr": 0x1000, "rkey": 1, "link": "udp"});
        line(&json!({"plan": plan, "client": client}))
    }
}

/// Request of a client of `roce ping`.
pub fn ping(gid: &str, qpn: u32, rate: u32) -> String {
    line(&json!({"prober": {"gid": gid, "qpn": qpn, "qkey": 1}, "rate": rate}))
}

/// Request of a client that wants a queue pair.
pub fn offer(peer: Ipv4Addr) -> String {
    let peer = json!({"gid": gid_of(peer), "qpn": 0x11, "psn": 0});
    line(&json!({
        "connection": "rc", "mtu": 1024, "peer": peer, "receives": 0, "receive_bytes": 0, "regions": [],
    }))
}

/// Request of a client of `roce mesh`.
pub fn mesh(targets: &[String]) -> String {
    line(&json!({"paths": 1, "count": 10, "interval": 1000, "timeout": 1000, "targets": targets}))
}

/// Sends all that a client has to say; returns all that the server answers.
pub fn ask(mut stream: TcpStream, text: &str) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}
