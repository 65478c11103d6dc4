//! Recovery from loss, in virtual time: go-back-N and selective repeat, one path and several.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    unreachable_pub,
    missing_docs,
    missing_debug_implementations,
    reason = "a test that cannot go on fails"
)]

mod agreement;
// The rest needs the library alone, so that it builds in less time.
#[cfg(feature = "replay")]
mod captures;
mod closed_forms;
mod controllers;
mod forged;
mod line;
#[cfg(feature = "replay")]
#[path = "../common/recorder.rs"]
mod recorder;
mod spraying;
