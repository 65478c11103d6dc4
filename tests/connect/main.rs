//! The connection manager: against Linux's captured messages, in every situation of a program's
//! life, and in simulated networks.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]
#![allow(unreachable_pub, reason = "modules of a test are for one another")]

#[path = "../common/mod.rs"]
mod common;

mod api;
mod bounds;
mod calls;
mod captured;
mod killed;
mod life;
mod negotiation;
mod node;
mod rawpeer;
mod service;
mod simulation;
