//! Queue pairs, shared receive queues and windows of a connection.

use roce::engine::{QpCreate, SrqCreate};
use roce::time::Instant;
use roce::verbs::{
    Access, AckTimeout, AhAttr, Data, MwBind, MwType, QpAttr, QpCap, QpInitAttr, QpState, QpType,
    RetryCount, RnrRetry, SendOp, SendWr, Wc, WrId,
};
use roce::wire::aeth::RnrTimer;
use roce::wire::{Bits, Psn, Qpn, RKey};

use super::setup::Connection;
use super::world::{Host, Side, WINDOWS, window_base};

const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// Makes both sides of a connection ready to send, with their windows bound.
pub fn connect(hosts: &mut [Host; 2], plan: &Connection) -> ([Side; 2], [Qpn; 2]) {
    let mut sides = [0, 1].map(|side| create(&mut hosts[side], plan));
    let qpns = [0, 1].map(|side| hosts[side].engine.qp_number(sides[side].qp).unwrap());
    for side in [0, 1] {
        let peer = hosts[1 - side].gid;
        let attr = QpAttr {
            qp_access_flags: Access::LOCAL_WRITE | REMOTE,
            path_mtu: plan.mtu,
            dest_qp_num: qpns[1 - side],
            rq_psn: Psn::new(plan.psns[1 - side]),
            sq_psn: Psn::new(plan.psns[side]),
            ah_attr: AhAttr::new(peer, 0),
            max_rd_atomic: plan.reads,
            max_dest_rd_atomic: plan.reads,
            min_rnr_timer: RnrTimer(Bits::low(plan.rnr_timer)),
            timeout: AckTimeout(Bits::low(plan.timeout)),
            retry_cnt: RetryCount(Bits::low(plan.retry_count)),
            rnr_retry: RnrRetry(Bits::low(plan.rnr_retry)),
            ..QpAttr::default()
        };
        let Host { engine, .. } = &mut hosts[side];
        engine.bring_up(sides[side].qp, QpState::Rts, &attr).unwrap();
        sides[side].windows =
            (0..WINDOWS).map(|number| bind(&mut hosts[side], &sides[side], plan, number)).collect();
    }
    (sides, qpns)
}

fn create(host: &mut Host, plan: &Connection) -> Side {
    let Host { engine, domains, .. } = host;
    let cq = engine.create_cq(4096).unwrap();
    let srq = plan.shares_receives.then(|| {
        let create = SrqCreate { max_wr: 512, max_sge: 1, limit: 0, xrc: None };
        engine.create_srq(domains[plan.domain], create).unwrap()
    });
    let cap = QpCap {
        max_send_wr: 512,
        max_recv_wr: if srq.is_some() { 0 } else { 512 },
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: true };
    let create = QpCreate { init, send_cq: cq, recv_cq: cq, srq, xrcd: None };
    let qp = engine.create_qp(domains[plan.domain], create).unwrap();
    Side::new(qp, cq, srq)
}

/// Binds a window, which needs no packet.
fn bind(host: &mut Host, side: &Side, plan: &Connection, number: usize) -> RKey {
    let Host { engine, domains, local, .. } = host;
    let window = engine.create_mw(domains[plan.domain], MwType::Type2).unwrap();
    let mw = engine.mw_key(window).unwrap();
    let rkey = RKey::new(mw.get() & !0xff | 0x33);
    let bind = MwBind {
        mr: local[plan.domain].lkey(),
        addr: window_base(number),
        length: 4096,
        access: REMOTE,
    };
    let op = SendOp::BindMw { mw, rkey, bind };
    engine.post_send(side.qp, &SendWr::new(WrId(0), op, Data::EMPTY), &[]).unwrap();
    let mut batch = roce::engine::Batch::new(1);
    assert_eq!(engine.poll_transmit(Instant::ZERO, &mut batch), 0);
    let mut wcs = [Wc::default(); 1];
    assert_eq!(engine.poll_cq(side.cq, &mut wcs), 1);
    assert!(wcs[0].status.is_success(), "{wcs:?}");
    rkey
}
