//! A server that opens connections as an honest one without a token does, and then lies.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::harness::address;

/// Behavior after the opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// Sends nothing at all, not even in the opening.
    Mute,
    /// Sends its lines, and then nothing.
    Silent,
    /// Sends its lines, and then keep-alive messages for ever.
    Alive,
}

/// A lying server. Its thread lasts as long as the test.
#[derive(Debug)]
pub struct Liar {
    pub address: Ipv4Addr,
    pub port: u16,
}

impl Liar {
    /// Serves clients; `lines` gives what it says to a client of a protocol after the welcome.
    pub fn start(
        number: u16,
        behavior: Behavior,
        lines: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Self {
        let address = address(number);
        let listener = TcpListener::bind((address, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let lines = Arc::new(lines);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let lines = Arc::clone(&lines);
                thread::spawn(move || serve(&stream, behavior, &*lines));
            }
        });
        Self { address, port }
    }

    pub fn name(&self) -> String {
        format!("{}:{}", self.address, self.port)
    }
}

/// Answer of a lying server to `roce ping`: names a responder at this address.
pub fn responder(address: Ipv4Addr) -> String {
    let gid = address.to_ipv6_mapped().to_string();
    let responder = json!({"gid": gid, "qpn": 0x11, "qkey": 0x1234});
    format!("{}\n", json!({"responder": responder, "instance": 1}))
}

fn serve(mut stream: &TcpStream, behavior: Behavior, lines: &dyn Fn(&str) -> String) {
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        Some(line.trim_end().to_owned())
    };
    let Some(first) = line() else { return };
    if behavior == Behavior::Mute {
        while line().is_some() {}
        return;
    }
    let _ = stream.write_all(b"open\n");
    // The request is one line.
    line();
    let _ = stream.write_all(b"welcome\n");
    let _ = stream.write_all(lines(&first).as_bytes());
    while behavior == Behavior::Alive && stream.write_all(b"alive\n").is_ok() {
        thread::sleep(Duration::from_millis(100));
    }
    while line().is_some() {}
}
