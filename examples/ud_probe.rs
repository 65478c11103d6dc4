//! Probes over unreliable datagrams: how long the network takes, and how long either host.
//!
//! ```console
//! $ cargo run --example ud_probe -- udp:127.0.0.1                  # answers probes
//! $ cargo run --example ud_probe -- udp:127.0.0.2 127.0.0.1        # probes it, on four paths
//! ```
//!
//! Across machines use the addresses of their interfaces, or `verbs:mlx5_0` for an RNIC.
//! `roce ping` does more of it.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv6Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use roce::device::{Context, Device};
use roce::nic::SoftNic;
use roce::ping::{
    Address, Answerer, Ending, Event, PathStats, Pinger, ProbeQp, ProberConfig, Role, random_id,
};
use roce::rdma_nic::RdmaNic;
use roce::wire::{Gid, QKey, Qpn, source_port};

mod common;

const CONTROL_PORT: u16 = 18601;
const PROBES: u64 = 20;
const PATHS: usize = 4;

/// Opens a soft NIC (`udp:ADDRESS`, `raw:INTERFACE`) or an RNIC (`verbs:NAME`).
fn open(device: &str) -> Result<Context, Box<dyn Error>> {
    let device: Arc<dyn Device> = match device.strip_prefix("verbs:") {
        Some(name) => Arc::new(RdmaNic::open(name)?),
        None => {
            let spec = device.parse::<roce::link::Spec>();
            let spec = spec.map_err(|error| format!("DEVICE: '{device}': {error}"))?;
            Arc::new(SoftNic::start(spec.open(None)?)?)
        }
    };
    Ok(Context::from(device))
}

/// Tells the peer where datagrams reach this side, and learns the same of the peer.
fn exchange(stream: &mut TcpStream, own: Address) -> Result<Address, Box<dyn Error>> {
    writeln!(stream, "{} {} {}", own.gid, own.qpn.get(), own.qkey.get())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let [gid, qpn, qkey] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err(format!("not an address: {line:?}").into());
    };
    Ok(Address {
        gid: Gid::from(gid.parse::<Ipv6Addr>()?),
        qpn: Qpn::new(qpn.parse()?),
        qkey: QKey::new(qkey.parse()?),
    })
}

/// Answers the probes of a peer until it closes the connection. Returns how many.
pub(crate) fn serve(nic: &Context, mut stream: TcpStream) -> Result<u64, Box<dyn Error>> {
    let qp = ProbeQp::new(nic, 0, Role::Responder)?;
    let peer = exchange(&mut stream, qp.address())?;
    let mut answerer = Answerer::new(qp, random_id()?, peer);
    stream.set_nonblocking(true)?;
    // Reading nothing is the end; an error is that there is nothing to read yet.
    while !matches!(stream.peek(&mut [0]), Ok(0)) {
        answerer.run(Duration::from_millis(100), |_| false)?;
    }
    Ok(answerer.counters().answered)
}

/// Probes a peer. Returns what became of the probes, by path.
pub(crate) fn probe(
    nic: &Context,
    mut stream: TcpStream,
    timeout: Duration,
) -> Result<Vec<PathStats>, Box<dyn Error>> {
    let qp = ProbeQp::new(nic, 0, Role::Prober)?;
    let target = exchange(&mut stream, qp.address())?;
    let config = ProberConfig::new(random_id()?)
        .interval(Duration::from_millis(10))
        .timeout(timeout)
        .count(PROBES)
        .paths(PATHS);
    let labels = config.flow_labels.clone();
    let mut pinger = Pinger::new(qp, config, &[target]);
    let mut paths = vec![PathStats::default(); PATHS];
    while !pinger.is_done() {
        let Some(Event::Ended { path, number, ending, .. }) = pinger.next(timeout)? else {
            continue;
        };
        paths[path].add(&ending);
        let port = source_port(labels[path]);
        match ending {
            Ending::Answered(stamps) => println!(
                "{number:>3} port {port}: network {:?}, prober {:?}, responder {:?}",
                stamps.network().unwrap_or_default(),
                stamps.prober().unwrap_or_default(),
                stamps.responder
            ),
            other => println!("{number:>3} port {port}: {other:?}"),
        }
    }
    Ok(paths)
}

fn run() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [device] => {
            let (nic, listener) = (open(device)?, TcpListener::bind(("::", CONTROL_PORT))?);
            println!("answering on {device}");
            println!("answered {} probes", serve(&nic, listener.accept()?.0)?);
        }
        [device, server] => {
            let stream = TcpStream::connect((server.as_str(), CONTROL_PORT));
            let cannot_connect =
                |error| format!("SERVER: {server}, TCP port {CONTROL_PORT}: {error}");
            let (nic, stream) = (open(device)?, stream.map_err(cannot_connect)?);
            let paths = probe(&nic, stream, Duration::from_secs(1))?;
            let lost: u64 = paths.iter().map(|path| path.lost).sum();
            println!("{lost} of {PROBES} lost");
        }
        _ => return Err(common::wrong(&args, "ud_probe DEVICE [SERVER]").into()),
    }
    Ok(())
}

fn main() -> ExitCode {
    common::end("ud_probe", run())
}
