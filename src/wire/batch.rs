//! Packets on their way out and in, without the network around them.

use std::collections::TryReserveError;

use super::{Bth, Gid, Path};

/// Packets to send, one behind the other in one buffer.
///
/// Each packet runs from its BTH to its last pad byte, and is followed by four bytes of room for an
/// ICRC, which the layer that knows the IP header seals. Packets that go one way together are a
/// [`Train`]. But for the first and last of a message they have one length, for a network that
/// takes many packets of one length at once.
#[derive(Debug)]
pub struct Batch {
    bytes: Vec<u8>,
    /// End of each packet.
    ends: Vec<usize>,
    /// Path of each train, and the index of its first packet. The last may have none yet.
    trains: Vec<(Path, usize)>,
    /// Packets whose ICRC is to be wrong: which packet, in which bits. In order.
    icrc_flips: Vec<(usize, u32)>,
    packets_max: usize,
    bytes_max: usize,
}

/// The room behind each packet.
pub const ICRC_ROOM: usize = 4;

/// The longest a packet can be: the longest headers, the largest MTU, padding.
pub const PACKET_MAX: usize = 64 + 4096 + 4;

/// Packets that go one way, one behind the other.
#[derive(Debug)]
pub struct Train<'a> {
    /// Path of the packets.
    pub path: &'a Path,
    /// Bytes of the packets, each with the room behind it.
    pub bytes: &'a mut [u8],
    /// End of each packet, counted from `start`.
    ends: &'a [usize],
    /// Start of the first packet.
    start: usize,
    /// Index of the first packet in the batch.
    first: usize,
    /// Wrong ICRCs, of this train's packets and of later ones.
    icrc_flips: &'a [(usize, u32)],
}

impl Train<'_> {
    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none, which does not happen.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Each packet with the room behind it, to be sealed in place, once: an ICRC that is to be
    /// wrong is changed afterwards.
    #[inline]
    pub fn for_each_mut(&mut self, mut each: impl FnMut(&mut [u8])) {
        self.for_each_with_flips_mut(|packet, flips| {
            each(packet);
            flip_icrc(packet, flips);
        });
    }

    /// Each packet with the room behind it, and the bits in which its ICRC is to be wrong.
    #[inline]
    pub(crate) fn for_each_with_flips_mut(&mut self, mut each: impl FnMut(&mut [u8], u32)) {
        let (mut rest, mut start) = (&mut *self.bytes, self.start);
        for (index, &end) in self.ends.iter().enumerate() {
            let (packet, behind) = rest.split_at_mut(end - start);
            (rest, start) = (behind, end);
            let mut flips = 0;
            if let Some(((at, found), later)) = self.icrc_flips.split_first()
                && *at == self.first + index
            {
                (flips, self.icrc_flips) = (*found, later);
            }
            each(packet, flips);
        }
    }
}

impl Batch {
    /// Room for so many packets of any length.
    pub fn new(packets_max: usize) -> Self {
        Self::bounded(packets_max, packets_max * (PACKET_MAX + ICRC_ROOM))
    }

    /// Room for so many packets, if they are short; it is full, too, as soon as they have so many
    /// bytes together.
    ///
    /// # Panics
    ///
    /// If there is no memory for them.
    #[expect(clippy::expect_used, reason = "as for every collection")]
    pub fn bounded(packets_max: usize, bytes_max: usize) -> Self {
        Self::try_bounded(packets_max, bytes_max).expect("memory for a batch")
    }

    /// Creates a bounded batch, or returns an error if there is no memory for it.
    pub fn try_bounded(packets_max: usize, bytes_max: usize) -> Result<Self, TryReserveError> {
        let room = packets_max.saturating_mul(PACKET_MAX + ICRC_ROOM);
        let mut batch = Self {
            bytes: Vec::new(),
            ends: Vec::new(),
            trains: Vec::new(),
            icrc_flips: Vec::new(),
            packets_max,
            bytes_max,
        };
        // The last packet may begin just before the limit, and is padded before it is cut.
        batch.bytes.try_reserve_exact(room.min(bytes_max + PACKET_MAX + ICRC_ROOM) + 3)?;
        batch.ends.try_reserve_exact(packets_max)?;
        // Behind a packet with another path, the path of the next may be known without one.
        batch.trains.try_reserve_exact(packets_max + 1)?;
        Ok(batch)
    }

    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether no further packet fits.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.ends.len() >= self.packets_max || self.bytes.len() >= self.bytes_max
    }

    /// Clears the batch.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.trains.clear();
        self.icrc_flips.clear();
    }

    /// Puts in a packet that travels so: from its BTH to its last pad byte. Returns whether there
    /// was room for it.
    pub fn push(&mut self, path: &Path, packet: &[u8]) -> bool {
        if self.is_full() || packet.len() > PACKET_MAX {
            return false;
        }
        self.set_path(path);
        let mut draft = self.draft();
        draft.put(packet);
        draft.finish();
        true
    }

    /// Puts in bytes from a BTH to what stands before the ICRC as they are, even if their length or
    /// their pad count is wrong. The ICRC is right but for the bits of `icrc_flips`, of which the
    /// most significant stands for the first on the wire. Returns whether there was room for them,
    /// and a whole BTH.
    pub fn push_as_is(&mut self, path: &Path, packet: &[u8], icrc_flips: u32) -> bool {
        if self.is_full() || !(Bth::LEN..=PACKET_MAX).contains(&packet.len()) {
            return false;
        }
        self.set_path(path);
        self.bytes.extend_from_slice(packet);
        self.bytes.extend_from_slice(&[0; ICRC_ROOM]);
        if icrc_flips != 0 {
            self.icrc_flips.push((self.ends.len(), icrc_flips));
        }
        self.ends.push(self.bytes.len());
        true
    }

    /// All its packets, one behind the other, each with the room behind it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The trains, to be sealed and sent.
    pub fn trains_mut(&mut self) -> impl Iterator<Item = Train<'_>> {
        let (mut bytes, mut start) = (self.bytes.as_mut_slice(), 0);
        let (trains, ends, flips) = (&self.trains, &self.ends, &self.icrc_flips);
        let lasts = trains.iter().skip(1).map(|(_, first)| *first).chain([ends.len()]);
        trains.iter().zip(lasts).filter_map(move |((path, first), last)| {
            let ends = ends.get(*first..last)?;
            let end = *ends.last()?;
            let (own, rest) = core::mem::take(&mut bytes).split_at_mut(end - start);
            let icrc_flips = flips.get(flips.partition_point(|(at, _)| at < first)..)?;
            let train = Train { path, bytes: own, ends, start, first: *first, icrc_flips };
            (bytes, start) = (rest, end);
            Some(train)
        })
    }

    /// The packets, each to be sealed in place.
    pub fn for_each_mut(&mut self, mut each: impl FnMut(&Path, &mut [u8])) {
        for mut train in self.trains_mut() {
            let path = train.path;
            train.for_each_mut(|packet| each(path, packet));
        }
    }

    /// The packets: how each travels, and its bytes with the room behind them.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        let (mut trains, mut start) = (self.trains.iter().peekable(), 0);
        let mut path = None;
        self.ends.iter().enumerate().filter_map(move |(index, &end)| {
            while let Some((next, _)) = trains.next_if(|(_, first)| *first <= index) {
                path = Some(next);
            }
            let packet = self.bytes.get(start..end)?;
            start = end;
            Some((path?, packet))
        })
    }

    /// Returns the last packet, with the room behind it.
    #[inline]
    pub(crate) fn last(&self) -> &[u8] {
        let (end, before) = match self.ends.as_slice() {
            [.., before, end] => (*end, *before),
            [end] => (*end, 0),
            [] => (0, 0),
        };
        self.bytes.get(before..end).unwrap_or_default()
    }

    /// The bits in which the ICRC of packet `index` is wrong.
    pub(crate) fn icrc_flips_of(&self, index: usize) -> u32 {
        let found = self.icrc_flips.binary_search_by_key(&index, |(at, _)| *at);
        found.ok().and_then(|at| self.icrc_flips.get(at)).map_or(0, |(_, flips)| *flips)
    }

    /// Lets the packets that are put in next travel so.
    #[inline]
    pub(crate) fn set_path(&mut self, path: &Path) {
        match self.trains.last_mut() {
            Some((last, _)) if last == path => {}
            Some((last, first)) if *first == self.ends.len() => *last = *path,
            _ => self.trains.push((*path, self.ends.len())),
        }
    }

    /// Begins a packet, whose headers and payload are put in next.
    #[inline]
    pub(crate) fn draft(&mut self) -> Draft<'_> {
        debug_assert!(!self.trains.is_empty(), "a packet goes somewhere");
        let start = self.bytes.len();
        Draft { batch: self, start }
    }
}

/// Changes bits of the ICRC at the end of a sealed packet. The most significant stands for the
/// first on the wire.
#[inline]
pub(crate) fn flip_icrc(sealed: &mut [u8], flips: u32) {
    if flips != 0
        && let Some(icrc) = sealed.last_chunk_mut::<ICRC_ROOM>()
    {
        *icrc = (u32::from_be_bytes(*icrc) ^ flips).to_be_bytes();
    }
}

/// A packet that is being put together at the end of a batch. Unless it is finished, there is none.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    batch: &'a mut Batch,
    start: usize,
}

impl Draft<'_> {
    /// Returns the bytes so far, to be continued.
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.batch.bytes
    }

    /// Appends a header.
    #[inline]
    pub(crate) fn put(&mut self, header: &[u8]) {
        self.batch.bytes.extend_from_slice(header);
    }

    /// Pads it, and leaves room for its ICRC.
    #[inline]
    pub(crate) fn finish(mut self) {
        let bytes = &mut self.batch.bytes;
        let pad = (bytes.len() - self.start).wrapping_neg() % 4;
        bytes.extend_from_slice(&[0; 3 + ICRC_ROOM]);
        bytes.truncate(bytes.len() - (3 - pad));
        self.start = bytes.len();
        self.batch.ends.push(self.start);
    }
}

impl Drop for Draft<'_> {
    #[inline]
    fn drop(&mut self) {
        self.batch.bytes.truncate(self.start);
    }
}

/// A packet that came in. The network layer has checked its ICRC.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Address of the sender.
    pub source: Gid,
    /// Address of the receiver.
    pub destination: Gid,
    /// The UDP source port, which only tells flows apart; 0 if there is none.
    pub source_port: u16,
    /// The two bits of explicit congestion notification.
    pub ecn: u8,
    /// The IPv4 header, IPv6 header or GRH, for datagrams to be handed over with.
    pub network: &'a [u8],
    /// Packet, from the BTH to the last pad byte.
    pub packet: &'a [u8],
}

impl<'a> Received<'a> {
    /// Returns a packet of a [`Batch`] as it arrives at its receiver, with nothing between the two
    /// that could change it: from the BTH to the room for the ICRC.
    pub fn unchanged(path: &Path, bytes: &'a [u8]) -> Self {
        Self {
            source: path.source,
            destination: path.destination,
            source_port: path.source_port,
            ecn: 0,
            network: &[],
            packet: bytes.get(..bytes.len().saturating_sub(ICRC_ROOM)).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Bits;

    fn path() -> Path {
        Path {
            source: Gid::default(),
            destination: Gid::default(),
            source_port: 0xc000,
            traffic_class: 0,
            hop_limit: 64,
            sl: 0,
            flow_label: Bits::default(),
        }
    }

    /// Returns the number of packets of so many bytes that fit, and whether more memory was needed
    /// for them.
    fn filled(mut batch: Batch, len: usize) -> (usize, bool) {
        let before = batch.bytes.capacity();
        while batch.push(&path(), &vec![0; len]) {}
        assert!(batch.is_full());
        (batch.len(), batch.bytes.capacity() > before)
    }

    #[test]
    fn bytes_that_are_put_in_as_they_are_keep_their_length_and_get_a_wrong_icrc() {
        let (mut batch, mut sealed) = (Batch::new(2), Vec::new());
        assert!(!batch.push_as_is(&path(), &[0; 11], 0), "no BTH");
        assert!(batch.push_as_is(&path(), &[7; 14], 0x8000_0001));
        assert!(batch.push_as_is(&path(), &[7; 14], 0));
        batch.for_each_mut(|path, packet| {
            path.seal(packet);
            sealed.push(packet.to_vec());
        });
        // The ICRC is changed behind the sealing.
        let after: Vec<Vec<u8>> = batch.iter().map(|(_, packet)| packet.to_vec()).collect();
        assert_eq!(sealed[0], sealed[1]);
        assert_eq!((after[0].len(), &after[1]), (18, &sealed[1]));
        let difference: Vec<u8> = after[0].iter().zip(&after[1]).map(|(a, b)| a ^ b).collect();
        assert_eq!(difference[14..], [0x80, 0, 0, 1]);
        assert!(difference[..14].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn it_is_full_of_packets_or_of_bytes_whichever_comes_first() {
        assert_eq!(filled(Batch::new(8), PACKET_MAX), (8, false));
        assert_eq!(filled(Batch::new(8), 12), (8, false));
        let bytes = 3 * PACKET_MAX;
        assert_eq!(filled(Batch::bounded(8, bytes), 12), (8, false));
        assert_eq!(filled(Batch::bounded(8, bytes), PACKET_MAX), (3, false));
        assert_eq!(filled(Batch::bounded(8, bytes), 4000), (4, false));
    }
}
