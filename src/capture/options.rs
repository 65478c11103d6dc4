//! Options of packets and interfaces in a pcapng, for programs that copy them.

use super::LinkType;
use super::byte_order::ByteOrder;
use super::clock::Clock;
use super::pcapng;

/// Options of a block of a pcapng: numbered values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options<'a> {
    bytes: &'a [u8],
    order: ByteOrder,
}

impl<'a> Options<'a> {
    /// No options.
    pub const NONE: Self = Self { bytes: &[], order: ByteOrder::Little };

    pub(super) fn new(bytes: &'a [u8], order: ByteOrder) -> Self {
        Self { bytes, order }
    }

    /// The options in their order, each with its number and its value, up to the end or to the
    /// first that claims more bytes than there are.
    pub fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut rest = self.bytes;
        core::iter::from_fn(move || {
            let [word] = self.order.words(rest)?;
            let [code, length] = self.order.split(word);
            let value = rest.get(4..4 + usize::from(length))?;
            if code == pcapng::OPTION_END {
                return None;
            }
            rest = rest.get(4 + value.len().next_multiple_of(4)..).unwrap_or_default();
            Some((code, value))
        })
    }

    /// The comments of a packet or an interface, as far as they are text.
    pub fn comments(self) -> impl Iterator<Item = &'a str> {
        let comments = self.iter().filter(|(code, _)| *code == pcapng::OPTION_COMMENT);
        comments.filter_map(|(_, value)| str::from_utf8(value).ok())
    }

    /// Whether numbers in the values are big-endian.
    pub(super) fn is_big_endian(self) -> bool {
        self.order == ByteOrder::Big
    }
}

/// Description of an interface in a pcapng.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Link-layer type of its packets.
    pub link: LinkType,
    /// The most bytes of a packet that were captured, or 0 for no limit.
    pub snaplen: u32,
    pub(super) clock: Clock,
    pub(super) options: Box<[u8]>,
    pub(super) order: ByteOrder,
    /// Whether its options were too many to be kept.
    pub(super) is_cut: bool,
}

impl Interface {
    /// Returns the name, description, resolution of time and so on; none for interfaces that
    /// together say more than [`MAX_INTERFACE_OPTIONS`](super::MAX_INTERFACE_OPTIONS).
    pub fn options(&self) -> Options<'_> {
        Options::new(&self.options, self.order)
    }
}

/// Fields around a packet in a pcapng: for a program that copies it, and without cost to others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surroundings<'a> {
    /// The block of the packet, and the byte order of its section; nothing in a pcap.
    pub(super) block: Option<(&'a [u8], ByteOrder)>,
    /// The interfaces that the section has described so far; nothing in the place of one that was
    /// damaged.
    pub(super) interfaces: &'a [Option<Interface>],
}

impl<'a> Surroundings<'a> {
    /// The options of the packet: comments, flags and so on.
    pub fn options(self) -> Options<'a> {
        let Some((block, order)) = self.block else { return Options::NONE };
        Options::new(pcapng::packet_options(block, order), order)
    }

    /// The time stamp as it stands in the file, counted as the packet's interface counts.
    pub(super) fn ticks(self) -> Option<u64> {
        let (block, order) = self.block?;
        pcapng::packet_ticks(block, order)
    }

    /// The interfaces that the section of the packet has described so far.
    pub fn interfaces(self) -> impl ExactSizeIterator<Item = Option<&'a Interface>> {
        self.interfaces.iter().map(Option::as_ref)
    }
}
