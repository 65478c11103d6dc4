//! Helpers of several tests.
#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    unused_imports,
    unused_macros,
    reason = "each test is a crate of its own and uses a part of it"
)]

#[cfg(feature = "cli")]
pub mod command;
pub mod example;
pub mod loopback;
pub mod needs;
pub mod netns;
pub mod process;
#[cfg(feature = "cli")]
pub mod requests;
pub mod seeds;
pub mod tmp;
pub mod tree;

use std::path::{Path, PathBuf};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use roce::wire::layout::BitRange;
use roce::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bits, Bth, BthRepr, Deth, Ethernet, EthernetRepr, Extensions,
    Feth, FrameRepr, Grh, GrhRepr, Header, Ieth, ImmDt, Ipv4, Ipv4Repr, Ipv6, Ipv6Repr, Layer,
    LinkType, Lrh, LrhRepr, NetworkRepr, Opcode, PacketRepr, Qpn, Rdeth, Reth, SackEth, Vlan,
    VlanRepr, Xrceth,
};

/// The bytes that a string of hexadecimal digits stands for; blanks may be put anywhere between
/// them.
pub fn unhex(digits: &str) -> Vec<u8> {
    let digits: Vec<char> = digits.chars().filter(|c| !c.is_whitespace()).collect();
    assert!(digits.len().is_multiple_of(2));
    let digit = |c: char| u8::try_from(c.to_digit(16).unwrap()).unwrap();
    let pairs = digits.chunks(2);
    pairs.map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// A file in `testdata`.
pub fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name)
}

/// The classic captures in `testdata/captures`, in the order of their names.
pub fn captures() -> Vec<PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(testdata("captures"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "pcap"))
        .collect();
    files.sort();
    assert!(files.len() >= 3, "{files:?}");
    files
}

/// Number of frames of the captures that other tests rely on, and of those in which tshark finds
/// RoCE.
pub const COUNTS: [(&str, usize, usize); 4] = [
    ("rxe_all_ops.pcap", 3742, 2660),
    ("rxe_cm.pcap", 182, 156),
    ("rxe_lossy.pcap", 2062, 1671),
    ("tunnels.pcap", 228, 228),
];

/// Asserts that a capture has the right numbers of frames and packets, if it is one of [`COUNTS`].
pub fn check_counts(path: &Path, frames: usize, packets: usize) {
    if let Some(&(name, ..)) = COUNTS.iter().find(|(name, ..)| path.ends_with(name)) {
        assert!(
            COUNTS.contains(&(name, frames, packets)),
            "{name}: {frames} frames, {packets} packets"
        );
    }
}

/// Every frame of a classic little-endian microsecond pcap of Ethernet frames. Eight lines instead
/// of the crate's own reader, so that tests of the wire do not depend on it.
pub fn captured_frames(path: &Path) -> Vec<Vec<u8>> {
    let file = std::fs::read(path).unwrap();
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1], "{path:?}");
    assert_eq!(file[20], 1, "{path:?} is Ethernet");
    let (mut rest, mut frames) = (&file[24..], Vec::new());
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

/// The headers behind the BTH in wire order, and the opcodes that have them: written down from the
/// kernel's and Wireshark's tables, not from the crate's.
#[rustfmt::skip]
pub const HEADER_LISTS: &[(&[Layer], &[u8])] = {
    use Layer::{
        Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, Rdeth, Reth, SackEth, Xrceth,
    };
    &[
        (&[], &[
            0x00, 0x01, 0x02, 0x04, 0x07, 0x08, 0x0e, 0x20, 0x21, 0x22, 0x24, 0x27, 0x28, 0x80, 0x81, 0xae,
        ]),
        (&[ImmDt], &[0x03, 0x05, 0x09, 0x23, 0x25, 0x29]),
        (&[Reth], &[0x06, 0x0a, 0x0c, 0x1d, 0x26, 0x2a]),
        (&[Reth, ImmDt], &[0x0b, 0x2b]),
        (&[Aeth], &[0x0d, 0x0f, 0x10, 0x11, 0xad, 0xaf, 0xb0, 0xb1]),
        (&[Aeth, AtomicAckEth], &[0x12, 0xb2]),
        (&[AtomicEth], &[0x13, 0x14]),
        (&[Ieth], &[0x16, 0x17]),
        (&[Feth, Reth], &[0x1c]),
        (&[Rdeth, Deth], &[0x40, 0x41, 0x42, 0x44, 0x47, 0x48, 0x55]),
        (&[Rdeth, Deth, ImmDt], &[0x43, 0x45, 0x49]),
        (&[Rdeth, Deth, Reth], &[0x46, 0x4a, 0x4c]),
        (&[Rdeth, Deth, Reth, ImmDt], &[0x4b]),
        (&[Rdeth, Aeth], &[0x4d, 0x4f, 0x50, 0x51]),
        (&[Rdeth], &[0x4e]),
        (&[Rdeth, Aeth, AtomicAckEth], &[0x52]),
        (&[Rdeth, Deth, AtomicEth], &[0x53, 0x54]),
        (&[Rdeth, Feth, Reth], &[0x5c]),
        (&[Rdeth, Reth], &[0x5d]),
        (&[Deth], &[0x64]),
        (&[Deth, ImmDt], &[0x65]),
        (&[Xrceth], &[0xa0, 0xa1, 0xa2, 0xa4, 0xa7, 0xa8]),
        (&[Xrceth, ImmDt], &[0xa3, 0xa5, 0xa9]),
        (&[Xrceth, Reth], &[0xa6, 0xaa, 0xac, 0xbd]),
        (&[Xrceth, Reth, ImmDt], &[0xab]),
        (&[Xrceth, AtomicEth], &[0xb3, 0xb4]),
        (&[Xrceth, Ieth], &[0xb6, 0xb7]),
        (&[Xrceth, Feth, Reth], &[0xbc]),
        // This crate's own.
        (&[Aeth, SackEth], &[0xd1]),
    ]
};

/// Returns the length of an extension header, by the same sources.
pub fn extension_len(layer: Layer) -> usize {
    match layer {
        Layer::Rdeth | Layer::Xrceth | Layer::Feth | Layer::Aeth | Layer::ImmDt | Layer::Ieth => 4,
        Layer::SackEth => 4,
        Layer::Deth | Layer::AtomicAckEth => 8,
        Layer::Reth => 16,
        Layer::AtomicEth => 28,
        other => panic!("{other} is no extension header"),
    }
}

/// Every opcode of [`HEADER_LISTS`].
pub fn opcodes() -> Vec<u8> {
    let mut opcodes: Vec<u8> = HEADER_LISTS.iter().flat_map(|(_, list)| *list).copied().collect();
    opcodes.sort_unstable();
    opcodes
}

/// The headers behind the BTH of `opcode`: none if it is unassigned.
pub fn headers_of(opcode: u8) -> &'static [Layer] {
    let found = HEADER_LISTS.iter().find(|(_, opcodes)| opcodes.contains(&opcode));
    found.map_or(&[], |(headers, _)| headers)
}

/// All that a frame to emit is made of. [`FrameRepr`] borrows its payload; this owns it.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub link: LinkType,
    pub ethernet: Option<EthernetRepr>,
    pub vlan: Option<VlanRepr>,
    pub network: NetworkRepr,
    pub bth: BthRepr,
    pub extensions: Extensions,
    pub payload: Vec<u8>,
}

impl Recipe {
    pub fn packet(&self) -> PacketRepr<'_> {
        PacketRepr::new(self.bth, self.extensions, &self.payload).unwrap()
    }

    pub fn frame(&self) -> FrameRepr<'_> {
        FrameRepr {
            ethernet: self.ethernet,
            vlan: self.vlan,
            network: self.network,
            packet: self.packet(),
        }
    }

    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.frame().emit(&mut bytes);
        bytes
    }

    /// Returns the number of pad bytes that the payload needs.
    pub fn pad(&self) -> usize {
        (4 - self.payload.len() % 4) % 4
    }

    /// Returns the layers from the BTH to the last pad byte.
    pub fn transport(&self) -> Vec<(Layer, usize)> {
        let opcode = self.bth.opcode.0;
        let headers = headers_of(opcode).iter().map(|&layer| (layer, extension_len(layer)));
        let mut parts = vec![(Layer::Bth, 12)];
        parts.extend(headers);
        parts.extend([(Layer::Payload, self.payload.len()), (Layer::Pad, self.pad())]);
        parts
    }

    /// The whole frame, part by part, each with its length.
    pub fn parts(&self) -> Vec<(Layer, usize)> {
        let mut parts = Vec::new();
        parts.extend(self.ethernet.map(|_| (Layer::Ethernet, 14)));
        parts.extend(self.vlan.map(|_| (Layer::Vlan, 4)));
        match &self.network {
            NetworkRepr::Ipv4 { .. } => parts.extend([(Layer::Ipv4, 20), (Layer::Udp, 8)]),
            NetworkRepr::Ipv6 { .. } => parts.extend([(Layer::Ipv6, 40), (Layer::Udp, 8)]),
            NetworkRepr::Grh(_) => parts.push((Layer::Grh, 40)),
            NetworkRepr::Native { grh, .. } => {
                parts.push((Layer::Lrh, 8));
                parts.extend(grh.map(|_| (Layer::Grh, 40)));
            }
        }
        parts.extend(self.transport());
        parts.push((Layer::Icrc, 4));
        if matches!(self.network, NetworkRepr::Native { .. }) {
            parts.push((Layer::Vcrc, 2));
        }
        parts.retain(|&(_, len)| len > 0);
        parts
    }
}

/// The header at the start of `bytes`: whatever they say, it is one.
fn header<H: Header + Copy>(bytes: &[u8]) -> H {
    *roce::wire::view::<H>(bytes, 0).unwrap()
}

/// Any frame that can be emitted, with up to `payload_max` bytes: all assigned opcodes and some
/// others, all encapsulations, with and without VLAN tag; one in eight is for queue pair 1.
pub fn recipes(payload_max: usize) -> impl Strategy<Value = Recipe> {
    let mut values = opcodes();
    values.extend([0x15, 0x3f, 0x66, 0xc0, 0xff]);
    (select(values), 0..KINDS, vec(any::<u8>(), 256), 0..=payload_max)
        .prop_map(|(opcode, kind, random, payload_len)| recipe(opcode, kind, &random, payload_len))
}

/// Number of kinds of [`carrier`].
pub const KINDS: u8 = 9;

/// A frame of this opcode in this kind of carrier, with what is free in it from 256 `random` bytes.
pub fn recipe(opcode: u8, kind: u8, random: &[u8], payload_len: usize) -> Recipe {
    let (route, transport) = random.split_at(128);
    let (link, ethernet, vlan, network) = carrier(kind, route);
    let bth = header::<Bth>(transport).repr();
    // A management datagram has 256 bytes, or it is broken.
    let gsi = transport[0] < 32 && payload_len >= 256;
    let dest_qp = if gsi { Qpn::GSI } else { Qpn::new(bth.dest_qp.get() | 2) };
    Recipe {
        link,
        ethernet,
        vlan,
        network,
        bth: BthRepr { opcode: Opcode(opcode), dest_qp, ..bth },
        extensions: extensions(opcode, &transport[12..]),
        payload: (0..payload_len).map(|i| i.to_le_bytes()[0] ^ random[i % 256]).collect(),
    }
}

type Carrier = (LinkType, Option<EthernetRepr>, Option<VlanRepr>, NetworkRepr);

/// Returns a carrier of the given `kind`, with random values where fields are free.
fn carrier(kind: u8, random: &[u8]) -> Carrier {
    let source_port = u16::from_be_bytes([random[0], random[1]]);
    let ethernet = Some(header::<Ethernet>(random).repr());
    let vlan = Some(header::<Vlan>(random).repr());
    let (random, lrh) = (&random[32..], header::<Lrh>(&random[20..]).repr());
    let header4 = Ipv4Repr {
        version: Bits::low(4),
        protocol: 17,
        more_fragments: false,
        fragment_offset: Bits::low(0),
        ..header::<Ipv4>(random).repr()
    };
    let header6 =
        Ipv6Repr { version: Bits::low(6), next_header: 17, ..header::<Ipv6>(random).repr() };
    let grh = GrhRepr { version: Bits::low(6), next_header: 0x1b, ..header::<Grh>(random).repr() };
    let (v4, v6) = (
        NetworkRepr::Ipv4 { header: header4, source_port },
        NetworkRepr::Ipv6 { header: header6, source_port },
    );
    match kind {
        0 => (LinkType::ETHERNET, ethernet, None, v4),
        1 => (LinkType::ETHERNET, ethernet, vlan, v4),
        2 => (LinkType::ETHERNET, ethernet, None, v6),
        3 => (LinkType::ETHERNET, ethernet, vlan, v6),
        4 => (LinkType::RAW, None, None, v4),
        5 => (LinkType::IPV6, None, None, v6),
        6 => (
            LinkType::ETHERNET,
            ethernet,
            (source_port & 1 == 0).then_some(vlan).flatten(),
            NetworkRepr::Grh(grh),
        ),
        7 => (LinkType::INFINIBAND, None, None, NetworkRepr::Native { lrh, grh: Some(grh) }),
        _ => (LinkType::INFINIBAND, None, None, NetworkRepr::Native { lrh, grh: None }),
    }
}

/// The extension headers of `opcode`, from `random` bytes.
fn extensions(opcode: u8, random: &[u8]) -> Extensions {
    let has = |layer| headers_of(opcode).contains(&layer);
    Extensions {
        rdeth: has(Layer::Rdeth).then(|| header::<Rdeth>(random).repr()),
        deth: has(Layer::Deth).then(|| header::<Deth>(&random[4..]).repr()),
        xrceth: has(Layer::Xrceth).then(|| header::<Xrceth>(&random[12..]).repr()),
        feth: has(Layer::Feth).then(|| header::<Feth>(&random[16..]).repr()),
        reth: has(Layer::Reth).then(|| header::<Reth>(&random[20..]).repr()),
        atomic_eth: has(Layer::AtomicEth).then(|| header::<AtomicEth>(&random[36..]).repr()),
        aeth: has(Layer::Aeth).then(|| header::<Aeth>(&random[64..]).repr()),
        atomic_ack_eth: has(Layer::AtomicAckEth)
            .then(|| header::<AtomicAckEth>(&random[68..]).repr()),
        imm_dt: has(Layer::ImmDt).then(|| header::<ImmDt>(&random[76..]).repr()),
        ieth: has(Layer::Ieth).then(|| header::<Ieth>(&random[80..]).repr()),
        sack_eth: has(Layer::SackEth).then(|| header::<SackEth>(&random[84..]).repr()),
    }
}

/// The bits of `bytes` that lie in one of `fields`, each a first bit and a width; the others become
/// zero.
pub fn keep_fields(bytes: &[u8], fields: &[(usize, usize)]) -> Vec<u8> {
    let mut kept = vec![0; bytes.len()];
    for bit in fields.iter().flat_map(|&(start, width)| start..start + width) {
        kept[bit / 8] |= bytes[bit / 8] & (0x80 >> (bit % 8));
    }
    kept
}

/// The `width` bits of `bytes` from bit `start`, as a number, one bit at a time.
pub fn number_at(bytes: &[u8], start: usize, width: usize) -> u64 {
    (start..start + width)
        .fold(0, |number, bit| number << 1 | u64::from(bytes[bit / 8] >> (7 - bit % 8) & 1))
}

/// Whether a field that the crate places `at` these bits reads what stands `width` bits wide from
/// bit `start`.
pub fn is_at(at: BitRange, bytes: &[u8], start: usize, width: usize) -> bool {
    if width <= 56 {
        at.read(bytes) == Some(number_at(bytes, start, width))
    } else {
        at.slice(bytes) == bytes.get(start / 8..start / 8 + width / 8)
    }
}

/// Tests of headers against tables of their fields, each with its first bit and its width. What no
/// field names is reserved: kept out of the repr, and sent as zero.
macro_rules! header_tests {
    ($($test:ident: $header:ty, $len:literal bytes { $($field:ident $start:literal $width:literal),* $(,)? })*) => {$(
        #[test]
        fn $test() {
            use $crate::common::keep_fields;
            use zerocopy::FromBytes;

            assert_eq!(<$header>::LEN, $len);
            let fields = [$(($start, $width)),*];
            let zero = <$header>::ref_from_bytes(&[0; $len]).unwrap().repr();
            // All ones in one field change this field and no other.
            $({
                let ones = keep_fields(&[0xff; $len], &[($start, $width)]);
                let mut repr = <$header>::ref_from_bytes(&ones).unwrap().repr();
                assert_eq!(repr.emit().as_bytes()[..], ones, stringify!($field));
                assert_ne!(repr.$field, zero.$field, stringify!($field));
                repr.$field = zero.$field;
                assert_eq!(repr, zero, stringify!($field));
            })*
            let config = proptest::test_runner::Config::with_cases(32);
            proptest::proptest!(config, |(bytes in proptest::collection::vec(proptest::num::u8::ANY, $len))| {
                let view = <$header>::ref_from_bytes(&bytes).unwrap();
                let emitted = view.repr().emit();
                proptest::prop_assert_eq!(&emitted.as_bytes()[..], keep_fields(&bytes, &fields));
                proptest::prop_assert_eq!(emitted.repr(), view.repr());
                $(let at = <$header>::LAYOUT.$field;
                proptest::prop_assert!($crate::common::is_at(at, &bytes, $start, $width), stringify!($field));)*
            });
        }
    )*};
}
pub(crate) use header_tests;

/// Compares `text` with a committed file of `testdata/cli`; `ROCE_BLESS=1` writes it instead.
pub(crate) fn assert_golden(name: &str, text: &str) {
    let path = testdata("cli").join(name);
    if std::env::var_os("ROCE_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == text, "{path:?} differs (ROCE_BLESS=1 writes it anew):\n{text}");
}
