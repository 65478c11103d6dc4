//! Each fault by itself, and some that belong together, under a name.

use std::time::Duration;

use roce::link::fault::Action::{self, Corrupt, Drop, Duplicate, Mark};
use roce::verbs::QpType;

use super::super::plan::Class::{Acknowledge, Request, Response};
use super::super::plan::{Class, Connection, FaultRule, Op, Post, Scenario};
use super::super::two_hosts::pair::PairAttr;
use super::super::wire::Hop;
use super::{BEHIND, LATE, micros, rc};

/// A scenario of one connection: its name, what the connection does, and the faults.
type OfOneConnection = (&'static str, fn() -> Connection, &'static [FaultRule]);

/// Scenarios of one connection.
const OF_ONE_CONNECTION: &[OfOneConnection] = &[
    // Nothing happens, and nothing is blamed.
    ("sends without faults", sends, &[]),
    ("writes without faults", writes, &[]),
    ("reads without faults", reads, &[]),
    ("atomics without faults", atomics, &[]),
    ("uc without faults", uc, &[]),
    ("ud without faults", ud, &[]),
    // Requests are lost.
    ("first packet of a send lost", sends, &[on(Request, 0, Drop)]),
    ("middle packet of a send lost", sends, &[on(Request, 2, Drop)]),
    ("last packet of a send lost", sends, &[on(Request, 4, Drop)]),
    ("last packet of all lost", sends, &[on(Request, 8, Drop)]),
    ("only packet lost", one_send, &[on(Request, 0, Drop)]),
    ("request lost on the second hop", sends, &[behind(Request, 2, Drop)]),
    ("write packet lost", writes, &[on(Request, 3, Drop)]),
    ("read request lost", reads, &[on(Request, 0, Drop)]),
    ("second read request lost", reads, &[on(Request, 5, Drop)]),
    ("only read request lost", one_read, &[on(Request, 0, Drop)]),
    ("atomic request lost", atomics, &[on(Request, 1, Drop)]),
    (
        "retransmission lost",
        sends,
        &[on(Request, 2, Drop), FaultRule { nth: 2, ..behind(Request, 2, Drop) }],
    ),
    ("two requests lost in one window", sends, &[on(Request, 1, Drop), on(Request, 4, Drop)]),
    ("request lost as psns wrap", wrapping_sends, &[on(Request, 3, Drop)]),
    // Responses are lost.
    ("only ack lost", one_send, &[on(Acknowledge, 0, Drop)]),
    ("last ack lost at b", sends, &[behind(Acknowledge, 8, Drop)]),
    ("ack lost that a later one covers", sends, &[on(Acknowledge, 4, Drop)]),
    ("nak lost", sends, &[on(Request, 2, Drop), behind(Acknowledge, 2, Drop)]),
    ("read response lost", reads, &[on(Response, 2, Drop)]),
    ("first read response lost", reads, &[behind(Response, 0, Drop)]),
    ("only read response lost", short_read, &[on(Response, 0, Drop)]),
    ("last read response lost", one_read, &[on(Response, 2, Drop)]),
    ("read response lost as psns wrap", wrapping_reads, &[on(Response, 4, Drop)]),
    ("atomic response lost", atomics, &[on(Response, 0, Drop)]),
    ("last atomic response lost", atomics, &[on(Response, 2, Drop)]),
    // The network delivers twice.
    ("request duplicated", sends, &[on(Request, 2, Duplicate)]),
    ("last request duplicated", sends, &[behind(Request, 8, Duplicate)]),
    ("read request duplicated", reads, &[on(Request, 0, Duplicate)]),
    ("atomic request duplicated", atomics, &[on(Request, 1, Duplicate)]),
    ("ack duplicated", sends, &[on(Acknowledge, 8, Duplicate)]),
    ("read response duplicated", reads, &[on(Response, 1, Duplicate)]),
    // Order, damage, marks, delay.
    ("request overtaken", sends, &[on(Request, 2, BEHIND)]),
    ("read response overtaken", reads, &[on(Response, 1, BEHIND)]),
    ("request corrupted", sends, &[on(Request, 3, Corrupt)]),
    ("ack corrupted", sends, &[on(Acknowledge, 8, Corrupt)]),
    ("read response corrupted", reads, &[behind(Response, 3, Corrupt)]),
    ("requests marked", sends, &[on(Request, 1, Mark), behind(Request, 5, Mark)]),
    ("read responses marked", reads, &[on(Response, 2, Mark)]),
    ("request late", one_send, &[on(Request, 0, LATE)]),
    ("ack late", one_send, &[on(Acknowledge, 0, LATE)]),
    // Unreliable services.
    ("uc packet lost", uc, &[on(Request, 2, Drop)]),
    ("uc first packet lost", uc, &[behind(Request, 5, Drop)]),
    ("uc packet duplicated", uc, &[on(Request, 6, Duplicate)]),
    ("ud packet lost", ud, &[on(Request, 1, Drop)]),
    ("ud packet duplicated", ud, &[on(Request, 2, Duplicate)]),
];

/// Every fault by itself, and some that belong together.
pub fn named() -> Vec<Scenario> {
    let of_one = OF_ONE_CONNECTION.iter();
    let of_one = of_one.map(|(name, work, faults)| scenario(name, vec![work()], faults.to_vec()));
    let mut all: Vec<Scenario> = of_one.collect();
    all.extend(refusals(sends(), one(Op::Send, 100)));
    all.extend(several(&sends(), &reads(), &atomics(), &uc()));
    all
}

/// A fault on the hop between A and the switch, the first time.
const fn on(class: Class, offset: u32, action: Action) -> FaultRule {
    FaultRule { connection: 0, requester: 0, class, offset, nth: 1, hop: Hop::A, action }
}

/// A fault on the hop between the switch and B, the first time.
const fn behind(class: Class, offset: u32, action: Action) -> FaultRule {
    FaultRule { connection: 0, requester: 0, class, offset, nth: 1, hop: Hop::B, action }
}

/// One connection whose side 0 posts these, all at once.
fn posting(connection: Connection, posts: &[(Op, u32)]) -> Connection {
    let post = |&(op, len): &(Op, u32)| Post { at: Duration::ZERO, op, len };
    let work = [posts.iter().map(post).collect(), Vec::new()];
    Connection { work, ..connection }
}

fn one(op: Op, len: u32) -> Connection {
    posting(rc(), &[(op, len)])
}

fn one_send() -> Connection {
    one(Op::Send, 10)
}

fn one_read() -> Connection {
    one(Op::Read, 3000)
}

fn short_read() -> Connection {
    one(Op::Read, 100)
}

fn sends() -> Connection {
    posting(rc(), &[(Op::Send, 5000), (Op::Send, 3000), (Op::Send, 10)])
}

fn writes() -> Connection {
    posting(rc(), &[(Op::Write, 9000), (Op::WriteImm, 1500)])
}

fn reads() -> Connection {
    posting(rc(), &[(Op::Read, 5000), (Op::Read, 2500), (Op::Send, 10)])
}

fn atomics() -> Connection {
    posting(rc(), &[(Op::CompareSwap, 8), (Op::FetchAdd, 8), (Op::CompareSwap, 8)])
}

fn uc() -> Connection {
    posting(Connection { kind: QpType::Uc, ..rc() }, &[(Op::Send, 5000), (Op::Write, 3000)])
}

fn ud() -> Connection {
    let posts = [(Op::Send, 100), (Op::Send, 200), (Op::SendImm, 300), (Op::Send, 400)];
    posting(Connection { kind: QpType::Ud, ..rc() }, &posts)
}

fn wrapping(connection: Connection) -> Connection {
    let attr = PairAttr { psns: [0xff_fffd, 0xff_fffe], ..connection.attr };
    Connection { attr, ..connection }
}

fn wrapping_sends() -> Connection {
    wrapping(sends())
}

fn wrapping_reads() -> Connection {
    wrapping(reads())
}

fn scenario(name: &str, connections: Vec<Connection>, faults: Vec<FaultRule>) -> Scenario {
    Scenario { name: name.into(), ipv6: false, connections, faults, cut: None, clocks: [0; 3] }
}

/// Receivers that are not ready, peers that are gone, requests that are refused.
fn refusals(sends: Connection, one: Connection) -> Vec<Scenario> {
    let at = |times: &[u64]| times.iter().map(|&at| micros(at)).collect::<Vec<_>>();
    let not_ready = Connection { receives: [vec![], at(&[0, 300])], ..sends.clone() };
    let attr = PairAttr { rnr_timer: 10, ..PairAttr::default() };
    let long = Connection { receives: [vec![], at(&[1500])], attr, ..one.clone() };
    let attr = PairAttr { rnr_retry: 2, ..PairAttr::default() };
    let never = Connection { receives: [vec![], at(&[1_000_000])], attr, ..one.clone() };
    let wrong = posting(rc(), &[(Op::Send, 10), (Op::WriteWrongKey, 2000), (Op::Send, 10)]);
    let attr = PairAttr { retry_count: 3, ..PairAttr::default() };
    let few_retries = Connection { attr, ..one.clone() };
    let later = |mut connection: Connection| {
        connection.work[0].push(Post { at: micros(100), op: Op::Send, len: 4000 });
        connection.work[0].push(Post { at: micros(100), op: Op::Send, len: 10 });
        connection
    };
    let cut = |name: &str, connection, at, hop| Scenario {
        cut: Some((micros(at), hop)),
        ..scenario(name, vec![connection], vec![])
    };
    vec![
        scenario("receiver not ready", vec![not_ready.clone()], vec![]),
        scenario("receiver not ready for long", vec![long], vec![]),
        scenario("rnr retries exceeded", vec![never], vec![]),
        scenario("rnr nak lost", vec![not_ready], vec![on(Acknowledge, 5, Drop)]),
        scenario("request refused", vec![wrong], vec![]),
        cut("peer never there", few_retries.clone(), 0, Hop::B),
        cut("peer dies", later(few_retries.clone()), 50, Hop::B),
        cut("own link dies", later(few_retries), 50, Hop::A),
    ]
}

/// Several connections, of which some meet with faults.
fn several(
    sends: &Connection,
    reads: &Connection,
    atomics: &Connection,
    uc: &Connection,
) -> Vec<Scenario> {
    let both = |mut connection: Connection| {
        connection.work[1] = connection.work[0].clone();
        connection
    };
    let all = || {
        let all =
            [sends.clone(), both(reads.clone()), atomics.clone(), both(sends.clone()), uc.clone()];
        // As of queue pairs that choose their first PSNs by chance.
        let apart = |(mut connection, at): (Connection, u32)| {
            connection.attr.psns = connection.attr.psns.map(|psn| psn + at * 100_000);
            connection
        };
        all.into_iter().zip(0..).map(apart).collect::<Vec<_>>()
    };
    let in_one = |connection, requester, class, offset, action| FaultRule {
        connection,
        requester,
        ..on(class, offset, action)
    };
    vec![
        scenario("wrapping without faults", vec![wrapping_sends(), wrapping_reads()], vec![]),
        scenario("several connections without faults", all(), vec![]),
        scenario("one of several connections loses", all(), vec![in_one(3, 1, Request, 2, Drop)]),
        scenario(
            "several connections lose",
            all(),
            vec![
                in_one(0, 0, Request, 1, Drop),
                in_one(1, 0, Response, 3, Drop),
                in_one(1, 1, Response, 0, Drop),
                in_one(2, 0, Request, 0, Drop),
            ],
        ),
        Scenario {
            ipv6: true,
            ..scenario(
                "ipv6, one loses, one duplicates",
                all(),
                vec![in_one(0, 0, Request, 1, Drop), in_one(1, 0, Request, 0, Duplicate)],
            )
        },
        Scenario {
            clocks: [0, 3_000_000, -7_000_000],
            ..scenario("clocks differ, one loses", all(), vec![in_one(3, 0, Request, 2, Drop)])
        },
        Scenario {
            clocks: [500, -900, 20_000_000],
            ..scenario(
                "clocks differ, one is late",
                vec![sends.clone()],
                vec![on(Request, 8, LATE)],
            )
        },
    ]
}
