//! Completion queues whose completions have the time at which the RNIC reported them.
//!
//! Such a queue is an extended one (`ibv_create_cq_ex`), whose completions are read field by field.
//! A driver that has none, or no time stamps, gives an ordinary queue.
#![allow(unsafe_code, reason = "calls of libibverbs and its drivers")]

use core::ffi::{c_int, c_uint};
use core::ptr::null_mut;
use std::sync::Arc;

use super::RdmaNic;
use super::context::{Context, extended};
use super::errors::{check, not_made};
use super::events::to_c;
use super::make::named;
use super::object::Made;
use crate::ibverbs::{
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    IBV_WC_STANDARD_FLAGS, ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_device_attr_ex, ibv_poll_cq_attr, ibv_wc,
};
use crate::time::Instant;
use crate::verbs::{CqHandle, CreateError, Wc};

/// The clock of the time stamps of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timing {
    /// Completions have no time stamps, and are polled as a whole.
    None,
    /// Nanoseconds.
    Wallclock,
    /// Cycles of the RNIC; the number is its frequency in kHz.
    Cycles(u64),
}

impl Context {
    /// Returns the frequency of the RNIC's clock in kHz, if the device reports it.
    fn clock_khz(&self) -> Option<u64> {
        let query = extended!(self, query_device_ex)?;
        let mut attr = ibv_device_attr_ex::zeroed();
        // SAFETY: the device is open, nothing more is asked, and there is room for as much as is
        // said.
        let code =
            unsafe { query(self.at(), core::ptr::null(), &raw mut attr, size_of_val(&attr)) };
        check(code).ok()?;
        (attr.hca_core_clock > 0).then_some(attr.hca_core_clock)
    }
}

impl RdmaNic {
    /// Makes a completion queue with the best time stamps that the device has.
    pub(super) fn make_timed_cq(
        &self,
        capacity: usize,
        channel: Arc<Made<ibv_comp_channel>>,
    ) -> Result<CqHandle, CreateError> {
        let cycles = self.context.clock_khz().map(Timing::Cycles);
        for timing in [Some(Timing::Wallclock), cycles].into_iter().flatten() {
            if let Some(made) = self.try_make_timed_cq(capacity, &channel, timing) {
                return Ok(made);
            }
        }
        self.make_cq(capacity, Some(channel))
    }

    fn try_make_timed_cq(
        &self,
        capacity: usize,
        channel: &Arc<Made<ibv_comp_channel>>,
        timing: Timing,
    ) -> Option<CqHandle> {
        let make = extended!(self.context, create_cq_ex)?;
        let flag = match timing {
            Timing::None => return None,
            Timing::Wallclock => IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
            Timing::Cycles(_) => IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
        };
        let cqe = u32::try_from(capacity).ok()?;
        let made = self.cqs.make(|id| {
            let mut attr = ibv_cq_init_attr_ex {
                cqe,
                cq_context: to_c(id),
                channel: channel.at(),
                comp_vector: 0,
                wc_flags: IBV_WC_STANDARD_FLAGS | flag,
                comp_mask: 0,
                flags: 0,
                parent_domain: null_mut(),
            };
            // SAFETY: the device is open, the channel is held, the name is never followed, and the
            // attributes are there until this returns.
            let at = unsafe { make(self.context.at(), &raw mut attr) };
            // An extended queue begins as an ordinary one.
            let at = at.cast::<ibv_cq>();
            Made::new(&self.context, at, timing, Some(Arc::clone(channel))).map_err(not_made)
        });
        named(made, CreateError::Full).map(CqHandle).ok()
    }

    /// Takes the oldest completion of a queue, with its time if the queue has time stamps.
    pub(super) fn poll_timed(&self, cq: CqHandle) -> Option<(Wc, Option<Instant>)> {
        let timing = self.cqs.read().get(cq.0)?.facts;
        if timing == Timing::None {
            let mut wc = [Wc::default()];
            return (self.poll(cq, &mut wc) == 1).then_some((wc[0], None));
        }
        let cqs = self.cqs.read();
        let at: *mut ibv_cq_ex = cqs.get(cq.0)?.at().cast();
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: the queue is held, and was made as an extended one.
        let start = unsafe { (*at).start_poll }?;
        // SAFETY: as above; the attributes are there until this returns.
        let code: c_int = unsafe { start(at, &raw mut attr) };
        if code != 0 {
            return None;
        }
        let taken = read(at, timing);
        // SAFETY: as above, and polling has begun.
        let end = unsafe { (*at).end_poll };
        if let Some(end) = end {
            // SAFETY: as above.
            unsafe {
                end(at);
            }
        }
        taken
    }
}

/// Reads a field of the completion that is being polled; zero if the queue has none of it.
macro_rules! field {
    ($at:expr, $name:ident) => {{
        // SAFETY: the caller holds the queue, an extended one that is being polled.
        let function = unsafe { (*$at).$name };
        match function {
            // SAFETY: as above.
            Some(function) => unsafe { function($at) },
            None => 0,
        }
    }};
}

/// The completion at which the polling of an extended queue stands.
fn read(at: *mut ibv_cq_ex, timing: Timing) -> Option<(Wc, Option<Instant>)> {
    // SAFETY: the caller holds the queue, an extended one that is being polled.
    let wr_id: u64 = unsafe { (*at).wr_id };
    // SAFETY: as above.
    let status: c_uint = unsafe { (*at).status };
    let mut wc = ibv_wc { wr_id, status, ..ibv_wc::zeroed() };
    wc.qp_num = field!(at, read_qp_num);
    wc.vendor_err = field!(at, read_vendor_err);
    // Of a failed one, nothing else means anything, and drivers may not know it.
    if status == 0 {
        wc.opcode = field!(at, read_opcode);
        wc.wc_flags = field!(at, read_wc_flags);
        wc.byte_len = field!(at, read_byte_len);
        wc.imm_data = field!(at, read_imm_data);
        wc.src_qp = field!(at, read_src_qp);
        wc.sl = field!(at, read_sl);
    }
    let time = match timing {
        Timing::None => None,
        Timing::Wallclock => Some(field!(at, read_completion_wallclock_ns)),
        Timing::Cycles(khz) => {
            let cycles = u128::from(field!(at, read_completion_ts));
            u64::try_from(cycles * 1_000_000 / u128::from(khz.max(1))).ok()
        }
    };
    let time = time.filter(|_| status == 0).map(Instant::from_nanos);
    Some((super::data::to_wc(&wc), time))
}
