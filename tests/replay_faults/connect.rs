//! Queue pairs, shared receive queues and windows of a connection.

use roce::engine::SrqCreate;
use roce::time::Instant;
use roce::verbs::{Data, MwBind, MwType, QpState, QpType, SendOp, SendWr, Wc, WrId};
use roce::wire::{Qpn, RKey};

use super::setup::Connection;
use super::two_hosts::pair::{REMOTE, create_qp};
use super::world::{Host, Side, WINDOWS, window_base};

/// Makes both sides of a connection ready to send, with their windows bound.
pub fn connect(hosts: &mut [Host; 2], plan: &Connection) -> ([Side; 2], [Qpn; 2]) {
    let mut sides = [0, 1].map(|side| create(&mut hosts[side], plan));
    let qpns = [0, 1].map(|side| hosts[side].engine.qp_number(sides[side].qp).unwrap());
    for side in [0, 1] {
        let attr = plan.attr.of_side(side, hosts[1 - side].gid, qpns[1 - side]);
        let Host { engine, .. } = &mut hosts[side];
        engine.bring_up(sides[side].qp, QpState::Rts, &attr).unwrap();
        sides[side].windows =
            (0..WINDOWS).map(|number| bind(&mut hosts[side], &sides[side], plan, number)).collect();
    }
    (sides, qpns)
}

fn create(host: &mut Host, plan: &Connection) -> Side {
    let Host { engine, domains, .. } = host;
    let srq = plan.shares_receives.then(|| {
        let create = SrqCreate { max_wr: 512, max_sge: 1, limit: 0, xrc: None };
        engine.create_srq(domains[plan.domain], create).unwrap()
    });
    let (qp, cq) = create_qp(engine, domains[plan.domain], QpType::Rc, srq);
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
