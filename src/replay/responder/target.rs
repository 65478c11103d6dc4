//! One queue pair in an engine that executes the requests that a captured responder executed.
//!
//! A capture shows no objects, so the queue pair has whatever a request needs: a receive for each message that takes
//! one, and one region under whose key every access is granted. Whether the captured device had to grant it is the
//! business of [`keys`](super::super::keys); what the bytes are that of [`memory`](super::super::memory). The region has no memory behind
//! it. What the engine decides is the protocol: sequence, opcode order, lengths, segmentation, MSN, replays.

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
use crate::wire::{Gid, Headers, Opcode, OpcodeInfo, PKey, Psn, Qpn, Service};

/// Everything a peer may do.
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// READs and ATOMICs that the queue pair remembers to answer their duplicates.
const RESOURCES: u8 = 128;

/// The addresses of both ends, inside the engine.
const LOCAL: Gid = Gid([1; 16]);
const PEER: Gid = Gid([2; 16]);

/// Buffers for packets, one set for all targets.
#[derive(Debug)]
pub(super) struct Scratch {
    batch: Batch,
    packet: Vec<u8>,
}

impl Scratch {
    pub(super) fn new() -> Self {
        Self { batch: Batch::new(1), packet: Vec::new() }
    }
}

/// A request as the engine is given it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    /// From the BTH to the payload.
    pub(super) headers: &'a [u8],
    /// What the table says of its opcode.
    pub(super) info: &'static OpcodeInfo,
    /// Payload bytes on the wire.
    pub(super) payload_len: usize,
    /// When it was captured.
    pub(super) time: Instant,
}

/// A queue pair in an engine of its own.
#[derive(Debug)]
pub(super) struct Target {
    engine: Engine,
    qp: QpHandle,
    qpn: Qpn,
    cq: CqHandle,
    region: MrHandle,
    mtu: Mtu,
    dest: Qpn,
    now: Instant,
    /// Receives that are posted and not taken.
    receives: u32,
}

impl Target {
    /// A queue pair that expects `psn`, whose answers go to `dest`. Nothing if the engine cannot make one, which it
    /// always can.
    pub(super) fn new(mtu: Mtu, dest: Qpn, psn: Psn) -> Option<Self> {
        let mut config = Config::new(LOCAL);
        config.pin_source_port = false;
        let mut engine = Engine::new(config, 1_u64);
        let pd = engine.create_pd().ok()?;
        let cq = engine.create_cq(8).ok()?;
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: false };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let qp = engine.create_qp(pd, create).ok()?;
        let qpn = engine.qp_number(qp)?;
        let region = open_region(&mut engine, pd)?;
        let now = Instant::ZERO;
        let mut target = Self { engine, qp, qpn, cq, region, mtu, dest, now, receives: 0 };
        target.start(psn)?;
        Some(target)
    }

    /// Begins anew at `psn`.
    pub(super) fn reset(&mut self, psn: Psn) {
        let attr = QpAttr { qp_state: QpState::Reset, ..QpAttr::default() };
        let _ = self.engine.modify_qp(self.qp, &attr, AttrMask::STATE);
        let _ = self.start(psn);
    }

    fn start(&mut self, psn: Psn) -> Option<()> {
        self.receives = 0;
        let attr = QpAttr {
            qp_state: QpState::Init,
            qp_access_flags: ALL,
            path_mtu: self.mtu,
            dest_qp_num: self.dest,
            rq_psn: psn,
            ah_attr: AhAttr::new(PEER, 0),
            max_dest_rd_atomic: RESOURCES,
            ..QpAttr::default()
        };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        self.engine.modify_qp(self.qp, &attr, init).ok()?;
        let attr = QpAttr { qp_state: QpState::Rtr, ..attr };
        let rtr = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        self.engine.modify_qp(self.qp, &attr, rtr).ok()
    }

    /// Gives the queue pair a request that the captured device got. It has a receive if it needs one and `receive` says
    /// so. The request asks for an acknowledgement, so that there is always an answer to compare with.
    pub(super) fn feed(&mut self, request: &Request<'_>, receive: bool, scratch: &mut Scratch) {
        if receive && request.info.receive.takes() && self.receives == 0 {
            let length = u32::MAX;
            let sges = [Sge { addr: 0, length, lkey: self.region.lkey() }];
            let posted = self.engine.post_recv(self.qp, &RecvWr { id: WrId(0), sges: &sges });
            self.receives += u32::from(posted.is_ok());
        }
        self.write_packet(request, &mut scratch.packet);
        let received = Received {
            source: PEER,
            destination: LOCAL,
            source_port: 0,
            ecn: 0,
            network: &[],
            packet: &scratch.packet,
        };
        self.now = self.now.max(request.time);
        self.engine.handle_packet(self.now, &received);
        let mut done = [Wc::default(); 4];
        while self.engine.poll_cq(self.cq, &mut done) > 0 {
            self.receives = 0;
        }
        while self.engine.poll_event().is_some() {}
    }

    /// The next answer of the queue pair, if it has one.
    pub(super) fn answer(&mut self, scratch: &mut Scratch) -> Option<Reply> {
        scratch.batch.clear();
        if !self.engine.has_transmit()
            || self.engine.poll_transmit(self.now, &mut scratch.batch) == 0
        {
            return None;
        }
        let (_, packet) = scratch.batch.iter().next()?;
        Reply::parse(packet.get(..packet.len().checked_sub(ICRC_ROOM)?)?)
    }

    /// Writes a request in the names of the engine: its queue pair and its key. XRC requests become RC requests, and one
    /// that invalidates a key becomes one that does not: domains and windows are not rebuilt.
    fn write_packet(&self, request: &Request<'_>, out: &mut Vec<u8>) {
        const BTH: usize = 12;
        const XRCETH: usize = 4;
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
        put(out, 5, self.qpn.get().to_be_bytes().get(1..).unwrap_or_default());
        if let Some(byte) = out.get_mut(8) {
            *byte |= 0x80;
        }
        // Both headers that name memory have the key after an address of eight bytes.
        let names = |header| opcode.info()?.headers.offset_of(header);
        if let Some(at) = names(Headers::RETH).or_else(|| names(Headers::ATOMIC_ETH)) {
            put(out, at + 8, &self.region.rkey().get().to_be_bytes());
        }
        let pad = out.get(1).map_or(0, |byte| usize::from(byte >> 4 & 3));
        out.resize(out.len() + request.payload_len + pad, 0);
    }
}

/// A region at all addresses.
fn open_region(engine: &mut Engine, pd: PdHandle) -> Option<MrHandle> {
    let attr = MrAttr { region: Region::null(usize::MAX), base: 0, access: ALL };
    engine.register(pd, attr).ok()
}
