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

/// Conversions between a struct of the kernel and one of libibverbs, both ways: first the fields
/// that are the same, then what each way has beside them.
macro_rules! conversions {
    ($($kernel:ident = $user:ident {
        $($same:ident)*
    } to_user($from_kernel:ident) { $($to_user:tt)* } to_kernel($from_user:ident) { $($to_kernel:tt)* })*) => {
        $(
            impl From<&$kernel> for $user {
                fn from($from_kernel: &$kernel) -> Self {
                    Self { $($same: $from_kernel.$same,)* $($to_user)* }
                }
            }

            impl From<&$user> for $kernel {
                fn from($from_user: &$user) -> Self {
                    Self { $($same: $from_user.$same,)* $($to_kernel)* }
                }
            }
        )*
    };
}

conversions! {
    KernAhAttr = ibv_ah_attr {
        dlid sl src_path_bits static_rate is_global port_num
    } to_user(attr) {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: attr.dgid },
            flow_label: attr.flow_label,
            sgid_index: attr.sgid_index,
            hop_limit: attr.hop_limit,
            traffic_class: attr.traffic_class,
        }
    } to_kernel(attr) {
        dgid: attr.grh.dgid.raw,
        flow_label: attr.grh.flow_label,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        reserved: 0,
        reserved_too: 0
    }

    KernQpAttr = ibv_qp_attr {
        qp_state cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags pkey_index
        alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout
        retry_cnt rnr_retry alt_port_num alt_timeout
    } to_user(attr) {
        cap: ibv_qp_cap {
            max_send_wr: attr.max_send_wr,
            max_recv_wr: attr.max_recv_wr,
            max_send_sge: attr.max_send_sge,
            max_recv_sge: attr.max_recv_sge,
            max_inline_data: attr.max_inline_data,
        },
        ah_attr: (&attr.ah_attr).into(),
        alt_ah_attr: (&attr.alt_ah_attr).into(),
        rate_limit: 0
    } to_kernel(attr) {
        qp_attr_mask: 0,
        ah_attr: (&attr.ah_attr).into(),
        alt_ah_attr: (&attr.alt_ah_attr).into(),
        max_send_wr: attr.cap.max_send_wr,
        max_recv_wr: attr.cap.max_recv_wr,
        max_send_sge: attr.cap.max_send_sge,
        max_recv_sge: attr.cap.max_recv_sge,
        max_inline_data: attr.cap.max_inline_data,
        reserved: [0; 5]
    }

    KernPathRec = PathRec {
        dlid slid flow_label hop_limit traffic_class numb_path pkey sl mtu_selector rate_selector rate
        packet_life_time_selector packet_life_time preference
    } to_user(path) {
        dgid: ibv_gid { raw: path.dgid },
        sgid: ibv_gid { raw: path.sgid },
        raw_traffic: path.raw_traffic.cast_signed(),
        reversible: path.reversible.cast_signed(),
        mtu: path.mtu.to_le_bytes()[0]
    } to_kernel(path) {
        dgid: path.dgid.raw,
        sgid: path.sgid.raw,
        raw_traffic: path.raw_traffic.cast_unsigned(),
        reversible: path.reversible.cast_unsigned(),
        mtu: u32::from(path.mtu)
    }
}

impl KernQpAttr {
    /// The attributes, of which those in the mask count.
    pub(crate) fn new(mask: u32, attr: &ibv_qp_attr) -> Self {
        Self { qp_attr_mask: mask, ..attr.into() }
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
    /// Copies a path record to the kernel's structure.
    ibv_copy_path_rec_to_kern: PathRec => KernPathRec;
}
