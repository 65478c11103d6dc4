//! Scenarios on any two devices, and the comparison of their outcomes.
//!
//! A [`Scenario`](scenario::Scenario) is a few lines of TOML: who posts what, in which order, what
//! the wire does to which packet, and what must hold afterwards. It names two sides, *requester*
//! and *responder*, and any [`Device`](crate::device::Device) can play either. Of every run there
//! is a [`Trace`](trace::Trace): completions, memory, states, events, and the packets where they
//! can be seen. A trace is held against what the scenario expects, and against the trace of a
//! reference, by default two soft NICs on a cable.
//!
//! ```text
//! scenario (TOML) ─► expand ─► instance ─┬─► agent: requester ─ device ─ wire ─┐
//!                                        └─► agent: responder ─ device ─ wire ─┴─► trace ─► normalize ─► judge ─► report
//!                                              two threads, or two machines                   reference ─┘
//! ```
//!
//! | file | holds |
//! |---|---|
//! | [`scenario`] | what a person writes, and how it is read |
//! | [`expand`] | expressions, and one instance for each combination of what a scenario varies |
//! | `control` | what two agents say to each other: a line of JSON each |
//! | `agent`, `play` | runs one side of instances on a device |
//! | `connect` | queue pairs that the connection manager connects |
//! | `server` | an agent for clients on a network, of which none is trusted |
//! | `wire` | the wire of a soft device: it sees packets, and drops them by rule |
//! | [`trace`] | what came of an instance |
//! | `normalize` | what of a packet does not count, and why |
//! | `expect` | whether what a scenario expects holds |
//! | [`diff`] | where two traces part |
//! | [`deviation`] | what is known of a device |
//! | [`judge`] | runs instances, and decides |
//! | [`report`] | says so: text, JSON, JUnit |
//!
//! ```
//! use roce::conform::{judge::Judge, scenario};
//!
//! let instances = scenario::built_in()?.into_iter().filter(|it| it.name == "send/size=mtu+1,mtu=1024");
//! let mut judge = Judge::in_memory()?;
//! for instance in instances {
//!     let finding = judge.run(&instance)?;
//!     assert!(finding.agrees(), "{:?}", finding);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

// The command and its tests use the hidden modules: no promise is made about them.
#[doc(hidden)]
pub mod agent;
mod connect;
#[doc(hidden)]
pub mod control;
pub mod deviation;
pub mod diff;
pub mod expand;
mod expect;
pub mod judge;
mod memory;
mod normalize;
mod objects;
mod play;
mod post;
pub mod report;
pub mod scenario;
#[doc(hidden)]
pub mod server;
pub mod trace;
mod turns;
#[doc(hidden)]
pub mod wire;

use serde::{Deserialize, Serialize};

/// One of the two sides of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The side that sends most requests.
    Requester,
    /// The side that answers most requests.
    Responder,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::Requester, Self::Responder];

    /// Returns the other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Requester => Self::Responder,
            Self::Responder => Self::Requester,
        }
    }

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Requester => "requester",
            Self::Responder => "responder",
        }
    }
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Whether a name fits a pattern in which `*` stands for anything.
pub fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, rest)) => name.strip_prefix(head).is_some_and(|name| {
            (0..=name.len()).filter_map(|at| name.get(at..)).any(|tail| fits(rest, tail))
        }),
    }
}

/// The time that limits are counted by.
#[expect(clippy::disallowed_methods, reason = "live devices live in real time")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, name) in [
            ("*", ""),
            ("send*", "send/size=1"),
            ("*size=1*", "a/size=1,b"),
            ("a", "a"),
            ("*a*b", "xaxb"),
        ] {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("", "a"), ("send", "send/1"), ("*a", "ab"), ("a*b*c", "acb")] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }
}
