//! Work requests and completions.
#![allow(unsafe_code, reason = "unions and pointers of C programs")]

use core::ptr;

use super::super::{
    ibv_ah, ibv_mr, ibv_mw, ibv_mw_bind_info, ibv_recv_wr, ibv_send_wr, ibv_send_wr_atomic,
    ibv_send_wr_bind_mw, ibv_send_wr_more, ibv_send_wr_peer, ibv_send_wr_qp_type, ibv_send_wr_rdma,
    ibv_send_wr_ud, ibv_send_wr_xrc, ibv_sge, ibv_wc,
};
use crate::verbs::{
    Access, AhHandle, Data, LKey, MwBind, PostError, QpType, RecvWr, SendFlags, SendOp, SendWr,
    Sge, Target, UdTarget, Wc, WcFlags, WcOpcode, WcStatus, WrId, WrOpcode,
};
use crate::wire::{QKey, Qpn, RKey, XrcSrqn};

// `sges` takes a list of `ibv_sge` for a list of `Sge`.
const _: () = assert!(size_of::<Sge>() == size_of::<ibv_sge>());
const _: () = assert!(align_of::<Sge>() == align_of::<ibv_sge>());
const _: () = assert!(core::mem::offset_of!(Sge, addr) == core::mem::offset_of!(ibv_sge, addr));
const _: () = assert!(core::mem::offset_of!(Sge, length) == core::mem::offset_of!(ibv_sge, length));
const _: () = assert!(core::mem::offset_of!(Sge, lkey) == core::mem::offset_of!(ibv_sge, lkey));

impl From<Sge> for ibv_sge {
    fn from(sge: Sge) -> Self {
        Self { addr: sge.addr, length: sge.length, lkey: sge.lkey.get() }
    }
}

impl From<ibv_sge> for Sge {
    fn from(sge: ibv_sge) -> Self {
        Self { addr: sge.addr, length: sge.length, lkey: LKey::new(sge.lkey) }
    }
}

impl From<Wc> for ibv_wc {
    #[inline]
    fn from(wc: Wc) -> Self {
        Self {
            wr_id: wc.id.0,
            status: wc.status.code(),
            opcode: wc.opcode.code(),
            vendor_err: u32::from(wc.vendor_err),
            byte_len: wc.byte_len,
            imm_data: u32::from_ne_bytes(wc.imm_or_rkey()),
            qp_num: wc.qp_num.get(),
            src_qp: wc.src_qp.get(),
            wc_flags: u32::from(wc.flags().bits()),
            pkey_index: wc.pkey_index,
            slid: 0,
            sl: wc.sl,
            dlid_path_bits: 0,
        }
    }
}

impl ibv_wc {
    /// Converts the completion to a [`Wc`]; returns `None` if it has an unknown value.
    pub fn to_wc(&self) -> Option<Wc> {
        let (status, opcode) =
            (WcStatus::from_code(self.status)?, WcOpcode::from_code(self.opcode));
        // The opcode of a failed work request is undefined.
        let opcode = if status.is_success() { opcode? } else { opcode.unwrap_or(WcOpcode::Send) };
        let mut wc = Wc::new(WrId(self.wr_id), status, opcode, Qpn::new(self.qp_num));
        let flags = WcFlags::from_bits_truncate(self.wc_flags.to_le_bytes()[0]);
        if flags.contains(WcFlags::WITH_IMM) {
            wc = wc.with_imm(self.imm_data.to_ne_bytes());
        } else if flags.contains(WcFlags::WITH_INV) {
            wc = wc.with_invalidated(RKey::new(self.imm_data));
        }
        if flags.contains(WcFlags::GRH) {
            wc = wc.with_datagram(Qpn::new(self.src_qp));
        }
        wc.byte_len = self.byte_len;
        wc.src_qp = Qpn::new(self.src_qp);
        wc.pkey_index = self.pkey_index;
        wc.vendor_err = u16::try_from(self.vendor_err).unwrap_or(u16::MAX);
        wc.sl = self.sl;
        Some(wc)
    }
}

/// Returns the gather or scatter list of a work request of C, without copying it.
///
/// # Safety
///
/// `list` must point to `count` of them, be aligned, and stay as it is while it is borrowed; with a
/// count of zero or less it may be anything.
#[inline]
pub unsafe fn sges<'a>(list: *const ibv_sge, count: i32) -> &'a [Sge] {
    match usize::try_from(count) {
        // SAFETY: the caller vouches for the list, and the two are laid out alike, as is asserted
        // above.
        Ok(count) if count > 0 => unsafe { core::slice::from_raw_parts(list.cast::<Sge>(), count) },
        _ => &[],
    }
}

impl ibv_recv_wr {
    /// Converts the receive work request to a [`RecvWr`].
    ///
    /// # Safety
    ///
    /// The scatter list must be as `ibv_post_recv` wants it: see [`sges`].
    #[inline]
    pub unsafe fn to_recv_wr(&self) -> RecvWr<'_> {
        // SAFETY: the caller vouches for it.
        RecvWr { id: WrId(self.wr_id), sges: unsafe { sges(self.sg_list, self.num_sge) } }
    }
}

impl ibv_send_wr {
    /// Converts the send work request to a [`SendWr`] for a queue pair of type `qp_type`. Its data
    /// is its gather list; if it is inline, the caller that posts it must copy the bytes.
    ///
    /// # Safety
    ///
    /// It must be as `ibv_post_send` wants it: its list, and the address handle, window and region
    /// that its operation and its queue pair need, must be what they say.
    #[inline]
    pub unsafe fn to_send_wr(&self, qp_type: QpType) -> Result<SendWr<'_>, PostError> {
        let opcode =
            WrOpcode::from_code(self.opcode).ok_or(PostError::UnknownOpcode(self.opcode))?;
        // Checked first: on UD, the address handle is where a READ has its remote address.
        if !opcode.is_allowed_on(qp_type) {
            return Err(PostError::NotAllowedOnQpType { opcode, qp_type });
        }
        // SAFETY: the caller vouches for it.
        let sges = unsafe { sges(self.sg_list, self.num_sge) };
        // SAFETY: the caller vouches for it.
        let op = unsafe { self.operation(opcode) }?;
        // SAFETY: the caller vouches for it.
        let target = unsafe { self.target(qp_type, opcode) }?;
        let flags = SendFlags::from_bits_truncate(self.send_flags);
        Ok(SendWr { id: WrId(self.wr_id), data: Data::Gather(sges), flags, target, op })
    }

    /// Returns the operation with its parameters.
    ///
    /// # Safety
    ///
    /// As for [`to_send_wr`](Self::to_send_wr).
    #[inline]
    unsafe fn operation(&self, opcode: WrOpcode) -> Result<SendOp, PostError> {
        // SAFETY: numbers, whatever the program left there.
        let rdma = || unsafe { self.wr.rdma };
        // SAFETY: numbers, whatever the program left there.
        let atomic = || unsafe { self.wr.atomic };
        let imm = Some(self.imm_data.to_ne_bytes());
        Ok(match opcode {
            WrOpcode::Send => SendOp::Send { imm: None },
            WrOpcode::SendWithImm => SendOp::Send { imm },
            WrOpcode::SendWithInv => SendOp::SendWithInv { rkey: RKey::new(self.imm_data) },
            WrOpcode::LocalInv => SendOp::LocalInv { rkey: RKey::new(self.imm_data) },
            WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => {
                let ibv_send_wr_rdma { remote_addr, rkey } = rdma();
                let imm = imm.filter(|_| opcode == WrOpcode::RdmaWriteWithImm);
                SendOp::Write { remote_addr, rkey: RKey::new(rkey), imm }
            }
            WrOpcode::RdmaRead => {
                let ibv_send_wr_rdma { remote_addr, rkey } = rdma();
                SendOp::Read { remote_addr, rkey: RKey::new(rkey) }
            }
            WrOpcode::AtomicWrite => {
                let ibv_send_wr_rdma { remote_addr, rkey } = rdma();
                SendOp::AtomicWrite { remote_addr, rkey: RKey::new(rkey) }
            }
            WrOpcode::AtomicCmpAndSwp => {
                let ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey } = atomic();
                let rkey = RKey::new(rkey);
                SendOp::CompareSwap { remote_addr, rkey, compare: compare_add, swap }
            }
            WrOpcode::AtomicFetchAndAdd => {
                let ibv_send_wr_atomic { remote_addr, compare_add, rkey, .. } = atomic();
                SendOp::FetchAdd { remote_addr, rkey: RKey::new(rkey), add: compare_add }
            }
            WrOpcode::BindMw => {
                // SAFETY: numbers and pointers, whatever the program left there.
                let ibv_send_wr_bind_mw { mw, rkey, bind_info } = unsafe { self.more.bind_mw };
                // SAFETY: the caller vouches for the window.
                let mw = unsafe { mw.as_ref() }.ok_or(PostError::Unsupported)?;
                // SAFETY: the caller vouches for the region.
                unsafe { bind_mw(RKey::new(mw.rkey), RKey::new(rkey), &bind_info) }?
            }
            // Only `ibv_wr_flush` can post a FLUSH.
            WrOpcode::Tso | WrOpcode::Driver1 | WrOpcode::Flush => {
                return Err(PostError::Unsupported);
            }
        })
    }

    /// Returns the destination.
    ///
    /// # Safety
    ///
    /// As for [`to_send_wr`](Self::to_send_wr).
    #[inline]
    unsafe fn target(&self, qp_type: QpType, opcode: WrOpcode) -> Result<Target, PostError> {
        if opcode.info().operation.is_none() {
            return Ok(Target::Peer);
        }
        match qp_type {
            QpType::Ud | QpType::Gsi => {
                // SAFETY: numbers and a pointer, whatever the program left there.
                let ibv_send_wr_ud { ah, remote_qpn, remote_qkey } = unsafe { self.wr.ud };
                // SAFETY: the caller vouches for the address handle.
                let ah = unsafe { ah.as_ref() }.ok_or(PostError::MissingAddress(qp_type))?;
                let (qpn, qkey) = (Qpn::new(remote_qpn), QKey::new(remote_qkey));
                Ok(Target::Ud(UdTarget { ah: AhHandle::from_c(ah.handle), qpn, qkey }))
            }
            QpType::XrcSend | QpType::XrcRecv => {
                // SAFETY: a number, whatever the program left there.
                let ibv_send_wr_xrc { remote_srqn } = unsafe { self.qp_type.xrc };
                Ok(Target::Xrc(XrcSrqn::new(remote_srqn)))
            }
            _ => Ok(Target::Peer),
        }
    }
}

/// Returns the operation that binds a window and changes its key from `mw` to `rkey`.
///
/// # Safety
///
/// The region in `info` must be valid, or null.
pub unsafe fn bind_mw(mw: RKey, rkey: RKey, info: &ibv_mw_bind_info) -> Result<SendOp, PostError> {
    // SAFETY: the caller vouches for it.
    let mr = unsafe { info.mr.as_ref() };
    let bind = MwBind {
        mr: LKey::new(mr.map_or(0, |mr| mr.lkey)),
        addr: info.addr,
        length: info.length,
        access: Access::from_user(info.mw_access_flags).ok_or(PostError::Unsupported)?,
    };
    Ok(SendOp::BindMw { mw, rkey, bind })
}

/// Objects of C that a [`SendWr`] names by handles and keys.
#[derive(Clone, Copy, Debug)]
pub struct SendObjects {
    /// The address handle of a datagram.
    pub ah: *mut ibv_ah,
    /// The window to bind.
    pub mw: *mut ibv_mw,
    /// Region that the window is bound to.
    pub mr: *mut ibv_mr,
}

impl Default for SendObjects {
    /// Returns a table without objects.
    fn default() -> Self {
        Self { ah: ptr::null_mut(), mw: ptr::null_mut(), mr: ptr::null_mut() }
    }
}

/// Converts a send to a work request of C. Its gather list is `list`, which holds what `wr.data`
/// holds. Returns `None` if `ibv_post_send` cannot post the operation.
pub fn send_wr(wr: &SendWr<'_>, list: &[ibv_sge], objects: SendObjects) -> Option<ibv_send_wr> {
    let mut c = ibv_send_wr {
        wr_id: wr.id.0,
        sg_list: list.as_ptr().cast_mut(),
        num_sge: i32::try_from(list.len()).ok()?,
        opcode: wr.opcode().code(),
        send_flags: (wr.flags
            | if wr.is_inline() { SendFlags::INLINE } else { SendFlags::empty() })
        .bits(),
        ..ibv_send_wr::zeroed()
    };
    if let Some((remote_addr, rkey)) = wr.op.remote() {
        c.wr = ibv_send_wr_peer { rdma: ibv_send_wr_rdma { remote_addr, rkey: rkey.get() } };
    }
    match wr.op {
        SendOp::Send { imm } | SendOp::Write { imm, .. } => {
            c.imm_data = u32::from_ne_bytes(imm.unwrap_or_default());
        }
        SendOp::SendWithInv { rkey } | SendOp::LocalInv { rkey } => c.imm_data = rkey.get(),
        SendOp::CompareSwap { remote_addr, rkey, compare, swap } => {
            let (compare_add, rkey) = (compare, rkey.get());
            let atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap, rkey };
            c.wr = ibv_send_wr_peer { atomic };
        }
        SendOp::FetchAdd { remote_addr, rkey, add } => {
            let (compare_add, rkey) = (add, rkey.get());
            let atomic = ibv_send_wr_atomic { remote_addr, compare_add, swap: 0, rkey };
            c.wr = ibv_send_wr_peer { atomic };
        }
        SendOp::BindMw { rkey, bind, .. } => {
            let bind_info = ibv_mw_bind_info {
                mr: objects.mr,
                addr: bind.addr,
                length: bind.length,
                mw_access_flags: bind.access.bits(),
            };
            let bind_mw = ibv_send_wr_bind_mw { mw: objects.mw, rkey: rkey.get(), bind_info };
            c.more = ibv_send_wr_more { bind_mw };
        }
        SendOp::Read { .. } | SendOp::AtomicWrite { .. } => {}
        SendOp::Flush { .. } => return None,
    }
    match wr.target {
        Target::Peer => {}
        Target::Ud(UdTarget { qpn, qkey, .. }) => {
            let (remote_qpn, remote_qkey) = (qpn.get(), qkey.get());
            let ud = ibv_send_wr_ud { ah: objects.ah, remote_qpn, remote_qkey };
            c.wr = ibv_send_wr_peer { ud };
        }
        Target::Xrc(srqn) => {
            let xrc = ibv_send_wr_xrc { remote_srqn: srqn.get() };
            c.qp_type = ibv_send_wr_qp_type { xrc };
        }
    }
    Some(c)
}

/// Returns a receive work request of C whose scatter list is `list`.
pub fn recv_wr(id: WrId, list: &[ibv_sge]) -> Option<ibv_recv_wr> {
    Some(ibv_recv_wr {
        wr_id: id.0,
        next: ptr::null_mut(),
        sg_list: list.as_ptr().cast_mut(),
        num_sge: i32::try_from(list.len()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::{Errno, FlushLevel, FlushPlacement};

    const RKEY: RKey = RKey::new(0x0102_0304);

    /// One of every operation that `ibv_post_send` can post.
    fn operations() -> Vec<SendOp> {
        let (remote_addr, rkey, imm) = (0x7fff_0000_1234, RKEY, Some(*b"roce"));
        let bind = MwBind { mr: LKey::new(9), addr: 64, length: 32, access: Access::REMOTE_READ };
        vec![
            SendOp::Send { imm: None },
            SendOp::Send { imm },
            SendOp::SendWithInv { rkey },
            SendOp::Write { remote_addr, rkey, imm: None },
            SendOp::Write { remote_addr, rkey, imm },
            SendOp::Read { remote_addr, rkey },
            SendOp::CompareSwap { remote_addr, rkey, compare: 1, swap: 2 },
            SendOp::FetchAdd { remote_addr, rkey, add: 3 },
            SendOp::AtomicWrite { remote_addr, rkey },
            SendOp::LocalInv { rkey },
            SendOp::BindMw { mw: RKey::new(5), rkey, bind },
        ]
    }

    #[test]
    fn every_operation_comes_back_as_it_went() {
        let mut mw = ibv_mw { rkey: 5, ..ibv_mw::zeroed() };
        let mut mr = ibv_mr { lkey: 9, ..ibv_mr::zeroed() };
        let mut ah = ibv_ah { handle: 7, ..ibv_ah::zeroed() };
        let objects = SendObjects { ah: &raw mut ah, mw: &raw mut mw, mr: &raw mut mr };
        let sges = [Sge { addr: 1, length: 2, lkey: LKey::new(3) }, Sge::default()];
        let list = sges.map(ibv_sge::from);
        let ud = UdTarget { ah: AhHandle::from_c(7), qpn: Qpn::new(0x11), qkey: QKey::GSI };
        for (qp_type, target) in [
            (QpType::Rc, Target::Peer),
            (QpType::XrcSend, Target::Xrc(XrcSrqn::new(0x22))),
            (QpType::Ud, Target::Ud(ud)),
        ] {
            for op in operations() {
                let wire = op.opcode().info().operation.is_some();
                if !op.opcode().is_allowed_on(qp_type) {
                    continue;
                }
                let target = if wire { target } else { Target::Peer };
                let data = Data::Gather(&sges);
                let wr = SendWr { target, ..SendWr::new(WrId(4), op, data) };
                let c = send_wr(&wr, &list, objects).unwrap();
                // SAFETY: all that it points to is alive.
                assert_eq!(unsafe { c.to_send_wr(qp_type) }, Ok(wr));
            }
        }
    }

    #[test]
    fn what_c_cannot_have_is_refused() {
        let op = SendOp::Flush {
            remote_addr: 0,
            rkey: RKEY,
            length: 0,
            placement: FlushPlacement::GLOBAL,
            level: FlushLevel::Mr,
        };
        let wr = SendWr::new(WrId(1), op, Data::EMPTY);
        assert!(send_wr(&wr, &[], SendObjects::default()).is_none());
        let to_send_wr = |opcode, qp_type| {
            let c = ibv_send_wr { opcode, ..ibv_send_wr::zeroed() };
            // SAFETY: it points to nothing.
            unsafe { c.to_send_wr(qp_type) }.map(drop)
        };
        for opcode in [12, 13, 16, 99, u32::MAX] {
            let refused = to_send_wr(opcode, QpType::Rc);
            assert_eq!(refused, Err(PostError::UnknownOpcode(opcode)));
            assert_eq!(refused.map_err(PostError::errno), Err(Errno::EINVAL));
        }
        let flush = WrOpcode::Flush.code();
        assert_eq!(to_send_wr(flush, QpType::Rc), Err(PostError::Unsupported));
        // A remote address is not taken for an address handle.
        let c = ibv_send_wr {
            opcode: WrOpcode::RdmaRead.code(),
            wr: ibv_send_wr_peer { rdma: ibv_send_wr_rdma { remote_addr: 1, rkey: 2 } },
            ..ibv_send_wr::zeroed()
        };
        let (opcode, qp_type) = (WrOpcode::RdmaRead, QpType::Ud);
        // SAFETY: the address is not looked at.
        let read = unsafe { c.to_send_wr(qp_type) };
        assert_eq!(read, Err(PostError::NotAllowedOnQpType { opcode, qp_type }));
        let c = ibv_send_wr { opcode: 2, num_sge: -1, ..ibv_send_wr::zeroed() };
        // SAFETY: it points to nothing.
        let wr = unsafe { c.to_send_wr(QpType::Rc) };
        assert_eq!(wr.map(|wr| wr.data), Ok(Data::EMPTY));
        // SAFETY: it points to nothing.
        let without = unsafe { c.to_send_wr(QpType::Ud) };
        assert_eq!(without, Err(PostError::MissingAddress(QpType::Ud)));
    }

    #[test]
    fn completions_come_back_as_they_went() {
        let wc =
            Wc::new(WrId(7), WcStatus::Success, WcOpcode::Recv, Qpn::new(0x11)).with_byte_len(12);
        let datagram = wc.with_imm(*b"roce").with_datagram(Qpn::new(0x33));
        let mut failed = wc;
        (failed.vendor_err, failed.status) = (9, WcStatus::RetryExcErr);
        for wc in [wc, datagram, wc.with_invalidated(RKEY), failed] {
            assert_eq!(ibv_wc::from(wc).to_wc(), Some(wc));
        }
        let odd = ibv_wc { status: 12, opcode: 77, ..ibv_wc::zeroed() };
        assert_eq!(odd.to_wc().map(|wc| wc.status), Some(WcStatus::RetryExcErr));
        assert_eq!(ibv_wc { opcode: 77, ..ibv_wc::zeroed() }.to_wc(), None);
    }
}
