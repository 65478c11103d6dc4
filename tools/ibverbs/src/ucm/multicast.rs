//! Memberships in multicast groups. The device numbers them like ids, and counts their events
//! apart: a program that leaves a group waits until it has acknowledged those.

use std::collections::BTreeMap;
use std::net::IpAddr;

use roce::cm::CmId;

use crate::call::{Failed, Result};

/// A membership of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) id: CmId,
    pub(super) group: IpAddr,
    /// Identifier that the program gave it.
    uid: u64,
    /// Number of its events that the program took.
    pub(super) events_reported: u32,
}

/// All memberships, by number.
#[derive(Debug, Default)]
pub(super) struct Memberships {
    known: BTreeMap<u32, Membership>,
    last: u32,
}

impl Memberships {
    /// A new membership; its number, which none had before it for a long time.
    pub(super) fn insert(&mut self, id: CmId, group: IpAddr, uid: u64) -> Result<u32> {
        let free = (1..=u32::MAX).map(|step| self.last.wrapping_add(step));
        let mut free = free.take(self.known.len() + 1);
        let number = free.find(|number| !self.known.contains_key(number)).ok_or(Failed::EBUSY)?;
        self.last = number;
        self.known.insert(number, Membership { id, group, uid, events_reported: 0 });
        Ok(number)
    }

    pub(super) fn get(&self, number: u32) -> Option<Membership> {
        self.known.get(&number).copied()
    }

    pub(super) fn remove(&mut self, number: u32) {
        self.known.remove(&number);
    }

    /// An id was destroyed, and its memberships with it.
    pub(super) fn forget(&mut self, id: CmId) {
        self.known.retain(|_, membership| membership.id != id);
    }

    /// The program takes an event of the membership that it knows so; its number.
    pub(super) fn report(&mut self, id: CmId, uid: u64) -> Option<u32> {
        let mut all = self.known.iter_mut();
        let (number, membership) =
            all.find(|(_, membership)| membership.id == id && membership.uid == uid)?;
        membership.events_reported += 1;
        Some(*number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_are_numbered_counted_and_forgotten() {
        let mut all = Memberships::default();
        let (id, other) = (CmId::from_number(1), CmId::from_number(2));
        let group = IpAddr::from([239, 1, 2, 3]);
        let first = all.insert(id, group, 7).unwrap();
        let second = all.insert(other, group, 8).unwrap();
        assert_ne!(first, second);
        assert_eq!((all.report(id, 8), all.report(id, 7)), (None, Some(first)));
        assert_eq!(all.get(first).unwrap().events_reported, 1);
        assert_eq!(all.get(second).unwrap().events_reported, 0);
        all.remove(first);
        assert_eq!(all.get(first), None);
        assert_ne!(all.insert(id, group, 7).unwrap(), first, "a number is not used anew at once");
        all.forget(other);
        assert_eq!(all.get(second), None);
    }
}
