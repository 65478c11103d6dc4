//! Sequence numbers that wrap. The whole circle is walked where it is small:
//! `RUSTFLAGS="--cfg roce_narrow_psn"`.

use roce::engine::MrAttr;
use roce::verbs::{QpCap, QpCreate, QpInitAttr, QpType};

use super::script::*;

/// After a whole circle of PSNs an atomic operation has the PSN of an old one; its duplicate gets
/// its own answer.
#[test]
#[cfg(roce_narrow_psn)]
fn duplicate_atomic_after_psn_wrap_gets_its_own_response() {
    use roce::wire::{Opcode, Psn, RKey};
    let mut s = Script::rc();
    let add = |s: &Script| pkt(Opcode::RC_FETCH_ADD, RQ).atomic(s.va(0), s.rkey(), 1, 0);
    s.set_word(0, 1000);
    let packet = add(&s);
    s.send(packet);
    s.expect_count(1);
    // Writes that ask for no acknowledgement: nothing but the order of answers tells the old one
    // from the new one.
    for ahead in 1..Psn::HALF * 2 {
        let psn = Psn::new(RQ).plus(ahead).get();
        s.send(pkt(Opcode::RC_RDMA_WRITE_ONLY, psn).reth(0, RKey::new(0), 0));
    }
    s.set_word(0, 5_000_000);
    let packet = add(&s);
    s.send(packet);
    let first = s.expect_count(1);
    let packet = add(&s);
    s.send(packet);
    let again = s.expect_count(1);
    assert_eq!(s.word(0), 5_000_001, "it is executed once");
    assert_eq!(again[0].words(), first[0].words());
    assert_eq!(again[0].ext.atomic_ack_eth.unwrap().original, 5_000_000);
}

/// QPNs and R_Keys name another object only after all others did.
#[test]
fn qpns_and_rkeys_are_not_reused_soon() {
    let mut s = Script::rc();
    let buffer = roce::memory::Buffer::new(64);
    let (mut qpns, mut keys) = (std::collections::BTreeSet::new(), keys_in_use(&s));
    for round in 0..5000 {
        let init = QpInitAttr { qp_type: QpType::Rc, cap: QpCap::ORDINARY, sq_sig_all: false };
        let create = QpCreate { init, send_cq: s.cq, recv_cq: s.cq, srq: None, xrcd: None };
        let qp = s.engine.create_qp(s.pd, create).unwrap();
        assert!(qpns.insert(s.engine.qp_number(qp).unwrap().get()), "after {round}");
        s.engine.destroy_qp(qp).unwrap();
        let attr = MrAttr { region: buffer.region(), base: 0, access: ALL };
        let mr = s.engine.register(s.pd, attr).unwrap();
        assert!(keys.insert(mr.rkey().get() >> 8), "after {round}");
        s.engine.deregister(mr).unwrap();
    }
}

fn keys_in_use(s: &Script) -> std::collections::BTreeSet<u32> {
    [s.rkey().get() >> 8].into()
}
