//! A simulated fleet with injected faults: each is named correctly, and a clean fleet raises no
//! alarm.
//!
//! `ROCE_SEEDS=100 cargo test --test mesh` runs more seeds of each kind.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a test that cannot go on fails; numbers of a simulation are small"
)]

mod fleet;
#[path = "../common/seeds.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared by several tests")]
mod seeds;

use std::time::Duration;

use fleet::{Dice, Fleet, HOSTS, Injected, LEAVES, PER_LEAF, leaf_of};
use roce::ping::mesh::{Fault, Finding, Mesh, Symptom, Thresholds, diagnose};

/// Runs fleets with a fault that the dice choose; `is_right` judges what is found.
fn check(
    kind: u64,
    inject: impl Fn(&mut Dice) -> Injected + Sync,
    is_right: impl Fn(&Injected, &Fleet, &Mesh, &[Finding]) -> bool + Sync,
) {
    // One by default, for its time.
    seeds::run(1, &[], |seed| {
        let seed = kind << 32 | seed;
        let injected = inject(&mut Dice::new(seed));
        let mut fleet = Fleet::new(seed, injected);
        let mesh = fleet.run();
        let findings = diagnose(&mesh, &Thresholds::default());
        if is_right(&injected, &fleet, &mesh, &findings) {
            return Vec::new();
        }
        let named = findings.iter().map(|finding| finding.describe(&mesh));
        [format!("{injected:?}")].into_iter().chain(named).collect()
    });
}

/// Whether the one finding is that a host has this fault.
fn names_host(findings: &[Finding], fault: Fault, symptom: Symptom, host: usize) -> bool {
    let [finding] = findings else { return false };
    finding.fault == fault && finding.symptom == symptom && finding.hosts == [host]
}

/// Whether the one finding is that paths are bad which take a link, and names hosts of its leaf
/// switch alone.
fn names_link(
    (fleet, mesh): (&Fleet, &Mesh),
    findings: &[Finding],
    symptom: Symptom,
    (leaf, spine): (usize, u64),
) -> bool {
    let [finding] = findings else { return false };
    let crosses = |at: &&usize| fleet.crosses(&mesh.cells[**at], leaf, spine);
    let crossing = finding.paths.iter().filter(crosses).count();
    finding.fault == Fault::Path
        && finding.symptom == symptom
        && finding.hosts.len() >= PER_LEAF / 2
        && finding.hosts.iter().all(|&host| leaf_of(host) == leaf)
        && finding.paths.len() >= 20
        && crossing * 100 >= finding.paths.len() * 95
}

fn link(dice: &mut Dice) -> (usize, u64) {
    (dice.below(LEAVES), dice.below(4) as u64)
}

#[test]
fn clean_fleet_raises_no_alarm() {
    check(1, |_| Injected::Nothing, |_, _, _, findings| findings.is_empty());
}

#[test]
fn lossy_nic_is_named() {
    check(
        2,
        |dice| Injected::LossyNic { host: dice.below(HOSTS), loss: dice.between(0.02, 0.4) },
        |injected, _, _, findings| {
            let Injected::LossyNic { host, .. } = *injected else { unreachable!() };
            names_host(findings, Fault::Nic, Symptom::Loss, host)
        },
    );
}

#[test]
fn lossy_path_is_named() {
    check(
        3,
        |dice| {
            let (leaf, spine) = link(dice);
            Injected::LossyLink { leaf, spine, loss: dice.between(0.1, 0.9) }
        },
        |injected, fleet, mesh, findings| {
            let Injected::LossyLink { leaf, spine, .. } = *injected else { unreachable!() };
            names_link((fleet, mesh), findings, Symptom::Loss, (leaf, spine))
        },
    );
}

#[test]
fn slow_path_is_named() {
    check(
        4,
        |dice| {
            let (leaf, spine) = link(dice);
            let more = Duration::from_secs_f64(dice.between(100e-6, 2e-3));
            Injected::SlowLink { leaf, spine, more }
        },
        |injected, fleet, mesh, findings| {
            let Injected::SlowLink { leaf, spine, .. } = *injected else { unreachable!() };
            names_link((fleet, mesh), findings, Symptom::Latency, (leaf, spine))
        },
    );
}

#[test]
fn slow_host_is_named() {
    check(
        5,
        |dice| {
            let more = Duration::from_secs_f64(dice.between(400e-6, 20e-3));
            Injected::SlowHost { host: dice.below(HOSTS), more }
        },
        |injected, _, _, findings| {
            let Injected::SlowHost { host, .. } = *injected else { unreachable!() };
            names_host(findings, Fault::Host, Symptom::Latency, host)
        },
    );
}

#[test]
fn host_that_is_slow_in_all_directions_is_named() {
    check(
        7,
        |dice| {
            let more = Duration::from_secs_f64(dice.between(60e-6, 2e-3));
            Injected::SlowNic { host: dice.below(HOSTS), more }
        },
        |injected, _, _, findings| {
            let Injected::SlowNic { host, .. } = *injected else { unreachable!() };
            names_host(findings, Fault::Nic, Symptom::Latency, host)
        },
    );
}

#[test]
fn unresponsive_host_is_named() {
    check(
        6,
        |dice| Injected::DeafHost { host: dice.below(HOSTS), share: dice.between(0.2, 1.0) },
        |injected, _, _, findings| {
            let Injected::DeafHost { host, .. } = *injected else { unreachable!() };
            names_host(findings, Fault::Unresponsive, Symptom::Loss, host)
        },
    );
}

#[test]
fn same_seed_gives_the_same_fault_and_the_same_findings() {
    let run = || {
        let injected = Injected::LossyNic { host: 5, loss: 0.1 };
        let mesh = Fleet::new(9, injected).run();
        diagnose(&mesh, &Thresholds::default())
    };
    let findings = run();
    assert_eq!(findings, run());
    assert!(names_host(&findings, Fault::Nic, Symptom::Loss, 5), "{findings:?}");
}
