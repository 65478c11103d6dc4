//! Every bound of a replay. Whatever a capture holds, memory stays within them: about 1 GiB, beside
//! that of the first pass.

/// Parts into which hosts are divided, each of which can be judged on a thread of its own. The
/// bounds below hold for all parts together, and each has an equal share.
pub const SHARDS_MAX: usize = 16;

/// Packets whose notes the first pass keeps for the second one, four bytes each: 256 MiB. Of
/// captures with more, and of several files, the second pass analyzes the packets once more.
pub const NOTES_MAX: usize = 1 << 26;

/// Packets with a wrong ICRC that the first pass names to the second one, eight bytes each: 8 MiB.
/// Of captures with more, the second pass checks every ICRC once more.
pub const NOTED_DAMAGED_MAX: usize = 1 << 20;

/// Responders that are followed at the same time. The one that was used least recently is forgotten
/// first; if it is seen once more, its state is adopted as if the capture began there.
pub const RESPONDERS_MAX: usize = 1 << 17;

/// Engines' queue pairs, about 1 KiB each: 16 MiB. From here on responders that were not used
/// lately give theirs back, and get one when they execute a request.
pub const TARGETS_MAX: usize = 16_384;

/// Requests, answers and messages that all responders remember. From here on each remembers
/// [`CROWDED_ITEMS_MAX`] of a kind.
pub const ALL_ITEMS_MAX: usize = 1 << 19;

/// Requests, answers or messages that each responder may remember when there are many in all.
pub const CROWDED_ITEMS_MAX: usize = 16;

/// Request packets of one responder that wait for an answer that tells what became of them.
pub const PENDING_PACKETS_MAX: usize = 8192;

/// Bytes of WRITE payload that wait in all. Beyond, payloads are not kept, and the bytes they write
/// are unknown.
pub const PENDING_BYTES_MAX: usize = 64 << 20;

/// READs and ATOMICs of one responder whose duplicates and late responses can be judged.
pub const ASKED_MAX: usize = 256;

/// Duplicates of requests of one responder that may still be answered.
pub const DUPLICATES_MAX: usize = 256;

/// Messages of one responder of which it is remembered what MSN they had.
pub const MSN_HISTORY_MAX: usize = 1024;

/// Answers of one responder that wait for a later packet to be judged, with their bytes. Where much
/// is remembered in all, none do.
pub const OPEN_MAX: usize = 64;

/// Bytes of one page of remembered memory contents.
pub const PAGE_BYTES: usize = 4096;

/// Pages of memory contents that are remembered in all: 256 MiB. Beyond, contents are unknown.
pub const PAGES_MAX: usize = 65_536;

/// Accesses that are remembered per key, granted and refused each.
pub const ACCESSES_MAX: usize = 64;

/// Accesses that are remembered in all, 56 bytes each: 28 MiB.
pub const ALL_ACCESSES_MAX: usize = 1 << 19;

/// Keys whose accesses are remembered in all.
pub const KEYS_MAX: usize = 65_536;

/// Differences, and known deviations, that a report lists one by one. All are counted.
pub const LISTED_MAX: usize = 10_000;

/// Frames that a difference names beside its own.
pub const FRAMES_MAX: usize = 8;

/// Flows whose PSNs are remembered to tell which connections may be paired wrongly, 80 bytes each:
/// 5 MiB. If there are more, all may be that are paired by their PSNs alone.
pub const PAIRING_STREAMS_MAX: usize = 65_536;

/// Distance of the PSNs of two connections between the same hosts from which on packets that the
/// capture misses cannot make one look like the other.
pub const PAIRING_MARGIN: u64 = 32;

/// Responses of a connection that agree with its requests, from which on it is certain that both
/// belong together.
pub const PAIRING_PROOF: u32 = 64;
