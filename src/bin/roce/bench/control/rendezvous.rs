//! Rendezvous of the queue pairs of a run that the connection manager connects.

use anyhow::ensure;
use roce::control::Channel;
use serde::{Deserialize, Serialize};

use super::messages::{Message, receive};

/// Bytes of a key.
const KEY_BYTES: usize = 16;

/// First bytes of the private data.
const MAGIC: [u8; 8] = *b"roce-qp\0";

/// Port of the connection manager at which a server listens for the queue pairs of one client, and
/// a key that only the client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rendezvous {
    pub(crate) port: u16,
    pub(crate) key: [u8; KEY_BYTES],
}

impl Rendezvous {
    /// Receives the rendezvous of a server.
    pub(crate) fn receive(control: &mut Channel) -> anyhow::Result<Self> {
        const RENDEZVOUS: &str = "a rendezvous";
        match receive(control, RENDEZVOUS)? {
            Message::Rendezvous(it) => {
                ensure!(it.port > 0, "there is no port 0");
                Ok(it)
            }
            other => Err(control.unexpected(&other, RENDEZVOUS).into()),
        }
    }

    /// The private data of a queue pair's request: the key, and the number of the queue pair.
    pub(crate) fn private_data(self, q: u32) -> Vec<u8> {
        [&MAGIC[..], &self.key, &q.to_be_bytes()].concat()
    }

    /// The number of the queue pair whose request has this private data; `None` if it is not of
    /// this meeting.
    pub(crate) fn queue_pair(self, private_data: &[u8]) -> Option<u32> {
        let rest = private_data.strip_prefix(&MAGIC)?;
        let (key, rest) = rest.split_first_chunk::<KEY_BYTES>()?;
        let number = rest.first_chunk::<4>().copied().map(u32::from_be_bytes);
        // In a time that does not tell where the difference is.
        let differs = key.iter().zip(self.key).fold(0, |all, (a, b)| all | (a ^ b));
        number.filter(|_| differs == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_tells_its_queue_pair_to_the_one_that_has_the_key() {
        let rendezvous = Rendezvous { port: 7, key: *b"0123456789abcdef" };
        let mut data = rendezvous.private_data(258);
        data.resize(56, 0);
        assert_eq!(rendezvous.queue_pair(&data), Some(258));
        let other = Rendezvous { key: *b"0123456789abcdeg", ..rendezvous };
        assert_eq!(other.queue_pair(&data), None);
        assert_eq!(rendezvous.queue_pair(&data[..27]), None);
        assert_eq!(rendezvous.queue_pair(&[]), None);
        data[0] = b'R';
        assert_eq!(rendezvous.queue_pair(&data), None);
    }
}
