//! The CRC-32 of Ethernet, which an ICRC is, by the way that is fastest on the processor at hand.
//!
//! Where a processor multiplies without carries, crc32fast does it. Where none does, or where QEMU only plays one and
//! takes such a product bit by bit, words are cancelled one after the other with a sparse multiple of the generator:
//! shifts and exclusive ors alone, five times as fast there as either way of crc32fast.

/// The CRC-32 of what `crc` is that of, followed by `bytes`.
#[inline]
pub(super) fn update(crc: u32, bytes: &[u8]) -> u32 {
    if multiplies() {
        let mut hasher = crc32fast::Hasher::new_with_initial(crc);
        hasher.update(bytes);
        hasher.finalize()
    } else {
        !cancel(!crc, bytes)
    }
}

/// Whether this processor has a fast way to compute a CRC-32, which crc32fast knows.
#[cfg(target_arch = "x86_64")]
#[inline]
fn multiplies() -> bool {
    use core::sync::atomic::{AtomicU8, Ordering};

    // No `LazyLock`: a forked child would wait for the thread that was about to find out.
    static MULTIPLIES: AtomicU8 = AtomicU8::new(UNKNOWN);
    match MULTIPLIES.load(Ordering::Relaxed) {
        UNKNOWN => {
            let multiplies = detect();
            MULTIPLIES.store(if multiplies { YES } else { NO }, Ordering::Relaxed);
            multiplies
        }
        known => known == YES,
    }
}

/// What is known about the processor.
#[cfg(target_arch = "x86_64")]
const UNKNOWN: u8 = 0;
#[cfg(target_arch = "x86_64")]
const NO: u8 = 1;
#[cfg(target_arch = "x86_64")]
const YES: u8 = 2;

#[cfg(target_arch = "x86_64")]
#[cold]
fn detect() -> bool {
    use core::arch::x86_64::__cpuid;

    /// Where a hypervisor says its name, and that of QEMU when it interprets instructions itself.
    const HYPERVISOR: u32 = 0x4000_0000;
    const INTERPRETER: [u32; 3] =
        [u32::from_le_bytes(*b"TCGT"), u32::from_le_bytes(*b"CGTC"), u32::from_le_bytes(*b"GTCG")];

    let name = __cpuid(HYPERVISOR);
    std::arch::is_x86_feature_detected!("pclmulqdq")
        && [name.ebx, name.ecx, name.edx] != INTERPRETER
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn multiplies() -> bool {
    cfg!(target_arch = "aarch64")
}

/// How many bytes a word has, and how many words later the last bit arrives that one is replaced with.
const WORD: usize = 8;
const REACH: usize = 5;

/// The remainder of `bytes` after what left the remainder `crc`, neither of them inverted.
///
/// The generator divides x^300 + x^155 + x^117 + x^89 + 1. So nothing changes when a bit is cleared and the four that
/// stand 145, 183, 211 and 300 places behind it are flipped; and as the nearest of them is more than two words away, a
/// whole word can be cleared at once, long before the next one it changes has its turn.
fn cancel(crc: u32, bytes: &[u8]) -> u32 {
    let (rows, _) = bytes.as_chunks::<{ REACH * WORD }>();
    // The last row stays: it is where bits arrive.
    let Some((last, rows)) = rows.split_last() else { return slice(crc, bytes) };
    let mut due = [u64::from(crc), 0, 0, 0, 0];
    for row in rows {
        let row = words(row);
        let [mut a, mut b, mut c, mut d, mut e] = due;
        a = clear(row[0] ^ a, &mut c, &mut d, &mut e);
        b = clear(row[1] ^ b, &mut d, &mut e, &mut a);
        c = clear(row[2] ^ c, &mut e, &mut a, &mut b);
        d = clear(row[3] ^ d, &mut a, &mut b, &mut c);
        e = clear(row[4] ^ e, &mut b, &mut c, &mut d);
        due = [a, b, c, d, e];
    }
    let mut row = words(last);
    for (word, due) in row.iter_mut().zip(due) {
        *word ^= due;
    }
    let crc = row.iter().fold(0, |crc, word| slice(crc, &word.to_le_bytes()));
    slice(crc, bytes.get((rows.len() + 1) * last.len()..).unwrap_or_default())
}

/// Clears `word`: flips what has to be in the second, third and fourth word behind it, and returns it for the fifth.
#[inline(always)]
#[must_use]
fn clear(word: u64, second: &mut u64, third: &mut u64, fourth: &mut u64) -> u64 {
    *second ^= (word << 17) ^ (word << 55);
    *third ^= (word >> 47) ^ (word >> 9) ^ (word << 19);
    *fourth ^= (word >> 45) ^ (word << 44);
    word >> 20
}

/// The words of a row, the first bit of each the least significant.
#[inline(always)]
fn words(row: &[u8; REACH * WORD]) -> [u64; REACH] {
    let (words, _) = row.as_chunks::<WORD>();
    core::array::from_fn(|at| words.get(at).map_or(0, |&word| u64::from_le_bytes(word)))
}

/// The remainder of a few `bytes` after what left the remainder `crc`, a word at a time from tables.
#[expect(clippy::indexing_slicing, reason = "a byte has 256 values, and a word eight bytes")]
fn slice(crc: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<WORD>();
    let crc = words.iter().fold(crc, |crc, &word| {
        let word = (u64::from_le_bytes(word) ^ u64::from(crc)).to_le_bytes();
        (0..WORD).fold(0, |crc, at| crc ^ BEHIND[WORD - 1 - at][usize::from(word[at])])
    });
    rest.iter()
        .fold(crc, |crc, &byte| (crc >> 8) ^ BEHIND[0][usize::from(crc.to_le_bytes()[0] ^ byte)])
}

/// The remainders of all bytes with as many zero bytes behind them as the table's number.
#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated at compile time"
)]
static BEHIND: [[u32; 256]; WORD] = {
    let mut tables = [[0; 256]; WORD];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut table) = (byte as u32, 0);
        while table < WORD {
            let mut bit = 0;
            while bit < 8 {
                crc = (crc >> 1) ^ if crc & 1 == 1 { 0x04c1_1db7_u32.reverse_bits() } else { 0 };
                bit += 1;
            }
            tables[table][byte] = crc;
            table += 1;
        }
        byte += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_agree_with_crc32fast_whatever_the_length_and_what_stands_before() {
        let mut state = 1_u32;
        let bytes: Vec<u8> = core::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        })
        .take(4200)
        .collect();
        for len in (0..400).chain([1024, 4096, 4097, 4112, 4150, 4200]) {
            let (bytes, crc) =
                (&bytes[bytes.len() - len..], state.rotate_left(u32::try_from(len).unwrap()));
            let mut oracle = crc32fast::Hasher::new_with_initial(crc);
            oracle.update(bytes);
            let oracle = oracle.finalize();
            assert_eq!(update(crc, bytes), oracle, "{len} bytes as this processor does it");
            assert_eq!(!cancel(!crc, bytes), oracle, "{len} bytes without multiplying");
        }
    }

    #[test]
    fn the_check_value_of_the_catalogues_comes_out() {
        assert_eq!(update(0, b"123456789"), 0xcbf4_3926);
        assert_eq!(!cancel(!0, b"123456789"), 0xcbf4_3926);
    }
}
