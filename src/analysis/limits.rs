//! Every bound of the analysis. Together they keep it under 256 MB, whatever the capture holds.

/// Endpoints (a connection has two) that are followed at once. A connection that was silent for
/// long is summed up in the totals and forgotten when there are more.
pub const ENDPOINTS_MAX: usize = 32_768;

/// Connections that ended before the capture did (their queue pair numbers were used anew) and are
/// kept for the report.
pub const ENDED_CONNECTIONS_MAX: usize = 16_384;

/// Flow numbers that are given out. Packets of further endpoints have the number 0.
pub const FLOW_NUMBERS_MAX: u32 = 1 << 24;

/// Request packets that are remembered per direction of a connection while they are in flight.
pub const INFLIGHT_PACKETS_MAX: usize = 65_536;

/// Messages in flight that are remembered per direction of a connection.
pub const INFLIGHT_MESSAGES_MAX: usize = 16_384;

/// Request packets that are remembered in all. From here on each direction remembers
/// [`CROWDED_MAX`].
pub const ALL_PACKETS_MAX: usize = 1 << 20;

/// Messages that are remembered in all. From here on each direction remembers [`CROWDED_MAX`].
pub const ALL_MESSAGES_MAX: usize = 1 << 18;

/// Packets and messages that each direction may remember when there are many in all.
pub const CROWDED_MAX: usize = 16;

/// Acknowledged request packets that are remembered per direction, to tell copies from
/// retransmissions.
pub const HISTORY_MAX: usize = 1024;

/// Acknowledged request packets that are remembered in all: with many connections each has a part
/// of them.
pub const ALL_HISTORY_MAX: usize = 1 << 18;

/// Lost READ responses of a direction that are remembered until they are retransmitted.
pub const MISSING_RESPONSES_MAX: usize = 256;

/// Responses of a repeated answer that one response overtakes at the most.
pub const STRAY_SKIPS_MAX: u64 = 8;

/// READ responses of a direction whose frames are remembered.
pub const RESPONSES_MAX: usize = 64;

/// Acknowledgements of a direction that are remembered, to tell copies of them.
pub const RECENT_ACKS_MAX: usize = 8;

/// READs and ATOMICs of a direction that ended and are remembered, to tell copies of their
/// responses.
pub const ENDED_READS_MAX: usize = 16;

/// Sequence-error NAKs of a direction that are remembered until the requester acts on them.
pub const NAKS_MAX: usize = crate::observe::requester::recovery::NAKS_MAX;

/// Losses of a direction that are remembered until it is certain that no late packet disproves
/// them.
pub const OPEN_LOSSES_MAX: usize = 256;

/// Packets of a direction that are remembered because the file of the next capture point ends
/// before them.
pub const UNSEEN_MAX: usize = 4096;

/// Responses of an endpoint that are remembered until it is paired.
pub const ORPHAN_RESPONSES_MAX: usize = 64;

/// Lost CNPs that are remembered until their connection is known.
pub const EARLY_CNPS_MAX: usize = 16;

/// Endpoints between two addresses that are considered when a response looks for its requester.
pub const CANDIDATES_MAX: usize = 64;

/// A PSN that is further than this from all that is in flight belongs to another connection.
pub const PSN_JUMP_MAX: u64 = crate::observe::sequence::PSN_JUMP_MAX;

/// Buckets of a distribution; with more it becomes less precise.
pub const DISTRIBUTION_BUCKETS_MAX: u16 = 512;

/// Intervals of a connection's series where there are many connections; see
/// [`Series::INTERVALS_MAX`](super::Series::INTERVALS_MAX).
pub const INTERVALS_MAX_CROWDED: usize = 32;

/// Endpoints from which on there are many.
pub const CROWDED_ENDPOINTS: usize = 2048;

/// Frames that are kept as the evidence of one kind of event in one direction.
pub const EVIDENCE_MAX: usize = 8;

/// The longest silences that are kept per direction.
pub const STALLS_MAX: usize = 8;

/// Findings that are kept. The worst ones are kept.
pub const FINDINGS_MAX: usize = 4096;

/// Packets, losses and messages of one connection that a page shows one by one.
pub const PAGE_CONNECTION_ITEMS_MAX: usize = 1_000_000;

/// Packets, losses and messages of all connections together that a page shows one by one.
pub const PAGE_ITEMS_MAX: usize = 2_000_000;

/// Flows, before they are paired, whose packets a page shows; connections of later ones have only
/// their line in its table.
pub const PAGE_FLOWS_MAX: usize = 65_536;

/// Lost packets that the first pass over a capture remembers for the ladder of the second.
pub const LADDER_LOSSES_MAX: usize = 1_000_000;

/// Files (capture points) whose packets are compared. Packets of further ones are taken for packets
/// of their own.
pub const VANTAGE_FILES_MAX: usize = 64;

/// Packets of all files that are held until the capture points on their way had the time to see
/// them.
pub const VANTAGE_PACKETS_MAX: usize = 65_536;

/// Nanoseconds of the capture for which packets are held at most. Clocks of files may differ by
/// less than this.
pub const VANTAGE_SPAN_NANOS: i64 = 1_000_000_000;

/// Equal packets that are compared with each other.
pub const VANTAGE_EQUAL_MAX: usize = 64;

/// Damaged packets among those that are held whose undamaged form is looked for.
pub const VANTAGE_DAMAGED_MAX: usize = 256;

/// Flows of which it is remembered which capture points see them.
pub const VANTAGE_FLOWS_MAX: usize = 65_536;

/// Pairs of hosts for which the order of the capture points is remembered.
pub const VANTAGE_DIRECTIONS_MAX: usize = 4096;

/// Differences of two files' times that are compared for one direction while it is not known which
/// sightings are of the same transmission.
pub const VANTAGE_CANDIDATES_MAX: usize = 4096;

/// The longest delays that are kept for two capture points.
pub const VANTAGE_DELAYS_MAX: usize = 8;
