//! The XDP program of a link: it passes packets of RoCE for the link's addresses to the socket of
//! their queue, and everything else to the kernel.
//!
//! The program is assembled here, because its fifty instructions are not worth a compiler and a
//! loader.

use crate::link::sys::bpf::Map;
use crate::wire::{EtherType, PROTOCOL_UDP, ROCE_PORT};

/// Name of the program, by which the system lists it.
pub(super) const NAME: &str = "roce_xdp";

/// Length of a key of the map of addresses.
pub(super) const ADDRESS_LEN: u32 = 16;

// Registers.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R5: u8 = 5;
/// The context, kept over calls.
const R6: u8 = 6;
/// The end of the stack.
const R10: u8 = 10;

// Operations, as `linux/bpf.h` composes them.
const LOAD_WORD: u8 = 0x61;
const LOAD_HALF: u8 = 0x69;
const LOAD_BYTE: u8 = 0x71;
const LOAD_MAP: u8 = 0x18;
const STORE_WORD: u8 = 0x63;
const STORE_CONSTANT: u8 = 0x62;
const MOVE: u8 = 0xbf;
const MOVE_CONSTANT: u8 = 0xb7;
const ADD_CONSTANT: u8 = 0x07;
const AND_CONSTANT: u8 = 0x57;
const JUMP: u8 = 0x05;
const JUMP_IF_EQUAL: u8 = 0x15;
const JUMP_IF_NOT_EQUAL: u8 = 0x55;
const JUMP_IF_GREATER: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// Source register which says that the constant names a map: `BPF_PSEUDO_MAP_FD`.
const MAP_NUMBER: u8 = 1;

// Functions of the kernel.
const LOOK_UP: i32 = 1;
const REDIRECT: i32 = 51;

/// Verdict: the kernel goes on with the packet.
const PASS: i32 = 2;

// Fields of `xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

/// Length of Ethernet, IPv4 and UDP headers, and of those with IPv6.
const IPV4_LEN: i32 = 42;
const IPV6_LEN: i32 = 62;

/// Place of the address on the stack.
const KEY: i16 = -16;

/// Places that instructions jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Ipv6,
    LookUp,
    Pass,
}

/// Instructions, some of which jump to labels.
#[derive(Debug, Default)]
struct Assembler {
    program: Vec<u64>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, constant: i32) {
        let [o0, o1] = offset.to_le_bytes();
        let [c0, c1, c2, c3] = constant.to_le_bytes();
        self.program.push(u64::from_le_bytes([code, from << 4 | to, o0, o1, c0, c1, c2, c3]));
    }

    fn load(&mut self, code: u8, to: u8, from: u8, offset: i16) {
        self.put(code, to, from, offset, 0);
    }

    fn constant(&mut self, code: u8, to: u8, constant: i32) {
        self.put(code, to, 0, 0, constant);
    }

    fn jump(&mut self, code: u8, of: u8, with: u8, constant: i32, label: Label) {
        self.jumps.push((self.program.len(), label));
        self.put(code, of, with, 0, constant);
    }

    /// Passes the packet to the kernel unless the field at `offset` is `constant`.
    fn must_be(&mut self, load: u8, offset: i16, constant: i32) {
        self.load(load, R5, R2, offset);
        self.jump(JUMP_IF_NOT_EQUAL, R5, 0, constant, Label::Pass);
    }

    /// Passes the packet to the kernel if it has fewer than `len` bytes.
    fn must_have(&mut self, len: i32) {
        self.put(MOVE, R4, R2, 0, 0);
        self.constant(ADD_CONSTANT, R4, len);
        self.jump(JUMP_IF_GREATER, R4, R3, 0, Label::Pass);
    }

    fn load_map(&mut self, to: u8, map: u32) {
        self.put(LOAD_MAP, to, MAP_NUMBER, 0, map.cast_signed());
        self.put(0, 0, 0, 0, 0);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.program.len()));
    }

    fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let found = self.labels.iter().find(|(known, _)| *known == label);
            let to = found.map_or(0, |(_, to)| *to);
            let distance =
                i16::try_from(to - at - 1).expect("a program is short, and goes forward");
            if let Some(instruction) = self.program.get_mut(at) {
                *instruction |= u64::from(distance.cast_unsigned()) << 16;
            }
        }
        self.program
    }
}

/// Returns a number in network byte order, as the processor loads it.
fn half(number: u16) -> i32 {
    i32::from(u16::from_ne_bytes(number.to_be_bytes()))
}

/// Returns the program for a map of addresses and a map of sockets by queue.
pub(super) fn program(addresses: &Map, sockets: &Map) -> Vec<u64> {
    assemble(addresses.number(), sockets.number())
}

fn assemble(addresses: u32, sockets: u32) -> Vec<u64> {
    let mut code = Assembler::default();
    code.put(MOVE, R6, R1, 0, 0);
    code.load(LOAD_WORD, R2, R1, DATA);
    code.load(LOAD_WORD, R3, R1, DATA_END);
    code.must_have(IPV4_LEN);
    code.load(LOAD_HALF, R5, R2, 12);
    code.jump(JUMP_IF_EQUAL, R5, 0, half(EtherType::IPV6.0), Label::Ipv6);
    code.jump(JUMP_IF_NOT_EQUAL, R5, 0, half(EtherType::IPV4.0), Label::Pass);
    // Packets with options and fragments go to the kernel: the link would refuse them.
    code.must_be(LOAD_BYTE, 14, 0x45);
    code.must_be(LOAD_BYTE, 23, PROTOCOL_UDP.into());
    code.load(LOAD_HALF, R5, R2, 20);
    code.constant(AND_CONSTANT, R5, half(0x3fff));
    code.jump(JUMP_IF_NOT_EQUAL, R5, 0, 0, Label::Pass);
    code.must_be(LOAD_HALF, 36, half(ROCE_PORT));
    // The key is the GID: for IPv4, the mapped address.
    code.put(STORE_CONSTANT, R10, 0, KEY, 0);
    code.put(STORE_CONSTANT, R10, 0, KEY + 4, 0);
    code.put(STORE_CONSTANT, R10, 0, KEY + 8, i32::from_ne_bytes([0, 0, 0xff, 0xff]));
    code.load(LOAD_WORD, R5, R2, 30);
    code.load(STORE_WORD, R10, R5, KEY + 12);
    code.jump(JUMP, 0, 0, 0, Label::LookUp);
    code.label(Label::Ipv6);
    code.must_have(IPV6_LEN);
    code.must_be(LOAD_BYTE, 20, PROTOCOL_UDP.into());
    code.must_be(LOAD_HALF, 56, half(ROCE_PORT));
    for word in [0, 4, 8, 12] {
        code.load(LOAD_WORD, R5, R2, 38 + word);
        code.load(STORE_WORD, R10, R5, KEY + word);
    }
    code.label(Label::LookUp);
    code.load_map(R1, addresses);
    code.put(MOVE, R2, R10, 0, 0);
    code.constant(ADD_CONSTANT, R2, KEY.into());
    code.constant(CALL, 0, LOOK_UP);
    code.jump(JUMP_IF_EQUAL, R0, 0, 0, Label::Pass);
    // Packets of a queue without a socket go to the kernel.
    code.load_map(R1, sockets);
    code.load(LOAD_WORD, R2, R6, QUEUE);
    code.constant(MOVE_CONSTANT, R3, PASS);
    code.constant(CALL, 0, REDIRECT);
    code.put(EXIT, 0, 0, 0, 0);
    code.label(Label::Pass);
    code.constant(MOVE_CONSTANT, R0, PASS);
    code.put(EXIT, 0, 0, 0, 0);
    code.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_stays_within_the_program() {
        let program = assemble(3, 4);
        let len = i64::try_from(program.len()).unwrap();
        assert_eq!(program.last().unwrap().to_le_bytes()[0], EXIT);
        let mut jumps = 0;
        for (at, instruction) in (0..).zip(&program) {
            let [code, _, o0, o1, ..] = instruction.to_le_bytes();
            if matches!(code, JUMP | JUMP_IF_EQUAL | JUMP_IF_NOT_EQUAL | JUMP_IF_GREATER) {
                let to = at + 1 + i64::from(i16::from_le_bytes([o0, o1]));
                assert!(to > at + 1 && to < len, "instruction {at} jumps to {to}");
                jumps += 1;
            }
        }
        assert_eq!(jumps, 12);
    }
}
