//! What every RNIC must do, whichever it is: all that `verbs::Device` promises, asked of two devices that reach each
//! other.
//!
//! Two soft NICs on a cable, unless `ROCE_TEST_DEVICE=verbs:NAME` names a real one, which then is opened twice and
//! talks to itself. `tools/rxe-vm/verbs` runs it so on the Linux kernel's RoCE.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

#[path = "device/errors.rs"]
mod errors;
#[path = "device/events.rs"]
mod events;
#[path = "device/operations.rs"]
mod operations;
#[path = "device/stage.rs"]
mod stage;
#[path = "device/windows.rs"]
mod windows;
