//! Packets of captures written into another.

use pcap_file::pcapng::{Block, PcapNgReader};
use roce::capture::{Copier, Format, Lost, Merge, Reader, WriteError};

use super::build::*;
use super::source::*;

/// All packets of `files`, merged and written into one.
fn copied(files: &[Vec<u8>], format: Format) -> Result<(Vec<u8>, Lost), WriteError> {
    let mut merge = Merge::new(files.iter().map(|file| Reader::new(&file[..]).unwrap()));
    let names = (0..files.len()).map(|n| format!("file {n}")).collect();
    let mut copier = Copier::new(Vec::new(), format, names);
    while let Some(record) = merge.next().unwrap() {
        copier.observe(&record)?;
        copier.write(&record)?;
    }
    copier.finish(&merge)?;
    let lost = copier.lost();
    Ok((copier.into_inner().unwrap(), lost))
}

/// A pcapng in either byte order: an interface with every kind of option that counts time from 2020
/// on, and two packets, the first with comments, flags and a number of dropped packets.
fn talkative(big: bool, resolution: u8) -> Vec<u8> {
    let start = if big { Build::big() } else { Build::little() };
    let start = start.section();
    let number = |value: u64| if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let flags = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let options = start
        .part()
        .option(2, b"mlx5_0")
        .option(3, b"left side")
        .option(8, &number(100_000_000_000))
        .option(9, &[resolution])
        .option(14, &number(1_577_836_800))
        .option(0, &[]);
    let file = start.interface(1, 1500, options);
    let packet = file.part().u32(0).time(123_456_789_012_345).u32(3).u32(60).padded(b"one");
    let packet = packet
        .option(1, "première".as_bytes())
        .option(1, b"second comment")
        .option(2, &flags(0x0000_0001))
        .option(4, &number(7))
        .option(0, &[]);
    file.block(6, packet).enhanced(0, 123_456_789_012_999, 4, b"two!").bytes
}

/// The blocks of a little-endian pcapng, each with its type.
fn blocks(file: &[u8]) -> impl Iterator<Item = (u32, &[u8])> {
    let mut rest = file;
    core::iter::from_fn(move || {
        let word = |at: usize| Some(u32::from_le_bytes(rest.get(at..at + 4)?.try_into().ok()?));
        let (kind, length) = (word(0)?, word(4)? as usize);
        let (block, behind) = rest.split_at_checked(length)?;
        rest = behind;
        Some((kind, block))
    })
}

#[test]
fn pcapng_keeps_interfaces_times_and_comments() {
    for big in [false, true] {
        let picoseconds = talkative(big, 12);
        let (copy, _) = copied(std::slice::from_ref(&picoseconds), Format::Pcapng).unwrap();
        assert_eq!(read_good(&copy), read_good(&picoseconds));
        let file = talkative(big, 9);
        let (copy, lost) = copied(std::slice::from_ref(&file), Format::Pcapng).unwrap();
        assert!(lost.is_nothing());
        assert_eq!(read_good(&copy), read_good(&file));
        if !big {
            let header =
                usize::try_from(u32::from_le_bytes(copy[4..8].try_into().unwrap())).unwrap();
            let copied = &copy[header..][..file.len() - 28];
            assert_eq!(*copied, file[28..], "to the byte, behind the section header");
        }

        let mut theirs = PcapNgReader::new(copy.as_slice()).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = theirs.next_block() {
            if let (Block::EnhancedPacket(packet), _) = block.unwrap() {
                packets.push(format!("{:?}", packet.options));
            }
        }
        let [first, second] = &packets[..] else { panic!("{packets:?}") };
        for part in ["première", "second comment", "DropCount(7)"] {
            assert!(first.contains(part), "{part}: {first}");
        }
        assert_eq!(second, "[]");
        let interface = format!("{:?}", theirs.interfaces()[0]);
        for part in ["1500", "mlx5_0", "left side", "IfSpeed(100000000000)", "1577836800"] {
            assert!(interface.contains(part), "{part}: {interface}");
        }
    }
}

#[test]
fn interfaces_of_all_files_and_sections_are_kept() {
    let pcap = Build::little().pcap(0xa1b2_3c4d, 101).record(1_577_960_257, 5, 2, b"ip").bytes;
    let late = Build::big().section().ethernet(6).bytes;
    let files = [talkative(true, 12), pcap, motley(), late];
    let (copy, lost) = copied(&files, Format::Pcapng).unwrap();
    assert_eq!(lost.times, 1, "the simple packet of the third file");
    let descriptions: Vec<_> = blocks(&copy).filter(|(kind, _)| *kind == 1).collect();
    assert_eq!(
        descriptions.len(),
        1 + 1 + 5 + 1,
        "of a pcap, of two sections, one without packets"
    );
    let named = |(_, block): &&(u32, &[u8])| block.windows(6).any(|name| name == b"file 1");
    assert_eq!(descriptions.iter().filter(named).count(), 1, "a pcap's has the name of the file");

    let mut merge = Merge::new(files.iter().map(|file| Reader::new(&file[..]).unwrap()));
    let mut expected = Vec::new();
    while let Some(record) = merge.next().unwrap() {
        expected.push((
            record.time.unwrap_or_default(),
            record.link,
            record.len,
            record.data.to_vec(),
        ));
    }
    let mut reader = Reader::new(&copy[..]).unwrap();
    let mut found = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        found.push((record.time.unwrap(), record.link, record.len, record.data.to_vec()));
    }
    assert_eq!(found, expected);
}

#[test]
fn pcap_keeps_nanoseconds_and_counts_what_it_loses() {
    let (copy, lost) = copied(&[talkative(false, 12)], Format::Pcap).unwrap();
    assert_eq!((lost.comments, lost.times), (2, 0));
    let mut theirs = pcap_file::pcap::PcapReader::new(copy.as_slice()).unwrap();
    let first = theirs.next_packet().unwrap().unwrap();
    assert_eq!(first.timestamp().as_nanos(), 1_577_836_800_000_000_000 + 123_456_789_012);
    assert_eq!((first.orig_len(), first.data()), (60, &b"one"[..]));
    let whole = std::fs::read(testdata("rxe_cm.pcap")).unwrap();
    let (copy, lost) = copied(std::slice::from_ref(&whole), Format::Pcap).unwrap();
    assert!(lost.is_nothing() && read_good(&copy) == read_good(&whole));
}

#[test]
fn pcap_has_one_link_type_and_an_empty_one_that_of_its_input() {
    let ip = Build::little().pcap(0xa1b2_3c4d, 101).record(1, 5, 2, b"ip").bytes;
    let error = copied(&[ip.clone(), talkative(true, 12)], Format::Pcap).unwrap_err();
    assert!(matches!(error, WriteError::LinkTypes { .. }) && error.to_string().contains("pcapng"));
    let (empty, _) = copied(&[ip[..24].to_vec()], Format::Pcap).unwrap();
    assert_eq!((empty.len(), empty[20]), (24, 101));
    let (empty, _) = copied(&[], Format::Pcapng).unwrap();
    assert!(read_good(&empty).is_empty());
}

#[test]
fn options_of_interfaces_are_bounded() {
    let options = |n: u8| Build::little().option(3, &[n; 60_000]).option(9, &[9]).option(0, &[]);
    let file = (0..30).fold(Build::little().section(), |file, n| file.interface(1, 0, options(n)));
    let file = file.enhanced(29, 5, 1, b"x").bytes;
    let (copy, lost) = copied(std::slice::from_ref(&file), Format::Pcapng).unwrap();
    assert_eq!(lost.interface_options, 30 - (1 << 20) / 60_016);
    assert_eq!(read_good(&copy), read_good(&file), "but the clock of each is kept");
}
