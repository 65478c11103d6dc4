//! PSNs unwrapped to sequence numbers: 64 bits that count on where the 24 bits of a PSN wrap.

use crate::wire::Psn;

/// Sequence numbers begin here, so that those before the first one captured are not negative.
const FIRST_EPOCH: u64 = 1 << 25;

/// A PSN that is further than this from all that is in flight belongs to another connection.
pub(crate) const PSN_JUMP_MAX: u64 = 65_536;

/// PSN space of one requester, as far as its packets tell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PsnSpace {
    is_started: bool,
    next: u64,
}

impl PsnSpace {
    /// Begins at a sequence number.
    pub(crate) fn start_at(&mut self, sequence: u64) {
        *self = Self { is_started: true, next: sequence };
    }

    /// Whether a packet was seen.
    pub(crate) fn is_started(&self) -> bool {
        self.is_started
    }

    /// Sequence number behind the highest that was sent.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Sets the sequence number behind the highest that was sent.
    pub(crate) fn set_next(&mut self, next: u64) {
        self.next = next;
    }

    /// Returns the sequence number of a PSN: the one nearest to what is sent next.
    #[inline]
    pub(crate) fn sequence_of(&self, psn: Psn) -> u64 {
        if self.is_started { unwrap(psn, self.next) } else { first(psn) }
    }

    /// Whether a PSN is so far from all between `lowest` and what is sent next that it cannot
    /// belong to this connection.
    #[inline]
    pub(crate) fn is_far(&self, psn: Psn, lowest: u64) -> bool {
        let sequence = self.sequence_of(psn);
        self.is_started
            && (sequence > self.next.saturating_add(PSN_JUMP_MAX)
                || sequence.saturating_add(PSN_JUMP_MAX) < lowest.min(self.next))
    }
}

/// Returns the sequence number of the first PSN of a PSN space.
pub(crate) fn first(psn: Psn) -> u64 {
    FIRST_EPOCH + u64::from(psn.get())
}

/// Returns the sequence number of a PSN that is nearest to `near`.
#[inline]
pub(crate) fn unwrap(psn: Psn, near: u64) -> u64 {
    near.saturating_add_signed(psn.since(psn_of(near)).into())
}

/// Returns the PSN of a sequence number.
#[expect(clippy::cast_possible_truncation, reason = "a PSN is the low bits of the sequence number")]
pub(crate) const fn psn_of(sequence: u64) -> Psn {
    Psn::new(sequence as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psns_count_on_where_they_wrap() {
        let last = first(Psn::new(0xff_ffff));
        let next = unwrap(Psn::new(3), last);
        assert_eq!(next, last + 4);
        assert_eq!(unwrap(Psn::new(0xff_fffe), next), last - 1);
        assert_eq!(psn_of(next), Psn::new(3));
    }

    #[test]
    fn psn_before_the_first_has_a_lower_sequence() {
        assert_eq!(unwrap(Psn::new(0xff_ffff), first(Psn::new(0))), first(Psn::new(0)) - 1);
    }
}
