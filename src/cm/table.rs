//! Objects by name. A name is a slot and its generation, so that a stale name finds nothing.

use crate::table::{self, TABLE_MAX};
use crate::verbs::{DeviceTag, Id};

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

/// Up to `limit` objects by their names. Slots are reused first in, first out, so that generations
/// last.
#[derive(Debug)]
pub(super) struct Table<N, T> {
    objects: table::Table<T>,
    limit: usize,
    name: core::marker::PhantomData<N>,
}

/// The id behind a name. A manager has names of its own, which belong to no device.
fn id(name: impl Name) -> Id {
    Id::new(DeviceTag::NONE, name.to_u32())
}

impl<N: Name, T> Table<N, T> {
    pub(super) fn new(limit: usize) -> Self {
        let limit = limit.min(TABLE_MAX);
        let objects = table::Table::new(limit, DeviceTag::NONE);
        Self { objects, limit, name: core::marker::PhantomData }
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    /// Names an object, unless the table is full.
    pub(super) fn insert(&mut self, value: T) -> Option<N> {
        self.objects.insert(value).map(|id| N::from_u32(id.index()))
    }

    pub(super) fn get(&self, name: N) -> Option<&T> {
        self.objects.get(id(name))
    }

    pub(super) fn get_mut(&mut self, name: N) -> Option<&mut T> {
        self.objects.get_mut(id(name))
    }

    pub(super) fn remove(&mut self, name: N) -> Option<T> {
        self.objects.remove(id(name))
    }

    /// Every object and its name, in the order of their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (N, &T)> {
        self.objects.entries().map(|(id, value)| (N::from_u32(id.index()), value))
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
        assert_eq!(table.len(), 0);
        assert_eq!(table.insert(0).unwrap().to_u32() & 0xf_ffff, 0, "the first slot");
    }
}
