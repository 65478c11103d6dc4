//! Entry points of fuzz targets: hellos, accounts and links of peers that say anything. Not part of
//! the interface.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use super::hello::{Exchange, Hello, Step};
use super::hosts::Hosts;
use super::limits::{CHANGES_MAX, UNPOLLED_MAX};
use super::link::{Backoff, Link, Made, Next, Own, Pipe, Role, Take};
use super::secret::Secret;
use crate::net::Unconsumed;
use crate::net::fuzzing::Script;
use crate::time::Instant;

/// Messages that a pipe holds in each direction, at most.
const WINDOW: usize = 4;

/// A hello or an account of a peer that does not know the secret: nothing is proven by it.
pub fn group_hello(input: &[u8]) {
    let hello = Hello::parse(input);
    if let Some(hello) = hello {
        assert_eq!(Hello::parse(&hello.emit()), Some(hello));
    }
    let own = Hello { server: 0, thread: 0, incarnation: 77, attempt: 0, nonce: [9; 16] };
    let hosts: Hosts = "192.0.2.1:7000,192.0.2.2:7000".parse().expect("it is a list");
    let secret = Secret::new("a secret that no input has");
    let exchange = Exchange { secret, hosts, dialer: hello.unwrap_or(own), acceptor: own };
    for step in [Step::Accepted, Step::Dialer, Step::Acceptor] {
        assert_eq!(exchange.parse(step, input), None, "nothing proves this");
        let said = exchange.emit(step, input.len() as u64);
        assert_eq!(exchange.parse(step, &said), Some(input.len() as u64));
    }
}

/// A connection whose peer the input plays.
#[derive(Clone, Debug, Default)]
struct End(Rc<RefCell<Wire>>);

#[derive(Debug, Default)]
struct Wire {
    kept: VecDeque<Vec<u8>>,
    acknowledged: usize,
    arrived: VecDeque<Vec<u8>>,
    is_closed: bool,
    is_delivered: bool,
    is_over: bool,
}

impl Wire {
    /// Has the peer send, acknowledge and consume; whether a message arrived.
    fn change(&mut self, script: &mut Script<'_>) -> bool {
        let has_room = self.arrived.len() < WINDOW;
        if has_room {
            self.arrived.push_back(vec![script.byte()]);
        }
        self.acknowledged += usize::from(script.byte() % 2);
        self.is_delivered = script.byte().is_multiple_of(4);
        if script.byte().is_multiple_of(4) {
            self.kept.pop_front();
            self.acknowledged = self.acknowledged.saturating_sub(1);
        }
        has_room
    }
}

impl Pipe for End {
    fn queue(&self, message: &[u8]) -> bool {
        let mut wire = self.0.borrow_mut();
        let has_room = wire.kept.len() < WINDOW && !wire.is_over && !wire.is_closed;
        if has_room {
            wire.kept.push_back(message.to_vec());
        }
        has_room
    }

    fn begin(&self) {
        self.0.borrow_mut().kept.clear();
    }

    fn take(&self, out: &mut Vec<u8>) -> Take {
        let mut wire = self.0.borrow_mut();
        match wire.arrived.pop_front() {
            Some(message) => {
                *out = message;
                Take::Message
            }
            None if wire.is_over => Take::Lost,
            None => Take::Nothing,
        }
    }

    fn unconsumed(&self) -> Unconsumed {
        let wire = self.0.borrow();
        let messages: Vec<Vec<u8>> = wire.kept.iter().cloned().collect();
        let unacknowledged = messages.len() - wire.acknowledged.min(messages.len());
        Unconsumed { messages, unacknowledged }
    }

    fn close(&self) {
        self.0.borrow_mut().is_closed = true;
    }

    fn is_delivered(&self) -> bool {
        let wire = self.0.borrow();
        wire.is_closed && wire.is_delivered
    }

    fn has_failed(&self) -> bool {
        self.0.borrow().is_over
    }

    fn abort(&self) {
        self.0.borrow_mut().is_over = true;
    }
}

/// A link whose peer claims anything, over connections that break at any moment.
pub fn group_link(input: &[u8]) {
    let mut script = Script(input);
    let role = if script.byte() % 2 == 0 { Role::Dialer } else { Role::Acceptor };
    let own = Own { server: 1, thread: 0, incarnation: 77 };
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(50), 7);
    let mut link: Link<End> = Link::new(own, role, backoff, Duration::from_millis(100));
    let (mut now, mut ends, mut out) = (Instant::ZERO, Vec::<End>::new(), Vec::new());
    let mut arrived = 0;
    while !script.0.is_empty() {
        match script.byte() % 14 {
            0 => now = now.saturating_add(Duration::from_millis(script.byte().into())),
            1 => {
                let _ = link.poll_dial(now, || [0; 16]);
            }
            2 => {
                let hello = claimed(&mut script);
                let _ = link.answer(&hello, [1; 16]);
            }
            3 | 4 => {
                let (pipe, hello) = (End::default(), claimed(&mut script));
                ends.push(pipe.clone());
                let received = script.number();
                let made = Made { pipe, hello, received };
                let account = |received: u64| received.to_le_bytes().to_vec();
                link.handle_connected(made, Some(account), now);
            }
            5 => link.handle_failed(now),
            6 => link.handle_refused(now),
            7 => link.handle_lost(now),
            8 => link.handle_closed(now),
            9 => {
                let _ = link.post(&[script.byte()]);
            }
            10 => {
                let next = link.poll(&mut out, now);
                arrived -= u64::from(next == Next::Message);
            }
            11 => {
                if let Some(End(wire)) = link.pipe() {
                    arrived += u64::from(wire.borrow_mut().change(&mut script));
                }
            }
            12 => {
                let _ = link.handle_time(now);
            }
            _ => {
                link.begin_close();
                let _ = link.poll_close(now);
            }
        }
        let _ = (link.standing(), link.poll_timeout(), link.pump());
    }
    // What has arrived is polled, and no more is kept than the bounds allow.
    let mut changes = 0;
    loop {
        match link.poll(&mut out, now) {
            Next::Message => arrived -= 1,
            Next::Change(_) => changes += 1,
            Next::Nothing => break,
        }
    }
    assert_eq!(arrived, 0, "what has arrived is not dropped");
    assert!(changes <= CHANGES_MAX + UNPOLLED_MAX);
    assert!(link.close().len() <= WINDOW * 2);
}

fn claimed(script: &mut Script<'_>) -> Hello {
    let (incarnation, attempt) = (script.number(), u32::from(script.byte()));
    Hello { server: 2, thread: 0, incarnation, attempt, nonce: [0; 16] }
}
