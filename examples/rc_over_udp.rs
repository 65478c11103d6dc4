//! An RC connection between two processes over ordinary UDP sockets, without privilege. The QPs are
//! exchanged over TCP, as most verbs programs do.
//!
//! ```console
//! $ cargo run --example rc_over_udp -- 127.0.0.1                  # the server, at this address
//! $ cargo run --example rc_over_udp -- 127.0.0.2 127.0.0.1        # the client, at its own address, to the server's
//! ```
//!
//! `tcpdump -i lo udp port 4791` shows the packets; across machines use the addresses of their
//! interfaces.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::process::ExitCode;

use roce::device::{Context, Rc};
use roce::link::Spec;
use roce::nic::SoftNic;
use roce::verbs::{Connect, Endpoint, WrId};
use roce::wire::{Gid, Psn, Qpn};

mod common;

const CONTROL_PORT: u16 = 18600;

/// Sends this side's endpoint as a line, and reads the peer's.
fn exchange(
    stream: &mut TcpStream,
    address: IpAddr,
    own: &Endpoint,
) -> Result<Endpoint, Box<dyn Error>> {
    writeln!(stream, "{address} {} {}", own.qpn.get(), own.psn.get())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let [address, qpn, psn] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err(format!("not an endpoint: {line:?}").into());
    };
    let address: IpAddr = address.parse()?;
    let gid = match address {
        IpAddr::V4(v4) => Gid::from(v4),
        IpAddr::V6(v6) => Gid::from(v6),
    };
    Ok(Endpoint { gid, qpn: Qpn::new(qpn.parse()?), psn: Psn::new(psn.parse()?) })
}

fn run() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let address = |name, value: &str| common::parse::<IpAddr>(name, value, "an IP address");
    let (own, server) = match given.as_slice() {
        [own] => (address("OWN-ADDRESS", own)?, None),
        [own, server] => (address("OWN-ADDRESS", own)?, Some(address("SERVER-ADDRESS", server)?)),
        _ => {
            return Err(common::wrong(&given, "rc_over_udp OWN-ADDRESS [SERVER-ADDRESS]").into());
        }
    };

    let context = Context::new(SoftNic::start(Spec::Udp(own).open(None)?)?);
    let (pd, cq) = (context.create_pd()?, context.create_cq(16)?);
    let qp = pd.qp(&cq).build::<Rc>()?;
    qp.recv(1, pd.create_buf(64)?)?;

    let mut stream = match server {
        None => TcpListener::bind((own, CONTROL_PORT))?.accept()?.0,
        Some(server) => TcpStream::connect((server, CONTROL_PORT)).map_err(|error| {
            format!("SERVER-ADDRESS: {server}, TCP port {CONTROL_PORT}: {error}")
        })?,
    };
    let peer = exchange(&mut stream, own, &qp.endpoint()?)?;
    let qp = qp.connect(&peer, &Connect::default())?;

    let greeting = if server.is_some() { "hello from the client" } else { "hello from the server" };
    qp.send(2, greeting.as_bytes())?;
    for _ in 0..2 {
        let completion = cq.wait(None)?;
        println!("{:?}", completion.wc);
        let completion = completion.into_result().map_err(|status| status.to_string())?;
        if completion.wc.id == WrId(1) {
            println!("received: {}", String::from_utf8_lossy(&completion.payload()));
        }
    }
    // Keeps the NIC until the peer has its ACK: closing the stream is the signal.
    stream.shutdown(std::net::Shutdown::Write)?;
    std::io::copy(&mut stream, &mut std::io::sink())?;
    Ok(())
}

fn main() -> ExitCode {
    common::end("rc_over_udp", run())
}
