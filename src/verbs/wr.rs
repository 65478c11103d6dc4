//! Work requests, as callers post them.
//!
//! `ibv_send_wr` is one structure for every operation, and most of its fields mean nothing for most
//! of them. Here an operation carries what it needs and nothing else, so that a read with immediate
//! data cannot be written down. What depends on the queue pair ([`SendWr::check`]) is left to be
//! found out when it is posted.

use super::{
    Access, FlushLevel, FlushPlacement, LKey, LocalData, PostError, QpCap, QpType, QpTypes,
    SendFlags, WrId, WrInfo, WrOpcode,
};
use crate::verbs::AhHandle;
use crate::wire::{QKey, Qpn, RKey, XrcSrqn};

/// A piece of local memory: `ibv_sge`, and laid out like it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Start address.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of its memory region.
    pub lkey: LKey,
}

/// The local data of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data<'a> {
    /// Registered memory: its bytes are sent, or, if the operation is one that is answered with
    /// data, the answer is put there. With [`SendFlags::INLINE`] the bytes at these addresses are
    /// copied when the request is posted, and the keys do not matter: that is how C has it, and
    /// it needs the right to read any address.
    Gather(&'a [Sge]),
    /// The bytes themselves, which are copied when the request is posted; the flag need not be set.
    Inline(&'a [u8]),
}

impl Data<'_> {
    /// No data.
    pub const EMPTY: Self = Self::Gather(&[]);

    /// Returns the number of bytes.
    #[inline]
    pub fn byte_len(&self) -> u64 {
        match self {
            Self::Gather(sges) => sges.iter().map(|sge| u64::from(sge.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdTarget {
    /// The way to the peer.
    pub ah: AhHandle,
    /// The peer's queue pair.
    pub qpn: Qpn,
    /// The key to it. With the highest bit set, the sender's own key is sent instead.
    pub qkey: QKey,
}

/// Destination of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// The one peer of a connected queue pair.
    #[default]
    Peer,
    /// A peer of a datagram queue pair.
    Ud(UdTarget),
    /// A shared receive queue of the peer, over an extended reliable connection.
    Xrc(XrcSrqn),
}

/// Memory that a window opens: `ibv_mw_bind_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MwBind {
    /// The memory region, by its local key.
    pub mr: LKey,
    /// Start address of the window.
    pub addr: u64,
    /// Length of the window in bytes.
    pub length: u64,
    /// Access rights through the window.
    pub access: Access,
}

/// Operation of a send work request, with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Fill a receive buffer of the peer.
    Send {
        /// Four bytes more to hand over, in the order they are sent.
        imm: Option<[u8; 4]>,
    },
    /// Fill a receive buffer of the peer, and invalidate one of its keys.
    SendWithInv {
        /// The key.
        rkey: RKey,
    },
    /// Write to the peer's memory.
    Write {
        /// Remote address.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
        /// Four bytes to complete a receive with, in the order they are sent.
        imm: Option<[u8; 4]>,
    },
    /// Read the peer's memory.
    Read {
        /// Remote address.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
    },
    /// Replace eight bytes of the peer's if they are what is expected; get what they were.
    CompareSwap {
        /// Remote address.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
        /// Expected value.
        compare: u64,
        /// Value that replaces it.
        swap: u64,
    },
    /// Add to eight bytes of the peer's; get what they were.
    FetchAdd {
        /// Remote address.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
        /// Value to add.
        add: u64,
    },
    /// Write eight bytes of the peer's at once.
    AtomicWrite {
        /// Remote address.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
    },
    /// Have what was written become visible or persistent.
    Flush {
        /// Remote address.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
        /// Number of bytes; meaningless for a whole region.
        length: u32,
        /// Placement type.
        placement: FlushPlacement,
        /// Selectivity level.
        level: FlushLevel,
    },
    /// Invalidate a local key.
    LocalInv {
        /// The key.
        rkey: RKey,
    },
    /// Bind a memory window.
    BindMw {
        /// The window, by any key it had: the upper 24 bits, its index, count.
        mw: RKey,
        /// The key it shall have, of which the lower 8 bits count.
        rkey: RKey,
        /// Memory that the window opens.
        bind: MwBind,
    },
}

impl SendOp {
    /// Returns the opcode.
    #[inline]
    pub const fn opcode(&self) -> WrOpcode {
        match self {
            Self::Send { imm: None } => WrOpcode::Send,
            Self::Send { imm: Some(_) } => WrOpcode::SendWithImm,
            Self::SendWithInv { .. } => WrOpcode::SendWithInv,
            Self::Write { imm: None, .. } => WrOpcode::RdmaWrite,
            Self::Write { imm: Some(_), .. } => WrOpcode::RdmaWriteWithImm,
            Self::Read { .. } => WrOpcode::RdmaRead,
            Self::CompareSwap { .. } => WrOpcode::AtomicCmpAndSwp,
            Self::FetchAdd { .. } => WrOpcode::AtomicFetchAndAdd,
            Self::AtomicWrite { .. } => WrOpcode::AtomicWrite,
            Self::Flush { .. } => WrOpcode::Flush,
            Self::LocalInv { .. } => WrOpcode::LocalInv,
            Self::BindMw { .. } => WrOpcode::BindMw,
        }
    }

    /// The immediate data, if it has any.
    #[inline]
    pub const fn imm(&self) -> Option<[u8; 4]> {
        match self {
            Self::Send { imm } | Self::Write { imm, .. } => *imm,
            _ => None,
        }
    }

    /// The address at the peer and the key to it, if it needs any.
    #[inline]
    pub const fn remote(&self) -> Option<(u64, RKey)> {
        match *self {
            Self::Write { remote_addr, rkey, .. }
            | Self::Read { remote_addr, rkey }
            | Self::CompareSwap { remote_addr, rkey, .. }
            | Self::FetchAdd { remote_addr, rkey, .. }
            | Self::AtomicWrite { remote_addr, rkey }
            | Self::Flush { remote_addr, rkey, .. } => Some((remote_addr, rkey)),
            Self::Send { .. }
            | Self::SendWithInv { .. }
            | Self::LocalInv { .. }
            | Self::BindMw { .. } => None,
        }
    }
}

/// A send work request: `ibv_send_wr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendWr<'a> {
    /// Identifier of the completion.
    pub id: WrId,
    /// The local data. Operations that have none ignore it.
    pub data: Data<'a>,
    /// Flags.
    pub flags: SendFlags,
    /// Destination.
    pub target: Target,
    /// Operation.
    pub op: SendOp,
}

impl<'a> SendWr<'a> {
    /// A signaled request to the one peer that a connected queue pair has.
    pub const fn new(id: WrId, op: SendOp, data: Data<'a>) -> Self {
        Self { id, data, flags: SendFlags::SIGNALED, target: Target::Peer, op }
    }

    /// Returns the opcode.
    #[inline]
    pub const fn opcode(&self) -> WrOpcode {
        self.op.opcode()
    }

    /// Whether its data is copied when it is posted.
    #[inline]
    pub const fn is_inline(&self) -> bool {
        matches!(self.data, Data::Inline(_)) || self.flags.contains(SendFlags::INLINE)
    }

    /// The length of its message, in bytes: what is sent, or what is asked for. Zero if it has no
    /// message.
    #[inline]
    pub fn message_len(&self) -> u64 {
        match (self.op, self.opcode().info().local) {
            (SendOp::Flush { length, level: FlushLevel::Range, .. }, _) => u64::from(length),
            (_, LocalData::Unused) => 0,
            (_, LocalData::Gather | LocalData::Scatter) => self.data.byte_len(),
        }
    }

    /// Whether a queue pair of this kind, made with these sizes, can take it. Its state, and queue
    /// space, are checked by the QP. `message_max` is how long a message may be: for datagrams that
    /// is the MTU, if they are to be refused here rather than to complete with an error. Returns
    /// the length of the message.
    #[inline]
    pub fn check(&self, qp_type: QpType, cap: &QpCap, message_max: u64) -> Result<u64, PostError> {
        self.check_as(self.opcode().info(), qp_type, cap, message_max)
    }

    /// Checks it as [`check`](Self::check) does, with the properties of its opcode.
    #[inline(always)]
    pub(crate) fn check_as(
        &self,
        info: &WrInfo,
        qp_type: QpType,
        cap: &QpCap,
        message_max: u64,
    ) -> Result<u64, PostError> {
        if !qp_type.has_send_queue() {
            return Err(PostError::NoSendQueue);
        }
        let opcode = info.opcode;
        // Rule: Q-31.
        if !info.qp_types.has(qp_type) {
            return Err(PostError::NotAllowedOnQpType { opcode, qp_type });
        }
        if info.operation.is_some() && !self.target.suits(qp_type) {
            return Err(PostError::MissingAddress(qp_type));
        }
        if info.local == LocalData::Unused {
            return Ok(self.message_len());
        }
        self.check_data(info, cap)?;
        let len = self.data.byte_len();
        if !info.length.allows(len) {
            return Err(PostError::WrongLength { opcode, len });
        }
        if len > message_max {
            return Err(PostError::MessageTooLong { len, max: message_max });
        }
        Ok(len)
    }

    #[inline]
    fn check_data(&self, info: &WrInfo, cap: &QpCap) -> Result<(), PostError> {
        // Rule: V-01.4.
        if let Data::Gather(sges) = self.data {
            check_sges(sges, cap.max_send_sge)?;
        }
        if !self.is_inline() {
            return Ok(());
        }
        if !info.inline {
            return Err(PostError::InlineNotAllowed(info.opcode));
        }
        let (len, max) = (self.data.byte_len(), cap.max_inline_data);
        if len > u64::from(max) { Err(PostError::InlineTooLong { len, max }) } else { Ok(()) }
    }
}

impl Target {
    /// Whether it says all that a queue pair of this kind must be told.
    #[inline]
    pub const fn suits(&self, qp_type: QpType) -> bool {
        // Rule: T-35.
        match self {
            Self::Peer => !QpTypes::DATAGRAM.union(QpTypes::XRC).has(qp_type),
            Self::Ud(_) => QpTypes::DATAGRAM.has(qp_type),
            Self::Xrc(_) => QpTypes::XRC.has(qp_type),
        }
    }
}

/// A receive work request: `ibv_recv_wr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvWr<'a> {
    /// Identifier of the completion.
    pub id: WrId,
    /// Buffers for the message.
    pub sges: &'a [Sge],
}

impl RecvWr<'_> {
    /// Returns the number of bytes that fit.
    #[inline]
    pub fn byte_len(&self) -> u64 {
        Data::Gather(self.sges).byte_len()
    }

    /// Whether a queue whose work requests have at most `max_sge` entries can take it. Queue space
    /// is checked by the QP.
    pub const fn check(&self, max_sge: u32) -> Result<(), PostError> {
        check_sges(self.sges, max_sge)
    }
}

const fn check_sges(sges: &[Sge], max: u32) -> Result<(), PostError> {
    if sges.len() > max as usize {
        return Err(PostError::TooManySges { count: sges.len(), max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP: QpCap = QpCap {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 2,
        max_recv_sge: 1,
        max_inline_data: 16,
    };
    const MAX: u64 = 1 << 31;
    const RKEY: RKey = RKey::new(1);

    fn sge(length: u32) -> Sge {
        Sge { addr: 0x1000, length, lkey: LKey::new(5) }
    }

    fn check(op: SendOp, data: Data<'_>, qp_type: QpType) -> Result<(), PostError> {
        let target = match qp_type {
            QpType::Ud | QpType::Gsi => {
                Target::Ud(UdTarget { ah: AhHandle::from_c(1), qpn: Qpn::GSI, qkey: QKey::GSI })
            }
            QpType::XrcSend => Target::Xrc(XrcSrqn::new(1)),
            _ => Target::Peer,
        };
        let wr = SendWr { target, ..SendWr::new(WrId(1), op, data) };
        let checked = wr.check(qp_type, &CAP, MAX);
        assert!(checked.is_err() || checked == Ok(wr.message_len()));
        checked.map(drop)
    }

    const SEND: SendOp = SendOp::Send { imm: None };
    const READ: SendOp = SendOp::Read { remote_addr: 0, rkey: RKEY };
    const ADD: SendOp = SendOp::FetchAdd { remote_addr: 0, rkey: RKEY, add: 1 };
    const STORE: SendOp = SendOp::AtomicWrite { remote_addr: 0, rkey: RKEY };
    const INVALIDATE: SendOp = SendOp::LocalInv { rkey: RKEY };

    #[test]
    fn a_queue_pair_takes_what_its_kind_allows() {
        for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::Gsi] {
            assert_eq!(check(SEND, Data::Gather(&[sge(9), sge(0)]), qp_type), Ok(()));
        }
        let refused =
            PostError::NotAllowedOnQpType { opcode: WrOpcode::RdmaRead, qp_type: QpType::Uc };
        assert_eq!(check(READ, Data::EMPTY, QpType::Uc), Err(refused));
        assert_eq!(refused.to_string(), "rdma-read is not allowed on UC");
        assert_eq!(check(SEND, Data::EMPTY, QpType::XrcRecv), Err(PostError::NoSendQueue));
    }

    #[test]
    fn a_message_needs_a_target_of_its_queue_pairs_kind() {
        // Rule: T-35.
        let ud = UdTarget { ah: AhHandle::from_c(1), qpn: Qpn::GSI, qkey: QKey::GSI };
        let targets = [Target::Peer, Target::Ud(ud), Target::Xrc(XrcSrqn::new(1))];
        let kinds = [
            (QpType::Rc, 0),
            (QpType::Uc, 0),
            (QpType::RawPacket, 0),
            (QpType::Ud, 1),
            (QpType::Gsi, 1),
            (QpType::XrcSend, 2),
        ];
        for (qp_type, suitable) in kinds {
            for (at, target) in targets.into_iter().enumerate() {
                let wr = SendWr { target, ..SendWr::new(WrId(1), SEND, Data::EMPTY) };
                let missing = Err(PostError::MissingAddress(qp_type));
                let expected = if at == suitable { Ok(()) } else { missing };
                assert_eq!(
                    wr.check(qp_type, &CAP, MAX).map(drop),
                    expected,
                    "{qp_type} {target:?}"
                );
            }
        }
        // What never leaves the device needs no target.
        let local = SendWr::new(WrId(1), INVALIDATE, Data::EMPTY);
        assert_eq!(local.check(QpType::XrcSend, &CAP, MAX), Ok(0));
    }

    #[test]
    fn data_fits_the_queue() {
        let three = [sge(1); 3];
        let many = PostError::TooManySges { count: 3, max: 2 };
        assert_eq!(check(SEND, Data::Gather(&three), QpType::Rc), Err(many));
        assert_eq!(RecvWr { id: WrId(1), sges: &three }.check(3), Ok(()));
        assert_eq!(RecvWr { id: WrId(1), sges: &three }.check(2), Err(many));
        assert_eq!(RecvWr { id: WrId(1), sges: &three }.byte_len(), 3);
        // What has no data ignores what lies about.
        assert_eq!(check(INVALIDATE, Data::Gather(&three), QpType::Rc), Ok(()));

        let halves = [sge(1 << 30), sge((1 << 30) + 1)];
        let long = PostError::MessageTooLong { len: (1 << 31) + 1, max: MAX };
        assert_eq!(check(SEND, Data::Gather(&halves), QpType::Rc), Err(long));
        assert_eq!(check(READ, Data::Gather(&halves), QpType::Rc), Err(long));
        assert_eq!(check(SEND, Data::Gather(&[sge(1 << 31)]), QpType::Rc), Ok(()));
        let whole = [sge(u32::MAX), sge(u32::MAX)];
        assert_eq!(Data::Gather(&whole).byte_len(), 2 * u64::from(u32::MAX));
    }

    #[test]
    fn inline_data_fits_the_queue_and_goes_out() {
        assert_eq!(check(SEND, Data::Inline(&[0; 16]), QpType::Rc), Ok(()));
        let long = PostError::InlineTooLong { len: 17, max: 16 };
        assert_eq!(check(SEND, Data::Inline(&[0; 17]), QpType::Rc), Err(long));
        let read = PostError::InlineNotAllowed(WrOpcode::RdmaRead);
        assert_eq!(check(READ, Data::Inline(&[0; 8]), QpType::Rc), Err(read));

        let sges = [sge(17)];
        let flags = SendFlags::INLINE;
        let wr = SendWr { flags, ..SendWr::new(WrId(1), SEND, Data::Gather(&sges)) };
        assert!(wr.is_inline());
        assert_eq!(wr.check(QpType::Rc, &CAP, MAX), Err(long));
    }

    #[test]
    fn atomics_work_on_eight_bytes() {
        for len in 0..=16 {
            let found = check(STORE, Data::Gather(&[sge(len)]), QpType::Rc);
            let wrong = PostError::WrongLength { opcode: STORE.opcode(), len: len.into() };
            assert_eq!(found, if len == 8 { Ok(()) } else { Err(wrong) });
            // Of the others that is found out when they are executed.
            assert_eq!(check(ADD, Data::Gather(&[sge(len)]), QpType::Rc), Ok(()));
        }
        let sges = [sge(64)];
        assert_eq!(SendWr::new(WrId(1), READ, Data::Gather(&sges)).message_len(), 64);
        assert_eq!(SendWr::new(WrId(1), INVALIDATE, Data::Gather(&sges)).message_len(), 0);
    }

    #[test]
    fn a_flush_is_as_long_as_it_says_or_covers_all() {
        let placement = FlushPlacement::GLOBAL;
        let flush = |level| {
            let op = SendOp::Flush { remote_addr: 0, rkey: RKEY, length: 9, placement, level };
            SendWr::new(WrId(1), op, Data::EMPTY).message_len()
        };
        assert_eq!((flush(FlushLevel::Range), flush(FlushLevel::Mr)), (9, 0));
    }

    #[test]
    fn an_operation_has_an_address_just_where_the_table_says() {
        let imm = Some([1, 2, 3, 4]);
        let bind = MwBind { mr: LKey::new(1), addr: 0, length: 1, access: Access::REMOTE_READ };
        let (remote_addr, rkey, level) = (8, RKEY, FlushLevel::Mr);
        let placement = FlushPlacement::GLOBAL;
        let ops = [
            (SEND, WrOpcode::Send),
            (SendOp::Send { imm }, WrOpcode::SendWithImm),
            (SendOp::SendWithInv { rkey }, WrOpcode::SendWithInv),
            (SendOp::Write { remote_addr, rkey, imm: None }, WrOpcode::RdmaWrite),
            (SendOp::Write { remote_addr, rkey, imm }, WrOpcode::RdmaWriteWithImm),
            (READ, WrOpcode::RdmaRead),
            (
                SendOp::CompareSwap { remote_addr, rkey, compare: 0, swap: 1 },
                WrOpcode::AtomicCmpAndSwp,
            ),
            (ADD, WrOpcode::AtomicFetchAndAdd),
            (STORE, WrOpcode::AtomicWrite),
            (SendOp::Flush { remote_addr, rkey, length: 1, placement, level }, WrOpcode::Flush),
            (INVALIDATE, WrOpcode::LocalInv),
            (SendOp::BindMw { mw: rkey, rkey, bind }, WrOpcode::BindMw),
        ];
        for (op, opcode) in ops {
            assert_eq!(op.opcode(), opcode);
            assert_eq!(op.remote().is_some(), opcode.info().remote, "{opcode}");
            let with_imm = [WrOpcode::SendWithImm, WrOpcode::RdmaWriteWithImm].contains(&opcode);
            assert_eq!(op.imm(), if with_imm { imm } else { None }, "{opcode}");
        }
        // All but what no portable program asks for.
        assert_eq!(ops.len() + 2, WrOpcode::ALL.len());
    }
}
