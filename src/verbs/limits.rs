//! The limits that verbs themselves set, whatever the device.

/// The longest message there is, in bytes: the specification ends at 2^31. With narrow sequence
/// numbers, for tests, it is what they cover.
pub const MESSAGE_BYTES_MAX: u64 =
    if cfg!(roce_narrow_psn) { 256 * crate::wire::Psn::HALF as u64 } else { 1 << 31 };

/// The bytes before the payload in a datagram's receive buffer, where a GRH or an IPv4 header lies.
pub const GRH_BYTES: u32 = 40;

/// Length of the operand of an ATOMIC, in bytes.
pub const ATOMIC_BYTES: u32 = 8;

// The length of a message is a 32-bit field of the RETH, and half of all sequence numbers must
// cover it at any MTU.
const _: () = assert!(MESSAGE_BYTES_MAX <= u32::MAX as u64);
const _: () = assert!(MESSAGE_BYTES_MAX / 256 <= crate::wire::Psn::HALF as u64);
