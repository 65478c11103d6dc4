//! Rules that steer frames of any protocol to queue pairs of raw packets: `ibv_flow_attr`.
//!
//! A rule wants headers, and of each some bits. They are written down as they lie on the wire, so that looking whether
//! a frame has them is one comparison a header.

/// A kind of header that a rule can look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowLayer {
    /// The first 14 bytes of a frame. The type is that behind the tag of a VLAN, if there is one.
    Ethernet,
    /// The two bytes of a VLAN's tag.
    Vlan,
    /// The first 20 bytes of an IPv4 packet.
    Ipv4,
    /// The first 40 bytes of an IPv6 packet.
    Ipv6,
    /// The ports of TCP, source first.
    Tcp,
    /// The ports of UDP, source first.
    Udp,
}

/// The longest header that is looked at.
const HEADER_MAX: usize = 40;

/// What a rule wants of one header: that it is there, and some of its bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowMatch {
    layer: FlowLayer,
    value: [u8; HEADER_MAX],
    mask: [u8; HEADER_MAX],
}

impl FlowMatch {
    /// Any header of this kind.
    pub const fn any(layer: FlowLayer) -> Self {
        Self { layer, value: [0; HEADER_MAX], mask: [0; HEADER_MAX] }
    }

    /// The same, and at `offset` those bits of `value` that `mask` has. What lies beyond the header is never there.
    #[must_use]
    pub fn with(mut self, offset: usize, value: &[u8], mask: &[u8]) -> Self {
        let places = self.value.iter_mut().zip(&mut self.mask).skip(offset);
        for ((value, mask), (wanted, counts)) in places.zip(value.iter().zip(mask)) {
            *mask = *counts;
            *value = wanted & counts;
        }
        self
    }

    fn accepts(&self, header: &[u8]) -> bool {
        let header = header.iter().copied().chain(core::iter::repeat(0));
        let wanted = self.value.iter().zip(&self.mask);
        wanted.zip(header).all(|((value, mask), byte)| byte & mask == *value)
    }
}

/// Which frames a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// Those with the headers that it names.
    Normal,
    /// All that no other rule is for.
    AllDefault,
    /// All to groups that no other rule is for.
    McDefault,
    /// Copies of all.
    Sniffer,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRule {
    /// Which frames it is for.
    pub kind: FlowKind,
    /// Of two that a frame suits, the one with the lower number gets it, or else the older.
    pub priority: u16,
    /// What headers it wants.
    pub headers: Vec<FlowMatch>,
}

impl FlowRule {
    /// Whether a frame has all the headers that it names.
    pub(crate) fn accepts(&self, frame: &FrameHeaders<'_>) -> bool {
        self.headers
            .iter()
            .all(|wanted| frame.header(wanted.layer).is_some_and(|header| wanted.accepts(header)))
    }
}

/// The headers of a frame, as far as rules look at them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameHeaders<'a> {
    ethernet: [u8; ETHERNET_LEN],
    vlan: Option<&'a [u8]>,
    network: Option<(FlowLayer, &'a [u8])>,
    ports: Option<(FlowLayer, &'a [u8])>,
}

/// How long the header of a frame is, without a VLAN.
pub(crate) const ETHERNET_LEN: usize = 14;

const TYPE: core::ops::Range<usize> = 12..14;
const TAGGED: [u8; 2] = [0x81, 0x00];

impl<'a> FrameHeaders<'a> {
    /// `None` if not even the header of Ethernet is there.
    pub(crate) fn parse(frame: &'a [u8]) -> Option<Self> {
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

    /// Whether it goes to a group.
    pub(crate) fn is_multicast(&self) -> bool {
        self.ethernet.first().is_some_and(|first| first & 1 == 1)
    }
}

/// The ports of a packet that is not a later fragment.
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

    /// A frame of UDP over IPv4, from port 1 to port 2.
    fn udp4() -> Vec<u8> {
        let mut frame = [[1; 6], [2; 6]].concat();
        frame.extend([0x08, 0x00, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend([192, 0, 2, 1, 192, 0, 2, 2, 0, 1, 0, 2, 0, 8, 0, 0]);
        frame
    }

    fn accepts(frame: &[u8], headers: &[FlowMatch]) -> bool {
        let rule = FlowRule { kind: FlowKind::Normal, priority: 0, headers: headers.to_vec() };
        FrameHeaders::parse(frame).is_some_and(|frame| rule.accepts(&frame))
    }

    #[test]
    fn a_rule_wants_headers_and_some_of_their_bits() {
        use FlowLayer::{Ethernet, Ipv4, Ipv6, Tcp, Udp, Vlan};
        let frame = udp4();
        assert!(accepts(&frame, &[]));
        assert!(accepts(&frame, &[FlowMatch::any(Ethernet), FlowMatch::any(Ipv4)]));
        for absent in [Ipv6, Tcp, Vlan] {
            assert!(!accepts(&frame, &[FlowMatch::any(absent)]), "{absent:?}");
        }
        let to = |port: u8| FlowMatch::any(Udp).with(2, &[0, port], &[0xff, 0xff]);
        assert!(accepts(&frame, &[to(2)]));
        assert!(!accepts(&frame, &[to(3)]));
        assert!(!accepts(&frame, &[to(2), FlowMatch::any(Ipv4).with(12, &[10], &[0xff])]));
        let low_bits = FlowMatch::any(Ethernet).with(0, &[0xf1], &[0x0f]);
        assert!(accepts(&frame, &[low_bits]), "what the mask leaves out does not count");
        let beyond = FlowMatch::any(Udp).with(4, &[0], &[0xff]).with(39, &[1], &[1]);
        assert!(!accepts(&frame, &[beyond]));
    }

    #[test]
    fn a_tag_is_looked_at_and_looked_through() {
        let mut frame = udp4();
        frame.splice(12..12, [0x81, 0x00, 0x20, 5]);
        let five = FlowMatch::any(FlowLayer::Vlan).with(0, &[0, 5], &[0x0f, 0xff]);
        let ip = FlowMatch::any(FlowLayer::Ethernet).with(12, &[8, 0], &[0xff, 0xff]);
        assert!(accepts(&frame, &[five, ip, FlowMatch::any(FlowLayer::Udp)]));
        assert!(!accepts(&udp4(), &[five]));
    }

    #[test]
    fn what_is_cut_short_has_fewer_headers() {
        let frame = udp4();
        for len in 0..frame.len() {
            let part = &frame[..len];
            assert_eq!(accepts(part, &[]), len >= 14, "{len}");
            assert_eq!(accepts(part, &[FlowMatch::any(FlowLayer::Ipv4)]), len >= 34, "{len}");
            assert_eq!(accepts(part, &[FlowMatch::any(FlowLayer::Udp)]), len >= 38, "{len}");
        }
        let mut fragment = frame;
        fragment[21] = 1;
        assert!(!accepts(&fragment, &[FlowMatch::any(FlowLayer::Udp)]), "ports are in the first");
    }
}
