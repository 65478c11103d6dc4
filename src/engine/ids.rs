//! Numbers that cannot be guessed and never come back: queue pair numbers, keys, and the tables behind them.
//!
//! A table gives each object a place and each place a generation that changes when the place is used again. Place and
//! generation together are a 24-bit number, which a keyed permutation scrambles before anybody sees it. So a number
//! leads to its object without a search, a stale number does not match, and one number says nothing about the next.

use crate::random::Random;

/// How many bits of a number are the place; the rest is the generation.
const PLACE_BITS: u32 = 20;

/// The most objects a table holds.
pub(super) const TABLE_MAX: usize = 1 << PLACE_BITS;

/// The bits of a number.
const NUMBER_BITS: u32 = 24;
const NUMBER_MASK: u32 = (1 << NUMBER_BITS) - 1;

/// A keyed permutation of the 24-bit numbers: four rounds of a Feistel network over halves of twelve bits.
#[derive(Clone, Debug)]
struct Scramble {
    keys: [u32; 4],
}

impl Scramble {
    fn new(random: &mut Random) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "half of the bits are enough")]
        let keys = core::array::from_fn(|_| random.next() as u32);
        Self { keys }
    }

    #[inline]
    fn round(half: u32, key: u32) -> u32 {
        let mixed = (half ^ key).wrapping_mul(0x9e37_79b1);
        (mixed ^ (mixed >> 15)) >> 8 & 0xfff
    }

    #[inline]
    fn apply(&self, number: u32) -> u32 {
        let (mut left, mut right) = (number >> 12 & 0xfff, number & 0xfff);
        for key in self.keys {
            (left, right) = (right, left ^ Self::round(right, key));
        }
        left << 12 | right
    }

    #[inline]
    fn invert(&self, number: u32) -> u32 {
        let (mut left, mut right) = (number >> 12 & 0xfff, number & 0xfff);
        for key in self.keys.into_iter().rev() {
            (left, right) = (right ^ Self::round(left, key), left);
        }
        left << 12 | right
    }
}

/// Objects by scrambled number.
#[derive(Debug)]
pub(super) struct Table<T> {
    scramble: Scramble,
    slots: Vec<Slot<T>>,
    /// Places that are free, last freed first.
    free: Vec<u32>,
    /// The most objects it takes.
    limit: usize,
    len: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u8,
    object: Option<T>,
}

impl<T> Table<T> {
    /// A table of at most `limit` objects.
    pub(super) fn new(limit: usize, random: &mut Random) -> Self {
        assert!(limit <= TABLE_MAX, "places have twenty bits");
        Self { scramble: Scramble::new(random), slots: Vec::new(), free: Vec::new(), limit, len: 0 }
    }

    /// Puts an object in and returns its number, which is none of `reserved`; `None` if the table is full.
    pub(super) fn insert(&mut self, object: T, reserved: &[u32]) -> Option<u32> {
        if self.len >= self.limit {
            return None;
        }
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.slots.push(Slot { generation: 0, object: None });
                u32::try_from(self.slots.len() - 1).expect("a place has twenty bits")
            }
        };
        let slot = &mut self.slots[place as usize];
        let number = loop {
            let number = self.scramble.apply(compose(place, slot.generation));
            if !reserved.contains(&number) {
                break number;
            }
            slot.generation = slot.generation.wrapping_add(1);
        };
        slot.object = Some(object);
        self.len += 1;
        Some(number)
    }

    /// The place of the object with this number, if it is there.
    #[inline]
    pub(super) fn place(&self, number: u32) -> Option<Place> {
        let plain = self.scramble.invert(number & NUMBER_MASK);
        let place = plain & ((1 << PLACE_BITS) - 1);
        let slot = self.slots.get(place as usize)?;
        let fresh = compose(place, slot.generation) == plain && slot.object.is_some();
        fresh.then_some(Place(place))
    }

    /// The object with this number.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let place = self.place(number)?;
        self.slots[place.0 as usize].object.as_ref()
    }

    /// The object with this number.
    #[inline]
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let place = self.place(number)?;
        self.slots[place.0 as usize].object.as_mut()
    }

    /// The object at a place, unless it has gone since.
    #[inline]
    pub(super) fn at_mut(&mut self, place: Place) -> Option<&mut T> {
        self.slots.get_mut(place.0 as usize)?.object.as_mut()
    }

    /// The object at a place, unless it has gone since.
    #[inline]
    pub(super) fn at(&self, place: Place) -> Option<&T> {
        self.slots.get(place.0 as usize)?.object.as_ref()
    }

    /// Takes an object out. Its number never matches again until sixteen others have had its place.
    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let place = self.place(number)?;
        let slot = &mut self.slots[place.0 as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(place.0);
        self.len -= 1;
        slot.object.take()
    }

    /// Every object, in the order of their places.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.object.as_ref())
    }
}

/// Where in its table an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(pub(super) u32);

fn compose(place: u32, generation: u8) -> u32 {
    place | u32::from(generation) << PLACE_BITS & NUMBER_MASK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrambling_is_a_permutation() {
        let scramble = Scramble::new(&mut Random::new(7));
        // What can be undone gives no two numbers the same.
        for number in (0..1 << 24).step_by(61) {
            let scrambled = scramble.apply(number);
            assert!(scrambled < 1 << 24);
            assert_eq!(scramble.invert(scrambled), number);
        }
    }

    #[test]
    fn a_stale_number_does_not_match() {
        let mut table = Table::new(10, &mut Random::new(1));
        let first = table.insert("first", &[]).unwrap();
        assert_eq!(table.remove(first), Some("first"));
        let second = table.insert("second", &[]).unwrap();
        assert_ne!(first, second);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get(second), Some(&"second"));
        assert_eq!(table.remove(first), None);
    }

    #[test]
    fn numbers_are_scattered_and_reproducible() {
        let numbers = |seed| {
            let mut table = Table::new(100, &mut Random::new(seed));
            (0..100).map(|i| table.insert(i, &[]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(numbers(3), numbers(3));
        assert_ne!(numbers(3), numbers(4));
        let near = numbers(3).windows(2).filter(|w| w[0].abs_diff(w[1]) < 1000).count();
        assert!(near < 3, "{near} of a hundred neighbours are near each other");
    }

    #[test]
    fn reserved_numbers_are_passed_over_and_limits_hold() {
        let mut probe = Table::new(1, &mut Random::new(9));
        let taken = probe.insert((), &[]).unwrap();
        let mut table = Table::new(1, &mut Random::new(9));
        assert_ne!(table.insert((), &[taken]), Some(taken));
        assert_eq!(table.insert((), &[]), None);
    }
}
