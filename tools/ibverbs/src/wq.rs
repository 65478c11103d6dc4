//! Receive queues without a queue pair, tables of them, and queue pairs that spread frames over
//! such a table.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use roce::ibverbs::{
    IBV_QP_INIT_ATTR_IND_TABLE, IBV_QP_INIT_ATTR_RX_HASH, IBV_RX_HASH_FUNC_TOEPLITZ,
    IBV_WQ_ATTR_CURR_STATE, IBV_WQ_ATTR_STATE, IBV_WQ_INIT_ATTR_FLAGS, IBV_WQT_RQ, ibv_context,
    ibv_qp_init_attr_ex, ibv_rss_caps, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr, ibv_wq,
    ibv_wq_attr, ibv_wq_init_attr,
};
use roce::nic::SoftNic;
use roce::raw_eth::{Rss, RxHash, RxHashFields, WqHandle, WqState};
use roce::verbs::QpType;
use roce::wire::Qpn;

use crate::call::{Failed, Result, code, pointer};
use crate::context::Context;
use crate::cq::Cq;
use crate::object::{Object, given, objects};
use crate::pd::{Pd, next_number};
use crate::post;

/// The largest table, as a power of two.
const TABLE_MAX: u32 = 10;

/// RSS capabilities of soft NICs with raw packets.
pub(crate) const CAPS: ibv_rss_caps = ibv_rss_caps {
    supported_qpts: 1 << QpType::RawPacket as u32,
    max_rwq_indirection_tables: 1 << 16,
    max_rwq_indirection_table_size: 1 << TABLE_MAX,
    rx_hash_fields_mask: RxHashFields::all().bits(),
    rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ,
};

/// A receive queue.
#[repr(C)]
pub(crate) struct Wq {
    c: UnsafeCell<ibv_wq>,
    pub(crate) nic: Arc<SoftNic>,
    pub(crate) handle: WqHandle,
    /// Number of entries of indirection tables that refer to it.
    places: AtomicU32,
}

/// A table of receive queues.
#[repr(C)]
pub(crate) struct Table {
    c: UnsafeCell<ibv_rwq_ind_table>,
    queues: Vec<&'static Wq>,
}

objects! {
    Wq: ibv_wq;
    Table: ibv_rwq_ind_table;
}

/// Makes a receive queue.
pub(crate) unsafe extern "C" fn create(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    pointer(|| {
        // SAFETY: the program says that it is open.
        let open = unsafe { Context::of(context) }?;
        // SAFETY: the program hands it over.
        let init = unsafe { given(attr) }?;
        if init.wq_type != IBV_WQT_RQ {
            return Err(Failed::EINVAL);
        }
        let flagged = init.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0 && init.create_flags != 0;
        let unknown = init.comp_mask & !IBV_WQ_INIT_ATTR_FLAGS != 0;
        if flagged || unknown || !open.nic.has_raw_packets() {
            return Err(Failed::EOPNOTSUPP);
        }
        // SAFETY: the program says that it is one.
        let pd = unsafe { Pd::live_in(init.pd, context) }?.handle;
        // SAFETY: the program says that it is one.
        let cq = unsafe { Cq::live_in(init.cq.cast(), context) }?.handle;
        let handle = open.nic.create_wq(pd, cq, init.max_wr, init.max_sge)?;
        let c = ibv_wq {
            context,
            wq_context: init.wq_context,
            pd: init.pd,
            cq: init.cq,
            wq_num: open.nic.wq_number(handle).map_or(0, Qpn::get),
            handle: next_number(),
            state: WqState::Reset.code(),
            wq_type: init.wq_type,
            post_recv: Some(post::post_wq_recv),
            ..ibv_wq::zeroed()
        };
        let (nic, places) = (Arc::clone(&open.nic), AtomicU32::new(0));
        Ok(Wq { c: UnsafeCell::new(c), nic, handle, places }.give())
    })
}

/// Brings a receive queue into another state.
pub(crate) unsafe extern "C" fn modify(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let queue = unsafe { Wq::live(wq) }?;
        // SAFETY: the program hands it over.
        let attr = unsafe { given(attr) }?;
        if attr.attr_mask & !(IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE) != 0 {
            return Err(Failed::EOPNOTSUPP);
        }
        // SAFETY: programs only read it.
        let now = unsafe { (*wq).state };
        if attr.attr_mask & IBV_WQ_ATTR_CURR_STATE != 0 && attr.curr_wq_state != now {
            return Err(Failed::EINVAL);
        }
        if attr.attr_mask & IBV_WQ_ATTR_STATE != 0 {
            let state = WqState::from_code(attr.wq_state).ok_or(Failed::EINVAL)?;
            queue.nic.modify_wq(queue.handle, state)?;
            // SAFETY: programs only read it.
            unsafe { (*wq).state = attr.wq_state };
        }
        Ok(())
    })
}

/// Destroys a receive queue that is in no table.
pub(crate) unsafe extern "C" fn destroy(wq: *mut ibv_wq) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let queue = unsafe { Wq::to_destroy(wq) }?;
        if queue.places.load(Ordering::Acquire) > 0 {
            return Err(Failed::EBUSY);
        }
        queue.nic.destroy_wq(queue.handle)?;
        // SAFETY: and that it does not need it any more.
        unsafe { Wq::take(wq) }.map(drop)
    })
}

/// Makes a table of receive queues.
pub(crate) unsafe extern "C" fn create_table(
    context: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    pointer(|| {
        // SAFETY: the program says that it is open.
        unsafe { Context::of(context) }?;
        // SAFETY: the program hands it over.
        let init = unsafe { given(attr) }?;
        if init.comp_mask != 0 || init.log_ind_tbl_size > TABLE_MAX || init.ind_tbl.is_null() {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program says that there are 2 to the power of `log_ind_tbl_size`.
        let places = unsafe { slice::from_raw_parts(init.ind_tbl, 1 << init.log_ind_tbl_size) };
        // SAFETY: the program says that each is one, and none is destroyed that is in a table.
        let queues =
            places.iter().map(|wq| unsafe { Wq::live(*wq) }).collect::<Result<Vec<_>>>()?;
        for queue in &queues {
            queue.places.fetch_add(1, Ordering::Relaxed);
        }
        let number = next_number().cast_signed();
        let c = ibv_rwq_ind_table {
            context,
            ind_tbl_handle: number,
            ind_tbl_num: number,
            comp_mask: 0,
        };
        Ok(Table { c: UnsafeCell::new(c), queues }.give())
    })
}

/// Destroys a table. Queue pairs keep what they know of it.
pub(crate) unsafe extern "C" fn destroy_table(table: *mut ibv_rwq_ind_table) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one, and does not need it any more.
        let table = unsafe { Table::take(table) }?;
        for queue in &table.queues {
            queue.places.fetch_sub(1, Ordering::Release);
        }
        Ok(())
    })
}

/// Returns the RSS configuration of a queue pair, if it has one.
///
/// # Safety
///
/// What `init` names must be what it says.
pub(crate) unsafe fn spread(init: &ibv_qp_init_attr_ex) -> Result<Option<Rss>> {
    let both = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    match init.comp_mask & both {
        0 => return Ok(None),
        mask if mask == both && init.qp_type == QpType::RawPacket as u32 => {}
        _ => return Err(Failed::EINVAL),
    }
    // SAFETY: the caller vouches for it.
    let table: &Table = unsafe { Table::live(init.rwq_ind_tbl) }?;
    let conf = init.rx_hash_conf;
    if conf.rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ || conf.rx_hash_key.is_null() {
        return Err(Failed::EOPNOTSUPP);
    }
    let fields = RxHashFields::from_bits(conf.rx_hash_fields_mask).ok_or(Failed::EOPNOTSUPP)?;
    // SAFETY: the caller vouches for the key.
    let key = unsafe { slice::from_raw_parts(conf.rx_hash_key, conf.rx_hash_key_len.into()) };
    let queues = table.queues.iter().map(|queue| queue.handle).collect();
    Ok(Some(Rss { queues, hash: RxHash { key: key.to_vec(), fields } }))
}
