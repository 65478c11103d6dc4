//! Ground truth for replays: captures of devices that are known to be correct, or known to be wrong
//! in one way.
//!
//! Two engines run under virtual time ([`world`]) with a network that loses, copies, delays and
//! damages packets, and with capture points at either end and in the middle. Between an engine and
//! its wire there may stand a [`device`] with a flaw, which marks the packets that show it. A
//! replay of each capture ([`verdicts`]) must find the flaw, at a packet that shows it, under the
//! right rule, and nothing else; and must find nothing in captures of engines without flaw.
//!
//! `cargo test --test replay_faults` runs every flaw and some seeds. More:
//! `ROCE_SEEDS=50000..60000 cargo test --release --test replay_faults`. One:
//! `ROCE_SEED=17 cargo test --test replay_faults -- --nocapture`; one flaw: `ROCE_FLAW=msn-ahead`.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    reason = "a test that cannot go on fails"
)]

mod by_rule;
mod connect;
mod craft;
mod device;
#[allow(dead_code, reason = "the simulation uses the rest")]
#[path = "../common/dice.rs"]
mod dice;
mod flaw;
mod management;
mod requesters;
mod responders;
mod scenarios;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../common/seeds.rs"]
mod seeds;
mod setup;
#[path = "../common/two_hosts/mod.rs"]
mod two_hosts;
mod verdicts;
mod workload;
mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;

use device::Mark;
use flaw::Flaw;
use requesters::REQUESTERS;
use responders::RESPONDERS;
use roce::replay::{Step, Verdict};
use two_hosts::{frames, wire};
use verdicts::{Missing, Wrong, host_of, judge_flaw, judge_honest};
use world::{Frame, Run};

/// Flaws that replays do not find yet or blame the wrong packet for, and tests of correct devices
/// that replays blame. Must be empty.
const NOT_YET: &[&str] = &[];

/// Fails if something is wrong, unless it is known not to work yet.
fn settle(name: &str, wrong: &[String]) {
    if NOT_YET.contains(&name) {
        return wrong.iter().for_each(|wrong| println!("not yet: {wrong}"));
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Seeds that are run if no number is given: any faults, and faults by rule, whose named scenarios
/// are run as well.
const SEEDS: [u64; 2] = [20, 8];

/// Seeds of correct devices that replays once blamed, or left undecided without a reason. They are
/// run every time.
const BLAMED_ONCE: &[u64] = &[
    262, 3900, 5672, 6183, 6255, 6977, 7190, 8293, 9553, 9843, 10608, 20142, 20742, 20863, 22892,
    29983, 34770, 34848, 37690, 38433, 40834, 41719, 42613, 43335, 47237, 47685, 48635,
];

/// Seeds of faults by rule that replays once blamed, which are run every time, too.
const BLAMED_ONCE_BY_RULE: &[u64] = &[50126, 54424, 54834, 55770, 58721];

/// The flaws that are asked for.
fn wanted(all: &'static [&'static [Flaw]]) -> Vec<&'static Flaw> {
    let name = std::env::var("ROCE_FLAW").ok();
    let all = all.iter().copied().flatten();
    all.filter(|flaw| name.as_ref().is_none_or(|name| name == flaw.name)).collect()
}

/// Prints a capture.
fn print<'f>(frames: impl IntoIterator<Item = &'f Frame>) {
    for (number, frame) in frames.into_iter().enumerate() {
        let from = if frame.bytes[0] >> 4 == 4 { frame.bytes[15] } else { frame.bytes[23] };
        let mark = if frame.mark == Mark::Honest { "" } else { "<<<" };
        println!("{:3} {} {from} {} {mark}", number + 1, frame.time, verdicts::summary(frame));
    }
}

/// Runs devices with a flaw, and holds what replays say against it.
fn flaws_are_found(all: &'static [&'static [Flaw]], least: usize) {
    let names: Vec<_> = all.iter().copied().flatten().map(|flaw| flaw.name).collect();
    assert!(names.len() >= least, "{}", names.len());
    assert!(names.iter().enumerate().all(|(at, name)| !names[..at].contains(name)));
    let mut wrong = Vec::new();
    for flaw in wanted(all) {
        let run = flaw.run();
        let mut failures = Vec::new();
        for point in [0, 1, 2] {
            let broken = |frame: &Frame| frame.mark == Mark::Broken;
            let is_shown = run.captured[point].iter().any(broken) || run.omitted.is_some();
            assert!(is_shown || !flaw.points.contains(&point), "{} at {point}", flaw.name);
            failures.extend(judge_flaw(flaw, &run, point));
        }
        if std::env::var("ROCE_FLAW").is_ok() {
            print(&run.captured[flaw.points[flaw.points.len() - 1]]);
        }
        match NOT_YET.contains(&flaw.name) {
            false => wrong.extend(failures),
            true if failures.is_empty() => println!("{} must leave NOT_YET", flaw.name),
            true => settle(flaw.name, &failures),
        }
    }
    settle("", &wrong);
}

#[test]
fn responders_with_a_flaw_are_found() {
    flaws_are_found(RESPONDERS, 36);
}

#[test]
fn requesters_with_a_flaw_are_found() {
    flaws_are_found(REQUESTERS, 24);
}

#[test]
fn every_rule_for_connections_has_a_flaw() {
    let flaws = || RESPONDERS.iter().chain(REQUESTERS).copied().flatten();
    let rules: Vec<_> = roce::replay::all_rules().iter().map(|rule| rule.id).collect();
    for flaw in flaws() {
        let unknown: Vec<_> = flaw.rules.iter().filter(|rule| !rules.contains(rule)).collect();
        assert!(unknown.is_empty(), "{} names {unknown:?}", flaw.name);
    }
    // Those of other services have tests of their own.
    const OTHERS: [&str; 6] = ["mad-", "cm-", "sidr-", "datagram-", "multicast-", "cnp-"];
    let is_shown = |rule: &str| flaws().any(|flaw| flaw.rules.contains(&rule));
    let others = |rule: &str| OTHERS.iter().any(|other| rule.starts_with(other));
    let missing = rules.into_iter().filter(|rule| !others(rule) && !is_shown(rule));
    assert_eq!(missing.collect::<Vec<_>>(), ["unreliable-repeated"]);
}

/// Returns the mistakes of replays of a run of correct devices. A capture may also miss some of the
/// packets.
fn honest_failures(name: &str, run: &Run, ipv6: bool, seed: u64) -> Vec<Wrong> {
    let is_shown = seeds::only_seed().is_some();
    let mut all = Vec::new();
    let mut dice = dice::Dice::new(seed);
    for point in [0, 1, 2] {
        let frames: Vec<&Frame> = run.captured[point].iter().collect();
        let captured = judge_honest(&frames, host_of(point, ipv6), &Missing(&run.faults));
        let (rest, left_out): (Vec<_>, Vec<_>) = frames.into_iter().partition(|_| !dice.one_in(12));
        let left_out = left_out.into_iter().map(|frame| (frame.connection, frame.when));
        let missing: Vec<_> = run.faults.iter().copied().chain(left_out).collect();
        let with_gaps = judge_honest(&rest, None, &Missing(&missing));
        if is_shown && !captured.is_empty() {
            println!("point {point}:");
            print(&run.captured[point]);
        }
        if is_shown && !with_gaps.is_empty() {
            println!("point {point}, capture with gaps:");
            print(rest.iter().copied());
        }
        for (wrong, gaps) in [(captured, ""), (with_gaps, ", capture with gaps")] {
            all.extend(wrong.into_iter().map(|wrong| Wrong {
                class: format!("{}{gaps}", wrong.class),
                text: format!("{name}, point {point}{gaps}: {}", wrong.text),
            }));
        }
    }
    all
}

/// Number of seeds that fail by each class, and an example of each.
#[derive(Default)]
struct Classes(BTreeMap<String, (usize, String)>);

impl Classes {
    fn add(&mut self, wrong: Vec<Wrong>) {
        let mut seen: Vec<String> = Vec::new();
        for wrong in wrong {
            let (count, examples) = self.0.entry(wrong.class.clone()).or_default();
            if !seen.contains(&wrong.class) {
                *count += 1;
                examples.push_str("\n    ");
                examples.push_str(&wrong.text);
            }
            seen.push(wrong.class);
        }
    }

    fn lines(&self) -> Vec<String> {
        let line = |(class, (count, examples)): (&String, &(usize, String))| {
            format!("{count} times {class}: {examples}")
        };
        self.0.iter().map(line).collect()
    }
}

/// Runs seeds, and counts failures by their classes. `fails` is told whether it is the only seed.
fn seeds(name: &str, count: u64, known: &[u64], fails: impl Fn(u64, bool) -> Vec<Wrong> + Sync) {
    if let Some(seed) = seeds::only_seed() {
        let wrong: Vec<_> = fails(seed, true).into_iter().map(|wrong| wrong.text).collect();
        return settle(name, &wrong);
    }
    let classes = Mutex::new(Classes::default());
    let all = seeds::for_each(count, known, |seed| {
        let wrong = fails(seed, false);
        classes.lock().unwrap().add(wrong);
    });
    println!("{all} seeds of {name}");
    settle(name, &classes.into_inner().unwrap().lines());
}

#[test]
fn correct_devices_are_not_blamed() {
    seeds("correct devices", SEEDS[0], BLAMED_ONCE, |seed, is_one| {
        let setup = workload::random(seed);
        let run = world::run_honest(&setup);
        if is_one {
            println!("{setup:?}");
        }
        honest_failures(&format!("seed {seed}"), &run, setup.ipv6, seed)
    });
}

#[test]
fn correct_devices_under_faults_by_rule_are_not_blamed() {
    let fails = |scenario: by_rule::plan::Scenario| {
        let run = by_rule::run(&scenario);
        honest_failures(&scenario.name, &run, scenario.ipv6, 1)
    };
    let mut named = Classes::default();
    by_rule::scenarios::named().into_iter().for_each(|scenario| named.add(fails(scenario)));
    settle("faults by rule", &named.lines());
    seeds("faults by rule", SEEDS[1], BLAMED_ONCE_BY_RULE, |seed, _| {
        fails(by_rule::scenarios::random(seed))
    });
}

#[test]
fn soft_nics_that_play_all_scenarios_are_not_blamed() {
    let captures = scenarios::captures();
    let mut missing = captures.each_ref().map(|capture| scenarios::sent(capture));
    missing.reverse();
    for ((capture, gid), sent) in captures.iter().zip(scenarios::gids()).zip(missing) {
        let (steps, _) = verdicts::replay(capture, Some(gid));
        let undecided = |step: &&Step| matches!(step.verdict, Verdict::Undecided(_));
        let count = steps.iter().filter(undecided).count();
        println!("{} bytes, {} verdicts, {count} undecided", capture.len(), steps.len());
        // Unreliable connections do not retransmit what the scenario's faults lost.
        let lossy = scenarios::lossy(capture, &sent);
        let wrong = steps.iter().filter(|step| match step.verdict {
            Verdict::Agreed => false,
            Verdict::Undecided(_) => !lossy.contains(&step.frame),
            _ => true,
        });
        let wrong: Vec<_> = wrong.map(|step| verdicts::words(step, None)).collect();
        settle("scenarios of conform", &wrong);
    }
}
