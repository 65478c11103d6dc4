//! Small meshes, in which little can be compared.

use super::*;
use crate::ping::sample::{Ending, Stamps};
use crate::time::Instant;

/// A mesh of hosts that all probe each other on two paths, 100 times; `stats` says what
/// became of it.
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

/// Returns statistics with `lost` losses, and all other probes after these microseconds of
/// network, prober and responder.
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

#[test]
fn bad_path_of_one_pair_names_the_pair() {
    let bad = |from, to, port| from + to == 3 && from != 0 && to != 0 && port == 0xc001;
    let slow =
        mesh(4, |from, to, port| stats(0, if bad(from, to, port) { [900, 20, 30] } else { FINE }));
    let lossy = mesh(4, |from, to, port| stats(if bad(from, to, port) { 30 } else { 0 }, FINE));
    for mesh in [slow, lossy] {
        let findings = diagnose(&mesh, &Thresholds::default());
        let [finding] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!((finding.fault, &finding.hosts[..]), (Fault::Path, &[1, 2][..]));
        let words = finding.describe(&mesh);
        assert!(words.starts_with("bad path between host1 and host2: "), "{words}");
        assert!(words.contains("between 1 pair of hosts"), "{words}");
    }
}

/// A mesh in which the network takes longer with one host, whatever the peer and the path.
fn one_is_slow(hosts: usize, slow: usize) -> Mesh {
    mesh(hosts, |from, to, _| {
        stats(0, if from == slow || to == slow { [900, 20, 30] } else { FINE })
    })
}

#[test]
fn host_that_is_slow_in_all_directions_is_compared_with_its_rack() {
    let mut slow = one_is_slow(5, 3);
    // It may be far away, as long as nothing is known of racks.
    assert_eq!(found(&slow), []);
    slow.racks = vec![Some("a".to_owned()); 5];
    assert_eq!(found(&slow), [(Fault::Nic, Symptom::Latency, vec![3])]);
    let findings = diagnose(&slow, &Thresholds::default());
    let words = findings[0].describe(&slow);
    assert!(words.contains("the rest of its rack, a (medians; 4 of 4 peers see it)"), "{words}");
    // Alone in its rack, it is as far away as its rack.
    slow.racks[3] = Some("b".to_owned());
    assert_eq!(found(&slow), []);
    let mut fine = mesh(5, |_, _, _| stats(0, FINE));
    fine.racks = vec![Some("a".to_owned()); 5];
    assert_eq!(found(&fine), []);
    // Two of three hosts of a rack, with which it can be compared.
    let mut three = one_is_slow(3, 0);
    three.racks = vec![Some("a".to_owned()); 3];
    assert_eq!(found(&three), [(Fault::Nic, Symptom::Latency, vec![0])]);
}

#[test]
fn host_that_is_slow_in_all_directions_is_compared_with_earlier_rounds() {
    let usual = mesh(5, |_, _, _| stats(0, FINE)).times_of_pairs(&Thresholds::default());
    assert_eq!(usual.len(), 10);
    let slow = Mesh { usual: usual.clone(), ..one_is_slow(5, 3) };
    assert_eq!(found(&slow), [(Fault::Nic, Symptom::Latency, vec![3])]);
    // It has always been so.
    let far = one_is_slow(5, 3).times_of_pairs(&Thresholds::default());
    assert_eq!(found(&Mesh { usual: far, ..one_is_slow(5, 3) }), []);
    // Where everything has become slow, no host is to blame.
    let all = Mesh { usual: usual.clone(), ..mesh(5, |_, _, _| stats(0, [900, 20, 30])) };
    assert_eq!(found(&all), [(Fault::Network, Symptom::Latency, vec![])]);
    let words = diagnose(&all, &Thresholds::default())[0].describe(&all);
    assert!(words.starts_with("slow network: ") && words.contains("10 of 10 pairs"), "{words}");
    // Nothing of this is known of two hosts.
    let two = mesh(2, |_, _, _| stats(0, FINE)).times_of_pairs(&Thresholds::default());
    assert_eq!(found(&Mesh { usual: two, ..one_is_slow(2, 1) }), []);
}

fn failed(from: usize, to: usize) -> Failed {
    Failed { from, to, reason: "no answer".to_owned() }
}

#[test]
fn dead_host_is_named_once() {
    let mut dead = mesh(5, |_, _, _| stats(0, FINE));
    dead.cells.retain(|cell| !cell.has(4));
    dead.silent = vec![(4, "nothing came in time".to_owned())];
    dead.failed = (0..4).map(|from| failed(from, 4)).collect();
    let findings = diagnose(&dead, &Thresholds::default());
    let words: Vec<String> = findings.iter().map(|it| it.describe(&dead)).collect();
    let expected = "dead host host4: it did not probe: nothing came in time; 4 of 4 hosts could not \
                    probe it either";
    assert_eq!(words, [expected]);
    assert_eq!(findings[0].symptom, Symptom::Silence);
}

#[test]
fn unreachable_hosts_are_told_from_those_that_reach_none() {
    let mut some = mesh(4, |_, _, _| stats(0, FINE));
    some.cells.retain(|cell| !(cell.from < 2 && cell.to == 3));
    some.failed = vec![failed(0, 3), failed(1, 3)];
    assert_eq!(found(&some), [(Fault::Unreachable, Symptom::Silence, vec![3])]);
    let words = diagnose(&some, &Thresholds::default())[0].describe(&some);
    assert!(words.contains("host0 and host1, of 3 that tried, could not probe it"), "{words}");
    let mut blind = mesh(4, |_, _, _| stats(0, FINE));
    blind.cells.retain(|cell| cell.from != 0);
    blind.failed = (1..4).map(|to| failed(0, to)).collect();
    assert_eq!(found(&blind), [(Fault::Unreachable, Symptom::Silence, vec![0])]);
}
