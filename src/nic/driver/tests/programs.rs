//! Programs of several kinds: how long they wait, and how often they are disturbed.

use std::time::Duration;

use super::super::*;
use super::world::{Op, World};

const MICROSECOND: Duration = Duration::from_micros(1);

#[test]
fn idle_nic_never_wakes() {
    let mut world = World::new();
    let wakes = world.wakes;
    world.pass(Duration::from_secs(10), false);
    assert_eq!(world.wakes, wakes);
}

#[test]
fn busy_poller_is_rarely_disturbed_and_served_by_itself() {
    let mut world = World::new();
    for turn in 0..200_000 {
        if turn % 10 == 0 {
            world.run(Op::Packet);
        }
        world.run(Op::Poll);
        world.pass(5 * MICROSECOND, true);
    }
    // A second: every 4 ms, and a little more often in the beginning.
    assert!(world.wakes < 400, "{}", world.wakes);
    assert!(world.waited_max <= 15 * MICROSECOND, "{:?}", world.waited_max);
}

#[test]
fn program_that_polls_and_then_reads_memory_is_served_within_a_courtesy() {
    let mut world = World::new();
    for turn in 0..2000 {
        // It posts a WRITE, polls for its completion, and then reads memory until the peer's WRITE
        // has arrived.
        world.run(Op::Post);
        for _ in 0..30 {
            world.run(Op::Poll);
            world.pass(MICROSECOND, true);
        }
        world.run(Op::Packet);
        world.run(Op::Poll);
        if turn == 100 {
            world.waited_max = Duration::ZERO;
        }
        world.pass(20 * MICROSECOND, true);
        world.run(Op::Packet);
        world.pass(300 * MICROSECOND, true);
    }
    assert!(world.waited_max <= 2 * COURTESY + 20 * MICROSECOND, "{:?}", world.waited_max);
}

#[test]
fn program_that_sleeps_for_events_is_served_at_once() {
    let mut world = World::new();
    for _ in 0..2000 {
        world.run(Op::Post);
        world.run(Op::Poll);
        world.run(Op::Arm);
        world.run(Op::Poll);
        world.pass(10 * MICROSECOND, false);
        world.run(Op::Packet);
        world.pass(10 * MICROSECOND, false);
    }
    assert_eq!(world.waited_max, Duration::ZERO);
}

/// Whatever a program does, packets, posted requests and timers wait for a bounded time.
#[test]
fn nothing_waits_longer_than_promised() {
    for seed in 1..=60_u64 {
        let mut state = seed;
        let mut random = |below: u64| {
            // Knuth's linear congruential generator: any will do.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut world = World::new();
        for _ in 0..40 {
            let (polls, pause) = (random(4) * random(200), random(3) * random(8000));
            let with_packets = random(2) == 0;
            for poll in 0..polls {
                if with_packets && poll % 7 == 0 {
                    world.run([Op::Packet, Op::QuietPacket][usize::from(random(4) == 0)]);
                }
                world.run(Op::Poll);
                world.pass(Duration::from_nanos(random(30_000)), random(3) > 0);
            }
            match random(3) {
                0 => world.run(Op::Post),
                1 => world.run(Op::Arm),
                _ => {}
            }
            world.pass(Duration::from_micros(random(100)), random(2) > 0);
            world.run(Op::Packet);
            world.pass(Duration::from_micros(pause), random(2) > 0);
        }
        assert!(world.waited_max <= UNATTENDED_MAX, "seed {seed}: {:?}", world.waited_max);
        world.assert_nothing_is_forgotten();
    }
}
