//! Numbers in the byte order of the host that wrote the file.

/// The byte order a file, or a section of one, was written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Little => Self::Big,
            Self::Big => Self::Little,
        }
    }

    #[inline]
    pub(super) const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    #[inline]
    pub(super) const fn i64(self, bytes: [u8; 8]) -> i64 {
        match self {
            Self::Little => i64::from_le_bytes(bytes),
            Self::Big => i64::from_be_bytes(bytes),
        }
    }

    /// The first `N` 32-bit numbers of `bytes`, or nothing when they are too few.
    #[inline]
    pub(super) fn words<const N: usize>(self, bytes: &[u8]) -> Option<[u32; N]> {
        let mut words = [0; N];
        // Not `map`: builds without LTO call it once per record.
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0.first_chunk::<N>()?) {
            *word = self.u32(*bytes);
        }
        Some(words)
    }

    /// The two 16-bit numbers that stand where `word` was read, the first of them first.
    #[inline]
    pub(super) const fn split(self, word: u32) -> [u16; 2] {
        let [a, b, c, d] = word.to_be_bytes();
        let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        match self {
            Self::Little => [low, high],
            Self::Big => [high, low],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_and_no_more_than_there_is() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(ByteOrder::Little.words(&bytes), Some([0x0403_0201, 0x0807_0605]));
        assert_eq!(ByteOrder::Big.words(&bytes), Some([0x0102_0304, 0x0506_0708]));
        assert_eq!(ByteOrder::Little.split(0x0403_0201), [0x0201, 0x0403]);
        assert_eq!(ByteOrder::Big.split(0x0102_0304), [0x0102, 0x0304]);
        assert_eq!(ByteOrder::Big.words::<3>(&bytes), None);
        assert_eq!(ByteOrder::Big.i64([255; 8]), -1);
    }
}
