//! Tables of connections, with a hash of few multiplications.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A hash of few multiplications. The same capture always gives the same tables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FoldHasher(u64);

impl Hasher for FoldHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        #[expect(clippy::cast_possible_truncation, reason = "the halves are folded")]
        let folded = product as u64 ^ (product >> 64) as u64;
        self.0 = folded;
    }
}

/// A table by keys that are hashed fast. A capture can choose its keys: what is in a table is
/// bounded.
pub(crate) type FoldMap<K, V> = HashMap<K, V, BuildHasherDefault<FoldHasher>>;
