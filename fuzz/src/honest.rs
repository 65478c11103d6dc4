//! An honest peer of the engine that is under attack: whatever a stranger does meanwhile, their
//! connection works.
//!
//! The stranger can send from the honest peer's address, with the right PSN, but not from its UDP
//! source port. It must not keep the connection from completing what is posted, nor change a byte
//! of it.

use std::net::Ipv4Addr;

use roce::engine::{
    Batch, Config, CqHandle, Engine, ICRC_ROOM, MrAttr, MrHandle, PdHandle, QpCreate, QpHandle,
    Received,
};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, AckTimeout, AhAttr, Data, Mtu, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr,
    SendOp, SendWr, Sge, Wc, WrId,
};
use roce::wire::{Bits, Gid, Psn, Qpn};

/// The bytes of a message: several packets.
const LEN: u32 = 600;

pub(crate) fn gid() -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, 3))
}

/// One end of the connection.
struct End {
    cq: CqHandle,
    qp: QpHandle,
    qpn: Qpn,
    buffer: Buffer,
    mr: MrHandle,
}

impl End {
    fn new(engine: &mut Engine, pd: PdHandle) -> Self {
        let cq = engine.create_cq(16).expect("few");
        let cap = QpCap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: true };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qp = engine.create_qp(pd, create).expect("few");
        let buffer = Buffer::new(4 * LEN as usize);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let attr = MrAttr { region: buffer.region(), base: 0, access };
        let mr = engine.register(pd, attr).expect("few");
        Self { cq, qp, qpn: engine.qp_number(qp).expect("it was made"), buffer, mr }
    }

    fn connect(&self, engine: &mut Engine, to: Gid, qpn: Qpn) {
        let attr = QpAttr {
            qp_access_flags: Access::REMOTE_WRITE | Access::REMOTE_READ,
            path_mtu: Mtu::M256,
            dest_qp_num: qpn,
            rq_psn: Psn::new(0xff_fffe),
            sq_psn: Psn::new(0xff_fffe),
            ah_attr: AhAttr::new(to, 0),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            // The network between them loses nothing: a side that waits longer than for ever was
            // kept from finishing.
            timeout: AckTimeout(Bits::low(0)),
            ..QpAttr::default()
        };
        engine.bring_up(self.qp, QpState::Rts, &attr).expect("it has all that it needs");
    }

    fn sge(&self, at: u32) -> Sge {
        Sge { addr: u64::from(at * LEN), length: LEN, lkey: self.mr.lkey() }
    }

    fn bytes(&self, at: u32) -> Vec<u8> {
        let mut bytes = vec![0; LEN as usize];
        self.buffer.read((at * LEN) as usize, &mut bytes).expect("inside");
        bytes
    }
}

/// The honest peer, and the queue pair of the engine under attack that it is connected to.
pub(crate) struct Honest {
    engine: Engine,
    near: End,
    far: End,
    /// Number of rounds, and whether one is in flight.
    rounds: u8,
    busy: bool,
    /// Completions of the round.
    done: Vec<Wc>,
    batch: Batch,
    /// Packets of the engine under attack that are for the honest peer: from which port, and their
    /// bytes.
    inbox: Vec<(u16, Vec<u8>)>,
    /// Time of the last exchange between them.
    pub(crate) spoke: Instant,
}

impl Honest {
    pub(crate) fn new(victim: &mut Engine, pd: PdHandle, own: Gid) -> Self {
        let mut config = Config::new(gid());
        config.port_mtu = Mtu::M1024;
        let mut engine = Engine::new(config, 11);
        let domain = engine.create_pd().expect("the first");
        let (near, far) = (End::new(victim, pd), End::new(&mut engine, domain));
        near.connect(victim, gid(), far.qpn);
        far.connect(&mut engine, own, near.qpn);
        let (batch, inbox) = (Batch::new(16), Vec::new());
        let (done, spoke) = (Vec::new(), Instant::ZERO);
        Self { engine, near, far, rounds: 0, busy: false, done, batch, inbox, spoke }
    }

    /// The number of the queue pair under attack.
    pub(crate) fn target(&self) -> (QpHandle, Qpn) {
        (self.near.qp, self.near.qpn)
    }

    /// Takes a packet of the engine under attack.
    pub(crate) fn take(&mut self, port: u16, packet: &[u8]) {
        self.inbox.push((port, packet.to_vec()));
    }

    /// Posts a message each way, a write and a read, unless such are in flight.
    pub(crate) fn post(&mut self, victim: &mut Engine) {
        if self.busy {
            return;
        }
        (self.busy, self.rounds) = (true, self.rounds.wrapping_add(1));
        for (engine, end, salt) in
            [(&mut *victim, &self.near, self.rounds), (&mut self.engine, &self.far, !self.rounds)]
        {
            end.buffer.write(0, &[salt; LEN as usize]).expect("inside");
            let recv = RecvWr { id: WrId(9), sges: &[end.sge(1)] };
            engine.post_recv(end.qp, &recv).expect("the queue is empty");
        }
        let (rkey, send) = (self.far.mr.rkey(), SendOp::Send { imm: None });
        let write = SendOp::Write { remote_addr: u64::from(2 * LEN), rkey, imm: None };
        let read = SendOp::Read { remote_addr: 0, rkey };
        for (id, op, at) in [(1, send, 0), (2, write, 0), (3, read, 3)] {
            let sges = [self.near.sge(at)];
            let wr = SendWr::new(WrId(id), op, Data::Gather(&sges));
            victim.post_send(self.near.qp, &wr, &[]).expect("the queue is empty");
        }
        let sges = [self.far.sge(0)];
        let wr = SendWr::new(WrId(1), send, Data::Gather(&sges));
        self.engine.post_send(self.far.qp, &wr, &[]).expect("the queue is empty");
    }

    /// Hands the honest peer what is for it; returns what it sends: packets and their source port.
    pub(crate) fn exchange(&mut self, now: Instant, own: Gid) -> Vec<(u16, Vec<u8>)> {
        for (source_port, packet) in core::mem::take(&mut self.inbox) {
            let received = Received {
                source: own,
                destination: gid(),
                source_port,
                ecn: 0,
                network: &[0x45; 20],
                packet: &packet,
                payload: None,
            };
            self.engine.handle_packet(now, &received);
        }
        self.engine.handle_timeout(now);
        let mut out = Vec::new();
        loop {
            self.batch.clear();
            if self.engine.poll_transmit(now, &mut self.batch) == 0 {
                return out;
            }
            let packets = self.batch.iter();
            out.extend(packets.map(|(path, bytes)| {
                (path.source_port, bytes[..bytes.len() - ICRC_ROOM].to_vec())
            }));
        }
    }

    /// Checks the round if all that was posted has completed; returns whether it has.
    pub(crate) fn finish(&mut self, victim: &mut Engine) -> bool {
        if !self.busy {
            return true;
        }
        let mut wcs = [Wc::default(); 6];
        let count = victim.poll_cq(self.near.cq, &mut wcs);
        let more = self.engine.poll_cq(self.far.cq, &mut wcs[count..]);
        self.done.extend_from_slice(&wcs[..count + more]);
        assert!(self.done.iter().all(Wc::is_success), "an honest request failed: {:?}", self.done);
        // Three sends and a receive here, a send and a receive there.
        if self.done.len() < 6 {
            return false;
        }
        let (mine, theirs) = ([self.rounds; LEN as usize], [!self.rounds; LEN as usize]);
        assert!(self.far.bytes(1) == mine && self.far.bytes(2) == mine, "not what was sent");
        assert!(self.near.bytes(1) == theirs && self.near.bytes(3) == theirs, "nor what was read");
        self.busy = false;
        self.done.clear();
        true
    }
}
