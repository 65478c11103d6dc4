//! Counters of refused messages and other events, each with a name.

use crate::counters::counters;

counters! {
    /// Messages that came in.
    Received = "cm_rx_msgs",
    /// Messages that went out, retransmissions included.
    Sent = "cm_tx_msgs",
    /// Messages that a timer sent once more.
    Retransmitted = "cm_tx_retries",
    /// Messages that a timer left alone, because the peer was answering earlier ones.
    Waited = "cm_tx_waits",
    /// Requests, replies and disconnects that were given up.
    TimedOut = "cm_tx_timeouts",
    /// Messages that were not sent, because the peer has not shown that it is at its address.
    Unproven = "cm_tx_unproven",
    /// Messages that found no room in the transmit queue.
    TransmitQueueFull = "cm_tx_queue_full",
    /// Half-open requests that gave way to newer ones.
    HalfOpenEvicted = "cm_half_open_evicted",
    /// Lingering connections that gave way to newer ones.
    LingerEvicted = "cm_linger_evicted",
    /// Datagrams shorter or longer than a MAD.
    BadLength = "cm_rx_bad_length",
    /// MADs of another base version.
    BadBaseVersion = "cm_rx_bad_base_version",
    /// MADs of another class.
    BadClass = "cm_rx_bad_class",
    /// MADs of another class version.
    BadClassVersion = "cm_rx_bad_class_version",
    /// MADs that are no sends.
    BadMethod = "cm_rx_bad_method",
    /// MADs with an attribute that the class does not have.
    UnknownAttribute = "cm_rx_unknown_attribute",
    /// Messages from or to an address that cannot be a peer's, or this device's.
    BadAddress = "cm_rx_bad_address",
    /// Messages with the comm ids of a connection whose peer has another address than their source:
    /// answered as if no connection had these comm ids.
    WrongSource = "cm_rx_wrong_source",
    /// Messages for a device that is gone.
    NoDevice = "cm_rx_no_device",
    /// REQs that came before.
    DuplicateReq = "cm_rx_duplicate_req",
    /// REQs of a QP that is connected already: REJ 10.
    StaleReq = "cm_rx_stale_req",
    /// REQs and SIDR_REQs that waited for their listener.
    Early = "cm_rx_early",
    /// REQs and SIDR_REQs for a service that nothing listens for: REJ 8, SIDR_REP 1.
    NoListener = "cm_rx_no_listener",
    /// REQs and SIDR_REQs that a full backlog forgot, the oldest of the address that had the most:
    /// no answer, as the peer will retransmit.
    BacklogFull = "cm_rx_backlog_full",
    /// REQs and SIDR_REQs for which there was no id, connection or event left: no answer.
    NoResources = "cm_rx_no_resources",
    /// REQs and SIDR_REQs whose IP header makes no sense, or names other addresses: REJ 28,
    /// SIDR_REP 2.
    BadIpHeader = "cm_rx_bad_ip_header",
    /// REQs whose primary path does not end here: REJ 12.
    BadPrimaryGid = "cm_rx_bad_primary_gid",
    /// REQs whose primary path leads to another address than the one that they come from: REJ 12.
    ForeignGid = "cm_rx_foreign_gid",
    /// REQs of another partition: REJ 12.
    BadPartition = "cm_rx_bad_partition",
    /// REQs whose path MTU does not exist: REJ 26.
    BadMtu = "cm_rx_bad_mtu",
    /// REQs for another transport than the listener's: REJ 28.
    BadTransport = "cm_rx_bad_transport",
    /// REPs that came before.
    DuplicateRep = "cm_rx_duplicate_rep",
    /// REPs of a QP that is connected already: REJ 10.
    StaleRep = "cm_rx_stale_rep",
    /// REPs for no connection: REJ 6.
    UnknownRep = "cm_rx_unknown_rep",
    /// RTUs that came before, or too late.
    UnexpectedRtu = "cm_rx_unexpected_rtu",
    /// RTUs for no connection: REJ 6.
    UnknownRtu = "cm_rx_unknown_rtu",
    /// MRAs that no message waits for.
    UnexpectedMra = "cm_rx_unexpected_mra",
    /// MRAs for no connection.
    UnknownMra = "cm_rx_unknown_mra",
    /// REJs in a state that cannot be rejected.
    UnexpectedRej = "cm_rx_unexpected_rej",
    /// REJs for no connection. A REJ is never answered.
    UnknownRej = "cm_rx_unknown_rej",
    /// DREQs for no connection: DREP.
    UnknownDreq = "cm_rx_unknown_dreq",
    /// DREQs that name another QP than the connection's.
    WrongDreqQpn = "cm_rx_wrong_dreq_qpn",
    /// DREQs that came before: DREP if the first was answered.
    DuplicateDreq = "cm_rx_duplicate_dreq",
    /// DREQs in a state that has nothing to disconnect.
    UnexpectedDreq = "cm_rx_unexpected_dreq",
    /// DREPs that came before, or that nothing asked for.
    UnexpectedDrep = "cm_rx_unexpected_drep",
    /// DREPs for no connection.
    UnknownDrep = "cm_rx_unknown_drep",
    /// SIDR_REQs that came before: the same answer, if there was one.
    DuplicateSidrReq = "cm_rx_duplicate_sidr_req",
    /// SIDR_REPs for no request.
    UnknownSidrRep = "cm_rx_unknown_sidr_rep",
    /// LAPs: alternate paths do not exist on RoCE. APR 2 if the connection exists.
    AlternatePath = "cm_rx_alternate_path",
    /// Events of an id that the program has not accepted yet.
    EventBeforeAccept = "cm_event_before_accept",
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = Counter::ALL.iter().map(|counter| counter.name()).collect();
        assert_eq!(names.len(), Counter::ALL.len());
        for (at, counter) in Counter::ALL.iter().enumerate() {
            assert_eq!(*counter as usize, at);
        }
    }
}
