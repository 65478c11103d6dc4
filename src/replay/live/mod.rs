//! A capture onto a wire: the requests of one side of a connection, rewritten for a live peer.
//!
//! ```text
//! capture ─► Collector ─► Script ─┬─► Needs: regions and receives that the peer must have, and what they hold
//!            (analysis)           ├─► Target: addresses, queue pairs, PSNs, keys ─► Outgoing: frames, sealed
//!                                 ├─► Player: what to send when, and what to wait for
//!                                 └─► Expected: answers that arrive, compared with those of the capture
//! ```
//!
//! Everything here is told and asks nothing. The command has the loop over a link, and the connection to a server that
//! offers a queue pair and memory.

mod expect;
pub mod limits;
mod memory;
mod outgoing;
mod player;
mod script;
mod target;
#[cfg(test)]
mod tests;

pub use expect::{AnswerDifference, Comparison, Expected, Fate, Reaction};
pub use memory::{Effect, MemoryError, Model, Needs, Region, Rights};
pub use outgoing::Outgoing;
pub use player::{Loop, Next, PlayOptions, Player, Speed};
pub use script::{Captured, Collector, Envelope, Event, LeftOut, Script, ScriptEnd, TooLarge};
pub use target::{MemoryMap, Target, VlanMap};
