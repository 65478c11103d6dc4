//! All layouts and constants that are declared here, so that a test can compare them with a C
//! compiler's.

use super::constants::{self, Constant};
use super::layout::Layout;
use super::{address, context, cq, device, flow, memory, qp, rdmacm, srq, wq, wr};

/// Every structure and union, with its fields.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    let rooms = [
        address::LAYOUTS,
        device::LAYOUTS,
        context::LAYOUTS,
        memory::LAYOUTS,
        cq::LAYOUTS,
        wr::LAYOUTS,
        srq::LAYOUTS,
        qp::LAYOUTS,
        wq::LAYOUTS,
        flow::LAYOUTS,
        rdmacm::LAYOUTS,
    ];
    rooms.into_iter().flatten()
}

/// Every constant that this room declares.
pub fn constants() -> impl Iterator<Item = &'static Constant> {
    constants::CONSTANTS.iter()
}

/// Names in C that were added after rdma-core 44: a header of that age does not have them. Fields
/// are at the end of their structures, so that what is before them is where it always was.
pub const NEWER: &[&str] = &[
    "active_speed_ex",
    "ibv_dmah",
    "ibv_dmah_init_attr",
    "ibv_mr_init_attr",
    "wr_flush",
    "IBV_ACCESS_FLUSH_GLOBAL",
    "IBV_ACCESS_FLUSH_PERSISTENT",
    "IBV_DEVICE_ATOMIC_WRITE",
    "IBV_DEVICE_FLUSH_GLOBAL",
    "IBV_DEVICE_FLUSH_PERSISTENT",
    "IBV_EVENT_DEVICE_SPEED_CHANGE",
    "IBV_FLUSH_GLOBAL",
    "IBV_FLUSH_MR",
    "IBV_FLUSH_PERSISTENT",
    "IBV_FLUSH_RANGE",
    "IBV_QP_EX_WITH_FLUSH",
    "IBV_WC_FLUSH",
    "IBV_WR_FLUSH",
];
