//! Path MTUs, and the sizes of READs at them.

use crate::wire::Psn;

/// The path MTUs that there are, in bytes.
pub(crate) const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// Returns the number of responses of a READ of `length` bytes.
pub(crate) fn responses_of(length: u32, mtu: u32) -> u64 {
    u64::from(length.div_ceil(mtu.max(1))).max(1)
}

/// Returns the number of sequence numbers that a READ of `length` bytes takes. It has at most half
/// of the PSNs (§9.7.3.1); what asks for more is not believed.
pub(crate) fn span_of_read(length: u32, mtu: u32) -> u32 {
    u32::try_from(responses_of(length, mtu)).unwrap_or(u32::MAX).min(Psn::HALF)
}

/// Returns the smallest path MTU that has room for a payload.
pub(crate) fn least_mtu(payload: u32) -> u32 {
    MTUS.into_iter().find(|&mtu| mtu >= payload).unwrap_or(MTUS[MTUS.len() - 1])
}

/// Returns the path MTU, of those from `least` on, with which a READ of `length` bytes has so many
/// responses.
pub(crate) fn mtu_with(length: u32, responses: u64, least: u32) -> Option<u32> {
    let mut mtus = MTUS.into_iter().filter(|&mtu| mtu >= least);
    mtus.find(|&mtu| responses_of(length, mtu) == responses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_mtu_has_room_for_the_payload() {
        let payloads = [0, 256, 257, 4096, 70_000];
        assert_eq!(payloads.map(least_mtu), [256, 256, 512, 4096, 4096]);
    }

    #[test]
    fn number_of_responses_tells_the_mtu() {
        let found = [1, 2, 3, 4, 8].map(|responses| mtu_with(1500, responses, 512));
        assert_eq!(found, [Some(2048), Some(1024), Some(512), None, None]);
    }

    #[test]
    fn read_of_nothing_has_one_response() {
        assert_eq!([0, 1, 1024, 1025].map(|length| responses_of(length, 1024)), [1, 1, 1, 2]);
    }
}
