//! The ICRC against everything that is known about it from outside: vectors, captures, two
//! independent CRCs. Which bits it covers is written down here a second time.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

use crc::{Algorithm, CRC_32_ISO_HDLC, Crc};
use roce::wire::icrc::{Route, icrc, vcrc};
use roce::wire::{Frame, IcrcVerdict, LinkType, ROCE_PORT, view};
use serde_json::Value;

mod common;
use common::{captured_frames, unhex};

/// The CRC of Ethernet, by another crate.
const CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// The VCRC of native InfiniBand: x^16 + x^12 + x^3 + x + 1.
const CRC16: Crc<u16> = Crc::<u16>::new(&Algorithm {
    width: 16,
    poly: 0x100b,
    init: 0xffff,
    refin: true,
    refout: true,
    xorout: 0xffff,
    check: 0x0a3d,
    residue: 0,
});

fn vectors() -> Value {
    serde_json::from_str(include_str!("../testdata/icrc.json")).unwrap()
}

/// The frames of the vectors, with their names.
fn vector_frames() -> Vec<(String, Vec<u8>)> {
    let vectors = vectors();
    let vectors = vectors["vectors"].as_array().unwrap().iter();
    vectors
        .map(|vector| {
            let name = vector["name"].as_str().unwrap();
            (name.to_owned(), unhex(vector["frame_hex"].as_str().unwrap()))
        })
        .collect()
}

/// The verdict on an Ethernet frame.
fn verdict(frame: &[u8]) -> Option<IcrcVerdict> {
    Frame::parse(LinkType::ETHERNET, frame, ROCE_PORT).icrc()
}

/// CRC-32, one bit at a time: nothing shared with any table.
fn naive_crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        for bit in 0..8 {
            let carry = (crc ^ u32::from(byte >> bit)) & 1;
            crc = (crc >> 1) ^ if carry == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

#[test]
fn every_vector_agrees_with_two_other_crcs() {
    // Rules: W-01.1, Q-01, T-53.
    let vectors = vectors();
    let vectors = vectors["vectors"].as_array().unwrap();
    assert!(vectors.len() >= 42);
    for vector in vectors {
        let name = vector["name"].as_str().unwrap();
        let frame = unhex(vector["frame_hex"].as_str().unwrap());
        let masked = unhex(vector["masked_input_hex"].as_str().unwrap());
        assert_eq!(verdict(&frame), Some(IcrcVerdict::Ok), "{name}");
        let wire: [u8; 4] = frame[frame.len() - 4..].try_into().unwrap();
        assert_eq!(CRC32.checksum(&masked).to_le_bytes(), wire, "{name}");
        assert_eq!(naive_crc32(&masked).to_le_bytes(), wire, "{name}");
    }
}

#[test]
fn every_captured_packet_is_sound() {
    for path in common::captures() {
        let frames = captured_frames(&path);
        let verdicts: Vec<_> = frames.iter().filter_map(|frame| verdict(frame)).collect();
        let sound = verdicts.iter().filter(|&&verdict| verdict == IcrcVerdict::Ok).count();
        assert_eq!(sound, verdicts.len(), "{path:?}");
        common::check_counts(&path, frames.len(), sound);
    }
}

#[test]
fn a_field_that_may_change_on_the_way_leaves_the_icrc_alone() {
    // Rule: W-01.2.
    let vectors = vectors();
    let base = vectors["invariance_of"].as_str().unwrap();
    let (_, base_frame) = vector_frames().into_iter().find(|(name, _)| name == base).unwrap();
    let base_icrc = &base_frame[base_frame.len() - 4..];
    let variations = vectors["invariance"].as_array().unwrap();
    let mut same = 0;
    for variation in variations {
        let label = variation["label"].as_str().unwrap();
        let mut frame = unhex(variation["frame_hex"].as_str().unwrap());
        let at = frame.len() - 4;
        assert_eq!(frame[at..], unhex(variation["icrc_wire_hex"].as_str().unwrap()), "{label}");
        assert_eq!(verdict(&frame), Some(IcrcVerdict::Ok), "{label}");
        // With the ICRC of the frame it was made of it is sound only if nothing covered has
        // changed.
        frame[at..].copy_from_slice(base_icrc);
        let expected =
            if variation["same_icrc_as"].is_string() { IcrcVerdict::Ok } else { IcrcVerdict::Bad };
        assert_eq!(verdict(&frame), Some(expected), "{label}");
        same += usize::from(expected == IcrcVerdict::Ok);
    }
    assert_eq!((same, variations.len()), (8, 17));
}

/// A frame, and the expected verdict after each of its bits is flipped.
struct Flips<'a> {
    frame: &'a [u8],
    verdicts: Vec<Option<IcrcVerdict>>,
}

impl<'a> Flips<'a> {
    const OK: Option<IcrcVerdict> = Some(IcrcVerdict::Ok);
    const BAD: Option<IcrcVerdict> = Some(IcrcVerdict::Bad);

    /// Every bit is covered, unless something else is said of it.
    fn of(frame: &'a [u8]) -> Self {
        Self { frame, verdicts: vec![Self::BAD; frame.len() * 8] }
    }

    /// Flipping one of the bits of `mask` in the byte `at` leads to `verdict`.
    fn byte(&mut self, at: usize, mask: u8, verdict: Option<IcrcVerdict>) {
        for bit in (0..8).filter(|bit| mask & (0x80 >> bit) != 0) {
            self.verdicts[at * 8 + bit] = verdict;
        }
    }

    fn bytes(&mut self, range: std::ops::Range<usize>, verdict: Option<IcrcVerdict>) {
        range.for_each(|at| self.byte(at, 0xff, verdict));
    }

    fn expect(&self, link: LinkType, name: &str) {
        let mut frame = self.frame.to_vec();
        for (bit, &expected) in self.verdicts.iter().enumerate() {
            frame[bit / 8] ^= 0x80 >> (bit % 8);
            let found = Frame::parse(link, &frame, ROCE_PORT).icrc();
            assert_eq!(found, expected, "{name}: byte {} bit {}", bit / 8, 7 - bit % 8);
            frame[bit / 8] ^= 0x80 >> (bit % 8);
        }
    }

    /// Below the network layer nothing is covered; returns where that begins.
    fn link(&mut self) -> usize {
        self.bytes(0..12, Self::OK);
        let mut at = 12;
        while self.frame[at..at + 2] == [0x81, 0x00] {
            self.bytes(at..at + 2, None);
            // 0x9100 announces a VLAN tag as well.
            self.byte(at, 0x10, Self::OK);
            self.bytes(at + 2..at + 4, Self::OK);
            at += 4;
        }
        // With another EtherType it is not RoCE.
        self.bytes(at..at + 2, None);
        at + 2
    }

    /// An IPv4 header; returns where UDP begins.
    fn ipv4(&mut self, at: usize) -> usize {
        // Another version is not IPv4; with another header length there is no port 4791 where UDP
        // should be.
        self.bytes(at..at + 1, None);
        self.bytes(at + 1..at + 2, Self::OK);
        // More fragments, and the fragment offset: a fragment is never RoCE.
        self.byte(at + 6, 0x3f, None);
        self.bytes(at + 7..at + 8, None);
        self.bytes(at + 8..at + 9, Self::OK);
        self.bytes(at + 9..at + 10, None);
        self.bytes(at + 10..at + 12, Self::OK);
        at + 20
    }

    /// An IPv6 header; returns where UDP begins.
    fn ipv6(&mut self, at: usize) -> usize {
        self.byte(at, 0xf0, None);
        self.masked_like_ipv6(at);
        self.bytes(at + 6..at + 7, None);
        at + 40
    }

    /// A GRH; returns where the BTH begins.
    fn grh(&mut self, at: usize) -> usize {
        self.masked_like_ipv6(at);
        // RoCE it still is, by its EtherType or its link, but nothing that could have an ICRC.
        self.bytes(at + 6..at + 7, Self::BAD);
        at + 40
    }

    /// Traffic class, flow label and hop limit.
    fn masked_like_ipv6(&mut self, at: usize) {
        self.byte(at, 0x0f, Self::OK);
        self.bytes(at + 1..at + 4, Self::OK);
        self.bytes(at + 7..at + 8, Self::OK);
    }

    /// A UDP header; returns where the BTH begins.
    fn udp(&mut self, at: usize) -> usize {
        self.bytes(at + 2..at + 4, None);
        // Whatever else the length says, it is covered.
        self.bytes(at + 6..at + 8, Self::OK);
        at + 8
    }

    /// Flips the bits of a BTH, of which one byte is not covered: FECN, BECN and six reserved bits.
    fn bth(&mut self, at: usize) {
        self.bytes(at + 4..at + 5, Self::OK);
    }

    /// An Ethernet frame with nothing behind its ICRC.
    fn ethernet(frame: &'a [u8]) -> Self {
        let mut flips = Self::of(frame);
        let at = flips.link();
        let bth = match frame[at - 2..at] {
            [0x08, 0x00] => {
                let udp = flips.ipv4(at);
                flips.udp(udp)
            }
            [0x86, 0xdd] => {
                let udp = flips.ipv6(at);
                flips.udp(udp)
            }
            [0x89, 0x15] => flips.grh(at),
            _ => panic!("not RoCE"),
        };
        flips.bth(bth);
        flips
    }
}

#[test]
fn every_bit_of_every_vector_is_covered_or_masked_as_the_table_says() {
    // Rule: W-01.2.
    for (name, frame) in vector_frames() {
        Flips::ethernet(&frame).expect(LinkType::ETHERNET, &name);
    }
}

#[test]
fn every_bit_of_captured_frames_is_covered_or_masked_as_the_table_says() {
    let mut seen = Vec::new();
    for path in common::captures() {
        for frame in captured_frames(&path) {
            let parsed = Frame::parse(LinkType::ETHERNET, &frame, ROCE_PORT);
            let Some(packet) = parsed.packet().copied().filter(|_| parsed.tunnel().is_none())
            else {
                continue;
            };
            // One of each kind: the network, the opcode, how much is to be padded.
            let kind = (frame[12], packet.bth().opcode(), packet.pad_len());
            if frame.len() < 600 && !seen.contains(&kind) {
                Flips::ethernet(&frame).expect(LinkType::ETHERNET, &format!("{path:?} {kind:?}"));
                seen.push(kind);
            }
        }
    }
    assert!(seen.len() >= 40, "{}", seen.len());
}

#[test]
fn whatever_follows_the_icrc_does_not_matter() {
    // Rule: W-52.
    for (name, mut frame) in vector_frames() {
        for _ in 0..64 {
            frame.push(0xa5);
            assert_eq!(verdict(&frame), Some(IcrcVerdict::Ok), "{name}, {} bytes", frame.len());
        }
    }
}

#[test]
fn a_frame_without_its_last_byte_has_no_icrc() {
    for (name, frame) in vector_frames() {
        let tags = 4 * usize::from(frame[12..14] == [0x81, 0x00]);
        // RoCEv1 is known by its EtherType, RoCEv2 by its port.
        let known = tags
            + match frame[12 + tags..14 + tags] {
                [0x08, 0x00] => 14 + 20 + 8,
                [0x86, 0xdd] => 14 + 40 + 8,
                _ => 14,
            };
        for len in 0..frame.len() {
            let expected = (len >= known).then_some(IcrcVerdict::Absent);
            let cut = Frame::parse_cut(LinkType::ETHERNET, &frame[..len], frame.len(), ROCE_PORT);
            assert_eq!(cut.icrc(), expected, "{name}, {len} bytes");
        }
    }
}

#[test]
fn a_packet_too_short_for_its_opcode_still_has_its_icrc() {
    // An acknowledgement without its AETH, and one whose two pad bytes are not there.
    for transport in ["11 00 ffff 00 000011 00 000001", "04 20 ffff 00 000011 00 000001"] {
        let frame = sealed(&ipv4_udp("45", "", 12), "c0de 12b7 0018 0000", transport);
        let parsed = Frame::parse(LinkType::ETHERNET, &frame, ROCE_PORT);
        assert!(parsed.error().is_some());
        assert_eq!(parsed.icrc(), Some(IcrcVerdict::Ok));
    }
}

/// An IPv4 header in hexadecimal with these options in front of UDP and `transport_len` bytes, and
/// the same with ones where the ICRC masks.
fn ipv4_udp(version_ihl: &str, options: &str, transport_len: usize) -> (String, String) {
    let total = 20 + unhex(options).len() + 8 + transport_len + 4;
    let header = |tos, ttl, sum| {
        format!("{version_ihl}{tos}{total:04x} 1234 4000 {ttl}11{sum} 0a090001 0a090002 {options}")
    };
    (header("02", "40", "0000"), header("ff", "ff", "ffff"))
}

/// An Ethernet frame with a network header (as it is, and masked), a UDP header and what follows
/// it, sealed by hand.
fn sealed((network, masked): &(String, String), udp: &str, transport: &str) -> Vec<u8> {
    let ethertype = if network.starts_with('4') { "0800" } else { "86dd" };
    let mut frame =
        unhex(&format!("020000000002 020000000001 {ethertype} {network} {udp} {transport}"));
    let mut covered = unhex(&format!("ffffffffffffffff {masked} {udp} {transport}"));
    let bth = covered.len() - unhex(transport).len();
    covered[bth - 2..bth].fill(0xff);
    covered[bth + 4] = 0xff;
    frame.extend(CRC32.checksum(&covered).to_le_bytes());
    frame
}

/// RC SEND ONLY of five bytes, with every flag and all reserved bits set.
const SEND: &str = "04 f0 ffff ff 000011 ff 000001 0102030405 000000";

#[test]
fn options_of_ipv4_are_covered_as_they_are() {
    // A router alert; then a record of the route with room for nine addresses.
    for (ihl, options) in [("46", "94040000"), ("4f", &format!("072704{}00", "00".repeat(36)))] {
        let frame = sealed(&ipv4_udp(ihl, options, 20), "c0de 12b7 0020 1234", SEND);
        assert_eq!(verdict(&frame), Some(IcrcVerdict::Ok), "{options}");
        for at in 14 + 20..14 + 20 + unhex(options).len() {
            let mut changed = frame.clone();
            changed[at] ^= 1;
            assert_eq!(verdict(&changed), Some(IcrcVerdict::Bad), "option byte {at}");
        }
    }
}

#[test]
fn extension_headers_of_ipv6_are_covered_as_they_are() {
    // Hop-by-hop options; with a destination options header of sixteen bytes behind them; an
    // authentication header.
    let chains = [
        ("00", "1100 050200000000"),
        ("00", "3c00 050200000000 1101 0104000000000104000000000000"),
        ("33", "1104 0000 00000001 00000002 0102030405060708090a0b0c"),
    ];
    for (first, extensions) in chains {
        let payload = unhex(extensions).len() + 8 + 20 + 4;
        let header = |start, hops| {
            let addresses = "fd000009000000000000000000000001 fd000009000000000000000000000002";
            format!("{start} {payload:04x} {first}{hops} {addresses} {extensions}")
        };
        let network = (header("60212345", "40"), header("6fffffff", "ff"));
        let frame = sealed(&network, "c0de 12b7 0020 0000", SEND);
        let parsed = Frame::parse(LinkType::ETHERNET, &frame, ROCE_PORT);
        assert_eq!(parsed.icrc(), Some(IcrcVerdict::Ok), "{extensions} {:?}", parsed.error());
        // The last byte of the chain says nothing about where anything is.
        let mut changed = frame.clone();
        changed[14 + 40 + unhex(extensions).len() - 1] ^= 1;
        assert_eq!(verdict(&changed), Some(IcrcVerdict::Bad), "{extensions}");
    }
}

/// Native packets, made by hand: LRH, GRH in hexadecimal if there is one, BTH to pad, sealed twice.
fn native(grh: &str) -> Vec<u8> {
    let transport = unhex("04 70 ffff 40 000011 80 00002a 0102030405 000000");
    let words = (8 + unhex(grh).len() + transport.len() + 4) / 4;
    let lnh = if grh.is_empty() { 2 } else { 3 };
    let mut packet = unhex(&format!("a0 3{lnh} 0004 {words:04x} 0001 {grh}"));
    let mut covered = packet.clone();
    if grh.is_empty() {
        covered[0] |= 0xf0;
    } else {
        covered[..8].fill(0xff);
        covered[8] |= 0x0f;
        covered[9..12].fill(0xff);
        covered[15] = 0xff;
    }
    let bth = packet.len();
    packet.extend(&transport);
    covered.extend(&transport);
    covered[bth + 4] = 0xff;
    packet.extend(CRC32.checksum(&covered).to_le_bytes());
    packet.extend(CRC16.checksum(&packet).to_le_bytes());
    packet
}

/// The GRH of a native packet whose transport headers, payload, pad and ICRC are 24 bytes long.
const GRH: &str =
    "6ab12345 0018 1b 07 fe80000000000000 0002c90300001234 fe80000000000000 0002c90300005678";

#[test]
fn a_native_packet_has_two_checksums() {
    assert_eq!(CRC16.checksum(b"123456789"), CRC16.algorithm.check);
    for packet in [native(""), native(GRH)] {
        let frame = Frame::parse(LinkType::INFINIBAND, &packet, ROCE_PORT);
        assert_eq!((frame.icrc(), frame.vcrc()), (Some(IcrcVerdict::Ok), Some(IcrcVerdict::Ok)));
        assert_eq!(frame.error(), None);
        // The VCRC changes with every bit. A bit of the next-header field says that this is not a
        // transport packet.
        for bit in 0..packet.len() * 8 {
            let mut changed = packet.clone();
            changed[bit / 8] ^= 0x80 >> (bit % 8);
            let frame = Frame::parse(LinkType::INFINIBAND, &changed, ROCE_PORT);
            assert_ne!(frame.vcrc(), Some(IcrcVerdict::Ok), "bit {bit}");
        }
        // Without its last byte the VCRC is not there, and the ICRC still is.
        let cut = &packet[..packet.len() - 1];
        let frame = Frame::parse_cut(LinkType::INFINIBAND, cut, packet.len(), ROCE_PORT);
        assert_eq!(
            (frame.icrc(), frame.vcrc()),
            (Some(IcrcVerdict::Ok), Some(IcrcVerdict::Absent))
        );
    }
}

#[test]
fn every_bit_of_a_native_packet_is_covered_or_masked_as_the_table_says() {
    let without = native("");
    let local = &without[..without.len() - 2];
    let mut flips = Flips::of(local);
    flips.byte(0, 0xf0, Flips::OK);
    // LNH 0 is a raw packet; LNH 3 announces a GRH, which this is not.
    flips.byte(1, 0x02, None);
    flips.byte(1, 0x01, Flips::BAD);
    flips.bth(8);
    flips.expect(LinkType::INFINIBAND, "without GRH");

    let with = native(GRH);
    let mut flips = Flips::of(&with[..with.len() - 2]);
    flips.bytes(0..8, Flips::OK);
    // LRH and GRH both have a length, and where they differ the place of the ICRC is unknown.
    flips.byte(4, 0x07, Flips::BAD);
    flips.byte(5, 0xff, Flips::BAD);
    // LNH 1 is a raw packet; LNH 2 announces a BTH where the GRH is: there is an ICRC, and it does
    // not fit.
    flips.byte(1, 0x02, None);
    flips.byte(1, 0x01, Flips::BAD);
    let bth = flips.grh(8);
    flips.bytes(12..14, Flips::BAD);
    flips.bth(bth);
    flips.expect(LinkType::INFINIBAND, "with GRH");
}

#[test]
fn both_functions_agree_with_the_other_crate() {
    let packet = native(GRH);
    let (covered, wire) = packet.split_at(packet.len() - 2);
    assert_eq!(vcrc(covered), wire);
    assert_eq!(vcrc(&[]), CRC16.checksum(&[]).to_le_bytes());
    let (transport, wire) = covered[48..].split_at(covered.len() - 48 - 4);
    assert_eq!(icrc(&Route::Grh(view(covered, 8).unwrap()), transport), wire);
    let local = native("");
    let (transport, wire) = local[8..local.len() - 2].split_at(local.len() - 8 - 2 - 4);
    assert_eq!(icrc(&Route::Lrh(view(&local, 0).unwrap()), transport), wire);
}
