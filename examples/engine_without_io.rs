//! Two engines without socket, clock or thread, on a simulated network that loses a packet in ten.
//! Time is a number that this program sets: ten seconds of retransmissions take no time, and the
//! same seed gives the same packets.
//!
//! ```console
//! $ cargo run --example engine_without_io
//! ```

use std::error::Error;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use roce::engine::{Batch, Config, Counter, Engine};
use roce::link::fault::Faults;
use roce::link::mem::Network;
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, AckTimeout, Connect, CqHandle, Data, Endpoint, MrAttr, QpCap, QpCreate, QpHandle,
    QpInitAttr, QpType, SendOp, SendWr, Sge, Wc, WrId,
};
use roce::wire::{Bits, Gid, Psn, RKey};

mod common;

const LEN: usize = 100_000;
const FIRST_PSN: Psn = Psn::new(100);

struct Side {
    engine: Engine,
    gid: Gid,
    cq: CqHandle,
    qp: QpHandle,
    sge: Sge,
    rkey: RKey,
    buffer: Buffer,
}

impl Side {
    fn new(host: u8) -> Result<Self, Box<dyn Error>> {
        let gid = Gid::from(Ipv4Addr::new(192, 0, 2, host));
        let mut engine = Engine::new(Config::new(gid), u64::from(host));
        let (pd, cq) = (engine.create_pd()?, engine.create_cq(16)?);
        let cap = QpCap { max_send_wr: 16, max_send_sge: 1, ..QpCap::default() };
        let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: true };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qp = engine.create_qp(pd, create)?;
        let buffer = Buffer::new(LEN);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr =
            engine.register(pd, MrAttr { region: buffer.region(), base: buffer.addr(), access })?;
        let sge = Sge { addr: buffer.addr(), length: u32::try_from(LEN)?, lkey: mr.lkey() };
        Ok(Self { engine, gid, cq, qp, sge, rkey: mr.rkey(), buffer })
    }

    /// The address of its queue pair, for its peer.
    fn endpoint(&self) -> Result<Endpoint, &'static str> {
        let qpn = self.engine.qp_number(self.qp).ok_or("the QP is gone")?;
        Ok(Endpoint { gid: self.gid, qpn, psn: FIRST_PSN })
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    common::none()?;
    let (mut a, mut b) = (Side::new(1)?, Side::new(2)?);
    let how = Connect::default().psn(FIRST_PSN).timeout(AckTimeout(Bits::low(10)));
    a.engine.connect(a.qp, &b.endpoint()?, &how)?;
    b.engine.connect(b.qp, &a.endpoint()?, &how)?;

    a.buffer.write(0, &vec![0x5a; LEN])?;
    let write = SendOp::Write { remote_addr: b.buffer.addr(), rkey: b.rkey, imm: None };
    let sges = [a.sge];
    a.engine.post_send(a.qp, &SendWr::new(WrId(1), write, Data::Gather(&sges)), &[])?;

    let faults =
        Faults { loss: 100_000, delay: std::time::Duration::from_micros(5), ..Faults::default() };
    let mut network = Network::new(faults, 7);
    let (mut now, mut batch, mut done) = (Instant::ZERO, Batch::new(64), [Wc::default()]);
    while a.engine.poll_cq(a.cq, &mut done) == 0 {
        // Drain: what each engine has to send goes into the network.
        for side in [&mut a, &mut b] {
            batch.clear();
            while side.engine.poll_transmit(now, &mut batch) > 0 {}
            for (path, bytes) in batch.iter() {
                network.send(now, path, &mut bytes.to_vec());
            }
        }
        // Advance: to the next delivery or deadline, whichever comes first.
        let deadlines = [network.poll_timeout(), a.engine.poll_timeout(), b.engine.poll_timeout()];
        now = deadlines.into_iter().flatten().min().ok_or("nothing is left to happen")?.max(now);
        // Tell: packets that arrived, and the time.
        while let Some(delivery) = network.poll_delivery(now) {
            let side = if delivery.to == a.gid { &mut a } else { &mut b };
            if let Some(received) = delivery.received() {
                side.engine.handle_packet(now, &received);
            }
        }
        a.engine.handle_timeout(now);
        b.engine.handle_timeout(now);
    }
    println!("{:?} after {now:?}", done[0]);
    println!(
        "{} retries, {} timeouts",
        a.engine.counters().get(Counter::Retry),
        a.engine.counters().get(Counter::Timeout)
    );
    assert!(done[0].is_success() && b.buffer.to_vec().iter().all(|byte| *byte == 0x5a));
    Ok(())
}

fn main() -> ExitCode {
    common::end("engine_without_io", run())
}
