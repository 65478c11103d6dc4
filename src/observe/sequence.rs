//! PSNs unwrapped to sequence numbers: 64 bits that count on where the 24 bits of a PSN wrap.

use crate::wire::Psn;

/// Sequence numbers begin here, so that those before the first one captured are not negative.
const FIRST_EPOCH: u64 = 1 << 25;

/// Returns the sequence number of the first PSN of a PSN space.
pub(crate) fn first(psn: Psn) -> u64 {
    FIRST_EPOCH + u64::from(psn.get())
}

/// Returns the sequence number of a PSN that is nearest to `near`.
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
