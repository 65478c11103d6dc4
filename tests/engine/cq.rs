//! Completion queues and their events. V-02.

use roce::engine::{AsyncEvent, Counter, Event, Notify};
use roce::verbs::{EventType, QpState, WcStatus};
use roce::wire::Opcode;

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
    let (mut s, mut psn) = (Script::rc(), RQ);
    let told = Event::Completion(s.recv_cq);
    s.engine.request_notify(s.recv_cq, Notify::Solicited);
    assert_eq!(send(&mut s, &mut psn, false), []);
    assert_eq!(send(&mut s, &mut psn, true), [told]);
    assert_eq!(send(&mut s, &mut psn, true), []);
}

#[test]
fn a_failure_counts_as_solicited() {
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
fn a_full_queue_loses_fails_the_receiver_and_says_so() {
    let mut s = Script::rc();
    s.engine.resize_cq(s.recv_cq, 2).unwrap();
    for id in 0..4 {
        s.recv(id, 0, 100);
    }
    for n in 0..3 {
        s.send(pkt(Opcode::RC_SEND_ONLY, RQ + n).fill(4).ack_req());
    }
    // What nobody learns of is not acknowledged.
    s.expect([ack(RQ + 1, 2)]);
    let error = Event::Async(AsyncEvent::Cq(EventType::CqErr, s.recv_cq));
    assert_eq!(s.take_events(), [error]);
    s.state(QpState::Err);
    s.receives(&[(0, OK), (1, OK)]);
    s.dropped(pkt(Opcode::RC_SEND_ONLY, RQ + 2).fill(4), Counter::WrongState);
}

#[test]
fn a_full_queue_of_sends_says_so() {
    let mut s = Script::rc();
    s.engine.resize_cq(s.cq, 1).unwrap();
    s.post(1, SEND, 4);
    s.post(2, SEND, 4);
    s.expect_count(2);
    s.send(ack(SQ + 1, 2));
    let error = Event::Async(AsyncEvent::Cq(EventType::CqErr, s.cq));
    assert_eq!(s.take_events(), [error]);
    s.completes(&[(1, OK)]);
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
