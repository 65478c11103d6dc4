//! Every input that ever made a fuzz target fail, replayed. They stand in
//! `fuzz/regressions/TARGET/`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

/// The name that the C library has for it.
extern crate roce as library;

#[path = "../fuzz/src/lib.rs"]
#[allow(
    unreachable_pub,
    dead_code,
    clippy::cast_possible_truncation,
    reason = "in the fuzz crate these are public, and its numbers are small"
)]
mod bodies;

fn files_in(dir: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn nothing_that_ever_failed_fails_again() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/regressions");
    let mut replayed = 0;
    for (target, body) in bodies::TARGETS {
        for file in files_in(&root.join(target)) {
            println!("{}", file.display());
            body(&std::fs::read(&file).unwrap());
            replayed += 1;
        }
    }
    assert!(replayed >= 1, "the first one ever found is there");
}

#[test]
fn every_target_takes_every_capture_as_input() {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/captures");
    let files = files_in(&captures);
    assert!(files.len() >= 3);
    for file in files {
        let bytes = std::fs::read(&file).unwrap();
        for (_, body) in bodies::TARGETS {
            for length in [0, 1, 23, 24, 40, 100, bytes.len().min(100_000)] {
                body(&bytes[..length]);
            }
        }
    }
}
