//! The objects of an open device by their ids.
//!
//! A thread that works with an object holds the lock of its table for reading meanwhile, and one
//! that destroys it takes it out under the lock for writing. So no thread ever holds a pointer to
//! what is gone, and the work of many threads is not held up by one that waits for the kernel.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::object::{Made, Object};
use crate::table::{TABLE_MAX, Table};
use crate::verbs::{DestroyError, DeviceTag, Id};

/// Objects of one kind. A slot is empty while its object is being created or destroyed.
type Slots<T> = Table<Option<Arc<Made<T>>>>;

/// Objects of one kind, which any number of threads may use.
#[derive(Debug)]
pub(super) struct Objects<T: Object>(RwLock<Slots<T>>);

/// A table that does not change meanwhile.
#[derive(Debug)]
pub(super) struct Reading<'a, T: Object>(RwLockReadGuard<'a, Slots<T>>);

impl<T: Object> Reading<'_, T> {
    /// An object, if it is there.
    #[inline]
    pub(super) fn get(&self, id: Id) -> Option<&Made<T>> {
        self.0.get(id)?.as_deref()
    }

    /// The id of an object of this device, if it came without a tag.
    #[inline]
    pub(super) fn tagged(&self, id: Id) -> Id {
        self.0.tagged(id)
    }

    /// The first object that is meant.
    pub(super) fn find(&self, meant: impl Fn(&Made<T>) -> bool) -> Option<&Made<T>> {
        self.0.iter().filter_map(Option::as_deref).find(|made| meant(made))
    }
}

impl<T: Object> Objects<T> {
    /// A table without objects, of the device with this tag.
    pub(super) fn new(device: DeviceTag) -> Self {
        Self(RwLock::new(Table::new(TABLE_MAX, device)))
    }

    /// The objects, for as long as the answer is held. Who holds one table for reading may take
    /// another, in the order of queue pairs, address handles, windows, regions; never the same
    /// again.
    #[inline]
    pub(super) fn read(&self) -> Reading<'_, T> {
        Reading(self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write(&self) -> RwLockWriteGuard<'_, Slots<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object to build another on, which stays as long as it is held.
    pub(super) fn get(&self, id: Id) -> Option<Arc<Made<T>>> {
        self.read().0.get(id)?.clone()
    }

    /// Makes an object that is told its id. It cannot be found before it is made. `None` if there
    /// is no slot left.
    pub(super) fn make<E>(
        &self,
        make: impl FnOnce(Id) -> Result<Made<T>, E>,
    ) -> Option<Result<Id, E>> {
        let id = self.write().insert(None)?;
        // The lock is not held: this may take long.
        let made = make(id);
        let mut slots = self.write();
        Some(match made {
            Ok(made) => {
                fill(&mut slots, id, made.into());
                Ok(id)
            }
            Err(error) => {
                slots.remove(id);
                Err(error)
            }
        })
    }

    /// Destroys an object that no other is built on.
    pub(super) fn destroy(&self, id: Id) -> Result<(), DestroyError> {
        let id = self.read().tagged(id);
        let taken = self.write().get_mut(id).and_then(Option::take);
        let made = taken.ok_or(DestroyError::NotFound)?;
        // Every thread that found it before has released the lock, and none finds it now.
        let (made, error) = match Arc::try_unwrap(made) {
            Err(shared) => (shared, DestroyError::Busy),
            Ok(made) => match made.destroy() {
                Err((made, errno)) => (Arc::new(made), super::errors::not_destroyed(errno)),
                Ok(()) => {
                    self.write().remove(id);
                    return Ok(());
                }
            },
        };
        fill(&mut self.write(), id, made);
        Err(error)
    }
}

/// Fills a slot that was taken for an object, or whose object was taken out.
fn fill<T: Object>(slots: &mut Slots<T>, id: Id, made: Arc<Made<T>>) {
    if let Some(slot) = slots.get_mut(id) {
        *slot = Some(made);
    }
}
