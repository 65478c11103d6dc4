//! System calls, each behind a safe function: the one place of this room with `unsafe` in it.

pub(super) mod bpf;
pub(crate) mod fork;
pub(super) mod interface;
pub(super) mod lock;
pub(super) mod ring;
pub(super) mod shared_memory;
pub(super) mod socket;
pub(crate) mod thread;
#[cfg(feature = "smoltcp")]
pub(super) mod tun;
pub(super) mod xsk;
