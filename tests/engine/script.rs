//! Packet scripts: one engine under test, and a test that plays its peer packet by packet.
//!
//! Times are microseconds since the start. A script sends packets (`send`), looks at what comes
//! back (`expect`), at completions (`completes`), events (`events`), states and counters. Whatever
//! differs is told in words.

use std::net::Ipv4Addr;

use roce::engine::{
    AsyncEvent, Batch, Config, Counter, CqHandle, Disposition, Engine, Event, ICRC_ROOM, MrAttr,
    MrHandle, PdHandle, QpCreate, QpHandle, Received, XrcdHandle,
};
use roce::memory::Buffer;
use roce::time::Instant;
use roce::verbs::{
    Access, AckTimeout, AhAttr, AttrMask, Data, EventType, Mtu, PostError, QpAttr, QpCap,
    QpInitAttr, QpState, QpType, RecvWr, RetryCount, RnrRetry, SendFlags, SendOp, SendWr, Sge,
    Target, Wc, WcOpcode, WcStatus, WrId,
};
use roce::wire::aeth::{Answer, Credits, NakCode, RnrTimer, Syndrome};
use roce::wire::{
    AethRepr, AtomicAckEthRepr, AtomicEthRepr, Bits, BthRepr, DethRepr, Extensions, FethRepr, Gid,
    IethRepr, ImmDtRepr, Msn, Opcode, PKey, Packet, PacketRepr, Psn, QKey, Qpn, RKey, RethRepr,
    XrcSrqn, XrcethRepr,
};

pub use super::pair::ALL;

/// The peer that the test plays.
pub const PEER: Qpn = Qpn::new(0x123);
/// The PSN of the first request to the engine, and of its first request.
pub const RQ: u32 = 100;
pub const SQ: u32 = 5000;
pub const MTU: usize = 256;
pub const SIZE: usize = 1 << 16;

pub fn own_gid() -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, 1))
}

pub fn peer_gid() -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, 2))
}

/// A packet, sent or expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pkt {
    pub bth: BthRepr,
    pub ext: Extensions,
    pub payload: Vec<u8>,
}

pub fn pkt(opcode: Opcode, psn: u32) -> Pkt {
    let bth = BthRepr::new(opcode, Qpn::new(0), Psn::new(psn));
    Pkt { bth, ext: Extensions::default(), payload: Vec::new() }
}

impl Pkt {
    pub fn ack_req(mut self) -> Self {
        self.bth.ack_req = true;
        self
    }

    pub fn solicited(mut self) -> Self {
        self.bth.solicited = true;
        self
    }

    pub fn pkey(mut self, pkey: u16) -> Self {
        self.bth.pkey = PKey::new(pkey);
        self
    }

    pub fn to(mut self, qpn: Qpn) -> Self {
        self.bth.dest_qp = qpn;
        self
    }

    pub fn data(mut self, bytes: &[u8]) -> Self {
        self.payload = bytes.to_vec();
        self
    }

    /// Fills the payload with a pattern of this length.
    pub fn fill(self, len: usize) -> Self {
        self.data(&pattern(len))
    }

    pub fn reth(mut self, va: u64, rkey: RKey, dma_len: u32) -> Self {
        self.ext.reth = Some(RethRepr { va, rkey, dma_len });
        self
    }

    pub fn atomic(mut self, va: u64, rkey: RKey, swap_or_add: u64, compare: u64) -> Self {
        self.ext.atomic_eth = Some(AtomicEthRepr { va, rkey, swap_or_add, compare });
        self
    }

    pub fn imm(mut self, data: [u8; 4]) -> Self {
        self.ext.imm_dt = Some(ImmDtRepr { data });
        self
    }

    pub fn inv(mut self, rkey: RKey) -> Self {
        self.ext.ieth = Some(IethRepr { rkey });
        self
    }

    pub fn feth(mut self, placement: u32, selectivity: u32) -> Self {
        let (placement, selectivity) = (Bits::low(placement), Bits::low(selectivity));
        self.ext.feth = Some(FethRepr { selectivity, placement });
        self
    }

    pub fn xrc(mut self, srq: XrcSrqn) -> Self {
        self.ext.xrceth = Some(XrcethRepr { xrcsrq: srq });
        self
    }

    pub fn deth(mut self, qkey: u32, src: Qpn) -> Self {
        self.ext.deth = Some(DethRepr { qkey: QKey::new(qkey), src_qp: src });
        self
    }

    pub fn aeth(mut self, answer: Answer, msn: u32) -> Self {
        self.ext.aeth = Some(AethRepr { syndrome: answer.into(), msn: Msn::new(msn) });
        self
    }

    pub fn syndrome(mut self, byte: u8, msn: u32) -> Self {
        self.ext.aeth = Some(AethRepr { syndrome: Syndrome(byte), msn: Msn::new(msn) });
        self
    }

    pub fn original(mut self, original: u64) -> Self {
        self.ext.atomic_ack_eth = Some(AtomicAckEthRepr { original });
        self
    }

    pub fn sack(mut self, base: u32, words: u32) -> Self {
        let base = Psn::new(base);
        self.ext.sack_eth = Some(roce::wire::SackEthRepr { base, words: Bits::low(words) });
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        PacketRepr::new(self.bth, self.ext, &self.payload).expect("headers").emit(&mut out);
        out
    }

    fn of(bytes: &[u8]) -> Self {
        let packet = Packet::parse(bytes).expect("the engine sends whole packets");
        let repr = PacketRepr::of(&packet).expect("the engine pads rightly");
        let bth = BthRepr { pad: Bits::low(0), ..*repr.bth() };
        Self { bth, ext: Extensions::of(&packet), payload: packet.payload().to_vec() }
    }

    /// The packet in words.
    pub fn words(&self) -> String {
        let mut out = format!("{} psn {}", self.bth.opcode, self.bth.psn.get());
        let mut put = |words: String| {
            out.push(' ');
            out.push_str(&words);
        };
        for (set, word) in
            [(self.bth.ack_req, "A"), (self.bth.solicited, "SE"), (self.bth.becn, "B")]
        {
            if set {
                put(word.into());
            }
        }
        if self.bth.pkey != PKey::DEFAULT {
            put(format!("pkey {:#06x}", self.bth.pkey.get()));
        }
        let ext = &self.ext;
        if let Some(deth) = ext.deth {
            put(format!("qkey {:#x} from {:#x}", deth.qkey.get(), deth.src_qp.get()));
        }
        if let Some(xrceth) = ext.xrceth {
            put(format!("srq {:#x}", xrceth.xrcsrq.get()));
        }
        if let Some(feth) = ext.feth {
            put(format!("placement {} level {}", feth.placement.get(), feth.selectivity.get()));
        }
        if let Some(reth) = ext.reth {
            put(format!("va {:#x} rkey {:#x} dma_len {}", reth.va, reth.rkey.get(), reth.dma_len));
        }
        if let Some(eth) = ext.atomic_eth {
            let (va, rkey) = (eth.va, eth.rkey.get());
            put(format!("va {va:#x} rkey {rkey:#x} {} {}", eth.swap_or_add, eth.compare));
        }
        if let Some(aeth) = ext.aeth {
            put(format!("{} msn {}", aeth.syndrome.answer(), aeth.msn.get()));
        }
        if let Some(eth) = ext.atomic_ack_eth {
            put(format!("was {}", eth.original));
        }
        if let Some(imm) = ext.imm_dt {
            put(format!("imm {:?}", imm.data));
        }
        if let Some(ieth) = ext.ieth {
            put(format!("invalidates {:#x}", ieth.rkey.get()));
        }
        if !self.payload.is_empty() {
            let sum =
                self.payload.iter().fold(0_u32, |sum, &b| sum.wrapping_mul(31) + u32::from(b));
            put(format!("{} bytes ({sum:08x})", self.payload.len()));
        }
        out
    }
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + 1) as u8).collect()
}

/// The acknowledgements that scripts are full of.
pub fn ack(psn: u32, msn: u32) -> Pkt {
    pkt(Opcode::RC_ACKNOWLEDGE, psn).aeth(Answer::Ack(Credits::UNLIMITED), msn)
}

pub fn ack_credits(psn: u32, msn: u32, available: u32) -> Pkt {
    pkt(Opcode::RC_ACKNOWLEDGE, psn).aeth(Answer::Ack(Credits::advertise(available)), msn)
}

pub fn nak(psn: u32, code: NakCode, msn: u32) -> Pkt {
    pkt(Opcode::RC_ACKNOWLEDGE, psn).aeth(Answer::Nak(code), msn)
}

pub fn seq_nak(psn: u32, msn: u32) -> Pkt {
    nak(psn, NakCode::PsnSequenceError, msn)
}

pub fn rnr(psn: u32, code: u32, msn: u32) -> Pkt {
    pkt(Opcode::RC_ACKNOWLEDGE, psn).aeth(Answer::RnrNak(RnrTimer(Bits::low(code))), msn)
}

/// One answer with data that is a whole message.
pub fn read_only(psn: u32, msn: u32) -> Pkt {
    response(Opcode::RC_RDMA_READ_RESPONSE_ONLY, psn, msn)
}

pub fn response(opcode: Opcode, psn: u32, msn: u32) -> Pkt {
    pkt(opcode, psn).aeth(Answer::Ack(Credits::UNLIMITED), msn)
}

/// Initial state of a script.
pub struct Setup {
    pub kind: QpType,
    pub config: Config,
    pub attr: QpAttr,
    pub cap: QpCap,
    pub sig_all: bool,
    pub access: Access,
    pub until: QpState,
}

/// An RC queue pair.
pub fn rc() -> Setup {
    Setup::new(QpType::Rc)
}

impl Setup {
    pub fn new(kind: QpType) -> Self {
        let mut config = Config::new(own_gid());
        config.pkeys.push(PKey::new(0x8123));
        Self {
            kind,
            config,
            attr: QpAttr {
                qp_access_flags: ALL,
                path_mtu: Mtu::M256,
                dest_qp_num: PEER,
                rq_psn: Psn::new(RQ),
                sq_psn: Psn::new(SQ),
                ah_attr: AhAttr::new(peer_gid(), 0),
                qkey: QKey::new(0x1111),
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                // 0.64 ms, and 1.048 ms.
                min_rnr_timer: RnrTimer(Bits::low(12)),
                timeout: AckTimeout(Bits::low(8)),
                retry_cnt: RetryCount(Bits::low(3)),
                rnr_retry: RnrRetry(Bits::low(3)),
                ..QpAttr::default()
            },
            cap: QpCap {
                max_send_wr: 32,
                max_recv_wr: 32,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            sig_all: false,
            access: ALL,
            until: QpState::Rts,
        }
    }

    pub fn build(self) -> Script {
        Script::new(self)
    }
}

/// Two to the eighth times 4.096 µs, rounded up.
pub const TIMEOUT: u64 = 1049;

/// An engine under test, with one queue pair.
pub struct Script {
    pub engine: Engine,
    pub now: u64,
    pub pd: PdHandle,
    pub cq: CqHandle,
    pub recv_cq: CqHandle,
    pub qp: QpHandle,
    pub qpn: Qpn,
    pub buffer: Buffer,
    pub mr: MrHandle,
    pub attr: QpAttr,
    pub kind: QpType,
    /// ECN bits of the packets that `send` makes.
    pub ecn: u8,
    pub source_port: u16,
    pub network: Vec<u8>,
    /// Domain of an XRC target.
    pub xrcd: Option<XrcdHandle>,
}

impl Script {
    pub fn rc() -> Self {
        Setup::new(QpType::Rc).build()
    }

    pub fn uc() -> Self {
        Setup::new(QpType::Uc).build()
    }

    /// A script of an RC queue pair with another set-up.
    pub fn with(change: impl FnOnce(&mut Setup)) -> Self {
        Self::of(QpType::Rc, change)
    }

    pub fn of(kind: QpType, change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup::new(kind);
        change(&mut setup);
        setup.build()
    }

    pub fn new(setup: Setup) -> Self {
        let mut engine = Engine::new(setup.config, 7);
        let pd = engine.create_pd().unwrap();
        let cq = engine.create_cq(256).unwrap();
        let recv_cq = engine.create_cq(256).unwrap();
        let xrcd = (setup.kind == QpType::XrcRecv).then(|| engine.create_xrcd().unwrap());
        let init = QpInitAttr { qp_type: setup.kind, cap: setup.cap, sq_sig_all: setup.sig_all };
        let create = QpCreate { init, send_cq: cq, recv_cq, srq: None, xrcd };
        let qp = engine.create_qp(pd, create).unwrap();
        let cqs = (cq, recv_cq);
        let script = Self::with_qp(engine, pd, cqs, qp, setup.attr, setup.access, setup.until);
        Self { xrcd, ..script }
    }

    /// A script around a queue pair that was made elsewhere.
    pub fn with_qp(
        mut engine: Engine,
        pd: PdHandle,
        (cq, recv_cq): (CqHandle, CqHandle),
        qp: QpHandle,
        attr: QpAttr,
        access: Access,
        until: QpState,
    ) -> Self {
        let buffer = Buffer::new(SIZE);
        let region = MrAttr { region: buffer.region(), base: buffer.addr(), access };
        let mr = engine.register(pd, region).unwrap();
        let qpn = engine.qp_number(qp).unwrap();
        let kind = engine.qp_kind(qp).unwrap();
        let mut script = Self {
            engine,
            now: 0,
            pd,
            cq,
            recv_cq,
            qp,
            qpn,
            buffer,
            mr,
            attr,
            kind,
            ecn: 0,
            source_port: 0,
            network: vec![0x45; 20],
            xrcd: None,
        };
        script.climb(qp, until);
        script
    }

    /// Takes a queue pair up to a state.
    pub fn climb(&mut self, qp: QpHandle, until: QpState) {
        let up = match until {
            QpState::Sqd | QpState::Sqe | QpState::Err => QpState::Rts,
            up => up,
        };
        self.engine.bring_up(qp, up, &self.attr).unwrap();
        if matches!(until, QpState::Sqd | QpState::Err) {
            self.modify(qp, until).unwrap();
        }
    }

    /// Modifies a queue pair to a state, with the attributes that it needs.
    pub fn modify(&mut self, qp: QpHandle, to: QpState) -> Result<(), roce::verbs::ModifyError> {
        let kind = self.engine.qp_kind(qp).unwrap();
        let from = self.engine.qp_state(qp).unwrap();
        let needs = roce::verbs::transition::find(kind, from, to);
        let mask = AttrMask::STATE | needs.map_or(AttrMask::empty(), |needs| needs.required);
        self.engine.modify_qp(qp, &QpAttr { qp_state: to, ..self.attr }, mask)
    }

    pub fn enter(&mut self, to: QpState) {
        self.modify(self.qp, to).unwrap();
    }

    #[track_caller]
    pub fn state(&self, expected: QpState) {
        assert_eq!(self.engine.qp_state(self.qp), Some(expected));
    }

    pub fn time(&self) -> Instant {
        Instant::from_nanos(self.now * 1000)
    }

    /// Lets time pass until `us`.
    #[track_caller]
    pub fn at(&mut self, us: u64) {
        assert!(us >= self.now, "time does not go back");
        self.now = us;
        self.engine.handle_timeout(self.time());
    }

    /// Sends a packet to the engine, from the peer.
    pub fn send(&mut self, packet: Pkt) -> Disposition {
        self.send_from(peer_gid(), own_gid(), packet)
    }

    pub fn send_from(&mut self, source: Gid, destination: Gid, mut packet: Pkt) -> Disposition {
        if packet.bth.dest_qp.get() == 0 {
            packet.bth.dest_qp = self.qpn;
        }
        self.send_bytes(source, destination, &packet.bytes())
    }

    pub fn send_bytes(&mut self, source: Gid, destination: Gid, bytes: &[u8]) -> Disposition {
        let (ecn, network) = (self.ecn, &self.network);
        let (source_port, packet) = (self.source_port, bytes);
        let received =
            Received { source, destination, source_port, ecn, network, packet, payload: None };
        self.engine.handle_packet(Instant::from_nanos(self.now * 1000), &received)
    }

    /// Sends a packet that is dropped for a reason.
    #[track_caller]
    pub fn dropped(&mut self, packet: Pkt, reason: Counter) {
        let before = self.count(reason);
        assert_eq!(self.send(packet), Disposition::Dropped(reason));
        assert_eq!(self.count(reason), before + 1);
    }

    pub fn count(&self, counter: Counter) -> u64 {
        self.engine.counters().get(counter)
    }

    /// Returns all packets that the engine sends now.
    pub fn sent(&mut self) -> Vec<Pkt> {
        let mut batch = Batch::new(64);
        let mut all = Vec::new();
        let now = self.time();
        loop {
            batch.clear();
            if self.engine.poll_transmit(now, &mut batch) == 0 {
                return all;
            }
            for (_, bytes) in batch.iter() {
                all.push(Pkt::of(&bytes[..bytes.len() - ICRC_ROOM]));
            }
        }
    }

    /// Asserts that the engine sends just these packets to the peer now.
    #[track_caller]
    pub fn expect(&mut self, packets: impl IntoIterator<Item = Pkt>) {
        let expected: Vec<String> = packets.into_iter().map(|packet| packet.words()).collect();
        let sent = self.sent();
        if self.kind.is_connected() {
            assert!(sent.iter().all(|packet| packet.bth.dest_qp == PEER), "to whom? {sent:?}");
        }
        let got: Vec<String> = sent.iter().map(Pkt::words).collect();
        if got != expected {
            let mut diff = String::new();
            for at in 0..got.len().max(expected.len()) {
                let (got, want) = (got.get(at), expected.get(at));
                if got == want {
                    diff += &format!("    {}\n", got.map_or("", String::as_str));
                    continue;
                }
                diff += &want.map_or(String::new(), |want| format!("  - {want}\n"));
                diff += &got.map_or(String::new(), |got| format!("  + {got}\n"));
            }
            panic!("at {} µs, expected (-) and sent (+):\n{diff}", self.now);
        }
    }

    #[track_caller]
    pub fn expect_nothing(&mut self) {
        self.expect([]);
    }

    /// Asserts that the engine sends this number of packets now.
    #[track_caller]
    pub fn expect_count(&mut self, count: usize) -> Vec<Pkt> {
        let sent = self.sent();
        let words: Vec<_> = sent.iter().map(Pkt::words).collect();
        assert_eq!(sent.len(), count, "{words:#?}");
        sent
    }

    pub fn poll(&mut self, cq: CqHandle) -> Vec<Wc> {
        let mut all = vec![Wc::default(); 512];
        let count = self.engine.poll_cq(cq, &mut all);
        all.truncate(count);
        all
    }

    /// The completions of sends there are: identifiers and statuses.
    #[track_caller]
    pub fn completes(&mut self, expected: &[(u64, WcStatus)]) {
        let got: Vec<_> = self.poll(self.cq).iter().map(|wc| (wc.id.0, wc.status)).collect();
        assert_eq!(got, expected, "sends that completed");
    }

    /// The completions of receives there are: identifiers and statuses.
    #[track_caller]
    pub fn receives(&mut self, expected: &[(u64, WcStatus)]) {
        let got: Vec<_> = self.poll(self.recv_cq).iter().map(|wc| (wc.id.0, wc.status)).collect();
        assert_eq!(got, expected, "receives that completed");
    }

    /// The one completion of a receive there is.
    #[track_caller]
    pub fn received(&mut self) -> Wc {
        let all = self.poll(self.recv_cq);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].status, WcStatus::Success);
        all[0]
    }

    /// The events there are, in words.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.engine.poll_event()).collect()
    }

    /// The events of this queue pair there are, and none of others.
    #[track_caller]
    pub fn events(&mut self, expected: &[EventType]) {
        let got = self.take_events();
        let qp = self.qp;
        let want: Vec<_> =
            expected.iter().map(|&event| Event::Async(AsyncEvent::Qp(event, qp))).collect();
        assert_eq!(got, want);
    }

    /// An address in the registered buffer.
    pub fn va(&self, offset: u64) -> u64 {
        self.buffer.addr() + offset
    }

    pub fn rkey(&self) -> RKey {
        self.mr.rkey()
    }

    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.va(offset), length, lkey: self.mr.lkey() }
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.buffer.read(offset, &mut bytes).unwrap();
        bytes
    }

    pub fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.read(offset, 8).try_into().unwrap())
    }

    pub fn set_word(&self, offset: usize, value: u64) {
        self.buffer.write(offset, &value.to_ne_bytes()).unwrap();
    }

    pub fn target(&self) -> Target {
        match self.kind {
            QpType::XrcSend => Target::Xrc(XrcSrqn::new(0x77)),
            _ => Target::Peer,
        }
    }

    pub fn try_post(
        &mut self,
        id: u64,
        op: SendOp,
        sges: &[Sge],
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let wr = SendWr {
            flags,
            target: self.target(),
            ..SendWr::new(WrId(id), op, Data::Gather(sges))
        };
        self.engine.post_send(self.qp, &wr, &[])
    }

    /// Posts a signaled request whose data are the first `len` bytes of the buffer.
    #[track_caller]
    pub fn post(&mut self, id: u64, op: SendOp, len: u32) {
        self.post_flags(id, op, len, SendFlags::SIGNALED);
    }

    #[track_caller]
    pub fn post_flags(&mut self, id: u64, op: SendOp, len: u32, flags: SendFlags) {
        let sges = [self.sge(0, len)];
        let sges = if len == 0 { &[][..] } else { &sges[..] };
        self.try_post(id, op, sges, flags).unwrap();
    }

    /// Posts a receive of `len` bytes at an offset of the buffer.
    #[track_caller]
    pub fn recv(&mut self, id: u64, offset: u64, len: u32) {
        let sges = [self.sge(offset, len)];
        self.engine.post_recv(self.qp, &RecvWr { id: WrId(id), sges: &sges }).unwrap();
    }

    pub fn read_op(&self, offset: u64) -> SendOp {
        SendOp::Read { remote_addr: REMOTE + offset, rkey: REMOTE_KEY }
    }

    pub fn next_timeout(&self) -> Option<u64> {
        self.engine.poll_timeout().map(|at| at.as_nanos().div_ceil(1000))
    }
}

/// An address and a key of the peer's.
pub const REMOTE: u64 = 0xdead_0000;
pub const REMOTE_KEY: RKey = RKey::new(0xabcd_ef01);

pub const SEND: SendOp = SendOp::Send { imm: None };
pub const WRITE: SendOp = SendOp::Write { remote_addr: REMOTE, rkey: REMOTE_KEY, imm: None };
pub const READ: SendOp = SendOp::Read { remote_addr: REMOTE, rkey: REMOTE_KEY };
pub const ADD: SendOp = SendOp::FetchAdd { remote_addr: REMOTE, rkey: REMOTE_KEY, add: 5 };

pub const OK: WcStatus = WcStatus::Success;
pub const FLUSHED: WcStatus = WcStatus::WrFlushErr;

/// Whether a completion is a receive's.
pub fn is_recv(wc: &Wc) -> bool {
    matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm)
}
