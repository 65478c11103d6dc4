//! Which frames the kernel lets through to a raw link: a program of the classic packet filter.

use std::io;
use std::net::IpAddr;

use socket2::{SockFilter, Socket};

use crate::wire::{EtherType, PROTOCOL_UDP, Qpn, ROCE_PORT};

/// The most queue pairs that a filter tells apart; with more, it lets through those of everybody.
pub const FILTER_QPS_MAX: usize = 128;

/// The filter of a raw link, to be narrowed while it runs.
///
/// A link sees every RoCE packet for its addresses, those of other programs too, which the engine drops. A filter that
/// knows the link's queue pairs saves it the trouble.
#[derive(Debug)]
pub struct Filter {
    pub(super) socket: Socket,
    pub(super) addresses: Vec<IpAddr>,
}

impl Filter {
    /// Lets through only packets for these queue pairs, or with `None` for any; with more than [`FILTER_QPS_MAX`] too.
    ///
    /// Frames that the kernel has put together from several packets of one flow pass or fail by their first. Only
    /// queue pairs whose packets have the same addresses and source port share a flow.
    pub fn set_filter(&self, qps: Option<&[Qpn]>) -> io::Result<()> {
        self.socket.attach_filter(&program(&self.addresses, qps))
    }
}

/// A program that lets nothing through.
pub(super) const NOTHING: [SockFilter; 1] = [SockFilter::new(RETURN, 0, 0, 0)];

// What instructions do, as `linux/bpf_common.h` composes them.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_WORD_AT_X: u16 = 0x40;
const LOAD_HALF_AT_X: u16 = 0x48;
/// X becomes four times the lower half of a byte: the length of an IPv4 header.
const LOAD_X_HEADER_LEN: u16 = 0xb1;
const LOAD_X: u16 = 0x01;
const AND: u16 = 0x54;
const JUMP_ALWAYS: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

/// Where a load finds how the frame was addressed: 0 is to this host.
const PACKET_TYPE: u32 = 0xffff_f000 + 4;

/// Where the network header begins.
const IP: u32 = 14;

/// One block for each address: all its tests hold and the frame passes, or the next block is tried.
fn program(addresses: &[IpAddr], qps: Option<&[Qpn]>) -> Vec<SockFilter> {
    let qps = qps.filter(|qps| qps.len() <= FILTER_QPS_MAX);
    let mut program = Vec::new();
    for address in addresses {
        program.extend(block(*address, qps).assemble());
    }
    program.extend(NOTHING);
    program
}

/// Loads and tests, in order.
#[derive(Default)]
struct Block(Vec<Step>);

enum Step {
    /// Something that cannot fail.
    Do(u16, u32),
    /// The number that was loaded must be this.
    Equal(u32),
    /// It must have none of these bits.
    NoneOf(u32),
    /// It must be one of these.
    OneOf(Vec<u32>),
}

fn block(address: IpAddr, qps: Option<&[Qpn]>) -> Block {
    let mut block = Block::default();
    block.equal(LOAD_BYTE, PACKET_TYPE, 0);
    let udp = match address {
        IpAddr::V4(address) => {
            block.equal(LOAD_HALF, 12, EtherType::IPV4.0.into());
            block.equal(LOAD_BYTE, IP + 9, PROTOCOL_UDP.into());
            block.equal(LOAD_WORD, IP + 16, address.to_bits());
            // Only the first part of a datagram has ports.
            block.0.extend([Step::Do(LOAD_HALF, IP + 6), Step::NoneOf(0x1fff)]);
            block.0.push(Step::Do(LOAD_X_HEADER_LEN, IP));
            IP
        }
        IpAddr::V6(address) => {
            block.equal(LOAD_HALF, 12, EtherType::IPV6.0.into());
            block.equal(LOAD_BYTE, IP + 6, PROTOCOL_UDP.into());
            let words = address.to_bits();
            for (at, shift) in [(0, 96), (4, 64), (8, 32), (12, 0)] {
                let word = u32::try_from(words >> shift & 0xffff_ffff).unwrap_or(0);
                block.equal(LOAD_WORD, IP + 24 + at, word);
            }
            block.0.push(Step::Do(LOAD_X, 40));
            IP
        }
    };
    block.equal(LOAD_HALF_AT_X, udp + 2, ROCE_PORT.into());
    if let Some(qps) = qps {
        // Behind the UDP header, the BTH's second word ends with the queue pair.
        block.0.extend([Step::Do(LOAD_WORD_AT_X, udp + 8 + 4), Step::Do(AND, 0xff_ffff)]);
        block.0.push(Step::OneOf(qps.iter().map(|qp| qp.get()).collect()));
    }
    block
}

impl Block {
    fn equal(&mut self, load: u16, at: u32, wanted: u32) {
        self.0.extend([Step::Do(load, at), Step::Equal(wanted)]);
    }

    /// The instructions. Each test that fails goes on behind the block.
    fn assemble(self) -> Vec<SockFilter> {
        let len = |step: &Step| if let Step::OneOf(any) = step { any.len() + 1 } else { 1 };
        let total: usize = self.0.iter().map(len).sum::<usize>() + 1;
        let mut program = Vec::with_capacity(total);
        for step in self.0 {
            // How far it is from the next instruction to behind the block.
            let out = u8::try_from(total - program.len() - 1).expect("a block has few steps");
            match step {
                Step::Do(code, k) => program.push(SockFilter::new(code, 0, 0, k)),
                Step::Equal(k) => program.push(SockFilter::new(JUMP_IF_EQUAL, 0, out, k)),
                Step::NoneOf(k) => program.push(SockFilter::new(JUMP_IF_ANY_BIT, out, 0, k)),
                Step::OneOf(any) => {
                    // Whoever matches jumps over the rest, and over the way out behind it.
                    let mut left = u8::try_from(any.len()).expect("a filter has few queue pairs");
                    for k in any {
                        program.push(SockFilter::new(JUMP_IF_EQUAL, left, 0, k));
                        left -= 1;
                    }
                    let out = u32::try_from(total - program.len() - 1).expect("as above");
                    program.push(SockFilter::new(JUMP_ALWAYS, 0, 0, out));
                }
            }
        }
        program.push(SockFilter::new(RETURN, 0, 0, u32::MAX));
        program
    }
}

const _: () = assert!(FILTER_QPS_MAX + 24 < u8::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_out_of_a_block_leads_behind_it() {
        let many: Vec<Qpn> = (1..=128).map(Qpn::new).collect();
        for qps in [None, Some(&[][..]), Some(&many[..3]), Some(&many[..])] {
            for address in [IpAddr::from([192, 0, 2, 1]), IpAddr::from([0; 16])] {
                let one = block(address, qps).assemble().len();
                assert_eq!(program(&[address, address], qps).len(), 2 * one + 1);
            }
        }
        let more: Vec<Qpn> = (0..129).map(Qpn::new).collect();
        let address = [IpAddr::from([192, 0, 2, 1])];
        assert_eq!(program(&address, Some(&more)).len(), program(&address, None).len());
    }
}
