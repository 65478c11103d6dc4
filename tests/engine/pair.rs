//! Two engines that pass packets to each other, for tests that look at the outcome and not at the
//! packets.

use std::net::Ipv4Addr;
use std::time::Duration;

use roce::engine::{
    Batch, Config, CqHandle, Disposition, Engine, Event, MrAttr, MrHandle, PdHandle, QpCreate,
    QpHandle, Received,
};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, AckTimeout, AhAttr, Data, Mtu, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr,
    RetryCount, RnrRetry, SendOp, SendWr, Sge, Wc, WrId,
};
use roce::wire::aeth::RnrTimer;
use roce::wire::{Bits, Gid, Packet, Psn};

/// All access rights of a peer.
pub const ALL: Access = Access::LOCAL_WRITE.union(Access::MW_BIND).union(Access::REMOTE);

/// An engine with one of everything.
pub struct Side {
    pub engine: Engine,
    pub gid: Gid,
    pub pd: PdHandle,
    pub cq: CqHandle,
    pub qp: QpHandle,
    pub buffer: Buffer,
    pub mr: MrHandle,
    pub events: Vec<Event>,
}

/// The size of each side's buffer.
pub const BUFFER: usize = 1 << 20;

impl Side {
    pub fn new(number: u8, kind: QpType, config: impl FnOnce(&mut Config)) -> Self {
        let gid = Gid::from(Ipv4Addr::new(192, 0, 2, number));
        let mut settings = Config::new(gid);
        config(&mut settings);
        let mut engine = Engine::new(settings, u64::from(number));
        let pd = engine.create_pd().unwrap();
        let cq = engine.create_cq(1024).unwrap();
        let cap = QpCap {
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 64,
        };
        let init = QpInitAttr { qp_type: kind, cap, sq_sig_all: false };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qp = engine.create_qp(pd, create).unwrap();
        let buffer = Buffer::new(BUFFER);
        let attr = MrAttr { region: buffer.region(), base: buffer.addr(), access: ALL };
        let mr = engine.register(pd, attr).unwrap();
        Self { engine, gid, pd, cq, qp, buffer, mr, events: Vec::new() }
    }

    /// A piece of the buffer.
    pub fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { addr: self.buffer.addr() + offset as u64, length, lkey: self.mr.lkey() }
    }

    /// Posts a signaled send of a piece of the buffer.
    pub fn send(&mut self, id: u64, op: SendOp, offset: usize, length: u32) {
        let sges = [self.sge(offset, length)];
        let data = if length == 0 { Data::EMPTY } else { Data::Gather(&sges) };
        self.engine.post_send(self.qp, &SendWr::new(WrId(id), op, data), &[]).unwrap();
    }

    /// Posts a receive into a piece of the buffer.
    pub fn recv(&mut self, id: u64, offset: usize, length: u32) {
        let sges = [self.sge(offset, length)];
        self.engine.post_recv(self.qp, &RecvWr { id: WrId(id), sges: &sges }).unwrap();
    }

    /// All completions there are.
    pub fn completions(&mut self) -> Vec<Wc> {
        let mut all = vec![Wc::default(); 1024];
        let count = self.engine.poll_cq(self.cq, &mut all);
        all.truncate(count);
        all
    }

    pub fn state(&self) -> QpState {
        self.engine.qp_state(self.qp).unwrap()
    }

    /// Takes its queue pair to RTS, connected to `peer`.
    pub fn connect(&mut self, peer: (Gid, roce::wire::Qpn), mtu: Mtu, psns: (u32, u32)) {
        let attr = QpAttr {
            qp_access_flags: ALL,
            path_mtu: mtu,
            dest_qp_num: peer.1,
            rq_psn: Psn::new(psns.1),
            sq_psn: Psn::new(psns.0),
            ah_attr: AhAttr::new(peer.0, 0),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: RnrTimer(Bits::low(12)),
            timeout: AckTimeout(Bits::low(8)),
            retry_cnt: RetryCount(Bits::low(3)),
            rnr_retry: RnrRetry(Bits::low(3)),
            ..QpAttr::default()
        };
        self.engine.bring_up(self.qp, QpState::Rts, &attr).unwrap();
    }
}

/// Two sides and the wire between them.
pub struct Pair {
    pub a: Side,
    pub b: Side,
    pub now: Instant,
    batch: Batch,
    /// Packets to lose: asked of each, with the side it comes from.
    pub lose: Box<dyn FnMut(char, &Packet<'_>) -> bool>,
    /// Function that is called for a side after each packet that it received, with its name and the
    /// time.
    pub after: Box<dyn FnMut(char, Instant, &mut Side)>,
    /// Every packet that went over the wire, from whom, lost ones too.
    pub log: Vec<(char, Vec<u8>)>,
}

/// A turn of the wire takes this long.
const LATENCY: Duration = Duration::from_micros(5);

impl Pair {
    /// Two connected sides.
    pub fn new(kind: QpType, mtu: Mtu) -> Self {
        let (mut a, mut b) = (Side::new(1, kind, |_| {}), Side::new(2, kind, |_| {}));
        let (qa, qb) = (a.engine.qp_number(a.qp).unwrap(), b.engine.qp_number(b.qp).unwrap());
        if matches!(kind, QpType::Rc | QpType::Uc) {
            a.connect((b.gid, qb), mtu, (0xff_fffa, 0xff_fff0));
            b.connect((a.gid, qa), mtu, (0xff_fff0, 0xff_fffa));
        }
        Self {
            a,
            b,
            now: Instant::from_nanos(1),
            batch: Batch::new(64),
            lose: Box::new(|_, _| false),
            after: Box::new(|_, _, _| {}),
            log: Vec::new(),
        }
    }

    /// Passes what each side has to send to the other; whether there was anything.
    fn exchange(&mut self) -> bool {
        let mut moved = false;
        for name in ['a', 'b'] {
            self.batch.clear();
            let (from, to) =
                if name == 'a' { (&mut self.a, &mut self.b) } else { (&mut self.b, &mut self.a) };
            let sent = from.engine.poll_transmit(self.now, &mut self.batch);
            moved |= sent > 0;
            for (path, bytes) in self.batch.iter() {
                let received =
                    Received { network: &[0x45; 20], ..Received::unchanged(path, bytes) };
                self.log.push((name, received.packet.to_vec()));
                if (self.lose)(name, &Packet::parse(received.packet).unwrap()) {
                    continue;
                }
                let _: Disposition = to.engine.handle_packet(self.now, &received);
                (self.after)(if name == 'a' { 'b' } else { 'a' }, self.now, to);
            }
        }
        moved
    }

    /// Runs until nothing happens any more: no packet, no timer.
    pub fn run(&mut self) {
        for _ in 0..100_000 {
            while self.exchange() {
                self.now = self.now.saturating_add(LATENCY);
            }
            for side in [&mut self.a, &mut self.b] {
                while let Some(event) = side.engine.poll_event() {
                    side.events.push(event);
                }
            }
            let timeouts = [self.a.engine.poll_timeout(), self.b.engine.poll_timeout()];
            let Some(next) = timeouts.into_iter().flatten().min() else { return };
            self.now = self.now.max(next);
            self.a.engine.handle_timeout(self.now);
            self.b.engine.handle_timeout(self.now);
        }
        panic!("it never ends");
    }
}
