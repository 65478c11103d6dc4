//! Work requests that are built call by call, and posted together.
//!
//! A program starts, says of each request first what it asks for and then where its data are and
//! where it goes, and completes: then all are posted, or none. In between no other thread can start
//! with the same queue pair. What goes wrong on the way is told at the end.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;
use std::sync::{Condvar, Mutex, PoisonError};

use roce::ibverbs::convert::{self, sges};
use roce::ibverbs::{
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
    IBV_QP_EX_WITH_ATOMIC_WRITE, IBV_QP_EX_WITH_BIND_MW, IBV_QP_EX_WITH_FLUSH,
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM,
    IBV_QP_EX_WITH_SEND_WITH_INV, ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex,
    ibv_sge,
};
use roce::verbs::limits::ATOMIC_BYTES;
use roce::verbs::{
    AhHandle, Data, FlushLevel, FlushPlacement, LKey, PostError, QpCap, QpType, SendFlags, SendOp,
    SendWr, Sge, Target, UdTarget, WrId, WrOpcode,
};
use roce::wire::{QKey, Qpn, RKey, XrcSrqn};

use crate::call::{Failed, Result, fast_code, fast_quiet};
use crate::events::lock;
use crate::mw::Mw;
use crate::object::{Object, given};
use crate::post::{SgeRoom, aligned_list};
use crate::qp::Qp;

/// Operations that a program may send by calls of its own, with their opcodes.
const OPERATIONS: [(u64, WrOpcode); 12] = [
    (IBV_QP_EX_WITH_RDMA_WRITE, WrOpcode::RdmaWrite),
    (IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, WrOpcode::RdmaWriteWithImm),
    (IBV_QP_EX_WITH_SEND, WrOpcode::Send),
    (IBV_QP_EX_WITH_SEND_WITH_IMM, WrOpcode::SendWithImm),
    (IBV_QP_EX_WITH_RDMA_READ, WrOpcode::RdmaRead),
    (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, WrOpcode::AtomicCmpAndSwp),
    (IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, WrOpcode::AtomicFetchAndAdd),
    (IBV_QP_EX_WITH_LOCAL_INV, WrOpcode::LocalInv),
    (IBV_QP_EX_WITH_BIND_MW, WrOpcode::BindMw),
    (IBV_QP_EX_WITH_SEND_WITH_INV, WrOpcode::SendWithInv),
    (IBV_QP_EX_WITH_FLUSH, WrOpcode::Flush),
    (IBV_QP_EX_WITH_ATOMIC_WRITE, WrOpcode::AtomicWrite),
];

/// Whether a queue pair of this kind can send all that a program wants to send by calls of its own.
pub(crate) fn check(kind: QpType, wanted: u64) -> Result<()> {
    let kind = kind.set();
    let able = OPERATIONS.iter().filter(|(_, opcode)| opcode.info().qp_types.contains(kind));
    let able = able.fold(0, |all, (flag, _)| all | flag);
    if wanted & !able == 0 { Ok(()) } else { Err(Failed::EOPNOTSUPP) }
}

/// Returns the length of inline data for which requests must have room if a program passes their
/// bytes instead of addresses.
pub(crate) fn inline_needed(wanted: u64) -> u32 {
    if wanted & IBV_QP_EX_WITH_ATOMIC_WRITE == 0 { 0 } else { ATOMIC_BYTES }
}

/// The calls that a queue pair has which was made for them.
pub(crate) const CALLS: ibv_qp_ex = ibv_qp_ex {
    wr_atomic_cmp_swp: Some(atomic_cmp_swp),
    wr_atomic_fetch_add: Some(atomic_fetch_add),
    wr_bind_mw: Some(bind_mw),
    wr_local_inv: Some(local_inv),
    wr_rdma_read: Some(rdma_read),
    wr_rdma_write: Some(rdma_write),
    wr_rdma_write_imm: Some(rdma_write_imm),
    wr_send: Some(send),
    wr_send_imm: Some(send_imm),
    wr_send_inv: Some(send_inv),
    wr_send_tso: Some(send_tso),
    wr_set_ud_addr: Some(set_ud_addr),
    wr_set_xrc_srqn: Some(set_xrc_srqn),
    wr_set_inline_data: Some(set_inline_data),
    wr_set_inline_data_list: Some(set_inline_data_list),
    wr_set_sge: Some(set_sge),
    wr_set_sge_list: Some(set_sge_list),
    wr_start: Some(start),
    wr_complete: Some(complete),
    wr_abort: Some(abort),
    wr_atomic_write: Some(atomic_write),
    wr_flush: Some(flush),
    ..ibv_qp_ex::zeroed()
};

/// Location of a request's data, among those of all.
#[derive(Clone, Debug)]
enum Place {
    Gather(Range<usize>),
    Inline(Range<usize>),
}

/// A request that is not posted yet.
#[derive(Debug)]
struct Request {
    id: WrId,
    flags: SendFlags,
    op: SendOp,
    target: Target,
    data: Place,
}

impl Request {
    fn wr<'a>(&self, sges: &'a [Sge], bytes: &'a [u8]) -> SendWr<'a> {
        let data = match &self.data {
            Place::Gather(range) => Data::Gather(&sges[range.clone()]),
            Place::Inline(range) => Data::Inline(&bytes[range.clone()]),
        };
        // What is inline is so because of how it was given.
        let flags = self.flags - SendFlags::INLINE;
        SendWr { id: self.id, data, flags, target: self.target, op: self.op }
    }
}

/// Requests of a program that is between start and complete.
#[derive(Debug, Default)]
struct Building {
    /// Whether a thread is building requests.
    open: bool,
    /// The first thing that went wrong.
    failed: Option<Failed>,
    requests: Vec<Request>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
}

/// The work requests of a queue pair that are being built.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    building: Mutex<Building>,
    closed: Condvar,
}

impl Builder {
    fn start(&self) {
        let building = lock(&self.building);
        let free = self.closed.wait_while(building, |building| building.open);
        free.unwrap_or_else(PoisonError::into_inner).open = true;
    }

    /// Adds to what is built; a failure is remembered.
    fn say(&self, add: impl FnOnce(&mut Building) -> Result<()>) {
        let mut building = lock(&self.building);
        if building.failed.is_none()
            && let Err(failed) = add(&mut building)
        {
            building.failed = Some(failed);
        }
    }

    /// Ends the list: `finish` posts or discards it.
    fn end<T>(&self, finish: impl FnOnce(&mut Building) -> T) -> T {
        let mut building = lock(&self.building);
        let done = finish(&mut building);
        building.requests.clear();
        building.sges.clear();
        building.bytes.clear();
        (building.failed, building.open) = (None, false);
        drop(building);
        self.closed.notify_one();
        done
    }
}

impl Building {
    fn last(&mut self) -> Result<&mut Request> {
        self.requests.last_mut().ok_or(Failed::EINVAL)
    }

    /// Gives the newest request its data.
    fn gather(&mut self, list: &[Sge]) -> Result<()> {
        let start = self.sges.len();
        self.sges.extend_from_slice(list);
        let end = self.sges.len();
        self.last()?.data = Place::Gather(start..end);
        Ok(())
    }
}

/// Begins another request, with what the program has set for it.
///
/// # Safety
///
/// The queue pair must be null, or one.
unsafe fn request(qp: *mut ibv_qp_ex, op: impl FnOnce() -> Result<SendOp>) {
    fast_quiet(|| {
        // SAFETY: the caller vouches for it.
        let queue_pair = unsafe { Qp::of(qp) }?;
        // SAFETY: the program has set it, and does not change it meanwhile.
        let id = WrId(unsafe { (*qp).wr_id });
        // SAFETY: as above.
        let flags = SendFlags::from_bits_truncate(unsafe { (*qp).wr_flags });
        queue_pair.builder.say(|building| {
            if building.requests.len() >= queue_pair.init.cap.max_send_wr as usize {
                return Err(PostError::QueueFull.into());
            }
            let (op, target, data) = (op()?, Target::Peer, Place::Gather(0..0));
            building.requests.push(Request { id, flags, op, target, data });
            Ok(())
        });
        Ok(())
    });
}

/// Changes the newest request.
fn change(qp: Result<&Qp>, add: impl FnOnce(&QpCap, &mut Building) -> Result<()>) {
    fast_quiet(|| {
        let queue_pair = qp?;
        queue_pair.builder.say(|building| add(&queue_pair.init.cap, building));
        Ok(())
    });
}

/// Declares the calls that begin a request which needs nothing but what they are given.
macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*) => $op:expr;)*) => {
        $(
            $(#[$doc])*
            unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($argument: $type),*) {
                // SAFETY: the program says that it is one.
                unsafe { request(qp, || $op) };
            }
        )*
    };
}

requests! {
    /// A send.
    send() => Ok::<_, Failed>(SendOp::Send { imm: None });
    /// A send with four bytes more, which are in the order of the wire.
    send_imm(imm: u32) => Ok::<_, Failed>(SendOp::Send { imm: Some(imm.to_ne_bytes()) });
    /// A send that invalidates a key of the peer.
    send_inv(rkey: u32) => Ok::<_, Failed>(SendOp::SendWithInv { rkey: RKey::new(rkey) });
    /// A send that the device cuts into segments, which no soft NIC does.
    send_tso(_header: *mut c_void, _len: u16, _mss: u16) => Err::<SendOp, _>(Failed::EOPNOTSUPP);
    /// A write.
    rdma_write(rkey: u32, remote_addr: u64) => {
        Ok::<_, Failed>(SendOp::Write { remote_addr, rkey: RKey::new(rkey), imm: None })
    };
    /// A write with four bytes that complete a receive.
    rdma_write_imm(rkey: u32, remote_addr: u64, imm: u32) => {
        let imm = Some(imm.to_ne_bytes());
        Ok::<_, Failed>(SendOp::Write { remote_addr, rkey: RKey::new(rkey), imm })
    };
    /// A read.
    rdma_read(rkey: u32, remote_addr: u64) => {
        Ok::<_, Failed>(SendOp::Read { remote_addr, rkey: RKey::new(rkey) })
    };
    /// A compare and swap.
    atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) => {
        Ok::<_, Failed>(SendOp::CompareSwap { remote_addr, rkey: RKey::new(rkey), compare, swap })
    };
    /// A fetch and add.
    atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) => {
        Ok::<_, Failed>(SendOp::FetchAdd { remote_addr, rkey: RKey::new(rkey), add })
    };
    /// Invalidation of a local key.
    local_inv(rkey: u32) => Ok::<_, Failed>(SendOp::LocalInv { rkey: RKey::new(rkey) });
    /// A flush.
    flush(rkey: u32, remote_addr: u64, len: usize, placement: u8, level: u8) => {
        flush_op(RKey::new(rkey), remote_addr, len, placement, level)
    };
}

fn flush_op(rkey: RKey, remote_addr: u64, len: usize, placement: u8, level: u8) -> Result<SendOp> {
    Ok(SendOp::Flush {
        remote_addr,
        rkey,
        length: u32::try_from(len).map_err(|_| Failed::EINVAL)?,
        placement: FlushPlacement::from_bits(placement.into()).ok_or(Failed::EINVAL)?,
        level: FlushLevel::from_code(level.into()).ok_or(Failed::EINVAL)?,
    })
}

/// A write of eight bytes at once, which are copied now.
unsafe extern "C" fn atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    value: *const c_void,
) {
    let op = SendOp::AtomicWrite { remote_addr, rkey: RKey::new(rkey) };
    // SAFETY: the program says that it is one.
    unsafe { request(qp, || Ok(op)) };
    // SAFETY: the program says that it is one.
    change(unsafe { Qp::of(qp) }, |_, building| {
        let start = building.bytes.len();
        // SAFETY: the program says that eight bytes are there.
        let value: &[u8; 8] = unsafe { given(value.cast()) }?;
        building.bytes.extend_from_slice(value);
        building.last()?.data = Place::Inline(start..start + value.len());
        Ok(())
    });
}

/// The binding of a window.
unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    let bind = || {
        // SAFETY: the program says that it is one.
        let window = unsafe { Mw::index(mw) }?;
        // SAFETY: the program hands it over.
        let info = unsafe { given(info) }?;
        // SAFETY: the program says that the region is one.
        Ok(unsafe { convert::bind_mw(window, RKey::new(rkey), info) }?)
    };
    // SAFETY: the program says that it is one.
    unsafe { request(qp, bind) };
}

/// Sets the destination of a datagram.
unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the program says that it is one.
    change(unsafe { Qp::of(qp) }, |_, building| {
        // SAFETY: the program says that it is one.
        let ah = AhHandle::from_c(unsafe { given(ah) }?.handle);
        let (qpn, qkey) = (Qpn::new(qpn), QKey::new(qkey));
        building.last()?.target = Target::Ud(UdTarget { ah, qpn, qkey });
        Ok(())
    });
}

/// Sets the shared receive queue of the peer.
unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the program says that it is one.
    change(unsafe { Qp::of(qp) }, |_, building| {
        building.last()?.target = Target::Xrc(XrcSrqn::new(srqn));
        Ok(())
    });
}

/// A piece of memory.
unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = Sge { addr, length, lkey: LKey::new(lkey) };
    // SAFETY: the program says that it is one.
    change(unsafe { Qp::of(qp) }, |_, building| building.gather(&[sge]));
}

/// Pieces of memory.
unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the program says that it is one.
    change(unsafe { Qp::of(qp) }, |cap, building| {
        if count > cap.max_send_sge as usize {
            return Err(Failed::EINVAL);
        }
        let count = c_int::try_from(count).map_err(|_| Failed::EINVAL)?;
        let mut room = SgeRoom::uninit();
        // SAFETY: the program hands over as many pieces as it says.
        let list = unsafe { aligned_list(list, count, &mut room) }?;
        // SAFETY: as above.
        building.gather(unsafe { sges(list, count) })
    });
}

/// Bytes, which are copied now.
unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let piece = ibv_data_buf { addr, length };
    // SAFETY: as this function's.
    unsafe { set_inline_data_list(qp, 1, &raw const piece) };
}

/// Bytes from several places, which are copied now.
unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the program says that it is one.
    change(unsafe { Qp::of(qp) }, |cap, building| {
        let start = building.bytes.len();
        building.last()?;
        for index in 0..count {
            // SAFETY: the program hands over as many pieces as it says.
            let ibv_data_buf { addr, length } = *unsafe { given(list.wrapping_add(index)) }?;
            let used = building.bytes.len() - start;
            if length > (cap.max_inline_data as usize).saturating_sub(used) {
                return Err(Failed::EINVAL);
            }
            if length > 0 {
                // SAFETY: the program has the bytes.
                unsafe { copy_bytes(addr.cast(), length, &mut building.bytes) };
            }
        }
        let end = building.bytes.len();
        building.last()?.data = Place::Inline(start..end);
        Ok(())
    });
}

/// Appends bytes of a program's.
///
/// # Safety
///
/// `from` points to `length` bytes that can be read.
unsafe fn copy_bytes(from: *const u8, length: usize, to: &mut Vec<u8>) {
    to.reserve(length);
    let room = to.spare_capacity_mut().as_mut_ptr().cast();
    // SAFETY: the caller vouches for what is read; there is room for it, which is ours.
    unsafe { ptr::copy_nonoverlapping(from, room, length) };
    // SAFETY: `length` more bytes are initialized now.
    unsafe { to.set_len(to.len() + length) };
}

/// The program begins.
unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    fast_quiet(|| {
        // SAFETY: the program says that it is one.
        unsafe { Qp::of(qp) }?.builder.start();
        Ok(())
    });
}

/// All is said: it is posted, or nothing is.
unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    fast_code(|| {
        // SAFETY: the program says that it is one.
        let queue_pair = unsafe { Qp::of(qp) }?;
        queue_pair.builder.end(|building| {
            if let Some(failed) = building.failed {
                return Err(failed);
            }
            let Building { requests, sges, bytes, .. } = building;
            queue_pair.nic.post_all(|poster| {
                let wrs = requests.iter().map(|request| request.wr(sges, bytes));
                poster.sends(queue_pair.handle, wrs)
            })?;
            Ok(())
        })
    })
}

/// The program takes all of it back.
unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    fast_quiet(|| {
        // SAFETY: the program says that it is one.
        unsafe { Qp::of(qp) }?.builder.end(|_| ());
        Ok(())
    });
}
