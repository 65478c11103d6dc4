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

#[path = "engine/completer.rs"]
mod completer;
#[path = "engine/congestion.rs"]
mod congestion;
#[path = "engine/cq.rs"]
mod cq;
#[path = "engine/datagram.rs"]
mod datagram;
#[path = "engine/duplicates.rs"]
mod duplicates;
#[path = "engine/errors.rs"]
mod errors;
#[path = "engine/frames.rs"]
mod frames;
#[path = "engine/memory.rs"]
mod memory;
#[path = "engine/objects.rs"]
mod objects;
#[path = "engine/pair.rs"]
mod pair;
#[path = "engine/posting.rs"]
mod posting;
#[path = "engine/requester.rs"]
mod requester;
#[path = "engine/responder.rs"]
mod responder;
#[path = "engine/script.rs"]
mod script;
#[path = "engine/smoke.rs"]
mod smoke;
#[path = "engine/snapshots.rs"]
mod snapshots;
#[path = "engine/srq.rs"]
mod srq;
#[path = "engine/states.rs"]
mod states;
#[path = "engine/strangers.rs"]
mod strangers;
#[path = "engine/turns.rs"]
mod turns;
#[path = "engine/unreliable.rs"]
mod unreliable;
#[path = "engine/wrap.rs"]
mod wrap;
#[path = "engine/xrc.rs"]
mod xrc;
