//! A mesh of peers: N servers of T threads each, from one list, all connected.
//!
//! Thread i of each server is connected to thread i of the others by a
//! [`net::Connection`](crate::net::Connection) of its own, so that threads share nothing. A
//! [`Group`] is a server, a [`Member`] one of its threads. Members send messages, which are written
//! in place in a circular buffer for each peer ([`Member::reserve`]) and go with a doorbell for
//! many. They poll the sending and the receiving side of one peer or of all, with a [`Handler`] for
//! what arrives. Memory is [published](Group::publish) under a number, and a peer [looks it
//! up](Member::lookup) by the number.
//!
//! # Restarts
//!
//! A server draws a random number when it starts, its incarnation. A connection that is lost is
//! made again, with a back-off that doubles up to a bound. If the peer is still in the same
//! incarnation, both sides say how many messages they have received, and those that are missing go
//! over the new connection: within an incarnation no message is lost, doubled or reordered. If the
//! peer has restarted, it begins with nothing, and [`Handler::change`] tells how many messages to
//! its predecessor were dropped.
//!
//! # The end
//!
//! A group that ends, by [`Group::close`] or because it is dropped, goes on until its peers have
//! all messages, at most [`linger`](Config::linger); connections that are lost meanwhile are made
//! again. `close` returns what was not delivered. The peers learn by [`Change::Left`], behind all
//! messages, that the server has left. A server that is killed or unreachable is [`Change::Lost`]
//! after [`lost_after`](Config::lost_after). A member that waits for such a peer asks
//! [`Member::check`].
//!
//! # Strangers
//!
//! A request to connect must come from the address that the list has for the server that it claims
//! to be, and both sides prove that they know the group's [`secret`](Config::secret) and have the
//! same list. A connection is replaced only by one over which the peer has proved itself. Without a
//! secret the addresses are the only check. Messages are not encrypted.
//!
//! | file | holds |
//! |---|---|
//! | `link.rs` | a link to one peer as a state machine, without IO: simulated by seeds |
//! | `hello.rs`, `secret.rs` | what two members tell and prove to each other when they connect |
//! | `mesh.rs` | all links of a server |
//! | `keeper.rs`, `handshake.rs` | the thread that makes connections, and how both sides prove themselves |
//! | `member.rs`, `remote.rs` | calls of a thread: messages, memory of peers |
//! | `pipe.rs` | a connection as a link uses it |
//! | `hosts.rs`, `config.rs`, `counters.rs` | the list of servers, sizes and times, what was refused |
#![forbid(unsafe_code)]

mod config;
mod counters;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod hello;
mod hosts;
mod keeper;
pub mod limits;
mod link;
mod member;
mod mesh;
mod pipe;
mod remote;
mod secret;
#[cfg(test)]
mod tests;

pub use config::Config;
pub use counters::{Counter, Counters};
pub use error::{Error, Undelivered};
pub use hosts::Hosts;
pub use link::Change;
pub use member::{Handler, Member, Record};
pub use mesh::Group;
pub use remote::Remote;
pub use secret::Secret;
