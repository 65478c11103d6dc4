//! Every bound of this room, with its reason.
//!
//! A file's numbers are claims. None of them sizes an allocation: buffers have the sizes below, and
//! what does not fit is an error that names the claim and the limit.

/// Most bytes of one packet that a file may hold.
///
/// Four times what libpcap (262 144) lets a capture have, sixteen times the longest IP packet; GRO
/// and TSO trains of "BIG TCP" captures stay below it. What claims more is damage, not a packet.
pub const MAX_CAPTURED: u32 = 1 << 20;

/// Longest pcapng block that is held in memory: packets and interface descriptions.
///
/// The longest packet, and as much again for its options. Other blocks are skipped as they stream
/// by and may have any length.
pub const MAX_BLOCK: u32 = 2 * MAX_CAPTURED;

/// Most interfaces one section of a pcapng may describe.
///
/// As many as the 16-bit numbers of the obsolete packet block could name; 5 MiB when all are used.
pub const MAX_INTERFACES: usize = 1 << 16;

/// Most bytes of options that are kept of all interfaces of a section together: names,
/// descriptions, filters.
///
/// Only who copies a capture needs them. An interface whose options do not fit any more is kept
/// without them.
pub const MAX_INTERFACE_OPTIONS: usize = 1 << 20;

/// Base-2 logarithm of the largest zstd window that is decoded: 32 MiB.
///
/// A frame's header asks for this memory before it has proven anything. `zstd -19` needs 8 MiB;
/// only `--ultra` and `--long` need more than this.
pub const MAX_ZSTD_WINDOW_LOG: u32 = 25;

/// Most bytes of one packet that this crate's own writers put into a file.
///
/// libpcap's `MAXIMUM_SNAPLEN` and Wireshark's `WTAP_MAX_PACKET_SIZE_STANDARD`: both refuse to read
/// more.
pub const MAX_WRITTEN: u32 = 262_144;

/// Longest packet that a record may have to be taken for the first sound one behind damage.
///
/// libpcap and Wireshark read no longer ones, and a search that trusted larger claims would look
/// further ahead than the buffer reaches.
pub(super) const MAX_RESYNC: u32 = MAX_WRITTEN;

/// Longest pcapng block that is taken for the first sound one behind damage: such a packet, and as
/// much again for options.
pub(super) const MAX_RESYNC_BLOCK: u32 = 2 * MAX_RESYNC;

/// Number of consecutive headers that must be sound before a pcap's reader trusts the first.
///
/// A header that is random bytes looks sound once in some 2⁴⁰ positions; one in structured bytes
/// (zeros, counters, a capture within a packet) more often, but its successors lie elsewhere.
pub(super) const RESYNC_CHAIN: usize = 4;

/// Maximum number of seconds between neighbors of a capture before one of them is suspect: a week.
pub(super) const NEIGHBOR_SECONDS: u32 = 7 * 24 * 3600;

/// Number of bytes that one read asks of the source.
///
/// Large enough that system calls do not count, small enough that the bytes are still in the L2
/// cache when they are parsed, with those of the few batches that a thread has beside.
pub(super) const READ_SIZE: usize = 512 << 10;

/// Compressed bytes held ahead of the decompressor.
pub(super) const COMPRESSED_SIZE: usize = 64 << 10;

/// The size of the one buffer that records are lent from. Only its first [`READ_SIZE`] bytes are
/// touched (and so backed by memory) unless a record is longer than that.
pub(super) const BUFFER_SIZE: usize = 2 << 20;

/// Most records of one batch, which has as many bytes as one read brings: reached only by packets
/// of a few bytes.
pub(super) const BATCH_RECORDS: usize = 8192;

const _: () = assert!(MAX_WRITTEN <= MAX_CAPTURED);
const _: () = assert!(READ_SIZE <= BUFFER_SIZE);
// A whole block, and a whole pcap record with its header, fit into the buffer.
const _: () = assert!(MAX_BLOCK as usize <= BUFFER_SIZE);
const _: () = assert!(MAX_CAPTURED as usize + super::pcap::RECORD_HEADER <= BUFFER_SIZE);
// A record of any length fits into a batch that is not full.
const _: () = assert!(READ_SIZE + MAX_CAPTURED as usize <= BUFFER_SIZE);
// A search sees all that it must: half the buffer is looked through while the other half is looked
// ahead into.
const _: () = assert!(
    (RESYNC_CHAIN - 1) * (MAX_RESYNC as usize + super::pcap::RECORD_HEADER)
        + super::pcap::RECORD_HEADER
        <= BUFFER_SIZE / 2
);
const _: () = assert!(MAX_RESYNC_BLOCK as usize + 8 <= BUFFER_SIZE / 2);
