//! Numbers that a peer must not be able to predict from others that it has seen. The same seed
//! gives the same ones.

/// Seed from which all random numbers of an engine follow. In a live NIC it is 128 bits from the
/// operating system; a simulation gives a number.
#[derive(Clone, Copy)]
pub struct Seed([u64; 2]);

impl Seed {
    /// A seed of 128 random bits.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let number = u128::from_le_bytes(bytes);
        #[expect(clippy::cast_possible_truncation, reason = "each half in turn")]
        Self([number as u64, (number >> 64) as u64])
    }

    /// A seed of 128 random bits from the operating system, other ones each time, also in a forked
    /// child. Only rooms that touch the system may call it.
    pub fn from_system() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        Ok(Self::from_bytes(bytes))
    }
}

impl From<u64> for Seed {
    fn from(number: u64) -> Self {
        Self([number, 0])
    }
}

impl core::fmt::Debug for Seed {
    /// Without the bits, which must stay secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Seed(…)")
    }
}

/// SipHash-2-4 of one word: a pseudorandom function with a key of 128 bits.
fn siphash(key: [u64; 2], word: u64) -> u64 {
    /// The length of the message, in the highest byte of its last word.
    const LENGTH: u64 = 8 << 56;
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for word in [word, LENGTH] {
        v[3] ^= word;
        (0..2).for_each(|_| sip_round(&mut v));
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| sip_round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

/// Random numbers that cannot be predicted from earlier ones: SipHash of a counter, with the seed
/// as its key.
#[derive(Clone)]
pub(crate) struct SecretRandom {
    key: [u64; 2],
    drawn: u64,
}

impl SecretRandom {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { key: seed.0, drawn: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.drawn += 1;
        siphash(self.key, self.drawn)
    }

    /// The random number that belongs to `word`: always the same.
    pub(crate) fn of(&self, word: u64) -> u64 {
        siphash(self.key, !word)
    }

    /// A source of its own for a part of the engine.
    pub(crate) fn split(&mut self) -> Self {
        Self::new(Seed([self.next(), self.next()]))
    }
}

impl core::fmt::Debug for SecretRandom {
    /// Without the key, which must stay secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SecretRandom(…)")
    }
}

/// A pseudorandom permutation of the 24-bit numbers: a balanced Feistel network whose round
/// function is SipHash.
#[derive(Clone)]
pub(crate) struct Permutation {
    key: [u64; 2],
}

impl Permutation {
    /// Number of values.
    pub(crate) const SIZE: u32 = 1 << 24;

    /// Number of rounds, as NIST's FF1 has for domains as small as this.
    const ROUNDS: u64 = 10;

    const HALF_BITS: u32 = 12;
    const HALF_MASK: u32 = (1 << Self::HALF_BITS) - 1;

    pub(crate) fn new(random: &mut SecretRandom) -> Self {
        Self { key: [random.next(), random.next()] }
    }

    /// The number that `number` becomes.
    pub(crate) fn apply(&self, number: u32) -> u32 {
        let (mut left, mut right) =
            (number >> Self::HALF_BITS & Self::HALF_MASK, number & Self::HALF_MASK);
        for round in 0..Self::ROUNDS {
            #[expect(clippy::cast_possible_truncation, reason = "twelve bits are wanted")]
            let mixed = siphash(self.key, round << 32 | u64::from(right)) as u32;
            (left, right) = (right, (left ^ mixed) & Self::HALF_MASK);
        }
        left << Self::HALF_BITS | right
    }
}

impl core::fmt::Debug for Permutation {
    /// Without the key, which must stay secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Permutation(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    #[allow(deprecated, reason = "the standard library's SipHash-2-4 is an independent oracle")]
    fn siphash_agrees_with_the_standard_library_and_with_the_published_vector() {
        use core::hash::{Hasher, SipHasher};
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        assert_eq!(siphash(key, 0x0706_0504_0302_0100), 0x93f5_f579_9a93_2462);
        let mut dice = Random::new(3);
        for _ in 0..1000 {
            let (key, word) = ([dice.next(), dice.next()], dice.next());
            let mut hasher = SipHasher::new_with_keys(key[0], key[1]);
            hasher.write_u64(word);
            assert_eq!(siphash(key, word), hasher.finish());
        }
    }

    #[test]
    fn permutation_is_one_and_depends_on_all_of_its_key() {
        // Numbers that begin with the same half are a row; if rows do not collide in steps of a
        // prime, nothing does.
        let mut seen = vec![false; Permutation::SIZE as usize];
        let permutation = Permutation::new(&mut SecretRandom::new(Seed::from(1)));
        for number in (0..Permutation::SIZE).step_by(211) {
            let becomes = permutation.apply(number) as usize;
            assert!(!core::mem::replace(&mut seen[becomes], true), "{number} collides");
        }
        let image = |bytes| {
            let permutation = Permutation::new(&mut SecretRandom::new(Seed::from_bytes(bytes)));
            (0..4).map(|number| permutation.apply(number)).collect::<Vec<_>>()
        };
        let mut images = std::collections::BTreeSet::new();
        images.insert(image([0; 16]));
        for bit in 0..128 {
            let mut bytes = [0; 16];
            bytes[bit / 8] = 1 << (bit % 8);
            assert!(images.insert(image(bytes)), "bit {bit} of the seed changes nothing");
        }
    }

    /// The attack that broke an earlier scrambling used that differences carried over. Here,
    /// numbers that differ in one bit become numbers that differ in any, each as often as not.
    #[test]
    fn permutation_scatters_neighbors() {
        let permutation = Permutation::new(&mut SecretRandom::new(Seed::from(2)));
        for bit in 0..24 {
            let mut flips = [0_u32; 24];
            for number in 0..400_u32 {
                let number = number * 41_943;
                let differs = permutation.apply(number) ^ permutation.apply(number ^ 1 << bit);
                flips.iter_mut().enumerate().for_each(|(at, count)| *count += differs >> at & 1);
            }
            assert!(flips.iter().all(|count| (120..280).contains(count)), "bit {bit}: {flips:?}");
        }
    }
}
