//! What two members tell each other when they connect: private data of the connection.

use crate::net::limits::PRIVATE_DATA_MAX;

/// Marks the private data of this protocol, and its version.
const MAGIC: [u8; 3] = *b"rG\x01";

/// Bytes of a hello.
pub(super) const BYTES: usize = 36;

// The connection has room for it.
const _: () = assert!(BYTES == PRIVATE_DATA_MAX);

/// A member, and what it has had of the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) server: u16,
    pub(super) thread: u16,
    /// A random number that a server draws when it starts: it tells a restart from another connection of the same run.
    pub(super) incarnation: u64,
    /// The incarnation of the receiver of this hello, as far as its sender knows; 0 if it has never met one.
    pub(super) peer: u64,
    /// Number of messages that its sender has received of this incarnation of the other one.
    pub(super) received: u64,
    /// Number of the attempt to connect, in this incarnation.
    pub(super) attempt: u32,
}

impl Hello {
    pub(super) fn emit(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let parts = MAGIC.into_iter().chain([0]);
        let parts = parts.chain(self.server.to_le_bytes()).chain(self.thread.to_le_bytes());
        let parts = parts.chain(self.incarnation.to_le_bytes()).chain(self.peer.to_le_bytes());
        let parts = parts.chain(self.received.to_le_bytes()).chain(self.attempt.to_le_bytes());
        bytes.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
        bytes
    }

    /// `None` if it is not of this protocol.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (server, rest) = rest.split_first_chunk()?;
        let (thread, rest) = rest.split_first_chunk()?;
        let (incarnation, rest) = rest.split_first_chunk()?;
        let (peer, rest) = rest.split_first_chunk()?;
        let (received, rest) = rest.split_first_chunk()?;
        let attempt = rest.first_chunk()?;
        let [a, b, c] = MAGIC;
        (*magic == [a, b, c, 0]).then_some(Self {
            server: u16::from_le_bytes(*server),
            thread: u16::from_le_bytes(*thread),
            incarnation: u64::from_le_bytes(*incarnation),
            peer: u64::from_le_bytes(*peer),
            received: u64::from_le_bytes(*received),
            attempt: u32::from_le_bytes(*attempt),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hello_round_trips_and_nonsense_is_refused() {
        let hello = Hello {
            server: 0x0102,
            thread: 0x0304,
            incarnation: u64::MAX - 1,
            peer: 7,
            received: 1 << 40,
            attempt: 0xdead_beef,
        };
        let bytes = hello.emit();
        assert_eq!(Hello::parse(&bytes), Some(hello));
        assert_eq!(Hello::parse(&bytes[..35]), None);
        for at in 0..4 {
            let mut bytes = bytes;
            bytes[at] ^= 1;
            assert_eq!(Hello::parse(&bytes), None);
        }
    }
}
