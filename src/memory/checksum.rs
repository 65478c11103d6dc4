//! CRC-32 of short packets.
//!
//! `crc32fast` takes the last bytes of an input whose length is not a multiple of 16 one by one,
//! and those of a packet mostly are not: of a 64-byte SEND twelve. Here the first bytes make up
//! for it: zeros before a message do not change its CRC, so its first block is filled up with
//! zeros at its front. 7 ns instead of 11 for such a packet.

#![expect(unsafe_code, reason = "the processor must have an instruction that is used")]

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_clmulepi64_si128, _mm_extract_epi32, _mm_set_epi64x,
    _mm_shuffle_epi8, _mm_srli_si128, _mm_xor_si128,
};
use std::is_x86_feature_detected;

/// Maximum number of bytes for which one chain of products is faster than `crc32fast`'s several.
const BYTES_MAX: usize = 191;

/// Returns the CRC-32 of the bytes that gave `crc`, followed by `bytes`, of which those from the
/// fifth to the eighth are changed (exclusive or) by `flips`, the fifth by the lowest byte. `None`
/// if the processor lacks the instructions, or the length is not that of a short packet: a multiple
/// of 4 from 16 on.
#[inline]
pub(crate) fn short_crc32(crc: u32, flips: u32, bytes: &[u8]) -> Option<u32> {
    let is_short = (16..=BYTES_MAX).contains(&bytes.len()) && bytes.len().is_multiple_of(4);
    if !is_short || !is_x86_feature_detected!("pclmulqdq") || !is_x86_feature_detected!("sse4.1") {
        return None;
    }
    let first = u64::from(flips) << 32 | u64::from(!crc);
    // SAFETY: the processor has PCLMULQDQ and SSE 4.1.
    unsafe { fold_all(first, bytes) }
}

/// Returns the CRC-32 of `bytes`, of which the first eight are changed by `first`: by the register,
/// and by other changes.
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn fold_all(first: u64, bytes: &[u8]) -> Option<u32> {
    let begin = _mm_xor_si128(load(bytes.first_chunk()?), low(first));
    // From 4 to 16 bytes, behind zeros: all that `first` changes is in this block or, if it has 4
    // bytes, in the next.
    let own = (bytes.len() - 1) % 16 + 1;
    let shuffle = SHIFTS.get(own..)?.first_chunk()?;
    let mut sum = _mm_shuffle_epi8(begin, load(shuffle));
    let mut rest = bytes.get(own..)?;
    if own == 4 {
        let (second, behind) = rest.split_first_chunk()?;
        sum = fold(sum, _mm_xor_si128(load(second), low(first >> 32)));
        rest = behind;
    }
    while let Some((block, behind)) = rest.split_first_chunk() {
        sum = fold(sum, load(block));
        rest = behind;
    }
    Some(reduce(sum))
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
#[target_feature(enable = "pclmulqdq,sse4.1")]
#[expect(clippy::cast_possible_truncation, reason = "each half has 64 bits")]
fn load(block: &[u8; 16]) -> __m128i {
    let block = u128::from_le_bytes(*block);
    _mm_set_epi64x((block >> 64) as i64, block as i64)
}

#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn low(word: u64) -> __m128i {
    _mm_set_epi64x(0, word.cast_signed())
}

/// Returns the remainder of `sum` followed by `block`, in 128 bits.
#[inline]
#[target_feature(enable = "pclmulqdq,sse4.1")]
fn fold(sum: __m128i, block: __m128i) -> __m128i {
    // x^(128 + 32) and x^(128 - 32) modulo the polynomial, reflected.
    let factors = _mm_set_epi64x(0x0_ccaa_009e, 0x1_7519_97d0);
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
#[target_feature(enable = "pclmulqdq,sse4.1")]
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

    #[test]
    fn short_inputs_have_the_crc_of_crc32fast() {
        let bytes: Vec<u8> = (0..256_u32).map(|at| (at * 37 + 11).to_le_bytes()[0]).collect();
        for len in 0..bytes.len() {
            for (crc, flips) in [(0, 0), (0xdead_beef, 0), (1, 0xa5), (!0, 0x1234_5678)] {
                let Some(found) = short_crc32(crc, flips, &bytes[..len]) else {
                    let lacks = !is_x86_feature_detected!("pclmulqdq");
                    assert!(lacks || len % 4 != 0 || !(16..=BYTES_MAX).contains(&len), "{len}");
                    continue;
                };
                let mut changed = bytes[..len].to_vec();
                changed.iter_mut().skip(4).zip(flips.to_le_bytes()).for_each(|(b, f)| *b ^= f);
                let mut expected = crc32fast::Hasher::new_with_initial(crc);
                expected.update(&changed);
                assert_eq!(found, expected.finalize(), "{len} bytes after {crc:#x}, {flips:#x}");
            }
        }
    }
}
