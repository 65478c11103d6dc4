//! Completion queues whose completions are read field by field, and tell when they came.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use roce::ibverbs::{
    IBV_CQ_INIT_ATTR_MASK_FLAGS, IBV_CQ_INIT_ATTR_MASK_PD, IBV_CREATE_CQ_ATTR_SINGLE_THREADED,
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    IBV_WC_STANDARD_FLAGS, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr,
};
use roce::nic::SpinPolicy;
use roce::time::Instant;
use roce::verbs::Wc;

use crate::call::{Failed, Result, fast_quiet, pointer};
use crate::cq::{Cq, ibv_destroy_cq, size};
use crate::events::lock;
use crate::object::{Object, given};
use crate::pd::Pd;

/// Flags of the time stamps of completions.
const TIMES: u64 =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Flags of the fields that completions have.
const FIELDS: u64 = IBV_WC_STANDARD_FLAGS | TIMES;

/// The completion that a program is looking at, and whose turn it is to look.
#[derive(Debug, Default)]
pub(crate) struct Poll {
    taken: Mutex<bool>,
    given_back: Condvar,
    /// Nanoseconds from 1970 to the beginning of the NIC's clock. Found out once, so that the wall
    /// clock of successive completions runs as evenly as the NIC's.
    epoch: OnceLock<u64>,
    /// State of the thread that has the turn.
    current: UnsafeCell<(Wc, Option<Instant>)>,
}

impl Poll {
    fn take_turn(&self) {
        let free = self.given_back.wait_while(lock(&self.taken), |taken| *taken);
        *free.unwrap_or_else(PoisonError::into_inner) = true;
    }

    fn give_turn(&self) {
        *lock(&self.taken) = false;
        self.given_back.notify_one();
    }
}

/// The functions by which completions are read.
const READERS: ibv_cq_ex = ibv_cq_ex {
    start_poll: Some(start_poll),
    next_poll: Some(next_poll),
    end_poll: Some(end_poll),
    read_opcode: Some(read_opcode),
    read_vendor_err: Some(read_vendor_err),
    read_byte_len: Some(read_byte_len),
    read_imm_data: Some(read_imm_data),
    read_qp_num: Some(read_qp_num),
    read_src_qp: Some(read_src_qp),
    read_wc_flags: Some(read_wc_flags),
    read_slid: Some(read_slid),
    read_sl: Some(read_sl),
    read_dlid_path_bits: Some(read_dlid_path_bits),
    read_completion_ts: Some(read_completion_ts),
    read_completion_wallclock_ns: Some(read_completion_wallclock_ns),
    ..ibv_cq_ex::zeroed()
};

/// Makes a completion queue whose completions are read field by field.
pub(crate) unsafe extern "C" fn create(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: the program hands it over.
        let attr = unsafe { given(attr) }?;
        check(attr)?;
        let wanted = size(c_int::try_from(attr.cqe).map_err(|_| Failed::EINVAL)?)?;
        let (name, channel, vector) = (attr.cq_context, attr.channel, attr.comp_vector);
        // SAFETY: the program says that the context is open, and the channel one.
        let cq = unsafe { Cq::create(context, wanted, name, channel, vector, &READERS) }?;
        if attr.wc_flags & TIMES != 0 {
            // SAFETY: it was just made.
            let queue = unsafe { Cq::of(cq) }?;
            if let Err(error) = queue.nic.enable_timestamps(queue.handle) {
                // SAFETY: the program has not seen it.
                unsafe { ibv_destroy_cq(cq.cast()) };
                return Err(error.into());
            }
        }
        Ok(cq)
    })
}

/// Whether a soft NIC can do what is wanted.
fn check(attr: &ibv_cq_init_attr_ex) -> Result<()> {
    let has = |flag| attr.comp_mask & flag != 0;
    let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    let flags = if has(IBV_CQ_INIT_ATTR_MASK_FLAGS) { attr.flags } else { 0 };
    // A queue that overruns loses completions, always.
    let unable = attr.wc_flags & !FIELDS != 0
        || attr.comp_mask & !known != 0
        || flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0;
    if unable {
        return Err(Failed::EOPNOTSUPP);
    }
    if has(IBV_CQ_INIT_ATTR_MASK_PD) {
        // SAFETY: the program says that it is a domain.
        unsafe { Pd::live(attr.parent_domain) }?;
    }
    Ok(())
}

/// Looks at the next completion, if there is one.
fn next(queue: &Cq) -> c_int {
    let polled = queue.nic.poll_cq_timed(queue.handle);
    let Some((wc, time)) = polled else {
        return if queue.nic.has_failed() { libc::EIO } else { libc::ENOENT };
    };
    let c = queue.c.get();
    // SAFETY: programs read it when they were told that there is a completion, which they are after
    // this.
    unsafe { (*c).wr_id = wc.id.0 };
    // SAFETY: as above.
    unsafe { (*c).status = wc.status.code() };
    // SAFETY: the polling thread has the turn, and no other reads it.
    unsafe { *queue.poll.current.get() = (wc, time) };
    0
}

/// The program begins to look at completions. If there is none, it need not end.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program says that it is one.
    let queue = match unsafe { Cq::of(cq) } {
        Ok(queue) => queue,
        Err(Failed(code)) => return code,
    };
    // SAFETY: the program may hand it over.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    queue.poll.take_turn();
    let found = next(queue);
    if found != 0 {
        queue.poll.give_turn();
    }
    SpinPolicy::polled(usize::from(found == 0));
    found
}

/// The program looks at the next completion.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program says that it is one.
    unsafe { Cq::of(cq) }.map_or_else(|Failed(code)| code, next)
}

/// The program has seen enough.
unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    fast_quiet(|| {
        // SAFETY: the program says that it is one.
        unsafe { Cq::of(cq) }?.poll.give_turn();
        Ok(())
    });
}

/// Declares how a field of the completion is read that a program is looking at.
macro_rules! readers {
    ($($(#[$doc:meta])* $name:ident: $type:ty = |$queue:ident, $wc:ident, $time:ident| $read:expr;)*) => {
        $(
            $(#[$doc])*
            unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
                // SAFETY: the program says that it is one.
                let Ok($queue) = (unsafe { Cq::of(cq) }) else { return 0 };
                // SAFETY: the reading thread has the turn, and no other writes.
                let ($wc, $time) = unsafe { *$queue.poll.current.get() };
                let _ = ($queue, $wc, $time);
                $read
            }
        )*
    };
}

readers! {
    /// Opcode.
    read_opcode: c_uint = |queue, wc, time| wc.opcode.code();
    /// Error code of the vendor.
    read_vendor_err: u32 = |queue, wc, time| u32::from(wc.vendor_err);
    /// Number of bytes.
    read_byte_len: u32 = |queue, wc, time| wc.byte_len;
    /// Immediate data, or a key that was invalidated.
    read_imm_data: u32 = |queue, wc, time| u32::from_ne_bytes(wc.imm_or_rkey());
    /// Number of the queue pair.
    read_qp_num: u32 = |queue, wc, time| wc.qp_num.get();
    /// Number of the queue pair that sent it.
    read_src_qp: u32 = |queue, wc, time| wc.src_qp.get();
    /// Flags.
    read_wc_flags: c_uint = |queue, wc, time| u32::from(wc.flags().bits());
    /// Source port, which InfiniBand alone has.
    read_slid: u32 = |queue, wc, time| 0;
    /// The service level.
    read_sl: u8 = |queue, wc, time| wc.sl;
    /// Destination path bits, which InfiniBand alone has.
    read_dlid_path_bits: u8 = |queue, wc, time| 0;
    /// Time by the NIC's clock.
    read_completion_ts: u64 = |queue, wc, time| time.map_or(0, Instant::as_nanos);
    /// Time in nanoseconds since 1970.
    read_completion_wallclock_ns: u64 = |queue, wc, time| {
        time.map_or(0, |time| time.as_nanos().saturating_add(*queue.poll.epoch.get_or_init(|| {
            wall_clock().saturating_sub(queue.nic.now().as_nanos())
        })))
    };
}

/// Nanoseconds since 1970.
fn wall_clock() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "this is what is asked for")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
