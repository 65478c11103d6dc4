//! Programs that share an address: they come and go, are killed and stopped at random moments, and
//! the others notice nothing of it.
//!
//! `ROCE_SHARE_RUNS=1000 cargo test --test share` runs each scenario so often, `ROCE_SEED` with
//! another seed.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test that fails says so by a panic"
)]

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod program;
mod strangers;
