//! One side of a queue pair without the rest of an engine, for its unit tests.

use super::super::config::Config;
use super::super::cq::Cq;
use super::super::env::Env;
use super::attr::Attributes;
use crate::secret::{SecretRandom, Seed};
use crate::verbs::{
    Access, AckTimeout, AhAttr, CqHandle, DeviceTag, Id, Mtu, PdHandle, QpAttr, QpCap, QpCreate,
    QpInitAttr, QpState, QpType, RetryCount, RnrRetry, Wc, WcStatus,
};
use crate::wire::aeth::{Answer, Credits};
use crate::wire::batch::Batch;
use crate::wire::{
    AethRepr, Bits, BthRepr, Extensions, Gid, Msn, Opcode, Packet, PacketRepr, Psn, Qpn,
};

pub(super) const MTU: u32 = 256;

/// Attributes of a connected RC queue pair in RTS, and what it shares with others.
pub(super) struct Rig {
    pub(super) attr: Attributes,
    pub(super) env: Env,
    pub(super) batch: Batch,
    cq: CqHandle,
}

impl Rig {
    pub(super) fn new() -> Self {
        let gid = |last| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, last));
        let mut env = Env::new(
            Config::new(gid(1)),
            DeviceTag::from_random(1),
            &mut SecretRandom::new(Seed::from(1)),
        );
        let cq = CqHandle(env.cqs.insert(Cq::new(64).unwrap()).unwrap());
        let cap = QpCap { max_send_wr: 16, max_recv_wr: 16, ..QpCap::default() };
        let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: true };
        let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq: None, xrcd: None };
        let mut attr = Attributes::new(PdHandle(Id::new(DeviceTag::from_random(1), 0)), &create);
        let mut requested = QpAttr {
            path_mtu: Mtu::M256,
            dest_qp_num: Qpn::new(0x123),
            ah_attr: AhAttr::new(gid(2), 0),
            timeout: AckTimeout(Bits::low(10)),
            retry_cnt: RetryCount(Bits::low(2)),
            rnr_retry: RnrRetry(Bits::low(1)),
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            qp_access_flags: Access::REMOTE_WRITE | Access::REMOTE_READ,
            ..QpAttr::default()
        };
        attr.derive(&mut requested, &env);
        attr.set_state(QpState::Rts);
        let mut batch = Batch::new(64);
        batch.set_path(&attr.path);
        Self { attr, env, batch, cq }
    }

    /// Opcodes and PSNs of the packets that were sent since the last call.
    pub(super) fn sent(&mut self) -> Vec<(Opcode, u32)> {
        let of = |bytes| Packet::parse(bytes).unwrap().bth().repr();
        let sent: Vec<_> = self.batch.iter().map(|(_, bytes)| of(bytes)).collect();
        self.batch.clear();
        self.batch.set_path(&self.attr.path);
        sent.into_iter().map(|bth| (bth.opcode, bth.psn.get())).collect()
    }

    /// Work requests that completed since the last call.
    pub(super) fn completions(&mut self) -> Vec<(u64, WcStatus)> {
        let mut out = [Wc::default(); 64];
        let count = self.env.cqs.get_mut(self.cq.0).unwrap().poll(&mut out, |_| {});
        out[..count].iter().map(|wc| (wc.id.0, wc.status)).collect()
    }
}

/// A packet that asks for an ACK.
pub(super) fn packet(opcode: Opcode, psn: u32, ext: Extensions, payload: &[u8]) -> Vec<u8> {
    let bth = BthRepr { ack_req: true, ..BthRepr::new(opcode, Qpn::new(1), Psn::new(psn)) };
    let mut bytes = Vec::new();
    PacketRepr::new(bth, ext, payload).unwrap().emit(&mut bytes);
    bytes
}

/// An ACK, NAK or RNR NAK.
pub(super) fn ack(psn: u32, answer: Answer, msn: u32) -> Vec<u8> {
    let aeth = AethRepr { syndrome: answer.into(), msn: Msn::new(msn) };
    let ext = Extensions { aeth: Some(aeth), ..Extensions::default() };
    packet(Opcode::RC_ACKNOWLEDGE, psn, ext, &[])
}

/// Syndrome of an ACK without credits.
pub(super) const ACK: Answer = Answer::Ack(Credits::UNLIMITED);
