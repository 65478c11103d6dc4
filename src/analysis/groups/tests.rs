//! Fleets in which something is bad, and fleets in which nothing stands out.

use core::net::Ipv4Addr;

use super::*;

/// Hosts of a fleet.
const HOSTS: u8 = 20;

fn gid(last: u8) -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, last))
}

/// A connection from one host to another, with losses or without.
fn unit(hosts: [u8; 2], dscp: u8, is_affected: bool) -> Unit {
    let kinds = if is_affected { KindSet::of(FindingKind::Loss) } else { KindSet::default() };
    Unit {
        flow: Some(FlowNumber(1)),
        hosts: hosts.map(gid),
        requests: [true, false],
        dscp: Some(dscp),
        kinds: [kinds, KindSet::default()],
    }
}

/// A connection from each host to each other one; `is_affected` is told the hosts and a number.
fn fleet(is_affected: impl Fn([u8; 2], u32) -> bool) -> Vec<Unit> {
    let hosts = || 1..=HOSTS;
    let pairs = hosts().flat_map(|a| hosts().map(move |b| [a, b])).filter(|[a, b]| a != b);
    (0..).zip(pairs).map(|(number, pair)| unit(pair, 26, is_affected(pair, number))).collect()
}

fn outstanding(units: &[Unit]) -> Vec<Subject> {
    Groups::of_units(units).outstanding.iter().map(|group| group.subject).collect()
}

#[test]
fn bad_host_is_named_and_its_peers_are_not() {
    let units = fleet(|pair, number| pair.contains(&7) && number % 10 > 0);
    let groups = Groups::of_units(&units);
    let [group] = groups.outstanding.as_slice() else { panic!("{groups:?}") };
    assert_eq!(group.subject, Subject::Host { host: gid(7) });
    let [share] = group.shares.as_slice() else { panic!("{group:?}") };
    assert_eq!((share.connections, share.rest_affected, share.rest_connections), (38, 0, 342));
    assert!(share.affected > 30, "{share:?}");
    assert_eq!(group.subject.text(), "host 192.0.2.7");
    assert!(group.text().ends_with("none of the 342 elsewhere"), "{}", group.text());
}

#[test]
fn bad_path_is_named_and_its_hosts_are_not() {
    let mut units = fleet(|_, _| false);
    let path = || [[3, 9], [9, 3]].into_iter().cycle().take(12);
    units.extend(path().map(|hosts| unit(hosts, 26, true)));
    assert_eq!(outstanding(&units), [Subject::path(gid(9), gid(3))]);
}

#[test]
fn bad_direction_is_told_from_its_path() {
    let mut units = fleet(|_, _| false);
    units.extend((0..12).map(|_| unit([3, 9], 26, true)));
    units.extend((0..12).map(|_| unit([9, 3], 26, false)));
    assert_eq!(outstanding(&units), [Subject::Direction { hosts: [gid(3), gid(9)] }]);
}

#[test]
fn bad_host_and_bad_path_are_both_named() {
    let mut units = fleet(|pair, number| pair.contains(&7) || number % 97 == 0);
    units.extend((0..12).map(|_| unit([3, 9], 26, true)));
    assert_eq!(
        outstanding(&units),
        [Subject::Host { host: gid(7) }, Subject::path(gid(3), gid(9))]
    );
}

#[test]
fn bad_priority_is_named() {
    let mut units = fleet(|_, _| false);
    units.extend((1..HOSTS).map(|host| unit([host, host + 1], 46, true)));
    assert_eq!(outstanding(&units), [Subject::Dscp { dscp: 46 }]);
}

#[test]
fn nothing_stands_out_where_all_hosts_are_alike() {
    // None, all, and every n-th: whatever hosts this falls on by chance.
    assert_eq!(outstanding(&fleet(|_, _| false)), []);
    assert_eq!(outstanding(&fleet(|_, _| true)), []);
    for every in 2..60 {
        let scattered = |number: u32| number.wrapping_mul(0x9e37_79b1) >> 8;
        let units = fleet(|_, number| scattered(number).is_multiple_of(every));
        assert_eq!(outstanding(&units), [], "one of {every}");
        let groups = Groups::of_units(&units);
        let summary = groups.kinds.first().unwrap();
        assert_eq!(summary.affected, summary.unexplained);
        assert!(summary.text().ends_with("stands out"), "{}", summary.text());
    }
}

#[test]
fn a_few_connections_are_not_enough() {
    let affected = |number: u32| number < u32::try_from(rule::AFFECTED_MIN).unwrap() - 1;
    let units: Vec<_> = (0..100).map(|number| unit([1, 2], 26, affected(number))).collect();
    assert_eq!(outstanding(&units), []);
}

#[test]
fn kinds_by_which_a_host_stands_out_are_told_together() {
    let mut units = fleet(|pair, _| pair.contains(&7));
    for unit in units.iter_mut().filter(|unit| unit.has(FindingKind::Loss)) {
        unit.kinds[0] = unit.kinds[0].union(KindSet::of(FindingKind::RetryLimit));
    }
    let groups = Groups::of_units(&units);
    let [group] = groups.outstanding.as_slice() else { panic!("{groups:?}") };
    let kinds: Vec<_> = group.shares.iter().map(|share| share.kind).collect();
    assert_eq!(kinds, [FindingKind::RetryLimit, FindingKind::Loss]);
}

#[test]
fn percentages_do_not_round_a_part_to_all_or_nothing() {
    use super::words::percent;
    let texts = [(0, 9), (1, 10_000), (2, 1000), (996, 1000), (7, 7)].map(|(a, b)| percent(a, b));
    assert_eq!(texts, ["0 %", "under 0.1 %", "0.2 %", "99 %", "100 %"]);
}
