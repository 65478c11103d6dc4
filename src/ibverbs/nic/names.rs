//! The objects of an open device by their names.
//!
//! A thread that works with an object holds the lock of its table for reading meanwhile, and one that destroys it takes it out
//! under the lock for writing. So no thread ever holds a pointer to what is gone, and the work of many threads is not held
//! up by one that waits for the kernel.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::object::{Made, Object};
use crate::verbs::{DestroyError, DeviceTag, Id};

/// How many bits of a name are the place; the rest is the generation.
const PLACE_BITS: u32 = 20;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;

/// Objects of one kind.
#[derive(Debug)]
pub(super) struct Table<T: Object>(RwLock<Places<Arc<Made<T>>>>);

/// Places with generations, which change when a place is used again.
#[derive(Debug)]
struct Places<T> {
    slots: Vec<Slot<T>>,
    /// Places that are free, last freed first.
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    /// Empty while it is free, and while its object is being made or destroyed.
    object: Option<T>,
}

impl<T> Slot<T> {
    /// Whether a handle is of this slot's generation, and not of another device.
    #[inline]
    fn is_of(&self, id: Id) -> bool {
        self.generation << PLACE_BITS == id.index() & !PLACE_MASK && id.device() == DeviceTag::RNIC
    }
}

impl<T: Object> Default for Table<T> {
    fn default() -> Self {
        Self(RwLock::new(Places { slots: Vec::new(), free: Vec::new() }))
    }
}

/// A table that does not change meanwhile.
#[derive(Debug)]
pub(super) struct Reading<'a, T: Object>(RwLockReadGuard<'a, Places<Arc<Made<T>>>>);

impl<T: Object> Reading<'_, T> {
    /// An object, if it is there.
    #[inline]
    pub(super) fn get(&self, id: Id) -> Option<&Made<T>> {
        self.0.get(id).map(|made| &**made)
    }

    /// The first object that is meant.
    pub(super) fn find(&self, meant: impl Fn(&Made<T>) -> bool) -> Option<&Made<T>> {
        let objects = self.0.slots.iter().filter_map(|slot| slot.object.as_deref());
        objects.into_iter().find(|made| meant(made))
    }
}

impl<T: Object> Table<T> {
    /// The objects, for as long as the answer is held. Who holds one table for reading may take another, in the order of
    /// queue pairs, address handles, windows, regions; never the same again.
    #[inline]
    pub(super) fn read(&self) -> Reading<'_, T> {
        Reading(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> RwLockWriteGuard<'_, Places<Arc<Made<T>>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object to build another on, which stays as long as it is held.
    pub(super) fn get(&self, id: Id) -> Option<Arc<Made<T>>> {
        self.read().0.get(id).cloned()
    }

    /// Makes an object that is told its name. It cannot be found before it is made. `None` if there is no name left.
    pub(super) fn make<E>(
        &self,
        make: impl FnOnce(Id) -> Result<Made<T>, E>,
    ) -> Option<Result<Id, E>> {
        let id = self.write().reserve()?;
        // The lock is not held: this may take long.
        let made = make(id);
        let mut places = self.write();
        Some(match made {
            Ok(made) => {
                places.put(id, Arc::new(made));
                Ok(id)
            }
            Err(error) => {
                places.release(id);
                Err(error)
            }
        })
    }

    /// Destroys an object that no other is built on.
    pub(super) fn destroy(&self, id: Id) -> Result<(), DestroyError> {
        let made = self.write().take(id).ok_or(DestroyError::NotFound)?;
        // Every thread that found it before has released the lock, and none finds it now.
        let (made, error) = match Arc::try_unwrap(made) {
            Err(shared) => (shared, DestroyError::Busy),
            Ok(made) => match made.destroy() {
                Err((made, errno)) => (Arc::new(made), super::errors::not_destroyed(errno)),
                Ok(()) => {
                    self.write().release(id);
                    return Ok(());
                }
            },
        };
        self.write().put(id, made);
        Err(error)
    }
}

impl<T> Places<T> {
    /// Takes a place that stays empty for now.
    fn reserve(&mut self) -> Option<Id> {
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                let place = u32::try_from(self.slots.len()).ok().filter(|&at| at <= PLACE_MASK)?;
                self.slots.push(Slot { generation: 0, object: None });
                place
            }
        };
        let generation = self.slots.get(place as usize)?.generation;
        Some(Id::new(DeviceTag::RNIC, place | generation << PLACE_BITS))
    }

    fn slot(&mut self, id: Id) -> Option<&mut Slot<T>> {
        let slot = self.slots.get_mut((id.index() & PLACE_MASK) as usize)?;
        slot.is_of(id).then_some(slot)
    }

    #[inline]
    fn get(&self, id: Id) -> Option<&T> {
        let slot = self.slots.get((id.index() & PLACE_MASK) as usize)?;
        if slot.is_of(id) { slot.object.as_ref() } else { None }
    }

    /// Fills a place that was reserved, or whose object was taken out.
    fn put(&mut self, id: Id, object: T) {
        if let Some(slot) = self.slot(id) {
            slot.object = Some(object);
        }
    }

    /// Takes an object out; its place stays its own.
    fn take(&mut self, id: Id) -> Option<T> {
        self.slot(id)?.object.take()
    }

    /// Gives up a place that is empty.
    fn release(&mut self, id: Id) {
        if let Some(slot) = self.slot(id) {
            slot.generation = slot.generation.wrapping_add(1);
            self.free.push(id.index() & PLACE_MASK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_name_does_not_match() {
        let mut places = Places { slots: Vec::new(), free: Vec::new() };
        let first = places.reserve().unwrap();
        assert_eq!(places.get(first), None, "it is not made yet");
        places.put(first, "first");
        assert_eq!(places.get(first), Some(&"first"));
        assert_eq!(places.take(first), Some("first"));
        let other = places.reserve().unwrap();
        assert_ne!(other, first, "its place is its own until it is given up");
        places.put(first, "still here");
        assert_eq!(places.take(first), Some("still here"));
        places.release(first);
        let second = places.reserve().unwrap();
        places.put(second, "second");
        assert_ne!(second, first);
        assert_eq!(places.get(first), None);
        assert_eq!(places.take(first), None);
        places.put(first, "too late");
        assert_eq!(places.get(second), Some(&"second"));
    }

    #[test]
    fn generations_begin_anew_and_nothing_breaks() {
        let mut places = Places { slots: Vec::new(), free: Vec::new() };
        for round in 0..10_000 {
            let id = places.reserve().unwrap();
            places.put(id, round);
            assert_eq!(places.take(id), Some(round));
            places.release(id);
        }
        assert_eq!(places.slots.len(), 1);
    }
}
