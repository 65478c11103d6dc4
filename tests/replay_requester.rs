//! Soft NICs that keep to the protocol, on a network that loses, copies, delays and damages
//! packets: whatever a capture point sees of their requests, nothing in it is different.
//!
//! The captures are those of `tests/analysis_faults`: three capture points, each by itself and
//! several together. More seeds: `ROCE_SEEDS=10000 cargo test --release --test replay_requester`.
//! One: `ROCE_SEED=17`.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    reason = "a test that cannot go on fails"
)]

#[path = "common/dice.rs"]
mod dice;
#[path = "analysis_faults/plan.rs"]
mod plan;
#[path = "common/recorder.rs"]
mod recorder;
#[path = "analysis_faults/scenarios/mod.rs"]
mod scenarios;
#[path = "common/seeds.rs"]
mod seeds;
#[path = "analysis_faults/truth.rs"]
mod truth;
#[path = "common/two_hosts/mod.rs"]
mod two_hosts;
#[path = "analysis_faults/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::Mutex;

use roce::analysis::PacketRole;
use roce::replay::{
    Options, PacketBatch, Session, Step, Subject, Surveyor, Verdict, replay_capture,
};
use roce::wire::Gid;

use plan::Scenario;
use recorder::analyze_merged;
use truth::Truth;
use two_hosts::wire;

/// The capture points whose captures are judged, and the host (0 A, 1 B) at which the judge is told
/// that they were taken.
const VIEWS: [(&[usize], Option<usize>); 7] = [
    (&[0], None),
    (&[1], None),
    (&[2], None),
    (&[0], Some(0)),
    (&[2], Some(1)),
    (&[0, 2], None),
    (&[0, 1, 2], None),
];

/// Seeds that are run if no number is given.
const SEEDS: u64 = 60;

/// Returns the judges' verdicts on the captures of these points, and the packets that they must
/// judge.
fn judge(truth: &Truth, points: &[usize], at: Option<Gid>) -> (Vec<Step>, Vec<(u64, PacketRole)>) {
    let all = truth.merged(points);
    let files: Vec<String> = points.iter().map(ToString::to_string).collect();
    let packets = all.iter().map(|frame| frame.facts.clone());
    let (_, notes) = analyze_merged(files.clone(), packets);
    let mut surveyor = Surveyor::new(files);
    all.iter().for_each(|frame| surveyor.packet(&frame.facts));
    let mut options = Options::default();
    options.point = at;
    let mut session = Session::new(surveyor.finish(), &options);
    let (mut steps, mut batch) = (Vec::new(), PacketBatch::default());
    all.into_iter().for_each(|frame| batch.push_packet(frame.facts, &frame.packet));
    session.packets(&mut batch, &mut steps);
    session.finish(&mut steps);
    steps.retain(|step| step.subject != Subject::Response);
    let roles = notes.packets.iter().map(|(facts, note)| (facts.frame, note.role));
    let is_wanted =
        |role| matches!(role, PacketRole::Request | PacketRole::Cnp | PacketRole::Management);
    let wanted = roles.filter(|&(_, role)| is_wanted(role)).collect();
    (steps, wanted)
}

/// Runs a scenario. Returns what is wrong, and counts verdicts by view.
fn failures(scenario: &Scenario, counts: &Mutex<BTreeMap<String, u64>>) -> Vec<String> {
    let truth = world::run(scenario);
    let mut wrong = Vec::new();
    for (points, at) in VIEWS {
        let address = |side: usize| wire::gid([1, 2][side], scenario.ipv6);
        let (steps, wanted) = judge(&truth, points, at.map(address));
        let name = format!("{}, points {points:?} at {at:?}", scenario.name);
        let mut frames: Vec<u64> = steps.iter().map(|step| step.frame).collect();
        frames.sort_unstable();
        let mut expected: Vec<u64> = wanted.iter().map(|(frame, _)| *frame).collect();
        expected.sort_unstable();
        if frames != expected {
            let missing: Vec<_> = expected.iter().filter(|f| !frames.contains(f)).collect();
            wrong.push(format!("{name}: not one step for each packet: {missing:?}"));
        }
        for step in &steps {
            let kind = match &step.verdict {
                Verdict::Agreed => "agreed".to_owned(),
                Verdict::Undecided(why) => format!("undecided {why:?}"),
                Verdict::Known { .. } => "known".to_owned(),
                Verdict::Different(difference) => {
                    let (rule, found) = (difference.rule.id, &difference.found);
                    wrong.push(format!("{name}: frame {}: {rule}: {found}", step.frame));
                    "different".to_owned()
                }
            };
            *counts.lock().unwrap().entry(format!("{points:?} {at:?} {kind}")).or_default() += 1;
        }
    }
    wrong
}

#[test]
fn honest_requesters_break_no_rule() {
    let counts = Mutex::new(BTreeMap::new());
    if let Some(seed) = seeds::only_seed() {
        let wrong = failures(&scenarios::random(seed), &counts);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        return;
    }
    for scenario in scenarios::named() {
        let wrong = failures(&scenario, &counts);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
    seeds::run(SEEDS, &[], |seed| failures(&scenarios::random(seed), &counts));
    for (kind, count) in counts.into_inner().unwrap() {
        println!("{count:9} {kind}");
    }
}

/// Captures of rxe, and how many of their requests, datagrams and MADs are undecided.
const CAPTURES: [(&str, u64); 6] = [
    ("captures/rxe_all_ops.pcap", 0),
    ("captures/rxe_lossy.pcap", 0),
    ("captures/rxe_cm.pcap", 0),
    ("cm/rxe_cm_programs.pcap", 0),
    // A DREQ of a connection that never was.
    ("cm/rxe_cm_rawpeer.pcap", 1),
    ("cm/rxe_cm_ud.pcap", 0),
];

#[test]
fn captures_of_rxe_break_no_rule_but_known_ones() {
    for (file, undecided) in CAPTURES {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file);
        let mut options = Options::default();
        options.profiles.set_all("rxe").unwrap();
        let raw = Gid::from(std::net::Ipv4Addr::new(10, 9, 0, 2));
        if file.contains("rawpeer") {
            options.profiles.set(raw, "rawcm").unwrap();
        }
        let mut steps: Vec<Step> = Vec::new();
        replay_capture(&std::fs::read(path).unwrap(), &options, &mut steps).unwrap();
        let (mut counts, mut wrong) = ([0; 3], Vec::new());
        for step in steps.iter().filter(|step| step.subject != Subject::Response) {
            match &step.verdict {
                Verdict::Agreed => counts[0] += 1,
                Verdict::Known { .. } => counts[1] += 1,
                Verdict::Undecided(_) => counts[2] += 1,
                Verdict::Different(_) => wrong.push(format!("{step:?}")),
            }
        }
        println!("{file}: {} agreed, {} known, {} undecided", counts[0], counts[1], counts[2]);
        assert!(wrong.is_empty(), "{file}:\n{}", wrong.join("\n"));
        assert_eq!((counts[2], counts[0] >= 15), (undecided, true), "{file}");
    }
}
