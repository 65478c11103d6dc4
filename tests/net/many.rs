//! Many connections in one process. `NET_CONNECTIONS=1000 cargo test --test net many` has as many
//! as that.

use roce::net::{Config, Connection};

use crate::common::process::Command;
use crate::{config, endpoint, loopback};

#[test]
fn many_connections_in_one_process() {
    let count = std::env::var("NET_CONNECTIONS").map_or(100, |text| text.parse().unwrap());
    // Each has a descriptor at both sides.
    let limit = format!("--nofile={}", 2 * count + 500);
    let pid = std::process::id().to_string();
    if 2 * count > 800 {
        assert!(Command::new("prlimit").args(["--pid", &pid, &limit]).status().unwrap().success());
    }
    let small = |config: Config| config.ring(4096).writes(16);
    let client = endpoint(loopback(30, 1), None).with(small(config()));
    let server = endpoint(loopback(30, 2), None).with(small(config()));
    let listener = server.listen((loopback(30, 2), 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let (ours, theirs): (Vec<Connection>, Vec<Connection>) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| (0..count).map(|_| listener.accept().unwrap()).collect());
        let ours = (0..count).map(|_| client.connect(at).unwrap()).collect();
        (ours, accepting.join().unwrap())
    });
    for (number, connection) in (0_u64..).zip(&ours) {
        connection.send(&number.to_le_bytes()).unwrap();
    }
    let mut seen: Vec<Vec<u8>> = theirs.iter().map(|it| it.recv().unwrap().unwrap()).collect();
    for (connection, number) in theirs.iter().zip(&seen) {
        connection.send(number).unwrap();
    }
    for (number, connection) in (0_u64..).zip(&ours) {
        assert_eq!(connection.recv().unwrap().unwrap(), number.to_le_bytes());
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), count);
}
