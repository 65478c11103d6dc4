//! Raw packet queue pairs: whole frames, flow steering and RSS.

use roce::engine::{Counter, CqHandle, QpHandle};
use roce::memory::Buffer;
use roce::raw_eth::{
    FlowHandle, FlowKind, FlowLayer, FlowMatch, FlowRule, Rss, RxHash, RxHashFields, Steering,
    WqHandle, WqState,
};
use roce::time::Instant;
use roce::verbs::{
    Access, CreateError, DestroyError, MrAttr, QpState, QpType, RecvWr, Sge, Wc, WcStatus, WrId,
};

use super::script::*;

const FRAME_MAX: usize = 1518;

/// A script with a raw packet queue pair, and the steering of its port.
struct Raw {
    script: Script,
    steering: Steering,
}

impl std::ops::Deref for Raw {
    type Target = Script;

    fn deref(&self) -> &Script {
        &self.script
    }
}

impl std::ops::DerefMut for Raw {
    fn deref_mut(&mut self) -> &mut Script {
        &mut self.script
    }
}

impl Raw {
    fn new(is_echoing: bool) -> Self {
        let mut setup = Setup::new(QpType::RawPacket);
        setup.config.frame_max = FRAME_MAX;
        Self { script: setup.build(), steering: Steering::new(is_echoing) }
    }

    fn create_flow(&mut self, qp: QpHandle, rule: FlowRule) -> FlowHandle {
        self.steering.create_flow(&self.script.engine, qp, rule).unwrap()
    }

    fn handle_frame(&mut self, frame: &[u8]) -> bool {
        self.steering.handle_frame(&mut self.script.engine, Instant::ZERO, frame)
    }

    fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.steering.poll_frame(&mut self.script.engine, Instant::ZERO)
    }

    fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), DestroyError> {
        self.steering.destroy_qp(&mut self.script.engine, qp)
    }

    fn create_wq(&mut self, cq: CqHandle) -> WqHandle {
        let Self { script, steering } = self;
        steering.create_wq(&mut script.engine, script.pd, cq, 64, 1).unwrap()
    }

    fn modify_wq(&mut self, wq: WqHandle, state: WqState) -> Result<(), CreateError> {
        self.steering.modify_wq(&mut self.script.engine, wq, state)
    }

    fn destroy_wq(&mut self, wq: WqHandle) -> Result<(), DestroyError> {
        self.steering.destroy_wq(&mut self.script.engine, wq)
    }

    fn create_rss_qp(&mut self, cq: CqHandle, rss: Rss) -> Result<QpHandle, CreateError> {
        let Self { script, steering } = self;
        steering.create_rss_qp(&mut script.engine, script.pd, cq, rss)
    }
}

fn raw() -> Raw {
    Raw::new(false)
}

/// A frame to the hardware address that is six times `to`, of IPv4 from 10.0.0.`from`.
fn frame(to: u8, from: u8) -> Vec<u8> {
    let mut frame = [[to; 6], [2; 6]].concat();
    frame.extend([
        0x08, 0x00, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, 9,
    ]);
    frame.extend([0; 30]);
    frame
}

/// A rule for frames to the hardware address that is six times `to`.
fn to(to: u8, priority: u16) -> FlowRule {
    let header = FlowMatch::any(FlowLayer::Ethernet).with(0, &[to; 6], &[0xff; 6]);
    FlowRule { kind: FlowKind::Normal, priority, headers: vec![header] }
}

fn other(kind: FlowKind) -> FlowRule {
    FlowRule { kind, priority: 0, headers: Vec::new() }
}

/// Creates a second queue pair of the same kind, ready, with a receive; and the queue of its
/// completion.
fn another(s: &mut Raw) -> (QpHandle, CqHandle) {
    let cq = s.engine.create_cq(16).unwrap();
    let init = roce::verbs::QpInitAttr {
        qp_type: QpType::RawPacket,
        cap: Setup::new(QpType::RawPacket).cap,
        sq_sig_all: false,
    };
    let create = roce::engine::QpCreate { init, send_cq: s.cq, recv_cq: cq, srq: None, xrcd: None };
    let pd = s.pd;
    let qp = s.engine.create_qp(pd, create).unwrap();
    s.climb(qp, QpState::Rts);
    let sges = [s.sge(2048, 2000)];
    s.engine.post_recv(qp, &RecvWr { id: WrId(9), sges: &sges }).unwrap();
    (qp, cq)
}

fn send(s: &mut Raw, bytes: &[u8]) -> Vec<Vec<u8>> {
    s.buffer.write(0, bytes).unwrap();
    s.post(1, SEND, bytes.len() as u32);
    s.expect_nothing();
    std::iter::from_fn(|| s.poll_frame()).collect()
}

#[test]
fn unmatched_frame_is_sent_and_unmatched_received_frame_is_dropped() {
    let mut s = raw();
    let sent = frame(7, 1);
    assert_eq!(send(&mut s, &sent), std::slice::from_ref(&sent));
    s.completes(&[(1, OK)]);
    s.recv(2, 2048, 2000);
    assert!(!s.handle_frame(&sent));
    s.receives(&[]);
    assert!(!s.handle_frame(&[1, 2, 3]), "no frame at all");
}

#[test]
fn a_rule_steers_frames_from_the_wire_and_from_here() {
    let mut s = raw();
    let (other, cq) = another(&mut s);
    let flow = s.create_flow(other, to(7, 0));
    assert_eq!(s.destroy_qp(other), Err(DestroyError::Busy));
    let sent = frame(7, 1);
    assert_eq!(send(&mut s, &sent), std::slice::from_ref(&sent), "it leaves as well");
    s.completes(&[(1, OK)]);
    let wc: Vec<Wc> = s.poll(cq);
    assert_eq!((wc.len(), wc[0].id, wc[0].byte_len as usize), (1, WrId(9), sent.len()));
    assert_eq!(s.read(2048, sent.len()), sent);
    // There is no receive left for the next.
    assert!(s.handle_frame(&sent));
    assert_eq!(s.count(Counter::NoReceive), 1);
    s.steering.destroy_flow(flow).unwrap();
    assert_eq!(s.steering.destroy_flow(flow), Err(DestroyError::NotFound));
    assert!(!s.handle_frame(&sent));
    s.destroy_qp(other).unwrap();
}

#[test]
fn a_rule_for_everything_keeps_no_sent_frame_from_the_wire() {
    for kind in [FlowKind::AllDefault, FlowKind::Sniffer] {
        let mut s = raw();
        let (promiscuous, cq) = another(&mut s);
        s.create_flow(promiscuous, other(kind));
        let sent = frame(7, 1);
        assert_eq!(send(&mut s, &sent), std::slice::from_ref(&sent));
        let copies = usize::from(kind == FlowKind::Sniffer);
        assert_eq!(s.poll(cq).len(), copies, "a sniffer alone sees what is sent");
    }
}

#[test]
fn a_wire_that_echoes_frames_brings_them_once() {
    let mut s = Raw::new(true);
    let (taker, cq) = another(&mut s);
    s.create_flow(taker, to(7, 0));
    assert_eq!(send(&mut s, &frame(7, 1)), Vec::<Vec<u8>>::new(), "handed over at once");
    assert_eq!(s.poll(cq).len(), 1);
    // What no rule asks for leaves, and comes back for the rule that takes the rest.
    let (rest, cq) = another(&mut s);
    s.create_flow(rest, other(FlowKind::AllDefault));
    let echoed = send(&mut s, &frame(8, 1)).remove(0);
    assert_eq!(s.poll(cq).len(), 0);
    assert!(s.handle_frame(&echoed));
    assert_eq!(s.poll(cq).len(), 1);
}

#[test]
fn the_more_important_rule_wins_and_a_sniffer_has_a_copy() {
    let mut s = raw();
    let (first, first_cq) = another(&mut s);
    let (second, second_cq) = another(&mut s);
    let (sniffer, sniffer_cq) = another(&mut s);
    let (rest, rest_cq) = another(&mut s);
    s.create_flow(second, to(7, 5));
    s.create_flow(first, to(7, 4));
    s.create_flow(sniffer, other(FlowKind::Sniffer));
    s.create_flow(rest, other(FlowKind::AllDefault));
    assert!(s.handle_frame(&frame(7, 1)));
    assert!(s.handle_frame(&frame(8, 1)));
    let counts = [first_cq, second_cq, sniffer_cq, rest_cq].map(|cq| s.poll(cq).len());
    assert_eq!(counts, [1, 0, 1, 1]);
    // The sniffer had one receive for two frames.
    assert_eq!(s.count(Counter::NoReceive), 1);
}

#[test]
fn a_frame_has_a_length_and_memory() {
    for (len, status) in [(13, WcStatus::LocLenErr), (FRAME_MAX as u32 + 1, WcStatus::LocLenErr)] {
        let mut s = raw();
        s.post(1, SEND, len);
        s.expect_nothing();
        s.completes(&[(1, status)]);
        s.state(QpState::Sqe);
        assert_eq!(s.poll_frame(), None);
    }
    // One that does not fit waits for none.
    let mut s = raw();
    let (qp, cq) = another(&mut s);
    s.create_flow(qp, other(FlowKind::AllDefault));
    assert!(s.handle_frame(&vec![7; 2001]));
    assert_eq!((s.count(Counter::TooLong), s.poll(cq).len()), (1, 0));
}

#[test]
fn packets_of_roce_do_not_reach_it() {
    let mut s = raw();
    s.recv(2, 2048, 2000);
    let packet = pkt(roce::wire::Opcode::UD_SEND_ONLY, 1).deth(0, PEER);
    s.dropped(packet, Counter::WrongService);
}

#[test]
fn without_frames_there_are_no_raw_packets() {
    let mut s = Script::rc();
    let init = roce::verbs::QpInitAttr {
        qp_type: QpType::RawPacket,
        cap: Default::default(),
        sq_sig_all: false,
    };
    let create =
        roce::engine::QpCreate { init, send_cq: s.cq, recv_cq: s.cq, srq: None, xrcd: None };
    assert!(matches!(s.engine.create_qp(s.pd, create), Err(CreateError::Invalid(_))));
    let rc = s.qp;
    let refused = Steering::new(false).create_flow(&s.engine, rc, to(1, 0));
    assert!(refused.is_err(), "and no rules for others");
}

#[test]
fn rss_distributes_frames_and_keeps_flows_together() {
    let mut s = raw();
    let (pd, cq) = (s.pd, s.engine.create_cq(64).unwrap());
    let buffer = Buffer::new(2048);
    let attr = MrAttr { region: buffer.region(), base: 0, access: Access::LOCAL_WRITE };
    let lkey = s.engine.register(pd, attr).unwrap().lkey();
    let queues: Vec<_> = (0..4).map(|_| s.create_wq(cq)).collect();
    let wr = |id| RecvWr { id: WrId(id), sges: &[] };
    assert!(Steering::post_wq_recv(&mut s.engine, queues[0], &wr(0)).is_err(), "it is reset");
    let sges = [Sge { addr: 0, length: 2048, lkey }];
    for (at, queue) in queues.iter().enumerate() {
        s.modify_wq(*queue, WqState::Ready).unwrap();
        for _ in 0..64 {
            Steering::post_wq_recv(
                &mut s.engine,
                *queue,
                &RecvWr { id: WrId(at as u64), sges: &sges },
            )
            .unwrap();
        }
    }
    let fields = RxHashFields::SRC_IPV4 | RxHashFields::DST_IPV4;
    let hash = RxHash { key: (1..=40).collect(), fields };
    let spread = Rss { queues: queues.clone(), hash };
    let odd = Rss { queues: queues[..3].to_vec(), ..spread.clone() };
    assert!(s.create_rss_qp(cq, odd).is_err());
    let qp = s.create_rss_qp(cq, spread).unwrap();
    let flow = s.create_flow(qp, to(7, 0));
    let mut seen = [0; 4];
    for from in 0..16 {
        for _ in 0..2 {
            assert!(s.handle_frame(&frame(7, from)));
        }
        let wcs = s.poll(cq);
        assert_eq!((wcs.len(), wcs[0].id), (2, wcs[1].id), "one flow, one queue");
        seen[wcs[0].id.0 as usize] += 1;
        let queue = queues[wcs[0].id.0 as usize];
        assert_eq!(Some(wcs[0].qp_num), s.steering.wq_number(&s.engine, queue));
    }
    assert!(seen.iter().filter(|count| **count > 0).count() > 1, "{seen:?}");
    // A queue that is in use stays; one in error is flushed.
    assert_eq!(s.destroy_wq(queues[0]), Err(DestroyError::Busy));
    assert_eq!(s.engine.destroy_cq(cq), Err(DestroyError::Busy));
    s.modify_wq(queues[0], WqState::Err).unwrap();
    assert!(s.poll(cq).iter().all(|wc| wc.status == FLUSHED));
    assert!(s.modify_wq(queues[0], WqState::Ready).is_err());
    s.steering.destroy_flow(flow).unwrap();
    s.destroy_qp(qp).unwrap();
    for queue in queues {
        s.destroy_wq(queue).unwrap();
    }
    s.engine.destroy_cq(cq).unwrap();
}

#[test]
fn wq_states_follow_those_of_ibv_wq() {
    let mut s = raw();
    let cq = s.engine.create_cq(64).unwrap();
    let wq = s.create_wq(cq);
    let post = |s: &mut Raw, id| {
        Steering::post_wq_recv(&mut s.engine, wq, &RecvWr { id: WrId(id), sges: &[] })
    };
    assert!(post(&mut s, 1).is_err(), "RESET takes no receives");
    s.modify_wq(wq, WqState::Err).unwrap();
    post(&mut s, 2).unwrap();
    let flushed: Vec<_> = s.poll(cq).iter().map(|wc| (wc.id, wc.status)).collect();
    assert_eq!(flushed, [(WrId(2), FLUSHED)]);
    assert!(s.modify_wq(wq, WqState::Ready).is_err(), "ERR leads to RESET only");
    s.modify_wq(wq, WqState::Reset).unwrap();
    s.modify_wq(wq, WqState::Ready).unwrap();
    s.modify_wq(wq, WqState::Ready).unwrap();
    post(&mut s, 3).unwrap();
    s.modify_wq(wq, WqState::Reset).unwrap();
    assert_eq!(s.poll(cq), [], "RESET discards");
    s.destroy_wq(wq).unwrap();
    assert_eq!(s.destroy_wq(wq), Err(DestroyError::NotFound));
    assert_eq!(post(&mut s, 4), Err(roce::verbs::PostError::UnknownReceiveQueue));
}
