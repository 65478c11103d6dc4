//! Counters of peers that a listener did not accept.

use crate::counters::counters;

counters! {
    /// Requests of peers that speak another protocol.
    Foreign = "net_rx_foreign",
    /// Peers that were answered and did not connect in time.
    HalfOpenFailed = "net_half_open_failed",
    /// Peers that were answered and made room for others before they connected.
    HalfOpenForgotten = "net_half_open_forgotten",
    /// Requests that could not be answered: the peer gave up meanwhile, for example.
    Unanswered = "net_rx_unanswered",
}
