//! Generational tables.
//!
//! A table gives each object a slot and each slot a generation, which changes when the slot is
//! reused. Together with the tag of the device they are the [`Id`] in the handle of the object: it
//! leads there without a search, and neither a stale one nor one of another device matches.
//!
//! A peer knows an object by its number: 24 bits on the wire, from a [`Numbered`](Table::numbered)
//! table. Numbers are `P(0), P(1), P(2)…`, where P is a pseudorandom permutation with a secret key.
//! So the numbers that a peer has seen tell nothing about the others, and a number comes back only
//! when all 2^24 were used. A hash index leads from a number to its slot.

use std::collections::VecDeque;

use crate::memory::{advise_huge_pages, prefetch};
use crate::secret::{Permutation, SecretRandom};
use crate::verbs::{DeviceTag, Id};

/// Number of bits of an index that are the slot; the rest is the generation.
const SLOT_BITS: u32 = 20;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;

/// Maximum number of objects in a table.
pub(crate) const TABLE_MAX: usize = 1 << SLOT_BITS;

/// Number of slots that are allocated at a time while there are few. They never move, and finding
/// one costs no more than in one array.
const CHUNK: usize = 64;

/// Number of chunks of [`CHUNK`] slots; those behind have [`LARGE_CHUNK`] slots.
const CHUNKS: usize = 64;

/// Number of slots that are allocated at a time beyond the first [`CHUNKS`] chunks: of queue pairs
/// some 13 MB, in huge pages where the kernel has some. With pages of 4 KiB almost each queue pair
/// of many misses the TLB. What is not used yet takes no memory, only addresses.
const LARGE_CHUNK: usize = 1 << 14;

/// Slot of an object in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId(pub(crate) u32);

/// Numbers of a table's objects, and the index from number to slot.
#[derive(Debug)]
struct Numbers {
    permutation: Permutation,
    /// Count of numbers that were drawn, modulo 2^24.
    drawn: u32,
    /// Open addressing with linear probing, at most half full. An entry is a number and, below it,
    /// a slot plus one; zero is no entry. Numbers are pseudorandom, so their low bits are the hash.
    index: Vec<u64>,
    len: usize,
}

/// Number of bits of an index entry that are the slot plus one.
const ENTRY_SLOT_BITS: u32 = 32;

/// Minimum size of an index.
const INDEX_MIN: usize = 16;

impl Numbers {
    fn new(random: &mut SecretRandom) -> Self {
        Self { permutation: Permutation::new(random), drawn: 0, index: Vec::new(), len: 0 }
    }

    /// Returns the next number that is usable and not in use; `None` if there is none.
    fn draw(&mut self, is_usable: impl Fn(u32) -> bool) -> Option<u32> {
        (0..Permutation::SIZE).find_map(|_| {
            let number = self.permutation.apply(self.drawn);
            self.drawn = (self.drawn + 1) % Permutation::SIZE;
            (is_usable(number) && self.find(number).is_none()).then_some(number)
        })
    }

    /// Returns the position where probing for a number begins.
    #[inline]
    fn home(&self, number: u32) -> usize {
        number as usize & self.index.len().wrapping_sub(1)
    }

    #[inline]
    fn find(&self, number: u32) -> Option<SlotId> {
        let mut at = self.home(number);
        loop {
            let entry = *self.index.get(at)?;
            if entry >> ENTRY_SLOT_BITS == u64::from(number) && entry != 0 {
                #[expect(clippy::cast_possible_truncation, reason = "the low half is the slot")]
                return Some(SlotId((entry as u32).wrapping_sub(1)));
            }
            if entry == 0 {
                return None;
            }
            at = (at + 1) & (self.index.len() - 1);
        }
    }

    /// Prefetches the entry of a number.
    #[inline]
    fn prefetch(&self, number: u32) {
        if let Some(entry) = self.index.get(self.home(number)) {
            prefetch(entry, size_of::<u64>());
        }
    }

    /// Adds a number and its slot; returns whether there was memory.
    fn insert(&mut self, number: u32, slot: u32) -> bool {
        if (self.len + 1) * 2 > self.index.len() && !self.grow() {
            return false;
        }
        self.put(u64::from(number) << ENTRY_SLOT_BITS | u64::from(slot + 1));
        self.len += 1;
        true
    }

    fn put(&mut self, entry: u64) {
        let mut at = self.home((entry >> ENTRY_SLOT_BITS) as u32);
        while self.index[at] != 0 {
            at = (at + 1) & (self.index.len() - 1);
        }
        self.index[at] = entry;
    }

    fn grow(&mut self) -> bool {
        let size = (self.index.len() * 2).max(INDEX_MIN);
        let mut larger = Vec::new();
        if larger.try_reserve_exact(size).is_err() {
            return false;
        }
        larger.resize(size, 0);
        let entries = core::mem::replace(&mut self.index, larger);
        entries.into_iter().filter(|entry| *entry != 0).for_each(|entry| self.put(entry));
        true
    }

    /// Removes a number, and closes the gap that it leaves: entries behind it move forward if that
    /// is nearer to where probing for them begins.
    fn remove(&mut self, number: u32) {
        let mut gap = self.home(number);
        while self.index[gap] >> ENTRY_SLOT_BITS != u64::from(number) || self.index[gap] == 0 {
            if self.index[gap] == 0 {
                return;
            }
            gap = (gap + 1) & (self.index.len() - 1);
        }
        self.len -= 1;
        let (mask, mut at) = (self.index.len() - 1, gap);
        loop {
            at = (at + 1) & mask;
            let entry = self.index[at];
            if entry == 0 {
                break;
            }
            let home = self.home((entry >> ENTRY_SLOT_BITS) as u32);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.index[gap] = entry;
                gap = at;
            }
        }
        self.index[gap] = 0;
    }
}

/// Objects by [`Id`].
#[derive(Debug)]
pub(crate) struct Table<T> {
    device: DeviceTag,
    /// Numbers of the objects, if they have some.
    numbers: Option<Numbers>,
    /// Room for the first slots; those that were ever used are in it. Most tables have no others,
    /// and a slot of these is found with 5 instructions instead of 16.
    first: Vec<Slot<T>>,
    /// Room for the other slots.
    chunks: Vec<Vec<Slot<T>>>,
    /// Free slots, first freed first: a stale id does not match for as long as possible.
    free: VecDeque<u32>,
    /// Number of slots that were ever used.
    used: u32,
    /// Maximum number of objects.
    limit: usize,
    len: usize,
}

/// A slot begins a cache line, and an object whose first field tells `Some` from `None` is found by
/// that line alone.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot<T> {
    /// Index in the id of its object, or of the next one: slot and generation.
    index: u32,
    /// Number of the object, if it has one.
    number: u32,
    object: Option<T>,
}

impl<T> Slot<T> {
    /// Whether its generation is that of an id, which leads to this slot.
    #[inline]
    fn is_of(&self, id: Id) -> bool {
        self.index == id.index()
    }
}

/// First field of such an object: it has so many invalid values that `Option` uses one of them.
#[derive(Debug)]
#[repr(u32)]
pub(crate) enum Present {
    Here,
}

impl<T> Table<T> {
    /// A table of at most `limit` objects that have no numbers.
    pub(crate) fn new(limit: usize, device: DeviceTag) -> Self {
        assert!(limit <= TABLE_MAX, "slots have twenty bits");
        let (first, chunks, free) = (Vec::new(), Vec::new(), VecDeque::new());
        Self { device, numbers: None, first, chunks, free, used: 0, limit, len: 0 }
    }

    /// A table of at most `limit` objects that have numbers.
    pub(crate) fn numbered(limit: usize, device: DeviceTag, random: &mut SecretRandom) -> Self {
        Self { numbers: Some(Numbers::new(random)), ..Self::new(limit, device) }
    }

    /// Takes `more` objects beyond the limit that it was made with, as far as slots have numbers.
    pub(crate) fn raise_limit(&mut self, more: usize) {
        self.limit = self.limit.saturating_add(more).min(TABLE_MAX);
    }

    /// Makes room for more slots, and for all of them in the list of free ones; returns whether
    /// there was memory.
    fn grow(&mut self) -> bool {
        let (index, _) = Self::position(self.used as usize);
        let more = if index < CHUNKS { CHUNK } else { LARGE_CHUNK };
        let missing = (self.used as usize + more).saturating_sub(self.free.len());
        let mut chunk = Vec::new();
        let has_memory = self.free.try_reserve(missing).is_ok()
            && self.chunks.try_reserve(1).is_ok()
            && chunk.try_reserve_exact(more).is_ok();
        if has_memory {
            advise_huge_pages(chunk.spare_capacity_mut());
            match index {
                0 => self.first = chunk,
                _ => self.chunks.push(chunk),
            }
        }
        has_memory
    }

    /// Whether there is room for the slots of a chunk.
    fn has_chunk(&self, index: usize) -> bool {
        if index == 0 { self.first.capacity() > 0 } else { index <= self.chunks.len() }
    }

    /// Returns the chunk of a slot, and its index there. The first slots are chunk 0.
    #[inline]
    const fn position(at: usize) -> (usize, usize) {
        match at.checked_sub(CHUNKS * CHUNK) {
            None => (at / CHUNK, at % CHUNK),
            Some(behind) => (CHUNKS + behind / LARGE_CHUNK, behind % LARGE_CHUNK),
        }
    }

    /// Adds an object; `None` if the table is full, or there is no memory.
    pub(crate) fn insert(&mut self, object: T) -> Option<Id> {
        self.insert_where(object, |_| true)
    }

    /// Adds an object whose number is usable; `None` if there is none, the table is full, or there
    /// is no memory.
    pub(crate) fn insert_where(
        &mut self,
        object: T,
        is_usable: impl Fn(u32) -> bool,
    ) -> Option<Id> {
        if self.len >= self.limit {
            return None;
        }
        let at = self.free.front().copied().unwrap_or(self.used);
        let (index, place) = Self::position(at as usize);
        if !self.has_chunk(index) && !self.grow() {
            return None;
        }
        let number = match &mut self.numbers {
            Some(numbers) => {
                let number = numbers.draw(is_usable)?;
                if !numbers.insert(number, at) {
                    return None;
                }
                number
            }
            None => 0,
        };
        let chunk = match index {
            0 => &mut self.first,
            _ => &mut self.chunks[index - 1],
        };
        if self.free.pop_front().is_none() {
            self.used += 1;
            chunk.push(Slot { index: at, number: 0, object: None });
        }
        let slot = &mut chunk[place];
        (slot.number, slot.object) = (number, Some(object));
        self.len += 1;
        Some(Id::new(self.device, slot.index))
    }

    /// Returns the number of an object; 0 if there is no such object.
    pub(crate) fn number(&self, id: Id) -> u32 {
        let slot = self.slot_of(id).and_then(|at| self.slot(at));
        slot.map_or(0, |slot| slot.number)
    }

    #[inline(always)]
    fn slot(&self, at: SlotId) -> Option<&Slot<T>> {
        if let Some(slot) = self.first.get(at.0 as usize) {
            return Some(slot);
        }
        let (index, place) = Self::position(at.0 as usize);
        self.chunks.get(index.checked_sub(1)?)?.get(place)
    }

    #[inline(always)]
    fn slot_mut(&mut self, at: SlotId) -> Option<&mut Slot<T>> {
        if (at.0 as usize) < self.first.len() {
            return self.first.get_mut(at.0 as usize);
        }
        let (index, place) = Self::position(at.0 as usize);
        self.chunks.get_mut(index.checked_sub(1)?)?.get_mut(place)
    }

    /// Every slot that was ever used, in order.
    fn slots(&self) -> impl Iterator<Item = &Slot<T>> {
        self.first.iter().chain(self.chunks.iter().flatten())
    }

    /// Returns the slot of the object with this number.
    #[inline]
    pub(crate) fn find(&self, number: u32) -> Option<SlotId> {
        self.numbers.as_ref()?.find(number)
    }

    /// Prefetches what [`find`](Self::find) needs for this number.
    #[inline]
    pub(crate) fn prefetch_number(&self, number: u32) {
        if let Some(numbers) = &self.numbers {
            numbers.prefetch(number);
        }
    }

    /// Prefetches the first `bytes` of the object in a slot, without touching it.
    #[inline]
    pub(crate) fn prefetch(&self, at: SlotId, bytes: usize) {
        if let Some(slot) = self.slot(at) {
            prefetch(slot, core::mem::offset_of!(Slot<T>, object) + bytes);
        }
    }

    /// Prefetches the first `bytes` of the object that an id leads to, without touching it.
    #[inline]
    pub(crate) fn prefetch_id(&self, id: Id, bytes: usize) {
        self.prefetch(SlotId(id.index() & SLOT_MASK), bytes);
    }

    /// Returns the id of an object of this device, if it came without a tag; others as they are.
    #[inline]
    pub(crate) fn tagged(&self, id: Id) -> Id {
        if id.device() == DeviceTag::NONE { Id::new(self.device, id.index()) } else { id }
    }

    /// Returns the slot of an object.
    #[inline]
    pub(crate) fn slot_of(&self, id: Id) -> Option<SlotId> {
        self.get(id).map(|_| SlotId(id.index() & SLOT_MASK))
    }

    /// Returns an object.
    #[inline]
    pub(crate) fn get(&self, id: Id) -> Option<&T> {
        let slot = self.slot(SlotId(id.index() & SLOT_MASK))?;
        if !slot.is_of(id) || id.device() != self.device {
            return None;
        }
        slot.object.as_ref()
    }

    /// Returns an object.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        let device = self.device;
        let slot = self.slot_mut(SlotId(id.index() & SLOT_MASK))?;
        if !slot.is_of(id) || id.device() != device {
            return None;
        }
        slot.object.as_mut()
    }

    /// Returns the object in a slot.
    #[inline]
    pub(crate) fn at(&self, at: SlotId) -> Option<&T> {
        self.slot(at)?.object.as_ref()
    }

    /// Returns the object in a slot.
    #[inline]
    pub(crate) fn at_mut(&mut self, at: SlotId) -> Option<&mut T> {
        self.slot_mut(at)?.object.as_mut()
    }

    /// Removes an object. Its number is not reused until all others were.
    pub(crate) fn remove(&mut self, id: Id) -> Option<T> {
        let at = self.slot_of(id)?;
        self.remove_at(at)
    }

    /// Removes the object in a slot.
    pub(crate) fn remove_at(&mut self, at: SlotId) -> Option<T> {
        let slot = self.slot_mut(at)?;
        let object = slot.object.take()?;
        slot.index = slot.index.wrapping_add(1 << SLOT_BITS);
        let number = slot.number;
        if let Some(numbers) = &mut self.numbers {
            numbers.remove(number);
        }
        self.free.push_back(at.0);
        self.len -= 1;
        Some(object)
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns every object, in the order of their slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots().filter_map(|slot| slot.object.as_ref())
    }

    /// Returns every object and its id, in the order of their slots.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (Id, &T)> {
        let slots = self.slots();
        slots.filter_map(|slot| Some((Id::new(self.device, slot.index), slot.object.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Seed;

    const DEVICE: DeviceTag = DeviceTag::from_random(7);

    #[test]
    fn id_of_another_device_does_not_match() {
        let mut table = Table::new(10, DEVICE);
        let id = table.insert("object").unwrap();
        let foreign = Id::new(DeviceTag::from_random(8), id.index());
        assert_eq!((table.get(id), table.get(foreign)), (Some(&"object"), None));
        assert_eq!(table.remove(foreign), None);
        let untagged = Id::new(DeviceTag::NONE, id.index());
        assert_eq!((table.get(untagged), table.tagged(untagged)), (None, id));
        assert_eq!(table.tagged(foreign), foreign);
    }

    fn random(seed: u64) -> SecretRandom {
        SecretRandom::new(Seed::from(seed))
    }

    fn numbered<T>(limit: usize, seed: u64) -> Table<T> {
        Table::numbered(limit, DEVICE, &mut random(seed))
    }

    #[test]
    fn stale_id_does_not_match() {
        let mut table = numbered(10, 1);
        let first = table.insert("first").unwrap();
        let number = table.number(first);
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second").unwrap();
        assert_ne!(number, table.number(second));
        assert_eq!((table.get(first), table.find(number)), (None, None));
        assert_eq!(table.get(second), Some(&"second"));
        assert_eq!(table.find(table.number(second)), table.slot_of(second));
        assert_eq!(table.remove(first), None);
    }

    #[test]
    fn number_is_not_reused_for_a_hundred_thousand_creations() {
        let mut table = numbered(1, 1);
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..100_000 {
            let id = table.insert(round).unwrap();
            assert!(seen.insert(table.number(id)), "after {round} creations");
            assert_eq!(table.find(table.number(id)), table.slot_of(id));
            assert_eq!(table.remove(id), Some(round));
        }
    }

    #[test]
    fn slots_are_reused_in_the_order_they_were_freed() {
        let mut table = Table::new(10, DEVICE);
        let ids: Vec<_> = (0..3).map(|i| table.insert(i).unwrap()).collect();
        for at in [1, 0, 2] {
            table.remove(ids[at]).unwrap();
        }
        let slots = (0..4).map(|i| table.insert(i).unwrap().index() & SLOT_MASK);
        assert_eq!(slots.collect::<Vec<_>>(), [1, 0, 2, 3]);
    }

    /// Objects are found, or not, as in a map, whatever the order of insertions and removals.
    #[test]
    fn the_index_agrees_with_a_map_under_churn() {
        let (mut table, mut dice) = (numbered(600, 3), crate::random::Random::new(5));
        let mut alive: Vec<(Id, u32)> = Vec::new();
        let mut gone = Vec::new();
        for round in 0..20_000_u32 {
            let roll = usize::try_from(dice.next() >> 40).unwrap();
            if alive.len() < 600 && (alive.is_empty() || roll.is_multiple_of(2)) {
                let id = table.insert(round).unwrap();
                alive.push((id, table.number(id)));
            } else {
                let (id, number) = alive.swap_remove(roll % alive.len());
                assert!(table.remove(id).is_some());
                gone.push(number);
            }
            if round.is_multiple_of(500) {
                for (id, number) in &alive {
                    assert_eq!(table.find(*number), table.slot_of(*id));
                }
                assert!(gone.iter().all(|number| table.find(*number).is_none()));
            }
        }
    }

    #[test]
    fn numbers_are_scattered_and_reproducible() {
        let numbers = |seed| {
            let mut table = numbered(100, seed);
            let ids: Vec<_> = (0..100).map(|i| table.insert(i).unwrap()).collect();
            ids.into_iter().map(|id| table.number(id)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(3), numbers(3));
        assert_ne!(numbers(3), numbers(4));
        let near = numbers(3).windows(2).filter(|w| w[0].abs_diff(w[1]) < 1000).count();
        assert!(near < 3, "{near} of a hundred neighbors are near each other");
        let steps: std::collections::BTreeSet<_> =
            numbers(3).windows(2).map(|w| w[1].wrapping_sub(w[0]) & 0xff_ffff).collect();
        assert!(steps.len() > 90, "{} different steps in a hundred", steps.len());
    }

    #[test]
    fn reserved_numbers_are_skipped_and_limits_hold() {
        let mut probe = numbered(1, 9);
        let id = probe.insert(()).unwrap();
        let taken = probe.number(id);
        let mut table = numbered(1, 9);
        let id = table.insert_where((), |number| number != taken).unwrap();
        assert_ne!(table.number(id), taken);
        assert_eq!(table.insert(()), None);
    }
}
