//! Path MTUs, and the sizes of READs at them.

/// The path MTUs that there are, in bytes.
pub(crate) const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// Returns the number of responses of a READ of `length` bytes.
pub(crate) fn responses_of(length: u32, mtu: u32) -> u64 {
    u64::from(length.div_ceil(mtu.max(1))).max(1)
}

/// Returns the smallest path MTU that has room for a payload.
pub(crate) fn least_mtu(payload: u32) -> u32 {
    MTUS.into_iter().find(|&mtu| mtu >= payload).unwrap_or(MTUS[MTUS.len() - 1])
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
    fn read_of_nothing_has_one_response() {
        assert_eq!([0, 1, 1024, 1025].map(|length| responses_of(length, 1024)), [1, 1, 1, 2]);
    }
}
