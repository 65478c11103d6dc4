//! Runs a test for every seed of a range, on two threads.
//!
//! `ROCE_SEED=17` runs one seed aloud, `ROCE_SEEDS=10000` the seeds 0 to 9,999,
//! `ROCE_SEEDS=500..600` those of a range.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The one seed that the environment asks for.
pub fn only_seed() -> Option<u64> {
    std::env::var("ROCE_SEED").ok().map(|seed| seed.parse().unwrap())
}

/// The seeds that the environment asks for, else `default` of them from 0.
fn range(default: u64) -> Range<u64> {
    let Ok(seeds) = std::env::var("ROCE_SEEDS") else { return 0..default };
    match seeds.split_once("..") {
        Some((first, end)) => first.parse().unwrap()..end.parse().unwrap(),
        None => 0..seeds.parse().unwrap(),
    }
}

/// Calls `test` with the `known` seeds and those that the environment asks for, on two threads.
/// Returns their number.
pub fn for_each(default: u64, known: &[u64], test: impl Fn(u64) + Sync) -> usize {
    let range = range(default);
    let others = known.iter().copied().filter(|seed| !range.contains(seed));
    let seeds: Vec<u64> = others.chain(range.clone()).collect();
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            test(seed);
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(run))));
    seeds.len()
}

/// Runs `test` for the `known` seeds and for those that the environment asks for. Fails with the
/// numbers of the seeds for which it returns what is wrong, and prints that.
pub fn run(default: u64, known: &[u64], test: impl Fn(u64) -> Vec<String> + Sync) {
    let failed = Mutex::new(Vec::new());
    let all = for_each(default, known, |seed| {
        let wrong = test(seed);
        if !wrong.is_empty() {
            println!("seed {seed}: {} wrong:\n{}", wrong.len(), wrong.join("\n"));
            failed.lock().unwrap().push(seed);
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "of {all} seeds {} failed: {failed:?}", failed.len());
    println!("{all} seeds");
}
