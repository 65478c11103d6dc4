//! Packets on their way out and in, without the network around them.

use crate::wire::{Gid, Path};

/// Packets to send, one behind the other in one buffer.
///
/// Each packet runs from its BTH to its last pad byte, and is followed by four bytes of room for an ICRC, which
/// whoever knows the IP header seals. Packets of one flow lie together and, but for the first and last of a message,
/// have one length: trains for a network that takes them so.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    packets: Vec<(Path, u32, u32)>,
    packets_max: usize,
    bytes_max: usize,
}

/// The room behind each packet.
pub const ICRC_ROOM: usize = 4;

/// The longest a packet can be: the longest headers, the largest MTU, padding.
pub const PACKET_MAX: usize = 64 + 4096 + 4;

impl Batch {
    /// Room for so many packets of any length.
    pub fn new(packets_max: usize) -> Self {
        let bytes_max = packets_max * (PACKET_MAX + ICRC_ROOM);
        Self {
            bytes: Vec::with_capacity(bytes_max),
            packets: Vec::with_capacity(packets_max),
            packets_max,
            bytes_max,
        }
    }

    /// How many packets are in it.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether another packet may not fit.
    pub fn is_full(&self) -> bool {
        self.packets.len() >= self.packets_max
            || self.bytes.len() + PACKET_MAX + ICRC_ROOM > self.bytes_max
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
    }

    /// The packets: how each travels, and its bytes with the room behind them.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        self.packets.iter().map(|(route, start, end)| {
            (route, self.bytes.get(*start as usize..*end as usize).unwrap_or_default())
        })
    }

    /// The same, to be sealed in place.
    pub fn for_each_mut(&mut self, mut each: impl FnMut(&Path, &mut [u8])) {
        for (route, start, end) in &self.packets {
            each(route, &mut self.bytes[*start as usize..*end as usize]);
        }
    }

    /// Appends a packet of `headers` and `payload_len` bytes, which `fill` puts in place. If it cannot, there is no
    /// packet.
    #[inline]
    pub(super) fn push<E>(
        &mut self,
        route: &Path,
        headers: &[u8],
        payload_len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(headers);
        let payload = self.bytes.len();
        self.bytes.resize(payload + payload_len.next_multiple_of(4) + ICRC_ROOM, 0);
        if let Err(error) = fill(&mut self.bytes[payload..payload + payload_len]) {
            self.bytes.truncate(start);
            return Err(error);
        }
        #[expect(clippy::cast_possible_truncation, reason = "a batch is some megabytes at most")]
        self.packets.push((*route, start as u32, self.bytes.len() as u32));
        Ok(())
    }
}

/// A packet that came in. The network layer has checked its ICRC.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// From whom.
    pub source: Gid,
    /// To whom.
    pub destination: Gid,
    /// The two bits of explicit congestion notification.
    pub ecn: u8,
    /// The IPv4 header, IPv6 header or GRH, for datagrams to be handed over with.
    pub network: &'a [u8],
    /// From the BTH to the last pad byte.
    pub packet: &'a [u8],
}
