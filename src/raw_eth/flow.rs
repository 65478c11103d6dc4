//! Flow rules, which steer frames of any protocol to raw packet queue pairs: `ibv_flow_attr`.
//!
//! A rule names headers, and bits of each, as they are on the wire: matching a frame is one masked
//! comparison per header.

/// A header that a rule can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowLayer {
    /// The first 14 bytes of a frame. In a tagged frame the EtherType is that after the VLAN tag.
    Ethernet,
    /// The two bytes of a VLAN tag after its EtherType.
    Vlan,
    /// The first 20 bytes of an IPv4 packet.
    Ipv4,
    /// The first 40 bytes of an IPv6 packet.
    Ipv6,
    /// The source and destination ports of TCP.
    Tcp,
    /// The source and destination ports of UDP.
    Udp,
}

/// Length of the longest header that is matched.
const HEADER_MAX: usize = 40;

/// Matches frames that have a header with given bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowMatch {
    layer: FlowLayer,
    value: [u8; HEADER_MAX],
    mask: [u8; HEADER_MAX],
}

impl FlowMatch {
    /// Matches any header of this layer.
    pub const fn any(layer: FlowLayer) -> Self {
        Self { layer, value: [0; HEADER_MAX], mask: [0; HEADER_MAX] }
    }

    /// Requires, in addition, from `offset` on, the bits of `value` that are set in `mask`. Bytes
    /// after the end of the header match as zeros.
    #[must_use]
    pub fn with(mut self, offset: usize, value: &[u8], mask: &[u8]) -> Self {
        let bytes = self.value.iter_mut().zip(&mut self.mask).skip(offset);
        for ((own, own_mask), (value, mask)) in bytes.zip(value.iter().zip(mask)) {
            *own_mask = *mask;
            *own = value & mask;
        }
        self
    }

    fn matches(&self, header: &[u8]) -> bool {
        let header = header.iter().copied().chain(core::iter::repeat(0));
        let required = self.value.iter().zip(&self.mask);
        required.zip(header).all(|((value, mask), byte)| byte & mask == *value)
    }
}

/// Frames that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// Frames that match its headers.
    Normal,
    /// Frames that no other rule matches.
    AllDefault,
    /// Multicast frames that no other rule matches.
    McDefault,
    /// A copy of every frame.
    Sniffer,
}

/// A flow rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// Frames that it applies to.
    pub kind: FlowKind,
    /// Priority: of two rules that match, the one with the lower number applies, or else the older
    /// one.
    pub priority: u16,
    /// Headers that a frame must have.
    pub headers: Vec<FlowMatch>,
}

impl FlowRule {
    /// Whether a frame has all its headers.
    pub(super) fn matches(&self, frame: &FrameHeaders<'_>) -> bool {
        self.headers
            .iter()
            .all(|it| frame.header(it.layer).is_some_and(|header| it.matches(header)))
    }
}

/// The headers of a frame that rules can match.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameHeaders<'a> {
    ethernet: [u8; ETHERNET_LEN],
    vlan: Option<&'a [u8]>,
    network: Option<(FlowLayer, &'a [u8])>,
    ports: Option<(FlowLayer, &'a [u8])>,
}

/// Length of an Ethernet header without a VLAN tag.
const ETHERNET_LEN: usize = 14;

const TYPE: core::ops::Range<usize> = 12..14;
const TAGGED: [u8; 2] = [0x81, 0x00];

impl<'a> FrameHeaders<'a> {
    /// Returns `None` if the Ethernet header is cut short.
    pub(super) fn parse(frame: &'a [u8]) -> Option<Self> {
        let (start, rest) = frame.split_at_checked(ETHERNET_LEN)?;
        let mut ethernet: [u8; ETHERNET_LEN] = start.try_into().ok()?;
        let (vlan, rest) = match ethernet.get(TYPE)? {
            kind if *kind == TAGGED => {
                let (tag, rest) = rest.split_at_checked(4)?;
                ethernet.get_mut(TYPE)?.copy_from_slice(tag.get(2..)?);
                (tag.get(..2), rest)
            }
            _ => (None, rest),
        };
        let network = match ethernet.get(TYPE)? {
            [0x08, 0x00] => rest.get(..20).map(|header| (FlowLayer::Ipv4, header)),
            [0x86, 0xdd] => rest.get(..40).map(|header| (FlowLayer::Ipv6, header)),
            _ => None,
        };
        let ports = network.and_then(|(layer, header)| ports(layer, header, rest));
        Some(Self { ethernet, vlan, network, ports })
    }

    pub(super) fn header(&self, layer: FlowLayer) -> Option<&[u8]> {
        let of = |found: Option<(FlowLayer, &'a [u8])>| {
            found.filter(|(found, _)| *found == layer).map(|(_, header)| header)
        };
        match layer {
            FlowLayer::Ethernet => Some(&self.ethernet),
            FlowLayer::Vlan => self.vlan,
            FlowLayer::Ipv4 | FlowLayer::Ipv6 => of(self.network),
            FlowLayer::Tcp | FlowLayer::Udp => of(self.ports),
        }
    }

    /// Whether its destination is a multicast address.
    pub(super) fn is_multicast(&self) -> bool {
        self.ethernet.first().is_some_and(|first| first & 1 == 1)
    }
}

/// Returns the ports of a packet, unless it is a fragment other than the first.
fn ports<'a>(layer: FlowLayer, header: &[u8], packet: &'a [u8]) -> Option<(FlowLayer, &'a [u8])> {
    let (protocol, len) = match (layer, header) {
        (FlowLayer::Ipv4, [first, _, _, _, _, _, high, low, _, protocol, ..]) => {
            if high & 0x1f != 0 || *low != 0 {
                return None;
            }
            (protocol, usize::from(first & 0xf) * 4)
        }
        (FlowLayer::Ipv6, [_, _, _, _, _, _, next, ..]) => (next, header.len()),
        _ => return None,
    };
    let layer = match protocol {
        6 => FlowLayer::Tcp,
        17 => FlowLayer::Udp,
        _ => return None,
    };
    Some((layer, packet.get(len..)?.get(..4)?))
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    /// A UDP frame over IPv4, from port 1 to port 2.
    fn udp4() -> Vec<u8> {
        let mut frame = [[1; 6], [2; 6]].concat();
        frame.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend([192, 0, 2, 1, 192, 0, 2, 2, 0, 1, 0, 2, 0, 8, 0, 0]);
        frame
    }

    fn matches(frame: &[u8], headers: &[FlowMatch]) -> bool {
        let rule = FlowRule { kind: FlowKind::Normal, priority: 0, headers: headers.to_vec() };
        FrameHeaders::parse(frame).is_some_and(|frame| rule.matches(&frame))
    }

    #[test]
    fn rule_matches_headers_and_masked_bits() {
        use FlowLayer::{Ethernet, Ipv4, Ipv6, Tcp, Udp, Vlan};
        let frame = udp4();
        assert!(matches(&frame, &[]));
        assert!(matches(&frame, &[FlowMatch::any(Ethernet), FlowMatch::any(Ipv4)]));
        for absent in [Ipv6, Tcp, Vlan] {
            assert!(!matches(&frame, &[FlowMatch::any(absent)]), "{absent:?}");
        }
        let to = |port: u8| FlowMatch::any(Udp).with(2, &[0, port], &[0xff, 0xff]);
        assert!(matches(&frame, &[to(2)]));
        assert!(!matches(&frame, &[to(3)]));
        assert!(!matches(&frame, &[to(2), FlowMatch::any(Ipv4).with(12, &[10], &[0xff])]));
        let low_bits = FlowMatch::any(Ethernet).with(0, &[0xf1], &[0x0f]);
        assert!(matches(&frame, &[low_bits]), "bits outside the mask are ignored");
        let beyond = FlowMatch::any(Udp).with(4, &[0], &[0xff]).with(39, &[1], &[1]);
        assert!(!matches(&frame, &[beyond]));
    }

    #[test]
    fn vlan_tag_is_matched_and_skipped() {
        let mut frame = udp4();
        frame.splice(12..12, [0x81, 0x00, 0x20, 5]);
        let five = FlowMatch::any(FlowLayer::Vlan).with(0, &[0, 5], &[0x0f, 0xff]);
        let ip = FlowMatch::any(FlowLayer::Ethernet).with(12, &[8, 0], &[0xff, 0xff]);
        assert!(matches(&frame, &[five, ip, FlowMatch::any(FlowLayer::Udp)]));
        assert!(!matches(&udp4(), &[five]));
    }

    #[test]
    fn truncated_frame_has_fewer_headers() {
        let frame = udp4();
        for len in 0..frame.len() {
            let part = &frame[..len];
            assert_eq!(matches(part, &[]), len >= 14, "{len}");
            assert_eq!(matches(part, &[FlowMatch::any(FlowLayer::Ipv4)]), len >= 34, "{len}");
            assert_eq!(matches(part, &[FlowMatch::any(FlowLayer::Udp)]), len >= 38, "{len}");
        }
        let mut fragment = frame;
        fragment[21] = 1;
        assert!(
            !matches(&fragment, &[FlowMatch::any(FlowLayer::Udp)]),
            "only the first fragment has ports"
        );
    }
}
