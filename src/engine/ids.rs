//! Names of objects, and the tables behind them.
//!
//! A table gives each object a place and each place a generation, which changes when the place is used again. Together
//! they are the [`Id`] by which the program holds the object: it leads there without a search, and a stale one does not
//! match. Strangers know an object by its number, 24 bits on the wire: a keyed permutation of the same two, so that
//! one number says nothing about the next.

use crate::random::Random;
use crate::verbs::Id;

/// How many bits of a name are the place; the rest is the generation.
const PLACE_BITS: u32 = 20;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;

/// The most objects a table holds.
pub(super) const TABLE_MAX: usize = 1 << PLACE_BITS;

/// The bits of a number.
const NUMBER_BITS: u32 = 24;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;

/// How many slots are allocated at a time. They never move, and finding one costs no more than in one array.
const CHUNK: usize = 64;

/// Where in its table an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(pub(super) u32);

/// A keyed permutation of the 24-bit numbers: twice a product with an odd number and a fold of one half onto the
/// other, each of which can be undone.
#[derive(Clone, Debug)]
struct Scramble {
    factors: [u32; 2],
    inverses: [u32; 2],
    keys: [u32; 2],
}

impl Scramble {
    fn new(random: &mut Random) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "half of the bits are enough")]
        let mut draw = || random.next() as u32;
        let factors = [draw() | 1, draw() | 1];
        Self { factors, inverses: factors.map(inverse), keys: [draw(), draw()] }
    }

    /// Folds the upper half onto the lower; done twice, it undoes itself.
    #[inline]
    fn fold(number: u32) -> u32 {
        number ^ (number & NUMBER_MASK) >> (NUMBER_BITS / 2)
    }

    #[inline]
    fn apply(&self, number: u32) -> u32 {
        let [first, second] = self.factors;
        let mixed = Self::fold((number ^ self.keys[0]).wrapping_mul(first));
        (Self::fold(mixed.wrapping_mul(second)) ^ self.keys[1]) & NUMBER_MASK
    }

    #[inline]
    fn invert(&self, number: u32) -> u32 {
        let [first, second] = self.inverses;
        let mixed = Self::fold(number ^ self.keys[1]).wrapping_mul(second);
        (Self::fold(mixed).wrapping_mul(first) ^ self.keys[0]) & NUMBER_MASK
    }
}

/// What an odd number must be multiplied with to give 1, modulo 2^32. Each step doubles the bits that are right.
fn inverse(odd: u32) -> u32 {
    (0..4)
        .fold(odd, |inverse, _| inverse.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(inverse))))
}

/// Objects by name.
#[derive(Debug)]
pub(super) struct Table<T> {
    scramble: Scramble,
    chunks: Vec<Box<[Slot<T>]>>,
    /// Places that are free, last freed first.
    free: Vec<u32>,
    /// How many places were ever used.
    used: u32,
    /// The most objects it takes.
    limit: usize,
    len: usize,
}

/// A slot begins a cache line, and an object whose first field tells `Some` from `None` is found by that line alone.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot<T> {
    generation: u32,
    object: Option<T>,
}

/// A first field for objects that want to be found so: there are so many values it cannot have that `Option` uses
/// one of them.
#[derive(Debug)]
#[repr(u32)]
pub(super) enum Present {
    Here,
}

impl<T> Table<T> {
    /// A table of at most `limit` objects.
    pub(super) fn new(limit: usize, random: &mut Random) -> Self {
        assert!(limit <= TABLE_MAX, "places have twenty bits");
        let scramble = Scramble::new(random);
        Self { scramble, chunks: Vec::new(), free: Vec::new(), used: 0, limit, len: 0 }
    }

    /// Puts an object in, whose number is none of `reserved`; `None` if the table is full.
    pub(super) fn insert(&mut self, object: T, reserved: &[u32]) -> Option<Id> {
        if self.len >= self.limit {
            return None;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used - 1
        });
        if place as usize >= self.chunks.len() * CHUNK {
            let empty = || Slot { generation: 0, object: None };
            self.chunks.push(std::iter::repeat_with(empty).take(CHUNK).collect());
        }
        let slot = &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK];
        slot.object = Some(object);
        while reserved.contains(&self.scramble.apply(place | slot.generation << PLACE_BITS)) {
            slot.generation = slot.generation.wrapping_add(1);
        }
        self.len += 1;
        Some(Id(place | slot.generation << PLACE_BITS))
    }

    /// The number of an object.
    pub(super) fn number(&self, id: Id) -> u32 {
        self.scramble.apply(id.0 & NUMBER_MASK)
    }

    #[inline]
    fn slot(&self, place: Place) -> Option<&Slot<T>> {
        self.chunks.get(place.0 as usize / CHUNK)?.get(place.0 as usize % CHUNK)
    }

    #[inline]
    fn slot_mut(&mut self, place: Place) -> Option<&mut Slot<T>> {
        self.chunks.get_mut(place.0 as usize / CHUNK)?.get_mut(place.0 as usize % CHUNK)
    }

    /// The place of the object with this number, if it is there.
    #[inline]
    pub(super) fn find(&self, number: u32) -> Option<Place> {
        let plain = self.scramble.invert(number);
        let place = Place(plain & PLACE_MASK);
        let slot = self.slot(place)?;
        let fresh = (slot.generation << PLACE_BITS ^ plain) & NUMBER_MASK & !PLACE_MASK == 0;
        (fresh && slot.object.is_some()).then_some(place)
    }

    /// The place of an object, if it is there.
    #[inline]
    pub(super) fn place(&self, id: Id) -> Option<Place> {
        let place = Place(id.0 & PLACE_MASK);
        let slot = self.slot(place)?;
        let fresh = slot.generation << PLACE_BITS == id.0 & !PLACE_MASK;
        (fresh && slot.object.is_some()).then_some(place)
    }

    /// An object.
    #[inline]
    pub(super) fn get(&self, id: Id) -> Option<&T> {
        self.at(self.place(id)?)
    }

    /// An object.
    #[inline]
    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.at_mut(self.place(id)?)
    }

    /// The object at a place, unless it has gone since.
    #[inline]
    pub(super) fn at(&self, place: Place) -> Option<&T> {
        self.slot(place)?.object.as_ref()
    }

    /// The object at a place, unless it has gone since.
    #[inline]
    pub(super) fn at_mut(&mut self, place: Place) -> Option<&mut T> {
        self.slot_mut(place)?.object.as_mut()
    }

    /// Takes an object out. Its number never matches again until sixteen others have had its place.
    pub(super) fn remove(&mut self, id: Id) -> Option<T> {
        let place = self.place(id)?;
        self.remove_at(place)
    }

    /// Takes the object at a place out.
    pub(super) fn remove_at(&mut self, place: Place) -> Option<T> {
        let slot = self.slot_mut(place)?;
        let object = slot.object.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(place.0);
        self.len -= 1;
        Some(object)
    }

    /// Every object, in the order of their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten().filter_map(|slot| slot.object.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrambling_is_a_permutation() {
        for seed in 0..8 {
            let scramble = Scramble::new(&mut Random::new(seed));
            // What can be undone gives no two numbers the same.
            for number in (0..1 << 24).step_by(61) {
                let scrambled = scramble.apply(number);
                assert!(scrambled < 1 << 24);
                assert_eq!(scramble.invert(scrambled), number);
            }
        }
    }

    #[test]
    fn a_stale_name_does_not_match() {
        let mut table = Table::new(10, &mut Random::new(1));
        let first = table.insert("first", &[]).unwrap();
        let number = table.number(first);
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second", &[]).unwrap();
        assert_ne!(number, table.number(second));
        assert_eq!((table.get(first), table.find(number)), (None, None));
        assert_eq!(table.get(second), Some(&"second"));
        assert_eq!(table.find(table.number(second)), table.place(second));
        assert_eq!(table.remove(first), None);
    }

    #[test]
    fn a_place_outlives_its_generations() {
        let mut table = Table::new(1, &mut Random::new(1));
        for round in 0..10_000 {
            let id = table.insert(round, &[]).unwrap();
            assert_eq!(table.find(table.number(id)), table.place(id));
            assert_eq!(table.remove(id), Some(round));
        }
    }

    #[test]
    fn numbers_are_scattered_and_reproducible() {
        let numbers = |seed| {
            let mut table = Table::new(100, &mut Random::new(seed));
            let ids: Vec<_> = (0..100).map(|i| table.insert(i, &[]).unwrap()).collect();
            ids.into_iter().map(|id| table.number(id)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(3), numbers(3));
        assert_ne!(numbers(3), numbers(4));
        let near = numbers(3).windows(2).filter(|w| w[0].abs_diff(w[1]) < 1000).count();
        assert!(near < 3, "{near} of a hundred neighbours are near each other");
        let steps: std::collections::BTreeSet<_> =
            numbers(3).windows(2).map(|w| w[1].wrapping_sub(w[0]) & NUMBER_MASK).collect();
        assert!(steps.len() > 50, "{} different steps in a hundred", steps.len());
    }

    #[test]
    fn reserved_numbers_are_passed_over_and_limits_hold() {
        let mut probe = Table::new(1, &mut Random::new(9));
        let id = probe.insert((), &[]).unwrap();
        let taken = probe.number(id);
        let mut table = Table::new(1, &mut Random::new(9));
        let id = table.insert((), &[taken]).unwrap();
        assert_ne!(table.number(id), taken);
        assert_eq!(table.insert((), &[]), None);
    }
}
