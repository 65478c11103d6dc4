//! Claims of slots: locks on the bytes of a file without a name. The kernel releases those of a
//! process that ends, however it does.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::steering::SLOTS;
use crate::link::sys::lock::{is_locked, try_lock};

/// Makes the file on which the members of an address lock their slots.
pub(crate) fn create() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create(c"roce slots", flags)?;
    ftruncate(&file, SLOTS.into())?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// The slot that a NIC has claimed. Dropped, it is free.
pub(crate) struct Claim {
    /// An open file description of its own, which has the lock.
    file: OwnedFd,
    slot: u8,
}

impl Claim {
    /// Claims the lowest slot that is free; `None` if none is.
    pub(crate) fn new(shared: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let path = format!("/proc/self/fd/{}", shared.as_raw_fd());
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        for slot in 0..SLOTS {
            if try_lock(file.as_fd(), slot)? {
                return Ok(Some(Self { file, slot }));
            }
        }
        Ok(None)
    }

    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    /// Returns the slots that others have.
    pub(crate) fn others(&self) -> impl Iterator<Item = u8> {
        let is_others = |slot: &u8| is_locked(self.file.as_fd(), *slot).unwrap_or(false);
        (0..SLOTS).filter(is_others)
    }

    /// Returns the descriptor that has the lock: a forked child that does not use the NIC closes
    /// its copy.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_claimed_once_and_is_free_when_its_claim_ends() {
        let shared = create().unwrap();
        let claim = || Claim::new(shared.as_fd()).unwrap().unwrap();
        let (first, second, third) = (claim(), claim(), claim());
        assert_eq!([&first, &second, &third].map(Claim::slot), [0, 1, 2]);
        assert_eq!(third.others().collect::<Vec<_>>(), [0, 1]);
        drop(second);
        assert_eq!(third.others().collect::<Vec<_>>(), [0]);
        assert_eq!(claim().slot(), 1);
    }

    #[test]
    fn there_are_no_more_claims_than_slots() {
        let shared = create().unwrap();
        let claims: Vec<Claim> =
            std::iter::from_fn(|| Claim::new(shared.as_fd()).unwrap()).collect();
        assert_eq!(claims.len(), usize::from(SLOTS));
    }
}
