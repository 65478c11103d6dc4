//! NICs on real links: two network namespaces and a veth between them, which the tests make,
//! without privileges.
//!
//! | file | what is tested |
//! |---|---|
//! | [`operations`] | every operation, by every kind of link, over IPv4 and IPv6, with every path MTU |
//! | [`faults`] | that nothing is lost, doubled or damaged on a network that loses, doubles and damages |
//! | [`trouble`] | peers that die, interfaces that are switched off and on |
//! | [`multicast`] | groups that NICs are in, on one machine and on several |
//! | [`port`] | links that go down, addresses that come and go |
//! | [`priority`] | service levels |
//! | [`sharing`] | several links at one address, several programs, many queue pairs |
#![allow(
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    clippy::unwrap_used,
    dead_code,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    reason = "a test that cannot go on fails, and a wire has a clock"
)]

mod faults;
mod multicast;
#[path = "../common/needs.rs"]
#[allow(unreachable_pub, reason = "shared by several tests")]
mod needs;
#[path = "../common/netns.rs"]
mod netns;
mod operations;
mod port;
mod priority;
#[path = "../common/process.rs"]
mod process;
mod sharing;
mod stage;
mod trouble;
