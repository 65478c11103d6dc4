//! Filter of a raw link in the kernel: a program of the classic packet filter.

use std::io;
use std::net::IpAddr;

use socket2::{SockFilter, Socket};

use super::super::interface::{Interface, address_of, membership};
use super::super::sys::ring;
use super::super::{CHOSEN_MAX, GROUPS_MAX};
use crate::wire::{EtherType, Gid, PROTOCOL_UDP, Qpn, ROCE_PORT};

/// The filter of a raw link: its addresses, the groups that it is in, and its queue pairs.
#[derive(Debug)]
pub(super) struct Filter {
    addresses: Vec<IpAddr>,
    /// Each with a socket, for as long as which the kernel keeps the interface in the group.
    groups: Vec<(Gid, Socket)>,
    /// Queue pairs of the link, if they are known.
    queue_pairs: Option<Vec<Qpn>>,
    interface: u32,
    /// The loopback interface, over which the kernel carries packets from this host to itself,
    /// unless it is `interface`.
    hairpin: Option<u32>,
}

impl Filter {
    /// Lets through all packets for these addresses. A socket with this filter is bound to
    /// [`bind_index`](Self::bind_index).
    pub(super) fn new(addresses: Vec<IpAddr>, interface: &Interface, hairpin: Option<u32>) -> Self {
        let (groups, queue_pairs) = (Vec::new(), None);
        Self { addresses, groups, queue_pairs, interface: interface.index, hairpin }
    }

    /// The index of the interface that the filtered socket must be bound to: 0, which is every
    /// interface, if packets also arrive over the loopback interface.
    pub(super) fn bind_index(&self) -> u32 {
        if self.hairpin.is_some() { 0 } else { self.interface }
    }

    fn is_on_loopback(&self) -> bool {
        self.hairpin.is_none()
    }

    /// Attaches the filter to a socket.
    pub(super) fn attach(&self, socket: &Socket) -> io::Result<()> {
        socket.attach_filter(&self.program(self.queue_pairs.as_deref()))
    }

    /// Puts it before a socket in the place of another one. The kernel may not have the memory for
    /// it. Then it lets through more than it should, which is looked at and dropped, and not less.
    fn replace(&self, socket: &Socket) {
        let _ = self
            .attach(socket)
            .or_else(|_| socket.attach_filter(&self.program(None)))
            .or_else(|_| socket.detach_filter());
    }

    /// Lets through packets for these queue pairs only, or with `None` for any.
    pub(super) fn set_queue_pairs(&mut self, socket: &Socket, queue_pairs: Option<&[Qpn]>) {
        let chosen = queue_pairs.filter(|chosen| chosen.len() <= CHOSEN_MAX);
        if chosen.is_none() && self.queue_pairs.is_none() {
            return;
        }
        self.queue_pairs = chosen.map(<[Qpn]>::to_vec);
        self.replace(socket);
    }

    /// Lets through packets for these addresses instead of those before.
    pub(super) fn set_addresses(&mut self, socket: &Socket, addresses: Vec<IpAddr>) {
        self.addresses = addresses;
        self.replace(socket);
    }

    /// The interface of its link.
    pub(super) fn interface(&self) -> u32 {
        self.interface
    }

    /// Lets through packets to a group, too.
    pub(super) fn join(&mut self, socket: &Socket, group: Gid) -> io::Result<()> {
        if self.groups.iter().any(|(joined, _)| *joined == group) {
            return Ok(());
        }
        if self.groups.len() >= GROUPS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let member = membership(group, self.interface)?;
        self.see_outgoing(socket, true)?;
        self.groups.push((group, member));
        self.replace(socket);
        Ok(())
    }

    /// Leaves a multicast group.
    pub(super) fn leave(&mut self, socket: &Socket, group: Gid) {
        self.groups.retain(|(joined, _)| *joined != group);
        self.replace(socket);
        if self.groups.is_empty() {
            // Without the filter the link receives more packets than it needs, and goes on.
            let _ = self.see_outgoing(socket, false);
        }
    }

    /// Whether a socket sees what this machine sends. On the loopback interface all that is sent
    /// arrives.
    fn see_outgoing(&self, socket: &Socket, sees: bool) -> io::Result<()> {
        let ignores = i32::from(self.is_on_loopback() || !sees);
        ring::set_option(socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, ignores)
    }

    /// One block for each address and group: all its tests hold and the frame passes, or the next
    /// block is tried. Addresses are reached over the interface and from this host, groups over the
    /// interface alone.
    fn program(&self, queue_pairs: Option<&[Qpn]>) -> Vec<SockFilter> {
        let mut program = Vec::new();
        if let Some(hairpin) = self.hairpin {
            program.extend(arrived_on(&[self.interface, hairpin]));
        }
        for address in &self.addresses {
            program.extend(block(&[TO_THIS_HOST], *address, queue_pairs).assemble());
        }
        if self.hairpin.is_some() && !self.groups.is_empty() {
            program.extend(arrived_on(&[self.interface]));
        }
        let on_loopback = self.is_on_loopback();
        let ways = if on_loopback { [TO_THIS_HOST, MULTICAST] } else { [MULTICAST, OUTGOING] };
        for (group, _) in &self.groups {
            let block = block(&ways, address_of(*group), Some(&[Qpn::MULTICAST]));
            program.extend(block.assemble());
        }
        program.extend(NOTHING);
        program
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

/// Address of the packet type for a load.
const PACKET_TYPE: u32 = 0xffff_f000 + 4;
const TO_THIS_HOST: u32 = 0;
const MULTICAST: u32 = 2;
const OUTGOING: u32 = 4;

/// Address of the index of the receiving interface for a load.
const INTERFACE: u32 = 0xffff_f000 + 8;

/// Instructions that end the program, and drop the frame, unless it arrived on one of these
/// interfaces.
fn arrived_on(interfaces: &[u32]) -> Vec<SockFilter> {
    let mut program = vec![SockFilter::new(LOAD_WORD, 0, 0, INTERFACE)];
    for (index, left) in interfaces.iter().zip((1..=interfaces.len()).rev()) {
        let beyond = u8::try_from(left).expect("a frame arrives on one of few interfaces");
        program.push(SockFilter::new(JUMP_IF_EQUAL, beyond, 0, *index));
    }
    program.extend(NOTHING);
    program
}

/// Offset of the network header.
const IP: u32 = 14;

/// Loads and tests, in order.
#[derive(Default)]
struct Block(Vec<Step>);

enum Step {
    /// An instruction that cannot fail.
    Do(u16, u32),
    /// The number that was loaded must be this.
    Equal(u32),
    /// The value must have none of these bits.
    NoneOf(u32),
    /// The value must be one of these.
    OneOf(Vec<u32>),
}

fn block(packet_types: &[u32], address: IpAddr, qps: Option<&[Qpn]>) -> Block {
    let mut block = Block::default();
    block.0.extend([Step::Do(LOAD_BYTE, PACKET_TYPE), Step::OneOf(packet_types.to_vec())]);
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
                    // A match jumps over the rest, and over the exit behind it.
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

const _: () = assert!(CHOSEN_MAX + 32 < u8::MAX as usize);

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use socket2::{Domain, Type};

    use super::super::ADDRESSES_MAX;
    use super::*;

    fn filter(addresses: Vec<IpAddr>, groups: usize) -> Filter {
        let socket = || Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        let group = |at: usize| Gid::from(Ipv6Addr::from_bits(0xff << 120 | at as u128));
        let groups = (0..groups).map(|at| (group(at), socket())).collect();
        Filter { addresses, groups, queue_pairs: None, interface: 2, hairpin: Some(1) }
    }

    #[test]
    fn every_way_out_of_a_block_leads_behind_it() {
        let many: Vec<Qpn> = (1..=128).map(Qpn::new).collect();
        for qps in [None, Some(&[][..]), Some(&many[..3]), Some(&many[..])] {
            for address in [IpAddr::from([192, 0, 2, 1]), IpAddr::from([0; 16])] {
                let one = block(&[TO_THIS_HOST], address, qps).assemble().len();
                let head = arrived_on(&[1, 2]).len();
                assert_eq!(filter(vec![address; 2], 0).program(qps).len(), head + 2 * one + 1);
            }
        }
    }

    #[test]
    fn the_longest_program_is_one_that_the_kernel_takes() {
        const KERNEL_MAX: usize = 4096;
        let many: Vec<Qpn> = (1..).map(Qpn::new).take(CHOSEN_MAX).collect();
        let filter = filter(vec![IpAddr::from([0; 16]); ADDRESSES_MAX], GROUPS_MAX);
        let program = filter.program(Some(&many));
        assert!(program.len() <= KERNEL_MAX, "{} instructions", program.len());
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.attach_filter(&program).unwrap();
    }
}
