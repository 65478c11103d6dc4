//! Small meshes, in which little can be compared.

use super::*;
use crate::ping::sample::{Ending, Stamps};
use crate::time::Instant;

/// A mesh of so many hosts that all probe each other on two paths, 100 times; `stats` says what became of it.
fn mesh(hosts: usize, stats: impl Fn(usize, usize, u16) -> PathStats) -> Mesh {
    let mut mesh = Mesh::new((0..hosts).map(|host| format!("host{host}")));
    for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))) {
        for source_port in [0xc001, 0xc002] {
            if from != to {
                let stats = stats(from, to, source_port);
                mesh.cells.push(Cell { from, to, source_port, stats });
            }
        }
    }
    mesh
}

/// So many lost, and all others after these microseconds of network, prober and responder.
fn stats(lost: u64, [network, prober, responder]: [u64; 3]) -> PathStats {
    let mut stats = PathStats::default();
    let at = |us: u64| Instant::from_nanos(us * 1000);
    let answered = Stamps {
        posted: at(0),
        sent: at(0),
        received: at(network + responder),
        processed: at(network + prober + responder),
        responder: Duration::from_micros(responder),
    };
    (0..lost).for_each(|_| stats.add(&Ending::Lost { reached: false }));
    (lost..100).for_each(|_| stats.add(&Ending::Answered(answered)));
    stats
}

const FINE: [u64; 3] = [10, 20, 30];

fn found(mesh: &Mesh) -> Vec<(Fault, Symptom, Vec<usize>)> {
    let findings = diagnose(mesh, &Thresholds::default());
    findings.into_iter().map(|it| (it.fault, it.symptom, it.hosts)).collect()
}

#[test]
fn nothing_is_found_where_nothing_is_wrong_or_nothing_is_known() {
    assert_eq!(found(&Mesh::default()), []);
    assert_eq!(found(&mesh(3, |_, _, _| PathStats::default())), []);
    assert_eq!(found(&mesh(3, |_, _, _| stats(0, FINE))), []);
    // A host far away is not slow.
    assert_eq!(
        found(&mesh(4, |from, to, _| stats(0, [if from + to < 4 { 10 } else { 900 }, 20, 30]))),
        []
    );
}

#[test]
fn two_hosts_alone_are_a_pair_or_a_path() {
    let both = mesh(2, |_, _, _| stats(10, FINE));
    assert_eq!(found(&both), [(Fault::Pair, Symptom::Loss, vec![0, 1])]);
    let one_port = mesh(2, |_, _, port| stats(if port == 0xc001 { 30 } else { 0 }, FINE));
    let findings = diagnose(&one_port, &Thresholds::default());
    assert_eq!((findings.len(), findings[0].fault), (1, Fault::Path));
    assert!(findings[0].describe(&one_port).contains("49153"), "{findings:?}");
}

#[test]
fn host_that_answers_none_and_is_answered_is_unresponsive() {
    let deaf = mesh(4, |_, to, _| stats(if to == 2 { 100 } else { 0 }, FINE));
    assert_eq!(found(&deaf), [(Fault::Unresponsive, Symptom::Loss, vec![2])]);
    let blind = mesh(4, |from, _, _| stats(if from == 1 { 40 } else { 0 }, FINE));
    assert_eq!(found(&blind), [(Fault::Unresponsive, Symptom::Loss, vec![1])]);
    let gone = mesh(4, |from, to, _| stats(if from == 3 || to == 3 { 100 } else { 0 }, FINE));
    assert_eq!(found(&gone), [(Fault::Nic, Symptom::Loss, vec![3])]);
}

#[test]
fn two_bad_hosts_are_both_named() {
    let is_bad = |host| host == 1 || host == 4;
    let two = mesh(6, |from, to, _| stats(if is_bad(from) || is_bad(to) { 20 } else { 0 }, FINE));
    let mut hosts: Vec<_> =
        found(&two).into_iter().map(|(fault, _, hosts)| (fault, hosts)).collect();
    hosts.sort();
    assert_eq!(hosts, [(Fault::Nic, vec![1]), (Fault::Nic, vec![4])]);
}

#[test]
fn slow_host_is_named_by_either_role() {
    let answers = mesh(3, |_, to, _| stats(0, [10, 20, if to == 1 { 900 } else { 30 }]));
    assert_eq!(found(&answers), [(Fault::Host, Symptom::Latency, vec![1])]);
    let probes = mesh(3, |from, _, _| stats(0, [10, if from == 2 { 900 } else { 20 }, 30]));
    assert_eq!(found(&probes), [(Fault::Host, Symptom::Latency, vec![2])]);
}

#[test]
fn slow_path_is_named_by_its_port() {
    let slow = mesh(3, |from, to, port| {
        stats(0, [if (from, to, port) == (0, 1, 0xc002) { 200 } else { 10 }, 20, 30])
    });
    let findings = diagnose(&slow, &Thresholds::default());
    assert_eq!((findings.len(), findings[0].fault), (1, Fault::Path));
    assert_eq!((findings[0].symptom, findings[0].paths.len()), (Symptom::Latency, 1));
    let words = findings[0].describe(&slow);
    assert!(words.contains("host0 to host1 port 49154"), "{words}");
}
