//! The scenarios: each fault by itself under a name, and any mixture of them from a seed.

use std::time::Duration;

use roce::link::mem::Action;
use roce::verbs::{Mtu, QpType};

use super::dice::Dice;
use super::plan::{Class, Connection, FaultRule, Hop, Op, Post, Scenario};
use Action::{Corrupt, Drop, Duplicate, Mark};
use Class::{Acknowledge, Request, Response};

const fn micros(count: u64) -> Duration {
    Duration::from_micros(count)
}

/// So that others pass.
const BEHIND: Action = Action::Delay(micros(3));

/// Long after everything else has arrived, and before the retransmission timeout.
const LATE: Action = Action::Delay(micros(150));

/// A reliable connection without work.
fn rc() -> Connection {
    Connection {
        kind: QpType::Rc,
        mtu: Mtu::M1024,
        psns: [100, 5000],
        // 1.05 ms.
        timeout: 8,
        retry_count: 7,
        rnr_retry: 7,
        rnr_timer: 6,
        reads: 4,
        work: [Vec::new(), Vec::new()],
        receives: [Vec::new(), Vec::new()],
    }
}

/// One connection whose side 0 posts these, all at once.
fn posting(connection: Connection, posts: &[(Op, u32)]) -> Connection {
    let post = |&(op, len): &(Op, u32)| Post { at: Duration::ZERO, op, len };
    let work = [posts.iter().map(post).collect(), Vec::new()];
    Connection { work, ..connection }
}

fn scenario(name: &str, connections: Vec<Connection>, faults: Vec<FaultRule>) -> Scenario {
    Scenario { name: name.into(), ipv6: false, connections, faults, cut: None, clocks: [0; 3] }
}

fn fault(class: Class, offset: u32, nth: u32, hop: Hop, action: Action) -> FaultRule {
    FaultRule { connection: 0, requester: 0, class, offset, nth, hop, action }
}

/// A fault on the first hop of requests.
fn on(class: Class, offset: u32, action: Action) -> Vec<FaultRule> {
    vec![fault(class, offset, 1, Hop::A, action)]
}

fn wrapping(connection: Connection) -> Connection {
    Connection { psns: [0xff_fffd, 0xff_fffe], ..connection }
}

/// Every fault by itself, and some that belong together.
pub fn named() -> Vec<Scenario> {
    let sends = || posting(rc(), &[(Op::Send, 5000), (Op::Send, 3000), (Op::Send, 10)]);
    let writes = || posting(rc(), &[(Op::Write, 9000), (Op::WriteImm, 1500)]);
    let reads = || posting(rc(), &[(Op::Read, 5000), (Op::Read, 2500), (Op::Send, 10)]);
    let atomics =
        || posting(rc(), &[(Op::CompareSwap, 8), (Op::FetchAdd, 8), (Op::CompareSwap, 8)]);
    let uc =
        || posting(Connection { kind: QpType::Uc, ..rc() }, &[(Op::Send, 5000), (Op::Write, 3000)]);
    let ud_posts = [(Op::Send, 100), (Op::Send, 200), (Op::SendImm, 300), (Op::Send, 400)];
    let ud = || posting(Connection { kind: QpType::Ud, ..rc() }, &ud_posts);
    let one = |op, len| posting(rc(), &[(op, len)]);
    let mut all = vec![
        // Nothing happens, and nothing is blamed.
        scenario("sends without faults", vec![sends()], vec![]),
        scenario("writes without faults", vec![writes()], vec![]),
        scenario("reads without faults", vec![reads()], vec![]),
        scenario("atomics without faults", vec![atomics()], vec![]),
        scenario("uc without faults", vec![uc()], vec![]),
        scenario("ud without faults", vec![ud()], vec![]),
        scenario("wrapping without faults", vec![wrapping(sends()), wrapping(reads())], vec![]),
        // Requests are lost.
        scenario("first packet of a send lost", vec![sends()], on(Request, 0, Drop)),
        scenario("middle packet of a send lost", vec![sends()], on(Request, 2, Drop)),
        scenario("last packet of a send lost", vec![sends()], on(Request, 4, Drop)),
        scenario("last packet of all lost", vec![sends()], on(Request, 8, Drop)),
        scenario("only packet lost", vec![one(Op::Send, 10)], on(Request, 0, Drop)),
        scenario(
            "request lost on the second hop",
            vec![sends()],
            vec![fault(Request, 2, 1, Hop::B, Drop)],
        ),
        scenario("write packet lost", vec![writes()], on(Request, 3, Drop)),
        scenario("read request lost", vec![reads()], on(Request, 0, Drop)),
        scenario("second read request lost", vec![reads()], on(Request, 5, Drop)),
        scenario("only read request lost", vec![one(Op::Read, 3000)], on(Request, 0, Drop)),
        scenario("atomic request lost", vec![atomics()], on(Request, 1, Drop)),
        scenario(
            "retransmission lost",
            vec![sends()],
            vec![fault(Request, 2, 1, Hop::A, Drop), fault(Request, 2, 2, Hop::B, Drop)],
        ),
        scenario(
            "two requests lost in one window",
            vec![sends()],
            vec![fault(Request, 1, 1, Hop::A, Drop), fault(Request, 4, 1, Hop::A, Drop)],
        ),
        scenario("request lost as psns wrap", vec![wrapping(sends())], on(Request, 3, Drop)),
        // Responses are lost.
        scenario("only ack lost", vec![one(Op::Send, 10)], on(Acknowledge, 0, Drop)),
        scenario("last ack lost at b", vec![sends()], vec![fault(Acknowledge, 8, 1, Hop::B, Drop)]),
        scenario("ack lost that a later one covers", vec![sends()], on(Acknowledge, 4, Drop)),
        scenario(
            "nak lost",
            vec![sends()],
            vec![fault(Request, 2, 1, Hop::A, Drop), fault(Acknowledge, 2, 1, Hop::B, Drop)],
        ),
        scenario("read response lost", vec![reads()], on(Response, 2, Drop)),
        scenario(
            "first read response lost",
            vec![reads()],
            vec![fault(Response, 0, 1, Hop::B, Drop)],
        ),
        scenario("only read response lost", vec![one(Op::Read, 100)], on(Response, 0, Drop)),
        scenario("last read response lost", vec![one(Op::Read, 3000)], on(Response, 2, Drop)),
        scenario("read response lost as psns wrap", vec![wrapping(reads())], on(Response, 4, Drop)),
        scenario("atomic response lost", vec![atomics()], on(Response, 0, Drop)),
        scenario("last atomic response lost", vec![atomics()], on(Response, 2, Drop)),
        // The network delivers twice.
        scenario("request duplicated", vec![sends()], on(Request, 2, Duplicate)),
        scenario(
            "last request duplicated",
            vec![sends()],
            vec![fault(Request, 8, 1, Hop::B, Duplicate)],
        ),
        scenario("read request duplicated", vec![reads()], on(Request, 0, Duplicate)),
        scenario("atomic request duplicated", vec![atomics()], on(Request, 1, Duplicate)),
        scenario("ack duplicated", vec![sends()], on(Acknowledge, 8, Duplicate)),
        scenario("read response duplicated", vec![reads()], on(Response, 1, Duplicate)),
        // Order, damage, marks, delay.
        scenario("request overtaken", vec![sends()], on(Request, 2, BEHIND)),
        scenario("read response overtaken", vec![reads()], on(Response, 1, BEHIND)),
        scenario("request corrupted", vec![sends()], on(Request, 3, Corrupt)),
        scenario("ack corrupted", vec![sends()], on(Acknowledge, 8, Corrupt)),
        scenario(
            "read response corrupted",
            vec![reads()],
            vec![fault(Response, 3, 1, Hop::B, Corrupt)],
        ),
        scenario(
            "requests marked",
            vec![sends()],
            vec![fault(Request, 1, 1, Hop::A, Mark), fault(Request, 5, 1, Hop::B, Mark)],
        ),
        scenario("read responses marked", vec![reads()], on(Response, 2, Mark)),
        scenario("request late", vec![one(Op::Send, 10)], on(Request, 0, LATE)),
        scenario("ack late", vec![one(Op::Send, 10)], on(Acknowledge, 0, LATE)),
        // Unreliable services.
        scenario("uc packet lost", vec![uc()], on(Request, 2, Drop)),
        scenario("uc first packet lost", vec![uc()], vec![fault(Request, 5, 1, Hop::B, Drop)]),
        scenario("uc packet duplicated", vec![uc()], on(Request, 6, Duplicate)),
        scenario("ud packet lost", vec![ud()], on(Request, 1, Drop)),
        scenario("ud packet duplicated", vec![ud()], on(Request, 2, Duplicate)),
    ];
    all.extend(refusals(sends(), one(Op::Send, 100)));
    all.extend(several(&sends(), &reads(), &atomics(), &uc()));
    all
}

/// Receivers that are not ready, peers that are gone, requests that are refused.
fn refusals(sends: Connection, one: Connection) -> Vec<Scenario> {
    let at = |times: &[u64]| times.iter().map(|&at| micros(at)).collect::<Vec<_>>();
    let not_ready = Connection { receives: [vec![], at(&[0, 300])], ..sends.clone() };
    let long = Connection { receives: [vec![], at(&[1500])], rnr_timer: 10, ..one.clone() };
    let never = Connection { receives: [vec![], at(&[1_000_000])], rnr_retry: 2, ..one.clone() };
    let wrong = posting(rc(), &[(Op::Send, 10), (Op::WriteWrongKey, 2000), (Op::Send, 10)]);
    let patient = Connection { retry_count: 3, ..one.clone() };
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
        scenario("rnr nak lost", vec![not_ready], vec![fault(Acknowledge, 5, 1, Hop::A, Drop)]),
        scenario("request refused", vec![wrong], vec![]),
        cut("peer never there", patient.clone(), 0, Hop::B),
        cut("peer dies", later(patient.clone()), 50, Hop::B),
        cut("own link dies", later(patient), 50, Hop::A),
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
        let apart = |(connection, at): (Connection, u32)| Connection {
            psns: connection.psns.map(|psn| psn + at * 100_000),
            ..connection
        };
        all.into_iter().zip(0..).map(apart).collect::<Vec<_>>()
    };
    let in_one = |connection, requester, class, offset, action| FaultRule {
        connection,
        requester,
        ..fault(class, offset, 1, Hop::A, action)
    };
    vec![
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
            ..scenario("clocks differ, one is late", vec![sends.clone()], on(Request, 8, LATE))
        },
    ]
}

/// Any mixture.
pub fn random(seed: u64) -> Scenario {
    let mut dice = Dice::new(seed);
    let connections: Vec<_> =
        (0..1 + dice.below(4)).map(|_| random_connection(&mut dice)).collect();
    let quiet = dice.one_in(8);
    let mut faults = Vec::new();
    for _ in 0..if quiet { 0 } else { 1 + dice.below(5) } {
        let connection = dice.below(connections.len());
        faults.push(random_fault(&mut dice, connection));
    }
    let cut =
        dice.one_in(25).then(|| (micros(dice.below(200) as u64), dice.pick(&[Hop::A, Hop::B])));
    let skew = |dice: &mut Dice| match dice.below(3) {
        0 => 0,
        1 => dice.below(2_000) as i64 - 1_000,
        _ => dice.below(40_000_000) as i64 - 20_000_000,
    };
    let clocks = [0, skew(&mut dice), skew(&mut dice)];
    let ipv6 = dice.one_in(3);
    Scenario { name: format!("seed {seed}"), ipv6, connections, faults, cut, clocks }
}

fn random_connection(dice: &mut Dice) -> Connection {
    let kind = dice.pick(&[
        QpType::Rc,
        QpType::Rc,
        QpType::Rc,
        QpType::Rc,
        QpType::Rc,
        QpType::Uc,
        QpType::Ud,
    ]);
    let mtu = dice.pick(&[Mtu::M256, Mtu::M1024, Mtu::M1024, Mtu::M4096]);
    let psn = |dice: &mut Dice| match dice.below(3) {
        0 => 0xff_ffff - dice.below(12) as u32,
        1 => 0,
        _ => dice.below(1 << 24) as u32,
    };
    let mut connection = Connection {
        kind,
        mtu,
        psns: [psn(dice), psn(dice)],
        timeout: dice.pick(&[8, 9, 10]),
        retry_count: dice.pick(&[3, 7]),
        rnr_retry: 7,
        rnr_timer: dice.pick(&[4, 6, 8]),
        reads: dice.pick(&[1, 2, 4, 8]),
        ..rc()
    };
    let sides = if dice.one_in(3) { 2 } else { 1 };
    for side in 0..sides {
        let mut at = Duration::ZERO;
        for _ in 0..1 + dice.below(8) {
            if dice.one_in(3) {
                at += micros(dice.below(300) as u64);
            }
            connection.work[side].push(random_post(dice, kind, mtu.bytes() as u32, at));
        }
        if dice.one_in(8) && kind == QpType::Rc {
            let late = micros(dice.below(600) as u64);
            connection.receives[1 - side] = vec![Duration::ZERO, late];
        }
    }
    connection
}

fn random_post(dice: &mut Dice, kind: QpType, mtu: u32, at: Duration) -> Post {
    let op = match kind {
        QpType::Ud => dice.pick(&[Op::Send, Op::SendImm]),
        QpType::Uc => dice.pick(&[Op::Send, Op::SendImm, Op::Write, Op::WriteImm]),
        _ => dice.pick(&[
            Op::Send,
            Op::SendImm,
            Op::Write,
            Op::WriteImm,
            Op::Read,
            Op::Read,
            Op::CompareSwap,
            Op::FetchAdd,
        ]),
    };
    let len = match op {
        Op::CompareSwap | Op::FetchAdd => 8,
        _ if kind == QpType::Ud => dice.below(200) as u32,
        _ => match dice.below(4) {
            0 => dice.below(3) as u32,
            1 => mtu,
            2 => mtu * 2 + dice.below(9) as u32,
            _ => dice.below(5 * mtu as usize) as u32,
        },
    };
    Post { at, op, len: len.min(20_000) }
}

fn random_fault(dice: &mut Dice, connection: usize) -> FaultRule {
    let action = match dice.below(12) {
        0..5 => Drop,
        5 | 6 => Duplicate,
        7 => BEHIND,
        8 => Corrupt,
        9 => Mark,
        10 => LATE,
        _ => Drop,
    };
    FaultRule {
        connection,
        requester: if dice.one_in(3) { 1 } else { 0 },
        class: dice.pick(&[Request, Request, Request, Acknowledge, Response, Response]),
        offset: dice.below(12) as u32,
        nth: if dice.one_in(5) { 2 } else { 1 },
        hop: dice.pick(&[Hop::A, Hop::B]),
        action,
    }
}
