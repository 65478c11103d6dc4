//! The engine at the beginning of a run: memory, keys, windows, and queue pairs of every kind in
//! every state.

use super::*;

impl World {
    pub(super) fn new() -> Self {
        let mut config = Config::new(own_gid());
        config.window_packets = 16;
        config.port_mtu = Mtu::M1024;
        // As a NIC that runs has it.
        config.peer_window_bytes = Some(106_496);
        config.ack_delay = Duration::from_micros(25);
        let mut engine = Engine::new(config, 7);
        let pd = engine.create_pd().expect("the first");
        let cqs = (0..2).map(|_| engine.create_cq(CQES).expect("few")).collect();
        let ah = engine.create_ah(pd, AhAttr::new(peer_gid(), 0)).expect("the first");
        let mut world = Self {
            engine,
            now: 1,
            pd,
            cqs,
            srqs: Vec::new(),
            ah,
            conns: Vec::new(),
            peers: 0,
            memories: Vec::new(),
            keys: Vec::new(),
            posted: BTreeMap::new(),
            last_id: 0,
            last: Vec::new(),
            batch: Batch::new(16),
            honest: None,
            passing: Vec::new(),
        };
        world.fill_memory();
        world.connect_all();
        world.bind_windows();
        let pd = world.engine.create_pd().expect("few");
        world.honest = Some(Honest::new(&mut world.engine, pd, own_gid()));
        // The first messages are not disturbed: each learns from which port the other sends.
        world.honest.as_mut().expect("it is there").post(&mut world.engine);
        world.converse();
        world
    }

    pub(super) fn fill_memory(&mut self) {
        let other = self.engine.create_pd().expect("the second");
        let shown = Access::LOCAL_WRITE | Access::MW_BIND;
        let rights = [
            (self.pd, ALL),
            (self.pd, Access::REMOTE_READ),
            (other, ALL),
            (self.pd, ALL),
            (self.pd, shown),
        ];
        for (base, (pd, access)) in (1..).zip(rights) {
            let base = base << 20;
            let buffer = Buffer::from_bytes(&[UNTOUCHED; SIZE as usize]);
            let attr = MrAttr { region: buffer.region(), base, access };
            let mr = self.engine.register(pd, attr).expect("few");
            self.keys.push(mr.rkey());
            self.memories.push(Memory { buffer, base, mr });
        }
        self.engine.deregister(self.memories[3].mr).expect("nothing is bound to it");
        self.keys.extend([RKey::new(0), RKey::new(0x1234_5678)]);
    }

    /// A queue pair of each kind in each state, one more with a shared queue, and the one for
    /// general services.
    pub(super) fn connect_all(&mut self) {
        let xrcd = self.engine.create_xrcd().expect("the first");
        for xrc in [None, Some((xrcd, self.cqs[1]))] {
            let create = SrqCreate { max_wr: 8, max_sge: 2, limit: 2, xrc };
            self.srqs.push(self.engine.create_srq(self.pd, create).expect("few"));
        }
        for kind in KINDS {
            let create = self.create(kind, None, (kind == QpType::XrcRecv).then_some(xrcd));
            for state in QpState::ALL {
                if state.is_possible(kind) {
                    self.connect(kind, create, *state);
                }
            }
        }
        let shared = self.create(QpType::Rc, Some(self.srqs[0]), None);
        self.connect(QpType::Rc, shared, QpState::Rts);
        let gsi = self.create(QpType::Gsi, None, None);
        self.connect(QpType::Gsi, gsi, QpState::Rts);
        for at in 0..self.conns.len() {
            let Conn { qp, kind, .. } = self.conns[at];
            if kind == QpType::Ud {
                self.engine.attach_multicast(qp, group()).expect("few");
            }
        }
    }

    pub(super) fn create(
        &self,
        kind: QpType,
        srq: Option<SrqHandle>,
        xrcd: Option<roce::engine::XrcdHandle>,
    ) -> QpCreate {
        let cap = QpCap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 8,
        };
        let init = QpInitAttr { qp_type: kind, cap, sq_sig_all: false };
        QpCreate { init, send_cq: self.cqs[0], recv_cq: self.cqs[1], srq, xrcd }
    }

    pub(super) fn connect(&mut self, kind: QpType, create: QpCreate, state: QpState) {
        let qp = self.engine.create_qp(self.pd, create).expect("few");
        let number = self.peers;
        self.peers += 1;
        let attr = QpAttr {
            qp_access_flags: ALL,
            path_mtu: Mtu::M256,
            dest_qp_num: Qpn::new(FIRST_PEER + number),
            // Numbers wrap early.
            rq_psn: Psn::new(0xff_fffe),
            sq_psn: Psn::new(0xff_fffd),
            ah_attr: AhAttr::new(peer_gid(), 0),
            qkey: QKEY,
            max_rd_atomic: 2,
            max_dest_rd_atomic: 2,
            min_rnr_timer: RnrTimer(Bits::low(1)),
            timeout: AckTimeout(Bits::low(1)),
            retry_cnt: RetryCount(Bits::low(2)),
            rnr_retry: RnrRetry(Bits::low(2)),
            ..QpAttr::default()
        };
        let qpn = self.engine.qp_number(qp).expect("it was made");
        self.conns.push(Conn { qp, qpn, kind, attr });
        let way = [QpState::Init, QpState::Rtr, QpState::Rts];
        let at = self.conns.len() - 1;
        match state {
            QpState::Reset => {}
            QpState::Init | QpState::Rtr | QpState::Rts => {
                let steps = way.iter().position(|step| *step == state).expect("one of them");
                way[..=steps].iter().for_each(|step| self.modify(at, *step));
            }
            QpState::Sqd | QpState::Err => {
                way.iter().for_each(|step| self.modify(at, *step));
                self.modify(at, state);
            }
            QpState::Sqe => {
                way.iter().for_each(|step| self.modify(at, *step));
                self.fail_sending(at);
            }
        }
        let reached = self.engine.qp_state(qp).expect("it is there");
        let sqd = state == QpState::Sqd && transition::find(kind, QpState::Rts, state).is_none();
        assert!(reached == state || sqd, "{kind} got to {reached}");
    }

    /// Posts a send without memory, by which an unreliable sender gets to SQE.
    pub(super) fn fail_sending(&mut self, at: usize) {
        let sges = [Sge { addr: 0, length: 4, lkey: self.memories[3].mr.lkey() }];
        let target = self.target(at, self.conns[at].attr.dest_qp_num);
        let send = SendOp::Send { imm: None };
        let wr = SendWr { target, ..SendWr::new(WrId(0), send, Data::Gather(&sges)) };
        self.engine.post_send(self.conns[at].qp, &wr, &[]).expect("the queue is empty");
        self.transmit(usize::MAX);
        let mut one = [Wc::default()];
        assert_eq!(self.engine.poll_cq(self.cqs[0], &mut one), 1);
    }

    /// A window of each type through which part of a buffer shows that is closed otherwise.
    pub(super) fn bind_windows(&mut self) {
        let shown = &self.memories[4];
        let bind = MwBind {
            mr: shown.mr.lkey(),
            addr: shown.base + u64::from(WINDOW.start),
            length: u64::from(WINDOW.end - WINDOW.start),
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        };
        let binder = self.conns.iter().position(|conn| {
            conn.kind == QpType::Rc && self.engine.qp_state(conn.qp) == Some(QpState::Rts)
        });
        let binder = self.conns[binder.expect("there is one")].qp;
        for kind in [MwType::Type1, MwType::Type2] {
            let mw = self.engine.create_mw(self.pd, kind).expect("few");
            let rkey = self.engine.mw_key(mw).expect("it was made");
            let op = SendOp::BindMw { mw: rkey, rkey, bind };
            let wr = SendWr::new(WrId(0), op, Data::EMPTY);
            self.engine.post_send(binder, &wr, &[]).expect("the queue is empty");
            self.transmit(usize::MAX);
            let mut one = [Wc::default()];
            assert_eq!(self.engine.poll_cq(self.cqs[0], &mut one), 1);
            assert!(one[0].is_success(), "{}", one[0].status);
            self.keys.push(rkey);
        }
    }
}
