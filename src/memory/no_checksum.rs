//! Stand-ins for the checksums of packets on processors without instructions for them: `crc32fast`
//! sums all.

/// Returns `None`: only the x86-64 code has a faster way.
pub(crate) fn packet_crc32(_: u32, _: u32, _: &[u8]) -> Option<u32> {
    None
}

/// A sum that cannot be made: the type has no values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sum {}

impl Sum {
    /// Returns `None`, as [`packet_crc32`] does.
    pub(crate) fn begin(_: u32, _: u32, _: &[u8], _: usize) -> Option<Self> {
        None
    }

    /// Never called, because there are no values.
    pub(crate) fn finish(self) -> u32 {
        match self {}
    }
}
