//! Every bound and every tolerance of this part.

/// Requesters that are followed at once. Packets of further ones are undecided.
pub const REQUESTERS_MAX: usize = 32_768;

/// Request packets that are remembered per requester: those in flight, and acknowledged ones that may come again...
pub const RECORDS_MAX: usize = 65_536;

/// ... of which so many stay when they are acknowledged...
pub const HISTORY_MAX: usize = 1024;

/// ... and in all. From here on each requester remembers [`CROWDED_MAX`].
pub const ALL_RECORDS_MAX: usize = 1 << 19;

/// Packets that each requester may remember when there are many in all.
pub const CROWDED_MAX: usize = 16;

/// Packets of a requester that wait for a packet before them which the capture lacks so far.
pub const PENDING_MAX: usize = 256;

/// Of how many of these the bytes are kept, to show them in a difference.
pub const PENDING_BYTES_MAX: usize = 8;

/// How often the packet behind a gap must have been transmitted, and the gap not once, until the gap is the requester's
/// and not a loss before the capture point, where nothing else was lost...
pub const GAP_PASSES: u16 = 4;

/// ... and where other packets were lost.
pub const GAP_PASSES_LOSSY: u16 = 6;

/// By how much a network may delay a packet behind others, or a copy behind the packet: what comes again later than this
/// was transmitted again.
pub const REORDER_NANOS: u64 = 1_000_000;

/// The shortest retransmission timeout that is thought possible where neither the connection manager nor the capture tells
/// of a longer one.
pub const TIMEOUT_LEAST_NANOS: u64 = 100_000;

/// Within this time of its capture a response may not have been handled yet, at the host where it was captured.
pub const REACTION_NANOS: u64 = 200_000;

/// By how much timers and time stamps may be wrong when an RNR timer is checked, beside an eighth of the timer.
pub const RNR_SLACK_NANOS: u64 = 2_000;
