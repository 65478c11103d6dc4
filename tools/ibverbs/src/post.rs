//! Posting lists of work requests.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

use roce::ibverbs::{ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq, ibv_wq};
use roce::nic::Poster;
use roce::verbs::{Data, PostError, RecvWr, SendFlags, SendOp, SendWr, Sge, WrId, WrOpcode};

use crate::call::{Failed, Result, fast_code};
use crate::mw::Mw;
use crate::object::Object;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::wq::Wq;

/// The most inline data that any queue pair takes.
const INLINE_MAX: usize = roce::engine::Limits::DEFAULT.inline as usize;

/// Most entries of a gather or scatter list that any queue takes.
const SGES_MAX: usize = roce::engine::Limits::DEFAULT.sges as usize;

/// Room for a list that has to be copied.
pub(crate) type SgeRoom = MaybeUninit<[ibv_sge; SGES_MAX]>;

/// A work request of C.
trait WorkRequest: Copy {
    /// Returns the gather or scatter list.
    fn list(&self) -> *mut ibv_sge;

    /// Replaces its list by one that is aligned.
    ///
    /// # Safety
    ///
    /// There must be as many entries as it says.
    unsafe fn align_list(&mut self, room: &mut SgeRoom) -> Result<()>;
}

macro_rules! work_requests {
    ($($name:ident)*) => {
        $(impl WorkRequest for $name {
            #[inline]
            fn list(&self) -> *mut ibv_sge {
                self.sg_list
            }

            unsafe fn align_list(&mut self, room: &mut SgeRoom) -> Result<()> {
                // SAFETY: the caller vouches for it.
                let list = unsafe { aligned_list(self.sg_list, self.num_sge, room) }?;
                self.sg_list = list.cast_mut();
                Ok(())
            }
        })*
    };
}

work_requests! { ibv_send_wr ibv_recv_wr }

/// A work request as Rust can look at it. C programs with packed structures, such as libiscsi, have
/// work requests and their lists at any address, which processors do not mind: those are copied.
///
/// # Safety
///
/// There must be a work request, with the list that it says.
#[inline]
unsafe fn aligned<'a, W: WorkRequest>(
    wr: *mut W,
    copy: &'a mut MaybeUninit<W>,
    room: &'a mut SgeRoom,
) -> Result<&'a W> {
    if wr.is_aligned() {
        // SAFETY: the caller vouches for it.
        let wr = unsafe { &*wr };
        if wr.list().is_aligned() {
            return Ok(wr);
        }
    }
    // SAFETY: as above.
    let copy = copy.write(unsafe { wr.read_unaligned() });
    // SAFETY: as above.
    unsafe { copy.align_list(room) }?;
    Ok(copy)
}

/// A list as Rust can look at it: itself, or a copy.
///
/// # Safety
///
/// There must be as many entries as it says.
pub(crate) unsafe fn aligned_list(
    list: *const ibv_sge,
    count: c_int,
    room: &mut SgeRoom,
) -> Result<*const ibv_sge> {
    let Some(count) = usize::try_from(count).ok().filter(|_| !list.is_aligned()) else {
        return Ok(list);
    };
    if count > SGES_MAX {
        return Err(Failed::EINVAL);
    }
    let to = room.as_mut_ptr().cast::<ibv_sge>();
    for at in 0..count {
        // SAFETY: the caller vouches for the entry.
        let entry = unsafe { list.wrapping_add(at).read_unaligned() };
        // SAFETY: there is room for it.
        unsafe { to.wrapping_add(at).write(entry) };
    }
    Ok(to)
}

/// Posts one after the other, as long as that works; says which failed.
macro_rules! post_list {
    ($nic:expr, $first:expr, $bad:expr, |$poster:ident, $wr:ident| $post:expr) => {
        fast_code(|| {
            let mut next = $first;
            let posted: Result<()> = $nic.post_all(|$poster| {
                while !next.is_null() {
                    let (mut copy, mut room) = (MaybeUninit::uninit(), MaybeUninit::uninit());
                    // SAFETY: the program hands over a list that ends with a null.
                    let $wr = unsafe { aligned(next, &mut copy, &mut room) }?;
                    $post?;
                    next = $wr.next;
                }
                Ok(())
            });
            // Rule: V-01.1.
            if posted.is_err() && !$bad.is_null() {
                // SAFETY: the program has room for a pointer there.
                unsafe { $bad.write(next) };
            }
            posted
        })
    };
}

/// Posts sends.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the program says that it is one.
    let queue_pair = match unsafe { Qp::of(qp.cast()) } {
        Ok(queue_pair) => queue_pair,
        Err(Failed(code)) => return code,
    };
    // SAFETY: the program says that each is as it should be.
    post_list!(queue_pair.nic, wr, bad, |poster, wr| unsafe { send(poster, queue_pair, wr) })
}

/// Posts receives.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program says that it is one.
    let queue_pair = match unsafe { Qp::of(qp.cast()) } {
        Ok(queue_pair) => queue_pair,
        Err(Failed(code)) => return code,
    };
    post_list!(queue_pair.nic, wr, bad, |poster, wr| {
        // SAFETY: the program says that it is as it should be.
        poster.recv(queue_pair.handle, &unsafe { receive(wr) }?)
    })
}

/// Posts receives to a shared queue.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program says that it is one.
    let queue = match unsafe { Srq::of(srq) } {
        Ok(queue) => queue,
        Err(Failed(code)) => return code,
    };
    post_list!(queue.nic, wr, bad, |poster, wr| {
        // SAFETY: the program says that it is as it should be.
        poster.srq_recv(queue.handle, &unsafe { receive(wr) }?)
    })
}

/// Posts receives to a queue without a queue pair.
pub(crate) unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the program says that it is one.
    let queue = match unsafe { Wq::of(wq) } {
        Ok(queue) => queue,
        Err(Failed(code)) => return code,
    };
    post_list!(queue.nic, wr, bad, |poster, wr| {
        // SAFETY: the program says that it is as it should be.
        poster.wq_recv(queue.handle, &unsafe { receive(wr) }?)
    })
}

/// A receive in words.
///
/// # Safety
///
/// It must be as `ibv_post_recv` wants it.
#[inline]
unsafe fn receive(wr: &ibv_recv_wr) -> Result<RecvWr<'_>> {
    if wr.num_sge < 0 {
        return Err(Failed::EINVAL);
    }
    // SAFETY: the caller vouches for it.
    Ok(unsafe { wr.to_recv_wr() })
}

/// Posts a send. Inline data is copied now.
#[inline]
unsafe fn send(poster: &mut Poster<'_>, qp: &Qp, wr: &ibv_send_wr) -> Result<()> {
    if wr.num_sge < 0 {
        return Err(Failed::EINVAL);
    }
    // SAFETY: the caller vouches for it.
    let send = match unsafe { wr.to_send_wr(qp.kind) } {
        Err(PostError::NotAllowedOnQpType { opcode, .. }) if opcode != WrOpcode::Driver1 => {
            return Ok(poster.unsupported(qp.handle, WrId(wr.wr_id))?);
        }
        send => send?,
    };
    if let SendOp::BindMw { rkey, bind, .. } = send.op {
        // SAFETY: of this operation it is this.
        let mw = unsafe { wr.more.bind_mw }.mw;
        // SAFETY: the caller vouches for it.
        let op = SendOp::BindMw { mw: unsafe { Mw::index(mw) }?, rkey, bind };
        return Ok(poster.send(qp.handle, &SendWr { op, ..send })?);
    }
    match send.data {
        Data::Gather(sges) if send.flags.contains(SendFlags::INLINE) => {
            let mut room = [0; INLINE_MAX];
            // SAFETY: the caller vouches for the list and for what it names.
            let bytes = unsafe { copy_inline(sges, &mut room) }?;
            poster.send(qp.handle, &SendWr { data: Data::Inline(bytes), ..send })?;
        }
        Data::Gather(_) | Data::Inline(_) => poster.send(qp.handle, &send)?,
    }
    Ok(())
}

/// Copies what a list names into `room`, one behind the other.
///
/// # Safety
///
/// What the list names must be there to be read.
pub(crate) unsafe fn copy_inline<'a>(
    sges: &[Sge],
    room: &'a mut [u8; INLINE_MAX],
) -> Result<&'a [u8], PostError> {
    let mut used = 0;
    for sge in sges {
        let length = sge.length as usize;
        let Some(to) = room[used..].get_mut(..length) else {
            let len = sges.iter().map(|sge| u64::from(sge.length)).sum();
            return Err(PostError::InlineTooLong {
                len,
                max: roce::engine::Limits::DEFAULT.inline,
            });
        };
        let address = usize::try_from(sge.addr).unwrap_or(usize::MAX);
        let from = ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: the caller vouches for what is read; what is written is ours.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), length) };
        used += length;
    }
    Ok(&room[..used])
}
