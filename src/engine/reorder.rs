//! Packets that came before others: bitmaps of them, and the memory that holds them.
//!
//! Everything is bounded: a window of [`SPAN`] PSNs for each direction of a queue pair, and memory
//! for each queue pair and for all together ([`Limits`](super::Limits)). What does not fit is
//! dropped and counted, as if it were lost.

use super::Counter;
use super::config::Limits;
use super::counters::Counters;
use crate::memory::Payload;
use crate::time::Instant;
use crate::wire::{PACKET_MAX, Packet, Psn};

/// Number of PSNs from the first that is missing within which packets are held.
pub(super) const SPAN: u32 = 256;

const WORDS: usize = SPAN as usize / 64;

/// A bit for each PSN of a window of [`SPAN`] PSNs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bitmap([u64; WORDS]);

impl Bitmap {
    /// Whether bit `at` is set; bits beyond the window are not.
    pub(super) fn has(&self, at: u32) -> bool {
        let word = self.0.get(at as usize / 64).copied().unwrap_or(0);
        word >> (63 - at % 64) & 1 == 1
    }

    /// Sets bit `at`, if it is within the window.
    pub(super) fn set(&mut self, at: u32) {
        if let Some(word) = self.0.get_mut(at as usize / 64) {
            *word |= 1 << (63 - at % 64);
        }
    }

    fn unset(&mut self, at: u32) {
        if let Some(word) = self.0.get_mut(at as usize / 64) {
            *word &= !(1 << (63 - at % 64));
        }
    }

    /// Moves the window by `count` bits; those before it are forgotten.
    pub(super) fn advance(&mut self, count: u32) {
        let (words, bits) = (count as usize / 64, count % 64);
        let word = |at: usize| self.0.get(at).copied().unwrap_or(0);
        let mut moved = [0; WORDS];
        for (at, to) in moved.iter_mut().enumerate() {
            let (first, second) = (word(at + words), word(at + words + 1));
            *to = if bits == 0 { first } else { first << bits | second >> (64 - bits) };
        }
        self.0 = moved;
    }

    /// Index of the last bit that is set.
    pub(super) fn last(&self) -> Option<u32> {
        let at = self.0.iter().rposition(|word| *word != 0)?;
        let word = self.0.get(at)?;
        Some(u32::try_from(at).unwrap_or(0) * 64 + 63 - word.trailing_zeros())
    }

    /// Whether no bit is set.
    pub(super) fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// The words, from the first bit on.
    pub(super) fn words(&self) -> &[u64; WORDS] {
        &self.0
    }

    /// Indices of the bits that are set.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..SPAN).filter(|at| self.has(*at))
    }
}

impl From<&[u8]> for Bitmap {
    /// The bits of a packet's payload; what does not fill a word is ignored.
    fn from(bytes: &[u8]) -> Self {
        let mut bitmap = Self::default();
        for (to, from) in bitmap.0.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *to = u64::from_be_bytes(*from);
        }
        bitmap
    }
}

/// Maximum length of the headers of a packet whose payload is in its place: BTH, AETH and an
/// atomic's value.
const HEADERS_MAX: usize = 24;

/// A packet that came before others.
#[derive(Debug, Default)]
pub(super) enum Held {
    #[default]
    None,
    /// The packet, from its BTH to its last pad byte.
    Whole(Vec<u8>),
    /// The headers of a packet whose payload is in its place already.
    Placed { headers: [u8; HEADERS_MAX], len: u8, wire_len: u16 },
}

impl Held {
    /// A packet whose payload is in its place.
    pub(super) fn placed(packet: &Packet<'_>) -> Option<Self> {
        let mut headers = [0; HEADERS_MAX];
        let len = packet.header_len();
        headers.get_mut(..len)?.copy_from_slice(packet.bytes().get(..len)?);
        let wire_len = len + packet.payload_len() + usize::from(packet.pad_len());
        let wire_len = u16::try_from(wire_len).ok()?;
        Some(Self::Placed { headers, len: u8::try_from(len).ok()?, wire_len })
    }

    /// The packet, without its payload if that is in its place.
    pub(super) fn packet(&self) -> Option<Packet<'_>> {
        match self {
            Self::None => None,
            Self::Whole(bytes) => Packet::parse(bytes).ok(),
            Self::Placed { headers, len, wire_len } => {
                Packet::parse_cut(headers.get(..usize::from(*len))?, usize::from(*wire_len)).0
            }
        }
    }
}

/// Packets of one direction of a queue pair that came before others.
#[derive(Debug)]
pub(super) struct Reorder {
    /// First PSN that is missing, for which the first bit stands.
    base: Psn,
    held: Bitmap,
    packets: [Held; SPAN as usize],
    /// Number of packets that are held whole.
    whole: usize,
    /// Time since which `base` is missing.
    pub(super) since: Instant,
    /// Whether a check of the gap's age is due.
    pub(super) armed: bool,
}

impl Reorder {
    fn new() -> Self {
        Self {
            base: Psn::new(0),
            held: Bitmap::default(),
            packets: core::array::from_fn(|_| Held::None),
            whole: 0,
            since: Instant::ZERO,
            armed: false,
        }
    }

    fn at(&self, psn: Psn) -> Option<u32> {
        u32::try_from(psn.since(self.base)).ok().filter(|at| *at < SPAN)
    }

    /// Whether the packet with this PSN is held.
    pub(super) fn holds(&self, psn: Psn) -> bool {
        self.at(psn).is_some_and(|at| self.held.has(at))
    }

    /// The packets that are held from `psn` on.
    pub(super) fn bitmap_from(&self, psn: Psn) -> Bitmap {
        let mut bitmap = self.held;
        bitmap.advance(psn.since(self.base).max(0).unsigned_abs());
        bitmap
    }

    /// PSN of the last packet that is held.
    pub(super) fn last(&self) -> Option<Psn> {
        self.held.last().map(|at| self.base.plus(at))
    }

    #[expect(clippy::indexing_slicing, reason = "the remainder is less than the length")]
    fn slot(&mut self, psn: Psn) -> &mut Held {
        &mut self.packets[(psn.get() % SPAN) as usize]
    }

    /// Takes out the packet with this PSN.
    pub(super) fn take(&mut self, psn: Psn) -> Option<Held> {
        let at = self.at(psn).filter(|at| self.held.has(*at))?;
        self.held.unset(at);
        let held = core::mem::take(self.slot(psn));
        self.whole -= usize::from(matches!(held, Held::Whole(_)));
        Some(held)
    }
}

/// Memory of all packets that are held.
#[derive(Debug)]
pub(super) struct ReorderMemory {
    /// Buffers, and windows, that are not in use.
    buffers: Vec<Vec<u8>>,
    windows: Vec<Box<Reorder>>,
    /// Number of packets that are held whole.
    whole: usize,
    whole_max: usize,
    whole_each: usize,
}

/// Number of windows and of buffers that are kept for the next gap.
const SPARE_MAX: usize = 64;

impl ReorderMemory {
    pub(super) fn new(limits: &Limits) -> Self {
        let packets = |bytes: u64| usize::try_from(bytes / PACKET_MAX as u64).unwrap_or(usize::MAX);
        Self {
            buffers: Vec::new(),
            windows: Vec::new(),
            whole: 0,
            whole_max: packets(limits.reorder_bytes),
            whole_each: packets(limits.reorder_qp_bytes),
        }
    }

    /// Opens a window whose first PSN is missing since `now`.
    fn open(&mut self, base: Psn, now: Instant) -> Box<Reorder> {
        let mut window = self.windows.pop().unwrap_or_else(|| Box::new(Reorder::new()));
        (window.base, window.since, window.armed) = (base, now, false);
        window
    }

    /// Holds a packet, whose payload is in its place if there is a `placed`. Returns whether it is
    /// held; otherwise it is counted as dropped.
    pub(super) fn hold(
        &mut self,
        place: &mut Option<Box<Reorder>>,
        base: Psn,
        packet: &Packet<'_>,
        placed: Option<Held>,
        (now, counters): (Instant, &mut Counters),
    ) -> bool {
        let psn = packet.bth().psn();
        if place.is_none() {
            *place = Some(self.open(base, now));
        }
        let Some(window) = place else { return false };
        if window.holds(psn) {
            counters.add(Counter::Duplicate);
            return true;
        }
        let whole = placed.is_none();
        let fits = !whole
            || self.whole < self.whole_max
                && window.whole < self.whole_each
                && packet.header_len() + packet.payload_len() <= PACKET_MAX;
        let Some(at) = window.at(psn).filter(|_| fits) else {
            counters.add(Counter::ReorderRefused);
            if window.held.is_empty() {
                self.close(place);
            }
            return false;
        };
        let held = placed.unwrap_or_else(|| {
            let mut buffer = self.buffers.pop().unwrap_or_else(|| Vec::with_capacity(PACKET_MAX));
            buffer.clear();
            buffer.extend_from_slice(packet.bytes());
            if let Payload::Shared(payload) = packet.data() {
                payload.append_to(&mut buffer);
            }
            Held::Whole(buffer)
        });
        self.whole += usize::from(whole);
        window.whole += usize::from(whole);
        window.held.set(at);
        *window.slot(psn) = held;
        counters.add(Counter::Reordered);
        true
    }

    /// Frees a packet that was taken out of its window.
    pub(super) fn free(&mut self, held: Held) {
        if let Held::Whole(buffer) = held {
            self.whole -= 1;
            if self.buffers.len() < SPARE_MAX {
                self.buffers.push(buffer);
            }
        }
    }

    /// Moves the window to a later PSN, and closes it if nothing is held any more.
    pub(super) fn advance(&mut self, place: &mut Option<Box<Reorder>>, base: Psn, now: Instant) {
        let Some(window) = place else { return };
        let Ok(count) = u32::try_from(base.since(window.base)) else { return };
        if count == 0 && !window.held.is_empty() {
            return;
        }
        for at in 0..count.min(SPAN) {
            if let Some(held) = window.take(window.base.plus(at)) {
                self.free(held);
            }
        }
        window.held.advance(count.min(SPAN));
        (window.base, window.since) = (base, now);
        if window.held.is_empty() {
            self.close(place);
        }
    }

    /// Frees the window and all it holds.
    pub(super) fn close(&mut self, place: &mut Option<Box<Reorder>>) {
        let Some(mut window) = place.take() else { return };
        while let Some(psn) = window.last() {
            if let Some(held) = window.take(psn) {
                self.free(held);
            }
        }
        if self.windows.len() < SPARE_MAX {
            self.windows.push(window);
        }
    }

    /// Number of packets that are held whole.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{BthRepr, Opcode, Qpn};

    #[test]
    fn bitmap_moves_with_its_window() {
        let mut bitmap = Bitmap::default();
        for at in [0, 1, 63, 64, 130, 255] {
            bitmap.set(at);
        }
        bitmap.set(256);
        assert_eq!(bitmap.last(), Some(255));
        for (count, expected) in [
            (1, vec![0, 62, 63, 129, 254]),
            (62, vec![0, 1, 67, 192]),
            (64, vec![3, 128]),
            (128, vec![0]),
            (300, vec![]),
        ] {
            bitmap.advance(count);
            assert_eq!(bitmap.iter().collect::<Vec<_>>(), expected, "after {count}");
        }
        assert!(bitmap.is_empty() && bitmap.last().is_none());
    }

    #[test]
    fn bits_are_read_most_significant_first() {
        let bitmap =
            Bitmap::from(&[0x80, 0, 0, 0, 0, 0, 0, 1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0xff][..]);
        assert_eq!(bitmap.iter().collect::<Vec<_>>(), [0, 63, 65]);
        assert_eq!(bitmap.words()[1], 1 << 62);
    }

    fn bytes(psn: u32, len: usize) -> Vec<u8> {
        let bth = BthRepr::new(Opcode::RC_SEND_MIDDLE, Qpn::new(2), Psn::new(psn));
        let mut bytes = bth.emit().as_bytes().to_vec();
        bytes.resize(12 + len, 7);
        bytes
    }

    struct Side {
        memory: ReorderMemory,
        window: Option<Box<Reorder>>,
        counters: Counters,
    }

    impl Side {
        fn new(limits: Limits) -> Self {
            let memory = ReorderMemory::new(&limits);
            Self { memory, window: None, counters: Counters::default() }
        }

        fn hold(&mut self, psn: u32) -> bool {
            let bytes = bytes(psn, 256);
            let packet = Packet::parse(&bytes).unwrap();
            let counters = (Instant::ZERO, &mut self.counters);
            self.memory.hold(&mut self.window, Psn::new(1000), &packet, None, counters)
        }
    }

    #[test]
    fn packets_are_held_within_the_window_and_within_their_memory() {
        let packet = PACKET_MAX as u64;
        let limits =
            Limits { reorder_bytes: 4 * packet, reorder_qp_bytes: 3 * packet, ..Limits::DEFAULT };
        let mut side = Side::new(limits);
        assert!(side.hold(1001) && side.hold(1255));
        assert!(!side.hold(1256), "beyond the window");
        assert!(side.hold(1001), "it is held already");
        assert!(side.hold(1003) && !side.hold(1004), "the queue pair has its share");
        assert_eq!(side.counters.get(Counter::ReorderRefused), 2);
        assert_eq!(side.counters.get(Counter::Duplicate), 1);
        let mut other = None;
        let second = bytes(1002, 256);
        for (at, fits) in [(1002, true), (1003, false)] {
            let bytes = if at == 1002 { second.clone() } else { bytes(at, 256) };
            let packet = Packet::parse(&bytes).unwrap();
            let counters = (Instant::ZERO, &mut side.counters);
            let held = side.memory.hold(&mut other, Psn::new(1000), &packet, None, counters);
            assert_eq!(held, fits, "four packets of all queue pairs together");
        }
        side.memory.close(&mut other);
        side.memory.close(&mut side.window);
        assert_eq!(side.memory.len(), 0);
    }

    #[test]
    fn window_closes_when_nothing_is_held() {
        let mut side = Side::new(Limits::DEFAULT);
        assert!(side.hold(1001) && side.hold(1003));
        let window = side.window.as_mut().unwrap();
        assert!(window.take(Psn::new(1000)).is_none());
        let held = window.take(Psn::new(1001)).unwrap();
        assert_eq!(held.packet().unwrap().bth().psn(), Psn::new(1001));
        side.memory.free(held);
        side.memory.advance(&mut side.window, Psn::new(1002), Instant::from_nanos(5));
        let window = side.window.as_ref().unwrap();
        assert_eq!((window.since, window.last()), (Instant::from_nanos(5), Some(Psn::new(1003))));
        side.memory.advance(&mut side.window, Psn::new(1004), Instant::ZERO);
        assert!(side.window.is_none() && side.memory.len() == 0);
    }
}
