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
#[path = "engine/datagram.rs"]
mod datagram;
#[path = "engine/duplicates.rs"]
mod duplicates;
#[path = "engine/pair.rs"]
mod pair;
#[path = "engine/requester.rs"]
mod requester;
#[path = "engine/responder.rs"]
mod responder;
#[path = "engine/script.rs"]
mod script;
#[path = "engine/smoke.rs"]
mod smoke;
#[path = "engine/unreliable.rs"]
mod unreliable;
#[path = "engine/xrc.rs"]
mod xrc;
