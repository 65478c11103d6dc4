//! Answers that are owed.

use std::collections::VecDeque;

use crate::wire::aeth::NakCode;
use crate::wire::{Msn, Psn, RKey};

/// An answer that is owed. It counts against `max_dest_rd_atomic` unless it answers a flush, of which the requester
/// may have any number under way, or something that was answered before: the requester may have got that answer
/// meanwhile, and be entitled to ask anew.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owed {
    Ack {
        psn: Psn,
        msn: Msn,
        answer: Owing,
    },
    /// `sent` packets of the answer to a read of `len` bytes have gone out.
    Read {
        psn: Psn,
        va: u64,
        rkey: RKey,
        len: u32,
        sent: u32,
        msn: Msn,
        counts: bool,
    },
    Atomic {
        psn: Psn,
        original: u64,
        msn: Msn,
        counts: bool,
    },
    /// The answer to an atomic write or to a flush.
    Empty {
        psn: Psn,
        msn: Msn,
        counts: bool,
    },
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owing {
    Accepted,
    NotReady,
    Refused(NakCode),
}

/// Answers that are owed, in order. Mostly it is one, which lies in place.
#[derive(Debug, Default)]
pub(super) struct Debts {
    newest: Option<Owed>,
    earlier: VecDeque<Owed>,
}

impl Debts {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.newest.is_none()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.earlier.len() + usize::from(self.newest.is_some())
    }

    /// Whether there is one, which acknowledges something that was accepted.
    #[inline]
    pub(super) fn is_one_acceptance(&self) -> bool {
        matches!(self.newest, Some(Owed::Ack { answer: Owing::Accepted, .. }))
            && self.earlier.is_empty()
    }

    /// How many of them count against `max_dest_rd_atomic`.
    pub(super) fn reads(&self) -> usize {
        let counts = |owed: &&Owed| match owed {
            Owed::Ack { .. } => false,
            Owed::Read { counts, .. }
            | Owed::Atomic { counts, .. }
            | Owed::Empty { counts, .. } => *counts,
        };
        self.earlier.iter().chain(&self.newest).filter(counts).count()
    }

    /// The one that is owed longest.
    #[inline]
    pub(super) fn oldest(&mut self) -> Option<&mut Owed> {
        self.earlier.front_mut().or(self.newest.as_mut())
    }

    /// The one that came last.
    #[inline]
    pub(super) fn newest(&mut self) -> Option<&mut Owed> {
        self.newest.as_mut()
    }

    #[inline]
    pub(super) fn push(&mut self, owed: Owed) {
        if let Some(before) = self.newest.replace(owed) {
            self.earlier.push_back(before);
        }
    }

    /// The one that is owed longest is paid.
    #[inline]
    pub(super) fn pop(&mut self) {
        if self.earlier.pop_front().is_none() {
            self.newest = None;
        }
    }

    pub(super) fn clear(&mut self) {
        self.newest = None;
        self.earlier.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debts_are_paid_in_order() {
        let owed = |psn| Owed::Empty { psn: Psn::new(psn), msn: Msn::new(0), counts: psn % 2 == 0 };
        let mut debts = Debts::default();
        for psn in 0..4 {
            debts.push(owed(psn));
        }
        assert_eq!((debts.len(), debts.reads()), (4, 2));
        assert!(matches!(debts.newest(), Some(Owed::Empty { psn, .. }) if psn.get() == 3));
        for next in 0..4 {
            assert!(matches!(debts.oldest(), Some(Owed::Empty { psn, .. }) if psn.get() == next));
            debts.pop();
        }
        assert!(debts.is_empty() && debts.oldest().is_none());
    }
}
