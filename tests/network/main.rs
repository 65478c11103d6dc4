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

#[path = "../common/mod.rs"]
mod common;
/// Tests that run in namespaces of their own, a line each.
macro_rules! namespace_tests {
    ($($(#[$meta:meta])* $test:ident: $body:expr;)*) => {$(
        $(#[$meta])*
        #[test]
        fn $test() {
            crate::common::netns::in_namespace(|| $body);
        }
    )*};
}

mod faults;
mod multicast;
mod operations;
mod port;
mod priority;
mod sharing;
mod stage;
mod trouble;
