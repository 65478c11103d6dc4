//! Tests of the prober.

use std::net::Ipv4Addr;

use super::*;

fn gid(host: u8) -> Gid {
    Gid::from(Ipv4Addr::new(192, 0, 2, host))
}

fn ms(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn config() -> ProberConfig {
    ProberConfig::new(0xabcd).interval(Duration::from_millis(10)).timeout(Duration::from_millis(5))
}

fn ack(id: ProbeId) -> Bytes {
    Packet::Ack { id, instance: 1 }.to_bytes()
}

fn timing(id: ProbeId, instance: u64) -> Bytes {
    Packet::Timing { id, instance, delay: Duration::from_micros(100) }.to_bytes()
}

fn endings(prober: &mut Prober) -> Vec<(u64, Ending)> {
    let events = std::iter::from_fn(|| prober.poll_event());
    let ended = events.filter_map(|event| match event {
        Event::Ended { number, ending, .. } => Some((number, ending)),
        _ => None,
    });
    ended.collect()
}

#[test]
fn probes_are_paced_and_take_paths_in_turn() {
    let mut prober = Prober::new(config().paths(3).count(4), &[gid(1), gid(2)], ms(0));
    let mut sent = Vec::new();
    while let Some(at) = prober.poll_timeout() {
        while let Some(probe) = prober.poll_transmit(at) {
            sent.push((at, probe.target, probe.path, probe.id.flow_label.get()));
        }
        prober.handle_timeout(at);
    }
    let first: Vec<_> = sent.iter().filter(|(_, target, ..)| *target == 0).collect();
    assert_eq!(first.len(), 4);
    assert_eq!(first.iter().map(|it| it.0).collect::<Vec<_>>(), [0, 10, 20, 30].map(ms));
    assert_eq!(
        first.iter().map(|it| (it.2, it.3)).collect::<Vec<_>>(),
        [(0, 1), (1, 2), (2, 3), (0, 1)]
    );
    let second: Vec<_> = sent.iter().filter(|it| it.1 == 1).map(|it| it.0).collect();
    assert_eq!(second, [5, 15, 25, 35].map(ms), "spread over the interval");
    assert_eq!(endings(&mut prober).len(), 8);
    assert!(prober.is_done());
}

#[test]
fn stamps_are_whole_in_any_order_of_completions() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        let mut prober = Prober::new(config(), &[gid(1)], ms(0));
        let id = prober.poll_transmit(ms(0)).unwrap().id;
        for step in order {
            assert_eq!(prober.poll_event(), None);
            match step {
                0 => prober.handle_sent(id, ms(1001)),
                1 => prober.handle_packet(gid(1), &ack(id), ms(1003), ms(4)),
                _ => prober.handle_packet(gid(1), &timing(id, 1), ms(1004), ms(5)),
            }
        }
        let stamps = Stamps {
            posted: ms(0),
            sent: ms(1001),
            received: ms(1003),
            processed: ms(4),
            responder: Duration::from_micros(100),
        };
        assert_eq!(endings(&mut prober), [(0, Ending::Answered(stamps))]);
    }
}

#[test]
fn what_is_missing_at_the_timeout_decides() {
    let mut prober = Prober::new(config(), &[gid(1)], ms(0));
    let ids: Vec<ProbeId> = (0..4).map(|n| prober.poll_transmit(ms(n * 10)).unwrap().id).collect();
    prober.handle_packet(gid(1), &ack(ids[1]), ms(11), ms(12));
    prober.handle_packet(gid(1), &timing(ids[2], 1), ms(21), ms(22));
    prober.handle_not_sent(ids[3]);
    prober.handle_timeout(ms(100));
    assert_eq!(
        endings(&mut prober),
        [
            (3, Ending::NotSent),
            (0, Ending::Lost { reached: false }),
            (1, Ending::Untimed { total: Duration::from_millis(2) }),
            (2, Ending::Lost { reached: true }),
        ]
    );
}

#[test]
fn late_and_duplicate_answers_are_told_apart() {
    let mut prober = Prober::new(config().count(1), &[gid(1)], ms(0));
    let id = prober.poll_transmit(ms(0)).unwrap().id;
    prober.handle_sent(id, ms(0));
    prober.handle_timeout(ms(5));
    assert_eq!(endings(&mut prober), [(0, Ending::Lost { reached: false })]);
    prober.handle_packet(gid(1), &ack(id), ms(6), ms(6));
    assert_eq!(prober.poll_event(), Some(Event::Late { target: 0, path: 0, number: 0 }));
    prober.handle_packet(gid(1), &timing(id, 1), ms(6), ms(6));
    prober.handle_packet(gid(1), &ack(id), ms(7), ms(7));
    assert_eq!(prober.poll_event(), None, "it ended once");
    // Much later it is forgotten.
    prober.handle_timeout(ms(1000));
    prober.handle_packet(gid(1), &ack(id), ms(1001), ms(1001));
    let counters = *prober.counters();
    assert_eq!((counters.late, counters.duplicates, counters.unknown), (1, 1, 1));
}

#[test]
fn duplicate_does_not_change_the_time_of_the_first() {
    let mut prober = Prober::new(config().count(1), &[gid(1)], ms(0));
    let id = prober.poll_transmit(ms(0)).unwrap().id;
    prober.handle_sent(id, ms(0));
    prober.handle_packet(gid(1), &ack(id), ms(1), ms(1));
    prober.handle_packet(gid(1), &ack(id), ms(3), ms(3));
    prober.handle_packet(gid(1), &timing(id, 1), ms(3), ms(3));
    let [(0, Ending::Answered(stamps))] = endings(&mut prober)[..] else { panic!() };
    assert_eq!((stamps.received, stamps.processed), (ms(1), ms(1)));
    assert_eq!(prober.counters().duplicates, 1);
}

#[test]
fn foreign_packets_end_no_probe_and_are_counted() {
    let mut prober = Prober::new(config(), &[gid(1)], ms(0));
    let id = prober.poll_transmit(ms(0)).unwrap().id;
    let other = ProbeId { session: 1, ..id };
    let never = ProbeId { sequence: id.sequence.wrapping_sub(1), ..id };
    prober.handle_packet(gid(1), b"garbage", ms(1), ms(1));
    prober.handle_packet(gid(1), &Packet::Probe(id).to_bytes(), ms(1), ms(1));
    prober.handle_packet(gid(1), &ack(other), ms(1), ms(1));
    prober.handle_packet(gid(1), &ack(never), ms(1), ms(1));
    prober.handle_packet(gid(9), &ack(id), ms(1), ms(1));
    assert_eq!(prober.poll_event(), None);
    let expected = ProberCounters {
        malformed: 2,
        other_session: 1,
        unknown: 1,
        wrong_source: 1,
        ..ProberCounters::default()
    };
    assert_eq!(*prober.counters(), expected);
}

#[test]
fn restart_of_the_responder_is_told_once() {
    let mut prober = Prober::new(config(), &[gid(1)], ms(0));
    for (n, instance) in [5, 5, 6, 6].into_iter().enumerate() {
        let now = ms(n as u64 * 10);
        let id = prober.poll_transmit(now).unwrap().id;
        prober.handle_sent(id, now);
        prober.handle_packet(gid(1), &Packet::Ack { id, instance }.to_bytes(), now, now);
        prober.handle_packet(gid(1), &timing(id, instance), now, now);
    }
    let events: Vec<Event> = std::iter::from_fn(|| prober.poll_event()).collect();
    let restarts = events.iter().filter(|it| matches!(it, Event::Restarted { target: 0 }));
    assert_eq!((restarts.count(), events.len()), (1, 5));
}

#[test]
fn memory_is_bounded_and_every_probe_ends_once() {
    let fast = config().interval(INTERVAL_MIN).timeout(TIMEOUT_MAX);
    let mut prober = Prober::new(fast, &[gid(1)], ms(0));
    let mut now = ms(0);
    let sent = PROBES_MAX as u64 + 1000;
    for _ in 0..sent {
        prober.poll_transmit(now).unwrap();
        now = now.saturating_add(INTERVAL_MIN);
    }
    assert_eq!(prober.probes.len(), PROBES_MAX);
    assert_eq!(endings(&mut prober).len(), 1000);
    prober.stop();
    prober.handle_timeout(now.saturating_add(TIMEOUT_MAX));
    assert_eq!(endings(&mut prober).len(), PROBES_MAX);
    assert!(prober.is_done() && prober.poll_timeout().is_none());
}

#[test]
fn pause_of_the_program_causes_no_burst() {
    let mut prober = Prober::new(config(), &[gid(1)], ms(0));
    assert!(prober.poll_transmit(ms(0)).is_some());
    assert!(prober.poll_transmit(ms(1000)).is_some());
    assert!(prober.poll_transmit(ms(1000)).is_none());
    assert!(prober.poll_transmit(ms(1010)).is_some());
}
