//! Conversions of GIDs and of the attributes of queue pairs, from C and to C.

use core::ffi::{c_char, c_int};

use super::super::{
    IBV_QPF_GRH_REQUIRED, ibv_ah_attr, ibv_device_attr, ibv_gid, ibv_global_route, ibv_port_attr,
    ibv_qp_attr, ibv_qp_cap, ibv_srq_attr,
};
use crate::verbs::{
    Access, AckTimeout, AhAttr, AtomicCap, AttrMask, DeviceAttr, DeviceCaps, Guid, LinkLayer,
    MigState, ModifyError, Mtu, PhysState, PortAttr, PortCaps, PortNum, PortState, QpAttr, QpCap,
    QpState, RetryCount, RnrRetry, SrqAttr,
};
use crate::wire::aeth::RnrTimer;
use crate::wire::{Bits, Gid, Psn, QKey, Qpn};

impl From<Gid> for ibv_gid {
    fn from(gid: Gid) -> Self {
        Self { raw: gid.0 }
    }
}

impl From<ibv_gid> for Gid {
    fn from(gid: ibv_gid) -> Self {
        Self(gid.raw)
    }
}

impl From<AhAttr> for ibv_ah_attr {
    fn from(attr: AhAttr) -> Self {
        Self {
            grh: ibv_global_route {
                dgid: attr.dgid.into(),
                flow_label: attr.flow_label.get(),
                sgid_index: attr.sgid_index,
                hop_limit: attr.hop_limit,
                traffic_class: attr.traffic_class,
            },
            dlid: attr.dlid,
            sl: low_byte(attr.sl.get()),
            src_path_bits: attr.src_path_bits,
            static_rate: attr.static_rate,
            is_global: 1,
            port_num: attr.port_num.0,
        }
    }
}

impl ibv_ah_attr {
    /// Converts the address to an [`AhAttr`]. Returns `None` if it has no GRH, which every address
    /// on Ethernet needs. Numbers that are too long are cut to their lower bits: some programs set
    /// all bits of a flow label.
    pub fn to_ah_attr(&self) -> Option<AhAttr> {
        if self.is_global == 0 {
            return None;
        }
        Some(AhAttr {
            dgid: self.grh.dgid.into(),
            sgid_index: self.grh.sgid_index,
            flow_label: Bits::low(self.grh.flow_label),
            hop_limit: self.grh.hop_limit,
            traffic_class: self.grh.traffic_class,
            sl: Bits::low(u32::from(self.sl)),
            port_num: PortNum(self.port_num),
            static_rate: self.static_rate,
            src_path_bits: self.src_path_bits,
            dlid: self.dlid,
        })
    }
}

/// Conversions both ways between structures whose fields have the same names and types.
macro_rules! convert_fields {
    ($($words:ident, $c:ident { $($field:ident),* })*) => {$(
        impl From<$words> for $c {
            fn from(from: $words) -> Self {
                Self { $($field: from.$field),* }
            }
        }

        impl From<$c> for $words {
            fn from(from: $c) -> Self {
                Self { $($field: from.$field),* }
            }
        }
    )*};
}

convert_fields! {
    QpCap, ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    SrqAttr, ibv_srq_attr { max_wr, max_sge, srq_limit }
}

impl From<&QpAttr> for ibv_qp_attr {
    fn from(attr: &QpAttr) -> Self {
        Self {
            qp_state: attr.qp_state.code(),
            cur_qp_state: attr.cur_qp_state.code(),
            path_mtu: attr.path_mtu.code(),
            path_mig_state: attr.path_mig_state.code(),
            qkey: attr.qkey.get(),
            rq_psn: attr.rq_psn.get(),
            sq_psn: attr.sq_psn.get(),
            dest_qp_num: attr.dest_qp_num.get(),
            qp_access_flags: attr.qp_access_flags.bits(),
            cap: attr.cap.into(),
            ah_attr: attr.ah_attr.into(),
            alt_ah_attr: attr.alt_ah_attr.into(),
            pkey_index: attr.pkey_index,
            alt_pkey_index: attr.alt_pkey_index,
            en_sqd_async_notify: u8::from(attr.en_sqd_async_notify),
            sq_draining: u8::from(attr.sq_draining),
            max_rd_atomic: attr.max_rd_atomic,
            max_dest_rd_atomic: attr.max_dest_rd_atomic,
            min_rnr_timer: low_byte(attr.min_rnr_timer.0.get()),
            port_num: attr.port_num.0,
            timeout: low_byte(attr.timeout.0.get()),
            retry_cnt: low_byte(attr.retry_cnt.0.get()),
            rnr_retry: low_byte(attr.rnr_retry.0.get()),
            alt_port_num: attr.alt_port_num.0,
            alt_timeout: low_byte(attr.alt_timeout.0.get()),
            rate_limit: attr.rate_limit,
        }
    }
}

impl ibv_qp_attr {
    /// Converts the attributes that `mask` names; all others are those of a new queue pair.
    pub fn to_qp_attr(&self, mask: AttrMask) -> Result<QpAttr, ModifyError> {
        let mut attr = QpAttr::default();
        // Not by the iterator of the flags, which compares them with all names.
        let mut left = mask.bits();
        while left != 0 {
            let flag = AttrMask::from_bits_retain(left & left.wrapping_neg());
            self.take(flag, &mut attr).ok_or(ModifyError::Value(flag))?;
            left &= left - 1;
        }
        Ok(attr)
    }

    /// Converts all attributes, as `ibv_query_qp` returns them. Returns `None` if one of them is
    /// invalid.
    pub fn to_all(&self) -> Option<QpAttr> {
        let mut attr = QpAttr::default();
        for flag in AttrMask::all() {
            // A queue pair that is not connected has no way to its peer.
            let unset = match flag {
                AttrMask::AV => self.ah_attr.is_global == 0,
                AttrMask::ALT_PATH => self.alt_ah_attr.is_global == 0,
                AttrMask::PATH_MTU => self.path_mtu == 0,
                _ => false,
            };
            if !unset {
                self.take(flag, &mut attr)?;
            }
        }
        attr.sq_draining = self.sq_draining != 0;
        Some(attr)
    }

    /// Converts the attribute that one flag names, and stores it in `to`. Returns `None` if it is
    /// invalid.
    fn take(&self, flag: AttrMask, to: &mut QpAttr) -> Option<()> {
        let wide = |byte: u8| u32::from(byte);
        match flag {
            AttrMask::STATE => to.qp_state = QpState::from_code(self.qp_state)?,
            AttrMask::CUR_STATE => to.cur_qp_state = QpState::from_code(self.cur_qp_state)?,
            AttrMask::EN_SQD_ASYNC_NOTIFY => {
                to.en_sqd_async_notify = self.en_sqd_async_notify != 0;
            }
            AttrMask::ACCESS_FLAGS => {
                to.qp_access_flags = Access::from_user(self.qp_access_flags)?;
            }
            AttrMask::PKEY_INDEX => to.pkey_index = self.pkey_index,
            AttrMask::PORT => to.port_num = PortNum(self.port_num),
            AttrMask::QKEY => to.qkey = QKey::new(self.qkey),
            AttrMask::AV => to.ah_attr = self.ah_attr.to_ah_attr()?,
            AttrMask::PATH_MTU => to.path_mtu = Mtu::from_code(self.path_mtu)?,
            AttrMask::TIMEOUT => to.timeout = AckTimeout::from_code(wide(self.timeout))?,
            AttrMask::RETRY_CNT => to.retry_cnt = RetryCount::from_code(wide(self.retry_cnt))?,
            AttrMask::RNR_RETRY => to.rnr_retry = RnrRetry::from_code(wide(self.rnr_retry))?,
            AttrMask::RQ_PSN => to.rq_psn = Psn::new(self.rq_psn),
            AttrMask::MAX_QP_RD_ATOMIC => to.max_rd_atomic = self.max_rd_atomic,
            AttrMask::ALT_PATH => {
                to.alt_ah_attr = self.alt_ah_attr.to_ah_attr()?;
                to.alt_pkey_index = self.alt_pkey_index;
                to.alt_port_num = PortNum(self.alt_port_num);
                to.alt_timeout = AckTimeout::from_code(wide(self.alt_timeout))?;
            }
            AttrMask::MIN_RNR_TIMER => {
                // Devices take the lower five bits, for which an RNR NAK has room.
                to.min_rnr_timer = RnrTimer(Bits::low(wide(self.min_rnr_timer)));
            }
            AttrMask::SQ_PSN => to.sq_psn = Psn::new(self.sq_psn),
            AttrMask::MAX_DEST_RD_ATOMIC => to.max_dest_rd_atomic = self.max_dest_rd_atomic,
            AttrMask::PATH_MIG_STATE => {
                to.path_mig_state = MigState::from_code(self.path_mig_state)?;
            }
            AttrMask::CAP => to.cap = self.cap.into(),
            AttrMask::DEST_QPN => to.dest_qp_num = Qpn::new(self.dest_qp_num),
            AttrMask::RATE_LIMIT => to.rate_limit = self.rate_limit,
            _ => return None,
        }
        Some(())
    }
}

/// Converts the fields of `ibv_device_attr` that are numbers in C and in Rust.
macro_rules! device_numbers {
    ($each:ident) => {
        $each!(
            max_qp max_qp_wr max_sge max_sge_rd max_cq max_cqe max_mr max_pd max_qp_rd_atom
            max_res_rd_atom max_qp_init_rd_atom max_mw max_mcast_grp max_mcast_qp_attach
            max_total_mcast_qp_attach max_ah max_srq max_srq_wr max_srq_sge
        )
    };
}

impl From<&DeviceAttr> for ibv_device_attr {
    fn from(attr: &DeviceAttr) -> Self {
        let signed = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
        let mut c = Self {
            fw_ver: attr.fw_ver.map(|byte| c_char::from_ne_bytes([byte])),
            node_guid: u64::from_ne_bytes(attr.node_guid.0),
            sys_image_guid: u64::from_ne_bytes(attr.sys_image_guid.0),
            max_mr_size: attr.max_mr_size,
            page_size_cap: attr.page_size_cap,
            vendor_id: attr.vendor_id,
            vendor_part_id: attr.vendor_part_id,
            hw_ver: attr.hw_ver,
            // What is above bit 31 only extended queries report.
            device_cap_flags: u32::try_from(attr.device_cap_flags.bits() & u64::from(u32::MAX))
                .unwrap_or(u32::MAX),
            atomic_cap: attr.atomic_cap.code(),
            max_pkeys: attr.max_pkeys,
            local_ca_ack_delay: attr.local_ca_ack_delay,
            phys_port_cnt: attr.phys_port_cnt,
            ..Self::zeroed()
        };
        macro_rules! fill {
            ($($field:ident)*) => { $(c.$field = signed(attr.$field);)* };
        }
        device_numbers!(fill);
        c
    }
}

impl ibv_device_attr {
    /// Returns the attributes of the device as [`DeviceAttr`]. A negative number counts as 0.
    pub fn to_device_attr(&self) -> DeviceAttr {
        let mut attr = DeviceAttr {
            fw_ver: self.fw_ver.map(|byte| byte.to_ne_bytes()[0]),
            node_guid: Guid(self.node_guid.to_ne_bytes()),
            sys_image_guid: Guid(self.sys_image_guid.to_ne_bytes()),
            max_mr_size: self.max_mr_size,
            page_size_cap: self.page_size_cap,
            vendor_id: self.vendor_id,
            vendor_part_id: self.vendor_part_id,
            hw_ver: self.hw_ver,
            device_cap_flags: DeviceCaps::from_bits_retain(u64::from(self.device_cap_flags)),
            atomic_cap: AtomicCap::from_code(self.atomic_cap).unwrap_or(AtomicCap::None),
            max_pkeys: self.max_pkeys,
            local_ca_ack_delay: self.local_ca_ack_delay,
            phys_port_cnt: self.phys_port_cnt,
            ..DeviceAttr::default()
        };
        macro_rules! fill {
            ($($field:ident)*) => { $(attr.$field = u32::try_from(self.$field).unwrap_or(0);)* };
        }
        device_numbers!(fill);
        attr
    }
}

impl From<&PortAttr> for ibv_port_attr {
    fn from(attr: &PortAttr) -> Self {
        Self {
            state: attr.state.code(),
            max_mtu: attr.max_mtu.code(),
            active_mtu: attr.active_mtu.code(),
            gid_tbl_len: c_int::try_from(attr.gid_tbl_len).unwrap_or(c_int::MAX),
            port_cap_flags: attr.port_cap_flags.bits(),
            max_msg_sz: attr.max_msg_sz,
            bad_pkey_cntr: attr.bad_pkey_cntr,
            qkey_viol_cntr: attr.qkey_viol_cntr,
            pkey_tbl_len: attr.pkey_tbl_len,
            lid: attr.lid,
            sm_lid: attr.sm_lid,
            lmc: attr.lmc,
            max_vl_num: attr.max_vl_num,
            sm_sl: attr.sm_sl,
            subnet_timeout: attr.subnet_timeout,
            init_type_reply: attr.init_type_reply,
            active_width: attr.active_width,
            active_speed: attr.active_speed,
            phys_state: low_byte(attr.phys_state.code()),
            link_layer: low_byte(attr.link_layer.code()),
            flags: if attr.grh_required { IBV_QPF_GRH_REQUIRED } else { 0 },
            port_cap_flags2: 0,
            active_speed_ex: u32::from(attr.active_speed),
        }
    }
}

impl ibv_port_attr {
    /// Returns the attributes of the port as [`PortAttr`], or `None` if one has an unknown value.
    pub fn to_port_attr(&self) -> Option<PortAttr> {
        Some(PortAttr {
            state: PortState::from_code(self.state)?,
            max_mtu: Mtu::from_code(self.max_mtu)?,
            active_mtu: Mtu::from_code(self.active_mtu)?,
            gid_tbl_len: u32::try_from(self.gid_tbl_len).ok()?,
            port_cap_flags: PortCaps::from_bits_retain(self.port_cap_flags),
            max_msg_sz: self.max_msg_sz,
            bad_pkey_cntr: self.bad_pkey_cntr,
            qkey_viol_cntr: self.qkey_viol_cntr,
            pkey_tbl_len: self.pkey_tbl_len,
            lid: self.lid,
            sm_lid: self.sm_lid,
            lmc: self.lmc,
            max_vl_num: self.max_vl_num,
            sm_sl: self.sm_sl,
            subnet_timeout: self.subnet_timeout,
            init_type_reply: self.init_type_reply,
            active_width: self.active_width,
            active_speed: self.active_speed,
            phys_state: PhysState::from_code(u32::from(self.phys_state))
                .unwrap_or(PhysState::Disabled),
            link_layer: LinkLayer::from_code(u32::from(self.link_layer))?,
            grh_required: self.flags & IBV_QPF_GRH_REQUIRED != 0,
        })
    }
}

/// Returns the low byte of a number, whose other bytes are known to be 0.
const fn low_byte(number: u32) -> u8 {
    number.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::other_qp_attr;

    #[test]
    fn attributes_come_back_as_they_went() {
        let ah_attr = AhAttr {
            flow_label: Bits::low(0x12345),
            hop_limit: 3,
            traffic_class: 0x62,
            sl: Bits::low(5),
            static_rate: 2,
            src_path_bits: 1,
            dlid: 9,
            ..AhAttr::new(Gid([7; 16]), 4)
        };
        let attr = QpAttr {
            rq_psn: Psn::new(0xfe_dcba),
            qp_access_flags: Access::REMOTE_READ | Access::RELAXED_ORDERING,
            cap: QpCap {
                max_send_wr: 1,
                max_recv_wr: 2,
                max_send_sge: 3,
                max_recv_sge: 4,
                max_inline_data: 5,
            },
            ah_attr,
            alt_ah_attr: AhAttr { port_num: PortNum(2), ..ah_attr },
            ..other_qp_attr()
        };
        assert_eq!(ibv_qp_attr::from(&attr).to_all(), Some(attr));
        let all = ibv_qp_attr::from(&attr).to_qp_attr(AttrMask::all());
        assert_eq!(all, Ok(QpAttr { sq_draining: false, ..attr }));
    }

    #[test]
    fn only_attributes_that_count_are_looked_at() {
        let mut c = ibv_qp_attr { timeout: 32, qp_state: 3, ..ibv_qp_attr::zeroed() };
        assert_eq!(c.to_qp_attr(AttrMask::STATE).map(|attr| attr.qp_state), Ok(QpState::Rts));
        assert_eq!(
            c.to_qp_attr(AttrMask::STATE | AttrMask::TIMEOUT),
            Err(ModifyError::Value(AttrMask::TIMEOUT))
        );
        c.qp_state = 7;
        assert_eq!(c.to_qp_attr(AttrMask::STATE), Err(ModifyError::Value(AttrMask::STATE)));
        assert_eq!(
            c.to_qp_attr(AttrMask::AV),
            Err(ModifyError::Value(AttrMask::AV)),
            "not a global way"
        );
    }

    #[test]
    fn a_queue_pair_that_was_just_made_can_be_asked() {
        let c = ibv_qp_attr::zeroed();
        assert_eq!(c.to_all().map(|attr| attr.qp_state), Some(QpState::Reset));
    }

    #[test]
    fn devices_and_ports_come_back_as_they_went() {
        let mut fw_ver = [0; 64];
        fw_ver[..3].copy_from_slice(&[b'1', b'.', 0xff]);
        let device = DeviceAttr {
            fw_ver,
            node_guid: Guid([1, 2, 3, 4, 5, 6, 7, 8]),
            max_qp: 1 << 20,
            max_mr_size: u64::MAX,
            device_cap_flags: DeviceCaps::XRC | DeviceCaps::FLUSH_GLOBAL,
            max_srq_sge: 32,
            ..DeviceAttr::default()
        };
        let back = ibv_device_attr::from(&device).to_device_attr();
        assert_eq!(back, DeviceAttr { device_cap_flags: DeviceCaps::XRC, ..device });
        let port = PortAttr {
            state: PortState::Active,
            gid_tbl_len: 8,
            active_speed: 64,
            ..PortAttr::default()
        };
        assert_eq!(ibv_port_attr::from(&port).to_port_attr(), Some(port));
    }
}
