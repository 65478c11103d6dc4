//! Players: when what is sent.

use std::time::Duration;

use super::scripts;
use crate::replay::live::*;
use crate::time::Instant;

fn options(speed: Speed, wait: Loop) -> PlayOptions {
    PlayOptions { speed, wait, timeout: Duration::from_millis(100), rounds: 1 }
}

fn script() -> Script {
    scripts()[0].clone()
}

#[test]
fn open_loop_sends_everything_at_once_if_it_is_to_be_fast() {
    let script = script();
    let mut player = Player::new(&script, options(Speed::Max, Loop::Open));
    let now = Instant::from_nanos(5);
    let requests = script.requests().count();
    for _ in 0..requests {
        assert!(matches!(player.poll(now, 0), Next::Send { round: 0, .. }));
    }
    // The last answers are waited for.
    let until = now.saturating_add(Duration::from_millis(100));
    assert_eq!(player.poll(now, 0), Next::Wait(until));
    assert_eq!(player.poll(until, 0), Next::Done);
    assert_eq!(player.timeouts(), 1);
}

#[test]
fn closed_loop_waits_for_the_answers_that_the_capture_has() {
    let script = script();
    let mut player = Player::new(&script, options(Speed::Max, Loop::Closed));
    let (mut now, mut answered, mut sent_to) = (Instant::from_nanos(5), 0, 0);
    let mut waits = 0;
    loop {
        match player.poll(now, answered) {
            Next::Send { event, .. } => {
                let request = script.events[event].packet();
                sent_to = request.sequence + i64::from(request.span(script.mtu));
            }
            Next::Wait(until) => {
                assert!(answered < sent_to, "it waits for what was sent");
                waits += 1;
                answered = sent_to;
                now = now.saturating_add(Duration::from_micros(1)).min(until);
            }
            Next::Done => break,
        }
    }
    assert!(waits > 50, "{waits}");
    assert_eq!((player.timeouts(), answered), (0, i64::from(script.span())));
}

#[test]
fn times_of_the_capture_are_kept_or_scaled() {
    let script = script();
    let times: Vec<Instant> = script.requests().map(|it| it.time).collect();
    let total = times[times.len() - 1].saturating_since(times[0]);
    for speed in [1.0, 10.0] {
        let mut player = Player::new(&script, options(Speed::Times(speed), Loop::Open));
        let start = Instant::from_nanos(1_000);
        let (mut now, mut last) = (start, start);
        while last == start || now < last.saturating_add(Duration::from_secs(1)) {
            match player.poll(now, i64::MAX) {
                Next::Send { .. } => last = now,
                Next::Wait(until) => now = until,
                Next::Done => break,
            }
        }
        let took = last.saturating_since(start).as_secs_f64();
        let expected = total.as_secs_f64() / speed;
        assert!((took - expected).abs() < 1e-3 * expected + 1e-6, "{took} {expected}");
    }
}

#[test]
fn rounds_follow_each_other_and_a_rewind_goes_back() {
    let script = script();
    let twice = PlayOptions { rounds: 2, ..options(Speed::Max, Loop::Open) };
    let mut player = Player::new(&script, twice);
    let now = Instant::from_nanos(5);
    let mut sent = Vec::new();
    while let Next::Send { event, round } = player.poll(now, i64::MAX) {
        sent.push((round, event));
    }
    assert_eq!(sent.len(), 2 * script.requests().count());
    assert_eq!(sent.iter().filter(|(round, _)| *round == 1).count(), sent.len() / 2);
    let later = now.saturating_add(Duration::from_millis(1));
    assert!(player.rewind(3, later));
    assert_eq!(player.poll(now, i64::MAX), Next::Wait(later));
    assert!(matches!(player.poll(later, i64::MAX), Next::Send { round: 0, .. }));
    // What was not sent yet cannot be gone back to.
    assert!(!player.rewind(i64::from(script.span()) * 2 + 5, later));
}
