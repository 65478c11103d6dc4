//! Steering: the kernel decides by its destination QPN which of the sockets at an address gets a
//! packet.
//!
//! All sockets at an address are one group (`SO_REUSEPORT`), in an order that never changes. A
//! program of classic BPF returns the index of the socket; what it reads begins at the BTH. An
//! index without a socket means any socket of the group: a NIC that is alone has all packets. It
//! opens the socket of queue pair 1 before those of the other slots, so that no MAD goes to a slot
//! meanwhile.

use crate::verbs::QpnShare;
use crate::wire::Qpn;

/// Number of bits of a slot.
const SLOT_BITS: u32 = 6;

/// Number of slots at an address, each for one NIC.
pub(crate) const SLOTS: u8 = 1 << SLOT_BITS;

/// Index of the socket for queue pair 1, behind that of the first slot and before those of the
/// others.
const GSI_INDEX: u32 = 1;

/// Bits of a QPN.
const QPN_MASK: u32 = 0xff_ffff;

/// Number by which QPNs are multiplied: odd, and known to the members of an address alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Multiplier(u32);

impl Multiplier {
    pub(super) fn new(random: u32) -> Self {
        Self((random | 1) & QPN_MASK)
    }

    pub(super) fn get(self) -> u32 {
        self.0
    }

    /// Returns the QPNs of a slot.
    pub(super) fn share(self, slot: u8) -> QpnShare {
        QpnShare::of_slot(self.0, SLOT_BITS, slot)
    }
}

/// Offset of the word of a BTH that has the destination QPN in its lower bits.
const QPN_WORD: u32 = 4;

/// Returns the program that steers packets.
pub(super) fn program(multiplier: Multiplier) -> [libc::sock_filter; 10] {
    let plain = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    const LOAD_WORD: u16 = 0x20;
    const AND: u16 = 0x54;
    const MULTIPLY: u16 = 0x24;
    const SHIFT_RIGHT: u16 = 0x74;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const ADD: u16 = 0x04;
    const RETURN: u16 = 0x06;
    const RETURN_ACCUMULATOR: u16 = 0x16;
    [
        plain(LOAD_WORD, QPN_WORD),
        plain(AND, QPN_MASK),
        libc::sock_filter { code: JUMP_IF_EQUAL, jt: 0, jf: 1, k: Qpn::GSI.get() },
        plain(RETURN, GSI_INDEX),
        plain(MULTIPLY, multiplier.get()),
        plain(AND, QPN_MASK),
        plain(SHIFT_RIGHT, 24 - SLOT_BITS),
        libc::sock_filter { code: JUMP_IF_EQUAL, jt: 1, jf: 0, k: 0 },
        plain(ADD, 1),
        plain(RETURN_ACCUMULATOR, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The index that the program returns for a packet, as the kernel runs it.
    fn run(program: &[libc::sock_filter], packet: &[u8]) -> Option<u32> {
        let (mut at, mut accumulator) = (0, 0_u32);
        loop {
            let libc::sock_filter { code, jt, jf, k } = *program.get(at)?;
            at += 1;
            match code {
                0x20 => {
                    let bytes = packet.get(k as usize..)?.first_chunk()?;
                    accumulator = u32::from_be_bytes(*bytes);
                }
                0x54 => accumulator &= k,
                0x24 => accumulator = accumulator.wrapping_mul(k),
                0x74 => accumulator >>= k,
                0x04 => accumulator += k,
                0x15 => at += usize::from(if accumulator == k { jt } else { jf }),
                0x06 => return Some(k),
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
            let index = run(&program, &packet.concat());
            let slot = u32::from(multiplier.share(0).slot_of(Qpn::new(qpn)));
            let expected = if slot == 0 { 0 } else { slot + 1 };
            assert_eq!(index, Some(expected), "{qpn:#x}");
        }
        let mad = [&[0x64, 0, 0xff, 0xff][..], &1_u32.to_be_bytes(), &[0; 8]].concat();
        assert_eq!(run(&program, &mad), Some(GSI_INDEX));
    }
}
