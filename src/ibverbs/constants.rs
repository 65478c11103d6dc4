//! Numbers of C that have no type in [`verbs`](crate::verbs): which fields of a structure count,
//! and what only the C API knows. The others are there, with `code()` or `bits()`.

/// A constant of C as this room has it, to be compared with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant {
    /// Name in C.
    pub name: &'static str,
    /// Value.
    pub value: i128,
}

/// Declares constants with the names of C. `CONSTANTS` lists them all.
macro_rules! constants {
    ($(#[doc = $doc:literal] $type:ty { $($name:ident = $value:expr;)* })*) => {
        $($(#[doc = $doc] pub const $name: $type = $value;)*)*

        /// Constants that are declared here.
        pub(super) const CONSTANTS: &[Constant] =
            &[$($(Constant { name: stringify!($name), value: $name as i128 },)*)*];
    };
}

constants! {
    /// The longest name or path in a device, with the zero behind it.
    usize {
        IBV_SYSFS_NAME_MAX = 64;
        IBV_SYSFS_PATH_MAX = 256;
    }

    /// An unknown node or transport.
    i32 {
        IBV_NODE_UNKNOWN = -1;
        IBV_TRANSPORT_UNKNOWN = -1;
    }

    /// The state of a queue pair that could not be asked.
    u32 {
        IBV_QPS_UNKNOWN = 7;
    }

    /// Results of `ibv_is_fork_initialized`.
    u32 {
        IBV_FORK_DISABLED = 0;
        IBV_FORK_ENABLED = 1;
        IBV_FORK_UNNEEDED = 2;
    }

    /// A flag of a port: every address needs a global identifier.
    u8 {
        IBV_QPF_GRH_REQUIRED = 1;
    }

    /// Access rights that a device may ignore: the first one, and the mask of all.
    u32 {
        IBV_ACCESS_OPTIONAL_FIRST = 1 << 20;
        IBV_ACCESS_OPTIONAL_RANGE = (1 << 30) - (1 << 20);
    }

    /// Operations on memory that is paged in on demand.
    u32 {
        IBV_ODP_SUPPORT = 1;
        IBV_ODP_SUPPORT_IMPLICIT = 1 << 1;
        IBV_ODP_SUPPORT_SEND = 1;
        IBV_ODP_SUPPORT_RECV = 1 << 1;
        IBV_ODP_SUPPORT_WRITE = 1 << 2;
        IBV_ODP_SUPPORT_READ = 1 << 3;
        IBV_ODP_SUPPORT_ATOMIC = 1 << 4;
        IBV_ODP_SUPPORT_SRQ_RECV = 1 << 5;
    }

    /// Capabilities for raw packets.
    u32 {
        IBV_RAW_PACKET_CAP_CVLAN_STRIPPING = 1;
        IBV_RAW_PACKET_CAP_SCATTER_FCS = 1 << 1;
        IBV_RAW_PACKET_CAP_IP_CSUM = 1 << 2;
        IBV_RAW_PACKET_CAP_DELAY_DROP = 1 << 3;
    }

    /// Sizes of atomic operations on the bus.
    u16 {
        IBV_PCI_ATOMIC_OPERATION_4_BYTE_SIZE_SUP = 1;
        IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP = 1 << 1;
        IBV_PCI_ATOMIC_OPERATION_16_BYTE_SIZE_SUP = 1 << 2;
    }

    /// Fields of a completion that an extended completion queue can report.
    u64 {
        IBV_WC_EX_WITH_BYTE_LEN = 1;
        IBV_WC_EX_WITH_IMM = 1 << 1;
        IBV_WC_EX_WITH_QP_NUM = 1 << 2;
        IBV_WC_EX_WITH_SRC_QP = 1 << 3;
        IBV_WC_EX_WITH_SLID = 1 << 4;
        IBV_WC_EX_WITH_SL = 1 << 5;
        IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6;
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7;
        IBV_WC_EX_WITH_CVLAN = 1 << 8;
        IBV_WC_EX_WITH_FLOW_TAG = 1 << 9;
        IBV_WC_EX_WITH_TM_INFO = 1 << 10;
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11;
        IBV_WC_STANDARD_FLAGS = (1 << 7) - 1;
        IBV_CREATE_CQ_SUP_WC_FLAGS = (1 << 12) - 1;
    }

    /// Mask of the fields of `ibv_cq_init_attr_ex`, and flags of the queue.
    u32 {
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1;
        IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1;
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1;
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1;
    }

    /// Mask of the fields of `ibv_modify_cq_attr`.
    u32 {
        IBV_CQ_ATTR_MODERATE = 1;
        IBV_CQ_ATTR_RESERVED = 1 << 1;
    }

    /// Mask of the fields of `ibv_xrcd_init_attr`.
    u32 {
        IBV_XRCD_INIT_ATTR_FD = 1;
        IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1;
        IBV_XRCD_INIT_ATTR_RESERVED = 1 << 2;
    }

    /// Properties of a memory region that a re-registration changes.
    i32 {
        IBV_REREG_MR_CHANGE_TRANSLATION = 1;
        IBV_REREG_MR_CHANGE_PD = 1 << 1;
        IBV_REREG_MR_CHANGE_ACCESS = 1 << 2;
        IBV_REREG_MR_FLAGS_SUPPORTED = 7;
    }

    /// Results of a re-registration that failed, which say whether the region is still valid.
    i32 {
        IBV_REREG_MR_ERR_INPUT = -1;
        IBV_REREG_MR_ERR_DONT_FORK_NEW = -2;
        IBV_REREG_MR_ERR_DO_FORK_OLD = -3;
        IBV_REREG_MR_ERR_CMD = -4;
        IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5;
    }

    /// Hints about memory.
    u32 {
        IBV_ADVISE_MR_ADVICE_PREFETCH = 0;
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1;
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2;
        IBV_ADVISE_MR_FLAG_FLUSH = 1;
    }

    /// Mask of the fields of `ibv_dm`.
    u32 {
        IBV_DM_MASK_HANDLE = 1;
    }

    /// Mask of the fields of `ibv_parent_domain_init_attr`.
    u32 {
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1;
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1;
    }

    /// Mask of the fields of `ibv_srq_init_attr_ex`.
    u32 {
        IBV_SRQ_INIT_ATTR_TYPE = 1;
        IBV_SRQ_INIT_ATTR_PD = 1 << 1;
        IBV_SRQ_INIT_ATTR_XRCD = 1 << 2;
        IBV_SRQ_INIT_ATTR_CQ = 1 << 3;
        IBV_SRQ_INIT_ATTR_TM = 1 << 4;
        IBV_SRQ_INIT_ATTR_RESERVED = 1 << 5;
    }

    /// Mask of the fields of `ibv_qp_init_attr_ex`.
    u32 {
        IBV_QP_INIT_ATTR_PD = 1;
        IBV_QP_INIT_ATTR_XRCD = 1 << 1;
        IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2;
        IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3;
        IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4;
        IBV_QP_INIT_ATTR_RX_HASH = 1 << 5;
        IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6;
    }

    /// Creation flags of a queue pair.
    u32 {
        IBV_QP_CREATE_BLOCK_SELF_MCAST_LB = 1 << 1;
        IBV_QP_CREATE_SCATTER_FCS = 1 << 8;
        IBV_QP_CREATE_CVLAN_STRIPPING = 1 << 9;
        IBV_QP_CREATE_SOURCE_QPN = 1 << 10;
        IBV_QP_CREATE_PCI_WRITE_END_PADDING = 1 << 11;
    }

    /// Operations that a queue pair sends by calls of its own.
    u64 {
        IBV_QP_EX_WITH_RDMA_WRITE = 1;
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1;
        IBV_QP_EX_WITH_SEND = 1 << 2;
        IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3;
        IBV_QP_EX_WITH_RDMA_READ = 1 << 4;
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5;
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6;
        IBV_QP_EX_WITH_LOCAL_INV = 1 << 7;
        IBV_QP_EX_WITH_BIND_MW = 1 << 8;
        IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9;
        IBV_QP_EX_WITH_TSO = 1 << 10;
        IBV_QP_EX_WITH_FLUSH = 1 << 11;
        IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12;
    }

    /// Mask of the fields of `ibv_qp_open_attr`.
    u32 {
        IBV_QP_OPEN_ATTR_NUM = 1;
        IBV_QP_OPEN_ATTR_XRCD = 1 << 1;
        IBV_QP_OPEN_ATTR_CONTEXT = 1 << 2;
        IBV_QP_OPEN_ATTR_TYPE = 1 << 3;
        IBV_QP_OPEN_ATTR_RESERVED = 1 << 4;
    }

    /// Changes to a list of tags.
    u32 {
        IBV_WR_TAG_ADD = 0;
        IBV_WR_TAG_DEL = 1;
        IBV_WR_TAG_SYNC = 2;
    }

    /// Flags of such a change.
    i32 {
        IBV_OPS_SIGNALED = 1;
        IBV_OPS_TM_SYNC = 1 << 1;
    }

    /// Hash functions of receive-side scaling.
    u8 {
        IBV_RX_HASH_FUNC_TOEPLITZ = 1;
    }

    /// Kinds and states of work queues, and what can be said of them.
    u32 {
        IBV_WQT_RQ = 0;
        IBV_WQS_RESET = 0;
        IBV_WQS_RDY = 1;
        IBV_WQS_ERR = 2;
        IBV_WQS_UNKNOWN = 3;
        IBV_WQ_INIT_ATTR_FLAGS = 1;
        IBV_WQ_ATTR_STATE = 1;
        IBV_WQ_ATTR_CURR_STATE = 1 << 1;
        IBV_WQ_ATTR_FLAGS = 1 << 2;
    }

    /// Mask of the values that `ibv_query_rt_values_ex` returns.
    u32 {
        IBV_VALUES_MASK_RAW_CLOCK = 1;
        IBV_VALUES_MASK_RESERVED = 1 << 1;
    }

    /// Kinds of counters.
    u32 {
        IBV_COUNTER_PACKETS = 0;
        IBV_COUNTER_BYTES = 1;
    }

    /// Kinds of rules that steer packets, and what they look at.
    u32 {
        IBV_FLOW_ATTR_NORMAL = 0;
        IBV_FLOW_ATTR_ALL_DEFAULT = 1;
        IBV_FLOW_ATTR_MC_DEFAULT = 2;
        IBV_FLOW_ATTR_SNIFFER = 3;
        IBV_FLOW_SPEC_ETH = 0x20;
        IBV_FLOW_SPEC_IPV4 = 0x30;
        IBV_FLOW_SPEC_IPV6 = 0x31;
        IBV_FLOW_SPEC_IPV4_EXT = 0x32;
        IBV_FLOW_SPEC_TCP = 0x40;
        IBV_FLOW_SPEC_UDP = 0x41;
    }

    /// Rates.
    u32 {
        IBV_RATE_MAX = 0;
        IBV_RATE_2_5_GBPS = 2;
        IBV_RATE_5_GBPS = 5;
        IBV_RATE_10_GBPS = 3;
        IBV_RATE_20_GBPS = 6;
        IBV_RATE_30_GBPS = 4;
        IBV_RATE_40_GBPS = 7;
        IBV_RATE_60_GBPS = 8;
        IBV_RATE_80_GBPS = 9;
        IBV_RATE_120_GBPS = 10;
        IBV_RATE_14_GBPS = 11;
        IBV_RATE_56_GBPS = 12;
        IBV_RATE_112_GBPS = 13;
        IBV_RATE_168_GBPS = 14;
        IBV_RATE_25_GBPS = 15;
        IBV_RATE_100_GBPS = 16;
        IBV_RATE_200_GBPS = 17;
        IBV_RATE_300_GBPS = 18;
        IBV_RATE_28_GBPS = 19;
        IBV_RATE_50_GBPS = 20;
        IBV_RATE_400_GBPS = 21;
        IBV_RATE_600_GBPS = 22;
        IBV_RATE_800_GBPS = 23;
        IBV_RATE_1200_GBPS = 24;
    }
}
