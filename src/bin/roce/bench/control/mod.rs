//! The control connection between a bench client and a server: TCP, apart from the traffic that is
//! measured.
//!
//! Framing, limits, admission, token and opening are those of [`roce::control`]; the lines are of
//! printable ASCII.
//!
//! 1. Both sides go through the [`opening`]. The client's request is the plan of the run and the
//!    endpoints of its queue pairs, ended by `end`.
//! 2. The server answers with its own endpoints and `end`. If the client has its queue pairs
//!    connected by the connection manager, this is followed by the [`meeting`]: a port of the
//!    connection manager, and a key. The client connects its queue pairs there in their order.
//! 3. For every size both send `ready`, exchange messages, and send `done` and `result`. Meanwhile
//!    each sends `alive` once a second; `stop` asks the other to end this size now.
//! 4. The client sends `bye`, after the last size or before any other, and the server sends its
//!    counters.
//!
//! A client that asks for a queue pair and memory, and measures nothing, speaks another protocol:
//! [`offer`]. Those of `roce ping` and `roce mesh` are [`probe`] and [`mesh`].
//!
//! `error` and a reason may come at any time, and is the last line.
//!
//! Everything here is reachable by a stranger: it uses no socket, no clock and no command line, so
//! that the fuzz target `control` can include it.

pub(crate) mod admission;
pub(crate) mod layout;
pub(crate) mod lines;
pub(crate) mod mesh;
pub(crate) mod messages;
pub(crate) mod offer;
pub(crate) mod opening;
pub(crate) mod pingpong_message;
pub(crate) mod plan;
pub(crate) mod probe;
pub(crate) mod rendezvous;

pub(crate) use lines::Control;
