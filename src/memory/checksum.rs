//! CRC-32 of packets, by products without carries (PCLMULQDQ).
//!
//! `crc32fast` takes the last bytes of an input whose length is not a multiple of 16 one by one,
//! and those of a packet mostly are not: of a 64-byte SEND twelve. Here the first bytes make up
//! for it: zeros before a message do not change its CRC, so its first block is filled up with
//! zeros at its front. 7 ns instead of 11 for such a packet.
//!
//! Long inputs are summed in eight chains of products instead of four: a product takes seven cycles
//! and four more follow before the next of its chain, while one can begin in each cycle. Where the
//! processor multiplies more than 128 bits at a time (VPCLMULQDQ), `crc32fast` does, and is faster.
//!
//! AVX has these instructions with three operands: 1250 instructions for 4 KiB instead of 1800.

#![expect(unsafe_code, reason = "the processor must have an instruction that is used")]

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_clmulepi64_si128, _mm_extract_epi32, _mm_set_epi64x,
    _mm_shuffle_epi8, _mm_srli_si128, _mm_storeu_si128, _mm_xor_si128,
};
use std::is_x86_feature_detected;

/// Maximum number of bytes for which one chain of products is faster than `crc32fast` with products
/// of more than 128 bits.
const BYTES_MAX: usize = 191;

/// Number of bytes of a step of the eight chains.
pub(super) const STEP: usize = 128;

/// Whether the processor has the instructions that everything here uses.
#[inline]
fn is_supported() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("avx")
}

/// Whether the processor has products of more than 128 bits.
#[inline]
pub(super) fn has_wide_products() -> bool {
    is_x86_feature_detected!("vpclmulqdq") && is_x86_feature_detected!("avx2")
}

/// Returns the CRC-32 of the bytes that gave `crc`, followed by `bytes`, of which those from the
/// fifth to the eighth are changed (exclusive or) by `flips`, the fifth by the lowest byte. `None`
/// if `crc32fast` is faster, or the length is not that of a packet: a multiple of 4 from 16 on.
#[inline]
pub(crate) fn packet_crc32(crc: u32, flips: u32, bytes: &[u8]) -> Option<u32> {
    let is_packet = bytes.len() >= 16 && bytes.len().is_multiple_of(4);
    if !is_packet || !is_supported() || bytes.len() > BYTES_MAX && has_wide_products() {
        return None;
    }
    // SAFETY: the processor has PCLMULQDQ and AVX.
    unsafe { fold_all(first_change(crc, flips), bytes) }
}

/// Bits to change in the first eight bytes of a message: those of the CRC's register, then `flips`.
#[inline]
fn first_change(crc: u32, flips: u32) -> u64 {
    u64::from(flips) << 32 | u64::from(!crc)
}

/// Remainder of a message that is not at its end, in 128 bits.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub(crate) struct Sum([u8; 16]);

impl Sum {
    /// Begins a sum with the first `len` of `bytes`, which are changed as
    /// [`packet_crc32`] has it. `None` if the processor lacks the instructions, or multiplies more
    /// at a time; if `len` is not a multiple of 4 from 8 on; or if there are fewer than 16 bytes.
    #[inline]
    pub(crate) fn begin(crc: u32, flips: u32, bytes: &[u8], len: usize) -> Option<Self> {
        if len < 8 || !len.is_multiple_of(4) || !is_supported() || has_wide_products() {
            return None;
        }
        // SAFETY: the processor has PCLMULQDQ and AVX.
        unsafe { Self::begin_with(first_change(crc, flips), bytes, len) }
    }

    #[target_feature(enable = "pclmulqdq,avx")]
    fn begin_with(first: u64, bytes: &[u8], len: usize) -> Option<Self> {
        let (sum, rest) = fold_first(first, bytes, len)?;
        let sum = fold_blocks(sum, rest);
        let mut bytes = [0; 16];
        // SAFETY: there is room for 16 bytes.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), sum) };
        Some(Self(bytes))
    }

    /// Returns the CRC-32 of what was summed.
    #[inline]
    pub(crate) fn finish(self) -> u32 {
        // SAFETY: the processor has PCLMULQDQ and AVX, or there were no sum.
        unsafe { self.reduce() }
    }

    #[target_feature(enable = "pclmulqdq,avx")]
    fn reduce(self) -> u32 {
        reduce(load(&self.0))
    }
}

/// Returns the CRC-32 of `bytes`, of which the first eight are changed by `first`.
#[target_feature(enable = "pclmulqdq,avx")]
fn fold_all(first: u64, bytes: &[u8]) -> Option<u32> {
    let (sum, rest) = fold_first(first, bytes, bytes.len())?;
    Some(reduce(fold_blocks(sum, rest)))
}

/// Begins with the bytes that make the rest of the first `len` bytes a number of whole blocks.
#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn fold_first(first: u64, bytes: &[u8], len: usize) -> Option<(__m128i, &[u8])> {
    let begin = _mm_xor_si128(load(bytes.first_chunk()?), low(first));
    // From 4 to 16 bytes, behind zeros: all that `first` changes is in this block or, if it has 4
    // bytes, in the next.
    let own = (len - 1) % 16 + 1;
    let shuffle = SHIFTS.get(own..)?.first_chunk()?;
    let mut sum = _mm_shuffle_epi8(begin, load(shuffle));
    let mut rest = bytes.get(own..len)?;
    if own == 4 {
        let (second, behind) = rest.split_first_chunk()?;
        sum = fold(sum, _mm_xor_si128(load(second), low(first >> 32)));
        rest = behind;
    }
    Some((sum, rest))
}

/// Returns the remainder of `sum` followed by whole blocks.
#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn fold_blocks(mut sum: __m128i, mut rest: &[u8]) -> __m128i {
    if rest.len() >= 2 * STEP {
        (sum, rest) = fold_steps(sum, rest);
    }
    let (blocks, _) = rest.as_chunks();
    for block in blocks {
        sum = fold(sum, load(block));
    }
    sum
}

/// Returns the remainder of `sum` followed by as many steps as there are, and the bytes behind
/// them.
#[target_feature(enable = "pclmulqdq,avx")]
fn fold_steps(sum: __m128i, bytes: &[u8]) -> (__m128i, &[u8]) {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    let Some((step, steps)) = steps.split_first() else { return (sum, bytes) };
    let mut chains = blocks_of(step);
    chains[0] = fold(sum, chains[0]);
    for step in steps {
        for (chain, block) in chains.iter_mut().zip(blocks_of(step)) {
            *chain = fold_by(*chain, &FACTORS.by_8, block);
        }
    }
    let [a, b, c, d, e, f, g, h] = chains;
    let by_4 = |chain, other| fold_by(chain, &FACTORS.by_4, other);
    let [e, f, g, h] = [by_4(a, e), by_4(b, f), by_4(c, g), by_4(d, h)];
    let [g, h] = [fold_by(e, &FACTORS.by_2, g), fold_by(f, &FACTORS.by_2, h)];
    (fold(g, h), rest)
}

#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn blocks_of(step: &[u8; STEP]) -> [__m128i; 8] {
    let (blocks, _) = step.as_chunks();
    let mut loaded = [low(0); 8];
    for (to, block) in loaded.iter_mut().zip(blocks) {
        *to = load(block);
    }
    loaded
}

/// Factors that move a remainder of 128 bits by a number of blocks: x to the power of so many bits
/// and 32 more, and 32 less, modulo the polynomial, reflected.
#[derive(Debug)]
#[repr(C, align(16))]
pub(super) struct Factors {
    by_8: [u64; 2],
    by_4: [u64; 2],
    by_2: [u64; 2],
    by_1: [u64; 2],
}

pub(super) static FACTORS: Factors =
    Factors { by_8: factors(8), by_4: factors(4), by_2: factors(2), by_1: factors(1) };

const fn factors(blocks: u32) -> [u64; 2] {
    [power(blocks * 128 + 32), power(blocks * 128 - 32)]
}

/// Returns x to the power of `exponent` modulo the polynomial, reflected.
const fn power(exponent: u32) -> u64 {
    let (mut power, mut left) = (1_u32 << 31, exponent);
    while left > 0 {
        power = (power >> 1) ^ if power & 1 == 1 { 0xedb8_8320 } else { 0 };
        left -= 1;
    }
    (power as u64) << 1
}

/// Shuffles that move the first bytes of a block to its end: how many, is where to begin.
#[expect(clippy::cast_possible_truncation, reason = "below 16")]
static SHIFTS: [u8; 32] = {
    let mut shifts = [0x80; 32];
    let mut at = 0;
    while at < 16 {
        shifts[16 + at] = at as u8;
        at += 1;
    }
    shifts
};

#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
#[expect(clippy::cast_possible_truncation, reason = "each half has 64 bits")]
fn load(block: &[u8; 16]) -> __m128i {
    let block = u128::from_le_bytes(*block);
    _mm_set_epi64x((block >> 64) as i64, block as i64)
}

#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn low(word: u64) -> __m128i {
    _mm_set_epi64x(0, word.cast_signed())
}

/// Returns the remainder of `sum` followed by `block`, in 128 bits.
#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn fold(sum: __m128i, block: __m128i) -> __m128i {
    fold_by(sum, &FACTORS.by_1, block)
}

/// Returns the remainder of `sum`, moved by these factors, and `block`.
#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn fold_by(sum: __m128i, factors: &[u64; 2], block: __m128i) -> __m128i {
    let factors = _mm_set_epi64x(factors[1].cast_signed(), factors[0].cast_signed());
    let products = _mm_xor_si128(
        _mm_clmulepi64_si128(sum, factors, 0x00),
        _mm_clmulepi64_si128(sum, factors, 0x11),
    );
    _mm_xor_si128(products, block)
}

/// Returns the CRC of a remainder in 128 bits: 64 bits are multiplied by x^96, then 32 by x^64, and
/// the rest is reduced by Barrett's method. The constants are those of Intel's paper "Fast CRC
/// computation for generic polynomials using PCLMULQDQ instruction", reflected.
#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn reduce(sum: __m128i) -> u32 {
    let low_32 = low(0xffff_ffff);
    let by_96 = _mm_clmulepi64_si128(sum, low(0x0_ccaa_009e), 0x00);
    let sum = _mm_xor_si128(by_96, _mm_srli_si128(sum, 8));
    let by_64 = _mm_clmulepi64_si128(_mm_and_si128(sum, low_32), low(0x1_63cd_6124), 0x00);
    let sum = _mm_xor_si128(by_64, _mm_srli_si128(sum, 4));
    let quotient = _mm_clmulepi64_si128(_mm_and_si128(sum, low_32), low(0x1_f701_1641), 0x00);
    let quotient = _mm_and_si128(quotient, low_32);
    let multiple = _mm_clmulepi64_si128(quotient, low(0x1_db71_0641), 0x00);
    !_mm_extract_epi32::<1>(_mm_xor_si128(multiple, sum)).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crc32fast_of(crc: u32, flips: u32, bytes: &[u8]) -> u32 {
        let mut changed = bytes.to_vec();
        changed.iter_mut().skip(4).zip(flips.to_le_bytes()).for_each(|(b, f)| *b ^= f);
        let mut expected = crc32fast::Hasher::new_with_initial(crc);
        expected.update(&changed);
        expected.finalize()
    }

    const BEFORE: [(u32, u32); 4] = [(0, 0), (0xdead_beef, 0), (1, 0xa5), (!0, 0x1234_5678)];

    fn bytes(len: u32) -> Vec<u8> {
        (0..len).map(|at| (at * 37 + 11 + at / 256).to_le_bytes()[0]).collect()
    }

    #[test]
    fn packets_have_the_crc_of_crc32fast() {
        let bytes = bytes(5000);
        for len in (0..1500).chain(4000..4300) {
            for (crc, flips) in BEFORE {
                let Some(found) = packet_crc32(crc, flips, &bytes[..len]) else {
                    let long = has_wide_products() && len > BYTES_MAX;
                    assert!(!is_supported() || long || len % 4 != 0 || len < 16, "{len}");
                    continue;
                };
                let expected = crc32fast_of(crc, flips, &bytes[..len]);
                assert_eq!(found, expected, "{len} bytes after {crc:#x}, {flips:#x}");
            }
        }
    }

    #[test]
    fn a_sum_is_begun_with_any_headers() {
        let bytes = bytes(400);
        for len in 0..400 {
            for (crc, flips) in BEFORE {
                let Some(sum) = Sum::begin(crc, flips, &bytes, len) else {
                    let lacks = !is_supported() || has_wide_products();
                    assert!(lacks || len % 4 != 0 || len < 8, "{len}");
                    continue;
                };
                assert_eq!(sum.finish(), crc32fast_of(crc, flips, &bytes[..len]), "{len}");
            }
        }
    }

    #[test]
    fn factors_are_those_of_the_paper() {
        assert_eq!(FACTORS.by_1, [0x1_7519_97d0, 0x0_ccaa_009e]);
        assert_eq!(FACTORS.by_4, [0x1_5444_2bd4, 0x1_c6e4_1596]);
    }
}
