//! Programs that are killed and stopped while others talk.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::loopback::loopback;
use crate::program::Program;

fn runs(few: u64) -> u64 {
    std::env::var("ROCE_SHARE_RUNS").map_or(few, |runs| runs.parse().unwrap())
}

fn seed() -> u64 {
    std::env::var("ROCE_SEED").map_or(1, |seed| seed.parse().unwrap())
}

/// Returns the next number of a sequence that looks random (SplitMix64).
fn roll(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Fault of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Killed,
    Stopped,
}

#[test]
fn others_go_on_when_one_is_killed_or_stopped() {
    let address = IpAddr::from(loopback(200, 1));
    for run in 0..runs(8) {
        let mut dice = seed() + run;
        // Three pairs; the first of all programs is the one that was at the address first.
        let mut programs: Vec<Program> = (0..6).map(|_| Program::start(address)).collect();
        let mut any = |count: u64| usize::try_from(roll(&mut dice) % count).unwrap();
        let victim = any(6);
        let fault = if any(2) == 0 { Fault::Killed } else { Fault::Stopped };
        let moment = Duration::from_micros(any(60_000) as u64);
        let pairs = [(0, 3), (1, 4), (2, 5)];
        for (from, to) in pairs {
            let (left, right) = programs.split_at_mut(3);
            left[from].begin(&right[to - 3], run);
        }
        sleep(moment);
        match fault {
            Fault::Killed => programs[victim].child.signal(Signal::KILL),
            Fault::Stopped => programs[victim].child.signal(Signal::STOP),
        }
        // One that comes now is let in, and talks to one that lives.
        let mut newcomer = Program::start(address);
        let survivor = if victim == 5 { 4 } else { 5 };
        newcomer.begin(&programs[survivor], run);
        let what = format!("run {run}: {victim} {fault:?} after {moment:?}");
        assert_eq!(newcomer.end(), "done", "{what}, the newcomer");
        for (from, to) in pairs {
            if from != victim && to != victim {
                assert_eq!(programs[from].end(), "done", "{what}, {from} to {to}");
            }
        }
        if fault == Fault::Stopped {
            programs[victim].child.signal(Signal::CONT);
            let from = victim % 3;
            assert_eq!(programs[from].end(), "done", "{what}, after it went on");
        }
    }
}

/// Time in which a program learns that another has gone, and the number of times to wait for it.
const REST: Duration = Duration::from_millis(20);
const RESTS: u32 = 500;

/// Descriptors and mappings of a program once it knows who has gone.
fn resources_at_rest(program: &Program) -> [usize; 2] {
    let count = |_| {
        sleep(REST);
        program.resources()
    };
    (0..10).map(count).min().unwrap_or_default()
}

/// Whether a program has no more than it had before, of each.
fn has_no_more(program: &Program, before: [usize; 2]) -> bool {
    program.resources().iter().zip(before).all(|(count, before)| *count <= before)
}

#[test]
fn nothing_is_left_of_programs_that_come_and_go() {
    let address = IpAddr::from(loopback(200, 2));
    let mut stays = Program::start(address);
    let (mut most, mut shared) = ([0; 2], 0);
    for run in 0..runs(6) {
        let mut others: Vec<Program> = (0..3).map(|_| Program::start(address)).collect();
        for other in &mut others {
            other.begin(&stays, run);
        }
        stays.begin(&others[0], run);
        for other in &mut others {
            assert_eq!(other.end(), "done", "run {run}");
        }
        assert_eq!(stays.end(), "done", "run {run}");
        shared = shared.max(stays.resources()[1]);
        // Killed, all of them.
        drop(others);
        if run == 2 {
            most = resources_at_rest(&stays);
            assert!(shared > most[1], "it shared memory: {shared}, {most:?}");
        }
        let is_back = |_: &u32| run <= 2 || has_no_more(&stays, most);
        let back = (0..RESTS).inspect(|_| sleep(REST)).find(is_back);
        assert!(back.is_some(), "run {run}: {:?}, {most:?} before", stays.resources());
    }
}
