//! Which of the sockets at an address gets a packet: decided by the kernel, from its destination
//! QPN.
//!
//! All sockets at an address are one group (`SO_REUSEPORT`), in slots that never change. A program
//! of classic BPF returns the slot of a packet; it begins at the BTH. The QPN is multiplied by a
//! secret odd number, and the highest bits of the product are the slot: the QPNs of a slot are
//! spread over all 2^24, and which they are cannot be told without the number.

use crate::wire::Qpn;

/// Number of bits of a slot.
const SLOT_BITS: u32 = 5;

/// Number of slots at an address, each for one process.
pub(crate) const SLOTS: u8 = 1 << SLOT_BITS;

/// Index of the socket for queue pair 1, behind those of the slots.
pub(crate) const GSI_INDEX: u32 = SLOTS as u32;

/// Bits of a QPN.
const QPN_MASK: u32 = 0xff_ffff;

/// Number by which QPNs are multiplied: odd, so that no two have the same product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Multiplier(u32);

impl Multiplier {
    pub(crate) fn new(random: u32) -> Self {
        Self((random | 1) & QPN_MASK)
    }

    pub(crate) fn get(self) -> u32 {
        self.0
    }

    /// Returns the slot of a QPN.
    pub(crate) fn slot_of(self, qpn: Qpn) -> u8 {
        let product = qpn.get().wrapping_mul(self.0) & QPN_MASK;
        u8::try_from(product >> (24 - SLOT_BITS)).unwrap_or(0)
    }
}

/// An instruction of classic BPF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    pub(crate) jump_if: u8,
    pub(crate) jump_else: u8,
    pub(crate) operand: u32,
}

/// Offset of the word of a BTH that has the destination QPN in its lower bits.
const QPN_WORD: u32 = 4;

/// Returns the program that steers packets.
pub(crate) fn program(multiplier: Multiplier) -> [Instruction; 8] {
    let plain = |code, operand| Instruction { code, jump_if: 0, jump_else: 0, operand };
    const LOAD_WORD: u16 = 0x20;
    const AND: u16 = 0x54;
    const MULTIPLY: u16 = 0x24;
    const SHIFT_RIGHT: u16 = 0x74;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const RETURN_ACCUMULATOR: u16 = 0x16;
    [
        plain(LOAD_WORD, QPN_WORD),
        plain(AND, QPN_MASK),
        Instruction { code: JUMP_IF_EQUAL, jump_if: 0, jump_else: 1, operand: Qpn::GSI.get() },
        plain(RETURN, GSI_INDEX),
        plain(MULTIPLY, multiplier.get()),
        plain(AND, QPN_MASK),
        plain(SHIFT_RIGHT, 24 - SLOT_BITS),
        plain(RETURN_ACCUMULATOR, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_the_same_number_of_qpns() {
        let multiplier = Multiplier::new(0x9e_3779);
        let mut counts = [0_u32; SLOTS as usize];
        (0..=QPN_MASK).for_each(|qpn| counts[usize::from(multiplier.slot_of(Qpn::new(qpn)))] += 1);
        assert_eq!(counts, [1 << (24 - SLOT_BITS); SLOTS as usize]);
    }

    /// The slot that the program returns for a packet, as the kernel runs it.
    fn run(program: &[Instruction], packet: &[u8]) -> Option<u32> {
        let (mut at, mut accumulator) = (0, 0_u32);
        loop {
            let Instruction { code, jump_if, jump_else, operand } = *program.get(at)?;
            at += 1;
            match code {
                0x20 => {
                    let bytes = packet.get(operand as usize..)?.first_chunk()?;
                    accumulator = u32::from_be_bytes(*bytes);
                }
                0x54 => accumulator &= operand,
                0x24 => accumulator = accumulator.wrapping_mul(operand),
                0x74 => accumulator >>= operand,
                0x15 => at += usize::from(if accumulator == operand { jump_if } else { jump_else }),
                0x06 => return Some(operand),
                0x16 => return Some(accumulator),
                _ => return None,
            }
        }
    }

    #[test]
    fn program_finds_the_slot_of_a_packet() {
        let multiplier = Multiplier::new(0x12_3457);
        let program = program(multiplier);
        for qpn in [0, 2, 0x11, 0x55_249f, 0xff_fffe, 0xff_ffff] {
            let packet = [&[4, 0, 0xff, 0xff][..], &(0x8000_0000_u32 | qpn).to_be_bytes(), &[0; 8]];
            let slot = run(&program, &packet.concat());
            assert_eq!(slot, Some(multiplier.slot_of(Qpn::new(qpn)).into()), "{qpn:#x}");
        }
        let mad = [&[0x64, 0, 0xff, 0xff][..], &1_u32.to_be_bytes(), &[0; 8]].concat();
        assert_eq!(run(&program, &mad), Some(GSI_INDEX));
    }
}
