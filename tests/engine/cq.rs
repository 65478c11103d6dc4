//! Completion queues and their events. V-02.

use roce::engine::{AsyncEvent, Counter, Event, Notify, QpCreate, QpHandle};
use roce::time::Instant;
use roce::verbs::{
    EventType, QpInitAttr, QpState, QpType, RetryCount, RnrRetry, SendFlags, Wc, WcStatus,
};
use roce::wire::aeth::NakCode;
use roce::wire::{Bits, Opcode};

use super::script::*;

fn send(s: &mut Script, psn: &mut u32, solicited: bool) -> Vec<Event> {
    s.recv(u64::from(*psn), 0, 100);
    let packet = pkt(Opcode::RC_SEND_ONLY, *psn).fill(4);
    *psn += 1;
    s.send(if solicited { packet.solicited() } else { packet });
    s.take_events()
}

#[test]
fn an_event_is_for_the_next_completion_once() {
    // Rule: V-02.1.
    let (mut s, mut psn) = (Script::rc(), RQ);
    let told = Event::Completion(s.recv_cq);
    assert_eq!(send(&mut s, &mut psn, false), []);
    // One that is there already does not count.
    s.engine.request_notify(s.recv_cq, Notify::Next);
    assert_eq!(s.take_events(), []);
    assert_eq!(send(&mut s, &mut psn, false), [told]);
    assert_eq!(send(&mut s, &mut psn, false), []);
}

#[test]
fn an_event_may_be_for_solicited_completions_alone() {
    // Rule: V-02.2.
    let (mut s, mut psn) = (Script::rc(), RQ);
    let told = Event::Completion(s.recv_cq);
    s.engine.request_notify(s.recv_cq, Notify::Solicited);
    assert_eq!(send(&mut s, &mut psn, false), []);
    assert_eq!(send(&mut s, &mut psn, true), [told]);
    assert_eq!(send(&mut s, &mut psn, true), []);
}

#[test]
fn a_failure_counts_as_solicited() {
    // Rules: V-02.3, Q-16.
    // Also a flush and the failure of a send, for which rxe raises nothing.
    let mut s = Script::rc();
    s.recv(1, 0, 4);
    s.post(1, SEND, 4);
    s.expect_count(1);
    s.engine.request_notify(s.recv_cq, Notify::Solicited);
    s.engine.request_notify(s.cq, Notify::Solicited);
    s.enter(QpState::Err);
    let told = [Event::Completion(s.cq), Event::Completion(s.recv_cq)];
    assert_eq!(s.take_events(), told);
}

#[test]
fn a_success_of_a_send_is_not_solicited() {
    // Rule: V-02.2.
    let mut s = Script::rc();
    s.post(1, SEND, 4);
    s.expect_count(1);
    s.engine.request_notify(s.cq, Notify::Solicited);
    s.send(ack(SQ, 1));
    assert_eq!(s.take_events(), []);
    s.post(2, SEND, 4);
    s.expect_count(1);
    s.engine.request_notify(s.cq, Notify::Next);
    s.send(ack(SQ + 1, 2));
    assert_eq!(s.take_events(), [Event::Completion(s.cq)]);
}

#[test]
fn a_request_for_any_is_not_weakened() {
    // Rule: V-02.4.
    let (mut s, mut psn) = (Script::rc(), RQ);
    let told = Event::Completion(s.recv_cq);
    s.engine.request_notify(s.recv_cq, Notify::Next);
    s.engine.request_notify(s.recv_cq, Notify::Solicited);
    assert_eq!(send(&mut s, &mut psn, false), [told]);
    s.engine.request_notify(s.recv_cq, Notify::Solicited);
    s.engine.request_notify(s.recv_cq, Notify::Next);
    assert_eq!(send(&mut s, &mut psn, false), [told]);
}

#[test]
fn receive_cq_overrun_fails_the_queue_pair() {
    // Rule: Q-29.
    let mut s = Script::rc();
    s.engine.resize_cq(s.recv_cq, 2).unwrap();
    for id in 0..4 {
        s.recv(id, 0, 100);
    }
    for n in 0..3 {
        s.send(pkt(Opcode::RC_SEND_ONLY, RQ + n).fill(4).ack_req());
    }
    // A message whose completion is lost is not acknowledged.
    s.expect([ack(RQ + 1, 2)]);
    let error = Event::Async(AsyncEvent::Cq(EventType::CqErr, s.recv_cq));
    assert_eq!(s.take_events(), [error, fatal(s.qp)]);
    s.state(QpState::Err);
    s.receives(&[(0, OK), (1, OK)]);
    s.dropped(pkt(Opcode::RC_SEND_ONLY, RQ + 2).fill(4), Counter::WrongState);
}

fn fatal(qp: QpHandle) -> Event {
    Event::Async(AsyncEvent::Qp(EventType::QpFatal, qp))
}

#[test]
fn send_cq_overrun_fails_the_queue_pair() {
    // Rule: Q-29.
    let mut s = Script::rc();
    s.engine.resize_cq(s.cq, 1).unwrap();
    s.recv(7, 0, 4);
    s.post(1, SEND, 4);
    s.post(2, SEND, 4);
    s.expect_count(2);
    s.post(3, SEND, 4);
    s.send(ack(SQ + 1, 2));
    let error = Event::Async(AsyncEvent::Cq(EventType::CqErr, s.cq));
    assert_eq!(s.take_events(), [error, fatal(s.qp)]);
    s.state(QpState::Err);
    s.expect_nothing();
    s.completes(&[(1, OK)]);
    s.receives(&[(7, FLUSHED)]);
    s.at(1_000_000);
    s.expect_nothing();
    s.events(&[]);
}

#[test]
fn cq_overrun_of_one_queue_pair_leaves_others_alone() {
    // Whatever the answer that made it complete would have done next.
    for answer in [
        rnr(SQ + 2, 1, 2),
        seq_nak(SQ + 2, 2),
        nak(SQ + 2, NakCode::InvalidRequest, 2),
        read_only(SQ + 2, 3).fill(4),
    ] {
        let mut s = Script::with(|setup| {
            setup.attr.rnr_retry = RnrRetry(Bits::low(0));
            setup.attr.retry_cnt = RetryCount(Bits::low(0));
        });
        s.engine.resize_cq(s.cq, 1).unwrap();
        s.post(1, SEND, 4);
        s.post(2, SEND, 4);
        s.post(3, READ, 4);
        s.expect_count(3);
        s.send(answer);
        let error = Event::Async(AsyncEvent::Cq(EventType::CqErr, s.cq));
        assert_eq!(s.take_events(), [error, fatal(s.qp)]);
        s.state(QpState::Err);
        s.completes(&[(1, OK)]);
        s.at(1_000_000);
        s.expect_nothing();
        assert_eq!(s.next_timeout(), None);
    }
}

#[test]
fn overrun_cq_fails_each_queue_pair_that_completes_to_it() {
    let mut s = Script::rc();
    let cap = roce::verbs::QpCap { max_send_wr: 4, max_send_sge: 1, ..Default::default() };
    let init = QpInitAttr { qp_type: QpType::Rc, cap, sq_sig_all: false };
    let create = QpCreate { init, send_cq: s.cq, recv_cq: s.recv_cq, srq: None, xrcd: None };
    let other = s.engine.create_qp(s.pd, create).unwrap();
    s.climb(other, QpState::Rts);
    s.engine.resize_cq(s.cq, 1).unwrap();
    s.post(1, SEND, 4);
    s.post(2, SEND, 4);
    s.expect_count(2);
    s.send(ack(SQ + 1, 2));
    s.take_events();
    // Polling makes no room: what was lost is lost. Until it has something to tell, the other goes
    // on.
    s.completes(&[(1, OK)]);
    (s.qp, s.qpn) = (other, s.engine.qp_number(other).unwrap());
    s.post_flags(3, SEND, 4, SendFlags::empty());
    s.expect_count(1);
    s.send(ack(SQ, 1));
    s.state(QpState::Rts);
    s.post(4, SEND, 4);
    s.expect_count(1);
    s.send(ack(SQ + 1, 2));
    s.events(&[EventType::QpFatal]);
    s.state(QpState::Err);
    s.completes(&[]);
}

#[test]
fn cq_overrun_by_an_error_completion_stops_receiving_too() {
    // An unreliable sender would go on receiving after a failure that is reported.
    let mut s = Script::uc();
    s.engine.resize_cq(s.cq, 1).unwrap();
    s.post(1, SEND, 4);
    s.expect_count(1);
    s.try_post(2, SEND, &[s.sge(SIZE as u64, 1)], SendFlags::SIGNALED).unwrap();
    s.expect_nothing();
    s.state(QpState::Err);
    let error = Event::Async(AsyncEvent::Cq(EventType::CqErr, s.cq));
    assert_eq!(s.take_events(), [error, fatal(s.qp)]);
    s.completes(&[(1, OK)]);
}

#[test]
fn a_datagram_whose_completion_finds_no_room_is_fatal_once() {
    for good in [true, false] {
        let mut s = Setup::new(QpType::Ud).build();
        s.engine.resize_cq(s.recv_cq, 1).unwrap();
        s.recv(1, 0, 100);
        s.recv(2, if good { 0 } else { SIZE as u64 }, 100);
        for psn in [1, 2] {
            s.send(pkt(Opcode::UD_SEND_ONLY, psn).deth(0x1111, PEER));
        }
        let error = Event::Async(AsyncEvent::Cq(EventType::CqErr, s.recv_cq));
        assert_eq!(s.take_events(), [error, fatal(s.qp)]);
        s.state(QpState::Err);
        s.receives(&[(1, OK)]);
    }
}

#[test]
fn a_queue_changes_its_size_but_loses_nothing() {
    let (mut s, mut psn) = (Script::rc(), RQ);
    for _ in 0..3 {
        send(&mut s, &mut psn, false);
    }
    assert!(s.engine.resize_cq(s.recv_cq, 2).is_err());
    assert!(s.engine.resize_cq(s.recv_cq, 0).is_err());
    s.engine.resize_cq(s.recv_cq, 3).unwrap();
    s.receives(&[100, 101, 102].map(|id| (id, WcStatus::Success)));
    assert!(s.engine.destroy_cq(s.recv_cq).is_err(), "it is in use");
    let spare = s.engine.create_cq(1).unwrap();
    s.engine.destroy_cq(spare).unwrap();
    assert!(s.engine.destroy_cq(spare).is_err());
    assert!(s.engine.create_cq(0).is_err());
}

#[test]
fn completions_have_time_stamps_if_enabled() {
    let (mut s, mut psn) = (Script::rc(), RQ);
    s.at(10);
    send(&mut s, &mut psn, false);
    let (first, time) = s.engine.poll_cq_timed(s.recv_cq).unwrap();
    assert!(first.is_success() && time.is_none());
    send(&mut s, &mut psn, false);
    let now = Instant::from_nanos(15_000);
    s.engine.enable_timestamps(now, s.recv_cq).unwrap();
    s.at(20);
    send(&mut s, &mut psn, false);
    s.at(30);
    send(&mut s, &mut psn, false);
    s.at(40);
    // One that was there before came at the latest then.
    let mut times = Vec::new();
    while let Some((_, time)) = s.engine.poll_cq_timed(s.recv_cq) {
        times.push(time.unwrap().as_nanos() / 1000);
    }
    assert_eq!(times, [15, 20, 30]);
    // What is polled in the ordinary way takes its time with it.
    send(&mut s, &mut psn, false);
    s.at(50);
    send(&mut s, &mut psn, false);
    assert_eq!(s.engine.poll_cq(s.recv_cq, &mut [Wc::default()]), 1);
    let (_, time) = s.engine.poll_cq_timed(s.recv_cq).unwrap();
    assert_eq!(time, Some(Instant::from_nanos(50_000)));
}

#[test]
fn time_stamps_of_successive_completions_never_run_backwards() {
    let (mut s, mut psn) = (Script::rc(), RQ);
    s.engine.enable_timestamps(Instant::ZERO, s.recv_cq).unwrap();
    s.at(20);
    send(&mut s, &mut psn, false);
    s.recv(9, 0, 4);
    // A thread that read the clock earlier comes to the engine later.
    s.engine.handle_timeout(Instant::from_nanos(10_000));
    s.enter(QpState::Err);
    let times: Vec<_> = std::iter::from_fn(|| s.engine.poll_cq_timed(s.recv_cq))
        .map(|(_, time)| time.unwrap().as_nanos() / 1000)
        .collect();
    assert_eq!(times, [20, 20]);
}
