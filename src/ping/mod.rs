//! Is a host reachable by RDMA, and where does the time go: UD probes with six time stamps, after
//! R-Pingmesh.
//!
//! A prober sends a datagram to a responder, which answers twice: once at once, and once more with
//! how long the first answer took it. From the send and receive completions of both sides follow
//! three times that no clock of one side alone can tell apart: that of the network, that of the
//! prober's host and that of the responder's. [`Stamps`] says how.
//!
//! | part | is |
//! |---|---|
//! | [`Packet`] | probes and acknowledgements as bytes |
//! | [`Prober`], [`Responder`] | state machines without IO: completions and the time go in, packets to post and results of probes come out |
//! | [`Pinger`], [`Answerer`] | the same on a [`Device`](crate::device::Device): a soft NIC, or a card through libibverbs |
//! | [`PathStats`] | counts and delays of many probes |
//! | `mesh` | for the command: diagnosis of a fleet from its probes: a bad NIC, a bad path, a slow host |
//!
//! How the two sides learn each other's [`Address`] is up to the program; `roce ping` asks
//! `roce serve` over TCP.
//!
//! # Paths
//!
//! Switches choose among equal paths by addresses and ports. Each path of a prober has a flow label
//! of its own, from which the UDP source port follows ([`source_port`](crate::wire::source_port));
//! the answers to a probe have the same. What is lost or slow on one port and not on the others is
//! the fault of a path, not of a host.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

pub mod limits;
// Only the command and its tests use it: no promise is made about it.
#[cfg(any(test, feature = "cli"))]
#[doc(hidden)]
pub mod mesh;
mod packet;
mod prober;
mod qp;
mod responder;
mod run;
mod sample;

pub use packet::{Bytes, Packet, PacketError, ProbeId};
pub use prober::{Event, Prober, ProberConfig, ProberCounters, Transmit};
pub use qp::{Address, ProbeQp, QP_MEMORY, Role, random_id};
pub use responder::{Answer, Responder, ResponderConfig, ResponderCounters, Source};
pub use run::{Answerer, Pinger};
pub use sample::{Ending, PathStats, Stamps};
