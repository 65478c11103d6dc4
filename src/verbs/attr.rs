//! Attributes of address handles, queue pairs and shared receive queues: plain data, named as in C.

use super::codes::codes;
use super::{
    Access, AckTimeout, AttrMask, Mtu, PortNum, QpState, QpType, RetryCount, RnrRetry, SrqAttrMask,
};
use crate::wire::aeth::RnrTimer;
use crate::wire::{Bits, Gid, Psn, QKey, Qpn};

codes! {
    /// Path migration state of a connection: `ibv_mig_state`.
    #[derive(Default)]
    MigState, "IBV_MIG_" {
        /// Migrated, or migration was never requested.
        #[default]
        Migrated = 0, "MIGRATED", "MIGRATED";
        /// Migration is to be armed.
        Rearm = 1, "REARM", "REARM";
        /// Migration is armed: the device may change to the alternate path.
        Armed = 2, "ARMED", "ARMED";
    }
}

codes! {
    /// The kind of a memory window: `ibv_mw_type`.
    MwType, "IBV_MW_" {
        /// Any queue pair of its protection domain may use it.
        Type1 = 1, "TYPE_1", "type 1";
        /// Only the queue pair that bound it may use it.
        Type2 = 2, "TYPE_2", "type 2";
    }
}

codes! {
    /// The kind of a shared receive queue: `ibv_srq_type`.
    #[derive(Default)]
    SrqType, "IBV_SRQT_" {
        /// An ordinary shared receive queue.
        #[default]
        Basic = 0, "BASIC", "BASIC";
        /// The requests of extended reliable connections name it.
        Xrc = 1, "XRC", "XRC";
        /// A shared receive queue that matches tags.
        Tm = 2, "TM", "TM";
    }
}

/// The way to a peer: `ibv_ah_attr`. On Ethernet the way is always a global one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AhAttr {
    /// The peer's address.
    pub dgid: Gid,
    /// One's own address, by its index in the port's table.
    pub sgid_index: u8,
    /// The IPv6 flow label, and what the UDP source port is made of.
    pub flow_label: Bits<20>,
    /// The time to live.
    pub hop_limit: u8,
    /// The traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// The service level, which becomes the VLAN priority.
    pub sl: Bits<4>,
    /// The port to send from.
    pub port_num: PortNum,
    /// The rate limit, as `ibv_rate`; 0 is none.
    pub static_rate: u8,
    /// Source path bits of InfiniBand; meaningless on Ethernet.
    pub src_path_bits: u8,
    /// Destination local identifier of InfiniBand; meaningless on Ethernet.
    pub dlid: u16,
}

impl AhAttr {
    /// The path from the local address with this index to the peer at `dgid`, from the first port,
    /// with the usual time to live.
    pub const fn new(dgid: Gid, sgid_index: u8) -> Self {
        Self {
            dgid,
            sgid_index,
            flow_label: Bits::low(0),
            hop_limit: 64,
            traffic_class: 0,
            sl: Bits::low(0),
            port_num: PortNum::FIRST,
            static_rate: 0,
            src_path_bits: 0,
            dlid: 0,
        }
    }
}

impl Default for AhAttr {
    /// An address vector without an address.
    fn default() -> Self {
        Self::new(Gid([0; 16]), 0)
    }
}

/// The sizes of a queue pair's queues: `ibv_qp_cap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QpCap {
    /// Maximum number of outstanding send work requests.
    pub max_send_wr: u32,
    /// Maximum number of outstanding receive work requests.
    pub max_recv_wr: u32,
    /// Maximum number of scatter/gather elements of a send.
    pub max_send_sge: u32,
    /// Maximum number of scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Maximum number of bytes of inline data.
    pub max_inline_data: u32,
}

impl QpCap {
    /// Sizes that suffice for most programs.
    pub const ORDINARY: Self = Self {
        max_send_wr: 128,
        max_recv_wr: 128,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 64,
    };
}

/// Attributes of a new queue pair, besides its queues and its protection domain:
/// `ibv_qp_init_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QpInitAttr {
    /// Transport service.
    pub qp_type: QpType,
    /// Sizes of the queues.
    pub cap: QpCap,
    /// Whether the success of every send is reported, whatever its flags say.
    pub sq_sig_all: bool,
}

/// The attributes of a queue pair: `ibv_qp_attr`. An [`AttrMask`] beside it says which of them
/// count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// The state it shall have, or has.
    pub qp_state: QpState,
    /// The state the program believes it has.
    pub cur_qp_state: QpState,
    /// The payload of a packet.
    pub path_mtu: Mtu,
    /// Path migration state.
    pub path_mig_state: MigState,
    /// The queue key.
    pub qkey: QKey,
    /// The first sequence number to expect.
    pub rq_psn: Psn,
    /// The first sequence number to send.
    pub sq_psn: Psn,
    /// The peer's queue pair.
    pub dest_qp_num: Qpn,
    /// Operations that peers may use.
    pub qp_access_flags: Access,
    /// The sizes of the queues.
    pub cap: QpCap,
    /// The way to the peer.
    pub ah_attr: AhAttr,
    /// Alternate path to the peer.
    pub alt_ah_attr: AhAttr,
    /// The partition, by its index in the port's table.
    pub pkey_index: u16,
    /// The partition on the other way.
    pub alt_pkey_index: u16,
    /// Whether an event tells that the send queue is drained.
    pub en_sqd_async_notify: bool,
    /// Whether the send queue is being drained. It can only be asked, not set.
    pub sq_draining: bool,
    /// Maximum number of READs and ATOMICs in flight as requester.
    pub max_rd_atomic: u8,
    /// Maximum number of READs and ATOMICs of the peer in flight.
    pub max_dest_rd_atomic: u8,
    /// Time that a peer waits after a NAK because no receive buffer was posted.
    pub min_rnr_timer: RnrTimer,
    /// The port.
    pub port_num: PortNum,
    /// Time to wait for an acknowledgement.
    pub timeout: AckTimeout,
    /// Maximum number of retransmissions without progress.
    pub retry_cnt: RetryCount,
    /// Maximum number of retries after RNR NAKs; 7 sets no limit.
    pub rnr_retry: RnrRetry,
    /// The port of the other way.
    pub alt_port_num: PortNum,
    /// Time to wait for an acknowledgement on the alternate path.
    pub alt_timeout: AckTimeout,
    /// Maximum send rate in kbit/s; 0 is no limit.
    pub rate_limit: u32,
}

impl Default for QpAttr {
    /// Attributes of a new queue pair.
    fn default() -> Self {
        Self {
            qp_state: QpState::Reset,
            cur_qp_state: QpState::Reset,
            path_mtu: Mtu::default(),
            path_mig_state: MigState::Migrated,
            qkey: QKey::new(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            dest_qp_num: Qpn::new(0),
            qp_access_flags: Access::empty(),
            cap: QpCap::default(),
            ah_attr: AhAttr::default(),
            alt_ah_attr: AhAttr::default(),
            pkey_index: 0,
            alt_pkey_index: 0,
            en_sqd_async_notify: false,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer(Bits::low(0)),
            port_num: PortNum::FIRST,
            timeout: AckTimeout::NEVER,
            retry_cnt: RetryCount::default(),
            rnr_retry: RnrRetry::default(),
            alt_port_num: PortNum::FIRST,
            alt_timeout: AckTimeout::NEVER,
            rate_limit: 0,
        }
    }
}

impl QpAttr {
    /// Takes over from `new` the attributes in `mask`, and no other. Whether they may be, is to be
    /// found out before: see [`transition::check`](super::transition::check).
    pub fn apply(&mut self, new: &Self, mask: AttrMask) {
        macro_rules! take {
            ($($flag:ident: $($field:ident),*;)*) => {
                $(if mask.contains(AttrMask::$flag) {
                    $(self.$field = new.$field;)*
                })*
            };
        }
        take! {
            STATE: qp_state;
            CUR_STATE: cur_qp_state;
            EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
            ACCESS_FLAGS: qp_access_flags;
            PKEY_INDEX: pkey_index;
            PORT: port_num;
            QKEY: qkey;
            AV: ah_attr;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            ALT_PATH: alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout;
            MIN_RNR_TIMER: min_rnr_timer;
            SQ_PSN: sq_psn;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            PATH_MIG_STATE: path_mig_state;
            CAP: cap;
            DEST_QPN: dest_qp_num;
            RATE_LIMIT: rate_limit;
        }
    }
}

/// The attributes of a shared receive queue: `ibv_srq_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SrqAttr {
    /// Maximum number of outstanding receive work requests.
    pub max_wr: u32,
    /// Maximum number of scatter/gather elements of a receive.
    pub max_sge: u32,
    /// An event is raised, once, when fewer receives than this are left; 0 raises none.
    pub srq_limit: u32,
}

impl SrqAttr {
    /// Takes over from `new` the attributes in `mask`, and no other.
    pub fn apply(&mut self, new: &Self, mask: SrqAttrMask) {
        if mask.contains(SrqAttrMask::MAX_WR) {
            self.max_wr = new.max_wr;
        }
        if mask.contains(SrqAttrMask::LIMIT) {
            self.srq_limit = new.srq_limit;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Attributes of which none is the default.
    pub(crate) fn other() -> QpAttr {
        let ah_attr = AhAttr { sl: Bits::low(3), ..AhAttr::new(Gid([1; 16]), 2) };
        QpAttr {
            qp_state: QpState::Rtr,
            cur_qp_state: QpState::Init,
            path_mtu: Mtu::M4096,
            path_mig_state: MigState::Armed,
            qkey: QKey::GSI,
            rq_psn: Psn::new(1),
            sq_psn: Psn::new(2),
            dest_qp_num: Qpn::new(3),
            qp_access_flags: Access::REMOTE_READ,
            cap: QpCap { max_send_wr: 1, ..QpCap::default() },
            ah_attr,
            alt_ah_attr: ah_attr,
            pkey_index: 4,
            alt_pkey_index: 5,
            en_sqd_async_notify: true,
            sq_draining: true,
            max_rd_atomic: 6,
            max_dest_rd_atomic: 7,
            min_rnr_timer: RnrTimer(Bits::low(8)),
            port_num: PortNum(9),
            timeout: AckTimeout(Bits::low(10)),
            retry_cnt: RetryCount::MAX,
            rnr_retry: RnrRetry::INFINITE,
            alt_port_num: PortNum(11),
            alt_timeout: AckTimeout(Bits::low(12)),
            rate_limit: 13,
        }
    }

    #[test]
    fn every_attribute_has_a_flag_but_the_one_that_can_only_be_asked() {
        let mut attr = QpAttr::default();
        attr.apply(&other(), AttrMask::all());
        assert_eq!(attr, QpAttr { sq_draining: false, ..other() });
        attr.apply(&QpAttr::default(), AttrMask::empty());
        assert_eq!(attr, QpAttr { sq_draining: false, ..other() });
    }

    #[test]
    fn a_flag_takes_its_own_attributes_and_no_other() {
        for flag in AttrMask::all() {
            let mut attr = QpAttr::default();
            attr.apply(&other(), flag);
            assert_ne!(attr, QpAttr::default(), "{flag}");
            attr.apply(&other(), flag.complement());
            assert_eq!(attr, QpAttr { sq_draining: false, ..other() }, "{flag}");
            attr.apply(&QpAttr::default(), flag.complement());
            attr.apply(&QpAttr::default(), flag);
            assert_eq!(attr, QpAttr::default(), "{flag}");
            let mut others = QpAttr::default();
            others.apply(&other(), flag.complement());
            assert_ne!(others, QpAttr { sq_draining: false, ..other() }, "{flag}");
        }
    }

    #[test]
    fn a_shared_receive_queue_keeps_what_is_not_asked_to_change() {
        let new = SrqAttr { max_wr: 1, max_sge: 2, srq_limit: 3 };
        let mut attr = SrqAttr::default();
        attr.apply(&new, SrqAttrMask::LIMIT);
        assert_eq!(attr, SrqAttr { srq_limit: 3, ..SrqAttr::default() });
        attr.apply(&new, SrqAttrMask::MAX_WR);
        assert_eq!(attr, SrqAttr { max_sge: 0, ..new });
    }
}
