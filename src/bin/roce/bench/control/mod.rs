//! The control connection between a bench client and a server: TCP, apart from the traffic that is measured.
//!
//! Lines of printable ASCII, at most [`LINE_MAX`](lines::LINE_MAX) bytes each.
//!
//! 1. The client sends [`MAGIC`](messages::MAGIC). The server answers `welcome`, or `challenge` and a nonce if it wants a token; then
//!    the client sends `proof` and the nonce's HMAC under the token.
//! 2. The client sends the plan of the run and the endpoints of its queue pairs, the server answers with its own. Both
//!    end with `end`.
//!    A client that has its queue pairs connected by the connection manager sends [`CM_MAGIC`](messages::CM_MAGIC)
//!    instead, and the server's answer is followed by the [`meeting`]: a port of the connection manager, and a key. The
//!    client connects its queue pairs there in their order.
//! 3. For every size both send `ready`, exchange messages, and send `done` and `result`. Meanwhile each sends `alive`
//!    once a second; `stop` asks the other to end this size now.
//! 4. The client sends `bye`, after the last size or before any other, and the server sends its counters.
//!
//! A client that asks for a queue pair and memory, and measures nothing, speaks another protocol: [`offer`]. Those of `roce ping` and
//! `roce mesh` are [`probe`] and [`mesh`].
//!
//! `error` and a reason may come at any time, and is the last line.
//!
//! Everything here is reachable by a stranger: it uses no socket, no clock and no command line, so that the fuzz target
//! `control` can include it.

pub(crate) mod admission;
pub(crate) mod layout;
pub(crate) mod lines;
pub(crate) mod meeting;
pub(crate) mod mesh;
pub(crate) mod messages;
pub(crate) mod offer;
pub(crate) mod pingpong_message;
pub(crate) mod plan;
pub(crate) mod probe;

pub(crate) use lines::{Control, Stream};
