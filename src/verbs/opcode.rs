//! Opcodes of work requests and completions, and the one table of their properties.

use super::codes::codes;
use super::limits::ATOMIC_BYTES;
use super::{QpType, QpTypes};
use crate::wire::{Headers, Opcode, Operation, Right};

codes! {
    /// Opcode of a completion: `ibv_wc_opcode`.
    WcOpcode, "IBV_WC_" {
        /// A send, of any kind.
        Send = 0, "SEND", "send";
        /// A write, with or without immediate data.
        RdmaWrite = 1, "RDMA_WRITE", "rdma-write";
        /// A read.
        RdmaRead = 2, "RDMA_READ", "rdma-read";
        /// A compare and swap.
        CompSwap = 3, "COMP_SWAP", "comp-swap";
        // Rule: T-41.
        /// A fetch and add.
        FetchAdd = 4, "FETCH_ADD", "fetch-add";
        /// The binding of a memory window.
        BindMw = 5, "BIND_MW", "bind-mw";
        /// Invalidation of a local key.
        LocalInv = 6, "LOCAL_INV", "local-inv";
        /// A datagram that the device cut into segments.
        Tso = 7, "TSO", "tso";
        /// A flush.
        Flush = 8, "FLUSH", "flush";
        /// Eight bytes written at once.
        AtomicWrite = 9, "ATOMIC_WRITE", "atomic-write";
        /// The receipt of a send.
        Recv = 128, "RECV", "recv";
        /// The receipt of a write's immediate data.
        RecvRdmaWithImm = 129, "RECV_RDMA_WITH_IMM", "recv-rdma-with-imm";
        /// A tag was added to a list.
        TmAdd = 130, "TM_ADD", "tm-add";
        /// A tag was taken from a list.
        TmDel = 131, "TM_DEL", "tm-del";
        /// Tag matching was synchronized.
        TmSync = 132, "TM_SYNC", "tm-sync";
        /// The receipt of a message with a tag.
        TmRecv = 133, "TM_RECV", "tm-recv";
        /// The receipt of a message without a tag.
        TmNoTag = 134, "TM_NO_TAG", "tm-no-tag";
        /// Opcode reserved for drivers.
        Driver1 = 135, "DRIVER1", "driver1";
        /// Opcode reserved for drivers.
        Driver2 = 136, "DRIVER2", "driver2";
        /// Opcode reserved for drivers.
        Driver3 = 137, "DRIVER3", "driver3";
    }
}

impl WcOpcode {
    /// Whether a receive work request completed, rather than a send one.
    #[inline]
    pub const fn is_recv(self) -> bool {
        matches!(self, Self::Recv | Self::RecvRdmaWithImm | Self::TmRecv | Self::TmNoTag)
    }
}

codes! {
    /// Opcode of a send work request: `ibv_wr_opcode`.
    WrOpcode, "IBV_WR_" {
        /// Write to the peer's memory.
        RdmaWrite = 0, "RDMA_WRITE", "rdma-write";
        /// Write to the peer's memory, and complete a receive with four bytes.
        RdmaWriteWithImm = 1, "RDMA_WRITE_WITH_IMM", "rdma-write-with-imm";
        /// Fill a receive buffer of the peer.
        Send = 2, "SEND", "send";
        /// Fill a receive buffer of the peer, and hand over four bytes more.
        SendWithImm = 3, "SEND_WITH_IMM", "send-with-imm";
        /// Read the peer's memory.
        RdmaRead = 4, "RDMA_READ", "rdma-read";
        /// Replace eight bytes of the peer's if they are what is expected.
        AtomicCmpAndSwp = 5, "ATOMIC_CMP_AND_SWP", "atomic-cmp-and-swp";
        /// Add to eight bytes of the peer's.
        AtomicFetchAndAdd = 6, "ATOMIC_FETCH_AND_ADD", "atomic-fetch-and-add";
        /// Invalidate a local key.
        LocalInv = 7, "LOCAL_INV", "local-inv";
        /// Bind a memory window.
        BindMw = 8, "BIND_MW", "bind-mw";
        /// Fill a receive buffer of the peer, and invalidate one of its keys.
        SendWithInv = 9, "SEND_WITH_INV", "send-with-inv";
        /// Send a datagram that the device cuts into segments.
        Tso = 10, "TSO", "tso";
        /// Opcode reserved for drivers.
        Driver1 = 11, "DRIVER1", "driver1";
        /// Have what was written become visible or persistent.
        Flush = 14, "FLUSH", "flush";
        /// Write eight bytes of the peer's at once.
        AtomicWrite = 15, "ATOMIC_WRITE", "atomic-write";
    }
}

/// Use of a work request's local buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LocalData {
    /// Unused: buffers that are posted are ignored.
    Unused,
    /// Gathered: their bytes are sent.
    Gather,
    /// Scattered: the response's bytes are stored in them.
    Scatter,
}

/// Rule for the total length of a work request's local buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LengthRule {
    /// Any length up to the maximum length of a message.
    Any,
    /// This length exactly.
    Exactly(u32),
}

impl LengthRule {
    /// Whether `len` bytes will do.
    #[inline]
    pub const fn allows(self, len: u64) -> bool {
        match self {
            Self::Any => true,
            Self::Exactly(exact) => exact as u64 == len,
        }
    }
}

/// Properties of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrInfo {
    /// The opcode itself.
    pub opcode: WrOpcode,
    /// Opcode of the completion.
    pub completes_as: WcOpcode,
    /// Operation of its request packets, if it has any.
    pub operation: Option<Operation>,
    /// The header that only the packet has that ends its request: immediate data, a key to
    /// invalidate, or none.
    pub trailer: Headers,
    /// The queue pairs that it may be posted to.
    pub qp_types: QpTypes,
    /// Use of its local buffers.
    pub local: LocalData,
    /// Rule for their total length.
    pub length: LengthRule,
    /// Whether it needs an address and a key of the peer.
    pub remote: bool,
    /// Whether it takes one of the places that `max_rd_atomic` counts. A fence waits for these,
    /// too.
    pub rd_atomic: bool,
    /// Whether its data may be inline.
    pub inline: bool,
    /// Whether it takes a receive work request of the peer.
    pub takes_receive: bool,
    /// Whether it begins only after everything posted before it has ended.
    pub waits_for_all: bool,
}

impl WrOpcode {
    /// Returns the opcode of the completion.
    #[inline]
    pub const fn completes_as(self) -> WcOpcode {
        self.info().completes_as
    }

    /// Whether it may be posted to a queue pair of this kind.
    #[inline]
    pub const fn is_allowed_on(self, qp_type: QpType) -> bool {
        self.info().qp_types.has(qp_type)
    }
}

macro_rules! wrs {
    ($($opcode:ident => $completes:ident, $operation:ident$(+ $trailer:ident)?, [$($qp_type:ident)*],
        $local:ident $length:ident$(($bytes:ident))?, [$($fact:ident)*];)*) => {
        impl WrOpcode {
            /// Returns the properties of this opcode.
            #[inline(always)]
            pub const fn info(self) -> &'static WrInfo {
                match self {
                    $(Self::$opcode => {
                        const OPERATION: Option<Operation> = wrs!(@operation $operation);
                        const TRAILER: Headers = Headers::empty()$(.union(Headers::$trailer))?;
                        const INFO: WrInfo = WrInfo { $($fact: true,)* ..WrInfo {
                            opcode: WrOpcode::$opcode,
                            completes_as: WcOpcode::$completes,
                            operation: OPERATION,
                            trailer: TRAILER,
                            qp_types: QpTypes::empty()$(.union(QpTypes::$qp_type))*,
                            local: LocalData::$local,
                            length: LengthRule::$length$(($bytes))?,
                            remote: names_memory(OPERATION),
                            rd_atomic: counts_as_rd_atomic(OPERATION),
                            inline: false,
                            takes_receive: takes_receive(OPERATION, TRAILER),
                            waits_for_all: false,
                        } };
                        &INFO
                    })*
                }
            }
        }
    };
    (@operation Nothing) => { None };
    (@operation $operation:ident) => { Some(Operation::$operation) };
}

// What the opcodes of its packets say about a work request.

const fn names_memory(operation: Option<Operation>) -> bool {
    match operation {
        Some(operation) => !matches!(operation.right(), Right::None),
        None => false,
    }
}

const fn counts_as_rd_atomic(operation: Option<Operation>) -> bool {
    match operation {
        Some(operation) => operation.counts_as_rd_atomic(),
        None => false,
    }
}

const fn takes_receive(operation: Option<Operation>, trailer: Headers) -> bool {
    let Some(operation) = operation else { return false };
    let [.., only] = Opcode::of_message(operation, trailer);
    match only.info() {
        Some(info) => info.receive.takes(),
        None => false,
    }
}

// Opcode => completion, operation on the wire and its trailer, where allowed, local buffers and
// their length, what holds of it.
//
// An atomic whose buffers are not eight bytes long can be posted, and completes with a local length
// error.
//
// The manual lists SEND_WITH_INV for UC, too; but no packet of that service carries a key to
// invalidate.
wrs! {
    // Rule: T-33.
    RdmaWrite => RdmaWrite, Write, [RC UC XRC_SEND], Gather Any, [inline];
    RdmaWriteWithImm => RdmaWrite, Write + IMM_DT, [RC UC XRC_SEND], Gather Any, [inline];
    Send => Send, Send, [RC UC UD GSI XRC_SEND RAW_PACKET], Gather Any, [inline];
    SendWithImm => Send, Send + IMM_DT, [RC UC UD GSI XRC_SEND], Gather Any, [inline];
    RdmaRead => RdmaRead, ReadRequest, [RC XRC_SEND], Scatter Any, [];
    AtomicCmpAndSwp => CompSwap, CompareSwap, [RC XRC_SEND], Scatter Any, [];
    AtomicFetchAndAdd => FetchAdd, FetchAdd, [RC XRC_SEND], Scatter Any, [];
    LocalInv => LocalInv, Nothing, [RC UC XRC_SEND], Unused Any, [waits_for_all];
    BindMw => BindMw, Nothing, [RC UC XRC_SEND], Unused Any, [];
    SendWithInv => Send, Send + IETH, [RC XRC_SEND], Gather Any, [inline];
    Tso => Tso, Nothing, [UD RAW_PACKET], Gather Any, [];
    Driver1 => Driver1, Nothing, [], Unused Any, [];
    Flush => Flush, Flush, [RC XRC_SEND], Unused Any, [];
    AtomicWrite => AtomicWrite, AtomicWrite, [RC XRC_SEND], Gather Exactly(ATOMIC_BYTES), [inline];
}
