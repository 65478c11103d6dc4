//! Two software NICs on a cable in one process: SEND, WRITE and READ, with their completions.
//!
//! ```console
//! $ cargo run --example two_nics
//! ```

use std::error::Error;
use std::net::Ipv4Addr;

use roce::link::cable;
use roce::memory::Buffer;
use roce::nic::SoftNic;
use roce::verbs::{
    Access, Connect, CqHandle, Data, Device, MrHandle, QpHandle, QpType, RecvWr, SendOp, SendWr,
    Sge, WrId,
};
use roce::wire::Gid;

/// What a program has at its NIC: a completion queue, a QP, and registered memory.
struct Side {
    nic: SoftNic,
    cq: CqHandle,
    qp: QpHandle,
    buffer: Buffer,
    mr: MrHandle,
}

impl Side {
    fn new(nic: SoftNic) -> Result<Self, Box<dyn Error>> {
        let (pd, cq) = (nic.create_pd()?, nic.create_cq(16)?);
        let qp = nic.create_simple_qp(pd, cq, QpType::Rc)?;
        let buffer = Buffer::new(4096);
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = nic.register(pd, &buffer, rights)?;
        Ok(Self { nic, cq, qp, buffer, mr })
    }

    fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.buffer.addr() + offset, length, lkey: self.mr.lkey() }
    }

    /// Posts a request and waits for its completion.
    fn post(&self, op: SendOp, sge: Sge) -> Result<(), Box<dyn Error>> {
        let sges = [sge];
        self.nic.post_send(self.qp, &SendWr::new(WrId(1), op, Data::Gather(&sges)))?;
        println!("requester: {:?}", self.nic.wait_cq(self.cq)?);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let [here, there] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
    let (a, b) = cable(here, there)?;
    let (a, b) = (Side::new(SoftNic::start(a)?)?, Side::new(SoftNic::start(b)?)?);

    // Each side tells the other its address, QPN and first PSN, by any means: here both are in one process.
    a.nic.connect(a.qp, &b.nic.endpoint(b.qp)?, &Connect::default())?;
    b.nic.connect(b.qp, &a.nic.endpoint(a.qp)?, &Connect::default())?;

    // SEND: needs a receive at the responder.
    let sges = [b.sge(0, 64)];
    b.nic.post_recv(b.qp, &RecvWr { id: WrId(7), sges: &sges })?;
    a.buffer.write(0, b"hello")?;
    a.post(SendOp::Send { imm: None }, a.sge(0, 5))?;
    println!("responder: {:?}", b.nic.wait_cq(b.cq)?);

    // WRITE and READ: need the address and the R_Key, and the responder's program does nothing.
    let (remote_addr, rkey) = (b.buffer.addr() + 1024, b.mr.rkey());
    a.post(SendOp::Write { remote_addr, rkey, imm: None }, a.sge(0, 5))?;
    a.post(SendOp::Read { remote_addr, rkey }, a.sge(100, 5))?;
    let read = a.buffer.to_vec().get(100..105).map(<[u8]>::to_vec);
    assert_eq!(read.as_deref(), Some(&b"hello"[..]));
    Ok(())
}
