//! A seeded source of chance: the same seed gives the same numbers.

/// SplitMix64: small and fast, for dice. Its output reveals its state.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Seeds that a simulation runs: those that the environment asks for, else 100.
#[cfg(test)]
pub(crate) fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().unwrap());
    match number("ROCE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ROCE_SEEDS").unwrap_or(100),
    }
}
