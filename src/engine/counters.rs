//! Everything that is refused has a name and is counted.

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a packet was dropped, or what else is worth counting.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        impl Counter {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name; that of rxe's `hw_counters` where the meaning is the same.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    /// Packets that came in.
    Received = "rcvd_pkts",
    /// Packets that went out.
    Sent = "sent_pkts",
    /// Requests that had come before.
    Duplicate = "duplicate_request",
    /// Requests ahead of their turn.
    OutOfSequence = "out_of_seq_request",
    /// Receiver-not-ready refusals that came in.
    RnrReceived = "rcvd_rnr_err",
    /// Receiver-not-ready refusals that went out.
    RnrSent = "send_rnr_err",
    /// Sequence refusals that came in.
    SequenceReceived = "rcvd_seq_err",
    /// Times that work was sent again.
    Retry = "retry_count",
    /// Work that was given up after too many retries.
    RetryExceeded = "retry_exceeded_err",
    /// Work that was given up after too many receiver-not-ready refusals.
    RnrRetryExceeded = "retry_rnr_exceeded_err",
    /// Timeouts.
    Timeout = "local_ack_timeout_err",
    /// Answers that imply that an earlier one was lost.
    ImpliedNak = "implied_nak_seq_err",
    /// Requests that were refused with an error.
    Refused = "resp_remote_errors",
    /// WRITE messages that were executed to their last packet; the name is mlx5's.
    WriteReceived = "rx_write_requests",
    /// Congestion marks on packets that came in.
    CongestionMarked = "np_ecn_marked_roce_packets",
    /// Congestion notifications that went out.
    CnpSent = "np_cnp_sent",
    /// Congestion notifications that came in.
    CnpReceived = "rp_cnp_handled",
    /// Dropped: shorter than its headers and padding.
    Truncated = "drop_truncated",
    /// Dropped: another version of the transport headers.
    BadVersion = "drop_bad_version",
    /// Dropped: an opcode nobody has assigned, or that no queue pair here takes.
    BadOpcode = "drop_bad_opcode",
    /// Dropped: no such queue pair.
    NoQp = "drop_no_qp",
    /// Dropped: the service of the opcode is not that of the queue pair.
    WrongService = "drop_wrong_service",
    /// Dropped: the queue pair is in a state that takes no such packet.
    WrongState = "drop_wrong_state",
    /// Dropped: not from the peer that the queue pair is connected to.
    WrongPeer = "drop_wrong_peer",
    /// Dropped: from the peer's address, but not from the UDP source port that the peer uses.
    WrongPort = "drop_wrong_source_port",
    /// Dropped: another partition.
    BadPKey = "drop_bad_pkey",
    /// Dropped: another queue key.
    BadQKey = "drop_bad_qkey",
    /// Dropped: a message without a receive work request, where nobody can be told.
    NoReceive = "drop_no_receive",
    /// Dropped: a datagram that its receive work request has no room for.
    TooLong = "drop_too_long",
    /// Dropped: a datagram with more payload than the port takes.
    OverMtu = "drop_over_mtu",
    /// Dropped: a datagram whose padding does not suit its payload.
    BadPadding = "drop_bad_padding",
    /// Dropped: part of an unreliable message whose start was lost.
    OutOfMessage = "drop_out_of_message",
    /// Dropped: an unreliable request that makes no sense.
    BadRequest = "drop_bad_request",
    /// Dropped: an answer to what was never asked, or that was answered already.
    StaleResponse = "drop_stale_response",
    /// Dropped: a repeated request whose answer is no longer kept.
    NoReplay = "drop_no_replay",
    /// Dropped: more answers are owed than can be kept.
    Backlog = "drop_backlog",
    /// Dropped: a multicast group that nobody here is attached to.
    NoGroup = "drop_no_group",
}

/// How often each thing happened.
#[derive(Clone, Debug)]
pub struct Counters([u64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([0; Counter::ALL.len()])
    }
}

impl Counters {
    /// How often it happened.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// All of them, with how often.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, u64)> {
        Counter::ALL.iter().map(|&counter| (counter, self.get(counter)))
    }

    #[inline]
    pub(super) fn add(&mut self, counter: Counter) {
        self.0[counter as usize] += 1;
    }
}
