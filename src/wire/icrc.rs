//! The checksums of InfiniBand: the invariant CRC, which every packet carries from end to end, and
//! the variant CRC of a native link.
//!
//! The ICRC is the CRC-32 of Ethernet over everything from the network header to the last pad byte,
//! with the fields that may change on the way replaced by ones, after eight bytes of ones that
//! stand for an LRH. It is sent least significant byte first: the one little-endian number of the
//! protocol.

use zerocopy::{Immutable, IntoBytes};

use super::ib::{Grh, Lrh};
use super::identification::{self, Varying};
use super::ip::{Ipv4, Ipv4Repr, Ipv6, Ipv6Repr, Udp, UdpRepr};
use super::{Bth, Gid, Path, PathHeaders};
use crate::memory::{AccessError, Region, Sum, packet_crc32};

pub use super::identification::Identification;

/// The length of an ICRC.
pub const ICRC_LEN: usize = 4;

/// The length of a VCRC.
pub const VCRC_LEN: usize = 2;

// Rule: T-53.
/// The CRC-32 of eight bytes of ones.
const AFTER_MASKED_LRH: u32 = 0x2144_df1c;

/// Returns the CRC-32 of the bytes that gave `crc`, followed by `bytes`.
///
/// crc32fast multiplies without carries where the processor can. QEMU emulates such a product bit
/// by bit: there a 4 KiB packet takes 26 µs, and by shifts and exclusive ORs alone 2.3 µs. The
/// bandwidth in an emulated guest was the same with both, because the emulated kernel takes most of
/// the time; so there is no second implementation for emulators.
#[inline]
fn crc32(crc: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// Offset in a BTH of the byte with FECN, BECN and six reserved bits.
const BTH_VARIANT: usize = 4;

/// Headers before the BTH, as far as the ICRC covers them.
#[derive(Clone, Copy, Debug)]
pub enum Route<'a> {
    /// RoCEv2 over IPv4.
    Ipv4 {
        /// The header.
        header: &'a Ipv4,
        /// IP options, mostly none.
        options: &'a [u8],
        /// The UDP header.
        udp: &'a Udp,
    },
    /// RoCEv2 over IPv6.
    Ipv6 {
        /// The header.
        header: &'a Ipv6,
        /// Extension headers, mostly none.
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
    // Rules: W-01.1, Q-01.
    let (start, rest) = transport.split_first_chunk::<BTH_VARIANT>().expect("a packet has a BTH");
    let variant = rest.first().expect("a packet has a BTH");
    let crc = match route {
        Route::Ipv4 { header, options: [], udp } => {
            let (ip, udp) = (masked_ipv4(header), masked_udp(udp));
            crc32(AFTER_MASKED_LRH, PlainRoute { ip, udp, bth: *start }.as_bytes())
        }
        _ => {
            let (crc, mut short) = begin(route);
            short.put(start);
            crc32(crc, short.bytes())
        }
    };
    // The next byte of a message is added to the lowest byte of the register: so the variant byte
    // becomes ones there, and the rest is taken as it stands.
    crc32(crc ^ u32::from(variant ^ 0xff), rest).to_le_bytes()
}

/// Masked headers of almost all packets, up to the variant byte of their BTH: of one length, which
/// is two steps of a checksum.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct PlainRoute {
    ip: [u8; Ipv4::LEN],
    udp: [u8; Udp::LEN],
    bth: [u8; BTH_VARIANT],
}

/// The checksum of what stands before a BTH: packets that go one way with one length have it in
/// common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix(u32);

impl Prefix {
    /// Computes the prefix of a route.
    pub fn new(route: &Route<'_>) -> Self {
        let (crc, short) = begin(route);
        Self(crc32(crc, short.bytes()))
    }

    /// Computes the prefix of plain headers between these addresses to RoCE's port, not to be
    /// fragmented, whose lengths, identification and source port are 0.
    pub(super) fn between(source: Gid, destination: Gid) -> Self {
        let path = Path { source, destination, source_port: 0, ..Path::NOWHERE };
        let headers = match path.headers(0) {
            PathHeaders::Ipv4(ip, udp) => {
                let (ip, udp) = (Ipv4Repr { total_len: 0, ..ip.repr() }, udp.repr());
                PathHeaders::Ipv4(ip.emit(), UdpRepr { length: 0, ..udp }.emit())
            }
            PathHeaders::Ipv6(ip, udp) => {
                let (ip, udp) = (Ipv6Repr { payload_len: 0, ..ip.repr() }, udp.repr());
                PathHeaders::Ipv6(ip.emit(), UdpRepr { length: 0, ..udp }.emit())
            }
        };
        headers.prefix()
    }

    /// Returns the prefix of these headers with a field that was 0 set to this value.
    #[inline]
    #[must_use]
    pub(super) fn with(self, field: Varying, value: u16) -> Self {
        Self(self.0 ^ identification::change(field, value))
    }

    /// Returns the prefix of these headers with this identification, if they are IPv4 headers
    /// without options and with identification 0.
    #[inline]
    #[must_use]
    pub fn with_identification(self, id: u16) -> Self {
        self.with(Varying::Identification, id)
    }

    /// Puts the ICRC into the last four bytes of `packet`, which runs from its BTH to there.
    ///
    /// # Panics
    ///
    /// If the packet is shorter than a BTH and an ICRC.
    #[inline]
    pub fn seal(&self, packet: &mut [u8]) {
        let (body, place) =
            packet.split_last_chunk_mut::<ICRC_LEN>().expect("there is room for an ICRC");
        *place = self.icrc(body).expect("a packet has a BTH");
    }

    /// Copies payload to its place in `packet`, from `start` on, and seals it as
    /// [`seal`](Self::seal) does. Payload of whole steps that is followed by the ICRC is copied and
    /// summed in one pass.
    ///
    /// # Panics
    ///
    /// If the packet is shorter than a BTH and an ICRC.
    #[inline]
    pub(super) fn seal_filling(
        &self,
        packet: &mut [u8],
        start: usize,
        payload: &Region,
    ) -> Result<(), AccessError> {
        let end = start + payload.len();
        if end + ICRC_LEN == packet.len()
            && let Some(variant) = packet.get(BTH_VARIANT)
            && let Some(mut sum) = Sum::begin(self.0, u32::from(variant ^ 0xff), packet, start)
            && let Some(room) = packet.get_mut(start..end)
            && let Some(copied) = payload.read_and_sum(0, room, &mut sum)
        {
            copied?;
            if let Some(place) = packet.last_chunk_mut() {
                *place = sum.finish().to_le_bytes();
            }
            return Ok(());
        }
        payload.read(0, packet.get_mut(start..end).unwrap_or_default())?;
        self.seal(packet);
        Ok(())
    }

    /// Whether the last four bytes of `packet`, which runs from its BTH to there, are its ICRC. It
    /// is left as it was.
    #[inline]
    pub fn verifies(&self, packet: &mut [u8]) -> bool {
        packet
            .split_last_chunk_mut::<ICRC_LEN>()
            .is_some_and(|(body, sealed)| self.icrc(body) == Some(*sealed))
    }

    /// Returns the difference (exclusive or) of the last four bytes of `packet`, which runs from
    /// its BTH to there, and its ICRC, by which an [`Identification`] is found. `None` if the
    /// packet is shorter than a BTH and an ICRC. It is left as it was.
    #[inline]
    pub fn difference(&self, packet: &mut [u8]) -> Option<u32> {
        let (body, sealed) = packet.split_last_chunk_mut::<ICRC_LEN>()?;
        Some(u32::from_le_bytes(self.icrc(body)?) ^ u32::from_le_bytes(*sealed))
    }

    /// The ICRC of `transport`, from the BTH to the last pad byte, in one pass: for `crc32fast` it
    /// is masked in place, and left as it was.
    #[inline(always)]
    fn icrc(&self, transport: &mut [u8]) -> Option<[u8; ICRC_LEN]> {
        let bth = transport.first_chunk_mut::<{ Bth::LEN }>()?;
        let flips = u32::from(bth[BTH_VARIANT] ^ 0xff);
        if let Some(crc) = packet_crc32(self.0, flips, transport) {
            return Some(crc.to_le_bytes());
        }
        let bth = transport.first_chunk_mut::<{ Bth::LEN }>()?;
        let variant = core::mem::replace(&mut bth[BTH_VARIANT], 0xff);
        let crc = crc32(self.0, transport);
        *transport.get_mut(BTH_VARIANT)? = variant;
        Some(crc.to_le_bytes())
    }
}

/// Bytes that are yet to be put into a checksum, together: short pieces cost more than their bytes.
struct Short {
    bytes: [u8; Ipv6::LEN + Udp::LEN + Bth::LEN],
    len: usize,
}

impl Short {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(bytes);
        }
        self.len = end;
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// A checksum that has begun with a route, and the last bytes of the route, which are not in it
/// yet.
#[inline]
fn begin(route: &Route<'_>) -> (u32, Short) {
    let mut crc = AFTER_MASKED_LRH;
    let mut short = Short { bytes: [0; _], len: 0 };
    match route {
        Route::Ipv4 { header, options: between, udp } => {
            short.put(&masked_ipv4(header));
            short = after(&mut crc, short, between);
            short.put(&masked_udp(udp));
        }
        Route::Ipv6 { header, extensions: between, udp } => {
            short.put(&masked_ipv6(header.as_bytes()));
            short = after(&mut crc, short, between);
            short.put(&masked_udp(udp));
        }
        Route::Grh(grh) => short.put(&masked_ipv6(grh.as_bytes())),
        Route::Lrh(lrh) => {
            let mut masked = *lrh.as_bytes();
            masked[0] |= 0xf0;
            crc = 0;
            short.put(&masked);
        }
    }
    (crc, short)
}

/// Adds `short` and `rest` to the checksum, unless there is no rest; returns the bytes that are
/// still to be added.
fn after(crc: &mut u32, short: Short, rest: &[u8]) -> Short {
    if rest.is_empty() {
        return short;
    }
    *crc = crc32(crc32(*crc, short.bytes()), rest);
    Short { len: 0, ..short }
}

/// An IPv4 header with TOS, TTL and checksum as ones.
fn masked_ipv4(header: &Ipv4) -> [u8; Ipv4::LEN] {
    // Rule: W-01.2.
    let mut bytes = *header.as_bytes();
    bytes[1] = 0xff;
    bytes[8] = 0xff;
    bytes[10] = 0xff;
    bytes[11] = 0xff;
    bytes
}

/// An IPv6 header or a GRH with traffic class, flow label and hop limit as ones.
fn masked_ipv6(header: &[u8; Ipv6::LEN]) -> [u8; Ipv6::LEN] {
    // Rule: W-01.2.
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
    // Rule: W-01.2.
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
