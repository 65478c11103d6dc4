//! Any mixture of work and faults, from a seed.

use std::time::Duration;

use roce::verbs::Mtu;

use super::dice::Dice;
use super::setup::{Connection, Key, Op, Setup, Work};
use super::two_hosts::pair::PairAttr;
use super::world::{ALL, LOCAL, RECEIVES, WINDOWS};

fn micros(count: usize) -> Duration {
    Duration::from_micros(count as u64)
}

pub fn random(seed: u64) -> Setup {
    let mut dice = Dice::new(seed);
    let count = 1 + dice.below(3);
    let connections: Vec<_> = (0..count).map(|_| connection(&mut dice)).collect();
    let faults_per_mille = if dice.one_in(3) { 0 } else { dice.pick(&[5, 20, 60]) };
    Setup {
        ipv6: dice.one_in(3),
        connections,
        rules: Vec::new(),
        faults_per_mille,
        send_interval: Duration::from_nanos(dice.pick(&[0, 0, 300, 5000])),
        seed: seed ^ 0x5eed,
        advertise_credits: dice.one_in(2),
        programs_write: dice.one_in(2),
    }
}

fn connection(dice: &mut Dice) -> Connection {
    let mtus = [Mtu::M256, Mtu::M256, Mtu::M1024, Mtu::M4096];
    let mut connection = Connection {
        attr: PairAttr::random(dice, &mtus, |dice| dice.pick(&[2, 7])),
        domain: usize::from(dice.one_in(6)),
        is_managed: dice.one_in(3),
        shares_receives: dice.one_in(4),
        receive_at: if dice.one_in(4) { 0 } else { RECEIVES },
        receive_size: if dice.one_in(10) { 600 } else { 1 << 14 },
        ..Connection::default()
    };
    let sides = if dice.one_in(2) { 2 } else { 1 };
    for side in 0..sides {
        let mut at = Duration::ZERO;
        let places: Vec<u64> = (0..3).map(|_| dice.below(ALL as usize / 2) as u64 & !7).collect();
        for _ in 0..1 + dice.below(10) {
            if dice.one_in(3) {
                at += micros(dice.below(200));
            }
            let is_last = dice.one_in(24);
            let work =
                if is_last { refused(dice, at) } else { work(dice, &connection, &places, at) };
            connection.work[side].push(work);
        }
        if dice.one_in(6) {
            let late = micros(dice.below(600));
            connection.receives[1 - side] = vec![Duration::ZERO, late];
        }
    }
    connection
}

/// The key for everything in the protection domain of a connection.
fn common_key(connection: &Connection) -> Key {
    if connection.domain == 0 { Key::All } else { Key::OtherDomain }
}

fn work(dice: &mut Dice, connection: &Connection, places: &[u64], at: Duration) -> Work {
    let op = dice.pick(&[
        Op::Send,
        Op::SendImm,
        Op::SendInvalidate,
        Op::Write,
        Op::Write,
        Op::WriteImm,
        Op::Read,
        Op::Read,
        Op::CompareSwap { compare: 0, swap: 7 },
        Op::FetchAdd(3),
        Op::AtomicWrite,
    ]);
    let mtu = connection.attr.mtu.bytes();
    let len = match op {
        Op::CompareSwap { .. } | Op::FetchAdd(_) | Op::AtomicWrite => 8,
        _ => match dice.below(4) {
            0 => dice.below(6),
            1 => mtu,
            2 => mtu * 2 + dice.below(9),
            _ => dice.below(5 * mtu),
        },
    };
    let len = len.min(12_000);
    let key = match dice.below(12) {
        0 if len <= 4096 => Key::Window(dice.below(WINDOWS)),
        1 if op == Op::Read && connection.domain == 0 => Key::ReadOnly,
        2 if len <= 4096 && connection.domain == 0 => Key::Page,
        // Of nothing, no key is checked.
        3 if len == 0 => Key::Unknown,
        _ => common_key(connection),
    };
    let key = if op == Op::SendInvalidate { Key::Window(dice.below(WINDOWS)) } else { key };
    let is_small = matches!(key, Key::Window(_) | Key::Page | Key::OtherDomain);
    let len = if is_small { len.min(2000) } else { len };
    let offset = if is_small { dice.pick(&[0, 64, 1024]) } else { dice.pick(places) };
    // Programs may use for themselves what their peers may read and write.
    // But nothing is put where data is taken from, which may have to be retransmitted.
    let local = match op {
        Op::Read | Op::CompareSwap { .. } | Op::FetchAdd(_) if dice.one_in(4) => dice.pick(places),
        Op::Read | Op::CompareSwap { .. } | Op::FetchAdd(_) => LOCAL + (1 << 14),
        _ => LOCAL,
    };
    let local = local + dice.below(2000) as u64;
    Work { at, op, key, offset, len: len as u32, local }
}

/// Work that is refused for its key, its range, its right or its alignment.
fn refused(dice: &mut Dice, at: Duration) -> Work {
    let (op, key, offset, len) = dice.pick(&[
        (Op::Write, Key::Unknown, 0, 100),
        (Op::Read, Key::Unknown, 0, 3000),
        (Op::Write, Key::ReadOnly, 64, 5000),
        (Op::FetchAdd(1), Key::ReadOnly, 64, 8),
        (Op::Write, Key::Page, 4000, 200),
        (Op::Read, Key::Page, 4096, 1),
        (Op::Write, Key::OtherDomain, 0, 100),
        (Op::Read, Key::All, ALL, 8),
        (Op::WriteImm, Key::Unknown, 0, 1000),
        (Op::Write, Key::OthersWindow, 0, 100),
    ]);
    Work { at, op, key, offset, len, local: LOCAL }
}
