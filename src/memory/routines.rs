//! Instructions that access memory of the user's program, and come back when they fault.
//!
//! Each routine is a function without a frame: wherever it faults between its bounds, execution can
//! resume at its error exit, which only sets the result and returns. Called with a null pointer it
//! returns its bounds.
//!
//! [`copy`] stores in ascending order of addresses, with naturally aligned stores, so a reader that
//! sees a byte sees all bytes before it. Programs poll the last byte of a WRITE, or one in each
//! cache line, because real NICs write in this order. The C library's `memcpy` does not: it stores
//! the ends first, with overlapping stores, and goes backwards where that is faster. Fast string
//! instructions keep no order within themselves either. Naturally aligned stores of up to 16 bytes
//! are single-copy atomic on processors with AVX, 32-byte ones never cross a cache line, and x86-64
//! makes stores visible in program order.

#![expect(unsafe_code, reason = "instructions that must be known one by one")]

use core::arch::naked_asm;
use std::is_x86_feature_detected;

use super::checksum::{FACTORS, Factors, STEP, Sum};

/// Whether accesses by this module survive a fault.
pub(super) const AVAILABLE: bool = true;

/// Result of a routine: 0, or anything else if it faulted.
type Fault = u64;

/// First instruction of a routine that may fault, and its error exit, which is behind the last that
/// may.
#[repr(C)]
#[derive(Clone, Copy)]
struct Bounds {
    start: usize,
    exit: usize,
}

/// Defines a copy routine around the instructions that copy most of it.
macro_rules! copy_routine {
    ($(#[$doc:meta])* $name:ident, $is_aligned:expr, $align_more:expr, $bulk:expr, $clean:expr) => {
        $(#[$doc])*
        #[unsafe(naked)]
        unsafe extern "sysv64" fn $name(to: *mut u8, from: *const u8, len: usize) -> Fault {
            // rdi: to, rsi: from, rdx: how many bytes are left.
            naked_asm!(
                "test rdi, rdi",
                "jz 9f",
                "2:",
                // Buffers mostly begin with a page or a cache line.
                $is_aligned,
                "jz 19f",
                // Align the destination by ascending powers of two. If too few bytes are left for
                // the next power, the destination is aligned for them already.
                "test dil, 1",
                "jz 3f",
                "test rdx, rdx",
                "jz 7f",
                "movzx eax, byte ptr [rsi]",
                "mov byte ptr [rdi], al",
                "inc rsi",
                "inc rdi",
                "dec rdx",
                "3:",
                "test dil, 2",
                "jz 3f",
                "cmp rdx, 2",
                "jb 6f",
                "movzx eax, word ptr [rsi]",
                "mov word ptr [rdi], ax",
                "add rsi, 2",
                "add rdi, 2",
                "sub rdx, 2",
                "3:",
                "test dil, 4",
                "jz 3f",
                "cmp rdx, 4",
                "jb 6f",
                "mov eax, dword ptr [rsi]",
                "mov dword ptr [rdi], eax",
                "add rsi, 4",
                "add rdi, 4",
                "sub rdx, 4",
                "3:",
                "test dil, 8",
                "jz 3f",
                "cmp rdx, 8",
                "jb 6f",
                "mov rax, qword ptr [rsi]",
                "mov qword ptr [rdi], rax",
                "add rsi, 8",
                "add rdi, 8",
                "sub rdx, 8",
                "3:",
                $align_more,
                "19:",
                $bulk,
                "5:",
                "cmp rdx, 16",
                "jb 6f",
                "movups xmm0, xmmword ptr [rsi]",
                "movaps xmmword ptr [rdi], xmm0",
                "add rsi, 16",
                "add rdi, 16",
                "sub rdx, 16",
                "jmp 5b",
                // Fewer than 16 bytes, by descending powers of two: the last store has the last
                // byte.
                "6:",
                "test dl, 8",
                "jz 3f",
                "mov rax, qword ptr [rsi]",
                "mov qword ptr [rdi], rax",
                "add rsi, 8",
                "add rdi, 8",
                "3:",
                "test dl, 4",
                "jz 3f",
                "mov eax, dword ptr [rsi]",
                "mov dword ptr [rdi], eax",
                "add rsi, 4",
                "add rdi, 4",
                "3:",
                "test dl, 2",
                "jz 3f",
                "movzx eax, word ptr [rsi]",
                "mov word ptr [rdi], ax",
                "add rsi, 2",
                "add rdi, 2",
                "3:",
                "test dl, 1",
                "jz 7f",
                "movzx eax, byte ptr [rsi]",
                "mov byte ptr [rdi], al",
                "7:",
                "xor eax, eax",
                "ret",
                "8:",
                $clean,
                "mov eax, 1",
                "ret",
                "9:",
                "lea rax, [rip + 2b]",
                "lea rdx, [rip + 8b]",
                "ret",
            )
        }
    };
}

copy_routine! {
    /// Copies with 32-byte stores, 128 bytes at a time.
    copy_avx,
    "test dil, 31",
    "test dil, 16
     jz 3f
     cmp rdx, 16
     jb 6f
     movups xmm0, xmmword ptr [rsi]
     movaps xmmword ptr [rdi], xmm0
     add rsi, 16
     add rdi, 16
     sub rdx, 16
     3:",
    "cmp rdx, 32
     jb 5f
     cmp rdx, 128
     jb 13f
     4:
     vmovdqu ymm0, ymmword ptr [rsi]
     vmovdqu ymm1, ymmword ptr [rsi + 32]
     vmovdqu ymm2, ymmword ptr [rsi + 64]
     vmovdqu ymm3, ymmword ptr [rsi + 96]
     vmovdqa ymmword ptr [rdi], ymm0
     vmovdqa ymmword ptr [rdi + 32], ymm1
     vmovdqa ymmword ptr [rdi + 64], ymm2
     vmovdqa ymmword ptr [rdi + 96], ymm3
     sub rsi, -128
     sub rdi, -128
     add rdx, -128
     cmp rdx, 128
     jae 4b
     cmp rdx, 32
     jb 15f
     13:
     vmovdqu ymm0, ymmword ptr [rsi]
     vmovdqa ymmword ptr [rdi], ymm0
     add rsi, 32
     add rdi, 32
     sub rdx, 32
     cmp rdx, 32
     jae 13b
     15:
     vzeroupper",
    "vzeroupper"
}

copy_routine! {
    /// Copies with 16-byte stores, 64 bytes at a time, on processors without AVX.
    copy_sse,
    "test dil, 15",
    "",
    "cmp rdx, 64
     jb 5f
     4:
     movups xmm0, xmmword ptr [rsi]
     movups xmm1, xmmword ptr [rsi + 16]
     movups xmm2, xmmword ptr [rsi + 32]
     movups xmm3, xmmword ptr [rsi + 48]
     movaps xmmword ptr [rdi], xmm0
     movaps xmmword ptr [rdi + 16], xmm1
     movaps xmmword ptr [rdi + 32], xmm2
     movaps xmmword ptr [rdi + 48], xmm3
     add rsi, 64
     add rdi, 64
     sub rdx, 64
     cmp rdx, 64
     jae 4b",
    ""
}

/// Copies up to 128 bytes in any order: from both ends, with stores that overlap.
#[unsafe(naked)]
unsafe extern "sysv64" fn copy_short(to: *mut u8, from: *const u8, len: usize) -> Fault {
    naked_asm!(
        "test rdi, rdi",
        "jz 9f",
        "2:",
        "cmp rdx, 16",
        "jb 4f",
        "cmp rdx, 32",
        "jbe 3f",
        "cmp rdx, 64",
        "jbe 5f",
        // From 65 to 128 bytes.
        "vmovdqu ymm0, ymmword ptr [rsi]",
        "vmovdqu ymm1, ymmword ptr [rsi + 32]",
        "vmovdqu ymm2, ymmword ptr [rsi + rdx - 64]",
        "vmovdqu ymm3, ymmword ptr [rsi + rdx - 32]",
        "vmovdqu ymmword ptr [rdi], ymm0",
        "vmovdqu ymmword ptr [rdi + 32], ymm1",
        "vmovdqu ymmword ptr [rdi + rdx - 64], ymm2",
        "vmovdqu ymmword ptr [rdi + rdx - 32], ymm3",
        "vzeroupper",
        "xor eax, eax",
        "ret",
        // From 33 to 64 bytes.
        "5:",
        "vmovdqu ymm0, ymmword ptr [rsi]",
        "vmovdqu ymm1, ymmword ptr [rsi + rdx - 32]",
        "vmovdqu ymmword ptr [rdi], ymm0",
        "vmovdqu ymmword ptr [rdi + rdx - 32], ymm1",
        "vzeroupper",
        "xor eax, eax",
        "ret",
        // From 16 to 32 bytes.
        "3:",
        "movups xmm0, xmmword ptr [rsi]",
        "movups xmm1, xmmword ptr [rsi + rdx - 16]",
        "movups xmmword ptr [rdi], xmm0",
        "movups xmmword ptr [rdi + rdx - 16], xmm1",
        "xor eax, eax",
        "ret",
        "4:",
        "cmp edx, 8",
        "jb 3f",
        "mov rax, qword ptr [rsi]",
        "mov rcx, qword ptr [rsi + rdx - 8]",
        "mov qword ptr [rdi], rax",
        "mov qword ptr [rdi + rdx - 8], rcx",
        "xor eax, eax",
        "ret",
        "3:",
        "cmp edx, 4",
        "jb 3f",
        "mov eax, dword ptr [rsi]",
        "mov ecx, dword ptr [rsi + rdx - 4]",
        "mov dword ptr [rdi], eax",
        "mov dword ptr [rdi + rdx - 4], ecx",
        "xor eax, eax",
        "ret",
        "3:",
        "cmp edx, 2",
        "jb 3f",
        "movzx eax, word ptr [rsi]",
        "movzx ecx, word ptr [rsi + rdx - 2]",
        "mov word ptr [rdi], ax",
        "mov word ptr [rdi + rdx - 2], cx",
        "xor eax, eax",
        "ret",
        "3:",
        "test edx, edx",
        "jz 7f",
        "movzx eax, byte ptr [rsi]",
        "mov byte ptr [rdi], al",
        "7:",
        "xor eax, eax",
        "ret",
        "8:",
        "vzeroupper",
        "mov eax, 1",
        "ret",
        "9:",
        "lea rax, [rip + 2b]",
        "lea rdx, [rip + 8b]",
        "ret",
    )
}

/// Maximum number of bytes for [`copy_short`].
const SHORT: usize = 128;

/// One block of a step of [`copy_sum`]: loads block `$at`, stores it, and adds it to its chain.
macro_rules! sum_block {
    ($at:literal) => {
        concat!(
            "vmovdqu xmm10, xmmword ptr [rsi + 16 * ",
            $at,
            "]\n",
            "vpclmulqdq xmm9, xmm",
            $at,
            ", xmm8, 0x00\n",
            "vpclmulqdq xmm",
            $at,
            ", xmm",
            $at,
            ", xmm8, 0x11\n",
            "vmovdqu xmmword ptr [rdi + 16 * ",
            $at,
            "], xmm10\n",
            "vpxor xmm9, xmm9, xmm10\n",
            "vpxor xmm",
            $at,
            ", xmm",
            $at,
            ", xmm9",
        )
    };
}

/// Folds chain `$from` of [`copy_sum`] into chain `$to`, by the factors in `xmm8`.
macro_rules! join_chains {
    ($from:literal, $to:literal) => {
        concat!(
            "vpclmulqdq xmm9, xmm",
            $from,
            ", xmm8, 0x00\n",
            "vpclmulqdq xmm",
            $from,
            ", xmm",
            $from,
            ", xmm8, 0x11\n",
            "vpxor xmm",
            $to,
            ", xmm",
            $to,
            ", xmm9\n",
            "vpxor xmm",
            $to,
            ", xmm",
            $to,
            ", xmm",
            $from,
        )
    };
}

/// Copies a number of whole steps, at least one, in any order, and adds them to a sum: what is
/// summed is what is stored, even if the source changes meanwhile.
///
/// The processor begins one product in a cycle, and two are needed for 16 bytes: loads and stores
/// fit in between, so the copy takes no time of its own.
#[unsafe(naked)]
unsafe extern "sysv64" fn copy_sum(
    to: *mut u8,
    from: *const u8,
    len: usize,
    sum: *mut Sum,
    factors: *const Factors,
) -> Fault {
    // rdi: to, rsi: from, rdx: how many bytes are left, rcx: sum, r8: factors. xmm0 to xmm7:
    // chains.
    naked_asm!(
        "test rdi, rdi",
        "jz 9f",
        "2:",
        // The sum so far is folded into the first block.
        "vmovdqa xmm8, xmmword ptr [r8 + 48]",
        "vmovdqa xmm11, xmmword ptr [rcx]",
        "vpclmulqdq xmm9, xmm11, xmm8, 0x00",
        "vpclmulqdq xmm11, xmm11, xmm8, 0x11",
        "vpxor xmm11, xmm11, xmm9",
        "vmovdqu xmm0, xmmword ptr [rsi]",
        "vmovdqu xmm1, xmmword ptr [rsi + 16]",
        "vmovdqu xmm2, xmmword ptr [rsi + 32]",
        "vmovdqu xmm3, xmmword ptr [rsi + 48]",
        "vmovdqu xmm4, xmmword ptr [rsi + 64]",
        "vmovdqu xmm5, xmmword ptr [rsi + 80]",
        "vmovdqu xmm6, xmmword ptr [rsi + 96]",
        "vmovdqu xmm7, xmmword ptr [rsi + 112]",
        "vmovdqu xmmword ptr [rdi], xmm0",
        "vmovdqu xmmword ptr [rdi + 16], xmm1",
        "vmovdqu xmmword ptr [rdi + 32], xmm2",
        "vmovdqu xmmword ptr [rdi + 48], xmm3",
        "vmovdqu xmmword ptr [rdi + 64], xmm4",
        "vmovdqu xmmword ptr [rdi + 80], xmm5",
        "vmovdqu xmmword ptr [rdi + 96], xmm6",
        "vmovdqu xmmword ptr [rdi + 112], xmm7",
        "vpxor xmm0, xmm0, xmm11",
        "vmovdqa xmm8, xmmword ptr [r8]",
        "jmp 5f",
        "4:",
        sum_block!("0"),
        sum_block!("1"),
        sum_block!("2"),
        sum_block!("3"),
        sum_block!("4"),
        sum_block!("5"),
        sum_block!("6"),
        sum_block!("7"),
        "5:",
        "sub rsi, -128",
        "sub rdi, -128",
        "add rdx, -128",
        "jnz 4b",
        // The eight chains become one.
        "vmovdqa xmm8, xmmword ptr [r8 + 16]",
        join_chains!("0", "4"),
        join_chains!("1", "5"),
        join_chains!("2", "6"),
        join_chains!("3", "7"),
        "vmovdqa xmm8, xmmword ptr [r8 + 32]",
        join_chains!("4", "6"),
        join_chains!("5", "7"),
        "vmovdqa xmm8, xmmword ptr [r8 + 48]",
        join_chains!("6", "7"),
        "vmovdqa xmmword ptr [rcx], xmm7",
        "xor eax, eax",
        "ret",
        "8:",
        "mov eax, 1",
        "ret",
        "9:",
        "lea rax, [rip + 2b]",
        "lea rdx, [rip + 8b]",
        "ret",
    )
}

/// Adds to a number, and stores what it was in `was`.
#[unsafe(naked)]
unsafe extern "sysv64" fn add(to: *mut u64, value: u64, was: *mut u64) -> Fault {
    naked_asm!(
        "test rdi, rdi",
        "jz 9f",
        "2:",
        "lock xadd qword ptr [rdi], rsi",
        "mov qword ptr [rdx], rsi",
        "xor eax, eax",
        "ret",
        "8:",
        "mov eax, 1",
        "ret",
        "9:",
        "lea rax, [rip + 2b]",
        "lea rdx, [rip + 8b]",
        "ret",
    )
}

/// Stores `swap` if `compare` is there, and stores what was there in `was`.
#[unsafe(naked)]
unsafe extern "sysv64" fn cas(to: *mut u64, compare: u64, swap: u64, was: *mut u64) -> Fault {
    naked_asm!(
        "test rdi, rdi",
        "jz 9f",
        "2:",
        "mov rax, rsi",
        "lock cmpxchg qword ptr [rdi], rdx",
        "mov qword ptr [rcx], rax",
        "xor eax, eax",
        "ret",
        "8:",
        "mov eax, 1",
        "ret",
        "9:",
        "lea rax, [rip + 2b]",
        "lea rdx, [rip + 8b]",
        "ret",
    )
}

/// Stores a number.
#[unsafe(naked)]
unsafe extern "sysv64" fn set(to: *mut u64, value: u64) -> Fault {
    naked_asm!(
        "test rdi, rdi",
        "jz 9f",
        "2:",
        "xchg qword ptr [rdi], rsi",
        "xor eax, eax",
        "ret",
        "8:",
        "mov eax, 1",
        "ret",
        "9:",
        "lea rax, [rip + 2b]",
        "lea rdx, [rip + 8b]",
        "ret",
    )
}

/// All routines, as addresses.
fn routines() -> [usize; 7] {
    [
        copy_sum as *const () as usize,
        copy_short as *const () as usize,
        copy_avx as *const () as usize,
        copy_sse as *const () as usize,
        add as *const () as usize,
        cas as *const () as usize,
        set as *const () as usize,
    ]
}

/// Resumes the thread whose registers these are at the error exit, if it faulted in a routine;
/// returns whether it did.
///
/// # Safety
///
/// `context` must be what the kernel hands to a signal handler.
pub(super) unsafe fn resume_at_error_exit(context: *mut libc::c_void) -> bool {
    let registers = context.cast::<libc::ucontext_t>();
    // SAFETY: the caller's.
    let counter = unsafe { &mut (*registers).uc_mcontext.gregs[libc::REG_RIP as usize] };
    let at = usize::try_from(counter.cast_unsigned()).unwrap_or(0);
    for routine in routines() {
        type Ask = unsafe extern "sysv64" fn(*mut u8) -> Bounds;
        // SAFETY: every routine returns its bounds in two registers, as this type is returned, if
        // the first argument is null, and looks at no other then.
        let ask = unsafe { core::mem::transmute::<usize, Ask>(routine) };
        // SAFETY: as above.
        let Bounds { start, exit } = unsafe { ask(core::ptr::null_mut()) };
        if (start..exit).contains(&at) {
            *counter = i64::try_from(exit).unwrap_or(*counter);
            return true;
        }
    }
    false
}

/// Copies bytes in ascending order of addresses; returns whether all could be accessed. If not, a
/// part may have been copied.
///
/// # Safety
///
/// What is mapped of both ranges may be accessed, and they do not overlap. If one of them may be
/// not mapped, the handler must be in place.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> bool {
    if len == 0 {
        return true;
    }
    if is_x86_feature_detected!("avx") {
        // SAFETY: the caller's.
        unsafe { copy_avx(to, from, len) == 0 }
    } else {
        // SAFETY: the caller's.
        unsafe { copy_sse(to, from, len) == 0 }
    }
}

/// Copies bytes to memory that only the caller sees, in any order; returns as [`copy`] does. A
/// 64-byte payload goes into a packet with 15 instructions instead of 61.
///
/// # Safety
///
/// As [`copy`] has it.
#[inline(always)]
pub(super) unsafe fn copy_unordered(to: *mut u8, from: *const u8, len: usize) -> bool {
    if len <= SHORT && is_x86_feature_detected!("avx") {
        // SAFETY: the caller's, and the processor has AVX.
        unsafe { copy_short(to, from, len) == 0 }
    } else {
        // SAFETY: the caller's.
        unsafe { copy(to, from, len) }
    }
}

/// Copies as [`copy_unordered`] does, and adds the bytes to `sum` in the same pass, if their number
/// is one of whole steps and the processor has AVX; returns whether it was done, and whether all
/// could be accessed.
///
/// # Safety
///
/// As [`copy`] has it.
#[inline]
pub(super) unsafe fn copy_and_sum(
    to: *mut u8,
    from: *const u8,
    len: usize,
    sum: &mut Sum,
) -> Option<bool> {
    if len == 0 || !len.is_multiple_of(STEP) || !is_x86_feature_detected!("avx") {
        return None;
    }
    // SAFETY: the caller's; the processor has AVX, and PCLMULQDQ, or there were no sum.
    let fault = unsafe { copy_sum(to, from, len, sum, &raw const FACTORS) };
    Some(fault == 0)
}

/// Adds to the number at an aligned address; returns what it was, or `None` if it could not be
/// accessed.
///
/// # Safety
///
/// As [`copy`] has it.
#[inline]
pub(super) unsafe fn fetch_add(to: *mut u64, value: u64) -> Option<u64> {
    let mut was = 0;
    // SAFETY: the caller's.
    let fault = unsafe { add(to, value, &raw mut was) };
    (fault == 0).then_some(was)
}

/// Stores `swap` at an aligned address if `compare` is there; returns what was there, or `None` if
/// it could not be accessed.
///
/// # Safety
///
/// As [`copy`] has it.
#[inline]
pub(super) unsafe fn compare_swap(to: *mut u64, compare: u64, swap: u64) -> Option<u64> {
    let mut was = 0;
    // SAFETY: the caller's.
    let fault = unsafe { cas(to, compare, swap, &raw mut was) };
    (fault == 0).then_some(was)
}

/// Stores a number at an aligned address; `None` if it could not be accessed.
///
/// # Safety
///
/// As [`copy`] has it.
#[inline]
pub(super) unsafe fn store(to: *mut u64, value: u64) -> Option<()> {
    // SAFETY: the caller's.
    let fault = unsafe { set(to, value) };
    (fault == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length up to a few bulk steps, at every alignment of either side, by each routine.
    #[test]
    fn copies_are_exact_at_every_alignment_and_length() {
        let source: Vec<u8> = (0..1024_u32).map(|i| (i * 7 + i / 256).to_le_bytes()[0]).collect();
        type Routine = unsafe extern "sysv64" fn(*mut u8, *const u8, usize) -> Fault;
        let routines: [(Routine, usize); 3] =
            [(copy_sse, usize::MAX), (copy_avx, usize::MAX), (copy_short, SHORT)];
        let usable = if is_x86_feature_detected!("avx") { 3 } else { 1 };
        for (routine, max) in &routines[..usable] {
            for to in 0..33 {
                for from in [0, 1, 4, 20, 31] {
                    let longer = [127, 128, 129, 255, 256, 300, 511, 640];
                    for len in (1..70).chain(longer).filter(|len| len <= max) {
                        let mut target = vec![0xee_u8; 1024];
                        let start = target.as_mut_ptr().wrapping_add(to);
                        // SAFETY: both are longer than that.
                        let fault =
                            unsafe { routine(start, source.as_ptr().wrapping_add(from), len) };
                        assert_eq!(fault, 0);
                        assert_eq!(target[to..to + len], source[from..from + len]);
                        assert!(target[..to].iter().chain(&target[to + len..]).all(|b| *b == 0xee));
                    }
                }
            }
        }
    }

    /// Every number of steps up to a packet, at every alignment of either side.
    #[test]
    fn copies_that_are_summed_are_exact_and_have_the_crc_of_crc32fast() {
        let source: Vec<u8> = (0..5000_u32).map(|i| (i * 7 + i / 256).to_le_bytes()[0]).collect();
        let headers = [0x5a; 64];
        for len in (0..=4096).step_by(4) {
            for (to, from, before) in
                (0..64).map(|at| (at, (at * 23) % 64, 8 + (at % 14) * 4)).step_by(len % 61 % 5 + 1)
            {
                let Some(mut sum) = Sum::begin(0x1234, 0xa5, &headers, before) else { return };
                let mut target = vec![0xee_u8; 4096 + 128];
                let start = target.as_mut_ptr().wrapping_add(to);
                // SAFETY: both are longer than that.
                let copied = unsafe {
                    copy_and_sum(start, source.as_ptr().wrapping_add(from), len, &mut sum)
                };
                if !len.is_multiple_of(STEP) || len == 0 {
                    assert_eq!(copied, None);
                    continue;
                }
                let Some(copied) = copied else { return };
                assert!(copied);
                let payload = &source[from..from + len];
                assert_eq!(&target[to..to + len], payload);
                assert!(target[..to].iter().chain(&target[to + len..]).all(|b| *b == 0xee));
                let mut expected = crc32fast::Hasher::new_with_initial(0x1234);
                let mut changed = headers;
                changed[4] ^= 0xa5;
                expected.update(&changed[..before]);
                expected.update(payload);
                assert_eq!(sum.finish(), expected.finalize(), "{len} bytes behind {before}");
            }
        }
    }
}
