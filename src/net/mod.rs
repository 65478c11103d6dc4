//! Messages and remote memory for programs that know sockets.
//!
//! A [`Listener`] accepts and a [`Connection`] connects, as those of [`std::net`] do. What goes over a connection is messages
//! of any size, whole and in order. They are written straight into the peer's memory, so that a program that polls gets
//! one without a system call. Memory that the peer has [published](Connection::publish) can be read, written, and changed
//! atomically, and the peer's program does nothing for it.
//!
//! The same program runs on any [`Device`](crate::device::Device): on a soft NIC, which needs no hardware and no privilege; on
//! a card, through libibverbs; on two NICs on a [`cable`](crate::link::cable) in a unit test.
//!
//! ```
//! use roce::net::{Connection, Listener};
//!
//! let listener = Listener::bind("127.20.13.1:0")?;
//! let at = listener.local_addr()?;
//! let client = std::thread::spawn(move || -> Result<_, roce::net::Error> {
//!     let connection = Connection::connect(at)?;
//!     connection.send(b"hello")?;
//!     let answer = connection.recv()?;
//!     connection.close()?;
//!     Ok(answer)
//! });
//! let connection = listener.accept()?;
//! while let Some(message) = connection.recv()? {
//!     connection.send(&message)?;
//! }
//! connection.close()?;
//! assert_eq!(client.join().unwrap()?.as_deref(), Some(&b"hello"[..]));
//! # Ok::<(), roce::net::Error>(())
//! ```
//!
//! # Three forms
//!
//! - Calls that block: [`Connection::send`], [`Connection::recv`].
//! - Callbacks: [`Listener::serve`], [`Connection::start`] with [`Callbacks`].
//! - Futures, with the feature `tokio`: `asynchronous::Connection`. There is no runtime of this library's own.
//!
//! All of them use one core, a state machine that tests run by thousands of seeds in virtual time.
//!
//! # Flow control, failures
//!
//! A peer that does not read gets as much as its ring holds; then the sender waits. Nothing grows. A peer that dies is noticed
//! when work in flight is not acknowledged, and a call that waits has the peer's NIC show every
//! [`keepalive`](Config::keepalive) that it is there: then the call fails with [`Error::Lost`]. Messages that had arrived are
//! received first.
//!
//! # Addresses
//!
//! A soft NIC speaks for an IP address. [`Listener::bind`] has one at the address that it is given, and [`Connection::connect`]
//! one at the address from which the peer is reached. One process of a machine can have an address at a time (UDP port 4791), and
//! on loopback there are enough: a client takes another one, as 127.0.0.2.
//!
//! | file | holds |
//! |---|---|
//! | `core/` | the state machine: rings, credits, large messages |
//! | `shared.rs`, `shared/` | a core on its queue pair, how it is prepared, and how threads wait |
//! | `connection.rs`, `remote.rs` | calls that block: messages, operations on remote memory |
//! | `listener.rs`, `endpoint.rs` | listeners, devices |
//! | `offers.rs`, `dial.rs`, `hello.rs` | connecting over TCP, and what both sides tell each other |
//! | `directory.rs` | published memory |
//! | `callbacks.rs`, `asynchronous.rs` | the two other forms |
//! | `staged.rs` | messages written in place, and what is left of them when a connection is lost: for [`group`](crate::group) |
#![forbid(unsafe_code)]

#[cfg(feature = "tokio")]
pub mod asynchronous;
mod callbacks;
mod config;
mod connection;
mod core;
mod dial;
mod directory;
mod endpoint;
mod error;
mod hello;
pub mod limits;
mod listener;
mod offers;
mod remote;
mod shared;
mod staged;

pub use callbacks::{Callbacks, Dispatcher};
pub use config::Config;
pub use connection::Connection;
pub use endpoint::Endpoint;
pub use error::Error;
pub use listener::{Listener, Request};
pub use remote::Operation;
