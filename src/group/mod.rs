//! A mesh of peers: N servers of T threads each, from one list, all connected.
//!
//! Thread i of each server is connected to thread i of the others by a [`net::Connection`](crate::net::Connection) of its own,
//! so that threads share nothing. A [`Group`] is a server, a [`Member`] one of its threads. Members send messages, which are
//! written in place in a circular buffer for each peer ([`Member::reserve`]) and go with a doorbell for many. They poll the sending
//! and the receiving side of one peer or of all, with a [`Handler`] for what arrives. Memory is [published](Group::publish)
//! under a number, and a peer [looks it up](Member::lookup) by the number.
//!
//! # Restarts
//!
//! A server draws a random number when it starts, its incarnation. A connection that is lost is made again, with a back-off that
//! doubles up to a bound. If the peer is still in the same incarnation, both sides say how many messages they have received,
//! and those that are missing go over the new connection: within an incarnation no message is lost, doubled or reordered. If
//! the peer has restarted, it begins with nothing, and [`Handler::change`] tells how many messages to its predecessor were
//! dropped.
//!
//! | file | holds |
//! |---|---|
//! | `link.rs` | a link to one peer as a state machine, without IO: simulated by seeds |
//! | `hello.rs` | what two members tell each other when they connect |
//! | `mesh.rs` | all links of a server, and the thread that makes connections |
//! | `member.rs`, `remote.rs` | calls of a thread: messages, memory of peers |
//! | `pipe.rs` | a connection as a link uses it |
//! | `hosts.rs`, `config.rs` | the list of servers, sizes and times |
#![forbid(unsafe_code)]

mod config;
mod error;
mod hello;
mod hosts;
pub mod limits;
mod link;
mod member;
mod mesh;
mod pipe;
mod remote;
#[cfg(test)]
mod tests;

pub use config::Config;
pub use error::Error;
pub use hosts::Hosts;
pub use link::Change;
pub use member::{Handler, Member, Record};
pub use mesh::Group;
pub use remote::Remote;
