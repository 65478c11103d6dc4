//! Work requests to the device, and completions from it.
//!
//! None of these calls goes through the library: the header calls the driver by the table of the
//! open device, and so does this.
#![allow(unsafe_code, reason = "calls of libibverbs and its drivers")]

use core::ffi::c_int;
use core::mem::MaybeUninit;
use std::sync::PoisonError;

use super::RdmaNic;
use super::context::op;
use super::errors::{check, not_posted};
use super::object::Made;
use super::objects::Reading;
use crate::ibverbs::convert::{SendObjects, recv_wr, send_wr};
use crate::ibverbs::{
    ibv_ah, ibv_mw_bind, ibv_mw_bind_info, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wc,
};
use crate::verbs::limits::MESSAGE_BYTES_MAX;
use crate::verbs::{
    CqHandle, Data, Errno, LocalData, MwBind, MwType, Notify, PostError, QpHandle, RecvWr, SendOp,
    SendWr, Sge, SrqHandle, Target, Wc, WcFlags, WcOpcode, WcStatus, WrId,
};
use crate::wire::{Qpn, RKey};

/// Maximum number of work requests that are posted, or completions polled, by one call.
const BATCH: usize = 16;

impl RdmaNic {
    #[inline]
    pub(super) fn post_send_list(
        &self,
        qp: QpHandle,
        wrs: &[SendWr<'_>],
    ) -> Result<(), (usize, PostError)> {
        let qps = self.qps.read();
        let qp = qps.get(qp.0).ok_or((0, PostError::UnknownQp))?;
        let ahs = qp.facts.kind.is_datagram().then(|| self.ahs.read());
        if let [wr] = wrs {
            return match wr.op {
                SendOp::BindMw { mw, rkey, bind } => self.bind(qp, wr, mw, rkey, &bind),
                _ => self.post_run::<1>(qp, ahs.as_ref(), wrs),
            };
        }
        let mut before = 0;
        // Windows are bound one by one, since each is locked meanwhile.
        for run in wrs.chunk_by(|one, next| !is_bind(one) && !is_bind(next)) {
            for batch in run.chunks(BATCH) {
                let posted = match batch {
                    [SendWr { op: SendOp::BindMw { mw, rkey, bind }, .. }] => {
                        self.bind(qp, &batch[0], *mw, *rkey, bind)
                    }
                    _ => self.post_run::<BATCH>(qp, ahs.as_ref(), batch),
                };
                posted.map_err(|(taken, error)| (before + taken, error))?;
                before += batch.len();
            }
        }
        Ok(())
    }

    /// Posts at most `N` sends.
    #[inline]
    fn post_run<const N: usize>(
        &self,
        qp: &Made<ibv_qp>,
        ahs: Option<&Reading<'_, ibv_ah>>,
        wrs: &[SendWr<'_>],
    ) -> Result<(), (usize, PostError)> {
        let mut list = [ibv_send_wr::zeroed(); N];
        let mut inline = [ibv_sge::zeroed(); N];
        let (mut ready, mut refused) = (0, None);
        for ((wr, to), bytes) in wrs.iter().zip(&mut list).zip(&mut inline) {
            match send_to_c(qp, ahs, wr, bytes) {
                Ok(wr) => *to = wr,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
            ready += 1;
        }
        self.hand_over(qp, &mut list[..ready])?;
        refused.map_or(Ok(()), |error| Err((ready, error)))
    }

    /// Gives the driver a list of sends; an error says how many it took before.
    #[inline]
    fn hand_over(
        &self,
        qp: &Made<ibv_qp>,
        list: &mut [ibv_send_wr],
    ) -> Result<(), (usize, PostError)> {
        let count = list.len();
        if count == 0 {
            return Ok(());
        }
        let post = op!(self.context, post_send).ok_or((0, PostError::Unsupported))?;
        let first = list.as_mut_ptr();
        for at in 1..count {
            // SAFETY: both are places of the list, which nothing else touches meanwhile.
            unsafe {
                (*first.wrapping_add(at - 1)).next = first.wrapping_add(at);
            }
        }
        let mut bad = core::ptr::null_mut();
        // SAFETY: the queue pair is held; the list ends with its last place, and what it points to
        // (buffer lists, bytes that are copied now, address handles, a window and its region) is
        // held by the callers until this returns.
        let code = unsafe { post(qp.at(), first, &raw mut bad) };
        check(code).map_err(|errno| (index_of(first, bad, count), not_posted(errno)))
    }

    /// Posts the binding of a window.
    fn bind(
        &self,
        qp: &Made<ibv_qp>,
        wr: &SendWr<'_>,
        mw: RKey,
        rkey: RKey,
        bind: &MwBind,
    ) -> Result<(), (usize, PostError)> {
        wr.check(qp.facts.kind, &qp.facts.cap, MESSAGE_BYTES_MAX).map_err(|error| (0, error))?;
        let mws = self.mws.read();
        // The lowest eight bits of a key change with every binding; the others are the window.
        let window = mws.find(|made| same_object(*lock(&made.facts.key), mw.get()));
        let window = window.ok_or((0, PostError::UnknownMw))?;
        let mrs = self.mrs.read();
        let region = mrs.find(|made| made.facts == bind.mr);
        // Only a window that is to be closed needs no region.
        if region.is_none() && bind.length > 0 {
            return Err((0, PostError::UnknownMr));
        }
        if region.is_some_and(|region| region.needs().0.at() != window.needs().at()) {
            return Err((0, PostError::ForeignMemory));
        }
        let objects = SendObjects {
            mw: window.at(),
            mr: region.map_or(core::ptr::null_mut(), Made::at),
            ..SendObjects::default()
        };
        let mut key = lock(&window.facts.key);
        let mut set_key = |new: u32| {
            *key = new;
            // SAFETY: the window is held, and the lock is held while its key is read or changed.
            unsafe {
                (*window.at()).rkey = new;
            }
        };
        set_key(mw.get());
        if window.facts.kind == MwType::Type2 {
            let mut list = [send_wr(wr, &[], objects).ok_or((0, PostError::Unsupported))?];
            self.hand_over(qp, &mut list)?;
            set_key(rkey.get());
            return Ok(());
        }
        // The library gives a window of type 1 the next key, and no other.
        if rkey.get() != next_key(mw.get()) {
            return Err((0, PostError::WrongMwKey));
        }
        let post = op!(self.context, bind_mw).ok_or((0, PostError::Unsupported))?;
        let bind_info = ibv_mw_bind_info {
            mr: objects.mr,
            addr: bind.addr,
            length: bind.length,
            mw_access_flags: bind.access.bits(),
        };
        let mut request = ibv_mw_bind { wr_id: wr.id.0, send_flags: wr.flags.bits(), bind_info };
        // SAFETY: the queue pair, the window and the region are held, and the window is of the kind
        // that this is for.
        let code = unsafe { post(qp.at(), window.at(), &raw mut request) };
        check(code).map_err(|errno| (0, not_posted(errno)))?;
        set_key(rkey.get());
        Ok(())
    }

    #[inline]
    pub(super) fn post_recv_list(
        &self,
        qp: QpHandle,
        wrs: &[RecvWr<'_>],
    ) -> Result<(), (usize, PostError)> {
        let qps = self.qps.read();
        let qp = qps.get(qp.0).ok_or((0, PostError::UnknownQp))?;
        if qp.facts.shares || !qp.facts.kind.has_receive_queue() {
            return Err((0, PostError::NoReceiveQueue));
        }
        let post = op!(self.context, post_recv).ok_or((0, PostError::Unsupported))?;
        for (number, batch) in wrs.chunks(BATCH).enumerate() {
            let posted = with_receives(batch, qp.facts.cap.max_recv_sge, |first, bad| {
                // SAFETY: the queue pair is held, and so is the list with what it points to.
                unsafe { post(qp.at(), first, bad) }
            });
            posted.map_err(|(taken, error)| (number * BATCH + taken, error))?;
        }
        Ok(())
    }

    #[inline]
    pub(super) fn post_shared(&self, srq: SrqHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let srqs = self.srqs.read();
        let srq = srqs.get(srq.0).ok_or(PostError::UnknownReceiveQueue)?;
        let post = op!(self.context, post_srq_recv).ok_or(PostError::Unsupported)?;
        let posted = with_receives(core::slice::from_ref(wr), srq.facts.max_sge, |first, bad| {
            // SAFETY: the shared queue is held, and so is the list with what it points to.
            unsafe { post(srq.at(), first, bad) }
        });
        posted.map_err(|(_, error)| error)
    }

    #[inline]
    pub(super) fn poll(&self, cq: CqHandle, out: &mut [Wc]) -> usize {
        let cqs = self.cqs.read();
        let (Some(cq), Some(poll)) = (cqs.get(cq.0), op!(self.context, poll_cq)) else { return 0 };
        let mut total = 0;
        for part in out.chunks_mut(BATCH) {
            let mut wcs = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
            let room = c_int::try_from(part.len()).unwrap_or(0);
            // SAFETY: the queue is held, and `wcs` has room for `room` completions.
            let count = unsafe { poll(cq.at(), room, wcs.as_mut_ptr().cast()) };
            let Ok(count) = usize::try_from(count) else {
                self.context.set_broken(Errno(libc::EIO));
                break;
            };
            let count = count.min(part.len());
            for (to, wc) in part.iter_mut().zip(&wcs).take(count) {
                // SAFETY: the driver has filled in the first `count`.
                let wc = unsafe { wc.assume_init_ref() };
                *to = to_wc(wc);
            }
            total += count;
            if count < part.len() {
                break;
            }
        }
        total
    }

    pub(super) fn arm(&self, cq: CqHandle, notify: Notify) {
        let cqs = self.cqs.read();
        let (Some(cq), Some(arm)) = (cqs.get(cq.0), op!(self.context, req_notify_cq)) else {
            return;
        };
        // SAFETY: the queue is held.
        let code = unsafe { arm(cq.at(), c_int::from(notify == Notify::Solicited)) };
        if let Err(errno) = check(code) {
            self.context.set_broken(errno);
        }
    }
}

fn lock(key: &std::sync::Mutex<u32>) -> std::sync::MutexGuard<'_, u32> {
    key.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_bind(wr: &SendWr<'_>) -> bool {
    matches!(wr.op, SendOp::BindMw { .. })
}

/// Whether two keys are of one object: they differ in their lowest eight bits at most.
const fn same_object(one: u32, other: u32) -> bool {
    one >> 8 == other >> 8
}

/// The key that comes after another: the lowest eight bits count.
const fn next_key(key: u32) -> u32 {
    (key & !0xff) | (key.wrapping_add(1) & 0xff)
}

/// The place in a list of `count` that a pointer points to; the first if it points elsewhere.
fn index_of<T>(first: *mut T, at: *mut T, count: usize) -> usize {
    let index = at.addr().wrapping_sub(first.addr()) / size_of::<T>();
    if index < count { index } else { 0 }
}

/// A send as C has it. Its pointers lead to what `wr` borrows, to `bytes` and into `ahs`.
#[inline]
fn send_to_c(
    qp: &Made<ibv_qp>,
    ahs: Option<&Reading<'_, ibv_ah>>,
    wr: &SendWr<'_>,
    bytes: &mut ibv_sge,
) -> Result<ibv_send_wr, PostError> {
    // Drivers look at less: one that gets a datagram without an address handle crashes.
    wr.check(qp.facts.kind, &qp.facts.cap, MESSAGE_BYTES_MAX)?;
    // C has these for queue pairs with calls of their own, not for lists of work requests.
    if matches!(wr.op, SendOp::AtomicWrite { .. } | SendOp::Flush { .. }) {
        return Err(PostError::Unsupported);
    }
    let list = match wr.data {
        _ if wr.opcode().info().local == LocalData::Unused => &[],
        // What is at these addresses is unknown, so nothing may be copied from there.
        Data::Gather(_) if wr.is_inline() => {
            let (opcode, len) = (wr.opcode(), wr.data.byte_len());
            return Err(PostError::WrongLength { opcode, len });
        }
        Data::Gather(sges) => sges_to_c(sges),
        Data::Inline(inline) => {
            let length = u32::try_from(inline.len()).map_err(|_| PostError::Unsupported)?;
            *bytes = ibv_sge { addr: inline.as_ptr().expose_provenance() as u64, length, lkey: 0 };
            core::slice::from_ref(bytes)
        }
    };
    let mut objects = SendObjects::default();
    if let Target::Ud(to) = wr.target {
        let ah =
            ahs.and_then(|ahs| ahs.get(ahs.tagged(to.ah.0))).ok_or(PostError::UnknownAddress)?;
        objects.ah = ah.at();
    }
    send_wr(wr, list, objects).ok_or(PostError::Unsupported)
}

/// Calls `post` with at most [`BATCH`] receives as C has them.
#[inline]
fn with_receives(
    wrs: &[RecvWr<'_>],
    max_sge: u32,
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
) -> Result<(), (usize, PostError)> {
    let mut list = [ibv_recv_wr::zeroed(); BATCH];
    let first = list.as_mut_ptr();
    let (mut ready, mut refused) = (0, None);
    for wr in wrs.iter().take(BATCH) {
        if let Err(error) = wr.check(max_sge) {
            refused = Some(error);
            break;
        }
        let Some(c) = recv_wr(wr.id, sges_to_c(wr.sges)) else {
            refused = Some(PostError::Unsupported);
            break;
        };
        // SAFETY: there are not more than there are places.
        unsafe {
            first.wrapping_add(ready).write(c);
        }
        if ready > 0 {
            // SAFETY: the place before it.
            unsafe {
                (*first.wrapping_add(ready - 1)).next = first.wrapping_add(ready);
            }
        }
        ready += 1;
    }
    if ready > 0 {
        let mut bad = core::ptr::null_mut();
        let code = post(first, &raw mut bad);
        check(code).map_err(|errno| (index_of(first, bad, ready), not_posted(errno)))?;
    }
    refused.map_or(Ok(()), |error| Err((ready, error)))
}

/// A list of buffers as C has it.
#[inline]
fn sges_to_c(sges: &[Sge]) -> &[ibv_sge] {
    // SAFETY: both are laid out alike, as is asserted where they are converted one by one.
    unsafe { core::slice::from_raw_parts(sges.as_ptr().cast(), sges.len()) }
}

/// A completion of C.
#[inline]
pub(super) fn to_wc(wc: &ibv_wc) -> Wc {
    let mut wc = *wc;
    // rxe sets it also for connected queue pairs, whose receive buffers begin with the payload. A
    // datagram has a source.
    if wc.src_qp == 0 {
        wc.wc_flags &= !u32::from(WcFlags::GRH.bits());
    }
    wc.to_wc().unwrap_or_else(|| unknown(&wc))
}

/// A completion with an unknown value. It must not get lost: a program waits for it.
#[cold]
fn unknown(wc: &ibv_wc) -> Wc {
    Wc::new(WrId(wc.wr_id), WcStatus::GeneralErr, WcOpcode::Send, Qpn::new(wc.qp_num))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_into_a_list_is_its_place() {
        let mut list = [ibv_send_wr::zeroed(); 3];
        let first = list.as_mut_ptr();
        assert_eq!(index_of(first, first.wrapping_add(2), 3), 2);
        assert_eq!(index_of(first, first.wrapping_add(3), 3), 0);
        assert_eq!(index_of(first, core::ptr::null_mut(), 3), 0);
    }

    #[test]
    fn only_datagrams_begin_with_a_network_header() {
        let flags = WcFlags::GRH | WcFlags::WITH_IMM;
        let wc = ibv_wc { byte_len: 100, wc_flags: flags.bits().into(), ..ibv_wc::zeroed() };
        let connected = to_wc(&wc);
        assert_eq!((connected.flags(), connected.byte_len), (WcFlags::WITH_IMM, 100));
        assert_eq!(to_wc(&ibv_wc { src_qp: 7, ..wc }).flags(), flags);
    }

    #[test]
    fn keys_of_an_object_differ_in_eight_bits() {
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
        assert!(same_object(0x1234_56ff, next_key(0x1234_56ff)));
        assert!(!same_object(0x1234_56ff, 0x1234_57ff));
    }

    #[test]
    fn receives_are_a_list_that_ends() {
        let sges = [Sge { addr: 1, length: 2, lkey: crate::verbs::LKey::new(3) }; 2];
        let wrs: Vec<RecvWr<'_>> =
            (0..3).map(|id| RecvWr { id: WrId(id), sges: &sges[..1] }).collect();
        let seen = std::cell::RefCell::new(Vec::new());
        let post = |first: *mut ibv_recv_wr, _: *mut *mut ibv_recv_wr| {
            let mut at = first;
            while !at.is_null() {
                // SAFETY: the list is there until this returns.
                let wr = unsafe { *at };
                seen.borrow_mut().push((wr.wr_id, wr.num_sge));
                at = wr.next;
            }
            0
        };
        assert_eq!(with_receives(&wrs, 1, post), Ok(()));
        assert_eq!(*seen.borrow(), [(0, 1), (1, 1), (2, 1)]);
        let long = [RecvWr { id: WrId(0), sges: &sges[..1] }, RecvWr { id: WrId(1), sges: &sges }];
        let error = PostError::TooManySges { count: 2, max: 1 };
        assert_eq!(with_receives(&long, 1, |_, _| 0), Err((1, error)));
        assert_eq!(
            with_receives(&long[1..], 1, |_, _| panic!("nothing is ready")),
            Err((0, error))
        );
    }
}
