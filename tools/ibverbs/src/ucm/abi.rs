//! The commands and answers of `/dev/infiniband/rdma_cm`, byte for byte: `<rdma/rdma_user_cm.h>`,
//! ABI version 4.
//!
//! Numbers are in the order of the processor, addresses and what comes from packets in that of the
//! network.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::kern::{KernAhAttr, KernPathRec};

/// Declares a structure whose bytes C knows, with its size.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident, $size:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(super) struct $name {
            $($(#[$field_doc])* pub(super) $field: $type,)*
        }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

/// The most private data that the structures have room for.
pub(super) const PRIVATE_DATA_MAX: usize = 256;

/// A `sockaddr_in6`, or a shorter address at its beginning.
pub(super) type SockAddrIn6 = [u8; 28];

/// A `__kernel_sockaddr_storage`.
pub(super) type SockAddrStorage = [u8; 128];

structures! {
    /// Header of every command.
    Header, 8 { command: u32, body_len: u16, answer_len: u16 }

    CreateId, 24 { uid: u64, response: u64, space: u16, qp_type: u8, reserved: [u8; 5] }
    DestroyId, 16 { response: u64, id: u32, reserved: u32 }
    BindIp, 40 { response: u64, address: SockAddrIn6, id: u32 }
    Bind, 136 { id: u32, address_len: u16, reserved: u16, address: SockAddrStorage }
    ResolveIp, 64 { source: SockAddrIn6, destination: SockAddrIn6, id: u32, timeout_ms: u32 }
    ResolveAddr, 272 {
        id: u32,
        timeout_ms: u32,
        source_len: u16,
        destination_len: u16,
        reserved: u32,
        source: SockAddrStorage,
        destination: SockAddrStorage,
    }
    ResolveRoute, 8 { id: u32, timeout_ms: u32 }
    Query, 16 { response: u64, id: u32, option: u32 }
    /// `rdma_conn_param`, with the data itself.
    ConnParam, 272 {
        qpn: u32,
        q_key: u32,
        private_data: [u8; PRIVATE_DATA_MAX],
        private_data_len: u8,
        srq: u8,
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        valid: u8,
    }
    /// `rdma_ud_param`, with the data itself.
    UdParam, 304 {
        qpn: u32,
        q_key: u32,
        ah: KernAhAttr,
        private_data: [u8; PRIVATE_DATA_MAX],
        private_data_len: u8,
        reserved: [u8; 7],
    }
    Ece, 8 { vendor_id: u32, options: u32 }
    Connect, 288 { param: ConnParam, id: u32, reserved: u32, ece: Ece }
    Listen, 8 { id: u32, backlog: u32 }
    Accept, 296 { uid: u64, param: ConnParam, id: u32, reserved: u32, ece: Ece }
    Reject, 264 {
        id: u32,
        private_data_len: u8,
        reason: u8,
        reserved: [u8; 2],
        private_data: [u8; PRIVATE_DATA_MAX],
    }
    Disconnect, 4 { id: u32 }
    InitQpAttr, 16 { response: u64, id: u32, qp_state: u32 }
    Notify, 8 { id: u32, event: u32 }
    JoinIpMulticast, 48 { response: u64, uid: u64, address: SockAddrIn6, id: u32 }
    JoinMulticast, 152 {
        response: u64,
        uid: u64,
        id: u32,
        address_len: u16,
        join_flags: u16,
        address: SockAddrStorage,
    }
    GetEvent, 8 { response: u64 }
    SetOption, 24 { value: u64, id: u32, level: u32, name: u32, len: u32 }
    MigrateId, 16 { response: u64, id: u32, fd: u32 }

    /// The answer that is an id: of CREATE_ID, and of a join.
    IdAnswer, 4 { id: u32 }
    /// The answer that counts the events that were taken: the library waits until as many are
    /// acknowledged.
    EventsAnswer, 4 { events_reported: u32 }
    QueryRouteAnswer, 208 {
        node_guid: u64,
        paths: [KernPathRec; 2],
        source: SockAddrIn6,
        destination: SockAddrIn6,
        path_count: u32,
        port_num: u8,
        reserved: [u8; 3],
        device_index: u32,
        reserved_too: u32,
    }
    QueryAddrAnswer, 280 {
        node_guid: u64,
        port_num: u8,
        reserved: u8,
        pkey: u16,
        source_len: u16,
        destination_len: u16,
        source: SockAddrStorage,
        destination: SockAddrStorage,
        device_index: u32,
        reserved_too: u32,
    }
    /// Answer that `path_count` entries of [`PathData`] follow.
    QueryPathAnswer, 8 { path_count: u32, reserved: u32 }
    /// A path, as it is also given to option IB_PATH: its record as in a MAD.
    PathData, 72 { flags: u32, reserved: u32, record: PathRecordBytes }
    /// A path record of the subnet administrator (§15.2.5.16), of which only what RoCE has is
    /// looked at.
    PathRecordBytes, 64 {
        service_id: [u8; 8],
        dgid: [u8; 16],
        sgid: [u8; 16],
        dlid: [u8; 2],
        slid: [u8; 2],
        /// Four reserved bits, 20 of flow label, 8 of hop limit.
        flow_label_hop_limit: [u8; 4],
        traffic_class: u8,
        /// One bit, seven bits.
        reversible_path_count: u8,
        pkey: [u8; 2],
        /// Twelve bits, four bits.
        qos_class_sl: [u8; 2],
        /// MTU, rate and life time: each a selector in two bits, a value in six.
        mtu: u8,
        rate: u8,
        life_time: u8,
        preference: u8,
        reserved: [u8; 6],
    }
    EventAnswer, 336 {
        /// A `u64`, as bytes: what follows is not aligned for one.
        uid: [u8; 8],
        id: u32,
        event: u32,
        status: i32,
        /// [`UdParam`], or [`ConnParam`] at its beginning.
        param: [u8; 304],
        reserved: u32,
        ece: Ece,
    }
}

/// The length of the answers before there was ECE: older programs have room for no more.
pub(super) const EVENT_ANSWER_MIN: usize = 324;

/// The length of the answer of QUERY before there was a device index.
pub(super) const QUERY_ADDR_ANSWER_MIN: usize = 272;

/// The length of the answer of QUERY_ROUTE before there was a device index.
pub(super) const QUERY_ROUTE_ANSWER_MIN: usize = 200;

/// The flags of a path that is used both ways by data and by the manager itself: GMP, PRIMARY and
/// BIDIRECTIONAL. They are also what such a path has as its preference.
pub(super) const PATH_FLAGS: u32 = 0x2b;

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    /// `offsetof` as gcc tells with Debian's header, where it does not follow from the order of the
    /// fields.
    #[test]
    fn fields_are_where_c_has_them() {
        assert_eq!(offset_of!(ConnParam, private_data_len), 264);
        assert_eq!(offset_of!(ConnParam, valid), 271);
        assert_eq!(offset_of!(UdParam, private_data), 40);
        assert_eq!(offset_of!(Connect, ece), 280);
        assert_eq!(offset_of!(Accept, ece), 288);
        assert_eq!(offset_of!(EventAnswer, param), 20);
        assert_eq!(offset_of!(EventAnswer, ece), 328);
        assert_eq!(offset_of!(QueryAddrAnswer, device_index), QUERY_ADDR_ANSWER_MIN);
        assert_eq!(offset_of!(QueryRouteAnswer, device_index), QUERY_ROUTE_ANSWER_MIN);
        assert_eq!(offset_of!(JoinMulticast, address), 24);
        assert_eq!(offset_of!(ResolveAddr, destination), 144);
    }
}
