//! Registry of the objects that programs hold.
//!
//! A kernel knows objects by numbers and refuses those it does not know. Here a program names them
//! by pointers, so verbs off the data path look up what they are given before they look at it: a
//! structure that was destroyed, copied or never made is refused, and nothing is freed twice.
//! Posting and polling do not ask.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use roce::ibverbs::ibv_context;

use crate::call::{Failed, Result};
use crate::events::lock;
use crate::fork::Generation;

/// The objects of a process. A child has its own, and knows those of its parents: their locks may
/// be held for ever by threads that it does not have.
#[derive(Debug)]
struct Registry {
    generation: Generation,
    /// Objects by address.
    objects: Mutex<Objects>,
    parent: Option<&'static Self>,
}

type Objects = BTreeMap<usize, Entry>;

/// An object.
#[derive(Debug)]
struct Entry {
    kind: TypeId,
    /// The open device that it is of, and how it is dropped when that is closed. Devices themselves
    /// have none.
    of: Option<(usize, DropAt)>,
}

/// Drops what is at an address, and leaves its memory.
type DropAt = unsafe fn(usize);

static CURRENT: AtomicPtr<Registry> = AtomicPtr::new(ptr::null_mut());

impl Registry {
    fn current() -> &'static Self {
        loop {
            let known = CURRENT.load(Ordering::Acquire);
            // SAFETY: it is null, or what was put there, which stays.
            let parent = unsafe { known.as_ref::<'static>() };
            if let Some(own) = parent.filter(|registry| registry.generation.check().is_ok()) {
                return own;
            }
            let (generation, objects) = (Generation::current(), Mutex::default());
            let new = Box::into_raw(Box::new(Self { generation, objects, parent }));
            let put = CURRENT.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire);
            if put.is_err() {
                // SAFETY: it was just made, and nothing has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    /// Whether a parent has such an object, or cannot be asked.
    fn is_inherited(&self, at: usize, kind: TypeId) -> bool {
        let mut next = self.parent;
        while let Some(registry) = next {
            let found = match registry.objects.try_lock() {
                Ok(objects) => is(&objects, at, kind),
                Err(TryLockError::Poisoned(objects)) => is(&objects.into_inner(), at, kind),
                Err(TryLockError::WouldBlock) => true,
            };
            if found {
                return true;
            }
            next = registry.parent;
        }
        false
    }
}

/// Whether there is such an object.
fn is(objects: &Objects, at: usize, kind: TypeId) -> bool {
    objects.get(&at).is_some_and(|entry| entry.kind == kind)
}

/// A program holds an object of type `T` here from now on.
pub(crate) fn add<T: 'static, C>(at: *const C) {
    insert(at, Entry { kind: TypeId::of::<T>(), of: None });
}

/// Adds an object that belongs to an open device, and is dropped so when that is closed.
pub(crate) fn add_to<T: 'static, C>(context: *const ibv_context, at: *const C, drop_at: DropAt) {
    insert(at, Entry { kind: TypeId::of::<T>(), of: Some((context.addr(), drop_at)) });
}

fn insert<C>(at: *const C, entry: Entry) {
    lock(&Registry::current().objects).insert(at.expose_provenance(), entry);
}

/// Drops and forgets all objects of a device that is closed; whether there were any. Their memory
/// stays.
///
/// # Safety
///
/// Nothing may use them any more.
pub(crate) unsafe fn drop_all_of(context: *const ibv_context) -> bool {
    let is_its = |entry: &Entry| entry.of.is_some_and(|(of, _)| of == context.addr());
    let mut objects = lock(&Registry::current().objects);
    let left: Vec<_> = objects.extract_if(.., |_, entry| is_its(entry)).collect();
    drop(objects);
    for (at, entry) in &left {
        if let Some((_, drop_at)) = entry.of {
            // SAFETY: it was there, is forgotten now, and was added with its own function.
            unsafe { drop_at(*at) };
        }
    }
    !left.is_empty()
}

/// Locks the registry while a thread forks.
pub(crate) fn hold() -> Held {
    Held { _objects: lock(&Registry::current().objects) }
}

/// Lock that keeps other threads from the registry.
pub(crate) struct Held {
    _objects: MutexGuard<'static, Objects>,
}

/// Fails unless a program holds an object of type `T` here, and this process made it.
pub(crate) fn check<T: 'static, C>(at: *const C) -> Result<()> {
    let (registry, kind) = (Registry::current(), TypeId::of::<T>());
    if is(&lock(&registry.objects), at.addr(), kind) {
        return Ok(());
    }
    let inherited = registry.is_inherited(at.addr(), kind);
    Err(if inherited { Failed::ENODEV } else { Failed::EINVAL })
}

/// Removes an object that the program does not hold any more; fails as [`check`] does. If several
/// threads remove it, only one succeeds.
pub(crate) fn remove<T: 'static, C>(at: *const C) -> Result<()> {
    check::<T, C>(at)?;
    let removed = lock(&Registry::current().objects).remove(&at.addr());
    removed.map(|_| ()).ok_or(Failed::EINVAL)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn objects_are_known_by_place_and_type_until_they_are_removed() {
        let (one, other) = (1_u8, 2_u8);
        let (one, other) = (&raw const one, &raw const other);
        add::<u32, _>(one);
        assert_eq!(check::<u32, _>(one), Ok(()));
        assert_eq!(check::<u64, _>(one), Err(Failed::EINVAL));
        assert_eq!(check::<u32, _>(other), Err(Failed::EINVAL));
        assert_eq!(remove::<u64, _>(one), Err(Failed::EINVAL));
        assert_eq!(remove::<u32, _>(one), Ok(()));
        assert_eq!(remove::<u32, _>(one), Err(Failed::EINVAL));
    }

    #[test]
    fn objects_of_a_closed_device_are_dropped_and_forgotten() {
        /// Counts what is dropped.
        ///
        /// # Safety
        ///
        /// There must be a counter at this address.
        unsafe fn count(at: usize) {
            let counter: *const AtomicU32 = ptr::with_exposed_provenance(at);
            // SAFETY: the caller vouches for it.
            unsafe { (*counter).fetch_add(1, Ordering::Relaxed) };
        }
        let counters = [const { AtomicU32::new(0) }; 3];
        let devices = [16, 32].map(ptr::without_provenance::<ibv_context>);
        for (at, device) in counters.iter().zip([devices[0], devices[1], devices[0]]) {
            add_to::<u32, _>(device, ptr::from_ref(at), count);
        }
        // SAFETY: there is a counter at each address.
        let dropped = [(); 2].map(|()| unsafe { drop_all_of(devices[0]) });
        assert_eq!(dropped, [true, false], "the second time there are none");
        assert_eq!(counters.each_ref().map(|it| it.load(Ordering::Relaxed)), [1, 0, 1]);
        let known = counters.each_ref().map(|it| check::<u32, _>(ptr::from_ref(it)).is_ok());
        assert_eq!(known, [false, true, false]);
        assert_eq!(remove::<u32, _>(ptr::from_ref(&counters[1])), Ok(()));
    }
}
