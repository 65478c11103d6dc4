//! Strangers against every protocol that listens.
//!
//! A stranger is an ordinary socket at its own address, off the path, without spoofing. It speaks
//! from a wrong source, relays, stays half-open, replays, is slow, lies, and asks for too much.
//! Each test asserts what an honest pair sees meanwhile, and the packets and bytes that leave for
//! third parties: at most three times what came in.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "a test that cannot go on fails, and none waits for ever"
)]

mod amplification;
mod cm;
#[path = "../common/mod.rs"]
mod common;
mod conform;
mod group;
mod harness;
mod liar;
mod mesh;
mod metrics;
mod net;
mod packets;
mod ping;
mod serve;
