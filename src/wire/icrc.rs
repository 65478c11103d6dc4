//! The checksums of InfiniBand: the invariant CRC, which every packet carries from end to end, and the variant
//! CRC of a native link.
//!
//! The ICRC is the CRC-32 of Ethernet over everything from the network header to the last pad byte, with the
//! fields that may change on the way replaced by ones, after eight bytes of ones that stand for an LRH. It is sent
//! least significant byte first: the one little-endian number of the protocol.

use super::Bth;
use super::ib::{Grh, Lrh};
use super::ip::{Ipv4, Ipv6, Udp};

/// The length of an ICRC.
pub const ICRC_LEN: usize = 4;

/// The length of a VCRC.
pub const VCRC_LEN: usize = 2;

/// The CRC-32 of eight bytes of ones.
const AFTER_MASKED_LRH: u32 = 0x2144_df1c;

/// Where in a BTH the byte stands that holds FECN, BECN and six reserved bits.
const BTH_VARIANT: usize = 4;

/// What stands before the BTH, as far as the ICRC covers it.
#[derive(Clone, Copy, Debug)]
pub enum Route<'a> {
    /// RoCEv2 over IPv4.
    Ipv4 {
        /// The header.
        header: &'a Ipv4,
        /// Its options, mostly none.
        options: &'a [u8],
        /// The UDP header.
        udp: &'a Udp,
    },
    /// RoCEv2 over IPv6.
    Ipv6 {
        /// The header.
        header: &'a Ipv6,
        /// Its extension headers, mostly none.
        extensions: &'a [u8],
        /// The UDP header.
        udp: &'a Udp,
    },
    /// RoCEv1, and native InfiniBand with a GRH: the LRH counts as ones.
    Grh(&'a Grh),
    /// Native InfiniBand without a GRH.
    Lrh(&'a Lrh),
}

/// The ICRC of a packet: its route, then `transport`, from the BTH to the last pad byte.
///
/// # Panics
///
/// If `transport` is shorter than a BTH.
pub fn icrc(route: &Route<'_>, transport: &[u8]) -> [u8; ICRC_LEN] {
    let (bth, rest) = transport.split_first_chunk::<{ Bth::LEN }>().expect("a packet has a BTH");
    let mut bth = *bth;
    bth[BTH_VARIANT] = 0xff;
    let mut hasher = crc32fast::Hasher::new_with_initial(AFTER_MASKED_LRH);
    match route {
        Route::Ipv4 { header, options: [], udp } => {
            // The common case in one piece: short pieces cost more than their bytes.
            let mut prefix = [0; Ipv4::LEN + Udp::LEN + Bth::LEN];
            let (ip, transport) = prefix.split_at_mut(Ipv4::LEN);
            ip.copy_from_slice(&masked_ipv4(header));
            let (datagram, base) = transport.split_at_mut(Udp::LEN);
            datagram.copy_from_slice(&masked_udp(udp));
            base.copy_from_slice(&bth);
            hasher.update(&prefix);
        }
        Route::Ipv4 { header, options, udp } => {
            hasher.update(&masked_ipv4(header));
            hasher.update(options);
            hasher.update(&masked_udp(udp));
            hasher.update(&bth);
        }
        Route::Ipv6 { header, extensions, udp } => {
            hasher.update(&masked_ipv6(header.as_bytes()));
            hasher.update(extensions);
            hasher.update(&masked_udp(udp));
            hasher.update(&bth);
        }
        Route::Grh(grh) => {
            hasher.update(&masked_ipv6(grh.as_bytes()));
            hasher.update(&bth);
        }
        Route::Lrh(lrh) => {
            let mut masked = *lrh.as_bytes();
            masked[0] |= 0xf0;
            hasher = crc32fast::Hasher::new();
            hasher.update(&masked);
            hasher.update(&bth);
        }
    }
    hasher.update(rest);
    hasher.finalize().to_le_bytes()
}

/// An IPv4 header with TOS, TTL and checksum as ones.
fn masked_ipv4(header: &Ipv4) -> [u8; Ipv4::LEN] {
    let mut bytes = *header.as_bytes();
    bytes[1] = 0xff;
    bytes[8] = 0xff;
    bytes[10] = 0xff;
    bytes[11] = 0xff;
    bytes
}

/// An IPv6 header or a GRH with traffic class, flow label and hop limit as ones.
fn masked_ipv6(header: &[u8; Ipv6::LEN]) -> [u8; Ipv6::LEN] {
    let mut bytes = *header;
    bytes[0] |= 0x0f;
    bytes[1] = 0xff;
    bytes[2] = 0xff;
    bytes[3] = 0xff;
    bytes[7] = 0xff;
    bytes
}

/// A UDP header with the checksum as ones.
fn masked_udp(header: &Udp) -> [u8; Udp::LEN] {
    let mut bytes = *header.as_bytes();
    bytes[6] = 0xff;
    bytes[7] = 0xff;
    bytes
}

/// The VCRC of a native packet: of `packet`, from the LRH through the ICRC, as it is sent.
#[expect(clippy::indexing_slicing, reason = "a byte has 256 values")]
pub fn vcrc(packet: &[u8]) -> [u8; VCRC_LEN] {
    let crc = packet.iter().fold(0xffff_u16, |crc, &byte| {
        (crc >> 8) ^ VCRC_TABLE[usize::from(crc.to_le_bytes()[0] ^ byte)]
    });
    (!crc).to_le_bytes()
}

/// The remainders of all bytes by x^16 + x^12 + x^3 + x + 1, least significant bit first.
#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated at compile time"
)]
static VCRC_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u16, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0x100b_u16.reverse_bits() } else { 0 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};
