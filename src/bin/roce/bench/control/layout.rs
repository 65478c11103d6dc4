//! Layout of the registered memory of one side of a benchmark.

use anyhow::ensure;
use roce::verbs::limits::GRH_BYTES;

use super::plan::{ATOMIC_SIZE, Plan, RECEIVES};

/// Maximum memory of receives whose content is not checked: they share slots.
const SLOT_BYTES: usize = 16 << 20;

/// Maximum memory of receives whose content is checked: each has its own slot.
const VERIFIED_BYTES: usize = 48 << 20;

/// Upper bounds for what a NIC and this program keep for each send, receive, completion and queue
/// pair.
const SEND_BYTES: u64 = 256;
const RECEIVE_BYTES: u64 = 128;
const COMPLETION_BYTES: u64 = 64;
const QP_BYTES: u64 = 8192;

/// Offsets in a side's memory. Both sides compute them from the plan, so each knows the other's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Data that is sent, written, and read by the peer.
    pub(crate) source: usize,
    /// Data that the peer writes.
    pub(crate) target: usize,
    /// Data that is read from the peer.
    pub(crate) landing: usize,
    /// Counters that the peer adds to, eight bytes for each queue pair.
    pub(crate) counters: usize,
    /// Previous values of the peer's counters, eight bytes for each queue pair.
    pub(crate) results: usize,
    /// Slots in which messages are received.
    pub(crate) slots: usize,
    /// Distance from one slot to the next.
    pub(crate) stride: usize,
    pub(crate) slot_count: usize,
    pub(crate) receives_per_qp: usize,
    pub(crate) end: usize,
}

impl Layout {
    pub(crate) fn new(plan: &Plan) -> anyhow::Result<Self> {
        let (size, qps) = (plan.size_max() as usize, plan.qps as usize);
        let words = round_up(qps * ATOMIC_SIZE as usize);
        let area = round_up(size);
        let stride = round_up(size + GRH_BYTES as usize);
        let receives_max = plan.receives_per_qp_max() as usize;
        let receives_per_qp = match (plan.takes_receives(), plan.verify) {
            (false, _) => 0,
            (true, false) => receives_max,
            (true, true) => (VERIFIED_BYTES / stride / qps).min(receives_max),
        };
        ensure!(
            receives_per_qp > 0 || !plan.takes_receives(),
            "--verify: {qps} queue pairs have no room for receives of {size} bytes: use fewer (-q), \
             smaller messages (-s), or leave --verify out"
        );
        let all = qps * receives_per_qp;
        let slot_count = if plan.verify {
            all
        } else {
            all.min((SLOT_BYTES / stride).clamp(1, RECEIVES as usize))
        };
        let target = area;
        let landing = target + area;
        let counters = landing + area;
        let results = counters + words;
        let slots = results + words;
        let end = slots + slot_count * stride;
        Ok(Self {
            source: 0,
            target,
            landing,
            counters,
            results,
            slots,
            stride,
            slot_count,
            receives_per_qp,
            end,
        })
    }
}

/// Returns the maximum number of bytes that one side takes, in registered memory and in queues.
pub(crate) fn memory(plan: &Plan) -> anyhow::Result<u64> {
    let layout = Layout::new(plan)?;
    let (qps, sends) = (u64::from(plan.qps), u64::from(plan.tx_depth));
    let receives = layout.receives_per_qp as u64;
    let per_qp = sends * (SEND_BYTES + COMPLETION_BYTES)
        + receives * (RECEIVE_BYTES + COMPLETION_BYTES)
        + QP_BYTES;
    // The pattern that is sent, and a copy to compare with it, are outside the registered memory.
    Ok(layout.end as u64 + 2 * u64::from(plan.size_max()) + qps * per_qp)
}

/// Rounds up to whole cache lines.
const fn round_up(bytes: usize) -> usize {
    bytes.next_multiple_of(64)
}
