//! The engine, told packets and time by hand.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::type_complexity,
    unreachable_pub,
    missing_docs,
    dead_code,
    reason = "a test that cannot go on fails, and each uses a part of what they share"
)]

mod completer;
mod congestion;
mod cq;
mod datagram;
mod duplicates;
mod errors;
mod memory;
mod objects;
mod pair;
mod posting;
mod raw_eth;
mod refusals;
mod requester;
mod responder;
mod retries;
mod runs;
mod script;
mod smoke;
mod snapshots;
mod srq;
mod states;
mod strangers;
mod turns;
mod unreliable;
mod wrap;
mod xrc;
