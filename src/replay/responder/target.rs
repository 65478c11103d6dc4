//! An engine that executes the requests that captured responders executed, each in a queue pair of
//! its own.
//!
//! A capture shows no objects, so a queue pair has whatever a request needs: a receive for each
//! message that takes one, and one region under whose key every access is granted. Whether the
//! captured device had to grant it is the business of [`keys`](super::super::keys); what the bytes
//! are that of [`memory`](super::super::memory). The region has no memory behind it. What the
//! engine decides is the protocol: opcode order, lengths, MSN. The engine gets only requests that
//! are expected, and a READ asks for one response of it, so that every request has one answer.

use super::reply::Reply;
use crate::engine::{
    Batch, Config, CqHandle, Engine, ICRC_ROOM, MrAttr, MrHandle, PdHandle, QpCreate, QpHandle,
    Received,
};
use crate::memory::Region;
use crate::time::Instant;
use crate::verbs::{
    Access, AhAttr, AttrMask, Mtu, QpAttr, QpCap, QpInitAttr, QpState, QpType, RecvWr, Sge, Wc,
    WrId,
};
use crate::wire::{Gid, Headers, Opcode, OpcodeInfo, Operation, PKey, Psn, Qpn, Service};

/// All rights of a peer.
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// READs and ATOMICs that a queue pair remembers. Duplicates are not given to it.
const RESOURCES: u8 = 1;

/// Longest READ that is valid, in bytes.
const READ_MAX: u32 = 1 << 31;

/// The addresses of both ends, inside the engine.
const LOCAL: Gid = Gid([1; 16]);
const PEER: Gid = Gid([2; 16]);

/// Smallest queues.
const CAP: QpCap =
    QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

/// A request as the engine is given it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    /// Headers from the BTH to the payload.
    pub(super) headers: &'a [u8],
    /// Entry of its opcode in the table.
    pub(super) info: &'static OpcodeInfo,
    /// Payload bytes on the wire.
    pub(super) payload_len: usize,
    /// Time of its capture.
    pub(super) time: Instant,
}

/// The engine, and what its queue pairs share.
#[derive(Debug)]
pub(super) struct Executor {
    engine: Engine,
    pd: PdHandle,
    cq: CqHandle,
    region: MrHandle,
    now: Instant,
    batch: Batch,
    packet: Vec<u8>,
    /// Number of queue pairs.
    count: usize,
}

/// A queue pair of the engine.
#[derive(Debug)]
pub(super) struct Target {
    qp: QpHandle,
    qpn: Qpn,
    mtu: Mtu,
    /// The PSN that it expects: requests get the PSNs of the engine.
    psn: Psn,
    /// A receive is posted and not taken.
    has_receive: bool,
    /// Must begin anew before it executes a request.
    is_stale: bool,
}

impl Target {
    /// Makes it begin anew.
    pub(super) fn forget(&mut self) {
        self.is_stale = true;
    }

    /// Whether it begins with the next request.
    pub(super) fn is_fresh(&self) -> bool {
        self.is_stale
    }
}

impl Executor {
    /// Returns an engine without queue pairs. Nothing if it cannot be made, which it always can.
    pub(super) fn new() -> Option<Self> {
        let mut config = Config::new(LOCAL);
        config.pin_source_port = false;
        let mut engine = Engine::new(config, 1_u64);
        let pd = engine.create_pd().ok()?;
        let cq = engine.create_cq(8).ok()?;
        // At all addresses.
        let attr = MrAttr { region: Region::null(usize::MAX), base: 0, access: ALL };
        let region = engine.register(pd, attr).ok()?;
        let (now, batch, packet) = (Instant::ZERO, Batch::new(1), Vec::new());
        Some(Self { engine, pd, cq, region, now, batch, packet, count: 0 })
    }

    /// Number of queue pairs.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Makes a queue pair.
    pub(super) fn open(&mut self, mtu: Mtu) -> Option<Target> {
        let init = QpInitAttr { qp_type: QpType::Rc, cap: CAP, sq_sig_all: false };
        let (send_cq, recv_cq) = (self.cq, self.cq);
        let create = QpCreate { init, send_cq, recv_cq, srq: None, xrcd: None };
        let qp = self.engine.create_qp(self.pd, create).ok()?;
        let qpn = self.engine.qp_number(qp)?;
        let psn = Psn::new(0);
        self.count += 1;
        Some(Target { qp, qpn, mtu, psn, has_receive: false, is_stale: true })
    }

    /// Destroys a queue pair.
    pub(super) fn close(&mut self, target: &Target) {
        self.count -= 1;
        let _ = self.engine.destroy_qp(target.qp);
    }

    /// Lets a queue pair begin anew.
    fn start(&mut self, target: &mut Target) -> Option<()> {
        (target.psn, target.has_receive, target.is_stale) = (Psn::new(0), false, false);
        let attr = QpAttr {
            qp_state: QpState::Reset,
            qp_access_flags: ALL,
            path_mtu: target.mtu,
            dest_qp_num: Qpn::new(2),
            rq_psn: target.psn,
            ah_attr: AhAttr::new(PEER, 0),
            max_dest_rd_atomic: RESOURCES,
            ..QpAttr::default()
        };
        self.engine.modify_qp(target.qp, &attr, AttrMask::STATE).ok()?;
        let attr = QpAttr { qp_state: QpState::Init, ..attr };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        self.engine.modify_qp(target.qp, &attr, init).ok()?;
        let attr = QpAttr { qp_state: QpState::Rtr, ..attr };
        let rtr = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        self.engine.modify_qp(target.qp, &attr, rtr).ok()
    }

    /// Gives a queue pair the request that the captured device expected, and returns the answer.
    /// The queue pair has a receive if it needs one and `receive` says so. The request asks for an
    /// acknowledgement, so that there is always an answer.
    pub(super) fn execute(
        &mut self,
        target: &mut Target,
        request: &Request<'_>,
        receive: bool,
    ) -> Option<Reply> {
        if target.is_stale {
            self.start(target)?;
        }
        if receive && request.info.receive.takes() && !target.has_receive {
            let sges = [Sge { addr: 0, length: u32::MAX, lkey: self.region.lkey() }];
            let posted = self.engine.post_recv(target.qp, &RecvWr { id: WrId(0), sges: &sges });
            target.has_receive = posted.is_ok();
        }
        self.write_packet(target, request);
        let received = Received {
            source: PEER,
            destination: LOCAL,
            source_port: 0,
            ecn: 0,
            network: &[],
            packet: &self.packet,
            payload: None,
        };
        self.now = self.now.max(request.time);
        self.engine.handle_packet(self.now, &received);
        let mut done = [Wc::default(); 4];
        while self.engine.poll_cq(self.cq, &mut done) > 0 {
            target.has_receive = false;
        }
        while self.engine.poll_event().is_some() {}
        let reply = self.answer()?;
        if reply.is_positive() {
            target.psn = target.psn.plus(1);
        }
        let psn = request.headers.get(9..12)?;
        let psn = psn.iter().fold(0, |psn, &byte| psn << 8 | u32::from(byte));
        Some(Reply { psn: Psn::new(psn), ..reply })
    }

    fn answer(&mut self) -> Option<Reply> {
        self.batch.clear();
        if !self.engine.has_transmit() || self.engine.poll_transmit(self.now, &mut self.batch) == 0
        {
            return None;
        }
        let (_, packet) = self.batch.iter().next()?;
        Reply::parse(packet.get(..packet.len().checked_sub(ICRC_ROOM)?)?)
    }

    /// Writes a request in the names of the engine: its queue pair, its PSN and its key. XRC
    /// requests become RC requests, and one that invalidates a key becomes one that does not:
    /// domains and windows are not rebuilt.
    fn write_packet(&mut self, target: &Target, request: &Request<'_>) {
        const BTH: usize = 12;
        const XRCETH: usize = 4;
        let out = &mut self.packet;
        out.clear();
        let headers = request.headers;
        let (bth, mut rest) = headers.split_at(headers.len().min(BTH));
        out.extend_from_slice(bth);
        if request.info.service == Service::Xrc {
            rest = rest.get(XRCETH..).unwrap_or_default();
        }
        let mut opcode = Opcode(request.info.opcode.0 & 0x1f);
        match opcode {
            Opcode::RC_SEND_LAST_WITH_INVALIDATE => (opcode, rest) = (Opcode::RC_SEND_LAST, &[]),
            Opcode::RC_SEND_ONLY_WITH_INVALIDATE => (opcode, rest) = (Opcode::RC_SEND_ONLY, &[]),
            _ => {}
        }
        out.extend_from_slice(rest);
        let put = |out: &mut Vec<u8>, at: usize, bytes: &[u8]| {
            if let Some(place) = out.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        put(out, 0, &[opcode.0]);
        put(out, 2, &PKey::DEFAULT.get().to_be_bytes());
        put(out, 4, &target.qpn.get().to_be_bytes());
        // AckReq is the highest bit of the word with the PSN.
        put(out, 8, &(1 << 31 | target.psn.get()).to_be_bytes());
        // Both headers that name memory have the key after an address of eight bytes.
        let names = |header| opcode.info()?.headers.offset_of(header);
        if let Some(at) = names(Headers::RETH).or_else(|| names(Headers::ATOMIC_ETH)) {
            put(out, at + 8, &self.region.rkey().get().to_be_bytes());
        }
        let length = names(Headers::RETH)
            .filter(|_| opcode.info().is_some_and(|info| info.operation == Operation::ReadRequest));
        if let Some(at) = length
            && let Some(bytes) = out.get(at + 12..at + 16)
            && let Ok(bytes) = <[u8; 4]>::try_from(bytes)
        {
            let mtu = u32::try_from(target.mtu.bytes()).unwrap_or(u32::MAX);
            let length = u32::from_be_bytes(bytes);
            let length = if length > READ_MAX { length } else { length.min(mtu) };
            put(out, at + 12, &length.to_be_bytes());
        }
        let pad = out.get(1).map_or(0, |byte| usize::from(byte >> 4 & 3));
        out.resize(out.len() + request.payload_len + pad, 0);
    }
}
