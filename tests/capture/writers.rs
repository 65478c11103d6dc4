//! Output of writers, and packets that they refuse.

use roce::capture::{
    InterfaceId, LinkType, MAX_WRITTEN, PcapWriter, PcapngWriter, Reader, WriteError,
};
use roce::time::Instant;

use super::build::*;
use super::source::*;

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

/// Wherever a capture that is to be closed is cut, behind its first interface, a reader knows.
#[test]
fn capture_without_its_closing_block_was_cut() {
    let mut writer = PcapngWriter::closing(Vec::new()).unwrap();
    let mut ends = Vec::new();
    let first = writer.add_interface(LinkType::ETHERNET, "eth0").unwrap();
    let second = writer.add_interface(LinkType::RAW, "").unwrap();
    ends.push(writer.get_mut().len());
    for number in 0..3 {
        let id = if number == 1 { second } else { first };
        writer.write(id, Instant::from_nanos(number), 60, b"hello").unwrap();
        ends.push(writer.get_mut().len());
    }
    writer.close(7).unwrap();
    let bytes = writer.into_inner();
    let read = |bytes: &[u8]| {
        let mut reader = Reader::new(bytes).unwrap();
        assert!(!reader.is_unclosed(), "not before all is read");
        while reader.next().unwrap().is_some() {}
        reader.is_unclosed()
    };
    for end in ends {
        assert!(read(&bytes[..end]), "cut at {end}");
    }
    assert!(!read(&bytes));
    // Of two sections the first was cut.
    let cut = [&bytes[..bytes.len() - 100], &bytes].concat();
    let mut reader = Reader::new(&cut[..]).unwrap().lenient();
    while !matches!(reader.next(), Ok(None)) {}
    assert!(reader.is_unclosed());
    // A writer that promises nothing is never cut.
    let mut plain = PcapngWriter::new(Vec::new()).unwrap();
    let id = plain.add_interface(LinkType::RAW, "").unwrap();
    plain.write(id, Instant::from_nanos(1), 5, b"hello").unwrap();
    assert!(!read(&plain.into_inner()));
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
