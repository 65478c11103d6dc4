//! The route headers of InfiniBand: LRH, which never leaves a native link, and GRH, which RoCEv1
//! carries too.

use super::Layer;
use super::layout::header;
use super::num::{Bits, Gid};

/// The next-header value with which a GRH announces a BTH.
pub const NEXT_HEADER_BTH: u8 = 0x1b;

header! {
    /// Local route header.
    pub struct Lrh, LrhRepr, LrhLayout: Layer::Lrh, 8 bytes {
        /// The virtual lane.
        vl: Bits<4> = 4,
        /// The version of the link headers, 0.
        lver: Bits<4> = 4,
        /// The service level.
        sl: Bits<4> = 4,
        ~resv2 = 2,
        /// Link next header: 2 a BTH, 3 a GRH, 0 and 1 another protocol.
        lnh: Bits<2> = 2,
        /// Destination port.
        dlid: u16 = 16,
        ~resv5 = 5,
        /// The length from this header through the ICRC, in units of four bytes.
        packet_len: Bits<11> = 11,
        /// Source port.
        slid: u16 = 16,
    }
}

header! {
    /// Global route header: the shape of an IPv6 header.
    pub struct Grh, GrhRepr, GrhLayout: Layer::Grh, 40 bytes {
        /// 6.
        version: Bits<4> = 4,
        /// The traffic class.
        traffic_class: u8 = 8,
        /// The flow.
        flow_label: Bits<20> = 20,
        /// The length from the BTH through the ICRC.
        payload_len: u16 = 16,
        /// Next header: [`NEXT_HEADER_BTH`].
        next_header: u8 = 8,
        /// Number of hops that are left.
        hop_limit: u8 = 8,
        /// Source address.
        sgid: Gid = 128,
        /// Destination address.
        dgid: Gid = 128,
    }
}

impl GrhRepr {
    /// A header with a BTH behind it. The length is zero until the frame around it is emitted.
    pub const fn new(sgid: Gid, dgid: Gid) -> Self {
        Self {
            version: Bits::low(6),
            traffic_class: 0,
            flow_label: Bits::low(0),
            payload_len: 0,
            next_header: NEXT_HEADER_BTH,
            hop_limit: 64,
            sgid,
            dgid,
        }
    }
}
