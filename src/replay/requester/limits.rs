//! Every bound and every tolerance of this part.

use core::time::Duration;

/// Requesters that are followed at the same time. Those that were used least recently are forgotten
/// first; one that is seen once more begins anew.
pub const REQUESTERS_MAX: usize = 1 << 17;

/// Request packets that are remembered per requester: those in flight, and acknowledged ones that
/// may come again...
pub const RECORDS_MAX: usize = 65_536;

/// ... of which so many stay when they are acknowledged...
pub const HISTORY_MAX: usize = 1024;

/// ... and in all. From here on each requester remembers [`CROWDED_MAX`].
pub const ALL_RECORDS_MAX: usize = 1 << 19;

/// Part of [`ALL_RECORDS_MAX`] up to which the bytes of packets that wait are kept.
pub const ROOMY_PART: usize = 16;

/// Packets that each requester may remember when there are many in all.
pub const CROWDED_MAX: usize = 16;

/// Packets of a requester that wait for a packet before them which the capture lacks so far.
pub const PENDING_MAX: usize = 256;

/// Maximum number of these whose bytes are kept, to show them in a difference.
pub const PENDING_BYTES_MAX: usize = 8;

/// Transmissions of the packet behind a gap, without one of the gap, from which on the gap is the
/// requester's and not a loss before the capture point, where nothing else was lost...
pub const GAP_PASSES: u16 = 4;

/// ... and where other packets were lost.
pub const GAP_PASSES_LOSSY: u16 = 6;

/// Longest delay by a network of a packet behind others, or of a copy behind the packet: what comes
/// again later than this was transmitted again.
pub const REORDER: Duration = Duration::from_millis(1);

/// The shortest retransmission timeout that is thought possible where neither the connection
/// manager nor the capture tells of a longer one.
pub const TIMEOUT_LEAST: Duration = Duration::from_micros(100);

/// Within this time of its capture a response may not have been handled yet, at the host where it
/// was captured.
pub const REACTION: Duration = crate::observe::timing::REACTION;

/// Tolerance for timers and time stamps when an RNR timer is checked, beside an eighth of the
/// timer.
pub const RNR_SLACK: Duration = Duration::from_micros(2);
