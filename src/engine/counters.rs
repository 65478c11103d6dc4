//! Counters: every drop has a name and a counter.

use crate::counters::counters;

counters! {
    /// Packets received.
    Received = "rcvd_pkts",
    /// Packets sent.
    Sent = "sent_pkts",
    /// Duplicate requests.
    Duplicate = "duplicate_request",
    /// Requests ahead of the expected PSN.
    OutOfSequence = "out_of_seq_request",
    /// RNR NAKs received.
    RnrReceived = "rcvd_rnr_err",
    /// RNR NAKs sent.
    RnrSent = "send_rnr_err",
    /// Sequence NAKs received.
    SequenceReceived = "rcvd_seq_err",
    /// Retransmissions: each go-back-N counts once.
    Retry = "retry_count",
    /// SACKs sent.
    SackSent = "sack_sent",
    /// SACKs received.
    SackReceived = "sack_received",
    /// Packets that selective repeat retransmitted.
    Retransmitted = "retransmitted_packets",
    /// Early timeouts of selective repeat, which are no retries.
    EarlyTimeout = "early_timeouts",
    /// Packets that came before others and were held.
    Reordered = "reordered_packets",
    /// Requests that failed because `retry_cnt` was used up.
    RetryExceeded = "retry_exceeded_err",
    /// Requests that failed because `rnr_retry` was used up.
    RnrRetryExceeded = "retry_rnr_exceeded_err",
    /// Retransmission timeouts.
    Timeout = "local_ack_timeout_err",
    /// Implied NAKs: a response shows that an earlier one was lost.
    ImpliedNak = "implied_nak_seq_err",
    /// Requests that were NAKed or failed with an error.
    Refused = "resp_remote_errors",
    /// WRITE messages that were executed to their last packet; the name is mlx5's.
    WriteReceived = "rx_write_requests",
    /// Packets received with a congestion mark.
    CongestionMarked = "np_ecn_marked_roce_packets",
    /// CNPs sent.
    CnpSent = "np_cnp_sent",
    /// CNPs received.
    CnpReceived = "rp_cnp_handled",
    /// CNPs from a peer in a state in which they are ignored, or from another address.
    CnpIgnored = "rp_cnp_ignored",
    /// Cuts of rates by congestion control.
    RateCut = "rp_rate_cuts",
    /// Times that a queue pair began to wait for its pacer.
    PacedWait = "paced_waits",
    /// Dropped: shorter than its headers and padding.
    Truncated = "drop_truncated",
    /// Dropped: another version of the transport headers.
    BadVersion = "drop_bad_version",
    /// Dropped: a reserved opcode, or one that no queue pair accepts.
    BadOpcode = "drop_bad_opcode",
    /// Dropped: no such queue pair.
    NoQp = "drop_no_qp",
    /// Dropped: the service of the opcode is not that of the queue pair.
    WrongService = "drop_wrong_service",
    /// Dropped: the state of the queue pair does not allow the packet.
    WrongState = "drop_wrong_state",
    /// Dropped: not from the peer that the queue pair is connected to.
    WrongPeer = "drop_wrong_peer",
    /// Dropped: from the peer's address, but not from the UDP source port that the peer uses.
    WrongPort = "drop_wrong_source_port",
    /// Dropped: the P_Key does not match.
    BadPKey = "drop_bad_pkey",
    /// Dropped: the Q_Key does not match.
    BadQKey = "drop_bad_qkey",
    /// Dropped: no receive is posted, and the service has no RNR NAK.
    NoReceive = "drop_no_receive",
    /// Dropped: a datagram longer than its receive buffer.
    TooLong = "drop_too_long",
    /// Dropped: a datagram longer than the MTU of the port.
    OverMtu = "drop_over_mtu",
    /// Dropped: a datagram with a wrong pad count.
    BadPadding = "drop_bad_padding",
    /// Dropped: part of an unreliable message whose start was lost.
    OutOfMessage = "drop_out_of_message",
    /// Dropped: an invalid unreliable request.
    BadRequest = "drop_bad_request",
    /// Dropped: a response to nothing in flight.
    StaleResponse = "drop_stale_response",
    /// Dropped: a duplicate whose responder resource was recycled.
    NoReplay = "drop_no_replay",
    /// Dropped: too many responses are pending.
    Backlog = "drop_backlog",
    /// Dropped: it came before others, and there is no room to hold it.
    ReorderRefused = "drop_reorder_full",
    /// Dropped: no queue pair is attached to the multicast group.
    NoGroup = "drop_no_group",
}
