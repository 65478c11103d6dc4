//! Frames of simulated networks, from the IP header to the ICRC: what a network does to them.

use roce::wire::ICRC_ROOM;

/// The length of the IP header.
pub fn network_len(bytes: &[u8]) -> usize {
    if bytes[0] >> 4 == 4 { 20 } else { 40 }
}

/// The part of a frame from its BTH to its last pad byte.
pub fn transport(bytes: &[u8]) -> &[u8] {
    &bytes[network_len(bytes) + 8..bytes.len() - ICRC_ROOM]
}

/// Changes a bit behind the UDP header that the ICRC covers, or one of the ICRC.
pub fn corrupt(bytes: &mut [u8], chance: usize) {
    let start = network_len(bytes) + 8;
    let bits = (bytes.len() - start) * 8;
    let mut bit = chance % bits;
    // No ICRC covers the fifth byte of the BTH.
    if bit / 8 == 4 {
        bit += 8;
    }
    bytes[start + bit / 8] ^= 1 << (bit % 8);
}

/// Sets the ECN field to CE, which no ICRC covers.
pub fn mark(bytes: &mut [u8]) {
    match bytes[0] >> 4 {
        4 => bytes[1] |= 3,
        _ => bytes[1] |= 0x30,
    }
}
