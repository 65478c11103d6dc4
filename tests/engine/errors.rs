//! Packets that are dropped before a queue pair is touched, and both sides of each failure. P-08.

use roce::engine::{Counter, Disposition};
use roce::verbs::{
    Access, AttrMask, EventType, Mtu, QpAttr, QpState, QpType, RecvWr, SendOp, Sge, WcStatus, WrId,
};
use roce::wire::{Opcode, Qpn, RKey};

use super::pair::Pair;
use super::script::*;

#[test]
fn every_reason_to_drop_has_its_counter() {
    // Rules: W-51.1, W-51.2.
    let mut s = Script::rc();
    let whole = pkt(Opcode::RC_RDMA_WRITE_ONLY, RQ).to(s.qpn).reth(0, REMOTE_KEY, 0).bytes();
    let dropped = |reason| Disposition::Dropped(reason);
    for len in 0..whole.len() {
        let got = s.send_bytes(peer_gid(), own_gid(), &whole[..len]);
        assert_eq!(got, dropped(Counter::Truncated), "{len}");
    }
    let mut version = whole.clone();
    version[1] |= 1;
    let got = s.send_bytes(peer_gid(), own_gid(), &version);
    assert_eq!(got, dropped(Counter::BadVersion));
    s.dropped(pkt(Opcode(0xe1), RQ), Counter::BadOpcode);
    s.dropped(pkt(Opcode(0x2d), RQ), Counter::BadOpcode);
    s.dropped(pkt(Opcode(0x15), RQ).to(Qpn::new(5)), Counter::BadOpcode);
    s.dropped(pkt(Opcode(0x15), RQ).pkey(1), Counter::BadOpcode);
    s.dropped(pkt(Opcode::RC_SEND_ONLY, RQ).to(Qpn::new(5)), Counter::NoQp);
    s.dropped(pkt(Opcode::RC_SEND_ONLY, RQ).to(Qpn::GSI), Counter::NoQp);
    s.dropped(pkt(Opcode::UC_SEND_ONLY, RQ), Counter::WrongService);
    s.dropped(pkt(Opcode::UD_SEND_ONLY, RQ).deth(1, PEER), Counter::WrongService);
    s.dropped(pkt(Opcode::RC_SEND_ONLY, RQ).pkey(0x8123), Counter::BadPKey);
    s.expect_nothing();
    s.state(QpState::Rts);
    let mut reset = Setup::new(QpType::Rc);
    reset.until = QpState::Init;
    let mut s = reset.build();
    s.dropped(pkt(Opcode::RC_SEND_ONLY, RQ), Counter::WrongState);
}

#[test]
fn packets_from_an_address_that_is_not_the_peers_are_refused() {
    // Rule: Q-20.
    let mut s = Script::rc();
    s.recv(1, 0, 10);
    s.post(1, SEND, 4);
    s.expect_count(1);
    let stranger = roce::wire::Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 9));
    for packet in [pkt(Opcode::RC_SEND_ONLY, RQ).fill(4), ack(SQ, 1), pkt(Opcode(0x15), RQ)] {
        for (from, to) in [(stranger, own_gid()), (peer_gid(), stranger)] {
            let got = s.send_from(from, to, packet.clone());
            assert!(
                matches!(got, Disposition::Dropped(Counter::WrongPeer | Counter::BadOpcode)),
                "{got:?}"
            );
        }
    }
    s.expect_nothing();
    s.completes(&[]);
    s.receives(&[]);
    s.state(QpState::Rts);
}

#[test]
fn every_packet_is_counted() {
    let mut s = Script::rc();
    s.recv(1, 0, 100);
    s.send(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4).ack_req());
    s.dropped(pkt(Opcode::RC_SEND_ONLY, RQ).to(Qpn::new(5)), Counter::NoQp);
    s.expect_count(1);
    assert_eq!((s.count(Counter::Received), s.count(Counter::Sent)), (2, 1));
    let names: std::collections::BTreeSet<_> =
        Counter::ALL.iter().map(|counter| counter.name()).collect();
    assert_eq!(names.len(), Counter::ALL.len());
    assert_eq!(s.engine.counters().iter().filter(|(_, count)| *count > 0).count(), 3);
}

/// A fault: what it is, how it is made (and by which request it is met), the status of that
/// request, the statuses of what the responder had posted, and what the responder is told.
type Fault =
    (&'static str, fn(&mut Pair) -> SendOp, WcStatus, &'static [WcStatus], Option<EventType>);

const FAULTS: &[Fault] = {
    use WcStatus::*;
    const ACCESS: Option<EventType> = Some(EventType::QpAccessErr);
    const REQUEST: Option<EventType> = Some(EventType::QpReqErr);
    &[
        ("receives too small", receives_too_small, RemInvReqErr, &[LocLenErr, WrFlushErr], None),
        ("a receive with a bad key", receive_with_a_bad_key, RemOpErr, &[LocProtErr], None),
        ("a receive with a stale key", receive_with_a_stale_key, RemOpErr, &[LocProtErr], None),
        ("a read with a stale key", |p| read(p, stale(p)), RemAccessErr, &[], ACCESS),
        ("a write out of range", write_out_of_range, RemAccessErr, &[], ACCESS),
        ("a read with a bad key", |p| read(p, BAD), RemAccessErr, &[], ACCESS),
        ("an atomic with a bad key", |p| add(p, 0), RemAccessErr, &[], ACCESS),
        ("immediate data with a bad key", imm_with_a_bad_key, RemAccessErr, &[LocAccessErr], None),
        ("a misaligned atomic, even with a bad key", |p| add(p, 4), RemInvReqErr, &[], REQUEST),
        ("a region without the right", region_without_the_right, RemAccessErr, &[], ACCESS),
        ("no receive, for ever", |_| SENDING, RnrRetryExcErr, &[], None),
        ("a peer that is in RESET", |p| peer_in(p, QpState::Reset), RetryExcErr, &[], None),
        ("a peer that is in INIT", |p| peer_in(p, QpState::Init), RetryExcErr, &[], None),
        ("a peer that is in ERR", |p| peer_in(p, QpState::Err), RetryExcErr, &[], None),
    ]
};

const SENDING: SendOp = SendOp::Send { imm: None };

/// A key that does not exist.
const BAD: RKey = RKey::new(0x1111_1111);

fn receives_too_small(p: &mut Pair) -> SendOp {
    p.b.recv(1, 0, 99);
    p.b.recv(2, 0, 99);
    SENDING
}

fn receive_with_a_bad_key(p: &mut Pair) -> SendOp {
    let sges = [Sge { lkey: roce::verbs::LKey::new(1), ..p.b.sge(0, 200) }];
    p.b.engine.post_recv(p.b.qp, &RecvWr { id: WrId(1), sges: &sges }).unwrap();
    SENDING
}

/// The key of a region as it may have been before: only its low eight bits differ.
fn stale(p: &Pair) -> RKey {
    RKey::new(p.b.mr.rkey().get() ^ 0x80)
}

fn receive_with_a_stale_key(p: &mut Pair) -> SendOp {
    let sge = p.b.sge(0, 200);
    let sges = [Sge { lkey: roce::verbs::LKey::new(sge.lkey.get() ^ 0x80), ..sge }];
    p.b.engine.post_recv(p.b.qp, &RecvWr { id: WrId(1), sges: &sges }).unwrap();
    SENDING
}

fn write_out_of_range(p: &mut Pair) -> SendOp {
    let remote_addr = p.b.buffer.addr() + super::pair::BUFFER as u64 - 99;
    SendOp::Write { remote_addr, rkey: p.b.mr.rkey(), imm: None }
}

fn imm_with_a_bad_key(p: &mut Pair) -> SendOp {
    p.b.recv(1, 0, 0);
    SendOp::Write { remote_addr: p.b.buffer.addr(), rkey: BAD, imm: Some([1; 4]) }
}

fn read(p: &Pair, rkey: RKey) -> SendOp {
    SendOp::Read { remote_addr: p.b.buffer.addr(), rkey }
}

/// An atomic at an offset of the peer's buffer, with a bad key.
fn add(p: &Pair, offset: u64) -> SendOp {
    SendOp::FetchAdd { remote_addr: p.b.buffer.addr() + offset, rkey: BAD, add: 1 }
}

fn region_without_the_right(p: &mut Pair) -> SendOp {
    p.b.engine.reregister(p.b.mr, None, None, Some(Access::LOCAL_WRITE)).unwrap();
    read(p, p.b.mr.rkey())
}

/// Takes the peer back to RESET, and from there by INIT to a state in which it does not answer.
fn peer_in(p: &mut Pair, state: QpState) -> SendOp {
    let mut modify = |qp_state, mask| {
        let attr = QpAttr { qp_state, ..QpAttr::default() };
        p.b.engine.modify_qp(p.b.qp, &attr, AttrMask::STATE | mask).unwrap();
    };
    modify(QpState::Reset, AttrMask::empty());
    if state != QpState::Reset {
        let needs = roce::verbs::transition::find(QpType::Rc, QpState::Reset, QpState::Init);
        modify(QpState::Init, needs.unwrap().required);
        modify(state, AttrMask::empty());
    }
    SENDING
}

#[test]
fn each_fault_of_the_table_has_its_pair_of_statuses() {
    // Rules: P-08.1, P-08.2, Q-30.
    for &(what, prepare, requester, responder, event) in FAULTS {
        let mut pair = Pair::new(QpType::Rc, Mtu::M1024);
        let op = prepare(&mut pair);
        let len = if matches!(op, SendOp::FetchAdd { .. }) { 8 } else { 100 };
        pair.a.send(1, op, 0, len);
        pair.a.send(2, SENDING, 0, 4);
        pair.a.recv(3, 0, 4);
        pair.run();
        let statuses: Vec<_> = pair.a.completions().iter().map(|wc| (wc.id.0, wc.status)).collect();
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(statuses, [(1, requester), (2, flushed), (3, flushed)], "{what}");
        let statuses: Vec<_> = pair.b.completions().iter().map(|wc| wc.status).collect();
        assert_eq!(statuses, responder, "{what}");
        assert_eq!(pair.a.state(), QpState::Err, "{what}");
        let events = pair.b.events.iter().map(|event| match event {
            roce::engine::Event::Async(roce::engine::AsyncEvent::Qp(event, _)) => Some(*event),
            _ => None,
        });
        let events: Vec<_> = events.collect();
        assert_eq!(events, event.map(Some).into_iter().collect::<Vec<_>>(), "{what}");
        if requester != WcStatus::RnrRetryExcErr && requester != WcStatus::RetryExcErr {
            assert_eq!(pair.b.state(), QpState::Err, "{what}");
        }
    }
}

#[test]
fn a_packet_for_a_queue_pair_of_another_kind_is_dropped() {
    let mut s = Setup::new(QpType::Ud).build();
    s.recv(1, 0, 100);
    s.dropped(pkt(Opcode::RC_SEND_ONLY, RQ).fill(4), Counter::WrongService);
    s.expect_nothing();
}

#[test]
fn each_loss_is_recovered_exactly_once() {
    // Rule: P-02.1.
    // P-02: one packet of each kind is lost, at each of the first times it is sent.
    use roce::wire::{Operation, Role};
    let kinds = [
        (Operation::Send, Role::Request),
        (Operation::Write, Role::Request),
        (Operation::ReadRequest, Role::Request),
        (Operation::FetchAdd, Role::Request),
        (Operation::AtomicWrite, Role::Request),
        (Operation::Flush, Role::Request),
        (Operation::ReadResponse, Role::Response),
        (Operation::AtomicAcknowledge, Role::Response),
        (Operation::Acknowledge, Role::Response),
    ];
    for (operation, role) in kinds {
        for nth in 0..8 {
            let mut pair = Pair::new(QpType::Rc, Mtu::M1024);
            pair.a.buffer.write(0, &pattern(3000)).unwrap();
            pair.b.recv(1, 100_000, 3000);
            let (remote_addr, rkey) = (pair.b.buffer.addr(), pair.b.mr.rkey());
            let counter = remote_addr + 200_000;
            pair.a.send(1, SENDING, 0, 3000);
            pair.a.send(2, SendOp::FetchAdd { remote_addr: counter, rkey, add: 1 }, 50_000, 8);
            pair.a.send(3, SendOp::Write { remote_addr, rkey, imm: None }, 0, 3000);
            pair.a.send(4, SendOp::AtomicWrite { remote_addr: counter + 8, rkey }, 8, 8);
            let (placement, level) =
                (roce::verbs::FlushPlacement::GLOBAL, roce::verbs::FlushLevel::Range);
            pair.a.send(5, SendOp::Flush { remote_addr, rkey, length: 9, placement, level }, 0, 0);
            pair.a.send(6, SendOp::Read { remote_addr, rkey }, 60_000, 3000);
            pair.a.send(7, SendOp::FetchAdd { remote_addr: counter, rkey, add: 1 }, 50_008, 8);
            let mut seen = 0;
            pair.lose = Box::new(move |_, packet| {
                let info = packet.info().unwrap();
                let hit = info.operation == operation && info.role == role;
                seen += u32::from(hit);
                hit && seen == nth + 1
            });
            pair.run();
            let ids: Vec<_> = pair.a.completions().iter().map(|wc| (wc.id.0, wc.status)).collect();
            assert_eq!(ids, [1, 2, 3, 4, 5, 6, 7].map(|id| (id, OK)), "{operation:?} {nth}");
            assert_eq!(pair.b.completions().len(), 1);
            let mut word = [0; 8];
            pair.b.buffer.read(200_000, &mut word).unwrap();
            assert_eq!(u64::from_ne_bytes(word), 2, "{operation:?} {nth}");
            let mut old = [0; 16];
            pair.a.buffer.read(50_000, &mut old).unwrap();
            assert_eq!(old[..8], 0_u64.to_ne_bytes());
            assert_eq!(old[8..], 1_u64.to_ne_bytes());
            let mut data = vec![0; 3000];
            pair.a.buffer.read(60_000, &mut data).unwrap();
            assert_eq!(data, pattern(3000));
        }
    }
}

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// A packet of any assigned opcode with headers that are nearly right.
fn nearly_right(s: &Script, info: &roce::wire::OpcodeInfo, dice: &mut Dice) -> Pkt {
    let base = if info.role == roce::wire::Role::Request { RQ } else { SQ };
    let mut packet = pkt(info.opcode, (base + dice.roll(8) as u32).wrapping_sub(2));
    let lens = [0, 1, 4, 8, 255, 256, 257];
    packet = packet.fill(lens[dice.roll(7) as usize]);
    packet.bth.ack_req = dice.roll(2) == 0;
    let vas = [s.va(0), s.va(8), s.va(3), s.va(SIZE as u64 - 8), u64::MAX - 7, 0];
    let va = vas[dice.roll(6) as usize];
    let key = if dice.roll(8) == 0 { RKey::new(3) } else { s.rkey() };
    let lens = [0, 4, 8, 256, 300, 1 << 31, u32::MAX];
    let len = lens[dice.roll(7) as usize];
    let headers = info.headers;
    use roce::wire::Headers;
    if headers.contains(Headers::RETH) {
        packet = packet.reth(va, key, len);
    }
    if headers.contains(Headers::ATOMIC_ETH) {
        packet = packet.atomic(va, key, dice.roll(9), dice.roll(9));
    }
    if headers.contains(Headers::AETH) {
        packet = packet.syndrome(dice.roll(256) as u8, dice.roll(4) as u32);
    }
    if headers.contains(Headers::ATOMIC_ACK_ETH) {
        packet = packet.original(dice.roll(9));
    }
    if headers.contains(Headers::IMM_DT) {
        packet = packet.imm([1; 4]);
    }
    if headers.contains(Headers::IETH) {
        packet = packet.inv(key);
    }
    if headers.contains(Headers::FETH) {
        packet = packet.feth(dice.roll(16) as u32, dice.roll(4) as u32);
    }
    if headers.contains(Headers::XRCETH) {
        packet = packet.xrc(roce::wire::XrcSrqn::new(dice.roll(3) as u32));
    }
    if headers.contains(Headers::DETH) {
        packet = packet.deth(0x1111, PEER);
    }
    if headers.contains(Headers::SACK_ETH) {
        packet = packet.sack(base + dice.roll(9) as u32, dice.roll(6) as u32);
    }
    if headers.contains(Headers::RDETH) {
        let ee_context = roce::wire::EeContext::new(1);
        packet.ext.rdeth = Some(roce::wire::RdethRepr { ee_context });
    }
    packet
}

#[test]
fn no_packet_harms_an_engine_in_any_state() {
    let kinds = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv, QpType::Gsi];
    let infos: Vec<_> = Opcode::assigned().collect();
    let mut dice = Dice(1);
    for kind in kinds {
        for state in QpState::ALL {
            for _ in 0..40 {
                let Some(mut s) = super::states::in_state(kind, *state) else { continue };
                for id in 0..4 {
                    let sges = [s.sge(0, 300)];
                    let op = [SEND, READ, ADD, WRITE][id as usize];
                    let _posted = s.try_post(id, op, &sges, roce::verbs::SendFlags::SIGNALED);
                    let _posted = s.engine.post_recv(s.qp, &RecvWr { id: WrId(id), sges: &sges });
                }
                s.sent();
                for step in 0..40 {
                    let info = infos[dice.roll(infos.len() as u64) as usize];
                    let mut bytes = nearly_right(&s, info, &mut dice).to(s.qpn).bytes();
                    if dice.roll(4) == 0 {
                        let at = dice.roll(bytes.len() as u64) as usize;
                        bytes[at] ^= 1 << dice.roll(8);
                    }
                    s.send_bytes(peer_gid(), own_gid(), &bytes);
                    if dice.roll(3) == 0 {
                        s.sent();
                    }
                    s.at(s.now + step * dice.roll(100));
                }
                s.sent();
                // Four of each were posted: no completion came twice.
                let completed = s.poll(s.cq).len() + s.poll(s.recv_cq).len();
                assert!(completed <= 9, "{kind} {state}: {completed}");
            }
        }
    }
}

#[test]
fn the_same_inputs_give_the_same_bytes() {
    let run = || {
        let mut pair = Pair::new(QpType::Rc, Mtu::M1024);
        let (remote_addr, rkey) = (pair.b.buffer.addr() - pair.b.buffer.addr(), pair.b.mr.rkey());
        pair.b.recv(1, 0, 5000);
        pair.a.send(1, SENDING, 0, 5000);
        pair.a.send(2, SendOp::Write { remote_addr, rkey, imm: None }, 0, 100);
        pair.run();
        pair.log
    };
    assert_eq!(run(), run());
}
