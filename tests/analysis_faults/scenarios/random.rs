//! Any mixture of connections, work and faults, from a seed.

use std::time::Duration;

use roce::link::fault::Action::{Corrupt, Drop, Duplicate, Mark};
use roce::verbs::{Mtu, QpType};

use super::super::dice::Dice;
use super::super::plan::Class::{Acknowledge, Request, Response};
use super::super::plan::{Connection, FaultRule, Op, Post, Scenario};
use super::super::two_hosts::pair::PairAttr;
use super::super::wire::Hop;
use super::{BEHIND, LATE, micros, rc};

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
    let mtus = [Mtu::M256, Mtu::M1024, Mtu::M1024, Mtu::M4096];
    let attr = PairAttr::random(dice, &mtus, |_| 7);
    let mtu = attr.mtu.bytes() as u32;
    let mut connection = Connection { kind, attr, ..rc() };
    let sides = if dice.one_in(3) { 2 } else { 1 };
    for side in 0..sides {
        let mut at = Duration::ZERO;
        for _ in 0..1 + dice.below(8) {
            if dice.one_in(3) {
                at += micros(dice.below(300) as u64);
            }
            connection.work[side].push(random_post(dice, kind, mtu, at));
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
