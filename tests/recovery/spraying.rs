//! Packets that are sprayed over several paths of different delays.

use std::time::Duration;

use roce::engine::{Config, Counter, ReceiveMode, ReorderThreshold};

use super::line::{Line, Work, selective};

fn sprayed(config: &mut Config) {
    selective(config);
    config.receive = ReceiveMode::Place;
    config.paths = 8;
    config.pin_source_port = false;
    config.reorder = ReorderThreshold { packets: 16, time: Duration::from_micros(50) };
}

#[test]
fn reordering_below_the_threshold_is_no_loss() {
    for work in [Work::Write, Work::Read] {
        let mut line = Line::new([&sprayed, &sprayed], true);
        // The slowest path is 2.1 µs, that is six packets, slower than the fastest.
        line.skew = Duration::from_nanos(300);
        let share = line.stream(work, 200);
        assert!(share > 0.95, "{work:?}: {share}");
        let side = usize::from(work == Work::Write);
        assert!(line.counter(side, Counter::Reordered) > 100, "{work:?}");
        assert_eq!(line.sacks(0) + line.sacks(1), 0, "{work:?}");
        assert_eq!(line.counter(0, Counter::Retransmitted), 0, "{work:?}");
    }
}

#[test]
fn paths_carry_the_same_load() {
    let mut line = Line::new([&sprayed, &sprayed], true);
    line.stream(Work::Write, 200);
    let ports = &line.sides[0].ports;
    let packets: usize = ports.values().sum();
    let most = *ports.values().max().unwrap();
    assert_eq!(ports.len(), 8);
    assert!((most * 8) as f64 / (packets as f64) < 1.02, "{ports:?}");
}

#[test]
fn packets_to_a_peer_that_drops_early_ones_take_one_path() {
    let in_order = |config: &mut Config| {
        config.paths = 8;
        config.reorder = ReorderThreshold::SPRAYED;
    };
    let mut line = Line::new([&in_order, &in_order], false);
    for side in &mut line.sides {
        assert!(side.engine.agree_spraying(side.qp, true), "as it is configured");
        assert!(!side.engine.agree_spraying(side.qp, false));
    }
    line.skew = Duration::from_nanos(300);
    let share = line.stream(Work::Write, 50);
    assert_eq!(line.sides[0].ports.len(), 1);
    assert!(share > 0.95, "{share}");
    assert_eq!([0, 1].map(|side| line.counter(side, Counter::WrongPort)), [0, 0]);
}

#[test]
fn loss_is_found_among_reordered_packets() {
    for work in [Work::Write, Work::Read] {
        let mut line = Line::new([&sprayed, &sprayed], true);
        line.skew = Duration::from_nanos(300);
        line.loss = 2_000_000;
        let share = line.stream(work, 300);
        assert!(share > 0.93, "{work:?}: {share}");
        assert!(line.counter(0, Counter::Retransmitted) > 10, "{work:?}");
    }
}
