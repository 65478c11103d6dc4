//! Objects by name. A name is a slot and its generation, so that a stale name finds nothing.

use std::collections::VecDeque;

/// How many bits of a name are the slot.
const SLOT_BITS: u32 = 20;
const SLOT_MASK: u32 = (1 << SLOT_BITS) - 1;
const GENERATION_MASK: u32 = u32::MAX >> SLOT_BITS;

/// The most objects that a table can name.
pub(super) const TABLE_MAX: usize = 1 << SLOT_BITS;

/// A name of an object in a [`Table`].
pub(super) trait Name: Copy {
    fn from_u32(number: u32) -> Self;
    fn to_u32(self) -> u32;
}

macro_rules! names {
    ($($(#[$doc:meta])* $vis:vis $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis struct $name(u32);

        impl Name for $name {
            fn from_u32(number: u32) -> Self {
                Self(number)
            }

            fn to_u32(self) -> u32 {
                self.0
            }
        }
    )*};
}

names! {
    /// An RDMA device of a manager.
    pub DeviceId;
    /// An event channel of a manager.
    pub ChannelId;
    /// An id of a manager: what `rdma_cm_id` is in C.
    pub CmId;
    /// A connection: what an id speaks with its peer about.
    pub(super) ConnectionId;
}

macro_rules! numbers {
    ($($name:ident),*) => {$(
        impl $name {
            /// The name as a number, for an interface that has only numbers.
            pub const fn number(self) -> u32 {
                self.0
            }

            /// The name that has this number. Whether it names anything, the manager says.
            pub const fn from_number(number: u32) -> Self {
                Self(number)
            }
        }
    )*};
}
numbers!(DeviceId, ChannelId, CmId);

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Up to `limit` objects. Slots are reused first in, first out, so that generations last.
#[derive(Debug)]
pub(super) struct Table<N, T> {
    slots: Vec<Slot<T>>,
    free: VecDeque<u32>,
    limit: usize,
    name: core::marker::PhantomData<N>,
}

impl<N: Name, T> Table<N, T> {
    pub(super) fn new(limit: usize) -> Self {
        let limit = limit.min(TABLE_MAX);
        Self { slots: Vec::new(), free: VecDeque::new(), limit, name: core::marker::PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Names an object, unless the table is full.
    pub(super) fn insert(&mut self, value: T) -> Option<N> {
        if self.is_full() {
            return None;
        }
        let index = match self.free.pop_front() {
            Some(index) => index,
            None => {
                self.slots.push(Slot { generation: 0, value: None });
                u32::try_from(self.slots.len() - 1).expect("a table is smaller than its limit")
            }
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.value = Some(value);
        Some(N::from_u32(slot.generation << SLOT_BITS | index))
    }

    fn slot(&self, name: N) -> Option<&Slot<T>> {
        let slot = self.slots.get((name.to_u32() & SLOT_MASK) as usize)?;
        (slot.generation == name.to_u32() >> SLOT_BITS).then_some(slot)
    }

    pub(super) fn get(&self, name: N) -> Option<&T> {
        self.slot(name)?.value.as_ref()
    }

    pub(super) fn get_mut(&mut self, name: N) -> Option<&mut T> {
        let slot = self.slots.get_mut((name.to_u32() & SLOT_MASK) as usize)?;
        if slot.generation != name.to_u32() >> SLOT_BITS {
            return None;
        }
        slot.value.as_mut()
    }

    pub(super) fn remove(&mut self, name: N) -> Option<T> {
        let index = name.to_u32() & SLOT_MASK;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation != name.to_u32() >> SLOT_BITS {
            return None;
        }
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        self.free.push_back(index);
        Some(value)
    }

    /// Every object and its name, in the order of their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (N, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let index = u32::try_from(index).ok()?;
            Some((N::from_u32(slot.generation << SLOT_BITS | index), slot.value.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_name_finds_nothing() {
        let mut table: Table<CmId, u8> = Table::new(1);
        let first = table.insert(1).unwrap();
        assert_eq!(table.get(first), Some(&1));
        assert_eq!(table.insert(2), None);
        assert_eq!((table.remove(first), table.remove(first)), (Some(1), None));
        let second = table.insert(3).unwrap();
        assert_ne!(first, second);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.iter().collect::<Vec<_>>(), [(second, &3)]);
        assert_eq!(CmId::from_number(second.number()), second);
    }

    #[test]
    fn slots_are_reused() {
        let mut table: Table<ChannelId, u32> = Table::new(4);
        for number in 0..10_000 {
            let name = table.insert(number).unwrap();
            assert_eq!(table.remove(name), Some(number));
        }
        assert_eq!((table.len(), table.slots.len()), (0, 1));
    }
}
