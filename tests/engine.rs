//! The engine, told packets and time by hand.
#![allow(
    clippy::cast_possible_truncation,
    clippy::type_complexity,
    clippy::unwrap_used,
    unreachable_pub,
    dead_code,
    reason = "a test that cannot go on fails, and each uses a part of what they share"
)]

#[path = "engine/pair.rs"]
mod pair;
#[path = "engine/smoke.rs"]
mod smoke;
