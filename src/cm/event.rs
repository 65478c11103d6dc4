//! Events of a program.

use super::private_data::PrivateData;
use super::table::CmId;
use crate::verbs::AhAttr;
use crate::wire::{QKey, Qpn};

/// Declares the kinds of events with their numbers and names in C.
macro_rules! kinds {
    ($($kind:ident = $code:literal, $name:literal;)*) => {
        /// Kind of an event: `rdma_cm_event_type`, with its numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "the documentation of librdmacm names them")]
        pub enum EventKind {
            $($kind = $code,)*
        }

        impl EventKind {
            /// All of them, by their numbers.
            pub const ALL: [Self; 16] = [$(Self::$kind),*];

            /// Returns the name in C.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => concat!("RDMA_CM_EVENT_", $name),)*
                }
            }
        }
    };
}

kinds! {
    AddrResolved = 0, "ADDR_RESOLVED";
    AddrError = 1, "ADDR_ERROR";
    RouteResolved = 2, "ROUTE_RESOLVED";
    RouteError = 3, "ROUTE_ERROR";
    ConnectRequest = 4, "CONNECT_REQUEST";
    ConnectResponse = 5, "CONNECT_RESPONSE";
    ConnectError = 6, "CONNECT_ERROR";
    Unreachable = 7, "UNREACHABLE";
    Rejected = 8, "REJECTED";
    Established = 9, "ESTABLISHED";
    Disconnected = 10, "DISCONNECTED";
    DeviceRemoval = 11, "DEVICE_REMOVAL";
    MulticastJoin = 12, "MULTICAST_JOIN";
    MulticastError = 13, "MULTICAST_ERROR";
    AddrChange = 14, "ADDR_CHANGE";
    TimewaitExit = 15, "TIMEWAIT_EXIT";
}

impl EventKind {
    /// The number in C.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// The kind with this number in C; `None` if there is none.
    pub fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

/// Options of an enhanced connection (annex A16): who defines them, and what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The vendor, 24 bits; 0 is none.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kind of the event.
    pub kind: EventKind,
    /// Id of the event; of a request, the new id.
    pub id: CmId,
    /// The listener that a request is for.
    pub listener: Option<CmId>,
    /// Context that the program gave the id, or of a request the listener.
    pub context: u64,
    /// 0, a negative error number, or the positive reason of a REJ or status of a SIDR_REP.
    pub status: i32,
    /// Parameters.
    pub param: EventParam,
    /// The peer's options of an enhanced connection.
    pub ece: Ece,
}

/// Parameters of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventParam {
    /// No parameters.
    None,
    /// Parameters of a connection: `rdma_conn_param`.
    Conn(ConnEvent),
    /// Parameters of datagrams: `rdma_ud_param`.
    Ud(UdEvent),
}

/// Parameters of the peer's side of a connection, as the receiver sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnEvent {
    /// The peer's private data.
    pub private_data: PrivateData,
    /// Number of READs and ATOMICs of the peer that it asks this side to serve at a time.
    pub responder_resources: u8,
    /// Number of READs and ATOMICs that it serves for this side at a time.
    pub initiator_depth: u8,
    /// Whether it counts credits.
    pub flow_control: bool,
    /// Number of retries that it wants.
    pub retry_count: u8,
    /// Number of retries that it wants while it is not ready.
    pub rnr_retry_count: u8,
    /// Whether its QP has a shared receive queue.
    pub srq: bool,
    /// Number of its QP.
    pub qpn: Qpn,
}

/// Destination of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdEvent {
    /// The peer's private data.
    pub private_data: PrivateData,
    /// The way there; `None` if it is not known.
    pub ah: Option<AhAttr>,
    /// The QP.
    pub qpn: Qpn,
    /// Q_Key.
    pub q_key: QKey,
    /// Context that the program gave the join.
    pub join_context: u64,
}

impl EventParam {
    /// Private data and nothing else, of a connection.
    pub(super) fn refused(private_data: PrivateData) -> Self {
        Self::Conn(ConnEvent {
            private_data,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: false,
            qpn: Qpn::new(0),
        })
    }

    /// Private data and nothing else, of datagrams.
    pub(super) fn datagram(private_data: PrivateData) -> Self {
        Self::Ud(UdEvent {
            private_data,
            ah: None,
            qpn: Qpn::new(0),
            q_key: QKey::new(0),
            join_context: 0,
        })
    }

    /// The private data, if any came.
    pub fn private_data(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Conn(conn) => conn.private_data.as_slice(),
            Self::Ud(ud) => ud.private_data.as_slice(),
        }
    }
}
