//! One link, told of connections, messages and time step by step.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::{End, LOST_AFTER, NONCE, Wire};
use crate::group::hello::Hello;
use crate::group::limits::PARTING_MAX;
use crate::group::link::{Backoff, Change, Link, Made, Next, Own, Pipe, Refusal, Role, Standing};
use crate::time::Instant;

fn link(role: Role) -> Link<End> {
    let own = Own { server: 1, thread: 0, incarnation: 77 };
    let backoff = Backoff::new(Duration::from_millis(4), Duration::from_millis(100), 1);
    Link::new(own, role, backoff, LOST_AFTER)
}

fn hello(incarnation: u64, attempt: u32) -> Hello {
    Hello { server: 2, thread: 0, incarnation, attempt, nonce: NONCE }
}

fn connect(link: &mut Link<End>, hello: Hello, received: u64) -> Rc<RefCell<Wire>> {
    let wire = Rc::<RefCell<Wire>>::default();
    let pipe = End { wire: Rc::clone(&wire), side: 1 };
    let made = Made { pipe, hello, received };
    link.handle_connected(made, None::<fn(u64) -> Vec<u8>>, Instant::ZERO);
    wire
}

fn changes(link: &mut Link<End>) -> Vec<Change> {
    let mut changes = Vec::new();
    loop {
        match link.poll(&mut Vec::new(), Instant::ZERO) {
            Next::Change(change) => changes.push(change),
            Next::Message => {}
            Next::Nothing => return changes,
        }
    }
}

const CONNECTED_5: Change = Change::Connected { incarnation: 5, is_same: false, dropped: 0 };

#[test]
fn back_off_doubles_up_to_its_bound() {
    let mut link = link(Role::Dialer);
    let (mut now, mut delays) = (Instant::ZERO, Vec::new());
    for attempt in 1..=10 {
        assert_eq!(link.poll_dial(now, || NONCE).unwrap().attempt, attempt);
        let next = (link.poll_dial(now, || NONCE), link.poll_timeout());
        assert_eq!(next, (None, None), "one at a time");
        link.handle_failed(now);
        let due = link.poll_timeout().unwrap();
        assert_eq!(link.poll_dial(now, || NONCE), None);
        delays.push(due.saturating_since(now));
        now = due;
    }
    for (at, delay) in (0..).zip(delays) {
        let full = Duration::from_millis((4 << at).min(100));
        assert!(delay >= full / 2 && delay <= full, "{at}: {delay:?} of {full:?}");
    }
}

#[test]
fn requests_of_the_past_are_refused() {
    let mut link = link(Role::Acceptor);
    assert_eq!(link.answer(&hello(5, 3), NONCE).unwrap().incarnation, 77);
    connect(&mut link, hello(5, 3), 0);
    assert_eq!(link.answer(&hello(5, 3), NONCE), Err(Refusal::Stale), "answered before");
    link.answer(&hello(6, 1), NONCE).unwrap();
    connect(&mut link, hello(6, 1), 0);
    assert_eq!(link.answer(&hello(5, 4), NONCE), Err(Refusal::Stale), "an earlier run");
    let connected = |incarnation| Change::Connected { incarnation, is_same: false, dropped: 0 };
    assert_eq!(changes(&mut link), [connected(5), Change::Disconnected, connected(6)]);
    let dialer = self::link(Role::Dialer);
    assert_eq!(dialer.answer(&hello(5, 1), NONCE), Err(Refusal::Role));
    assert!(link.close().is_empty());
    assert_eq!(link.answer(&hello(7, 1), NONCE), Err(Refusal::Closed));
}

#[test]
fn request_without_a_proof_leaves_the_connection_as_it_is() {
    let mut link = link(Role::Acceptor);
    let wire = connect(&mut link, hello(5, 1), 0);
    changes(&mut link);
    for attempt in 2..200 {
        link.answer(&hello(5, attempt), NONCE).unwrap();
        link.answer(&hello(1000 + u64::from(attempt), 1), NONCE).unwrap();
    }
    assert!(link.post(b"goes on"));
    assert_eq!(wire.borrow().directions[1].flying, [b"goes on"]);
    assert_eq!((link.peer(), changes(&mut link)), (5, vec![]));
    // What was claimed in the name of the peer does not keep it out, either.
    link.answer(&hello(5, 2), NONCE).unwrap();
    connect(&mut link, hello(5, 2), 0);
    assert_eq!(link.pipe().unwrap().unconsumed().messages, [b"goes on"]);
}

#[test]
fn a_peer_that_claims_what_it_was_not_sent_is_not_connected() {
    let mut link = link(Role::Acceptor);
    connect(&mut link, hello(5, 1), 0);
    assert!(link.post(b"one") && link.post(b"two"));
    connect(&mut link, hello(5, 2), 3);
    assert!(link.pipe().is_none());
    // It got the first: the second is kept for the new connection.
    connect(&mut link, hello(5, 3), 1);
    assert_eq!(link.pipe().unwrap().unconsumed().messages, [b"two"]);
    connect(&mut link, hello(6, 1), 1);
    assert!(link.pipe().is_none(), "a new run has received nothing");
}

#[test]
fn a_peer_that_has_left_is_dialed_late() {
    let mut link = link(Role::Dialer);
    link.poll_dial(Instant::ZERO, || NONCE).unwrap();
    connect(&mut link, hello(5, 0), 0);
    assert!(link.post(b"not taken"));
    link.handle_closed(Instant::ZERO);
    let due = link.poll_timeout().unwrap();
    assert!(due >= Instant::ZERO.saturating_add(Duration::from_millis(50)), "{due}");
    assert_eq!(link.standing(), Standing::Disconnected, "there is something to poll");
    assert_eq!(changes(&mut link), [CONNECTED_5, Change::Left { dropped: 1 }]);
    assert_eq!(link.standing(), Standing::Left);
    // Its refusals say the same, once.
    link.poll_dial(due, || NONCE).unwrap();
    link.handle_refused(due);
    assert_eq!((changes(&mut link), link.standing()), (vec![], Standing::Left));
}

#[test]
fn a_peer_whose_end_came_with_the_failure_of_the_connection_has_left() {
    let mut link = link(Role::Acceptor);
    let wire = connect(&mut link, hello(5, 1), 0);
    assert!(link.post(b"consumed") && link.post(b"not consumed"));
    wire.borrow_mut().directions[0].arrived.push_back(b"the last".to_vec());
    wire.borrow_mut().directions[0].has_end = true;
    wire.borrow_mut().directions[1].kept.pop_front();
    link.handle_lost(Instant::ZERO);
    let mut message = Vec::new();
    assert_eq!(link.poll(&mut message, Instant::ZERO), Next::Message);
    assert_eq!(message, b"the last");
    assert_eq!(changes(&mut link), [CONNECTED_5, Change::Left { dropped: 1 }]);
    assert_eq!(link.standing(), Standing::Left);
    // An end of its own waits for nothing.
    link.begin_close();
    assert!(link.poll_close(Instant::ZERO) && link.close().is_empty());
}

#[test]
fn a_peer_that_stays_away_is_lost() {
    let mut link = link(Role::Acceptor);
    let later = Instant::ZERO.saturating_add(LOST_AFTER);
    assert!(!link.handle_time(later), "it was never there");
    connect(&mut link, hello(5, 1), 0);
    assert!(!link.handle_time(later));
    link.handle_lost(later);
    assert!(!link.handle_time(later));
    let later = later.saturating_add(LOST_AFTER);
    assert!(link.handle_time(later) && !link.handle_time(later), "it is told once");
    assert_eq!(changes(&mut link), [CONNECTED_5, Change::Disconnected, Change::Lost]);
    assert_eq!(link.standing(), Standing::Lost);
    connect(&mut link, hello(5, 2), 0);
    assert_eq!(link.standing(), Standing::Connected);
}

#[test]
fn what_has_arrived_survives_every_loss_until_it_is_polled() {
    let mut link = link(Role::Acceptor);
    let arrive = |wire: &Rc<RefCell<Wire>>, message: u8| {
        wire.borrow_mut().directions[0].arrived.push_back(vec![message]);
    };
    let mut attempt = 0;
    let mut try_connect = |link: &mut Link<End>| {
        attempt += 1;
        let is_answered = link.answer(&hello(5, attempt), NONCE);
        is_answered.map(|_| connect(link, hello(5, attempt), 0))
    };
    for number in 0..4 {
        arrive(&try_connect(&mut link).unwrap(), number);
        link.handle_lost(Instant::ZERO);
    }
    assert_eq!(try_connect(&mut link).unwrap_err(), Refusal::Busy, "what is kept has a bound");
    let mut got = Vec::new();
    let mut message = Vec::new();
    loop {
        match link.poll(&mut message, Instant::ZERO) {
            Next::Message => got.push(message[0]),
            Next::Change(_) => {}
            Next::Nothing => break,
        }
    }
    assert_eq!(got, [0, 1, 2, 3]);
    try_connect(&mut link).unwrap();
    assert_eq!(link.received_of(5), 4);
}

#[test]
fn end_waits_for_acknowledgements_and_tells_the_peer() {
    let mut link = link(Role::Acceptor);
    let wire = connect(&mut link, hello(5, 1), 0);
    assert!(link.post(b"one") && link.post(b"two"));
    link.begin_close();
    assert!(!link.post(b"three"), "it is too late");
    assert!(!link.poll_close(Instant::ZERO));
    // The connection is lost before the second is acknowledged: it goes over the next one.
    wire.borrow_mut().directions[1].acknowledged = 1;
    link.handle_lost(Instant::ZERO);
    assert!(!link.poll_close(Instant::ZERO));
    link.answer(&hello(5, 2), NONCE).unwrap();
    let wire = connect(&mut link, hello(5, 2), 1);
    assert!(!link.poll_close(Instant::ZERO) && wire.borrow().directions[1].is_closed);
    assert_eq!(wire.borrow().directions[1].flying, [b"two"]);
    wire.borrow_mut().directions[1].acknowledged = 1;
    wire.borrow_mut().directions[1].is_end_acknowledged = true;
    assert!(link.poll_close(Instant::ZERO) && link.is_done());
    assert_eq!(link.answer(&hello(5, 3), NONCE), Err(Refusal::Closed));
    assert!(link.close().is_empty());
}

#[test]
fn connection_of_a_peer_that_has_left_is_kept_until_it_has_all_acknowledgments() {
    let mut link = link(Role::Acceptor);
    let wire = connect(&mut link, hello(5, 1), 0);
    wire.borrow_mut().directions[0].has_end = true;
    link.handle_closed(Instant::ZERO);
    assert_eq!(link.standing(), Standing::Disconnected, "the change is to be polled first");
    link.begin_close();
    assert!(!link.poll_close(Instant::ZERO) && !wire.borrow().is_broken);
    assert!(wire.borrow().directions[1].is_closed, "the peer is told that this side has left, too");
    wire.borrow_mut().directions[1].is_end_acknowledged = true;
    assert!(link.poll_close(Instant::ZERO) && wire.borrow().is_broken);
    assert!(link.close().is_empty());
}

#[test]
fn peer_that_acknowledges_nothing_is_kept_for_a_while() {
    let mut link = link(Role::Acceptor);
    let wire = connect(&mut link, hello(5, 1), 0);
    link.handle_closed(Instant::ZERO);
    link.handle_time(Instant::ZERO);
    assert!(!wire.borrow().is_broken);
    link.handle_time(Instant::ZERO.saturating_add(PARTING_MAX));
    assert!(wire.borrow().is_broken);
}

#[test]
fn end_returns_what_was_not_acknowledged() {
    let mut link = link(Role::Acceptor);
    let wire = connect(&mut link, hello(5, 1), 0);
    assert!(link.post(b"one") && link.post(b"two") && link.post(b"three"));
    wire.borrow_mut().directions[1].acknowledged = 1;
    link.handle_lost(Instant::ZERO);
    link.begin_close();
    assert!(!link.poll_close(Instant::ZERO));
    assert_eq!(link.close(), [&b"two"[..], b"three"]);
}
