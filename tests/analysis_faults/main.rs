//! Two engines under faults injected by rule, three capture points, and the analysis of what they
//! captured: every injected fault is found with its right cause and frame, and nothing that was not
//! injected is blamed.
//!
//! A scenario ([`plan`], [`scenarios`]) is run under virtual time ([`world`]), which logs what
//! really happened ([`truth`]). The captures of each point by itself, and of several together, are
//! analyzed ([`observe`]) and compared with the log ([`check`]). What one capture point cannot know
//! in principle is exempt there, by rules that stand in [`check`] with their reasons; with the
//! points at both ends nothing is.
//!
//! `cargo test --test analysis_faults` runs the named scenarios and some seeds. More:
//! `ROCE_SEEDS=10000 cargo test --release --test analysis_faults`. One:
//! `ROCE_SEED=17 cargo test --test analysis_faults -- --nocapture`.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    reason = "a test that cannot go on fails"
)]

mod check;
#[allow(dead_code, reason = "the simulation uses the rest")]
#[path = "../common/dice.rs"]
mod dice;
mod observe;
mod plan;
#[path = "../common/recorder.rs"]
mod recorder;
mod scenarios;
#[path = "../common/seeds.rs"]
mod seeds;
#[allow(dead_code, reason = "another test reads the packets of merged captures")]
mod truth;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../common/two_hosts/mod.rs"]
mod two_hosts;
mod world;

use std::collections::BTreeSet;

use roce::analysis::RetransmissionCause;

use check::tally::Tally;
use plan::Scenario;
use two_hosts::wire;

/// The capture points whose captures are analyzed, alone and together: A, the switch, B.
const VIEWS: [&[usize]; 5] = [&[0], &[1], &[2], &[0, 2], &[0, 1, 2]];

/// Seeds that are run if no number is given.
const SEEDS: u64 = 90;

/// Seeds that once failed.
const KNOWN: &[u64] = &[
    108, 113, 149, 153, 185, 197, 212, 217, 223, 228, 274, 291, 302, 350, 435, 445, 447, 450, 461,
    464, 490, 498, 506, 588, 621, 631, 675, 734, 788, 854, 859, 916, 926, 957, 1026, 1033, 1204,
    1218, 1295, 1399, 1462, 1468, 1514, 1523, 1668, 1992, 2088, 2136, 2164, 2193, 2272, 2285, 2390,
    2419, 2445, 2490, 2555, 2719, 2723, 3182, 3397, 3417, 3456, 3561, 3582, 3739, 3932, 3973, 4111,
    4173, 4191, 4389, 4394, 4573, 4612, 4737, 4786, 4986, 5240, 5269, 5336, 5341, 5414, 5737, 5881,
    5986, 6061, 6126, 6404, 6490, 6526, 6572, 6602, 6658, 6700, 6767, 6976, 7034, 7116, 7154, 7410,
    7515, 7723, 7765, 7805, 7829, 8106, 8289, 8381, 8383, 8530, 8586, 8777, 8864, 8968, 8982, 9004,
    9005, 9141, 9267, 9718, 9723, 9760, 9776, 9813, 9967, 9968, 9983, 10177, 10486, 10917, 10965,
    11454, 12583, 12922, 13347, 13870, 14897, 15187, 16901, 19304, 19330, 19374, 19576, 19665,
    19981, 20857, 22258, 24449, 26191, 26625, 28341, 28653, 28696, 29428, 29616, 33934, 34860,
    35934, 40084, 40144, 43757, 49405, 49985, 51003, 55621, 56688, 58842,
];

/// Runs a scenario and compares every view of it with what happened.
fn failures(scenario: &Scenario, tally: &Tally) -> Vec<String> {
    let truth = world::run(scenario);
    let (mut all, mut excused) = (Vec::new(), BTreeSet::new());
    for view in VIEWS {
        let observed = observe::observe(&truth, view);
        let outcome = check::check(scenario, &truth, &observed);
        let name = &scenario.name;
        all.extend(outcome.wrong.iter().map(|wrong| format!("{name}, view {view:?}: {wrong}")));
        excused.extend(outcome.excused);
    }
    tally.add(&excused);
    all
}

#[test]
fn named_scenarios_are_understood() {
    let all = scenarios::named();
    assert!(all.len() >= 40);
    let wanted = std::env::var("ROCE_SCENARIO").ok();
    let (mut wrong, tally) = (Vec::new(), Tally::default());
    for scenario in all.iter().filter(|all| wanted.as_ref().is_none_or(|name| *name == all.name)) {
        if wanted.is_some() {
            print(scenario);
        }
        wrong.extend(failures(scenario, &tally));
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn random_scenarios_are_understood() {
    let tally = Tally::default();
    if let Some(seed) = seeds::only_seed() {
        let scenario = scenarios::random(seed);
        print(&scenario);
        let wrong = failures(&scenario, &tally);
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
        return;
    }
    seeds::run(SEEDS, KNOWN, |seed| failures(&scenarios::random(seed), &tally));
}

/// Prints what happens in a scenario.
fn print(scenario: &Scenario) {
    println!("{scenario:#?}");
    let truth = world::run(scenario);
    for (number, packet) in truth.transmissions.iter().enumerate() {
        let faults: Vec<_> = truth
            .injected
            .iter()
            .filter(|fault| fault.transmission == number)
            .map(|fault| format!("{:?} at {:?}", fault.action, fault.hop))
            .collect();
        let frame = |point: usize| {
            truth.captured[point]
                .iter()
                .position(|seen| seen.transmission == number)
                .map(|at| at + 1)
        };
        println!(
            "{number:3} {} connection {} {} {} psn {} (+{}) {:?} frames {:?} {:?} {}",
            packet.time,
            packet.connection,
            ["A", "B"][packet.sender],
            packet.opcode,
            packet.psn,
            packet.sequence,
            packet.cause,
            [frame(0), frame(1), frame(2)],
            faults,
            if packet.is_nak { "NAK" } else { "" },
        );
    }
}

#[test]
fn log_of_causes_agrees_with_the_engines_counters() {
    let mut seen = [0; 4];
    let seeds = (0..300).map(scenarios::random);
    for scenario in scenarios::named().into_iter().chain(seeds) {
        let truth = world::run(&scenario);
        for side in [0, 1] {
            let rewinds = |cause| {
                let mut all = truth.transmissions.iter().filter(|packet| packet.sender == side);
                all.by_ref().filter(|packet| packet.rewinds && packet.cause == Some(cause)).count()
                    as u64
            };
            let [timeouts, sequence, implied, rnr] = truth.counters[side];
            let name = &scenario.name;
            use RetransmissionCause as Cause;
            assert!(
                rewinds(Cause::Timeout) <= timeouts,
                "{name}: {} {timeouts}",
                rewinds(Cause::Timeout)
            );
            assert!(rewinds(Cause::SequenceNak) <= sequence, "{name}");
            assert!(rewinds(Cause::ImpliedNak) <= implied, "{name}");
            assert!(rewinds(Cause::Rnr) <= rnr, "{name}");
            seen[0] += rewinds(Cause::Timeout);
            seen[1] += rewinds(Cause::SequenceNak);
            seen[2] += rewinds(Cause::ImpliedNak);
            seen[3] += rewinds(Cause::Rnr);
        }
    }
    println!("{seen:?}");
    assert!(seen.iter().all(|&count| count > 5), "{seen:?}");
}
