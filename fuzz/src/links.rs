//! Treatment of arriving frames by links.
//!
//! The first byte of the input says how much of it is put right before it arrives, so that more
//! than the first check is reached: lengths and checksums, and the ICRC of the first packet.

use std::cell::RefCell;

use roce::link::{RingUnderTest, raw, udp};
use roce::wire::icrc::{Route, icrc};
use roce::wire::{Bth, Gid, Ipv4, Ipv6, PACKET_MAX, Udp, checksum, view};

const ETHERNET: usize = 14;
const ICRC: usize = 4;

/// Bits of the first byte.
const FIX_LENGTHS: u8 = 1;
const FIX_ICRC: u8 = 2;
const IPV6: u8 = 4;
const HAS_SEGMENTS: u8 = 8;
const HAS_VLAN: u8 = 16;

/// A datagram that arrives at a UDP socket.
pub fn udp_link(input: &[u8]) {
    let Some((&[flags, segment, port, tail], datagram)) = input.split_first_chunk() else { return };
    let ends = if flags & IPV6 != 0 {
        [1, 2].map(|host| Gid([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]))
    } else {
        [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)))
    };
    let port = 0xc000 | u16::from(port);
    let mut datagram = datagram.to_vec();
    let segment =
        (flags & HAS_SEGMENTS != 0).then_some(usize::from(segment) * 16 + usize::from(tail & 1));
    let first = segment.unwrap_or(datagram.len()).min(datagram.len());
    if flags & FIX_ICRC != 0 && first >= Bth::LEN + ICRC {
        seal(&mut datagram[..first], ends, port);
    }
    let before = datagram.clone();
    let sound = udp::sound_packets(&mut datagram, segment, (ends[0], ends[1], port));
    assert_eq!(datagram, before, "what is checked stays as it was");
    let mut end = 0;
    for (start, len) in sound {
        let len = usize::from(len);
        assert!(start >= end && len >= Bth::LEN + ICRC, "packets lie one behind the other");
        end = start + len;
        assert!(end <= datagram.len(), "a packet lies within its datagram");
    }
    if flags & FIX_ICRC != 0 && (Bth::LEN + ICRC..=4200).contains(&first) {
        assert!(end > 0, "a sealed packet is sound");
    }
}

/// A producer writes anything into a ring, and publishes any part of it: its consumer takes packets
/// that lie within the ring, or finds the ring broken.
pub fn ring(input: &[u8]) {
    thread_local! {
        // A ring is memory of the system, which takes longer to make than to use.
        static RING: RefCell<RingUnderTest> = RefCell::new(RingUnderTest::new().unwrap());
    }
    RING.with_borrow_mut(|ring| {
        let Some((start, mut rest)) = input.split_first_chunk() else { return };
        ring.restart(u32::from_le_bytes(*start).into());
        while let Some((&[kind, low, high], behind)) = rest.split_first_chunk() {
            rest = behind;
            let number = usize::from(u16::from_le_bytes([low, high]));
            match kind % 4 {
                0 => {
                    let (bytes, behind) = rest.split_at(rest.len().min((kind / 4).into()));
                    rest = behind;
                    match number {
                        0xffff => ring.write_express(bytes),
                        _ => ring.write(number * 16, bytes),
                    }
                }
                1 => {
                    let Some((head, behind)) = rest.split_first_chunk() else { return };
                    rest = behind;
                    ring.set_head(u64::from_le_bytes(*head));
                }
                2 => {
                    let base = u64::from(u32::from_le_bytes(*start)) & !15;
                    let head = base + number as u64;
                    if kind & 4 != 0 {
                        ring.set_express(head);
                    }
                    ring.set_head(head);
                }
                _ => {
                    let mut count = 0;
                    let taken = ring.take(|packet| {
                        assert!((Bth::LEN..=PACKET_MAX).contains(&packet.len()));
                        count += 1;
                    });
                    match taken {
                        Some(taken) => assert_eq!(taken, count),
                        None => return,
                    }
                }
            }
        }
    });
}

/// Seals a packet as if it had been sent from one end to the other.
fn seal(packet: &mut [u8], [source, destination]: [Gid; 2], port: u16) {
    let path =
        roce::wire::Path { source, destination, source_port: port, ..roce::wire::Path::NOWHERE };
    path.prefix_with_id(packet.len(), 0).seal(packet);
}

/// A frame that arrives at a packet socket.
pub fn raw_link(input: &[u8]) {
    let Some((&[flags, s0, s1, kind], frame)) = input.split_first_chunk() else { return };
    let mut frame = frame.to_vec();
    let fixed =
        if flags & FIX_LENGTHS != 0 { fix(&mut frame, flags & FIX_ICRC != 0) } else { None };
    let mut vnet = [0; 10];
    if flags & HAS_SEGMENTS != 0 {
        (vnet[1], vnet[4], vnet[5]) = (if kind & 1 == 0 { 5 } else { kind }, s0, s1);
    }
    let vlan = (flags & HAS_VLAN != 0).then_some(u16::from_be_bytes([s0, kind]));
    let gids: Vec<Gid> = destination(&frame).into_iter().collect();
    let before = frame.clone();
    let sound = raw::sound_packets(&mut frame, vnet, vlan, &gids);
    assert_eq!(frame, before, "what is checked stays as it was");
    let mut end = 0;
    for packet in &sound {
        assert!(
            packet.start >= end && packet.len() >= Bth::LEN,
            "packets lie one behind the other"
        );
        end = packet.end + ICRC;
        assert!(end <= frame.len(), "a packet lies within its frame");
    }
    if fixed.is_some() && flags & HAS_SEGMENTS == 0 && !gids.is_empty() {
        assert_eq!(sound.len(), 1, "a sealed packet is sound");
    }
}

/// Returns the destination of a frame, as far as it has an IP header. IPv6 headers with IPv4-mapped
/// addresses are on no wire: as GIDs, these addresses stand for IPv4.
fn destination(frame: &[u8]) -> Option<Gid> {
    match frame.get(12..14)? {
        [0x08, 0x00] => view::<Ipv4>(frame, ETHERNET).ok().map(|ip| ip.destination().into()),
        [0x86, 0xdd] => {
            let ip = view::<Ipv6>(frame, ETHERNET).ok()?;
            let [source, destination] = [ip.source(), ip.destination()].map(Gid::from);
            (source.to_ipv4().is_none() && destination.to_ipv4().is_none()).then_some(destination)
        }
        _ => None,
    }
}

/// Puts right what stands before the BTH, and the ICRC if asked for; `Some` if the packet is whole
/// then.
fn fix(frame: &mut Vec<u8>, sealed: bool) -> Option<()> {
    frame.truncate(ETHERNET + Ipv6::LEN + Udp::LEN + 4200);
    let ip_len = match frame.get(12..14)? {
        [0x08, 0x00] => Ipv4::LEN,
        [0x86, 0xdd] => Ipv6::LEN,
        _ => return None,
    };
    let (udp_at, bth_at) = (ETHERNET + ip_len, ETHERNET + ip_len + Udp::LEN);
    if frame.len() < bth_at + Bth::LEN + ICRC {
        return None;
    }
    let len = |from: usize| u16::try_from(frame.len() - from).unwrap_or(u16::MAX).to_be_bytes();
    let (ip_total, udp_len) = (len(ETHERNET), len(udp_at));
    if ip_len == Ipv4::LEN {
        frame[ETHERNET] = 0x45;
        frame[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&ip_total);
        frame[ETHERNET + 6..ETHERNET + 8].copy_from_slice(&[0x40, 0]);
        frame[ETHERNET + 9] = 17;
        frame[ETHERNET + 10..ETHERNET + 12].fill(0);
        let sum = checksum([&frame[ETHERNET..udp_at]]);
        frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[ETHERNET] = 0x60 | frame[ETHERNET] & 0xf;
        frame[ETHERNET + 4..ETHERNET + 6].copy_from_slice(&udp_len);
        frame[ETHERNET + 6] = 17;
    }
    frame[udp_at + 2..udp_at + 4].copy_from_slice(&4791_u16.to_be_bytes());
    frame[udp_at + 4..udp_at + 6].copy_from_slice(&udp_len);
    if !sealed {
        return None;
    }
    let icrc_at = frame.len() - ICRC;
    let udp = view::<Udp>(frame, udp_at).ok()?;
    let route = if ip_len == Ipv4::LEN {
        Route::Ipv4 { header: view(frame, ETHERNET).ok()?, options: &[], udp }
    } else {
        Route::Ipv6 { header: view(frame, ETHERNET).ok()?, extensions: &[], udp }
    };
    let sealed = icrc(&route, &frame[bth_at..icrc_at]);
    frame[icrc_at..].copy_from_slice(&sealed);
    Some(())
}
