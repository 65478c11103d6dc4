//! Sets of flags, with the bits of C.

use bitflags::bitflags;

use super::codes::{codes, names};
use crate::wire::Right;

bitflags! {
    /// Access rights to memory, or through a queue pair: `ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// The local device may write the memory.
        const LOCAL_WRITE = 1;
        /// Peers may write the memory.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read the memory.
        const REMOTE_READ = 1 << 2;
        /// A peer may do atomic operations on it.
        const REMOTE_ATOMIC = 1 << 3;
        /// A memory window may be bound to it.
        const MW_BIND = 1 << 4;
        /// Addresses in the memory count from zero.
        const ZERO_BASED = 1 << 5;
        /// On-demand paging: pages are brought in when they are needed.
        const ON_DEMAND = 1 << 6;
        /// The memory lies in huge pages.
        const HUGETLB = 1 << 7;
        /// A peer may flush it to where everybody sees it.
        const FLUSH_GLOBAL = 1 << 8;
        /// A peer may flush it to where it survives.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes to it may overtake each other. A device is free to ignore this.
        const RELAXED_ORDERING = 1 << 20;
    }
}
names!(Access, "IBV_ACCESS_");

impl Access {
    /// Bits that a device may ignore, known or not (`IBV_ACCESS_OPTIONAL_RANGE`).
    pub const OPTIONAL_RANGE: u32 = (1 << 30) - (1 << 20);

    /// All rights of peers.
    pub const REMOTE: Self = Self::REMOTE_WRITE
        .union(Self::REMOTE_READ)
        .union(Self::REMOTE_ATOMIC)
        .union(Self::FLUSH_GLOBAL)
        .union(Self::FLUSH_PERSISTENT);

    /// Returns the access that a request with this right needs: none if it names no memory, or if
    /// its FETH says what.
    #[inline]
    pub const fn needed(right: Right) -> Self {
        match right {
            Right::None | Right::Flush => Self::empty(),
            Right::Write => Self::REMOTE_WRITE,
            Right::Read => Self::REMOTE_READ,
            Right::Atomic => Self::REMOTE_ATOMIC,
        }
    }

    /// The rights that a program asked for, without optional ones that are unknown; `None` if it
    /// asked for another unknown one.
    pub const fn from_user(bits: u32) -> Option<Self> {
        let known = Self::all().bits();
        Self::from_bits(bits & (known | !Self::OPTIONAL_RANGE))
    }

    /// Whether memory can be registered with these rights: what a peer may write, the local device
    /// must be allowed to write, too.
    pub const fn is_registrable(self) -> bool {
        let writes = Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC);
        !self.intersects(writes) || self.contains(Self::LOCAL_WRITE)
    }
}

bitflags! {
    /// Flags of a send work request: `ibv_send_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        // Rule: T-34.
        /// The request waits until the READs and ATOMICs before it have completed.
        const FENCE = 1;
        /// Success generates a completion. Failure always is.
        const SIGNALED = 1 << 1;
        /// The receiver's completion is one that a program waits for.
        const SOLICITED = 1 << 2;
        /// Data is copied when the request is posted, and no key is checked.
        const INLINE = 1 << 3;
        /// The device fills in IP checksums, of raw packets.
        const IP_CSUM = 1 << 4;
    }
}
names!(SendFlags, "IBV_SEND_");

bitflags! {
    /// Flags of a completion: `ibv_wc_flags`. The kernel numbers some of these otherwise.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: u8 {
        /// The receive buffer begins with 40 bytes of network header.
        const GRH = 1;
        /// The completion has immediate data.
        const WITH_IMM = 1 << 1;
        /// The device found the IP checksums right, of raw packets.
        const IP_CSUM_OK = 1 << 2;
        // Rule: Q-17.
        /// The peer invalidated a key.
        const WITH_INV = 1 << 3;
        /// Tag matching has to be synchronized.
        const TM_SYNC_REQ = 1 << 4;
        /// A tag matched.
        const TM_MATCH = 1 << 5;
        /// A tagged buffer holds the data.
        const TM_DATA_VALID = 1 << 6;
    }
}
names!(WcFlags, "IBV_WC_");

bitflags! {
    /// Mask of the attributes of a queue pair that a call sets or reads: `ibv_qp_attr_mask`. Bits
    /// 21 to 24 are not a program's to set.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct AttrMask: u32 {
        /// State of the queue pair.
        const STATE = 1;
        /// The state the program believes it has.
        const CUR_STATE = 1 << 1;
        /// Whether an event tells that the send queue is drained.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// Operations that peers may use.
        const ACCESS_FLAGS = 1 << 3;
        /// Index of the partition key.
        const PKEY_INDEX = 1 << 4;
        /// Number of the port.
        const PORT = 1 << 5;
        /// The queue key.
        const QKEY = 1 << 6;
        /// The way to the peer.
        const AV = 1 << 7;
        /// The payload of a packet.
        const PATH_MTU = 1 << 8;
        /// Time to wait for an acknowledgement.
        const TIMEOUT = 1 << 9;
        /// Maximum number of retransmissions without progress.
        const RETRY_CNT = 1 << 10;
        /// Maximum number of retries after RNR NAKs.
        const RNR_RETRY = 1 << 11;
        /// The first sequence number to expect.
        const RQ_PSN = 1 << 12;
        /// Maximum number of READs and ATOMICs in flight as requester.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// Alternate path to the peer.
        const ALT_PATH = 1 << 14;
        /// Time that a peer waits after a NAK because no receive buffer was posted.
        const MIN_RNR_TIMER = 1 << 15;
        /// The first sequence number to send.
        const SQ_PSN = 1 << 16;
        /// Maximum number of READs and ATOMICs of the peer in flight.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// Path migration state.
        const PATH_MIG_STATE = 1 << 18;
        /// The sizes of the queues.
        const CAP = 1 << 19;
        /// The peer's queue pair.
        const DEST_QPN = 1 << 20;
        /// Maximum send rate.
        const RATE_LIMIT = 1 << 25;
    }
}
names!(AttrMask, "IBV_QP_");

bitflags! {
    /// Mask of the attributes of a shared receive queue that a call sets: `ibv_srq_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SrqAttrMask: u32 {
        /// Maximum number of outstanding work requests.
        const MAX_WR = 1;
        /// Number of outstanding work requests below which the limit event is raised.
        const LIMIT = 1 << 1;
    }
}
names!(SrqAttrMask, "IBV_SRQ_");

bitflags! {
    /// Placement type of a FLUSH: `ibv_placement_type`, and the placement bits of a FETH.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FlushPlacement: u32 {
        /// Data becomes visible to all readers of the memory.
        const GLOBAL = 1;
        /// Data becomes persistent.
        const PERSISTENT = 1 << 1;
    }
}
names!(FlushPlacement, "IBV_FLUSH_");

impl FlushPlacement {
    /// The rights that memory must have been registered with for such a flush.
    pub const fn needed_access(self) -> Access {
        let mut access = Access::empty();
        if self.contains(Self::GLOBAL) {
            access = access.union(Access::FLUSH_GLOBAL);
        }
        if self.contains(Self::PERSISTENT) {
            access = access.union(Access::FLUSH_PERSISTENT);
        }
        access
    }
}

codes! {
    /// Selectivity level of a FLUSH: `ibv_selectivity_level`, and the selectivity bits of a FETH.
    FlushLevel, "IBV_FLUSH_" {
        /// A range of addresses.
        Range = 0, "RANGE", "range";
        /// The whole memory region.
        Mr = 1, "MR", "memory region";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_print_as_the_constants_of_c() {
        assert_eq!((AttrMask::PORT | AttrMask::STATE).to_string(), "IBV_QP_STATE | IBV_QP_PORT");
        assert_eq!(AttrMask::empty().to_string(), "0x0");
        assert_eq!(AttrMask::from_bits_retain(1 << 21).to_string(), "0x200000");
        let odd = SendFlags::from_bits_retain(0x102);
        assert_eq!(odd.to_string(), "IBV_SEND_SIGNALED | 0x100");
    }

    #[test]
    fn unknown_optional_rights_are_dropped_and_others_refused() {
        assert_eq!(Access::from_user(0x0010_0007), Some(Access::RELAXED_ORDERING | read_write()));
        assert_eq!(Access::from_user(1 << 29 | 7), Some(read_write()));
        assert_eq!(Access::from_user(1 << 30 | 7), None);
        assert_eq!(Access::from_user(1 << 10), None);
        assert_eq!(Access::from_user(0), Some(Access::empty()));
    }

    fn read_write() -> Access {
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ
    }

    #[test]
    fn a_peer_writes_only_where_the_local_device_may() {
        for bits in 0..1024 {
            let access = Access::from_bits_truncate(bits);
            let peer_writes = bits & 0b1010 != 0;
            assert_eq!(access.is_registrable(), !peer_writes || bits & 1 != 0, "{access}");
        }
    }

    #[test]
    fn a_flush_needs_the_right_to_flush_so_far() {
        assert_eq!(FlushPlacement::all().needed_access().bits(), 0x300);
        assert_eq!(FlushPlacement::GLOBAL.needed_access(), Access::FLUSH_GLOBAL);
        assert_eq!(FlushPlacement::PERSISTENT.needed_access(), Access::FLUSH_PERSISTENT);
        assert_eq!(FlushPlacement::empty().needed_access(), Access::empty());
    }
}
