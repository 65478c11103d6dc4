//! Probes between two devices, and completions that tell their time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use roce::device::Context;
use roce::ping::{Answerer, Event, PathStats, Pinger, ProbeQp, ProberConfig, Role};
use roce::wire::Gid;

use crate::stage::devices;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn probes_are_answered_and_timed_by_a_device_that_can() {
    let [near, far] = devices().map(Context::from);
    let index = near.gids().iter().position(|gid| *gid != Gid::default()).unwrap() as u8;
    let near = ProbeQp::new(&near, index, Role::Prober).unwrap();
    let far = ProbeQp::new(&far, index, Role::Responder).unwrap();
    let target = far.address();
    let mut answerer = Answerer::new(far, 1, near.address());
    let done = Arc::new(AtomicBool::new(false));
    let is_done = Arc::clone(&done);
    let answering = std::thread::spawn(move || {
        while !is_done.load(Ordering::SeqCst) {
            answerer.run(Duration::from_millis(50), |_| false).unwrap();
        }
        *answerer.counters()
    });
    let interval = Duration::from_millis(1);
    let config = ProberConfig::new(7).interval(interval).timeout(LONG).count(8).paths(2);
    let mut pinger = Pinger::new(near, config, &[target]);
    let mut stats = PathStats::default();
    while !pinger.is_done() {
        if let Some(Event::Ended { ending, .. }) = pinger.next(LONG).unwrap() {
            stats.add(&ending);
        }
    }
    done.store(true, Ordering::SeqCst);
    let answered = answering.join().unwrap();
    assert_eq!((stats.answered, stats.untimed, answered.answered), (8, 0, 8), "{answered:?}");
    // A card may have no time stamps; soft NICs have, also through their libibverbs.
    let is_soft = std::env::var_os("ROCE_TEST_DEVICE").is_none();
    if is_soft || std::env::var_os("ROCE_TEST_TIMES").is_some() {
        assert!(pinger.has_device_times());
    }
}
