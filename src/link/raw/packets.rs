//! Checks of received frames, from the Ethernet header to the ICRC, and the packets that they hold.

use std::ops::Range;

use super::super::sys::ring::{self, RingFrame};
use crate::wire::icrc::{ICRC_LEN, Identification, Prefix, Route};
use crate::wire::{
    Bth, EtherType, Ethernet, Gid, Ipv4, Ipv6, PROTOCOL_UDP, Path, Prefixes, ROCE_PORT, Received,
    Udp, UdpRepr, checksum, view,
};

/// The flags of an IPv4 header of RoCE.
const DONT_FRAGMENT: [u8; 2] = [0x40, 0];

/// Position of a valid packet, and its network header.
#[derive(Clone, Copy, Debug)]
pub(in crate::link) struct PacketInFrame {
    /// Index of its frame.
    pub(in crate::link) frame: usize,
    /// Offsets of the packet and of its ICRC in the frame.
    pub(in crate::link) start: usize,
    pub(in crate::link) end: usize,
    pub(in crate::link) source: Gid,
    pub(in crate::link) destination: Gid,
    pub(in crate::link) source_port: u16,
    pub(in crate::link) ecn: u8,
    /// The IP header as it was on the wire, before the kernel coalesced packets.
    pub(in crate::link) network: [u8; Ipv6::LEN],
    pub(in crate::link) network_len: usize,
}

impl PacketInFrame {
    /// Returns the packet, given the bytes from the beginning of its frame.
    pub(in crate::link) fn received<'a>(&'a self, frame: &'a [u8]) -> Received<'a> {
        Received {
            source: self.source,
            destination: self.destination,
            source_port: self.source_port,
            ecn: self.ecn,
            network: self.network.get(..self.network_len).unwrap_or_default(),
            packet: frame.get(self.start..self.end).unwrap_or_default(),
            payload: None,
        }
    }
}

/// Reason for which a frame or a packet was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) enum Refusal {
    Cut,
    OtherVlan,
    NotIp,
    IpVersion,
    IpOptions,
    IpLength,
    IpChecksum,
    Fragment,
    NotUdp,
    OtherAddress,
    UdpLength,
    OtherPort,
    Segments,
    Short,
    Icrc,
}

impl Refusal {
    pub(in crate::link) const ALL: [(Self, &'static str); 15] = [
        (Self::Cut, "rx_cut"),
        (Self::OtherVlan, "rx_other_vlan"),
        (Self::NotIp, "rx_not_ip"),
        (Self::IpVersion, "rx_ip_version"),
        (Self::IpOptions, "rx_ip_options"),
        (Self::IpLength, "rx_ip_length"),
        (Self::IpChecksum, "rx_ip_checksum"),
        (Self::Fragment, "rx_fragment"),
        (Self::NotUdp, "rx_not_udp"),
        (Self::OtherAddress, "rx_other_address"),
        (Self::UdpLength, "rx_udp_length"),
        (Self::OtherPort, "rx_other_port"),
        (Self::Segments, "rx_segments"),
        (Self::Short, "rx_short"),
        (Self::Icrc, "rx_icrc"),
    ];
}

/// Returns the valid packets of a frame for a link with these GIDs, by the offsets of their starts
/// and ICRCs: for fuzzing. `vnet` is the `virtio_net_hdr` before the frame, `vlan` the tag that the
/// kernel removed from it.
#[doc(hidden)]
pub fn sound_packets(
    frame: &mut [u8],
    vnet: [u8; ring::VNET_LEN],
    vlan: Option<u16>,
    gids: &[Gid],
) -> Vec<Range<usize>> {
    let kernel = RingFrame { vnet, cut: false, vlan };
    let Ok(headers) = check(&kernel, frame, vlan.map(|tag| tag & 0xfff), gids) else {
        return Vec::new();
    };
    let mut prefixes = Prefixes::new(&Path::NOWHERE);
    let sound = |(index, range)| {
        let (place, _) = headers.packet(&mut prefixes, frame, 0, index, range).ok()?;
        Some(place.start..place.end)
    };
    headers.segments().filter_map(sound).collect()
}

/// Headers of a frame that have been checked.
#[derive(Clone, Copy, Debug)]
pub(in crate::link) struct Headers {
    source: Gid,
    destination: Gid,
    source_port: u16,
    ecn: u8,
    network: [u8; Ipv6::LEN],
    network_len: usize,
    /// Range of the UDP payload.
    start: usize,
    end: usize,
    /// Length of each packet but the last, if the kernel coalesced several.
    segment: Option<usize>,
}

/// Checks all headers before the BTH.
#[inline]
pub(in crate::link) fn check(
    frame: &RingFrame,
    bytes: &[u8],
    vlan: Option<u16>,
    gids: &[Gid],
) -> Result<Headers, Refusal> {
    if frame.cut {
        return Err(Refusal::Cut);
    }
    // A tag with VLAN 0 has a priority only.
    if frame.vlan.map_or(0, |tag| tag & 0xfff) != vlan.unwrap_or(0) {
        return Err(Refusal::OtherVlan);
    }
    let ethernet = view::<Ethernet>(bytes, 0).map_err(|_| Refusal::Short)?;
    let mut headers = match ethernet.ethertype() {
        EtherType::IPV4 => ipv4(bytes)?,
        EtherType::IPV6 => ipv6(bytes)?,
        _ => return Err(Refusal::NotIp),
    };
    // The filter passes only multicast groups that the link is in.
    if !gids.contains(&headers.destination) && !headers.destination.is_multicast() {
        return Err(Refusal::OtherAddress);
    }
    let udp = view::<Udp>(bytes, headers.start).map_err(|_| Refusal::Short)?;
    if usize::from(udp.length()) != headers.end - headers.start {
        return Err(Refusal::UdpLength);
    }
    if udp.destination_port() != ROCE_PORT {
        return Err(Refusal::OtherPort);
    }
    headers.source_port = udp.source_port();
    headers.start += Udp::LEN;
    headers.segment = segment_len(frame)?;
    Ok(headers)
}

/// Returns the length of each packet, if the kernel coalesced several into the frame.
fn segment_len(frame: &RingFrame) -> Result<Option<usize>, Refusal> {
    const GSO_NONE: u8 = 0;
    const GSO_UDP_L4: u8 = 5;
    const GSO_ECN: u8 = 0x80;
    let [_, kind, _, _, s0, s1, ..] = frame.vnet;
    let segment = usize::from(u16::from_ne_bytes([s0, s1]));
    match kind & !GSO_ECN {
        GSO_NONE => Ok(None),
        GSO_UDP_L4 if segment >= Bth::LEN + ICRC_LEN => Ok(Some(segment)),
        _ => Err(Refusal::Segments),
    }
}

fn ipv4(bytes: &[u8]) -> Result<Headers, Refusal> {
    let ip = view::<Ipv4>(bytes, Ethernet::LEN).map_err(|_| Refusal::Short)?;
    if ip.version().get() != 4 {
        return Err(Refusal::IpVersion);
    }
    if ip.ihl().get() != 5 {
        return Err(Refusal::IpOptions);
    }
    let (start, len) = (Ethernet::LEN + Ipv4::LEN, usize::from(ip.total_len()));
    let end = Ethernet::LEN + len;
    if len < Ipv4::LEN + Udp::LEN || end > bytes.len() {
        return Err(Refusal::IpLength);
    }
    if checksum([ip.as_bytes()]) != 0 {
        return Err(Refusal::IpChecksum);
    }
    if ip.is_fragment() {
        return Err(Refusal::Fragment);
    }
    if ip.protocol() != PROTOCOL_UDP {
        return Err(Refusal::NotUdp);
    }
    let (source, destination) = (ip.source().into(), ip.destination().into());
    let ecn = u8::try_from(ip.ecn().get()).unwrap_or(0);
    Ok(Headers::new(ip.as_bytes(), source, destination, ecn, start, end))
}

fn ipv6(bytes: &[u8]) -> Result<Headers, Refusal> {
    let ip = view::<Ipv6>(bytes, Ethernet::LEN).map_err(|_| Refusal::Short)?;
    if ip.version().get() != 6 {
        return Err(Refusal::IpVersion);
    }
    let (start, len) = (Ethernet::LEN + Ipv6::LEN, usize::from(ip.payload_len()));
    let end = start + len;
    if len < Udp::LEN || end > bytes.len() {
        return Err(Refusal::IpLength);
    }
    if ip.next_header() != PROTOCOL_UDP {
        return Err(Refusal::NotUdp);
    }
    let (source, destination) = (ip.source().into(), ip.destination().into());
    let ecn = u8::try_from(ip.ecn().get()).unwrap_or(0);
    Ok(Headers::new(ip.as_bytes(), source, destination, ecn, start, end))
}

impl Headers {
    fn new(ip: &[u8], source: Gid, destination: Gid, ecn: u8, start: usize, end: usize) -> Self {
        let mut network = [0; Ipv6::LEN];
        network.iter_mut().zip(ip).for_each(|(place, byte)| *place = *byte);
        let network_len = ip.len();
        let (source_port, segment) = (0, None);
        Self { source, destination, source_port, ecn, network, network_len, start, end, segment }
    }

    /// Returns the packets of a frame: index and range.
    #[inline]
    pub(in crate::link) fn segments(&self) -> impl Iterator<Item = (u16, Range<usize>)> + use<> {
        let (start, end) = (self.start, self.end);
        let step = self.segment.unwrap_or(end - start).max(1);
        // An empty payload is one packet, which is refused.
        let starts = (start..end.max(start + 1)).step_by(step);
        (0..).zip(starts.map(move |at| at..end.min(at + step)))
    }

    /// Returns the packet at `range`, ICRC included, if it is valid, and whether its identification
    /// was as expected.
    #[inline]
    pub(in crate::link) fn packet(
        &self,
        prefixes: &mut Prefixes,
        bytes: &mut [u8],
        frame: usize,
        index: u16,
        range: Range<usize>,
    ) -> Result<(PacketInFrame, bool), Refusal> {
        let packet = bytes.get_mut(range.clone()).unwrap_or_default();
        if packet.len() < Bth::LEN + ICRC_LEN {
            return Err(Refusal::Short);
        }
        let length = u16::try_from(Udp::LEN + packet.len()).map_err(|_| Refusal::UdpLength)?;
        let mut place = PacketInFrame {
            frame,
            start: range.start,
            end: range.end - ICRC_LEN,
            source: self.source,
            destination: self.destination,
            source_port: self.source_port,
            ecn: self.ecn,
            network: self.network,
            network_len: self.network_len,
        };
        let joined = self.segment.is_some();
        let is_ipv4 = self.network_len == Ipv4::LEN;
        match joined {
            true if is_ipv4 => place.set_ipv4(length, self.id().wrapping_add(index)),
            true => set(&mut place.network, 4, length),
            false => {}
        }
        if place.prefix(prefixes, packet.len())?.verifies(packet) {
            return Ok((place, true));
        }
        if !joined || !is_ipv4 {
            return Err(Refusal::Icrc);
        }
        // Older kernels coalesce packets whose identifications do not count up.
        place.set_ipv4(length, 0);
        let prefix = place.prefix(prefixes, packet.len())?;
        let difference = prefix.difference(packet).ok_or(Refusal::Short)?;
        let id = Identification::of_length(packet.len()).find(difference).ok_or(Refusal::Icrc)?;
        place.set_ipv4(length, id);
        Ok((place, false))
    }

    /// Returns the IPv4 identification of the first packet.
    fn id(&self) -> u16 {
        self.network.get(4..6).and_then(|id| id.try_into().ok()).map_or(0, u16::from_be_bytes)
    }
}

impl PacketInFrame {
    /// Returns the ICRC prefix of its headers, for `len` bytes from BTH to ICRC.
    fn prefix(&self, prefixes: &mut Prefixes, len: usize) -> Result<Prefix, Refusal> {
        let Self { source, destination, source_port, .. } = *self;
        if self.network_len == Ipv6::LEN {
            prefixes.set_path(&Path { source, destination, source_port, ..Path::NOWHERE });
            return Ok(prefixes.of(len));
        }
        let header = view::<Ipv4>(&self.network, 0).map_err(|_| Refusal::Short)?;
        let [.., f0, f1, _, _] = *self.network.first_chunk::<10>().expect("a header is longer");
        if [f0, f1] == DONT_FRAGMENT {
            prefixes.set_path(&Path { source, destination, source_port, ..Path::NOWHERE });
            return Ok(prefixes.of(len).with_identification(header.id()));
        }
        // RoCE should not be sent so, but the ICRC covers it all the same.
        let length = u16::try_from(Udp::LEN + len).map_err(|_| Refusal::UdpLength)?;
        let udp = UdpRepr { source_port, destination_port: ROCE_PORT, length, checksum: 0 }.emit();
        Ok(Prefix::new(&Route::Ipv4 { header, options: &[], udp: &udp }))
    }

    /// Rewrites the IPv4 header for one packet with `udp_len` bytes of UDP.
    fn set_ipv4(&mut self, udp_len: u16, id: u16) {
        set(&mut self.network, 2, udp_len.saturating_add(20));
        set(&mut self.network, 4, id);
        set(&mut self.network, 10, 0);
        let sum = checksum([self.network.get(..Ipv4::LEN).unwrap_or_default()]);
        set(&mut self.network, 10, sum);
    }
}

/// Writes a number to a header.
fn set(header: &mut [u8], at: usize, number: u16) {
    if let Some(place) = header.get_mut(at..at + 2) {
        place.copy_from_slice(&number.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::testing::{PATH, PATH_V6};
    use crate::wire::{EthernetRepr, MacAddr};

    const PLAIN: RingFrame = RingFrame { vnet: [0; 10], cut: false, vlan: None };

    /// Returns the kernel's description of a frame that it joined from packets of so many bytes.
    fn joined(segment: u16) -> RingFrame {
        let [s0, s1] = segment.to_ne_bytes();
        RingFrame { vnet: [1, 5, 0, 0, s0, s1, 0, 0, 0, 0], ..PLAIN }
    }

    /// A frame of packets of these lengths, through the ICRC, sealed with these identifications.
    fn frame(path: &Path, packets: &[(usize, u16)]) -> Vec<u8> {
        let mut sealed = Vec::new();
        for (len, id) in packets {
            let mut packet: Vec<u8> = (1..=200).cycle().take(*len).collect();
            path.prefix_with_id(*len, *id).seal(&mut packet);
            sealed.extend(packet);
        }
        let headers = path.headers_with_id(sealed.len(), packets[0].1);
        let (ip, udp) = headers.as_bytes();
        let ethertype = if ip.len() == 20 { EtherType::IPV4 } else { EtherType::IPV6 };
        let (destination, source) = (MacAddr([2; 6]), MacAddr([4; 6]));
        let ethernet = EthernetRepr { destination, source, ethertype }.emit();
        [ethernet.as_bytes(), ip, udp, &sealed].concat()
    }

    /// The packets of a frame: lengths, identifications of IPv4, whether those were expected; or
    /// why not.
    fn take(kernel: &RingFrame, bytes: &mut [u8]) -> Vec<Result<(usize, u16, bool), Refusal>> {
        let gids = [PATH.destination, PATH_V6.destination];
        let headers = match check(kernel, bytes, None, &gids) {
            Ok(headers) => headers,
            Err(refusal) => return vec![Err(refusal)],
        };
        let mut prefixes = Prefixes::new(&Path::NOWHERE);
        let each = |(index, range)| {
            let (place, expected) = headers.packet(&mut prefixes, bytes, 0, index, range)?;
            let network = &place.network[..place.network_len];
            let id = u16::from_be_bytes([network[4], network[5]]);
            if network.len() == 20 {
                assert_eq!(checksum([network]), 0);
            }
            Ok((place.end - place.start + ICRC_LEN, id, expected))
        };
        headers.segments().map(each).collect()
    }

    #[test]
    fn joined_packets_have_the_headers_they_had() {
        let mut bytes = frame(&PATH, &[(40, 0xfffe), (40, 0xffff), (40, 0), (24, 1)]);
        let good = |len, id| Ok((len, id, true));
        let expected = [good(40, 0xfffe), good(40, 0xffff), good(40, 0), good(24, 1)];
        assert_eq!(take(&joined(40), &mut bytes), expected);
        // Some senders do not count, and some kernels join their packets all the same.
        let mut bytes = frame(&PATH, &[(40, 7), (40, 7), (40, 9000), (40, 10)]);
        let solved = |len, id| Ok((len, id, false));
        let expected = [good(40, 7), solved(40, 7), solved(40, 9000), good(40, 10)];
        assert_eq!(take(&joined(40), &mut bytes), expected);
        let mut bytes = frame(&PATH_V6, &[(40, 0), (40, 0), (24, 0)]);
        let lengths: Vec<_> =
            take(&joined(40), &mut bytes).into_iter().map(|taken| taken.unwrap().0).collect();
        assert_eq!(lengths, [40, 40, 24]);
    }

    #[test]
    fn one_damaged_packet_of_a_train_is_refused_and_no_other() {
        for path in [PATH, PATH_V6] {
            let mut bytes = frame(&path, &[(40, 0), (40, 1), (40, 2)]);
            let at = bytes.len() - 60;
            bytes[at] ^= 1;
            let taken = take(&joined(40), &mut bytes);
            assert!(taken[0].is_ok() && taken[2].is_ok());
            assert_eq!(taken[1], Err(Refusal::Icrc));
        }
    }

    #[test]
    fn nothing_that_arrives_can_do_harm() {
        for path in [PATH, PATH_V6] {
            for kernel in [PLAIN, joined(40), joined(16), joined(15), joined(0), joined(u16::MAX)] {
                let good = frame(&path, &[(40, 0), (40, 1)]);
                for len in 0..good.len() {
                    let taken = take(&kernel, &mut good[..len].to_vec());
                    assert!(taken.iter().all(Result::is_err), "{len} bytes");
                }
                for at in 0..good.len() {
                    for change in [1, 0x80, 0xff] {
                        let mut bytes = good.clone();
                        bytes[at] ^= change;
                        let before = bytes.clone();
                        let _ = take(&kernel, &mut bytes);
                        assert_eq!(bytes, before, "what is checked is left as it was");
                    }
                }
            }
        }
        let gsos =
            (0..=255).map(|kind| RingFrame { vnet: [0, kind, 0, 0, 16, 0, 0, 0, 0, 0], ..PLAIN });
        for kernel in gsos {
            take(&kernel, &mut frame(&PATH, &[(40, 0)]));
        }
    }

    #[test]
    fn a_packet_that_may_be_fragmented_is_as_good_if_it_was_sealed_so() {
        let mut bytes = frame(&PATH, &[(40, 9)]);
        bytes[20] = 0;
        bytes[24..26].fill(0);
        let sum = checksum([&bytes[14..34]]);
        set(&mut bytes, 24, sum);
        assert_eq!(take(&PLAIN, &mut bytes), [Err(Refusal::Icrc)], "sealed with another flag");
        let udp = view::<Udp>(&bytes, 34).unwrap();
        let route = Route::Ipv4 { header: view(&bytes, 14).unwrap(), options: &[], udp };
        let sealed = crate::wire::icrc::icrc(&route, &bytes[42..78]);
        bytes[78..].copy_from_slice(&sealed);
        assert_eq!(take(&PLAIN, &mut bytes), [Ok((40, 9, true))]);
    }

    #[test]
    fn refusals_are_named_in_order() {
        for (at, (refusal, name)) in Refusal::ALL.iter().enumerate() {
            assert_eq!(*refusal as usize, at, "{name}");
        }
    }

    #[test]
    fn what_is_refused_is_told_apart() {
        let cases: [(&[(usize, u8)], Refusal); 9] = [
            (&[(12, 9)], Refusal::NotIp),
            (&[(14, 0x55)], Refusal::IpVersion),
            (&[(14, 0x46)], Refusal::IpOptions),
            (&[(16, 0xff)], Refusal::IpLength),
            (&[(17, 10)], Refusal::IpLength),
            (&[(24, 0xaa)], Refusal::IpChecksum),
            (&[(39, 20)], Refusal::UdpLength),
            (&[(37, 0)], Refusal::OtherPort),
            (&[(60, 0)], Refusal::Icrc),
        ];
        for (changes, refusal) in cases {
            let mut bytes = frame(&PATH, &[(40, 0)]);
            changes.iter().for_each(|(at, byte)| bytes[*at] = *byte);
            assert_eq!(take(&PLAIN, &mut bytes), [Err(refusal)]);
        }
        let mut bytes = frame(&Path { destination: PATH.source, ..PATH }, &[(40, 0)]);
        assert_eq!(take(&PLAIN, &mut bytes), [Err(Refusal::OtherAddress)]);
        assert_eq!(take(&RingFrame { cut: true, ..PLAIN }, &mut bytes), [Err(Refusal::Cut)]);
        let tagged = RingFrame { vlan: Some(0x2005), ..PLAIN };
        assert_eq!(take(&tagged, &mut bytes), [Err(Refusal::OtherVlan)]);
        let tagged = RingFrame { vlan: Some(0x2000), ..PLAIN };
        assert_eq!(take(&tagged, &mut frame(&PATH, &[(40, 3)])), [Ok((40, 3, true))]);
    }
}
