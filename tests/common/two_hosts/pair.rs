//! Connected queue pairs, one of each host.

use roce::engine::{CqHandle, Engine, QpCreate, QpHandle};
use roce::verbs::{
    Access, AckTimeout, AhAttr, Mtu, PdHandle, QpAttr, QpCap, QpInitAttr, QpType, RetryCount,
    RnrRetry, SrqHandle,
};
use roce::wire::aeth::RnrTimer;
use roce::wire::{Bits, Gid, Psn, Qpn};

use super::super::dice::Dice;

/// Rights of a peer.
pub const REMOTE: Access =
    Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Attributes of two connected queue pairs: side 0 is A's, side 1 is B's.
#[derive(Clone, Debug)]
pub struct PairAttr {
    pub mtu: Mtu,
    /// First PSN of each side's requests.
    pub psns: [u32; 2],
    /// Exponent of the retransmission timeout.
    pub timeout: u32,
    pub retry_count: u32,
    pub rnr_retry: u32,
    pub rnr_timer: u32,
    /// READs and ATOMICs that each side may have in flight.
    pub reads: u8,
}

impl Default for PairAttr {
    fn default() -> Self {
        Self {
            mtu: Mtu::M1024,
            psns: [100, 5000],
            // 1.05 ms.
            timeout: 8,
            retry_count: 7,
            rnr_retry: 7,
            rnr_timer: 6,
            reads: 4,
        }
    }
}

impl PairAttr {
    /// Attributes by chance, with PSNs that often wrap.
    pub fn random(dice: &mut Dice, mtus: &[Mtu], rnr_retry: impl FnOnce(&mut Dice) -> u32) -> Self {
        let psn = |dice: &mut Dice| match dice.below(3) {
            0 => 0xff_ffff - dice.below(12) as u32,
            1 => 0,
            _ => dice.below(1 << 24) as u32,
        };
        Self {
            mtu: dice.pick(mtus),
            psns: [psn(dice), psn(dice)],
            timeout: dice.pick(&[8, 9, 10]),
            retry_count: dice.pick(&[3, 7]),
            rnr_retry: rnr_retry(dice),
            rnr_timer: dice.pick(&[4, 6, 8]),
            reads: dice.pick(&[1, 2, 4, 8]),
        }
    }

    /// Returns the attributes of the queue pair of a side, in RTS.
    pub fn of_side(&self, side: usize, peer: Gid, peer_qpn: Qpn) -> QpAttr {
        QpAttr {
            qp_access_flags: Access::LOCAL_WRITE | REMOTE,
            path_mtu: self.mtu,
            dest_qp_num: peer_qpn,
            rq_psn: Psn::new(self.psns[1 - side]),
            sq_psn: Psn::new(self.psns[side]),
            ah_attr: AhAttr::new(peer, 0),
            max_rd_atomic: self.reads,
            max_dest_rd_atomic: self.reads,
            min_rnr_timer: RnrTimer(Bits::low(self.rnr_timer)),
            timeout: AckTimeout(Bits::low(self.timeout)),
            retry_cnt: RetryCount(Bits::low(self.retry_count)),
            rnr_retry: RnrRetry(Bits::low(self.rnr_retry)),
            ..QpAttr::default()
        }
    }
}

/// Creates a queue pair and its completion queue, with room for all that a test posts.
pub fn create_qp(
    engine: &mut Engine,
    pd: PdHandle,
    qp_type: QpType,
    srq: Option<SrqHandle>,
) -> (QpHandle, CqHandle) {
    let cq = engine.create_cq(4096).unwrap();
    let cap = QpCap {
        max_send_wr: 512,
        max_recv_wr: if srq.is_some() { 0 } else { 512 },
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let init = QpInitAttr { qp_type, cap, sq_sig_all: true };
    let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq, xrcd: None };
    (engine.create_qp(pd, create).unwrap(), cq)
}
