//! A link of one's own: it wraps another and prints every packet that it sends. Anything that carries packets can be a link: a
//! tunnel, a queue between threads, a device under test.
//!
//! ```console
//! $ cargo run --example custom_link
//! ```

use std::error::Error;
use std::io;
use std::net::Ipv4Addr;

use roce::link::{Link, Sender, cable};
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::time::Instant;
use roce::verbs::{Access, Connect, Data, Device, QpType, RecvWr, SendOp, SendWr, Sge, WrId};
use roce::wire::{Batch, Gid, Packet, Path};

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

fn main() -> Result<(), Box<dyn Error>> {
    let [here, there] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
    let (a, b) = cable(here, there)?;
    let a = SoftNic::start(printing(a, "requester"))?;
    let b = SoftNic::start(printing(b, "responder"))?;

    let mut sides = Vec::new();
    for nic in [&a, &b] {
        let (pd, cq) = (nic.create_pd()?, nic.create_cq(16)?);
        let qp = nic.create_simple_qp(pd, cq, QpType::Rc)?;
        let buffer = Buffer::new(4096);
        let mr = nic.register(pd, &buffer, Access::LOCAL_WRITE)?;
        let sge = Sge { addr: buffer.addr(), length: 4096, lkey: mr.lkey() };
        sides.push((cq, qp, sge, buffer));
    }
    let [(a_cq, a_qp, a_sge, _), (_, b_qp, b_sge, _)] = &sides[..] else {
        return Err("two sides".into());
    };
    a.connect(*a_qp, &b.endpoint(*b_qp)?, &Connect::default())?;
    b.connect(*b_qp, &a.endpoint(*a_qp)?, &Connect::default())?;
    b.post_recv(*b_qp, &RecvWr { id: WrId(1), sges: &[*b_sge] })?;
    // 4096 bytes at a path MTU of 1024: FIRST, two MIDDLEs, LAST, and one ACK.
    let sges = [*a_sge];
    a.post_send(*a_qp, &SendWr::new(WrId(2), SendOp::Send { imm: None }, Data::Gather(&sges)))?;
    println!("{:?}", a.wait_cq(*a_cq)?);
    Ok(())
}
