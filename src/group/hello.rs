//! Messages of two members when they connect.
//!
//! A hello is the private data of the connection's request and of its reply. It says who its sender
//! is, and has a nonce. Then three messages go over the connection, each with a proof that its
//! sender knows the group's secret and has the same list of servers: the acceptor proves itself;
//! the dialer does, and says how many messages it has received; the acceptor says the same. Each
//! proof is over both hellos, so that none is of use in another connection or in the other
//! direction.

use super::hosts::Hosts;
use super::secret::Secret;
use crate::net::limits::PRIVATE_DATA_MAX;
use crate::proof::{NONCE, Proof};

/// Marks the private data of this protocol, and its version.
const MAGIC: [u8; 4] = *b"rG\x02\0";

/// Marks an account.
const ACCOUNT: [u8; 4] = *b"rA\x02\0";

/// The name of the protocol, in proofs.
const PROTOCOL: &str = "roce group 2";

/// Bytes of a hello.
pub(super) const BYTES: usize = 36;

// The connection has room for it.
const _: () = assert!(BYTES == PRIVATE_DATA_MAX && BYTES == 20 + NONCE);

/// A number that is drawn for each attempt to connect.
pub(super) type Nonce = [u8; NONCE];

/// A member that connects or accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) server: u16,
    pub(super) thread: u16,
    /// A random number that a server draws when it starts: it tells a restart from another
    /// connection of the same run.
    pub(super) incarnation: u64,
    /// Number of the attempt to connect, in this incarnation.
    pub(super) attempt: u32,
    pub(super) nonce: Nonce,
}

impl Hello {
    pub(super) fn emit(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let parts = MAGIC.into_iter();
        let parts = parts.chain(self.server.to_le_bytes()).chain(self.thread.to_le_bytes());
        let parts = parts.chain(self.incarnation.to_le_bytes());
        let parts = parts.chain(self.attempt.to_le_bytes()).chain(self.nonce);
        bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
        bytes
    }

    /// `None` if it is not of this protocol.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (server, rest) = rest.split_first_chunk()?;
        let (thread, rest) = rest.split_first_chunk()?;
        let (incarnation, rest) = rest.split_first_chunk()?;
        let (attempt, rest) = rest.split_first_chunk()?;
        let nonce = rest.first_chunk()?;
        (*magic == MAGIC).then_some(Self {
            server: u16::from_le_bytes(*server),
            thread: u16::from_le_bytes(*thread),
            incarnation: u64::from_le_bytes(*incarnation),
            attempt: u32::from_le_bytes(*attempt),
            nonce: *nonce,
        })
    }
}

/// The messages of the exchange, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The acceptor proves itself.
    Accepted,
    /// The dialer proves itself, and says what it has received.
    Dialer,
    /// The acceptor says what it has received.
    Acceptor,
}

impl Step {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Accepted => b"acceptor proves itself",
            Self::Dialer => b"dialer has received",
            Self::Acceptor => b"acceptor has received",
        }
    }
}

/// Both hellos of a connection, and what both sides must know beside.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) secret: Secret,
    pub(super) hosts: Hosts,
    pub(super) dialer: Hello,
    pub(super) acceptor: Hello,
}

impl Exchange {
    fn proof(&self, step: Step, received: u64) -> Proof {
        Proof::new(self.secret.bytes(), PROTOCOL)
            .field("step", step.label())
            .field("hosts", self.hosts.to_string().as_bytes())
            .field("dialer", &self.dialer.emit())
            .field("acceptor", &self.acceptor.emit())
            .field("received", &received.to_le_bytes())
    }

    /// Returns a message of the exchange.
    pub(super) fn emit(&self, step: Step, received: u64) -> Vec<u8> {
        let tag = self.proof(step, received).tag();
        [&ACCOUNT[..], &received.to_le_bytes(), &tag].concat()
    }

    /// Returns what a message of the exchange says; `None` if its sender does not prove it.
    pub(super) fn parse(&self, step: Step, message: &[u8]) -> Option<u64> {
        let (magic, rest) = message.split_first_chunk::<4>()?;
        let (received, tag) = rest.split_first_chunk()?;
        let received = u64::from_le_bytes(*received);
        let is_proven = *magic == ACCOUNT && self.proof(step, received).verify(tag);
        is_proven.then_some(received)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(server: u16, nonce: u8) -> Hello {
        let (thread, incarnation, attempt) = (0x0304, u64::MAX - 1, 0xdead_beef);
        Hello { server, thread, incarnation, attempt, nonce: [nonce; NONCE] }
    }

    #[test]
    fn hello_round_trips_and_nonsense_is_refused() {
        let hello = hello(0x0102, 9);
        let bytes = hello.emit();
        assert_eq!(Hello::parse(&bytes), Some(hello));
        assert_eq!(Hello::parse(&bytes[..35]), None);
        for at in 0..4 {
            let mut bytes = bytes;
            bytes[at] ^= 1;
            assert_eq!(Hello::parse(&bytes), None);
        }
    }

    #[test]
    fn account_is_proven_by_secret_hosts_hellos_and_step() {
        let hosts = |list: &str| list.parse::<Hosts>().unwrap();
        let list = hosts("192.0.2.1:7000,192.0.2.2:7000");
        let (dialer, acceptor) = (hello(1, 1), hello(0, 2));
        let secret = Secret::new(b"secret");
        let exchange = Exchange { secret, hosts: list, dialer, acceptor };
        let bytes = exchange.emit(Step::Dialer, 77);
        assert_eq!(exchange.parse(Step::Dialer, &bytes), Some(77));
        assert_eq!(exchange.parse(Step::Acceptor, &bytes), None);
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(exchange.parse(Step::Dialer, &bytes), None, "byte {at}");
        }
        for len in 0..bytes.len() {
            assert_eq!(exchange.parse(Step::Dialer, &bytes[..len]), None);
        }
        let others = [
            Exchange { secret: Secret::new(b"other"), ..exchange.clone() },
            Exchange { secret: Secret::default(), ..exchange.clone() },
            Exchange { hosts: hosts("192.0.2.1:7000,192.0.2.3:7000"), ..exchange.clone() },
            Exchange { dialer: hello(1, 3), ..exchange.clone() },
            Exchange { acceptor: hello(2, 2), ..exchange.clone() },
            Exchange { dialer: acceptor, acceptor: dialer, ..exchange },
        ];
        for other in others {
            assert_eq!(other.parse(Step::Dialer, &bytes), None, "{other:?}");
        }
    }
}
