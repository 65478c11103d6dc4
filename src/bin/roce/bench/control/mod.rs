//! The control connection between a bench client and a server: TCP, apart from the traffic that is
//! measured.
//!
//! Framing, limits, admission, token and opening are those of [`roce::control`].
//!
//! 1. Both sides go through the opening. The client's request is the plan of the run and the
//!    endpoints of its queue pairs: [`Hello`](messages::Hello).
//! 2. The server answers with its own endpoints: [`Answer`](messages::Answer). If the client has
//!    its queue pairs connected by the connection manager, this is followed by the [`rendezvous`]:
//!    a port of the connection manager, and a key. The client connects its queue pairs there in
//!    their order.
//! 3. For every size both send `ready`, exchange messages, and send `done` and `result`. Meanwhile
//!    each says once a second that it is alive; `stop` asks the other to end this size now.
//! 4. The client sends `bye`, after the last size or before any other, and the server sends its
//!    counters.
//!
//! A client that asks for a queue pair and memory, and measures nothing, speaks another protocol:
//! [`offer`]. Those of `roce ping` and `roce mesh` are [`probe`] and [`mesh`]. [`request`]
//! distinguishes the four.
//!
//! Everything here is reachable by a stranger: it uses no socket, no clock and no command line, so
//! that the fuzz target `bench_control` can include it.

pub(crate) mod admission;
pub(crate) mod layout;
pub(crate) mod mesh;
pub(crate) mod messages;
pub(crate) mod offer;
pub(crate) mod pingpong_message;
pub(crate) mod plan;
pub(crate) mod probe;
pub(crate) mod rendezvous;
pub(crate) mod request;
