//! Replays a capture: was each packet one that a correct device could have sent?
//!
//! ```text
//! pass 1   capture ─► decode ─► analysis ─► Survey: connections, path MTUs, keys, receives, losses that the packets imply
//! pass 2   capture ─► decode ─► analysis ─► Input ─┬─► responders: an engine executes the requests; answers are compared
//!                                          Survey ─┼─► requesters: rules that every request packet must keep
//!                                                  └─► datagrams, connection manager
//!                                                            └─► Step (agreed, known, undecided, different) ─► Report
//! ```
//!
//! A capture shows packets and no objects, so the first pass works out what the devices must have
//! had: queue pairs, memory regions, receives. The second pass gives that to real state machines,
//! feeds them the captured packets under the capture's own clock, and compares by meaning. Each
//! packet gets one [`Verdict`]; a difference names the [`Rule`] that it breaks. What could come
//! from a packet that the capture misses is [undecided](Verdict::Undecided), never different.
//!
//! Everything here is told and asks nothing: no file, socket, clock, thread or environment.
#![forbid(unsafe_code)]

mod batch;
mod connection;
pub mod datagram;
mod deviations;
#[cfg(test)]
mod harness;
mod judge;
mod keys;
pub mod limits;
// For the command, which replays onto a wire: no promise is made about it.
#[doc(hidden)]
pub mod live;
pub mod management;
mod memory;
mod note;
mod pairing;
mod report;
pub mod requester;
pub mod responder;
mod router;
mod rule;
mod session;
mod shard;
mod survey;
mod verdict;

pub use batch::PacketBatch;
pub use deviations::{ProfileError, Profiles};
pub use judge::Sink;
pub use report::{Counts, Listed, Packets, ReplayReport, Style, step_line};
pub use router::Router;
pub use rule::{Rule, all_rules};
pub use session::{Established, Options, Registered, Session, Verdicts, replay_capture};
pub use shard::Judges;
pub use survey::{LeftOut, NetworkFacts, Survey, Surveyor};
pub use verdict::{Difference, Step, Subject, Undecided, Verdict};
