//! `roce::capture` against captures and numbers that others made.
//!
//! Truth comes from outside wherever it can: `capinfos` and `tshark` (Wireshark 4.0.17) for the numbers,
//! the `pcap-file` crate as a second reader, and files built here byte by byte from the drafts
//! `draft-ietf-opsawg-pcap` and `draft-ietf-opsawg-pcapng`, which `tshark` read alike when they were made (but it
//! counts a custom block as a frame).

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use roce::capture::{
    BlockType, Compression, Error, Format, InterfaceId, LinkType, MAX_BLOCK, MAX_CAPTURED,
    MAX_INTERFACES, MAX_WRITTEN, Offset, OptionLength, Part, PcapWriter, PcapngWriter, Reader,
    WriteError, open,
};
use roce::time::Instant;

// ---------------------------------------------------------------------------------------------------
// What the tests share

/// A record that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
struct Owned {
    /// Nanoseconds.
    time: Option<u64>,
    link: u16,
    len: u32,
    data: Vec<u8>,
    section: u32,
    interface: Option<u32>,
}

/// An Ethernet packet of a pcap, all of it captured.
fn packet(time: u64, data: &[u8]) -> Owned {
    Owned {
        time: Some(time),
        link: 1,
        len: u32::try_from(data.len()).expect("short"),
        data: data.to_vec(),
        section: 0,
        interface: None,
    }
}

/// The same, of the first interface of a pcapng.
fn packet_ng(time: u64, data: &[u8]) -> Owned {
    let interface = Some(0);
    Owned { interface, ..packet(time, data) }
}

/// Everything a source yields: records, then perhaps an error.
fn read_source(source: impl Read) -> (Vec<Owned>, Option<Error>) {
    let mut records = Vec::new();
    let mut reader = match Reader::new(source) {
        Ok(reader) => reader,
        Err(error) => return (records, Some(error)),
    };
    let error = loop {
        match reader.next() {
            Ok(Some(record)) => {
                assert_eq!(record.number, records.len() as u64 + 1);
                records.push(Owned {
                    time: record.time.map(Instant::as_nanos),
                    link: record.link.0,
                    len: record.len,
                    data: record.data.to_vec(),
                    section: record.section,
                    interface: record.interface.map(u32::from),
                });
            }
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    for _ in 0..3 {
        assert!(matches!(reader.next(), Ok(None)), "after the end or an error comes nothing");
    }
    (records, error)
}

/// The same, of a file in memory.
fn read_all(file: &[u8]) -> (Vec<Owned>, Option<Error>) {
    read_source(file)
}

/// The records of a file that must be flawless.
fn read_good(file: &[u8]) -> Vec<Owned> {
    flawless(read_source(file))
}

fn flawless((records, error): (Vec<Owned>, Option<Error>)) -> Vec<Owned> {
    if let Some(error) = error {
        panic!("after {} records: {error}", records.len());
    }
    records
}

/// The number of records before a file's error, and the error.
fn read_bad(file: &[u8]) -> (usize, Error) {
    faulty(read_source(file))
}

fn faulty((records, error): (Vec<Owned>, Option<Error>)) -> (usize, Error) {
    (records.len(), error.expect("an error"))
}

/// The records of a flawless file that comes in small pieces.
fn read_slowly(file: &[u8], step: usize) -> Vec<Owned> {
    let interrupted = false;
    flawless(read_source(Dribble { bytes: file, step, interrupted }))
}

/// A place in an uncompressed capture.
fn at(bytes: u64) -> Offset {
    Offset { bytes, decompressed: false }
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/captures").join(name)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("in memory");
    encoder.finish().expect("in memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).expect("in memory")
}

/// A source that yields at most `step` bytes a read, each time after an interruption.
struct Dribble<'a> {
    bytes: &'a [u8],
    step: usize,
    interrupted: bool,
}

impl Read for Dribble<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.interrupted = !self.interrupted;
        if self.interrupted {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let step = self.step.min(out.len());
        self.bytes.read(&mut out[..step])
    }
}

/// A source that fails after its bytes.
struct Failing<'a>(&'a [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.0.read(out)? {
            0 => Err(io::Error::other("the disk is on fire")),
            count => Ok(count),
        }
    }
}

/// Builds captures in either byte order, with whatever lengths it is told.
#[derive(Clone)]
struct Build {
    bytes: Vec<u8>,
    big: bool,
}

impl Build {
    fn little() -> Self {
        Self { bytes: Vec::new(), big: false }
    }

    fn big() -> Self {
        Self { bytes: Vec::new(), big: true }
    }

    fn u16(mut self, number: u16) -> Self {
        self.bytes.extend(if self.big { number.to_be_bytes() } else { number.to_le_bytes() });
        self
    }

    fn u32(mut self, number: u32) -> Self {
        self.bytes.extend(if self.big { number.to_be_bytes() } else { number.to_le_bytes() });
        self
    }

    fn u64(mut self, number: u64) -> Self {
        self.bytes.extend(if self.big { number.to_be_bytes() } else { number.to_le_bytes() });
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// Bytes, and zeros up to a multiple of four.
    fn padded(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self.bytes.resize(self.bytes.len() + bytes.len().next_multiple_of(4) - bytes.len(), 0);
        self
    }

    /// Something in the same byte order.
    fn part(&self) -> Self {
        Self { bytes: Vec::new(), big: self.big }
    }

    /// The header of a pcap.
    fn pcap(self, magic: u32, network: u32) -> Self {
        self.u32(magic).u16(2).u16(4).u32(0).u32(0).u32(65536).u32(network)
    }

    /// A record of a pcap.
    fn record(self, seconds: u32, fraction: u32, len: u32, data: &[u8]) -> Self {
        let captured = u32::try_from(data.len()).expect("short");
        self.u32(seconds).u32(fraction).u32(captured).u32(len).raw(data)
    }

    /// A block of a pcapng around a body.
    fn block(self, kind: u32, body: Self) -> Self {
        let length = u32::try_from(body.bytes.len() + 12).expect("short");
        self.u32(kind).u32(length).raw(&body.bytes).u32(length)
    }

    fn section(self) -> Self {
        let body = self.part().u32(0x1a2b_3c4d).u16(1).u16(0).u64(u64::MAX);
        self.block(0x0a0d_0d0a, body)
    }

    /// An interface description with options as given.
    fn interface(self, link: u16, snaplen: u32, options: Self) -> Self {
        let body = self.part().u16(link).u16(0).u32(snaplen).raw(&options.bytes);
        self.block(1, body)
    }

    fn option(self, code: u16, value: &[u8]) -> Self {
        self.u16(code).u16(u16::try_from(value.len()).expect("short")).padded(value)
    }

    /// An interface description of Ethernet with a resolution.
    fn ethernet(self, tsresol: u8) -> Self {
        let options = self.part().option(9, &[tsresol]).option(0, &[]);
        self.interface(1, 0, options)
    }

    fn enhanced(self, interface: u32, ticks: u64, len: u32, data: &[u8]) -> Self {
        let captured = u32::try_from(data.len()).expect("short");
        let body = self.part().u32(interface).time(ticks).u32(captured).u32(len).padded(data);
        self.block(6, body)
    }

    fn time(self, ticks: u64) -> Self {
        let (high, low) = (ticks >> 32, ticks & 0xffff_ffff);
        self.u32(u32::try_from(high).expect("half")).u32(u32::try_from(low).expect("half"))
    }
}

// ---------------------------------------------------------------------------------------------------
// Real captures

/// Name, then what `capinfos -M` and `tshark -T fields -e frame.time_epoch -e frame.len` say: number of
/// packets, data size, time and length of the first and of the last packet.
type Known = (&'static str, usize, u64, (u64, u32), (u64, u32));

const CAPTURES: [Known; 3] = [
    (
        "rxe_all_ops.pcap",
        3742,
        1_437_996,
        (1_794_701_211_597_306_000, 90),
        (1_794_701_227_682_089_000, 66),
    ),
    ("rxe_cm.pcap", 182, 23_144, (1_794_701_319_346_418_000, 90), (1_794_701_338_513_006_000, 342)),
    (
        "rxe_lossy.pcap",
        2062,
        1_646_485,
        (1_794_701_569_706_761_000, 90),
        (1_794_701_960_867_570_000, 42),
    ),
];

#[test]
fn captures_have_what_capinfos_counts() {
    for (name, packets, data_size, first, last) in CAPTURES {
        let mut reader = open(&testdata(name)).unwrap();
        assert_eq!((reader.format(), reader.compression()), (Format::Pcap, None));
        let (mut count, mut sum, mut ends) = (0, 0, Vec::new());
        while let Some(record) = reader.next().unwrap() {
            count += 1;
            sum += u64::from(record.len);
            assert_eq!(record.link, LinkType::ETHERNET);
            assert_eq!(record.data.len(), record.len as usize);
            if count == 1 || count == packets {
                ends.push((record.time.unwrap().as_nanos(), record.len));
            }
        }
        assert_eq!((count, sum, ends), (packets, data_size, vec![first, last]), "{name}");
        assert_eq!(reader.bytes_read(), std::fs::metadata(testdata(name)).unwrap().len());
    }
}

#[test]
fn captures_read_as_pcap_file_reads_them() {
    for (name, packets, ..) in CAPTURES {
        let bytes = std::fs::read(testdata(name)).unwrap();
        let mut theirs = pcap_file::pcap::PcapReader::new(bytes.as_slice()).unwrap();
        let ours = read_good(&bytes);
        assert_eq!(ours.len(), packets);
        for our in ours {
            let their = theirs.next_packet().unwrap().unwrap();
            let nanos = u64::try_from(their.timestamp().as_nanos()).unwrap();
            assert_eq!((our.time, our.len), (Some(nanos), their.orig_len()));
            assert_eq!(our.data, their.data());
        }
        assert!(theirs.next_packet().is_none());
    }
}

#[test]
fn a_compressed_capture_is_the_same_capture() {
    for (name, ..) in CAPTURES {
        let plain = std::fs::read(testdata(name)).unwrap();
        let expected = read_good(&plain);
        for packed in [gzip(&plain), zstd(&plain)] {
            assert_eq!(read_good(&packed), expected);
        }
        // Cut anywhere, also within a record, and compressed piece by piece.
        let (a, b) = plain.split_at(plain.len() / 3);
        assert_eq!(read_good(&[gzip(a), gzip(&[]), gzip(b)].concat()), expected);
        let skippable = [&[0x5f, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        let frames = [skippable.clone(), zstd(a), skippable, zstd(&[]), zstd(b)].concat();
        assert_eq!(read_good(&frames), expected);
    }
}

#[test]
fn a_slow_source_changes_nothing() {
    let plain = std::fs::read(testdata("rxe_cm.pcap")).unwrap();
    let expected = read_good(&plain);
    for bytes in [plain.clone(), gzip(&plain), zstd(&plain)] {
        for step in [1, 2, 3, 7, 1000] {
            assert_eq!(read_slowly(&bytes, step), expected);
        }
    }
}

#[test]
fn progress_counts_compressed_bytes() {
    let packed = zstd(&noise(3000));
    let mut reader = Reader::new(packed.as_slice()).unwrap();
    assert_eq!(reader.compression(), Some(Compression::Zstd));
    let progress = reader.progress();
    let mut before = progress.bytes();
    assert!(before > 0 && before < packed.len() as u64, "not all of it was read to begin with");
    while reader.next().unwrap().is_some() {
        assert!(progress.bytes() >= before);
        before = progress.bytes();
    }
    assert_eq!((progress.bytes(), reader.bytes_read()), (packed.len() as u64, packed.len() as u64));
}

#[test]
fn a_reader_may_move_to_another_thread() {
    fn sendable<T: Send>() {}
    sendable::<Reader<std::fs::File>>();
    sendable::<PcapngWriter<std::fs::File>>();
    sendable::<Error>();
}

// ---------------------------------------------------------------------------------------------------
// pcap, by hand

#[test]
fn pcap_in_both_byte_orders_and_precisions() {
    for build in [Build::little(), Build::big()] {
        for (magic, unit) in [(0xa1b2_c3d4, 1000), (0xa1b2_3c4d, 1)] {
            let file =
                build.clone().pcap(magic, 1).record(7, 999_999, 3, b"abc").record(8, 0, 0, b"");
            let expected =
                [packet(7_000_000_000 + 999_999 * unit, b"abc"), packet(8_000_000_000, b"")];
            assert_eq!(read_good(&file.bytes), expected);
        }
    }
}

#[test]
fn pcap_to_the_letter() {
    #[rustfmt::skip]
    let file: [u8; 45] = [
        0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, // magic, version, zone, accuracy
        0xff, 0xff, 0, 0, 247, 0, 0, 0, // snaplen, InfiniBand
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, // the last time there is, and then some
        5, 0, 0, 0, 0x10, 0, 0, 0, b'h', b'e', b'l', b'l', b'o', // 5 of 16 bytes
    ];
    let [record] = read_good(&file[..]).try_into().unwrap();
    // 4294967295 s and 4294967295 ns: the fraction carries over.
    assert_eq!(record.time, Some(4_294_967_299_294_967_295));
    assert_eq!((record.link, record.len, record.data), (247, 16, b"hello".to_vec()));
}

#[test]
fn pcap_link_type_is_the_lower_half() {
    // The frame check sequence of 4 bytes: length 2 (in 16-bit units), flag, and reserved bits.
    for high in [0x2400_0000, 0xf3ff_0000] {
        let file = Build::little().pcap(0xa1b2_c3d4, high | 276).record(0, 0, 1, b"x");
        assert_eq!(read_good(&file.bytes)[0].link, 276);
    }
}

#[test]
fn pcap_lengths_that_lie_harmlessly_are_accepted() {
    // More captured than on the wire, and more than the snaplen of 65536.
    let long = vec![7; 70_000];
    let file =
        Build::big().pcap(0xa1b2_c3d4, 1).record(0, 0, 3, b"abcdef").record(0, 0, 70_000, &long);
    let records = read_good(&file.bytes);
    assert_eq!((records[0].len, records[0].data.as_slice()), (3, &b"abcdef"[..]));
    assert_eq!(records[1].data, long);
}

#[test]
fn the_longest_record_passes_and_a_longer_one_does_not() {
    let longest = vec![9; MAX_CAPTURED as usize];
    let good = Build::little()
        .pcap(0xa1b2_c3d4, 1)
        .record(0, 0, 1, b"x")
        .record(0, 0, MAX_CAPTURED, &longest)
        .record(0, 0, 1, b"y");
    assert_eq!(read_good(&good.bytes)[1].data, longest);

    for claim in [MAX_CAPTURED + 1, u32::MAX] {
        let bad = Build::little()
            .pcap(0xa1b2_c3d4, 1)
            .record(0, 0, 1, b"x")
            .u32(0)
            .u32(0)
            .u32(claim)
            .u32(9);
        let (before, error) = read_bad(&bad.bytes);
        assert_eq!(before, 1);
        assert_eq!(
            error.to_string(),
            format!("record at offset 41 claims {claim} captured bytes, the limit is 1048576")
        );
        assert!(matches!(error, Error::RecordTooLong { .. }));
    }
}

#[test]
fn pcap_of_another_version_is_refused() {
    let file = Build::little().u32(0xa1b2_c3d4).u16(2).u16(3).raw(&[0; 16]);
    let (_, error) = read_bad(&file.bytes);
    assert_eq!(error.to_string(), "pcap version 2.3 at offset 0 is not supported");
}

// ---------------------------------------------------------------------------------------------------
// pcapng, by hand

#[test]
fn pcapng_to_the_letter() {
    #[rustfmt::skip]
    let little: [u8; 100] = [
        0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, // section header
        255, 255, 255, 255, 255, 255, 255, 255, 28, 0, 0, 0, // of unknown length
        1, 0, 0, 0, 32, 0, 0, 0, 1, 0, 0, 0, 0, 0, 4, 0, // interface: Ethernet, snaplen 262144
        9, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, // milliseconds
        6, 0, 0, 0, 40, 0, 0, 0, 0, 0, 0, 0, // packet of interface 0
        1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 9, 0, 0, 0, // at 2³² + 2 ms, 5 of 9 bytes
        b'h', b'e', b'l', b'l', b'o', 0, 0, 0, 40, 0, 0, 0,
    ];
    #[rustfmt::skip]
    let big: [u8; 100] = [
        0x0a, 0x0d, 0x0d, 0x0a, 0, 0, 0, 28, 0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 0, 0, // section header
        255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 28, // of unknown length
        0, 0, 0, 1, 0, 0, 0, 32, 0, 1, 0, 0, 0, 4, 0, 0, // interface: Ethernet, snaplen 262144
        0, 9, 0, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, // milliseconds
        0, 0, 0, 6, 0, 0, 0, 40, 0, 0, 0, 0, // packet of interface 0
        0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 9, // at 2³² + 2 ms, 5 of 9 bytes
        b'h', b'e', b'l', b'l', b'o', 0, 0, 0, 0, 0, 0, 40,
    ];
    let expected = Owned { len: 9, ..packet_ng(4_294_967_298_000_000, b"hello") };
    for file in [little, big] {
        assert_eq!(read_good(&file), std::slice::from_ref(&expected));
    }
    assert_eq!(Reader::new(&big[..]).unwrap().format(), Format::Pcapng);
}

/// Two sections of different byte order, five interfaces, every kind of block and option.
fn motley() -> Vec<u8> {
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

fn motley_records() -> Vec<Owned> {
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

#[test]
fn pcapng_with_every_kind_of_block() {
    let file = motley();
    assert_eq!(read_good(&file), motley_records());
    assert_eq!(read_good(&gzip(&file)), motley_records());
    assert_eq!(read_slowly(&file, 1), motley_records());
}

#[test]
fn pcapng_as_pcap_file_reads_it() {
    use pcap_file::pcapng::{Block, PcapNgReader};
    let file = motley();
    let mut theirs = PcapNgReader::new(file.as_slice()).unwrap();
    let mut ours = motley_records().into_iter();
    while let Some(block) = theirs.next_block() {
        let (block, state) = block.unwrap();
        let (data, len, link) = match block {
            Block::EnhancedPacket(packet) => {
                let link = state.interfaces()[packet.interface_id as usize].linktype;
                (packet.data.to_vec(), packet.original_len, link)
            }
            Block::Packet(packet) => {
                let link = state.interfaces()[usize::from(packet.interface_id)].linktype;
                (packet.data.to_vec(), packet.original_len, link)
            }
            Block::SimplePacket(packet) => {
                (packet.data.to_vec(), packet.original_len, state.interfaces()[0].linktype)
            }
            _ => continue,
        };
        let our = ours.next().unwrap();
        assert_eq!((our.data, our.len, u32::from(our.link)), (data, len, u32::from(link)));
    }
    assert!(ours.next().is_none());
}

#[test]
fn pcapng_skips_what_is_longer_than_any_buffer() {
    let length = 40 * (1 << 20);
    let start = Build::little().section().ethernet(9).u32(0xbad).u32(length).bytes;
    let end = Build::little().u32(length).enhanced(0, 5, 1, b"x").bytes;
    let middle = u64::from(length) - 12;
    let source = start.as_slice().chain(io::repeat(0xaa).take(middle)).chain(end.as_slice());
    assert_eq!(flawless(read_source(source)), [packet_ng(5, b"x")]);

    let source = start.as_slice().chain(io::repeat(0xaa).take(middle - 1));
    let (_, error) = faulty(read_source(source));
    assert_eq!(
        error.to_string(),
        "block cut at offset 60: need 41943040 bytes, have 41943035".to_owned()
    );
}

#[test]
fn pcapng_blocks_have_a_limit_only_where_they_are_held() {
    // Options as long as they may be.
    let room = (MAX_BLOCK - 32 - 4) as usize;
    let options = vec![0; room];
    let start = Build::little().section().ethernet(9);
    let body = start.part().u32(0).time(1).u32(1).u32(1).padded(b"x").raw(&options);
    let good = start.clone().block(6, body).enhanced(0, 2, 1, b"y");
    assert_eq!(read_good(&good.bytes), [packet_ng(1, b"x"), packet_ng(2, b"y")]);

    let bad = start.clone().u32(6).u32(u32::MAX - 3).raw(&[0; 40]);
    let (_, error) = read_bad(&bad.bytes);
    assert_eq!(
        error.to_string(),
        "enhanced packet block at offset 60 claims 4294967292 bytes, the limit is 2097152"
    );

    // Within the limit for blocks, but not within that for packets.
    let long = vec![0; MAX_CAPTURED as usize + 1];
    let bad = start.enhanced(0, 0, 1, &long);
    let (_, error) = read_bad(&bad.bytes);
    assert!(matches!(error, Error::RecordTooLong { claim: 1_048_577, .. }), "{error}");
}

#[test]
fn pcapng_interfaces_have_a_limit() {
    let mut file = Build::little().section();
    for _ in 0..MAX_INTERFACES {
        let options = file.part();
        file = file.interface(1, 0, options);
    }
    let last = u32::try_from(MAX_INTERFACES - 1).unwrap();
    let good = file.clone().enhanced(last, 1, 1, b"x");
    assert_eq!(read_good(&good.bytes)[0].interface, Some(last));

    let options = file.part();
    let (_, error) = read_bad(&file.interface(1, 0, options).bytes);
    assert_eq!(
        error.to_string(),
        "interface description at offset 1310748 is one more than the limit of 65536"
    );
}

// ---------------------------------------------------------------------------------------------------
// What is wrong is named

/// A file, how many records come before the error, and the error's text.
fn check(file: &[u8], before: usize, text: &str) -> Error {
    let (records, error) = read_bad(file);
    assert_eq!((records, error.to_string().as_str()), (before, text));
    error
}

#[test]
fn no_capture_at_all() {
    let error = check(b"", 0, "the file is empty: nothing at offset 0");
    assert!(matches!(error, Error::Empty { .. }));
    check(b"\xd4\xc3", 0, "file header cut at offset 0: need 4 bytes, have 2");
    let error = check(
        b"hello, world",
        0,
        "the file is not a pcap or pcapng capture: offset 0 has 68 65 6c 6c",
    );
    assert!(matches!(error, Error::NotACapture { magic: [0x68, 0x65, 0x6c, 0x6c], .. }));
    check(
        b"\xfd7zXZ\0",
        0,
        "the file is not a pcap or pcapng capture: offset 0 has fd 37 7a 58; \
         it is xz, decompress it first",
    );
    check(&gzip(b""), 0, "the decompressed data are empty: nothing at offset 0");
    check(&zstd(b""), 0, "the decompressed data are empty: nothing at offset 0");
    check(
        &gzip(b"hello"),
        0,
        "the decompressed data are not a pcap or pcapng capture: offset 0 has 68 65 6c 6c",
    );
}

#[test]
fn pcapng_headers_that_make_no_sense() {
    let mut file = Build::little().section().bytes;
    file[8] = 0;
    let error = check(
        &file,
        0,
        "section header at offset 0 has byte-order magic 0x003c2b1a instead of 0x1a2b3c4d",
    );
    assert!(matches!(error, Error::ByteOrder { .. }));

    let mut file = Build::big().section().bytes;
    file[13] = 2;
    check(&file, 0, "pcapng version 2.0 at offset 0 is not supported");
    file[13] = 1;
    file[15] = 2;
    assert_eq!(read_good(&file), []);

    // In a second section, after a record.
    let first = Build::little().section().ethernet(9).enhanced(0, 1, 1, b"x").bytes;
    let mut second = Build::big().section().bytes;
    second[11] = 0x4e;
    check(
        &[first, second].concat(),
        1,
        "section header at offset 96 has byte-order magic 0x1a2b3c4e instead of 0x1a2b3c4d",
    );
}

#[test]
fn pcapng_lengths_that_make_no_sense() {
    let start = Build::little().section().ethernet(9).enhanced(0, 1, 1, b"x");
    for (kind, least, name) in [
        (6, 32, "enhanced packet block"),
        (3, 16, "simple packet block"),
        (2, 32, "obsolete packet block"),
        (1, 20, "interface description"),
        (0xbad, 12, "block of type 0xbad"),
    ] {
        for claim in [0, least - 4, least - 1] {
            let file = start.clone().u32(kind).u32(claim).raw(&[0; 64]).bytes;
            let text =
                format!("{name} at offset 96 claims {claim} bytes, it needs at least {least}");
            let error = check(&file, 1, &text);
            assert!(matches!(error, Error::BlockTooShort { block: BlockType(k), .. } if k == kind));
        }
        let file = start.clone().u32(kind).u32(least + 1).raw(&[0; 64]).bytes;
        let claim = least + 1;
        let text =
            format!("{name} at offset 96 claims {claim} bytes, which is not a multiple of 4");
        assert!(matches!(check(&file, 1, &text), Error::BlockUnaligned { .. }));

        let body = vec![0; least as usize - 12];
        let file = start.clone().u32(kind).u32(least).raw(&body).u32(least + 4).bytes;
        let text = format!(
            "{name} at offset 96 starts with length {least} but ends with length {}",
            least + 4
        );
        assert!(matches!(check(&file, 1, &text), Error::BlockLengths { .. }));
    }
    let mut file = Build::little().section().bytes;
    file[4] = 24;
    check(&file, 0, "section header at offset 0 claims 24 bytes, it needs at least 28");
}

#[test]
fn pcapng_packets_that_make_no_sense() {
    let start = Build::little().section();
    let name = "enhanced packet block at offset";
    let file = start.clone().enhanced(0, 0, 0, b"").bytes;
    check(&file, 0, &format!("{name} 28 names interface 0, before any was described"));
    let file = start.clone().ethernet(9).enhanced(1, 0, 0, b"").bytes;
    check(&file, 0, &format!("{name} 60 names interface 1, only interface 0 was described"));
    let file = start.clone().ethernet(9).ethernet(9).enhanced(7, 0, 0, b"").bytes;
    let error = check(
        &file,
        0,
        &format!("{name} 92 names interface 7, only interfaces 0 to 1 were described"),
    );
    assert!(matches!(error, Error::UnknownInterface { interface: 7, known: 2, .. }));
    // A new section knows nothing of the interfaces before it.
    let file = start.clone().ethernet(9).section().enhanced(0, 0, 0, b"").bytes;
    check(&file, 0, &format!("{name} 88 names interface 0, before any was described"));
    let simple = start.part().u32(0);
    check(
        &start.clone().block(3, simple).bytes,
        0,
        "simple packet block at offset 28 names interface 0, before any was described",
    );

    let body = start.part().u32(0).time(0).u32(9).u32(9).raw(&[0; 8]);
    let file = start.clone().ethernet(9).block(6, body).bytes;
    let error = check(&file, 0, &format!("{name} 60 claims 9 captured bytes, it has room for 8"));
    assert!(matches!(error, Error::CapturedTooLong { .. }));
    let body = start.part().u32(u32::MAX);
    check(
        &start.clone().ethernet(9).block(3, body).bytes,
        0,
        "simple packet block at offset 60 claims 4294967295 captured bytes, it has room for 0",
    );
}

#[test]
fn pcapng_options_that_make_no_sense() {
    let start = Build::little().section();
    let with = |options: Build| start.clone().interface(1, 0, options).bytes;
    let name = "interface description at offset 28: option";
    let error = check(
        &with(start.part().option(9, &[1, 2])),
        0,
        &format!("{name} 9 claims 2 bytes, it has 1"),
    );
    assert!(matches!(error, Error::BadOption { expected: OptionLength::Exactly(1), .. }));
    check(
        &with(start.part().option(14, &[1, 2, 3, 4])),
        0,
        &format!("{name} 14 claims 4 bytes, it has 8"),
    );
    check(
        &with(start.part().u16(2).u16(5).raw(b"eth0")),
        0,
        &format!("{name} 2 claims 5 bytes, its block has 4 left"),
    );
    // What follows the end mark is nobody's business, and the end mark itself may be missing.
    assert_eq!(read_good(&with(start.part().option(0, &[]).u16(9).u16(99))), []);
    assert_eq!(read_good(&with(start.part().option(2, b"eth0"))), []);
}

#[test]
fn a_source_that_fails_keeps_its_reason() {
    let file = Build::little().pcap(0xa1b2_c3d4, 1).record(0, 0, 1, b"x").bytes;
    let (before, error) = faulty(read_source(Failing(&file)));
    assert_eq!((before, error.to_string().as_str()), (1, "cannot read on at offset 41"));
    let source = std::error::Error::source(&error).unwrap();
    assert_eq!(source.to_string(), "the disk is on fire");

    let (before, error) = faulty(read_source(Failing(&[])));
    assert_eq!((before, error.offset()), (0, Some(at(0))));
    assert!(matches!(faulty(read_source(Failing(&gzip(&file)))).1, Error::Io { .. }));
    assert!(matches!(faulty(read_source(Failing(&zstd(&file)))).1, Error::Io { .. }));

    let error = open(Path::new("/nowhere/-")).unwrap_err();
    assert_eq!(error.to_string(), "cannot open /nowhere/-");
    assert!(std::error::Error::source(&error).is_some() && error.offset().is_none());
}

// ---------------------------------------------------------------------------------------------------
// Cut files

/// The offsets at which records end, and so files may, and the end of the header before them.
fn prefixes(file: &[u8], header: usize, ends: &[usize], expected: &[Owned]) {
    for length in 0..file.len() {
        let (records, error) = read_all(&file[..length]);
        let whole = expected.len().min(ends.iter().filter(|end| **end <= length).count());
        assert!(records.len() >= whole && records == expected[..records.len()], "cut at {length}");
        match error {
            None => assert!(length >= header, "cut at {length}"),
            Some(Error::Empty { .. }) => assert_eq!(length, 0),
            Some(Error::Cut { offset, part, need, have }) => {
                assert_eq!(
                    part == Part::FileHeader,
                    offset.bytes == 0 && (header == 24 || length < 4)
                );
                assert_eq!(offset.bytes + have, length as u64, "cut at {length}");
                assert!(need > have && offset.bytes + need <= file.len() as u64, "cut at {length}");
            }
            Some(error) => panic!("cut at {length}: {error}"),
        }
    }
}

#[test]
fn every_prefix_of_a_pcap() {
    let file = Build::big()
        .pcap(0xa1b2_3c4d, 1)
        .record(1, 0, 5, b"first")
        .record(2, 0, 0, b"")
        .record(3, 0, 90, &[3; 60]);
    let expected = read_good(&file.bytes);
    prefixes(&file.bytes, 24, &[45, 61, 137], &expected);
    for length in 0..file.bytes.len() {
        let clean = [24, 45, 61].contains(&length);
        assert_eq!(read_all(&file.bytes[..length]).1.is_none(), clean, "cut at {length}");
    }
    let (_, error) = read_bad(&file.bytes[..100]);
    assert_eq!(error.to_string(), "record cut at offset 61: need 76 bytes, have 39");
    assert!(error.is_cut());
    let (_, error) = read_bad(&gzip(&file.bytes[..50]));
    assert_eq!(
        error.to_string(),
        "record cut at offset 45 of the decompressed data: need 16 bytes, have 5"
    );
}

#[test]
fn every_prefix_of_a_pcapng() {
    let file = motley();
    let expected = motley_records();
    // Where each block ends, walked independently: the length is the second word, in the byte order that
    // makes it less than the file.
    let (mut ends, mut packets, mut start) = (vec![0], Vec::new(), 0);
    while start < file.len() {
        let word = |at: usize| <[u8; 4]>::try_from(&file[at..at + 4]).unwrap();
        let length = u32::from_le_bytes(word(start + 4)).min(u32::from_be_bytes(word(start + 4)));
        let kind = u32::from_le_bytes(word(start)).min(u32::from_be_bytes(word(start)));
        start += length as usize;
        ends.push(start);
        if matches!(kind, 2 | 3 | 6) {
            packets.push(start);
        }
    }
    assert_eq!(packets.len(), expected.len());
    prefixes(&file, 28, &packets, &expected);
    for length in 1..file.len() {
        let clean = ends.contains(&length);
        assert_eq!(read_all(&file[..length]).1.is_none(), clean, "cut at {length}");
    }
}

#[test]
fn every_prefix_of_a_compressed_capture() {
    let plain = std::fs::read(testdata("rxe_cm.pcap")).unwrap();
    let expected = read_good(&plain);
    for packed in [gzip(&plain[..4000]), zstd(&plain[..4000])] {
        for length in 4..packed.len() {
            let (records, error) = read_all(&packed[..length]);
            assert_eq!(records, expected[..records.len()]);
            assert!(
                matches!(error, Some(Error::CompressedCut { .. })),
                "cut at {length}: {error:?}"
            );
        }
    }
    let packed = gzip(&plain);
    let (before, error) = read_bad(&packed[..packed.len() / 2]);
    assert!(before > 50, "half of the file has many of the records, not {before}");
    let at = error.offset().unwrap();
    assert_eq!(error.to_string(), format!("gzip data cut at {at}: the file ends before they do"));
    assert!(at.decompressed && error.is_cut());
}

// ---------------------------------------------------------------------------------------------------
// Damaged compression

/// A pcap of `count` records of a hundred bytes that do not compress.
fn noise(count: u32) -> Vec<u8> {
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

#[test]
fn damaged_gzip_yields_everything_before_the_damage() {
    // Two members; the second starts with a block of the reserved type. Exactly the records of the first
    // come out, whatever size of output the decoder was given.
    let plain = noise(3000);
    let cut = 24 + 1234 * 116;
    let mut bad = gzip(&plain[cut..]);
    bad[10] = 0b111;
    let (before, error) = read_bad(&[gzip(&plain[..cut]), bad].concat());
    assert_eq!(before, 1234);
    assert_eq!(
        error.to_string(),
        format!("gzip data damaged at offset {cut} of the decompressed data: invalid deflate data")
    );

    // The same within one deflate stream: stored blocks, of which the second contradicts itself.
    let stored = |last: u8, data: &[u8]| {
        let length = u16::try_from(data.len()).unwrap();
        [&[last][..], &length.to_le_bytes(), &(!length).to_le_bytes(), data].concat()
    };
    let head = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut second = stored(1, &plain[24 + 200 * 116..][..9]);
    second[3] ^= 1;
    let file = [&head[..], &stored(0, &plain[..24 + 200 * 116]), &second].concat();
    let (before, error) = read_bad(&file);
    assert_eq!((before, error.offset().unwrap().bytes), (200, 24 + 200 * 116));
}

#[test]
fn gzip_headers_and_trailers() {
    let plain = noise(3);
    let expected = read_good(&plain);
    let packed = gzip(&plain);
    // Extra field, name, comment and header check, all at once.
    let full =
        [&packed[..3], &[0x1e], &packed[4..10], b"\x03\0xyzname\0comment\0hc", &packed[10..]];
    assert_eq!(read_good(&full.concat()), expected);

    let damage = |index: usize, reason: &str| {
        let mut bad = packed.clone();
        bad[index] ^= 0x80;
        let (records, error) = read_all(&bad);
        let error = error.unwrap().to_string();
        assert!(error.ends_with(reason), "{error}");
        records
    };
    assert_eq!(damage(packed.len() - 8, "the checksum does not match"), expected);
    assert_eq!(damage(packed.len() - 1, "the length does not match"), expected);
    assert_eq!(damage(2, "unknown compression method"), []);
    assert_eq!(damage(3, "unknown flags"), []);
    let (before, error) = read_bad(&[packed.as_slice(), b"trailing rubbish"].concat());
    assert_eq!(before, 3);
    assert!(error.to_string().ends_with("something else follows the compressed data"), "{error}");
}

/// A zstd frame of raw blocks with a window descriptor, and no checksum.
fn zstd_frame(window: u8, blocks: &[&[u8]]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, window];
    for (index, block) in blocks.iter().enumerate() {
        let last = u32::from(index + 1 == blocks.len());
        let header = u32::try_from(block.len()).expect("short") << 3 | last;
        frame.extend(&header.to_le_bytes()[..3]);
        frame.extend(*block);
    }
    frame
}

#[test]
fn damaged_zstd_yields_every_block_before_the_damage() {
    let plain = noise(3000);
    let blocks: Vec<&[u8]> = plain.chunks(50_000).collect();
    let good = zstd_frame(7 << 3, &blocks);
    assert_eq!(read_good(&good).len(), 3000);
    for block in 1..blocks.len() {
        // The header of this block gets the reserved type.
        let mut bad = good.clone();
        bad[6 + block * 50_003] |= 0b110;
        let (before, error) = read_bad(&bad);
        assert_eq!(before, (block * 50_000 - 24) / 116, "block {block}");
        assert!(matches!(error, Error::Zstd { .. }), "{error}");
        assert_eq!(error.offset().unwrap().bytes, block as u64 * 50_000);
    }
    // Compressed blocks and a checksum that is wrong: all of it comes out, and then the error.
    let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(&std::fs::read(testdata("rxe_lossy.pcap")).unwrap()).unwrap();
    let mut packed = encoder.finish().unwrap();
    *packed.last_mut().unwrap() ^= 1;
    let (before, error) = read_bad(&packed);
    assert_eq!(before, 2062);
    assert_eq!(
        error.to_string(),
        "zstd data damaged at offset 1679501 of the decompressed data: \
         Restored data doesn't match checksum"
    );

    let (before, error) = read_bad(&[zstd(&plain).as_slice(), b"trailing rubbish"].concat());
    assert_eq!(before, 3000);
    assert!(
        error
            .to_string()
            .starts_with("zstd data damaged at offset 348024 of the decompressed data")
    );
}

#[test]
fn damaged_zstd_yields_what_the_decoder_still_held() {
    // A record so long that its end leaves the decoder only 40 bytes of room for a whole block, the rest of
    // which it has to hold back; and then a block of the reserved type.
    let mut file = Build::little().pcap(0xa1b2_c3d4, 1).record(0, 0, 300_000, &[7; 300_000]);
    for second in 0..200 {
        file = file.record(second, 0, 100, &[1; 100]);
    }
    let blocks: Vec<&[u8]> = file.bytes.chunks(50_000).collect();
    let mut frame = zstd_frame(9 << 3, &[&blocks[..], &[b"damaged"]].concat());
    let header = frame.len() - 10;
    frame[header] |= 0b110;
    let (before, error) = read_bad(&frame);
    assert_eq!(before, 201);
    assert_eq!(error.offset().unwrap().bytes, file.bytes.len() as u64);
}

#[test]
fn zstd_windows_have_a_limit() {
    let plain = noise(3);
    // A window of 2^(10 + exponent) bytes.
    assert_eq!(read_good(&zstd_frame(15 << 3, &[&plain])).len(), 3);
    for window in [15 << 3 | 1, 16 << 3, 21 << 3] {
        let (_, error) = read_bad(&zstd_frame(window, &[&plain]));
        assert_eq!(
            error.to_string(),
            "zstd frame at offset 0 of the decompressed data needs a window of more than 32 MiB; \
             decompress it first with `zstd -d --long=31`"
        );
    }
}

// ---------------------------------------------------------------------------------------------------
// Writers

#[test]
fn pcapng_writer_to_the_letter() {
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let eth0 = writer.add_interface(LinkType::ETHERNET, "eth0").unwrap();
    let bare = writer.add_interface(LinkType::RAW, "").unwrap();
    assert_eq!((eth0, bare), (InterfaceId(0), InterfaceId(1)));
    writer.write(bare, Instant::from_nanos((7 << 32) + 9), 60, b"hello").unwrap();
    let start = Build::little().section();
    let options = start.part().option(2, b"eth0").option(9, &[9]).option(0, &[]);
    let bare = start.part().option(9, &[9]).option(0, &[]);
    let expected = start.interface(1, 0, options).interface(101, 0, bare);
    let expected = expected.enhanced(1, (7 << 32) + 9, 60, b"hello");
    assert_eq!(writer.into_inner(), expected.bytes);
}

#[test]
fn pcap_writer_to_the_letter() {
    let mut writer = PcapWriter::new(Vec::new(), LinkType::INFINIBAND).unwrap();
    writer.write(Instant::from_nanos(1_500_000_007), 60, b"hello").unwrap();
    let expected =
        Build::little().u32(0xa1b2_3c4d).u16(2).u16(4).u32(0).u32(0).u32(262_144).u32(247);
    let expected = expected.record(1, 500_000_007, 60, b"hello");
    assert_eq!(writer.into_inner(), expected.bytes);
}

#[test]
fn writers_refuse_what_others_could_not_read() {
    let long = vec![0; MAX_WRITTEN as usize + 1];
    let now = Instant::from_nanos(1);
    let mut pcapng = PcapngWriter::new(Vec::new()).unwrap();
    let error = pcapng.write(InterfaceId(0), now, 1, b"x").unwrap_err();
    assert_eq!(error.to_string(), "interface 0 was never added to this capture");
    let id = pcapng.add_interface(LinkType::ETHERNET, "").unwrap();
    assert!(matches!(
        pcapng.write(id, now, 1, &long),
        Err(WriteError::TooLong { length: 262_145 })
    ));
    pcapng.write(id, now, 1, &long[1..]).unwrap();
    let name = "n".repeat(65_536);
    let error = pcapng.add_interface(LinkType::ETHERNET, &name).unwrap_err();
    assert!(matches!(error, WriteError::NameTooLong { length: 65_536 }));
    assert_eq!(pcapng.add_interface(LinkType::ETHERNET, &name[1..]).unwrap(), InterfaceId(1));
    pcapng.write(InterfaceId(1), Instant::from_nanos(u64::MAX), 1, b"y").unwrap();
    assert_eq!(read_good(&pcapng.into_inner()).len(), 2);

    let mut pcap = PcapWriter::new(Vec::new(), LinkType::ETHERNET).unwrap();
    assert!(matches!(pcap.write(now, 1, &long), Err(WriteError::TooLong { .. })));
    let error = pcap.write(Instant::from_nanos(4_294_967_296_000_000_000), 1, b"x").unwrap_err();
    assert_eq!(
        error.to_string(),
        "time 4294967296.000000000 does not fit into a pcap; a pcapng can hold it"
    );
    pcap.write(Instant::from_nanos(4_294_967_295_999_999_999), 1, b"x").unwrap();
    assert_eq!(read_good(&pcap.into_inner()).len(), 1);
}

// ---------------------------------------------------------------------------------------------------
// Properties

/// Interfaces by link type, and packets on them.
fn captures() -> impl Strategy<Value = (Vec<u16>, Vec<Owned>)> {
    let interfaces = proptest::collection::vec(any::<u16>(), 1..5);
    interfaces.prop_flat_map(|links| {
        let data = proptest::collection::vec(any::<u8>(), 0..200);
        let packet = (0..links.len(), any::<u64>(), any::<u32>(), data);
        let choice = links.clone();
        let packet = packet.prop_map(move |(interface, time, len, data)| Owned {
            time: Some(time),
            link: choice[interface],
            len,
            data,
            section: 0,
            interface: u32::try_from(interface).ok(),
        });
        (Just(links), proptest::collection::vec(packet, 0..20))
    })
}

fn written(links: &[u16], packets: &[Owned]) -> Vec<u8> {
    let mut writer = PcapngWriter::new(Vec::new()).expect("in memory");
    for link in links {
        writer.add_interface(LinkType(*link), &"if".repeat(usize::from(link % 9))).expect("few");
    }
    for packet in packets {
        let time = Instant::from_nanos(packet.time.expect("set"));
        writer
            .write(InterfaceId(packet.interface.expect("set")), time, packet.len, &packet.data)
            .expect("valid");
    }
    writer.into_inner()
}

/// Bytes that get past the first checks: a magic number of every kind, then anything.
fn almost_captures() -> impl Strategy<Value = Vec<u8>> {
    let heads = prop_oneof![
        Just(Vec::new()),
        Just(Build::little().pcap(0xa1b2_c3d4, 1).bytes),
        Just(Build::big().section().ethernet(0x94).bytes),
        Just(Build::little().section().bytes),
        Just(vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0]),
        Just(vec![0x28, 0xb5, 0x2f, 0xfd]),
    ];
    (heads, proptest::collection::vec(any::<u8>(), 0..300))
        .prop_map(|(head, tail)| [head, tail].concat())
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in almost_captures()) {
        read_all(&bytes);
    }

    /// Small numbers everywhere, so that lengths and types are often right.
    #[test]
    fn blocks_of_small_numbers_never_panic(
        words in proptest::collection::vec(prop_oneof![0_u32..16, Just(20), Just(32), Just(36)], 0..200),
    ) {
        let mut file = Build::little().section().ethernet(9);
        for word in words {
            file = file.u32(word);
        }
        read_all(&file.bytes);
    }

    #[test]
    fn a_flipped_bit_never_panics_nor_touches_what_was_before(index: prop::sample::Index, bit in 0..8_u32) {
        let expected = motley_records();
        let good = motley();
        for compress in [|bytes: &[u8]| bytes.to_vec(), gzip, zstd] {
            let mut bad = compress(&good);
            let index = index.index(bad.len());
            bad[index] ^= 1 << bit;
            let (records, _) = read_all(&bad);
            if bad.len() == good.len() {
                let before = read_all(&good[..index]).0;
                prop_assert_eq!(&records[..before.len()], &expected[..before.len()]);
            }
        }
    }

    #[test]
    fn what_is_written_is_read((links, packets) in captures(), step in 1..5000_usize) {
        let file = written(&links, &packets);
        prop_assert_eq!(&read_good(&file), &packets);
        prop_assert_eq!(&read_slowly(&file, step), &packets);
        prop_assert_eq!(&read_good(&gzip(&file)), &packets);
    }

    #[test]
    fn what_is_written_is_read_by_pcap_file((links, packets) in captures()) {
        use pcap_file::pcapng::{Block, PcapNgReader};
        let file = written(&links, &packets);
        let mut reader = PcapNgReader::new(file.as_slice()).unwrap();
        let mut expected = packets.iter();
        while let Some(block) = reader.next_block() {
            let (block, state) = block.unwrap();
            if let Block::EnhancedPacket(their) = block {
                let our = expected.next().unwrap();
                let interface = &state.interfaces()[their.interface_id as usize];
                prop_assert_eq!(u32::from(interface.linktype), u32::from(our.link));
                prop_assert_eq!(u128::from(our.time.unwrap()), their.timestamp.as_nanos());
                prop_assert_eq!((our.interface, our.len), (Some(their.interface_id), their.original_len));
                prop_assert_eq!(our.data.as_slice(), &their.data[..]);
            }
        }
        prop_assert!(expected.next().is_none());
    }

    #[test]
    fn what_is_written_as_pcap_is_read(link: u16, packets in proptest::collection::vec(
        (0..4_294_967_296_000_000_000_u64, any::<u32>(), proptest::collection::vec(any::<u8>(), 0..200)), 0..20,
    )) {
        let mut writer = PcapWriter::new(Vec::new(), LinkType(link)).unwrap();
        for (time, len, data) in &packets {
            writer.write(Instant::from_nanos(*time), *len, data).unwrap();
        }
        let file = writer.into_inner();
        let expected: Vec<Owned> = packets
            .iter()
            .map(|(time, len, data)| Owned { link, len: *len, ..packet(*time, data) })
            .collect();
        prop_assert_eq!(&read_good(&file), &expected);
        let mut theirs = pcap_file::pcap::PcapReader::new(file.as_slice()).unwrap();
        for our in expected {
            // pcap-file refuses packets that claim to have been shorter on the wire than they are.
            let their = theirs.next_raw_packet().unwrap().unwrap();
            let nanos = u64::from(their.ts_sec) * 1_000_000_000 + u64::from(their.ts_frac);
            prop_assert_eq!((our.time, our.len), (Some(nanos), their.orig_len));
            prop_assert_eq!(our.data.as_slice(), &their.data[..]);
        }
        prop_assert!(theirs.next_raw_packet().is_none());
    }
}
