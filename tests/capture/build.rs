//! Captures that are built byte by byte.

use super::source::*;

/// Builds captures in either byte order, with whatever lengths it is told.
#[derive(Clone)]
pub(crate) struct Build {
    pub(crate) bytes: Vec<u8>,
    pub(crate) big: bool,
}

impl Build {
    pub(crate) fn little() -> Self {
        Self { bytes: Vec::new(), big: false }
    }

    pub(crate) fn big() -> Self {
        Self { bytes: Vec::new(), big: true }
    }

    pub(crate) fn u16(mut self, number: u16) -> Self {
        self.bytes.extend(if self.big { number.to_be_bytes() } else { number.to_le_bytes() });
        self
    }

    pub(crate) fn u32(mut self, number: u32) -> Self {
        self.bytes.extend(if self.big { number.to_be_bytes() } else { number.to_le_bytes() });
        self
    }

    pub(crate) fn u64(mut self, number: u64) -> Self {
        self.bytes.extend(if self.big { number.to_be_bytes() } else { number.to_le_bytes() });
        self
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// Bytes, and zeros up to a multiple of four.
    pub(crate) fn padded(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len() + bytes.len().next_multiple_of(4) - bytes.len(), 0);
        self
    }

    /// Creates an empty part in the same byte order.
    pub(crate) fn part(&self) -> Self {
        Self { bytes: Vec::new(), big: self.big }
    }

    /// The header of a pcap.
    pub(crate) fn pcap(self, magic: u32, network: u32) -> Self {
        self.u32(magic).u16(2).u16(4).u32(0).u32(0).u32(65536).u32(network)
    }

    /// A record of a pcap.
    pub(crate) fn record(self, seconds: u32, fraction: u32, len: u32, data: &[u8]) -> Self {
        let captured = u32::try_from(data.len()).expect("short");
        self.u32(seconds).u32(fraction).u32(captured).u32(len).raw(data)
    }

    /// A block of a pcapng around a body.
    pub(crate) fn block(self, kind: u32, body: Self) -> Self {
        let length = u32::try_from(body.bytes.len() + 12).expect("short");
        self.u32(kind).u32(length).raw(&body.bytes).u32(length)
    }

    pub(crate) fn section(self) -> Self {
        let body = self.part().u32(0x1a2b_3c4d).u16(1).u16(0).u64(u64::MAX);
        self.block(0x0a0d_0d0a, body)
    }

    /// An interface description with options as given.
    pub(crate) fn interface(self, link: u16, snaplen: u32, options: Self) -> Self {
        let body = self.part().u16(link).u16(0).u32(snaplen).raw(&options.bytes);
        self.block(1, body)
    }

    pub(crate) fn option(self, code: u16, value: &[u8]) -> Self {
        self.u16(code).u16(u16::try_from(value.len()).expect("short")).padded(value)
    }

    /// An interface description of Ethernet with a resolution.
    pub(crate) fn ethernet(self, tsresol: u8) -> Self {
        let options = self.part().option(9, &[tsresol]).option(0, &[]);
        self.interface(1, 0, options)
    }

    pub(crate) fn enhanced(self, interface: u32, ticks: u64, len: u32, data: &[u8]) -> Self {
        let captured = u32::try_from(data.len()).expect("short");
        let body = self.part().u32(interface).time(ticks).u32(captured).u32(len).padded(data);
        self.block(6, body)
    }

    pub(crate) fn time(self, ticks: u64) -> Self {
        let (high, low) = (ticks >> 32, ticks & 0xffff_ffff);
        self.u32(u32::try_from(high).expect("half")).u32(u32::try_from(low).expect("half"))
    }
}

/// Two sections of different byte order, five interfaces, every kind of block and option.
pub(crate) fn motley() -> Vec<u8> {
    let first = Build::little().section();
    // An interface whose options have odd lengths, in whose midst stands the resolution of 2⁻²⁰ s.
    let options = first
        .part()
        .option(1, b"a comment of 23 bytes..")
        .option(2, b"mlx5_0")
        .option(9, &[0x80 | 20])
        .option(0x8001, b"x");
    let first = first
        .interface(1, 0, options)
        .block(0xbad, Build::little().raw(&[0xee; 8]))
        .enhanced(0, (1_700_000_000 << 20) | 1, 60, b"binary")
        .ethernet(6)
        .enhanced(1, 1_700_000_000_123_456, 5, b"micro");
    // Nothing about time, but an offset, and a snaplen that bounds simple packets.
    let options = first.part().option(14, &1_600_000_000_i64.to_le_bytes()).option(0, &[]);
    let first = first.interface(228, 4, options).enhanced(2, 7_000_001, 4, b"offs");
    let first = first.block(5, Build::little().raw(&[0; 12]));

    let second = Build::big().section();
    let options = second.part().option(14, &(-10_i64).to_be_bytes()).option(9, &[3]).option(0, &[]);
    let second = second.interface(247, 3, options);
    let simple = second.part().u32(1000).padded(b"sim");
    let old = second.part().u16(1).u16(0xffff).time(1_700_000_000_000_000_007).u32(3).u32(3);
    let old = old.padded(b"old").option(2, &[0, 0, 0, 1]).option(0, &[]);
    let second = second
        .enhanced(0, 11_234, 2, b"ms")
        .block(3, simple)
        .ethernet(9)
        .block(2, old)
        .enhanced(1, u64::MAX, 4, b"last");
    [first.bytes, second.bytes].concat()
}

pub(crate) fn motley_records() -> Vec<Owned> {
    let record = |section, interface, link, len, time, data: &[u8]| Owned {
        section,
        interface: Some(interface),
        link,
        len,
        ..packet_ng(time, data)
    };
    vec![
        record(0, 0, 1, 60, 1_700_000_000_000_000_953, b"binary"),
        record(0, 1, 1, 5, 1_700_000_000_123_456_000, b"micro"),
        record(0, 2, 228, 4, 1_600_000_007_000_001_000, b"offs"),
        record(1, 0, 247, 2, 1_234_000_000, b"ms"),
        Owned { time: None, ..record(1, 0, 247, 1000, 0, b"sim") },
        record(1, 1, 1, 3, 1_700_000_000_000_000_007, b"old"),
        record(1, 1, 1, 4, u64::MAX, b"last"),
    ]
}

/// A pcap of `count` records of a hundred bytes that do not compress.
pub(crate) fn noise(count: u32) -> Vec<u8> {
    let mut state = 1_u64;
    let mut file = Build::little().pcap(0xa1b2_c3d4, 1);
    for second in 0..count {
        let mut data = [0; 100];
        for byte in &mut data {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            *byte = state.to_be_bytes()[0];
        }
        file = file.record(second, 0, 100, &data);
    }
    file.bytes
}
