//! Every bound of a live replay.

/// Packets of a capture that are kept in memory to be played or waited for.
pub const PACKETS_MAX: usize = 4 << 20;

/// Bytes of them.
pub const BYTES_MAX: usize = 512 << 20;

/// Memory regions that one connection is mapped onto. The protocol of an offer has the same bound.
pub const REGIONS_MAX: usize = 16;

/// Bytes of memory that the requests of one connection may touch in all.
pub const MEMORY_MAX: u64 = 256 << 20;

/// Addresses that are further apart than this are mapped onto regions of their own.
pub const REGION_GAP_MAX: u64 = 1 << 20;

/// Receives that the messages of one connection may need.
pub const RECEIVES_MAX: usize = 4096;

/// Maximum number of times that one connection goes back to a request that the peer reports
/// missing.
pub const REWINDS_MAX: u32 = 16;

/// Differences of one connection that are kept for the report; further ones are counted.
pub const DIFFERENCES_MAX: usize = 64;
