//! Two soft NICs on devices of one's own, which smoltcp's trait describes: here two ends of a cable
//! in memory. A DPDK port, a microcontroller's MAC or a simulator would take their place.
//!
//! ```console
//! $ cargo run --example smoltcp_device
//! ```
//!
//! Addresses are found by ARP and packets go by them, as on a network of hosts.

use std::error::Error;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixDatagram;
use std::process::ExitCode;

use roce::device::{Context, Cq, Init, Pd, Qp, Rc};
use roce::link::phy::smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use roce::link::phy::smoltcp::time::Instant;
use roce::link::phy::{self, Config, Wake};
use roce::nic::SoftNic;
use roce::verbs::Connect;
use roce::wire::MacAddr;

mod common;

/// Maximum length of a frame, with its Ethernet header.
const FRAME_MAX: usize = 4096 + 114;

/// An end of a cable. A datagram is a frame.
struct End {
    socket: UnixDatagram,
    frame: Vec<u8>,
}

/// A frame that has arrived.
struct Rx<'a>(&'a [u8]);

/// Room for a frame.
struct Tx<'a>(&'a UnixDatagram);

impl Device for End {
    type RxToken<'a> = Rx<'a>;
    type TxToken<'a> = Tx<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Rx<'_>, Tx<'_>)> {
        let len = self.socket.recv(&mut self.frame).ok()?;
        Some((Rx(self.frame.get(..len)?), Tx(&self.socket)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Tx<'_>> {
        Some(Tx(&self.socket))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_MAX;
        capabilities
    }
}

impl RxToken for Rx<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

impl TxToken for Tx<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, write: F) -> R {
        let mut frame = vec![0; len];
        let result = write(&mut frame);
        // A cable loses what it has no room for; queue pairs retransmit it.
        let _ = self.0.send(&frame);
        result
    }
}

/// Objects of one end.
type Objects = (Pd, Cq, Qp<Rc, Init>);

/// A queue pair of a NIC at this end, as host `number`.
fn open(socket: UnixDatagram, number: u8) -> Result<Objects, Box<dyn Error>> {
    socket.set_nonblocking(true)?;
    let wake = Wake::Descriptor(socket.try_clone()?.into());
    let mut config = Config::new("cable", MacAddr([2, 0, 0, 0, 0, number]), wake);
    config.addresses = vec![(Ipv4Addr::new(192, 0, 2, number).into(), 24)];
    let link = phy::open(End { socket, frame: vec![0; FRAME_MAX] }, config)?;
    println!("host {number}: {:?}, {:?}", link.port.gids, link.port.mtu);
    let context = Context::new(SoftNic::start(link)?);
    let (pd, cq) = (context.create_pd()?, context.create_cq(16)?);
    let qp = pd.qp(&cq).build::<Rc>()?;
    Ok((pd, cq, qp))
}

fn run() -> Result<(), Box<dyn Error>> {
    common::none()?;
    let (a, b) = UnixDatagram::pair()?;
    let ((a_pd, a_cq, a), (b_pd, b_cq, b)) = (open(a, 1)?, open(b, 2)?);
    let (a_end, b_end) = (a.endpoint()?, b.endpoint()?);
    let a = a.connect(&b_end, &Connect::default())?;
    let b = b.connect(&a_end, &Connect::default())?;
    b.recv(1, b_pd.create_buf(100_000)?)?;
    let mut message = a_pd.create_buf(100_000)?;
    message.write(99_995, b"hello")?;
    a.send(2, message)?;
    let received = b_cq.wait(None)?;
    println!("received: {:?}", received.wc);
    assert_eq!(received.payload().get(99_995..), Some(&b"hello"[..]));
    println!("sent: {:?}", a_cq.wait(None)?.wc);
    Ok(())
}

fn main() -> ExitCode {
    common::end("smoltcp_device", run())
}
