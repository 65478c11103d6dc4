//! A link of one's own: it wraps another and prints every packet that it sends. Anything that
//! carries packets can be a link: a tunnel, a queue between threads, a device under test.
//!
//! ```console
//! $ cargo run --example custom_link
//! ```

use std::error::Error;
use std::io;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use roce::device::{Context, Rc};
use roce::link::{Link, Sender, cable};
use roce::nic::SoftNic;
use roce::time::Instant;
use roce::verbs::Connect;
use roce::wire::{Batch, Gid, Packet, Path};

mod common;

/// The sending half: sees each batch before the inner link seals the ICRCs and sends it.
struct Printing {
    inner: Box<dyn Sender>,
    name: &'static str,
}

impl Sender for Printing {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        for (path, bytes) in batch.iter() {
            if let (Some(packet), _) = Packet::parse_cut(bytes, bytes.len()) {
                let (opcode, psn) = (packet.bth().opcode(), packet.bth().psn());
                println!("{}: {opcode} psn {psn} to {}", self.name, path.destination);
            }
        }
        self.inner.send(now, batch)
    }

    // What wraps a link passes these on: a sender may hold packets back, and count.
    fn source_port(&self, path: &Path) -> u16 {
        self.inner.source_port(path)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.inner.poll_timeout()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.inner.counters()
    }
}

/// The receiving half and what the link knows of its port stay as they are.
fn printing(link: Link, name: &'static str) -> Link {
    Link { sender: Box::new(Printing { inner: link.sender, name }), ..link }
}

fn run() -> Result<(), Box<dyn Error>> {
    common::none()?;
    let [here, there] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
    let (a, b) = cable(here, there)?;
    let a = Context::new(SoftNic::start(printing(a, "requester"))?);
    let b = Context::new(SoftNic::start(printing(b, "responder"))?);
    let (a_pd, a_cq) = (a.create_pd()?, a.create_cq(16)?);
    let (b_pd, b_cq) = (b.create_pd()?, b.create_cq(16)?);
    let (a, b) = (a_pd.qp(&a_cq).build::<Rc>()?, b_pd.qp(&b_cq).build::<Rc>()?);

    b.recv(1, b_pd.create_buf(4096)?)?;
    let (a_end, b_end) = (a.endpoint()?, b.endpoint()?);
    let a = a.connect(&b_end, &Connect::default())?;
    let _b = b.connect(&a_end, &Connect::default())?;
    // 4096 bytes at a path MTU of 1024: FIRST, two MIDDLEs, LAST, and one ACK.
    a.send(2, a_pd.create_buf(4096)?)?;
    println!("{:?}", a_cq.wait(None)?.wc);
    Ok(())
}

fn main() -> ExitCode {
    common::end("custom_link", run())
}
