//! Structures of the kernel that `librdmacm` has this library turn into those of verbs.

use std::ffi::c_int;

use roce::ibverbs::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::call::quiet;
use crate::object::{answer, given};

/// The kernel's way to a peer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct KernAhAttr {
    pub(crate) dgid: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) sgid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) reserved: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port_num: u8,
    pub(crate) reserved_too: u8,
}

/// The kernel's attributes of a queue pair.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct KernQpAttr {
    pub(crate) qp_attr_mask: u32,
    pub(crate) qp_state: u32,
    pub(crate) cur_qp_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) path_mig_state: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) dest_qp_num: u32,
    pub(crate) qp_access_flags: u32,
    pub(crate) ah_attr: KernAhAttr,
    pub(crate) alt_ah_attr: KernAhAttr,
    pub(crate) max_send_wr: u32,
    pub(crate) max_recv_wr: u32,
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_inline_data: u32,
    pub(crate) pkey_index: u16,
    pub(crate) alt_pkey_index: u16,
    pub(crate) en_sqd_async_notify: u8,
    pub(crate) sq_draining: u8,
    pub(crate) max_rd_atomic: u8,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port_num: u8,
    pub(crate) timeout: u8,
    pub(crate) retry_cnt: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) alt_port_num: u8,
    pub(crate) alt_timeout: u8,
    pub(crate) reserved: [u8; 5],
}

/// The kernel's record of a path.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct KernPathRec {
    pub(crate) dgid: [u8; 16],
    pub(crate) sgid: [u8; 16],
    pub(crate) dlid: u16,
    pub(crate) slid: u16,
    pub(crate) raw_traffic: u32,
    pub(crate) flow_label: u32,
    pub(crate) reversible: u32,
    pub(crate) mtu: u32,
    pub(crate) pkey: u16,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) numb_path: u8,
    pub(crate) sl: u8,
    pub(crate) mtu_selector: u8,
    pub(crate) rate_selector: u8,
    pub(crate) rate: u8,
    pub(crate) packet_life_time_selector: u8,
    pub(crate) packet_life_time: u8,
    pub(crate) preference: u8,
}

/// A program's record of a path.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct PathRec {
    dgid: ibv_gid,
    sgid: ibv_gid,
    dlid: u16,
    slid: u16,
    raw_traffic: c_int,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: c_int,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

impl From<&KernAhAttr> for ibv_ah_attr {
    fn from(attr: &KernAhAttr) -> Self {
        Self {
            grh: ibv_global_route {
                dgid: ibv_gid { raw: attr.dgid },
                flow_label: attr.flow_label,
                sgid_index: attr.sgid_index,
                hop_limit: attr.hop_limit,
                traffic_class: attr.traffic_class,
            },
            dlid: attr.dlid,
            sl: attr.sl,
            src_path_bits: attr.src_path_bits,
            static_rate: attr.static_rate,
            is_global: attr.is_global,
            port_num: attr.port_num,
        }
    }
}

impl From<&ibv_ah_attr> for KernAhAttr {
    fn from(attr: &ibv_ah_attr) -> Self {
        Self {
            dgid: attr.grh.dgid.raw,
            flow_label: attr.grh.flow_label,
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
            reserved: 0,
            dlid: attr.dlid,
            sl: attr.sl,
            src_path_bits: attr.src_path_bits,
            static_rate: attr.static_rate,
            is_global: attr.is_global,
            port_num: attr.port_num,
            reserved_too: 0,
        }
    }
}

impl KernQpAttr {
    /// The attributes, of which those in the mask count.
    pub(crate) fn new(mask: u32, attr: &ibv_qp_attr) -> Self {
        Self {
            qp_attr_mask: mask,
            qp_state: attr.qp_state,
            cur_qp_state: attr.cur_qp_state,
            path_mtu: attr.path_mtu,
            path_mig_state: attr.path_mig_state,
            qkey: attr.qkey,
            rq_psn: attr.rq_psn,
            sq_psn: attr.sq_psn,
            dest_qp_num: attr.dest_qp_num,
            qp_access_flags: attr.qp_access_flags,
            ah_attr: (&attr.ah_attr).into(),
            alt_ah_attr: (&attr.alt_ah_attr).into(),
            max_send_wr: attr.cap.max_send_wr,
            max_recv_wr: attr.cap.max_recv_wr,
            max_send_sge: attr.cap.max_send_sge,
            max_recv_sge: attr.cap.max_recv_sge,
            max_inline_data: attr.cap.max_inline_data,
            pkey_index: attr.pkey_index,
            alt_pkey_index: attr.alt_pkey_index,
            en_sqd_async_notify: attr.en_sqd_async_notify,
            sq_draining: attr.sq_draining,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            port_num: attr.port_num,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            alt_port_num: attr.alt_port_num,
            alt_timeout: attr.alt_timeout,
            reserved: [0; 5],
        }
    }
}

impl From<&KernQpAttr> for ibv_qp_attr {
    fn from(attr: &KernQpAttr) -> Self {
        Self {
            qp_state: attr.qp_state,
            cur_qp_state: attr.cur_qp_state,
            path_mtu: attr.path_mtu,
            path_mig_state: attr.path_mig_state,
            qkey: attr.qkey,
            rq_psn: attr.rq_psn,
            sq_psn: attr.sq_psn,
            dest_qp_num: attr.dest_qp_num,
            qp_access_flags: attr.qp_access_flags,
            cap: ibv_qp_cap {
                max_send_wr: attr.max_send_wr,
                max_recv_wr: attr.max_recv_wr,
                max_send_sge: attr.max_send_sge,
                max_recv_sge: attr.max_recv_sge,
                max_inline_data: attr.max_inline_data,
            },
            ah_attr: (&attr.ah_attr).into(),
            alt_ah_attr: (&attr.alt_ah_attr).into(),
            pkey_index: attr.pkey_index,
            alt_pkey_index: attr.alt_pkey_index,
            en_sqd_async_notify: attr.en_sqd_async_notify,
            sq_draining: attr.sq_draining,
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
            port_num: attr.port_num,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            alt_port_num: attr.alt_port_num,
            alt_timeout: attr.alt_timeout,
            rate_limit: 0,
        }
    }
}

impl From<&KernPathRec> for PathRec {
    fn from(path: &KernPathRec) -> Self {
        Self {
            dgid: ibv_gid { raw: path.dgid },
            sgid: ibv_gid { raw: path.sgid },
            dlid: path.dlid,
            slid: path.slid,
            raw_traffic: path.raw_traffic.cast_signed(),
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            reversible: path.reversible.cast_signed(),
            numb_path: path.numb_path,
            pkey: path.pkey,
            sl: path.sl,
            mtu_selector: path.mtu_selector,
            mtu: path.mtu.to_le_bytes()[0],
            rate_selector: path.rate_selector,
            rate: path.rate,
            packet_life_time_selector: path.packet_life_time_selector,
            packet_life_time: path.packet_life_time,
            preference: path.preference,
        }
    }
}

impl From<&PathRec> for KernPathRec {
    fn from(path: &PathRec) -> Self {
        Self {
            dgid: path.dgid.raw,
            sgid: path.sgid.raw,
            dlid: path.dlid,
            slid: path.slid,
            raw_traffic: path.raw_traffic.cast_unsigned(),
            flow_label: path.flow_label,
            reversible: path.reversible.cast_unsigned(),
            mtu: u32::from(path.mtu),
            pkey: path.pkey,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            numb_path: path.numb_path,
            sl: path.sl,
            mtu_selector: path.mtu_selector,
            rate_selector: path.rate_selector,
            rate: path.rate,
            packet_life_time_selector: path.packet_life_time_selector,
            packet_life_time: path.packet_life_time,
            preference: path.preference,
        }
    }
}

macro_rules! copies {
    ($($(#[$doc:meta])* $function:ident: $from:ty => $to:ty;)*) => {
        $(
            $(#[$doc])*
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $function(to: *mut $to, from: *const $from) {
                quiet(|| {
                    // SAFETY: the program hands it over.
                    let from = unsafe { given(from) }?;
                    // SAFETY: the program has room for it.
                    unsafe { answer(to, from.into()) }
                });
            }
        )*
    };
}

copies! {
    /// The way to a peer.
    ibv_copy_ah_attr_from_kern: KernAhAttr => ibv_ah_attr;
    /// The attributes of a queue pair.
    ibv_copy_qp_attr_from_kern: KernQpAttr => ibv_qp_attr;
    /// The record of a path.
    ibv_copy_path_rec_from_kern: KernPathRec => PathRec;
    /// The same the other way.
    ibv_copy_path_rec_to_kern: PathRec => KernPathRec;
}
