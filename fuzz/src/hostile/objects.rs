//! Objects and queue pairs that come and go.

use super::*;

impl World {
    /// Makes an object, or destroys one; what depends on others keeps them.
    pub(super) fn churn(&mut self, input: &mut Input<'_>) {
        let (choice, place) = (input.byte(), usize::from(input.byte()));
        if choice & 0x80 != 0 && !self.passing.is_empty() {
            let at = place % self.passing.len();
            let engine = &mut self.engine;
            let gone = match &self.passing[at] {
                Passing::Mr(mr) => engine.deregister(*mr).is_ok(),
                Passing::Mw(mw) => engine.destroy_mw(*mw).is_ok(),
                Passing::Ah(ah) => engine.destroy_ah(*ah).is_ok(),
                Passing::Pd(pd) => engine.destroy_pd(*pd).is_ok(),
                Passing::Cq(cq) => engine.destroy_cq(*cq).is_ok(),
                Passing::Srq(srq) => engine.destroy_srq(*srq).is_ok(),
            };
            assert!(gone, "nothing depends on it");
            self.passing.swap_remove(at);
            return;
        }
        if self.passing.len() >= PASSING_MAX {
            return;
        }
        let (pd, engine) = (self.pd, &mut self.engine);
        self.passing.push(match choice % 6 {
            0 => {
                let region = self.memories[0].buffer.region();
                let attr = MrAttr { region, base: 1 << 20, access: ALL };
                let mr = engine.register(pd, attr).expect("few");
                self.keys.push(mr.rkey());
                Passing::Mr(mr)
            }
            1 => Passing::Mw(engine.create_mw(pd, MwType::Type2).expect("few")),
            2 => Passing::Ah(engine.create_ah(pd, AhAttr::new(peer_gid(), 0)).expect("few")),
            3 => Passing::Pd(engine.create_pd().expect("few")),
            4 => Passing::Cq(engine.create_cq(4).expect("few")),
            _ => {
                let create = SrqCreate { max_wr: 8, max_sge: 2, limit: 0, xrc: None };
                Passing::Srq(engine.create_srq(pd, create).expect("few"))
            }
        });
    }

    /// Destroys a reliable queue pair with all that it has posted, and makes another, whose slot is
    /// often the same.
    pub(super) fn replace_qp(&mut self, input: &mut Input<'_>) {
        let at = usize::from(input.byte()) % self.conns.len();
        let Conn { qp, kind, .. } = self.conns[at];
        if kind != QpType::Rc || self.peers >= PEERS_MAX {
            return;
        }
        self.poll();
        self.transmit(usize::MAX);
        self.poll();
        self.engine.destroy_qp(qp).expect("it is in no group");
        self.posted.retain(|_, owner| *owner != Some(qp));
        let create = self.create(QpType::Rc, None, None);
        let state = input.pick(&[QpState::Init, QpState::Rtr, QpState::Rts]);
        self.connect(QpType::Rc, create, state);
        self.conns.swap_remove(at);
    }
}
