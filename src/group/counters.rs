//! Counters of requests that a group refused.

use crate::counters::counters;

counters! {
    /// Requests that name no member of the group, or speak another protocol.
    UnknownMember = "group_rx_unknown_member",
    /// Requests from another address than that of the server that they name.
    WrongSource = "group_rx_wrong_source",
    /// Requests of earlier runs or attempts.
    Stale = "group_rx_stale",
    /// Requests of servers that are to wait for a request.
    WrongRole = "group_rx_wrong_role",
    /// Requests while too many of the same server are being answered, or its messages are not
    /// polled.
    Busy = "group_rx_busy",
    /// Requests after the end.
    Closed = "group_rx_closed",
    /// Connections over which the peer did not prove itself.
    Unproven = "group_rx_unproven",
}
