//! A soft NIC at the other end of a TAP device: a host of its own, which this machine's kernel
//! reaches by ping, and its RDMA devices by queue pairs.
//!
//! ```console
//! $ cargo build --example tap_nic && unshare -Urn bash
//! # ip link set lo up
//! # ip tuntap add tap0 mode tap && ip address add 10.9.0.1/24 dev tap0 && ip link set tap0 up
//! # target/debug/examples/tap_nic tap:tap0@10.9.0.2/24 udp:10.9.0.1
//! ```
//!
//! The second device may be `verbs:rxe0`, the kernel's own RoCE on the TAP device, where it is. A
//! third argument keeps the NIC for that number of seconds, for `ping 10.9.0.2`.

use std::error::Error;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use roce::device::{Context, Cq, Device, Init, Pd, Qp, Rc};
use roce::nic::SoftNic;
use roce::rdma_nic::RdmaNic;
use roce::verbs::{Access, Connect, Endpoint};

mod common;

const USAGE: &str = "tap_nic tap:NAME@ADDRESS/PREFIX DEVICE [SECONDS]";

/// A queue pair of a device, and what it needs.
struct Side {
    pd: Pd,
    cq: Cq,
    qp: Qp<Rc, Init>,
    gid_index: u8,
    end: Endpoint,
}

fn open(name: &str) -> Result<Side, Box<dyn Error>> {
    let device: Arc<dyn Device> = match name.strip_prefix("verbs:") {
        Some(name) => Arc::new(RdmaNic::open(name)?),
        None => {
            let spec: roce::link::Spec =
                name.parse().map_err(|error| format!("{name}: {error}"))?;
            Arc::new(SoftNic::start(spec.open(None)?)?)
        }
    };
    let context = Context::from(device);
    let gids = context.gids();
    let at = gids.iter().position(|gid| gid.to_ipv4().is_some());
    let gid_index = at.ok_or_else(|| format!("{name} has no IPv4 address"))?;
    let (pd, cq) = (context.create_pd()?, context.create_cq(16)?);
    let qp = pd.qp(&cq).build::<Rc>()?;
    let gid = gids.get(gid_index).copied().unwrap_or_default();
    let end = Endpoint { gid, ..qp.endpoint()? };
    println!(
        "{name}: {}",
        gid.to_ipv4().map_or_else(|| gid.to_string(), |it| IpAddr::V4(it).to_string())
    );
    Ok(Side { pd, cq, qp, gid_index: u8::try_from(gid_index)?, end })
}

/// SEND, WRITE and READ from one side to the other.
fn talk(from: &str, to: &str) -> Result<(), Box<dyn Error>> {
    let (a, b) = (open(from)?, open(to)?);
    let connect = |own: &Side| {
        let mut how = Connect::default();
        how.gid_index = own.gid_index;
        how
    };
    let (how_a, how_b) = (connect(&a), connect(&b));
    let (a_qp, b_qp) = (a.qp.connect(&b.end, &how_a)?, b.qp.connect(&a.end, &how_b)?);
    let wait = |cq: &Cq| -> Result<_, Box<dyn Error>> {
        Ok(cq.wait(Some(Duration::from_secs(10)))?.into_result().map_err(|it| it.to_string())?)
    };
    b_qp.recv(1, b.pd.create_buf(10_000)?)?;
    let mut message = a.pd.create_buf(10_000)?;
    message.write(9_995, b"hello")?;
    a_qp.send(2, message)?;
    let message = wait(&a.cq)?.into_buf().ok_or("the buffer comes back")?;
    assert_eq!(wait(&b.cq)?.payload().get(9_995..), Some(&b"hello"[..]));
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let shared = b.pd.allocate(10_000, rights)?;
    a_qp.write(3, message, shared.slice(..)?.remote())?;
    wait(&a.cq)?;
    a_qp.read(4, shared.slice(9_995..)?.remote(), a.pd.create_buf(5)?)?;
    assert_eq!(wait(&a.cq)?.payload(), b"hello");
    println!("{from} to {to}: SEND, WRITE and READ done");
    Ok(())
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (tap, device, seconds) = match arguments.as_slice() {
        [tap, device] => (tap, device, 0),
        [tap, device, seconds] => (tap, device, common::parse("SECONDS", seconds, "a number")?),
        other => return Err(common::wrong(other, USAGE).into()),
    };
    talk(tap, device)?;
    talk(device, tap)?;
    let _nic = SoftNic::start(tap.parse::<roce::link::Spec>()?.open(None)?)?;
    std::thread::sleep(Duration::from_secs(seconds));
    Ok(())
}

fn main() -> ExitCode {
    common::end("tap_nic", run())
}
