//! Every order in which steps of the program, the network and the progress thread can come.

use std::collections::HashSet;
use std::time::Duration;

use super::super::*;
use super::world::{Op, World};

const OPS: [Op; 5] = [Op::Post, Op::Poll, Op::Arm, Op::Packet, Op::QuietPacket];

/// A program polls often enough for the progress thread to leave the NIC to it.
fn busy_polled() -> World {
    let mut world = World::new();
    for _ in 0..3 * STEADY {
        world.run(Op::Poll);
        world.pass(Duration::from_micros(2), true);
    }
    assert!(world.is_left_to_poller());
    world
}

/// A program that polls, and once let packets wait.
fn assisted() -> World {
    let mut world = busy_polled();
    while !world.is_assisting() {
        world.run(Op::Packet);
        world.pass(Duration::from_micros(700), true);
        for _ in 0..2 * STEADY {
            world.run(Op::Poll);
            world.pass(Duration::from_micros(2), true);
        }
    }
    world
}

/// Worlds that differ in what the progress thread is about to do.
fn worlds() -> Vec<World> {
    let mut polled_before = World::new();
    for _ in 0..STEADY - 1 {
        polled_before.run(Op::Poll);
    }
    // The progress thread got no core for so long after it was woken that it took the poller for
    // gone.
    let mut late = polled_before.clone();
    late.run(Op::Poll);
    late.stall(Duration::from_millis(2));
    late.run_thread();
    let mut listening = busy_polled();
    listening.pass(Duration::from_micros(700), true);
    let mut awake = World::new();
    awake.run(Op::Packet);
    vec![World::new(), polled_before, late, busy_polled(), listening, assisted(), awake]
}

/// Maximum number of times that the progress thread wakes while the operations go on.
const WAKES: u64 = 4;

/// Runs the operations in every order of their steps with those of the progress thread, for which
/// time may pass at any point. Afterwards the program does nothing any more.
fn explore(world: World, ops: &[Op], seen: &mut HashSet<(World, usize)>) {
    let wakes_max = world.wakes + WAKES;
    let mut todo = vec![(world, 0)];
    while let Some((world, done)) = todo.pop() {
        if !seen.insert((world.clone(), done)) {
            continue;
        }
        if !world.is_program_done() {
            let mut next = world.clone();
            next.step_program();
            todo.push((next, done));
        } else if let Some(op) = ops.get(done) {
            let mut next = world.clone();
            next.begin(*op);
            todo.push((next, done + 1));
        } else {
            if ops.last() == Some(&Op::Arm) {
                world.clone().assert_packet_is_received_at_once();
            }
            world.assert_nothing_is_forgotten();
            continue;
        }
        let mut next = world;
        if next.wakes < wakes_max && next.pass_until_awake() {
            next.step_thread();
            todo.push((next, done));
        }
    }
}

#[test]
fn nothing_is_forgotten_whatever_comes_between() {
    let mut states = 0;
    for world in worlds() {
        for first in OPS {
            for second in OPS {
                let mut seen = HashSet::new();
                explore(world.clone(), &[first, second], &mut seen);
                states += seen.len();
            }
        }
    }
    assert!(states > 10_000, "{states}");
}

/// The sequences in which wake-ups were once lost, or would be.
#[test]
fn nothing_is_forgotten_in_longer_sequences() {
    for world in worlds() {
        for ops in [
            // A poller receives, defers its responses, and stops.
            [Op::Packet, Op::Poll, Op::Post],
            // It posts, and waits for an event instead of polling.
            [Op::Poll, Op::Post, Op::Arm],
            // It requests an event, and what it waits for comes.
            [Op::Poll, Op::Arm, Op::Packet],
            // A packet that a poller receives starts a timer.
            [Op::QuietPacket, Op::Poll, Op::Arm],
        ] {
            explore(world.clone(), &ops, &mut HashSet::new());
        }
    }
}
