//! Packets on their way out and in, without the network around them.

use std::collections::TryReserveError;

use super::icrc::Prefix;
use super::{Bth, Gid, Path};
use crate::memory::{AccessError, Parts, Region, SharedBytes};

/// Packets to send, one behind the other in one buffer.
///
/// Each packet runs from its BTH to its last pad byte, and is followed by four bytes of room for an
/// ICRC, which the layer that knows the IP header seals. Packets that go one way together are a
/// [`Train`]. But for the first and last of a message they have one length, for a network that
/// takes many packets of one length at once.
///
/// In a batch that [takes references](Self::take_references), payload that lies in registered
/// memory is not copied: its place in the buffer stays as it was until [`fill`](Self::fill), or
/// until a link copies the payload to where it goes.
#[derive(Debug)]
pub struct Batch {
    /// Bytes of the packets, and behind `len` those of earlier ones.
    bytes: Vec<u8>,
    len: usize,
    /// End of each packet.
    ends: Vec<usize>,
    /// Payload that is not copied yet, in the order of its packets.
    references: Vec<Reference>,
    takes_references: bool,
    /// Path of each train, and the index of its first packet. The last may have none yet.
    trains: Vec<(Path, usize)>,
    /// Packets whose ICRC is to be wrong: which packet, in which bits. In order.
    icrc_flips: Vec<(usize, u32)>,
    packets_max: usize,
    bytes_max: usize,
}

/// Payload of packets that is not copied yet: of one, or of a run with headers of one length.
#[derive(Debug)]
struct Reference {
    /// Index of the first packet, and number of packets.
    packet: usize,
    count: usize,
    /// Place of its payload in the buffer of the batch, and distance to that of the next.
    start: usize,
    stride: usize,
    /// Payload of all of them, and how much of it each has.
    payload: Region,
    each: usize,
}

impl Reference {
    /// Index of the packet behind the last.
    #[inline]
    fn end(&self) -> usize {
        self.packet + self.count
    }
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
    /// Payload that is not copied, of this train's packets and of later ones.
    references: &'a [Reference],
}

/// A packet of a train on its way out: it is [sealed](Self::seal) once.
#[derive(Debug)]
pub struct Outbound<'a> {
    /// Bytes of the packet, with the room behind it.
    pub(crate) bytes: &'a mut [u8],
    /// Bits in which its ICRC is to be wrong.
    pub(crate) icrc_flips: u32,
    /// Payload that is not in `bytes` yet, and its place there.
    pub(crate) payload: Option<(usize, &'a Region)>,
}

impl<'a> Outbound<'a> {
    /// Returns the number of bytes, with the room behind the packet.
    #[inline]
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Writes the ICRC, and copies payload that is referenced, in one pass where the processor can.
    /// Applies the fault injector's change of the ICRC. Returns the packet with its ICRC; `None` if
    /// its payload is not mapped any more.
    #[inline]
    pub fn seal(self, prefix: &Prefix) -> Option<&'a mut [u8]> {
        match self.payload {
            None => prefix.seal(self.bytes),
            Some((start, payload)) => prefix.seal_filling(self.bytes, start, payload).ok()?,
        }
        flip_icrc(self.bytes, self.icrc_flips);
        Some(self.bytes)
    }

    /// Copies payload that is not there yet to its place.
    #[inline]
    pub(crate) fn fill(&mut self) -> Result<(), AccessError> {
        let Some((start, payload)) = self.payload.take() else { return Ok(()) };
        payload.read(0, self.bytes.get_mut(start..start + payload.len()).unwrap_or_default())
    }
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
    /// wrong is changed afterwards. Payload that is referenced is copied in just before; a packet
    /// whose payload is not mapped any more is left out.
    #[inline]
    pub fn for_each_mut(&mut self, mut each: impl FnMut(&mut [u8])) {
        self.for_each_outbound(|mut packet| {
            if packet.fill().is_ok() {
                each(packet.bytes);
                flip_icrc(packet.bytes, packet.icrc_flips);
            }
        });
    }

    /// Each packet, to be sealed. Payload that is referenced is not copied yet.
    #[inline]
    pub fn for_each_outbound(&mut self, mut each: impl FnMut(Outbound<'_>)) {
        let (mut rest, mut start) = (&mut *self.bytes, self.start);
        // Parts of the payload of a run.
        let mut parts: Option<(&Reference, Parts<'_>)> = None;
        for (index, &end) in (self.first..).zip(self.ends) {
            let (bytes, behind) = rest.split_at_mut(end - start);
            let mut icrc_flips = 0;
            if let Some(((at, found), later)) = self.icrc_flips.split_first()
                && *at == index
            {
                (icrc_flips, self.icrc_flips) = (*found, later);
            }
            let mut payload = None;
            if let Some((reference, later)) = self.references.split_first()
                && reference.packet == index
            {
                self.references = later;
                if reference.count == 1 {
                    payload = Some((reference.start - start, &reference.payload));
                } else {
                    parts = reference.payload.parts(reference.each).ok().map(|at| (reference, at));
                }
            }
            if let Some((reference, parts)) = &mut parts
                && index < reference.end()
            {
                let at = index - reference.packet;
                let place = reference.start + at * reference.stride - start;
                payload = parts.at(at * reference.each).map(|part| (place, part));
            }
            each(Outbound { bytes, icrc_flips, payload });
            (rest, start) = (behind, end);
        }
    }
}

impl Batch {
    /// Room for `packets_max` packets of any length.
    pub fn new(packets_max: usize) -> Self {
        Self::bounded(packets_max, packets_max * (PACKET_MAX + ICRC_ROOM))
    }

    /// Room for `packets_max` packets that have at most `bytes_max` bytes together.
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
            len: 0,
            ends: Vec::new(),
            references: Vec::new(),
            takes_references: false,
            trains: Vec::new(),
            icrc_flips: Vec::new(),
            packets_max,
            bytes_max,
        };
        // The last packet may begin just before the limit, and is padded before it is cut.
        batch.bytes.try_reserve_exact(room.min(bytes_max + PACKET_MAX + ICRC_ROOM) + PAD_ROOM)?;
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

    /// Lets the batch be full with `bytes_max` bytes, which are not more than it was made for.
    pub(crate) fn limit(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Whether no further packet fits.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.ends.len() >= self.packets_max || self.len >= self.bytes_max
    }

    /// Lets packets that are put in from now on reference payload in registered memory, instead of
    /// copying it, or not. The memory must stay registered until the batch is
    /// [filled](Self::fill), sent or cleared.
    #[must_use]
    pub fn take_references(mut self, takes: bool) -> Self {
        self.takes_references = takes;
        self
    }

    /// Sets whether payload may be referenced.
    pub(crate) fn set_takes_references(&mut self, takes: bool) {
        self.takes_references = takes;
    }

    /// Copies payload that is referenced into the packets. After an error some packets lack it.
    pub fn fill(&mut self) -> Result<(), AccessError> {
        self.references.drain(..).try_for_each(|reference| {
            let each = reference.each;
            (0..reference.count).try_for_each(|at| {
                let start = reference.start + at * reference.stride;
                let room = self.bytes.get_mut(start..start + each);
                reference.payload.read((at * each) as u64, room.unwrap_or_default())
            })
        })
    }

    /// Clears the batch.
    pub fn clear(&mut self) {
        self.len = 0;
        self.ends.clear();
        self.references.clear();
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
        if icrc_flips != 0 {
            self.icrc_flips.push((self.ends.len(), icrc_flips));
        }
        let mut draft = self.draft();
        draft.put(packet);
        draft.put(&[0; ICRC_ROOM]);
        draft.end();
        true
    }

    /// All its packets, one behind the other, each with the room behind it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.len).unwrap_or_default()
    }

    /// The trains, to be sealed and sent.
    pub fn trains_mut(&mut self) -> impl Iterator<Item = Train<'_>> {
        let (mut bytes, mut start) = (self.bytes.get_mut(..self.len).unwrap_or_default(), 0);
        let (trains, ends, flips) = (&self.trains, &self.ends, &self.icrc_flips);
        let references = &self.references;
        let lasts = trains.iter().skip(1).map(|(_, first)| *first).chain([ends.len()]);
        trains.iter().zip(lasts).filter_map(move |((path, first), last)| {
            let ends = ends.get(*first..last)?;
            let end = *ends.last()?;
            let (own, rest) = core::mem::take(&mut bytes).split_at_mut(end - start);
            let icrc_flips = flips.get(flips.partition_point(|(at, _)| at < first)..)?;
            let later = references.partition_point(|reference| reference.end() <= *first);
            let references = references.get(later..)?;
            let first = *first;
            let train = Train { path, bytes: own, ends, start, first, icrc_flips, references };
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
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &[u8])> + Clone {
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

    /// Begins a run of packets that have `each` bytes of `payload` each, a multiple of four.
    #[inline]
    pub(crate) fn run(&mut self, payload: Region, each: usize) -> Run<'_> {
        debug_assert!(each.is_multiple_of(4), "a run has no padding");
        let (packet, start) = (self.ends.len(), self.len + Bth::LEN);
        let stride = Bth::LEN + each + ICRC_ROOM;
        let reference = Reference { packet, count: 0, start, stride, payload, each };
        Run { batch: self, reference }
    }

    /// Begins a packet, whose headers and payload are put in next.
    #[inline(always)]
    pub(crate) fn draft(&mut self) -> Draft<'_> {
        debug_assert!(!self.trains.is_empty(), "a packet goes somewhere");
        let start = self.len;
        if self.bytes.len() < start + DRAFT_MAX {
            // As far as it was reserved.
            self.bytes.resize(start + DRAFT_MAX, 0);
        }
        let references = self.references.len();
        Draft { batch: self, start, at: start, references, by_reference: false }
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

/// Room for padding, of which there are at most three bytes.
const PAD_ROOM: usize = 4;

/// Longest packet, padding and the room behind it.
const DRAFT_MAX: usize = PACKET_MAX + PAD_ROOM + ICRC_ROOM;

/// A packet that is being put together at the end of a batch. Unless it is finished, there is none.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    batch: &'a mut Batch,
    start: usize,
    /// End of what was put in.
    at: usize,
    /// Number of references of the packets before it.
    references: usize,
    by_reference: bool,
}

impl Draft<'_> {
    /// Returns the place of the next `len` bytes, which hold anything; none if they are more than a
    /// packet has.
    #[inline(always)]
    pub(crate) fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let end = self.at.checked_add(len)?;
        let room = self.batch.bytes.get_mut(self.at..end)?;
        self.at = end;
        Some(room)
    }

    /// Appends a header, or payload.
    #[inline(always)]
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let room = self.room(bytes.len());
        debug_assert!(room.is_some(), "a packet is no longer than PACKET_MAX");
        if let Some(room) = room {
            room.copy_from_slice(bytes);
        }
    }

    /// Lets payload be referenced, if the batch takes references.
    #[inline]
    pub(crate) fn allow_reference(&mut self, is_allowed: bool) {
        self.by_reference = is_allowed && self.batch.takes_references;
    }

    /// Whether payload may be referenced.
    #[inline]
    pub(crate) fn by_reference(&self) -> bool {
        self.by_reference
    }

    /// Appends all its payload, which is copied later.
    #[inline]
    pub(crate) fn reference(&mut self, payload: Region) {
        let (packet, start) = (self.batch.ends.len(), self.at);
        if self.room(payload.len()).is_some() {
            let (count, stride, each) = (1, 0, payload.len());
            self.batch.references.push(Reference { packet, count, start, stride, payload, each });
        }
    }

    /// Pads it, and leaves room for its ICRC.
    #[inline(always)]
    pub(crate) fn finish(self) {
        let pad = (self.at - self.start).wrapping_neg() % 4;
        if let Some(room) = self.batch.bytes.get_mut(self.at..).and_then(<[u8]>::first_chunk_mut) {
            // One store, of which the next packet begins with what is too much.
            *room = [0; PAD_ROOM + ICRC_ROOM];
        }
        let end = self.at + pad + ICRC_ROOM;
        self.end_at(end);
    }

    /// Ends it as it is: with the room for its ICRC.
    #[inline(always)]
    fn end(self) {
        let end = self.at;
        self.end_at(end);
    }

    #[inline(always)]
    fn end_at(self, end: usize) {
        self.batch.len = end;
        self.batch.ends.push(end);
        // It is finished: nothing is taken back.
        core::mem::forget(self);
    }
}

impl Drop for Draft<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.batch.references.len() > self.references {
            self.batch.references.truncate(self.references);
        }
    }
}

/// Packets that are being put together at the end of a batch: a BTH each, and the next bytes of one
/// payload. Their payload is copied, or referenced once for all of them.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    batch: &'a mut Batch,
    /// Its packets and their payload, also where that is copied.
    reference: Reference,
}

impl Run<'_> {
    /// Whether no further packet fits into the batch.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.batch.is_full()
    }

    /// Adds a packet with this header; returns whether its payload can be read. If not, there is no
    /// such packet.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn push(&mut self, header: &[u8; Bth::LEN]) -> bool {
        let Self { batch, reference: Reference { count, stride, payload, each, .. } } = self;
        let start = batch.len;
        if batch.bytes.len() < start + DRAFT_MAX {
            // As far as it was reserved.
            batch.bytes.resize(start + DRAFT_MAX, 0);
        }
        let end = start + *stride;
        let Some((place, rest)) =
            batch.bytes.get_mut(start..end).and_then(<[u8]>::split_first_chunk_mut)
        else {
            return false;
        };
        *place = *header;
        let Some((room, icrc)) = rest.split_last_chunk_mut::<ICRC_ROOM>() else { return false };
        *icrc = [0; ICRC_ROOM];
        if !batch.takes_references && payload.read((*count * *each) as u64, room).is_err() {
            return false;
        }
        *count += 1;
        batch.len = end;
        batch.ends.push(end);
        true
    }

    /// Ends the run.
    #[inline]
    pub(crate) fn finish(self) {
        let Self { batch, mut reference } = self;
        if batch.takes_references && reference.count > 0 {
            reference.payload.truncate(reference.count * reference.each);
            batch.references.push(reference);
        }
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
    /// Payload that is not in `packet`, which then ends with the headers and has no padding.
    pub payload: Option<SharedBytes<'a>>,
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
            payload: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Buffer;
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

    /// Returns the number of packets of `len` bytes that fit, and whether more memory was needed
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
    fn referenced_payload_is_copied_when_it_is_filled_in() {
        let buffer = Buffer::from_bytes(&[7; 64]);
        let mut batch = Batch::new(3).take_references(true);
        batch.set_path(&path());
        for is_referenced in [true, false, true] {
            let mut draft = batch.draft();
            draft.allow_reference(is_referenced);
            assert_eq!(draft.by_reference(), is_referenced);
            draft.put(&[1; Bth::LEN]);
            match is_referenced {
                true => draft.reference(buffer.region().part(8, 32).unwrap()),
                false => draft.put(&[9; 32]),
            }
            draft.finish();
        }
        let mut referenced = Vec::new();
        for mut train in batch.trains_mut() {
            train.for_each_outbound(|packet| referenced.push(packet.payload.map(|(at, _)| at)));
        }
        assert_eq!(referenced, [Some(Bth::LEN), None, Some(Bth::LEN)]);
        buffer.write(8, &[8; 32]).unwrap();
        batch.fill().unwrap();
        let payloads: Vec<_> = batch.iter().map(|(_, packet)| packet[Bth::LEN]).collect();
        assert_eq!(payloads, [8, 9, 8]);
        batch.for_each_mut(|_, packet| assert_eq!(packet[Bth::LEN..][..32], [packet[12]; 32]));
    }

    #[test]
    fn referenced_payload_is_sealed_as_copied_payload_is() {
        let bytes: Vec<u8> = (0..4200_u32).map(|at| (at * 7 + at / 256).to_le_bytes()[0]).collect();
        let buffer = Buffer::from_bytes(&bytes);
        for len in (0..=4096).step_by(32).chain([1, 2, 3, 5, 66, 129, 4095]) {
            for headers in [Bth::LEN, Bth::LEN + 16, Bth::LEN + 20] {
                let mut batch = Batch::new(2).take_references(true);
                batch.set_path(&path());
                for is_referenced in [true, false] {
                    let mut draft = batch.draft();
                    draft.allow_reference(is_referenced);
                    draft.put(&vec![0x15; headers]);
                    match is_referenced {
                        true => draft.reference(buffer.region().part(3, len).unwrap()),
                        false => draft.put(&bytes[3..3 + len]),
                    }
                    draft.finish();
                }
                let mut sealed = Vec::new();
                for mut train in batch.trains_mut() {
                    let path = train.path;
                    train.for_each_outbound(|packet| {
                        let prefix = path.prefix(packet.byte_len());
                        sealed.push(packet.seal(&prefix).unwrap().to_vec());
                    });
                }
                assert_eq!(sealed[0], sealed[1], "{len} behind {headers}");
            }
        }
    }

    #[test]
    fn packet_whose_payload_is_unmapped_is_not_sealed() {
        let mut batch = Batch::new(1).take_references(true);
        batch.set_path(&path());
        let mut draft = batch.draft();
        draft.allow_reference(true);
        draft.put(&[1; Bth::LEN]);
        draft.reference(Region::unmapped(256));
        draft.finish();
        for mut train in batch.trains_mut() {
            let prefix = train.path.prefix(272);
            train.for_each_outbound(|packet| assert!(packet.seal(&prefix).is_none()));
        }
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
