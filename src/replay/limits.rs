//! Every bound of a replay. Whatever a capture holds, memory stays within them.

/// Responders that are followed at the same time. The one that was used least recently is forgotten first; if it is seen
/// once more, its state is adopted as if the capture began there.
pub const RESPONDERS_MAX: usize = 16_384;

/// Request packets of one responder that wait for an answer that tells what became of them.
pub const PENDING_PACKETS_MAX: usize = 8192;

/// Bytes of WRITE payload that wait in all. Beyond, payloads are not kept, and the bytes they write are unknown.
pub const PENDING_BYTES_MAX: usize = 64 << 20;

/// READs and ATOMICs of one responder whose duplicates and late responses can be judged.
pub const ASKED_MAX: usize = 256;

/// Duplicates of requests of one responder that may still be answered.
pub const DUPLICATES_MAX: usize = 256;

/// Messages of one responder of which it is remembered what MSN they had.
pub const MSN_HISTORY_MAX: usize = 1024;

/// Answers of one responder that wait for a later packet to be judged.
pub const OPEN_MAX: usize = 64;

/// READ responses that are passed over one by one. A responder that is further behind is set up anew.
pub const SKIP_MAX: u64 = 4096;

/// Bytes of one page of remembered memory contents.
pub const PAGE_BYTES: usize = 4096;

/// Pages of memory contents that are remembered in all: 256 MiB. Beyond, contents are unknown.
pub const PAGES_MAX: usize = 65_536;

/// Accesses that are remembered per key, granted and refused each.
pub const ACCESSES_MAX: usize = 64;

/// Keys whose accesses are remembered in all.
pub const KEYS_MAX: usize = 65_536;

/// Differences, and known deviations, that a report lists one by one. All are counted.
pub const LISTED_MAX: usize = 10_000;

/// Frames that a difference names beside its own.
pub const FRAMES_MAX: usize = 8;

/// Streams whose PSNs are remembered to tell which connections may be paired wrongly. If there are more, all may be that
/// are paired by their PSNs alone.
pub const PAIRING_STREAMS_MAX: usize = 65_536;

/// How near the PSNs of two connections between the same hosts may be until packets that the capture misses can make one
/// look like the other.
pub const PAIRING_MARGIN: u64 = 32;

/// Responses of a connection that agree with its requests, from which on it is certain that both belong together.
pub const PAIRING_PROOF: u32 = 64;
