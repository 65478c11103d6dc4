//! Claims of members at an address: locks on the bytes of a file without a name. The kernel
//! releases those of a process that ends, however it does.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};

use super::steering::SLOTS;
use crate::link::sys::lock::{first_locked, try_lock, unlock};
use crate::wire::cm::PortSpace;

/// Makes the file on which the members of an address lock what they claim.
pub(super) fn create() -> io::Result<OwnedFd> {
    Ok(memfd_create(c"roce claims", MemfdFlags::CLOEXEC)?)
}

/// A role that one member of an address at most can have, besides its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Answers messages for connections that no member knows.
    Eldest,
    /// Listens at a port.
    Listener(PortSpace, u16, Listens),
}

/// Addresses that a listener is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Listens {
    /// This one.
    Here,
    /// All of IPv4.
    AnyIpv4,
    /// All of IPv6, or all.
    AnyIpv6,
}

/// First byte of the roles, behind those of the slots.
const ROLES: u64 = 1 << 8;

impl Role {
    /// Returns the byte that is locked by who has the role.
    fn byte(self) -> u64 {
        match self {
            Self::Eldest => ROLES,
            Self::Listener(space, port, listens) => {
                let number = u64::from(space.0) << 18 | (listens as u64) << 16 | u64::from(port);
                ROLES + 1 + number
            }
        }
    }
}

/// The slot that a NIC has claimed at an address, and its roles there. Dropped, they are free.
#[derive(Debug)]
pub(crate) struct Claim {
    /// An open file description of its own, which has the locks.
    file: OwnedFd,
    slot: u8,
}

impl Claim {
    /// Claims the lowest slot that is free; `None` if none is.
    pub(super) fn new(shared: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let path = format!("/proc/self/fd/{}", shared.as_raw_fd());
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        for slot in 0..SLOTS {
            if try_lock(file.as_fd(), slot.into())? {
                return Ok(Some(Self { file, slot }));
            }
        }
        Ok(None)
    }

    pub(super) fn slot(&self) -> u8 {
        self.slot
    }

    /// Returns the slots that others have.
    pub(crate) fn others(&self) -> impl Iterator<Item = u8> {
        let end = u64::from(SLOTS);
        let from = move |slot| first_locked(self.file.as_fd(), slot..end).unwrap_or(None);
        let slots = std::iter::successors(from(0), move |slot| from(slot + 1));
        slots.filter_map(|slot| u8::try_from(slot).ok())
    }

    /// Runs `work` while no other member has a slot, or can claim it; not at all if one has it.
    pub(super) fn while_free(&self, slot: u8, work: impl FnOnce()) {
        if try_lock(self.file.as_fd(), slot.into()).unwrap_or(false) {
            work();
            if slot != self.slot {
                let _ = unlock(self.file.as_fd(), slot.into());
            }
        }
    }

    /// Takes a role, if no other has it; returns whether it is this one's now.
    pub(crate) fn take(&self, role: Role) -> bool {
        try_lock(self.file.as_fd(), role.byte()).unwrap_or(false)
    }

    /// Gives a role back.
    pub(crate) fn give_back(&self, role: Role) {
        let _ = unlock(self.file.as_fd(), role.byte());
    }

    /// Whether another has a role.
    pub(crate) fn is_anothers(&self, role: Role) -> bool {
        let byte = role.byte();
        matches!(first_locked(self.file.as_fd(), byte..byte + 1), Ok(Some(_)))
    }

    /// Returns the descriptor that has the locks: a forked child that does not use the NIC closes
    /// its copy.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
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
        assert_eq!(first.others().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(third.others().collect::<Vec<_>>(), [0, 1]);
        drop(second);
        assert_eq!(third.others().collect::<Vec<_>>(), [0]);
        assert_eq!(claim().slot(), 1);
    }

    #[test]
    fn work_on_a_free_slot_keeps_others_from_it() {
        let shared = create().unwrap();
        let claim = || Claim::new(shared.as_fd()).unwrap().unwrap();
        let (first, second) = (claim(), claim());
        let mut done = Vec::new();
        for slot in 0..3 {
            first.while_free(slot, || done.push((slot, claim().slot())));
        }
        // Its own slot and a free one, not that of another.
        assert_eq!(done, [(0, 2), (2, 3)]);
        assert_eq!([first.slot(), second.slot(), claim().slot()], [0, 1, 2]);
    }

    #[test]
    fn there_are_no_more_claims_than_slots() {
        let shared = create().unwrap();
        let claims: Vec<Claim> =
            std::iter::from_fn(|| Claim::new(shared.as_fd()).unwrap()).collect();
        assert_eq!(claims.len(), usize::from(SLOTS));
        assert_eq!(claims[7].others().count(), usize::from(SLOTS) - 1);
    }

    #[test]
    fn role_is_one_members_until_it_gives_it_back_or_ends() {
        let shared = create().unwrap();
        let claim = || Claim::new(shared.as_fd()).unwrap().unwrap();
        let (first, second) = (claim(), claim());
        let listens = [Listens::Here, Listens::AnyIpv4, Listens::AnyIpv6];
        let spaces = [PortSpace::TCP, PortSpace::UDP, PortSpace(u16::MAX)];
        let mut roles = vec![Role::Eldest];
        for space in spaces {
            roles.extend(listens.map(|listens| Role::Listener(space, u16::MAX, listens)));
            roles.extend(listens.map(|listens| Role::Listener(space, 0, listens)));
        }
        for &role in &roles {
            assert!(!second.is_anothers(role));
            assert!(first.take(role) && first.take(role), "once more is no harm");
            assert!(!second.take(role) && second.is_anothers(role) && !first.is_anothers(role));
        }
        first.give_back(Role::Eldest);
        assert!(second.take(Role::Eldest));
        drop(first);
        assert!(roles.into_iter().all(|role| second.take(role)));
    }
}
