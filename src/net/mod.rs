//! Messages and remote memory for programs that know sockets.
//!
//! A [`Listener`] accepts and a [`Connection`] connects, as those of [`std::net`] do. What goes
//! over a connection is messages of any size, whole and in order. They are written straight into
//! the peer's memory, so that a program that polls gets one without a system call. Memory that the
//! peer has [published](Connection::publish) can be read, written, and changed atomically, and the
//! peer's program does nothing for it.
//!
//! The same program runs on any [`Device`](crate::device::Device): on a soft NIC, which needs no
//! hardware and no privilege; on a card, through libibverbs; on two NICs on a
//! [`cable`](crate::link::cable) in a unit test.
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
//! # Many messages, large messages
//!
//! A message has any size. [`Connection::queue`] and [`Connection::flush`] send many with one
//! doorbell; [`Connection::recv_into`] allocates nothing for each.
//!
//! ```
//! # use roce::net::{Connection, Listener};
//! # let listener = Listener::bind("127.20.13.3:0")?;
//! # let at = listener.local_addr()?;
//! # let client = std::thread::spawn(move || -> Result<_, roce::net::Error> {
//! let connection = Connection::connect(at)?;
//! for number in 0..100_u8 {
//!     connection.queue(&[number; 64])?;
//! }
//! connection.flush()?;
//! connection.send(&vec![7; 3 << 20])?; // larger than the peer's ring: the peer reads it from here
//! connection.close()?; // returns when the peer has all of them
//! # Ok(())
//! # });
//! # let connection = listener.accept()?;
//! let mut message = Vec::new();
//! let mut lengths = Vec::new();
//! while connection.recv_into(&mut message)? {
//!     lengths.push(message.len());
//! }
//! assert_eq!((lengths.len(), lengths[0], lengths[100]), (101, 64, 3 << 20));
//! # client.join().unwrap()?;
//! # Ok::<(), roce::net::Error>(())
//! ```
//!
//! # Memory of the peer
//!
//! Memory is published under a number. The peer looks it up, and then reads, writes and changes it;
//! the program that published it does nothing for that.
//!
//! ```
//! # use roce::net::{Connection, Listener};
//! # let listener = Listener::bind("127.20.13.5:0")?;
//! # let at = listener.local_addr()?;
//! # let client = std::thread::spawn(move || -> Result<_, roce::net::Error> {
//! #     let connection = Connection::connect(at)?;
//! #     connection.recv()?;
//! let there = connection.lookup(7)?.expect("the peer has published it");
//! connection.write(b"written", there)?;
//! assert_eq!(connection.read(there.part(0, 7).unwrap())?, b"written");
//! assert_eq!(connection.fetch_add(there.part(8, 8).unwrap(), 5)?, 0);
//! #     connection.close()
//! # });
//! // On the other side:
//! # let connection = listener.accept()?;
//! let memory = connection.allocate(4096)?;
//! connection.publish(7, &memory.slice(..).unwrap())?;
//! # connection.send(b"go")?;
//! # assert_eq!(connection.recv()?, None);
//! # client.join().unwrap()?;
//! # Ok::<(), roce::net::Error>(())
//! ```
//!
//! # Callbacks and futures
//!
//! [`Listener::serve`] and [`Connection::start`] call back ([`Callbacks`]) instead of blocking.
//! With the feature `tokio` there are futures, `asynchronous::Connection`, and no runtime of this
//! library's own.
//!
//! ```
//! use roce::net::{Callbacks, Connection, Listener};
//!
//! let echo = Callbacks::new().on_message(|connection, message| drop(connection.send(message)));
//! let server = Listener::bind("127.20.13.7:0")?.serve(echo)?;
//! let connection = Connection::connect(server.local_addr().unwrap())?;
//! connection.send(b"hello")?;
//! assert_eq!(connection.recv()?.as_deref(), Some(&b"hello"[..]));
//! # Ok::<(), roce::net::Error>(())
//! ```
//!
//! # Flow control
//!
//! A peer that does not read gets as much as its ring holds; then the sender waits. Nothing grows.
//! Of a peer's ring at most [`ring_multiple`](Config::ring_multiple) times the own one is used,
//! whatever the peer says.
//!
//! # Ends and failures
//!
//! [`Connection::close`], and dropping the last handle, wait until the peer has all messages, at
//! most [`linger`](Config::linger). `close` fails with [`Error::Undelivered`] if it is not known to
//! have some. The peer's [`recv`](Connection::recv) returns `None` after the last message. A peer
//! that dies is noticed when work in flight is not acknowledged, and a call that waits has the
//! peer's NIC show every [`keepalive`](Config::keepalive) that it is there: then the call fails
//! with [`Error::Lost`]. Messages that had arrived are received first.
//!
//! # Strangers
//!
//! [`Listener::accept`] returns connections that are established. Requests of peers that say
//! nothing more are bounded, in all and for each address ([`half_open`](Config::half_open),
//! [`half_open_per_source`](Config::half_open_per_source)), and the oldest is forgotten first. What
//! a peer writes is checked; one that does not keep to the protocol ends its own connection, with
//! [`Error::Protocol`]. Peers do not prove who they are, and nothing is encrypted: a
//! [`group`](crate::group) has a secret.
//!
//! # Addresses
//!
//! A soft NIC speaks for an IP address. [`Listener::bind`] has one at the address that it is given,
//! or at all addresses of the machine for `0.0.0.0`, and [`Connection::connect`] one at the address
//! from which the peer is reached. Processes of one user share an address (UDP port 4791). If a
//! server of another user on the same machine has it, the client takes a free loopback address, as
//! 127.0.0.2. An [`Endpoint`] is for other devices, and for other sizes and times.
#![forbid(unsafe_code)]

#[cfg(feature = "tokio")]
pub mod asynchronous;
mod callbacks;
mod config;
mod connection;
mod core;
mod counters;
mod dial;
mod directory;
mod endpoint;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod half_open;
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
pub(crate) use core::Unconsumed;
pub use counters::{Counter, Counters};
pub use endpoint::Endpoint;
pub use error::Error;
pub use listener::{Listener, Request};
pub use remote::Operation;
