//! The one table of opcodes.
//!
//! Everything the specification ties to a BTH opcode stands here once: which service it belongs to,
//! what it does, where in its message it stands, which headers follow, how much payload it may
//! carry, who sends it and what it does to the receive queue. What all opcodes of an operation
//! share stands in the table of `operation`. Parser, builder, responder, decoder, statistics and
//! fuzzers ask [`Opcode::info`]; no code matches on numbers a second time. An opcode that is not in
//! the table keeps its number.

use core::fmt;

use super::Layer;
use super::layout::whole_field;
use super::operation::{Operation, Right};

/// The first byte of a BTH.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Opcode(pub u8);

impl Opcode {
    /// Returns the table's entry for this opcode, or `None` if it is unassigned.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "a byte has 256 values")]
    pub const fn info(self) -> Option<&'static OpcodeInfo> {
        OPCODES[self.0 as usize].as_ref()
    }

    /// Every opcode that has a meaning, in the order of their numbers.
    pub fn assigned() -> impl Iterator<Item = &'static OpcodeInfo> {
        OPCODES.iter().flatten()
    }

    /// The RC opcode of each packet of a message, by [`Position`]. The packet that ends the message
    /// has `trailer`: immediate data, a key to invalidate, or nothing. An operation whose messages
    /// are one packet has its opcode at every position.
    ///
    /// For tables that are built when compiling: it searches.
    pub const fn of_message(operation: Operation, trailer: Headers) -> [Self; 4] {
        let Some(only) = Self::find(operation, Position::Only, trailer) else {
            panic!("no RC message of this operation has this trailer");
        };
        [
            Self::find_or(only, operation, Position::First, Headers::empty()),
            Self::find_or(only, operation, Position::Middle, Headers::empty()),
            Self::find_or(only, operation, Position::Last, trailer),
            only,
        ]
    }

    const fn find_or(
        other: Self,
        operation: Operation,
        position: Position,
        trailer: Headers,
    ) -> Self {
        match Self::find(operation, position, trailer) {
            Some(opcode) => opcode,
            None => other,
        }
    }

    const fn find(operation: Operation, position: Position, trailer: Headers) -> Option<Self> {
        let trailers = Headers::IMM_DT.union(Headers::IETH);
        let mut number = Service::Rc.class();
        while number < Service::Uc.class() {
            if let Some(info) = Self(number).info()
                && info.operation as u8 == operation as u8
                && info.position as u8 == position as u8
                && info.headers.intersection(trailers).bits() == trailer.bits()
            {
                return Some(info.opcode);
            }
            number += 1;
        }
        None
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Some(info) => f.pad(info.name),
            None => write!(f, "opcode {:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

whole_field!(Opcode(u8));

/// Properties that the specification gives an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpcodeInfo {
    /// The opcode itself.
    pub opcode: Opcode,
    /// Name, as in the kernel's `IB_OPCODE_*`.
    pub name: &'static str,
    /// Transport service.
    pub service: Service,
    /// Operation.
    pub operation: Operation,
    /// The right that it needs, from the table of operations.
    pub right: Right,
    /// Position in its message.
    pub position: Position,
    /// The headers between BTH and payload.
    pub headers: Headers,
    /// Rule for the length of its payload.
    pub payload: PayloadRule,
    /// Role of its sender.
    pub role: Role,
    /// Effect on the receive queue.
    pub receive: Receive,
    /// Bytes from the start of the BTH to the payload.
    pub header_len: usize,
}

/// The transport service of an opcode: its upper three bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram; no device supports it.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification, which belongs to no service.
    Cnp,
    /// Extended reliable connection.
    Xrc,
}

impl Service {
    /// Returns the upper three bits of the service's opcodes.
    #[inline]
    pub const fn class(self) -> u8 {
        (self as u8) << 5
    }
}

const _: () = assert!(Service::Xrc.class() == 0xa0, "services stand in the order of their numbers");

/// Position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether a message begins with this packet.
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends with this packet.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Rule for the number of payload bytes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadRule {
    /// The path MTU, no more and no less.
    FullMtu,
    /// Payload from this many bytes to the path MTU.
    UpToMtu(usize),
    /// This number of bytes exactly.
    Exactly(usize),
    /// The bitmap of a SACK: 1 to 4 words of 8 bytes.
    Bitmap,
}

impl PayloadRule {
    /// Whether `len` bytes of payload are allowed at a path MTU of `mtu`.
    #[inline]
    pub const fn allows(self, len: usize, mtu: usize) -> bool {
        // Rule: P-09.2.
        match self {
            Self::FullMtu => len == mtu,
            Self::UpToMtu(least) => least <= len && len <= mtu,
            Self::Exactly(exact) => len == exact,
            Self::Bitmap => len >= 8 && len <= 32 && len.is_multiple_of(8),
        }
    }
}

/// Role of a packet's sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The requester.
    Request,
    /// The responder.
    Response,
    /// Neither: a notification.
    Notification,
}

/// Effect of a packet on the receive queue of its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Receive {
    /// No effect.
    Untouched,
    /// A receive work request is taken.
    Taken,
    /// The receive work request that an earlier packet took is completed.
    Completed,
    /// A receive work request is taken and completed.
    TakenAndCompleted,
}

impl Receive {
    /// Whether the packet takes a receive work request.
    pub const fn takes(self) -> bool {
        matches!(self, Self::Taken | Self::TakenAndCompleted)
    }

    /// Whether the packet completes a receive work request.
    pub const fn completes(self) -> bool {
        matches!(self, Self::Completed | Self::TakenAndCompleted)
    }
}

bitflags::bitflags! {
    /// The extension headers of an opcode. On the wire they follow the BTH in the order of these
    /// bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Headers: u16 {
        /// Reliable datagram extended transport header.
        const RDETH = 1;
        /// Datagram extended transport header.
        const DETH = 1 << 1;
        // Rule: P-16.1.
        /// XRC extended transport header.
        const XRCETH = 1 << 2;
        /// Flush extended transport header.
        const FETH = 1 << 3;
        /// RDMA extended transport header.
        const RETH = 1 << 4;
        /// Atomic extended transport header.
        const ATOMIC_ETH = 1 << 5;
        /// Acknowledge extended transport header.
        const AETH = 1 << 6;
        /// Atomic acknowledge extended transport header.
        const ATOMIC_ACK_ETH = 1 << 7;
        /// Immediate data.
        const IMM_DT = 1 << 8;
        /// Invalidate extended transport header.
        const IETH = 1 << 9;
        /// Selective acknowledge extended transport header.
        const SACK_ETH = 1 << 10;
    }
}

impl Headers {
    /// The length of the BTH, which every packet has.
    pub const BTH_LEN: usize = 12;

    /// The length of each header, in the order of the bits.
    const LENGTHS: [u8; 11] = [4, 8, 4, 4, 16, 28, 4, 8, 4, 4, 4];

    /// The length of these headers together.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "the loop ends with the array")]
    pub const fn byte_len(self) -> usize {
        let (mut bit, mut len) = (0, 0);
        while bit < Self::LENGTHS.len() {
            if self.bits() & (1 << bit) != 0 {
                len += Self::LENGTHS[bit] as usize;
            }
            bit += 1;
        }
        len
    }

    /// Each of these headers, in wire order, and what it is called.
    #[inline]
    pub fn layers(self) -> impl Iterator<Item = (Self, Layer)> {
        const LAYERS: [Layer; 11] = [
            Layer::Rdeth,
            Layer::Deth,
            Layer::Xrceth,
            Layer::Feth,
            Layer::Reth,
            Layer::AtomicEth,
            Layer::Aeth,
            Layer::AtomicAckEth,
            Layer::ImmDt,
            Layer::Ieth,
            Layer::SackEth,
        ];
        let all = (0..).zip(LAYERS).map(|(bit, layer)| (Self::from_bits_truncate(1 << bit), layer));
        all.filter(move |&(header, _)| self.contains(header))
    }

    /// Returns the offset of `header` from the start of the BTH, or `None` if it is not among
    /// these.
    #[inline]
    pub const fn offset_of(self, header: Self) -> Option<usize> {
        if !self.contains(header) {
            return None;
        }
        let before = Self::from_bits_truncate(self.bits() & (header.bits() - 1));
        Some(Self::BTH_LEN + before.byte_len())
    }
}

macro_rules! opcodes {
    ($($name:ident = $value:literal:
        $service:ident $operation:ident $position:ident,
        [$($header:ident)*], $rule:ident$(($least:literal))?, $role:ident, $receive:ident;)*) => {
        impl Opcode {
            $(#[doc = concat!("`", stringify!($name), "`.")] pub const $name: Self = Self($value);)*
        }

        /// The table itself, by number.
        static OPCODES: [Option<OpcodeInfo>; 256] = {
            let mut table = [None; 256];
            $(let headers = Headers::empty()$(.union(Headers::$header))*;
            table[$value] = Some(OpcodeInfo {
                opcode: Opcode($value),
                name: stringify!($name),
                service: Service::$service,
                operation: Operation::$operation,
                right: Operation::$operation.right(),
                position: Position::$position,
                headers,
                header_len: Headers::BTH_LEN + headers.byte_len(),
                payload: PayloadRule::$rule$(($least))?,
                role: Role::$role,
                receive: Receive::$receive,
            });)*
            table
        };
    };
}

opcodes! {
    // Rules: T-03, T-04, T-05, T-06, T-07, T-08, T-09, T-16, T-17.
    // Rules: T-19, T-20, T-21, T-22, T-23, T-24, T-25.
    RC_SEND_FIRST = 0x00: Rc Send First, [], FullMtu, Request, Taken;
    RC_SEND_MIDDLE = 0x01: Rc Send Middle, [], FullMtu, Request, Untouched;
    RC_SEND_LAST = 0x02: Rc Send Last, [], UpToMtu(1), Request, Completed;
    RC_SEND_LAST_WITH_IMMEDIATE = 0x03: Rc Send Last, [IMM_DT], UpToMtu(1), Request, Completed;
    RC_SEND_ONLY = 0x04: Rc Send Only, [], UpToMtu(0), Request, TakenAndCompleted;
    RC_SEND_ONLY_WITH_IMMEDIATE = 0x05: Rc Send Only, [IMM_DT], UpToMtu(0), Request, TakenAndCompleted;
    RC_RDMA_WRITE_FIRST = 0x06: Rc Write First, [RETH], FullMtu, Request, Untouched;
    RC_RDMA_WRITE_MIDDLE = 0x07: Rc Write Middle, [], FullMtu, Request, Untouched;
    RC_RDMA_WRITE_LAST = 0x08: Rc Write Last, [], UpToMtu(1), Request, Untouched;
    RC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x09: Rc Write Last, [IMM_DT], UpToMtu(1), Request, TakenAndCompleted;
    RC_RDMA_WRITE_ONLY = 0x0a: Rc Write Only, [RETH], UpToMtu(0), Request, Untouched;
    RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x0b: Rc Write Only, [RETH IMM_DT], UpToMtu(0), Request, TakenAndCompleted;
    RC_RDMA_READ_REQUEST = 0x0c: Rc ReadRequest Only, [RETH], Exactly(0), Request, Untouched;
    RC_RDMA_READ_RESPONSE_FIRST = 0x0d: Rc ReadResponse First, [AETH], FullMtu, Response, Untouched;
    RC_RDMA_READ_RESPONSE_MIDDLE = 0x0e: Rc ReadResponse Middle, [], FullMtu, Response, Untouched;
    RC_RDMA_READ_RESPONSE_LAST = 0x0f: Rc ReadResponse Last, [AETH], UpToMtu(1), Response, Untouched;
    RC_RDMA_READ_RESPONSE_ONLY = 0x10: Rc ReadResponse Only, [AETH], UpToMtu(0), Response, Untouched;
    RC_ACKNOWLEDGE = 0x11: Rc Acknowledge Only, [AETH], Exactly(0), Response, Untouched;
    RC_ATOMIC_ACKNOWLEDGE = 0x12: Rc AtomicAcknowledge Only, [AETH ATOMIC_ACK_ETH], Exactly(0), Response, Untouched;
    RC_COMPARE_SWAP = 0x13: Rc CompareSwap Only, [ATOMIC_ETH], Exactly(0), Request, Untouched;
    RC_FETCH_ADD = 0x14: Rc FetchAdd Only, [ATOMIC_ETH], Exactly(0), Request, Untouched;
    RC_SEND_LAST_WITH_INVALIDATE = 0x16: Rc Send Last, [IETH], UpToMtu(1), Request, Completed;
    RC_SEND_ONLY_WITH_INVALIDATE = 0x17: Rc Send Only, [IETH], UpToMtu(0), Request, TakenAndCompleted;
    RC_FLUSH = 0x1c: Rc Flush Only, [FETH RETH], Exactly(0), Request, Untouched;
    RC_ATOMIC_WRITE = 0x1d: Rc AtomicWrite Only, [RETH], Exactly(8), Request, Untouched;
    UC_SEND_FIRST = 0x20: Uc Send First, [], FullMtu, Request, Taken;
    UC_SEND_MIDDLE = 0x21: Uc Send Middle, [], FullMtu, Request, Untouched;
    UC_SEND_LAST = 0x22: Uc Send Last, [], UpToMtu(1), Request, Completed;
    UC_SEND_LAST_WITH_IMMEDIATE = 0x23: Uc Send Last, [IMM_DT], UpToMtu(1), Request, Completed;
    UC_SEND_ONLY = 0x24: Uc Send Only, [], UpToMtu(0), Request, TakenAndCompleted;
    UC_SEND_ONLY_WITH_IMMEDIATE = 0x25: Uc Send Only, [IMM_DT], UpToMtu(0), Request, TakenAndCompleted;
    UC_RDMA_WRITE_FIRST = 0x26: Uc Write First, [RETH], FullMtu, Request, Untouched;
    UC_RDMA_WRITE_MIDDLE = 0x27: Uc Write Middle, [], FullMtu, Request, Untouched;
    UC_RDMA_WRITE_LAST = 0x28: Uc Write Last, [], UpToMtu(1), Request, Untouched;
    UC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x29: Uc Write Last, [IMM_DT], UpToMtu(1), Request, TakenAndCompleted;
    UC_RDMA_WRITE_ONLY = 0x2a: Uc Write Only, [RETH], UpToMtu(0), Request, Untouched;
    UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x2b: Uc Write Only, [RETH IMM_DT], UpToMtu(0), Request, TakenAndCompleted;
    RD_SEND_FIRST = 0x40: Rd Send First, [RDETH DETH], FullMtu, Request, Taken;
    RD_SEND_MIDDLE = 0x41: Rd Send Middle, [RDETH DETH], FullMtu, Request, Untouched;
    RD_SEND_LAST = 0x42: Rd Send Last, [RDETH DETH], UpToMtu(1), Request, Completed;
    RD_SEND_LAST_WITH_IMMEDIATE = 0x43: Rd Send Last, [RDETH DETH IMM_DT], UpToMtu(1), Request, Completed;
    RD_SEND_ONLY = 0x44: Rd Send Only, [RDETH DETH], UpToMtu(0), Request, TakenAndCompleted;
    RD_SEND_ONLY_WITH_IMMEDIATE = 0x45: Rd Send Only, [RDETH DETH IMM_DT], UpToMtu(0), Request, TakenAndCompleted;
    RD_RDMA_WRITE_FIRST = 0x46: Rd Write First, [RDETH DETH RETH], FullMtu, Request, Untouched;
    RD_RDMA_WRITE_MIDDLE = 0x47: Rd Write Middle, [RDETH DETH], FullMtu, Request, Untouched;
    RD_RDMA_WRITE_LAST = 0x48: Rd Write Last, [RDETH DETH], UpToMtu(1), Request, Untouched;
    RD_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x49: Rd Write Last, [RDETH DETH IMM_DT], UpToMtu(1), Request, TakenAndCompleted;
    RD_RDMA_WRITE_ONLY = 0x4a: Rd Write Only, [RDETH DETH RETH], UpToMtu(0), Request, Untouched;
    RD_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x4b: Rd Write Only, [RDETH DETH RETH IMM_DT], UpToMtu(0), Request, TakenAndCompleted;
    RD_RDMA_READ_REQUEST = 0x4c: Rd ReadRequest Only, [RDETH DETH RETH], Exactly(0), Request, Untouched;
    RD_RDMA_READ_RESPONSE_FIRST = 0x4d: Rd ReadResponse First, [RDETH AETH], FullMtu, Response, Untouched;
    RD_RDMA_READ_RESPONSE_MIDDLE = 0x4e: Rd ReadResponse Middle, [RDETH], FullMtu, Response, Untouched;
    RD_RDMA_READ_RESPONSE_LAST = 0x4f: Rd ReadResponse Last, [RDETH AETH], UpToMtu(1), Response, Untouched;
    RD_RDMA_READ_RESPONSE_ONLY = 0x50: Rd ReadResponse Only, [RDETH AETH], UpToMtu(0), Response, Untouched;
    RD_ACKNOWLEDGE = 0x51: Rd Acknowledge Only, [RDETH AETH], Exactly(0), Response, Untouched;
    RD_ATOMIC_ACKNOWLEDGE = 0x52: Rd AtomicAcknowledge Only, [RDETH AETH ATOMIC_ACK_ETH], Exactly(0), Response, Untouched;
    RD_COMPARE_SWAP = 0x53: Rd CompareSwap Only, [RDETH DETH ATOMIC_ETH], Exactly(0), Request, Untouched;
    RD_FETCH_ADD = 0x54: Rd FetchAdd Only, [RDETH DETH ATOMIC_ETH], Exactly(0), Request, Untouched;
    RD_RESYNC = 0x55: Rd Resync Only, [RDETH DETH], Exactly(0), Request, Untouched;
    RD_FLUSH = 0x5c: Rd Flush Only, [RDETH FETH RETH], Exactly(0), Request, Untouched;
    RD_ATOMIC_WRITE = 0x5d: Rd AtomicWrite Only, [RDETH RETH], Exactly(8), Request, Untouched;
    UD_SEND_ONLY = 0x64: Ud Send Only, [DETH], UpToMtu(0), Request, TakenAndCompleted;
    UD_SEND_ONLY_WITH_IMMEDIATE = 0x65: Ud Send Only, [DETH IMM_DT], UpToMtu(0), Request, TakenAndCompleted;
    IB_CNP = 0x80: Cnp Cnp Only, [], Exactly(16), Notification, Untouched;
    CNP = 0x81: Cnp Cnp Only, [], Exactly(16), Notification, Untouched;
    XRC_SEND_FIRST = 0xa0: Xrc Send First, [XRCETH], FullMtu, Request, Taken;
    XRC_SEND_MIDDLE = 0xa1: Xrc Send Middle, [XRCETH], FullMtu, Request, Untouched;
    XRC_SEND_LAST = 0xa2: Xrc Send Last, [XRCETH], UpToMtu(1), Request, Completed;
    XRC_SEND_LAST_WITH_IMMEDIATE = 0xa3: Xrc Send Last, [XRCETH IMM_DT], UpToMtu(1), Request, Completed;
    XRC_SEND_ONLY = 0xa4: Xrc Send Only, [XRCETH], UpToMtu(0), Request, TakenAndCompleted;
    XRC_SEND_ONLY_WITH_IMMEDIATE = 0xa5: Xrc Send Only, [XRCETH IMM_DT], UpToMtu(0), Request, TakenAndCompleted;
    XRC_RDMA_WRITE_FIRST = 0xa6: Xrc Write First, [XRCETH RETH], FullMtu, Request, Untouched;
    XRC_RDMA_WRITE_MIDDLE = 0xa7: Xrc Write Middle, [XRCETH], FullMtu, Request, Untouched;
    XRC_RDMA_WRITE_LAST = 0xa8: Xrc Write Last, [XRCETH], UpToMtu(1), Request, Untouched;
    XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0xa9: Xrc Write Last, [XRCETH IMM_DT], UpToMtu(1), Request, TakenAndCompleted;
    XRC_RDMA_WRITE_ONLY = 0xaa: Xrc Write Only, [XRCETH RETH], UpToMtu(0), Request, Untouched;
    XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0xab: Xrc Write Only, [XRCETH RETH IMM_DT], UpToMtu(0), Request, TakenAndCompleted;
    XRC_RDMA_READ_REQUEST = 0xac: Xrc ReadRequest Only, [XRCETH RETH], Exactly(0), Request, Untouched;
    XRC_RDMA_READ_RESPONSE_FIRST = 0xad: Xrc ReadResponse First, [AETH], FullMtu, Response, Untouched;
    XRC_RDMA_READ_RESPONSE_MIDDLE = 0xae: Xrc ReadResponse Middle, [], FullMtu, Response, Untouched;
    XRC_RDMA_READ_RESPONSE_LAST = 0xaf: Xrc ReadResponse Last, [AETH], UpToMtu(1), Response, Untouched;
    XRC_RDMA_READ_RESPONSE_ONLY = 0xb0: Xrc ReadResponse Only, [AETH], UpToMtu(0), Response, Untouched;
    XRC_ACKNOWLEDGE = 0xb1: Xrc Acknowledge Only, [AETH], Exactly(0), Response, Untouched;
    XRC_ATOMIC_ACKNOWLEDGE = 0xb2: Xrc AtomicAcknowledge Only, [AETH ATOMIC_ACK_ETH], Exactly(0), Response, Untouched;
    XRC_COMPARE_SWAP = 0xb3: Xrc CompareSwap Only, [XRCETH ATOMIC_ETH], Exactly(0), Request, Untouched;
    XRC_FETCH_ADD = 0xb4: Xrc FetchAdd Only, [XRCETH ATOMIC_ETH], Exactly(0), Request, Untouched;
    XRC_SEND_LAST_WITH_INVALIDATE = 0xb6: Xrc Send Last, [XRCETH IETH], UpToMtu(1), Request, Completed;
    XRC_SEND_ONLY_WITH_INVALIDATE = 0xb7: Xrc Send Only, [XRCETH IETH], UpToMtu(0), Request, TakenAndCompleted;
    XRC_FLUSH = 0xbc: Xrc Flush Only, [XRCETH FETH RETH], Exactly(0), Request, Untouched;
    XRC_ATOMIC_WRITE = 0xbd: Xrc AtomicWrite Only, [XRCETH RETH], Exactly(8), Request, Untouched;
    // C0h to FFh are the manufacturers': for reliable connections between peers that agreed.
    RC_SELECTIVE_ACKNOWLEDGE = 0xd1: Rc SelectiveAcknowledge Only, [AETH SACK_ETH], Bitmap, Response, Untouched;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_found_behind_those_before_it() {
        let info = Opcode::XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE.info().unwrap();
        assert_eq!(info.headers.offset_of(Headers::XRCETH), Some(12));
        assert_eq!(info.headers.offset_of(Headers::RETH), Some(16));
        assert_eq!(info.headers.offset_of(Headers::IMM_DT), Some(32));
        assert_eq!(info.headers.offset_of(Headers::AETH), None);
        assert_eq!(info.header_len, 36);
    }

    #[test]
    fn an_unassigned_opcode_keeps_its_number() {
        assert_eq!(Opcode(0xe7).info(), None);
        assert_eq!(Opcode(0xe7).to_string(), "opcode 0xe7");
        assert_eq!(Opcode(0x15).info(), None);
    }

    #[test]
    fn the_upper_three_bits_are_the_service() {
        for info in Opcode::assigned() {
            let service = match info.opcode.0 >> 5 {
                6 | 7 => continue, // the manufacturers'
                0 => Service::Rc,
                1 => Service::Uc,
                2 => Service::Rd,
                3 => Service::Ud,
                4 => Service::Cnp,
                5 => Service::Xrc,
                _ => unreachable!("{info:?}"),
            };
            assert_eq!(info.service, service, "{info:?}");
        }
    }

    #[test]
    fn messages_have_the_opcodes_of_their_positions() {
        use Opcode as O;
        let by_position = |operation, trailer| Opcode::of_message(operation, trailer);
        let send = [O::RC_SEND_FIRST, O::RC_SEND_MIDDLE];
        for (trailer, last, only) in [
            (Headers::empty(), O::RC_SEND_LAST, O::RC_SEND_ONLY),
            (Headers::IMM_DT, O::RC_SEND_LAST_WITH_IMMEDIATE, O::RC_SEND_ONLY_WITH_IMMEDIATE),
            (Headers::IETH, O::RC_SEND_LAST_WITH_INVALIDATE, O::RC_SEND_ONLY_WITH_INVALIDATE),
        ] {
            let expected = [send[0], send[1], last, only];
            assert_eq!(by_position(Operation::Send, trailer), expected);
        }
        let read = [O::RC_RDMA_READ_REQUEST; 4];
        assert_eq!(by_position(Operation::ReadRequest, Headers::empty()), read);
        assert_eq!(
            by_position(Operation::ReadResponse, Headers::empty()),
            [
                O::RC_RDMA_READ_RESPONSE_FIRST,
                O::RC_RDMA_READ_RESPONSE_MIDDLE,
                O::RC_RDMA_READ_RESPONSE_LAST,
                O::RC_RDMA_READ_RESPONSE_ONLY,
            ]
        );
    }

    #[test]
    fn requests_that_name_memory_need_a_right() {
        let names = Headers::RETH | Headers::ATOMIC_ETH;
        for info in Opcode::assigned().filter(|info| info.position.begins()) {
            let has_address = info.headers.intersects(names);
            assert_eq!(info.right != Right::None, has_address, "{info:?}");
            let is_request = info.role == Role::Request;
            let is_answered = info.operation.response() != crate::wire::Response::None;
            assert_eq!(is_answered, is_request, "{info:?}");
        }
    }

    #[test]
    fn only_packets_that_end_a_message_complete_a_receive() {
        for info in Opcode::assigned() {
            assert!(!info.receive.completes() || info.position.ends(), "{info:?}");
            assert!(info.receive == Receive::Untouched || info.role == Role::Request, "{info:?}");
        }
    }
}
