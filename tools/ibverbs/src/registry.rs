//! Which objects programs hold.
//!
//! A kernel knows objects by numbers and refuses those it does not know. Here a program names them by pointers, so verbs
//! off the data path look up what they are given before they look at it: a structure that was destroyed, copied or
//! never made is refused, and nothing is freed twice. Posting and polling do not ask.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, TryLockError};

use crate::call::{Failed, Result};
use crate::events::lock;
use crate::fork::Generation;

/// The objects of a process. A child has its own, and knows those of its parents: their locks may be held for ever by
/// threads that it does not have.
#[derive(Debug)]
struct Registry {
    generation: Generation,
    /// Where they are, and of what type.
    objects: Mutex<BTreeMap<usize, TypeId>>,
    parent: Option<&'static Self>,
}

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
                // SAFETY: it was just made, and nobody has seen it.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    /// Whether a parent has such an object, or cannot be asked.
    fn is_inherited(&self, at: usize, kind: TypeId) -> bool {
        let mut next = self.parent;
        while let Some(registry) = next {
            let found = match registry.objects.try_lock() {
                Ok(objects) => objects.get(&at) == Some(&kind),
                Err(TryLockError::Poisoned(objects)) => {
                    objects.into_inner().get(&at) == Some(&kind)
                }
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

/// A program holds an object of type `T` here from now on.
pub(crate) fn add<T: 'static, C>(at: *const C) {
    lock(&Registry::current().objects).insert(at.addr(), TypeId::of::<T>());
}

/// Fails unless a program holds an object of type `T` here, and this process made it.
pub(crate) fn check<T: 'static, C>(at: *const C) -> Result<()> {
    let (registry, kind) = (Registry::current(), TypeId::of::<T>());
    if lock(&registry.objects).get(&at.addr()) == Some(&kind) {
        return Ok(());
    }
    let inherited = registry.is_inherited(at.addr(), kind);
    Err(if inherited { Failed::ENODEV } else { Failed::EINVAL })
}

/// The program does not hold it any more; fails as [`check`] does. Of those who say so only one succeeds.
pub(crate) fn remove<T: 'static, C>(at: *const C) -> Result<()> {
    check::<T, C>(at)?;
    let removed = lock(&Registry::current().objects).remove(&at.addr());
    removed.map(drop).ok_or(Failed::EINVAL)
}

#[cfg(test)]
mod tests {
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
}
