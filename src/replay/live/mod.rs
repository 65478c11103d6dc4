//! A capture onto a wire: the requests of one side of a connection, rewritten for a live peer.
//!
//! ```text
//! capture ─► Collector ─► Script ─┬─► Needs: regions and receives that the peer must have, and what they hold
//!            (analysis)           ├─► Target: addresses, queue pairs, PSNs, keys ─► Outgoing: frames, sealed
//!                                 ├─► Player: what to send when, and what to wait for
//!                                 ├─► Expected: answers that arrive, compared with those of the capture
//!                                 └─► mutate: one field changed ─► hunt: does the peer live? ─► minimize
//! ```
//!
//! Everything here is told and asks nothing. The command has the loop over a link, and the
//! connection to a server that offers a queue pair and memory.

mod expect;
mod hunt;
pub mod limits;
mod memory;
mod minimize;
mod mutate;
mod outgoing;
mod player;
mod probe;
mod rules;
mod scenario;
mod script;
mod sequence;
mod target;
#[cfg(test)]
mod tests;

pub use expect::{AnswerDifference, Comparison, Expected, MessageOutcome, Reaction, WhyUndecided};
pub use hunt::{HuntOptions, Kill, Life, Peer, hunt, plan};
pub use memory::{Effect, MemoryError, Model, Needs, Region, Rights};
pub use minimize::{ATTEMPTS_MAX, minimize};
pub use mutate::{Change, MutateSeed, MutateSpec, Mutation, MutationKind, Reach, mutate};
pub use outgoing::Outgoing;
pub use player::{Loop, Next, PlayOptions, Player, Speed};
pub use probe::{Probe, ProbeTarget, Probed};
pub use rules::{RulesError, judge_answers};
pub use scenario::to_scenario;
pub use script::{Captured, Collector, Envelope, Event, LeftOut, Script, ScriptEnd, TooLarge};
pub use sequence::sequence;
pub use target::{MemoryMap, Target, VlanMap};
