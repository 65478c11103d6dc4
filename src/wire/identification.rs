//! Effect of an IPv4 identification on an ICRC, and the identification that an ICRC implies.
//!
//! A CRC is linear: what changes in the bytes changes the checksum by something that depends on the
//! change and on how many bytes follow it, and on nothing else. So a checksum for one
//! identification is one exclusive or away from that for another; and the sixteen bits of an
//! identification that the receiver did not keep follow from the difference that they made.

/// Finds the identification of the IPv4 header of packets of one length, which a UDP socket does
/// not tell.
///
/// Of the 2³² differences that an ICRC can have from that of identification 0, one in 2¹⁶ comes
/// from an identification. So a damaged packet passes for sound once in 65 536 times, as with the
/// checksum of UDP, which stands beside it where the sender makes one.
///
/// ```
/// use roce::wire::icrc::Identification;
/// # use std::net::Ipv4Addr;
/// # use roce::wire::{Gid, Path};
/// # let (source, destination) = (Gid::from(Ipv4Addr::LOCALHOST), Gid::from(Ipv4Addr::LOCALHOST));
/// # let path = Path { source, destination, ..Path::NOWHERE };
/// let mut packet = [7; 64];
/// let prefix = path.prefix(packet.len());
/// prefix.with_identification(4711).seal(&mut packet);
///
/// let difference = prefix.difference(&mut packet).expect("it is longer than a BTH");
/// let identification = Identification::of_length(packet.len());
/// assert_eq!(identification.find(difference), Some(4711));
/// assert_eq!(identification.find(difference ^ 1), None);
/// ```
#[derive(Clone, Debug)]
pub struct Identification {
    /// Contribution of each four bits of a difference, at the position of the identification.
    back: [[u32; 16]; 8],
}

impl Identification {
    /// Tables for packets whose length from BTH through ICRC is `len`.
    pub fn of_length(len: usize) -> Self {
        // What follows the beginning of the identification, up to the ICRC.
        let distance = BEFORE_BTH + len.saturating_sub(super::icrc::ICRC_LEN);
        // The highest bit of a register is the lowest power.
        let mut bit = back_by(distance);
        let mut back = [[0; 16]; 8];
        for nibble in back.iter_mut().rev() {
            for weight in [8, 4, 2, 1] {
                let with_it =
                    nibble.iter_mut().enumerate().filter(|(value, _)| value & weight != 0);
                with_it.for_each(|(_, sum)| *sum ^= bit);
                bit = times_x(bit);
            }
        }
        Self { back }
    }

    /// The identification that makes this difference from the ICRC of identification 0, if one
    /// does.
    #[inline]
    #[expect(clippy::indexing_slicing, reason = "four bits have sixteen values")]
    pub fn find(&self, difference: u32) -> Option<u16> {
        if difference == 0 {
            return Some(0);
        }
        let mut there = 0;
        for (nibble, back) in self.back.iter().enumerate() {
            there ^= back[(difference >> (nibble * 4)) as usize & 15];
        }
        u16::try_from(there).ok().map(u16::swap_bytes)
    }
}

/// A field of sixteen bits in the headers before a BTH, of which packets of one way differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Varying {
    /// The length in an IPv4 header.
    Ipv4Length,
    /// The identification in an IPv4 header.
    Identification,
    /// The length in an IPv6 header.
    Ipv6Length,
    /// The source port of a UDP header.
    SourcePort,
    /// The length in a UDP header.
    UdpLength,
}

/// Number of bytes from each of these fields to the BTH.
const BEFORE: [usize; 5] = [26, BEFORE_BTH, 44, 8, 4];

/// Returns the change of the headers' checksum by a field that is not 0.
#[inline]
#[expect(clippy::indexing_slicing, reason = "a byte has 256 values")]
pub(super) fn change(field: Varying, value: u16) -> u32 {
    let [high, low] = value.to_be_bytes();
    let [of_high, of_low] = &CHANGES[field as usize];
    of_high[high as usize] ^ of_low[low as usize]
}

/// Number of bytes from the identification to the BTH: the rest of the IPv4 header and the UDP
/// header.
const BEFORE_BTH: usize = 16 + 8;

/// The polynomial of the CRC, lowest power in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The polynomial 1, reflected.
const ONE: u32 = 1 << 31;

/// Changes by each value of each of the two bytes of a field.
#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated at compile time"
)]
static CHANGES: [[[u32; 256]; 2]; BEFORE.len()] = {
    let mut table = [[[0; 256]; 2]; BEFORE.len()];
    let mut index = 0;
    while index < 512 * BEFORE.len() {
        let (field, at, byte) = (index / 512, index / 256 % 2, index % 256);
        let (mut change, mut bits) = (byte as u32, (BEFORE[field] - at) * 8);
        while bits > 0 {
            change = times_x(change);
            bits -= 1;
        }
        table[field][at][byte] = change;
        index += 1;
    }
    table
};

/// x to the power of −8, −16, −32 and so on: what takes a register back by 1, 2, 4 and more bytes.
#[expect(clippy::indexing_slicing, reason = "evaluated at compile time")]
static BACK: [u32; 17] = {
    let mut powers = [0; 17];
    let (mut power, mut bits) = (ONE, 8);
    while bits > 0 {
        power = by_x(power);
        bits -= 1;
    }
    let mut at = 0;
    while at < powers.len() {
        powers[at] = power;
        power = product(power, power);
        at += 1;
    }
    powers
};

/// x to the power of −8 times `bytes`, which are fewer than 2¹⁷.
fn back_by(bytes: usize) -> u32 {
    let powers = BACK.iter().enumerate().filter(|(at, _)| bytes >> at & 1 == 1);
    powers.fold(ONE, |power, (_, &back)| product(power, back))
}

/// The product of two remainders.
const fn product(a: u32, mut b: u32) -> u32 {
    let (mut product, mut bit) = (0, ONE);
    while bit > 0 {
        if a & bit != 0 {
            product ^= b;
        }
        b = times_x(b);
        bit >>= 1;
    }
    product
}

/// A remainder times x.
const fn times_x(value: u32) -> u32 {
    (value >> 1) ^ if value & 1 == 1 { POLYNOMIAL } else { 0 }
}

/// A remainder divided by x.
const fn by_x(value: u32) -> u32 {
    if value & ONE == 0 { value << 1 } else { (value ^ POLYNOMIAL) << 1 | 1 }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::wire::icrc::{ICRC_LEN, Route, icrc};
    use crate::wire::{Bits, Gid, Path, PathHeaders};

    const PATH: Path = Path {
        source: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1]),
        destination: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 198, 51, 100, 77]),
        source_port: 0xd00d,
        traffic_class: 2,
        hop_limit: 64,
        sl: 0,
        flow_label: Bits::ZERO,
    };

    /// The ICRC of a packet behind headers with this identification, without any of the short cuts.
    fn long_way(id: u16, packet: &[u8]) -> [u8; ICRC_LEN] {
        let PathHeaders::Ipv4(ip, udp) = PATH.headers(packet.len()) else { panic!("IPv4") };
        let mut ip = ip.repr();
        assert_eq!(ip.destination, Ipv4Addr::new(198, 51, 100, 77));
        ip.id = id;
        let header = ip.with_checksum(&[]).emit();
        let route = Route::Ipv4 { header: &header, options: &[], udp: &udp };
        icrc(&route, &packet[..packet.len() - ICRC_LEN])
    }

    fn packet(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + len).to_le_bytes()[0]).collect()
    }

    const LENGTHS: [usize; 9] = [16, 20, 24, 64, 1040, 1044, 4112, 4168, 65_000];

    #[test]
    fn a_prefix_with_an_identification_is_that_of_headers_with_it() {
        for len in LENGTHS {
            let prefix = PATH.prefix(len);
            for id in [0, 1, 2, 63, 127, 255, 256, 0x1234, 0x7fff, 0x8000, 0xffff] {
                let mut packet = packet(len);
                prefix.with_identification(id).seal(&mut packet);
                assert_eq!(packet[len - ICRC_LEN..], long_way(id, &packet), "{len} {id}");
            }
        }
    }

    #[test]
    fn every_identification_is_found() {
        for len in LENGTHS {
            let (mut packet, prefix) = (packet(len), PATH.prefix(len));
            let identification = Identification::of_length(len);
            let step = if len < 100 { 1 } else { 251 };
            for id in (0..=u16::MAX).step_by(step) {
                prefix.with_identification(id).seal(&mut packet);
                let difference = prefix.difference(&mut packet).unwrap();
                assert_eq!(identification.find(difference), Some(id), "{len}");
            }
        }
    }

    #[test]
    fn one_difference_in_65536_is_an_identification() {
        let identification = Identification::of_length(1044);
        let spread = |n: u32| n.wrapping_mul(0x9e37_79b9);
        let found = (1..1 << 20).filter(|&n| identification.find(spread(n)).is_some()).count();
        assert!((4..=32).contains(&found), "{found} of 2^20, where 16 are expected");
        // A damaged bit of the ICRC itself is not taken for an identification.
        for bit in 0..32 {
            assert_eq!(identification.find(1 << bit), None, "bit {bit}");
        }
    }

    #[test]
    fn a_packet_too_short_for_an_icrc_has_no_difference() {
        let prefix = PATH.prefix(16);
        assert_eq!(prefix.difference(&mut [0; 15]), None);
        assert_eq!(prefix.difference(&mut [0; 3]), None);
        assert!(prefix.difference(&mut [0; 16]).is_some());
    }
}
