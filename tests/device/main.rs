//! Contract of every RNIC: all that `device::Device` promises, tested on two devices that reach
//! each other.
//!
//! Two soft NICs on a cable, unless `ROCE_TEST_DEVICE=verbs:NAME` names a real one, which then is
//! opened twice and talks to itself. `tools/rxe-vm/verbs` runs it so on the Linux kernel's RoCE.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod connections;
mod errors;
mod events;
mod operations;
mod probes;
mod stage;
mod windows;
