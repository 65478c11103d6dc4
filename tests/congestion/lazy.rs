//! Lazy timers against eager ones: a controller that is told the time at each of its deadlines, and
//! between them, is in the same state as one that is told only of events.

use std::time::Duration;

use roce::engine::congestion::{AckSample, Congestion, Controller, FlowInfo, Loss, Profile};
use roce::time::Instant;

use crate::{Dice, seeds_asked};

/// Choices with short periods, so that many timers run between two events.
const CHOICES: &[(Profile, &str)] = &[
    (Profile::Paper, "dcqcn"),
    (Profile::Paper, "dcqcn:rp_time_reset=20,rp_byte_reset=500,rp_threshold=2,rp_ai_rate=300"),
    (Profile::Paper, "dcqcn:rp_dce_tcp_rtt=13,rp_dce_tcp_g=900,rp_min_rate=1,rp_hai_rate=5000"),
    (Profile::Nvidia, "dcqcn"),
    (Profile::Nvidia, "dcqcn:rp_time_reset=20,rp_byte_reset=500,rp_ai_rate=300,rp_threshold=3"),
    (Profile::Nvidia, "dcqcn:rp_clamp_tgt_rate=1,rp_rate_reduce_monitor_period=9,rp_hai_rate=900"),
    (Profile::Nvidia, "dcqcn:rp_clamp_tgt_rate_ati=0,rp_dce_tcp_rtt=7,rp_dce_tcp_g=800"),
    (Profile::Paper, "timely"),
    (Profile::Paper, "swift"),
];

/// One event for both.
fn event(dice: &mut Dice, now: Instant, to: [&mut Box<dyn Controller>; 2]) {
    let (kind, value) = (dice.below(8), dice.next());
    for controller in to {
        match kind {
            0..3 => controller.on_cnp(now),
            3..6 => controller.on_sent(now, (value % 70_000) as u32),
            6 => {
                let rtt = Some(Duration::from_nanos(value % 1_000_000));
                let ack = AckSample { packets: 1, bytes: 1000, rtt, ..AckSample::default() };
                controller.on_ack(now, &ack);
            }
            _ => controller.on_loss(now, if value % 2 == 0 { Loss::Nak } else { Loss::Timeout }),
        }
    }
}

/// Tells a controller the time at its deadlines until `end`, and at others.
fn run_eagerly(controller: &mut dyn Controller, dice: &mut Dice, from: Instant, end: Instant) {
    let mut now = from;
    for _ in 0..200 {
        let random = now.saturating_add(Duration::from_nanos(dice.below(50_000)));
        let next = controller.deadline().map_or(random, |deadline| deadline.min(random));
        if next >= end {
            break;
        }
        now = now.max(next);
        controller.advance(now);
    }
}

fn schedule(seed: u64) {
    let mut dice = Dice::new(seed + 1);
    let (profile, text) = CHOICES[(seed % CHOICES.len() as u64) as usize];
    let line_rate = [1_000_000_000, 25_000_000_000, 100_000_000_000][dice.below(3) as usize];
    let info = FlowInfo { line_rate, packet: 1090 };
    let congestion = Congestion::parse(text, profile).unwrap();
    let start = || congestion.start(Instant::ZERO, &info).unwrap();
    let (mut lazy, mut eager, mut now) = (start(), start(), Instant::ZERO);
    for _ in 0..12 {
        let silence = [2_000, 60_000, 400_000, 3_000_000][dice.below(4) as usize];
        let next = now.saturating_add(Duration::from_nanos(dice.below(silence)));
        run_eagerly(&mut *eager, &mut dice, now, next);
        now = next;
        event(&mut dice, now, [&mut lazy, &mut eager]);
        if dice.below(3) == 0 {
            assert_eq!(lazy.advance(now), eager.advance(now), "seed {seed}: {text}");
        }
    }
    let end = now.saturating_add(Duration::from_nanos(dice.below(10_000_000)));
    run_eagerly(&mut *eager, &mut dice, now, end);
    assert_eq!(lazy.advance(end), eager.advance(end), "seed {seed}: {text}");
    assert_eq!(lazy.state(), eager.state(), "seed {seed}: {text}");
    assert_eq!(lazy.is_at_rest(), eager.is_at_rest(), "seed {seed}: {text}");
    assert_eq!(lazy.deadline(), eager.deadline(), "seed {seed}: {text}");
}

#[test]
fn lazy_timers_are_as_eager_ones() {
    (0..seeds_asked().unwrap_or(2_000)).for_each(schedule);
}

/// The deadline is the only time at which an allowance changes by itself.
#[test]
fn the_allowance_changes_at_deadlines_only() {
    for seed in 0..seeds_asked().unwrap_or(200).min(10_000) {
        let mut dice = Dice::new(seed + 77);
        let (profile, text) = CHOICES[(seed % 7) as usize];
        let info = FlowInfo { line_rate: 25_000_000_000, packet: 1090 };
        let congestion = Congestion::parse(text, profile).unwrap();
        let mut controller = congestion.start(Instant::ZERO, &info).unwrap();
        let mut now = Instant::ZERO;
        for _ in 0..3 {
            now = now.saturating_add(Duration::from_nanos(dice.below(30_000)));
            controller.on_cnp(now);
        }
        for _ in 0..200 {
            let before = controller.advance(now);
            let Some(deadline) = controller.deadline() else { break };
            assert!(deadline > now, "seed {seed}: a deadline is later");
            now = now.saturating_add(Duration::from_nanos(dice.below(20_000)));
            if now < deadline {
                assert_eq!(controller.advance(now), before, "seed {seed}: {text}");
            }
        }
    }
}
