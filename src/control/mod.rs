//! The control connection of commands that serve others: `roce serve` and `roce conform serve`.
//!
//! TCP, apart from the traffic that is measured or compared. Everything that all these protocols
//! have in common is here and nowhere else: [`lines`] and [`channel`] (framing: a message is a line
//! of JSON), [`limits`], [`admission`], [`token`] and the [`opening`], by which both sides learn
//! the protocol and prove the token:
//!
//! 1. The client sends `PROTOCOL VERSION NONCE`.
//! 2. The server answers `open` if it has no token, or else `challenge NONCE`.
//! 3. The client sends what it asks for, the first message of its protocol, and if it was
//!    challenged, `proof` and its proof.
//! 4. The server answers `welcome`, with its own proof if there is a token, and messages of the
//!    protocol follow in both directions.
//!
//! At any time, `alive` says that a side is there, and `error` with a reason that it gives up.
//!
//! A proof is the HMAC-SHA256 under the token of: protocol, role, both addresses, both nonces, and
//! what is asked for. It cannot be relayed to another server, replayed, reflected, or used for
//! another request. The client proves first, so that strangers get no proof to guess the token
//! from. A client that has a token ends the connection if the server does not ask for it or cannot
//! prove it.
//!
//! Everything here is reachable by strangers: it is bounded in bytes and in time.

pub mod admission;
pub mod channel;
pub mod limits;
pub mod lines;
pub mod opening;
pub mod protocol;
pub mod tcp;
pub mod text;
pub mod token;
mod words;

pub use admission::{Admission, Limits, Ticket, Use};
pub use channel::{Applicant, Channel, ControlError, Incoming};
pub use lines::{LineError, Lines, Stream};
pub use opening::{Addresses, ClientOpening, OpeningError, ServerOpening};
pub use protocol::Protocol;
pub use tcp::Tcp;
pub use token::{Nonce, Token};
