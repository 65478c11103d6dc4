//! Order of responses and requests, delayed ACKs, and the peer window.

use std::time::Duration;

use roce::engine::{Batch, Config, QpCreate, QpHandle, Received};
use roce::time::Instant;
use roce::verbs::{
    AttrMask, Data, Mtu, QpAttr, QpCap, QpInitAttr, QpState, QpType, SendOp, SendWr, WcStatus, WrId,
};
use roce::wire::{Operation, Packet};

use super::pair::{Pair, Side};

const SEND: SendOp = SendOp::Send { imm: None };
const HOLD: Duration = Duration::from_micros(20);

fn at(us: u64) -> Instant {
    Instant::from_nanos(us * 1000)
}

/// Passes the packets of a side, the `first` one or all, to the other.
fn pass(from: &mut Side, to: &mut Side, now: Instant, first: bool) -> Vec<Operation> {
    let mut batch = Batch::new(64);
    let _ = if first {
        from.engine.poll_transmit_delaying_acks(now, &mut batch)
    } else {
        from.engine.poll_transmit(now, &mut batch)
    };
    let mut sent = Vec::new();
    for (path, bytes) in batch.iter() {
        let received = Received::unchanged(path, bytes);
        sent.push(Packet::parse(received.packet).unwrap().info().unwrap().operation);
        to.engine.handle_packet(now, &received);
    }
    sent
}

/// Two sides with this configuration, and with receives.
fn talkers(config: fn(&mut Config)) -> (Side, Side) {
    let [mut a, mut b] = [1, 2].map(|number| Side::new(number, QpType::Rc, config));
    let (qa, qb) = (a.engine.qp_number(a.qp).unwrap(), b.engine.qp_number(b.qp).unwrap());
    a.connect((b.gid, qb), Mtu::M1024, (7, 70));
    b.connect((a.gid, qa), Mtu::M1024, (70, 7));
    for side in [&mut a, &mut b] {
        (0..64).for_each(|id| side.recv(id, 4096, 64));
    }
    (a, b)
}

#[test]
fn ack_is_sent_behind_requests() {
    let (mut a, mut b) = talkers(|_| {});
    a.send(1, SEND, 0, 64);
    assert_eq!(pass(&mut a, &mut b, at(1), false), [Operation::Send]);
    b.send(1, SEND, 0, 64);
    b.send(2, SEND, 0, 64);
    let sent = pass(&mut b, &mut a, at(2), false);
    assert_eq!(sent, [Operation::Send, Operation::Send, Operation::Acknowledge]);
}

#[test]
fn ack_is_not_passed_over_twice() {
    let (mut a, mut b) = talkers(|config| config.quantum = 4);
    a.send(1, SEND, 0, 64);
    pass(&mut a, &mut b, at(1), false);
    (0..20).for_each(|id| b.send(id, SEND, 0, 64));
    let sent = pass(&mut b, &mut a, at(2), false);
    let place = sent.iter().position(|operation| *operation == Operation::Acknowledge);
    assert_eq!((place, sent.len()), (Some(4), 21));
    // A peer that polls until it is acknowledged, and then looks at memory, finds there what came
    // before.
    a.send(2, SEND, 0, 64);
    pass(&mut a, &mut b, at(3), false);
    b.send(30, SEND, 0, 64);
    let sent = pass(&mut b, &mut a, at(4), true);
    assert_eq!(sent, [Operation::Send, Operation::Acknowledge]);
}

#[test]
fn lone_ack_is_sent_at_once() {
    let (mut a, mut b) = talkers(|config| config.ack_delay = HOLD);
    for (id, us) in [(1, 1), (2, 2)] {
        a.send(id, SEND, 0, 64);
        pass(&mut a, &mut b, at(us), true);
        assert_eq!(pass(&mut b, &mut a, at(us), true), [Operation::Acknowledge]);
        assert_eq!(a.completions().len(), 1);
    }
}

#[test]
fn delayed_ack_covers_several_messages() {
    let (mut a, mut b) = talkers(|config| config.ack_delay = HOLD);
    for (id, us) in [(1, 0), (2, 5), (3, 10)] {
        a.send(id, SEND, 0, 64);
        assert_eq!(pass(&mut a, &mut b, at(us), true), [Operation::Send]);
        b.send(id, SEND, 0, 64);
        assert_eq!(pass(&mut b, &mut a, at(us), true), [Operation::Send]);
        assert_eq!(
            pass(&mut b, &mut a, at(us), false),
            [],
            "it is delayed, whichever method is called"
        );
    }
    assert_eq!(b.engine.poll_timeout(), Some(at(20)));
    b.engine.handle_timeout(at(19));
    assert_eq!(pass(&mut b, &mut a, at(19), false), []);
    b.engine.handle_timeout(at(20));
    assert_eq!(pass(&mut b, &mut a, at(20), true), [Operation::Acknowledge]);
    let done: Vec<_> = a.completions().iter().map(|wc| wc.id.0).collect();
    assert_eq!(done, [0, 1, 2, 1, 2, 3], "three that were received, three that were sent");
}

#[test]
fn delayed_acks_can_be_sent_early() {
    let (mut a, mut b) = talkers(|config| config.ack_delay = HOLD);
    a.send(1, SEND, 0, 64);
    pass(&mut a, &mut b, at(0), true);
    b.send(1, SEND, 0, 64);
    assert_eq!(pass(&mut b, &mut a, at(0), true), [Operation::Send]);
    b.engine.end_ack_delays();
    assert!(b.engine.has_transmit());
    assert_eq!(pass(&mut b, &mut a, at(0), false), [Operation::Acknowledge]);
    assert!(!b.engine.has_transmit());
}

#[test]
fn duplicate_ends_the_ack_delay() {
    let (mut a, mut b) = talkers(|config| config.ack_delay = HOLD);
    a.send(1, SEND, 0, 64);
    pass(&mut a, &mut b, at(0), true);
    b.send(1, SEND, 0, 64);
    pass(&mut b, &mut a, at(0), true);
    // The retransmission timeout is shorter than the ACK delay.
    a.engine.handle_timeout(at(5000));
    assert!(pass(&mut a, &mut b, at(10), false).contains(&Operation::Send));
    assert_eq!(pass(&mut b, &mut a, at(10), true), [Operation::Acknowledge]);
}

/// A further queue pair at each side, connected.
fn add_pair(pair: &mut Pair) -> (QpHandle, QpHandle) {
    let cap = QpCap {
        max_send_wr: 16,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: true };
    let own = (pair.a.qp, pair.b.qp);
    for side in [&mut pair.a, &mut pair.b] {
        let create = QpCreate { init, send_cq: side.cq, recv_cq: side.cq, srq: None, xrcd: None };
        side.qp = side.engine.create_qp(side.pd, create).unwrap();
    }
    let Pair { a, b, .. } = pair;
    let (qa, qb) = (a.engine.qp_number(a.qp).unwrap(), b.engine.qp_number(b.qp).unwrap());
    a.connect((b.gid, qb), Mtu::M4096, (0, 0));
    b.connect((a.gid, qa), Mtu::M4096, (0, 0));
    let new = (a.qp, b.qp);
    (a.qp, b.qp) = own;
    new
}

const LIMIT: u32 = 128 * 1024;

/// Eight queue pairs that write a megabyte each to one peer, together not more than the limit at a
/// time.
fn crowd() -> (Pair, Vec<QpHandle>) {
    let mut pair = Pair::new(QpType::Rc, Mtu::M4096);
    pair.a = Side::new(1, QpType::Rc, |config| config.peer_window_bytes = Some(LIMIT));
    let qps = (0..8).map(|_| add_pair(&mut pair).0).collect();
    (pair, qps)
}

fn write_much(pair: &mut Pair, qps: &[QpHandle]) {
    for (id, qp) in qps.iter().enumerate() {
        let sges = [pair.a.sge(0, 1 << 20)];
        let op =
            SendOp::Write { remote_addr: pair.b.buffer.addr(), rkey: pair.b.mr.rkey(), imm: None };
        let wr = SendWr::new(WrId(id as u64), op, Data::Gather(&sges));
        pair.a.engine.post_send(*qp, &wr, &[]).unwrap();
    }
}

#[test]
fn queue_pairs_of_one_peer_share_the_peer_window() {
    let (mut pair, qps) = crowd();
    write_much(&mut pair, &qps);
    // Without an answer nothing goes beyond the limit, and the last that goes asks for one.
    let mut batch = Batch::new(1000);
    let sent = pair.a.engine.poll_transmit(at(0), &mut batch);
    assert!(sent * 4096 <= LIMIT as usize && sent * 4096 > LIMIT as usize / 2, "{sent} packets");
    let last = batch.iter().last().map(|(_, bytes)| bytes[8] & 0x80);
    assert_eq!(last, Some(0x80));
    pair.run();
    let done = pair.a.completions();
    assert_eq!(done.len(), 8);
    assert!(done.iter().all(|wc| wc.status == WcStatus::Success));
}

#[test]
fn peer_window_is_not_held_by_lost_destroyed_or_waiting_queue_pairs() {
    for what in 0..3 {
        let (mut pair, qps) = crowd();
        if what == 0 {
            // Every hundredth packet.
            let mut count = 0;
            pair.lose = Box::new(move |_, _| {
                count += 1;
                count % 100 == 0
            });
        }
        write_much(&mut pair, &qps);
        if what == 1 {
            let _ = pair.a.engine.poll_transmit(at(0), &mut Batch::new(1000));
            for qp in &qps[..4] {
                pair.a.engine.destroy_qp(*qp).unwrap();
            }
        }
        if what == 2 {
            // A message without a receive is retransmitted many times, and the others go on.
            let sges = [pair.a.sge(0, 1 << 20)];
            for qp in &qps[..2] {
                let wr = SendWr::new(WrId(100), SEND, Data::Gather(&sges));
                pair.a.engine.post_send(*qp, &wr, &[]).unwrap();
            }
        }
        pair.run();
        let done = pair.a.completions();
        let well = done.iter().filter(|wc| wc.status == WcStatus::Success).count();
        assert_eq!((well, done.len()), [(8, 8), (4, 4), (8, 10)][what], "case {what}");
    }
}

/// Posts a WRITE of this number of bytes.
fn write(pair: &mut Pair, qp: QpHandle, len: u32) {
    let sges = [pair.a.sge(0, len)];
    let data = if len == 0 { Data::EMPTY } else { Data::Gather(&sges) };
    let (remote_addr, rkey) = (pair.b.buffer.addr(), pair.b.mr.rkey());
    let wr = SendWr::new(WrId(1), SendOp::Write { remote_addr, rkey, imm: None }, data);
    pair.a.engine.post_send(qp, &wr, &[]).unwrap();
}

#[test]
fn queue_pair_that_ends_while_it_waits_for_the_peer_window_wakes_the_next() {
    for to in [None, Some(QpState::Reset), Some(QpState::Err)] {
        let mut pair = Pair::new(QpType::Rc, Mtu::M4096);
        pair.a = Side::new(1, QpType::Rc, |config| config.peer_window_bytes = Some(6000));
        let [short, first, second] = [0; 3].map(|_| add_pair(&mut pair).0);
        // An empty message is in flight, and then the first packet of another queue pair, which
        // waits to send its second. So does a third queue pair, with nothing in flight.
        write(&mut pair, short, 0);
        write(&mut pair, first, 2 * 4096);
        write(&mut pair, second, 4096);
        let mut batch = Batch::new(64);
        assert_eq!(pair.a.engine.poll_transmit(at(0), &mut batch), 2);
        let (path, empty) = batch.iter().next().unwrap();
        pair.b.engine.handle_packet(at(1), &Received::unchanged(path, empty));
        assert_eq!(pass(&mut pair.b, &mut pair.a, at(1), false), [Operation::Acknowledge]);
        let none: [Operation; 0] = [];
        assert_eq!(pass(&mut pair.a, &mut pair.b, at(2), false), none, "there is no room yet");
        match to {
            None => pair.a.engine.destroy_qp(first).unwrap(),
            Some(qp_state) => {
                let attr = QpAttr { qp_state, ..QpAttr::default() };
                pair.a.engine.modify_qp(first, &attr, AttrMask::STATE).unwrap();
            }
        }
        let sent = pass(&mut pair.a, &mut pair.b, at(3), false);
        assert_eq!(sent, [Operation::Write], "after {to:?}");
    }
}

#[test]
fn lone_queue_pair_is_limited_by_its_own_window_only() {
    let (mut pair, qps) = crowd();
    write_much(&mut pair, &qps[..1]);
    let window = pair.a.engine.config().window_bytes as usize / 4096;
    assert_eq!(pair.a.engine.poll_transmit(at(0), &mut Batch::new(1000)), window);
}
