//! Damage in the middle: a lenient reader passes over it, says what it skipped, and loses nothing
//! else.

use std::io::Read;

use roce::capture::{Error, PcapngWriter, Reader};
use roce::time::Instant;
use roce::wire::LinkType;

use super::build::*;
use super::source::*;

/// Result of a lenient reader.
struct Outcome {
    records: Vec<Owned>,
    /// Offset and length of each stretch that was skipped.
    skips: Vec<(u64, u64)>,
    /// Error that ended the reading, if it is not the end.
    end: Option<Error>,
}

fn lenient_source(source: impl Read) -> Outcome {
    let mut reader = Reader::new(source).unwrap().lenient();
    let mut read = Outcome { records: Vec::new(), skips: Vec::new(), end: None };
    let mut position = 0;
    loop {
        match reader.next() {
            Ok(Some(record)) => {
                assert!(record.offset.bytes >= position, "nothing is read twice");
                position = record.offset.bytes + record.data.len() as u64;
                read.records.push(record.into());
            }
            Ok(None) => break,
            Err(Error::Skipped { offset, bytes, .. }) => {
                assert!(offset.bytes >= position && bytes > 0);
                position = offset.bytes + bytes;
                read.skips.push((offset.bytes, bytes));
            }
            Err(error) => read.end = Some(error),
        }
    }
    assert!(matches!(reader.next(), Ok(None)));
    read
}

fn lenient(file: &[u8]) -> Outcome {
    lenient_source(file)
}

/// The offset and the size of every record of a little-endian pcap.
fn layout(file: &[u8]) -> Vec<(usize, usize)> {
    let (mut at, mut all) = (24, Vec::new());
    while at < file.len() {
        let captured = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
        all.push((at, 16 + captured));
        at += 16 + captured;
    }
    all
}

/// Asserts that all of `expected` but those in `damaged` come out of `file`, and one stretch is
/// skipped.
fn only_lost(file: &[u8], expected: &[Owned], damaged: &[usize], what: &str) {
    let read = lenient(file);
    let left = expected.iter().enumerate().filter(|(n, _)| !damaged.contains(n));
    let left: Vec<_> = left.map(|(_, record)| record.clone()).collect();
    assert_eq!(read.records.len(), left.len(), "{what}: skipped {:?}", read.skips);
    assert!(read.records == left, "{what}: other records than before");
    assert_eq!(read.skips.len(), 1, "{what}: skipped {:?}", read.skips);
    assert!(read.end.is_none(), "{what}: {:?}", read.end);
}

fn captured(name: &str) -> Vec<u8> {
    std::fs::read(testdata(name)).unwrap()
}

#[test]
fn damaged_header_of_a_pcap_costs_one_record() {
    for (name, places) in [("rxe_cm.pcap", 20), ("rxe_all_ops.pcap", 3), ("rxe_lossy.pcap", 3)] {
        let whole = captured(name);
        let (records, all) = (layout(&whole), read_good(&whole));
        for n in (0..records.len()).step_by(records.len() / places) {
            let (at, size) = records[n];
            let damage = |range: core::ops::Range<usize>, bytes: &[u8]| {
                let mut file = whole.clone();
                file[at + range.start..at + range.end].copy_from_slice(bytes);
                file
            };
            let what = |damage: &str| format!("{name}, record {n} at {at}, {damage}");
            only_lost(&damage(0..16, &[0xff; 16]), &all, &[n], &what("ones"));
            only_lost(&damage(0..16, &[0xa5; 16]), &all, &[n], &what("garbage"));
            only_lost(&damage(8..12, &[0xff; 4]), &all, &[n], &what("captured length"));
            if n + 2 < records.len() {
                only_lost(&damage(0..16, &[0; 16]), &all, &[n], &what("zeros"));
                let longer = u32::try_from(size - 16 + 7).unwrap().to_le_bytes();
                only_lost(&damage(8..12, &longer), &all, &[n], &what("a longer record"));
                let much_longer = 100_000_u32.to_le_bytes();
                only_lost(&damage(8..12, &much_longer), &all, &[n], &what("a record too long"));
            }
        }
    }
}

#[test]
fn damaged_time_costs_nothing() {
    let whole = captured("rxe_cm.pcap");
    let (records, all) = (layout(&whole), read_good(&whole));
    for n in [0, 1, 90, records.len() - 1] {
        for second in [0, 7, u32::MAX] {
            let mut file = whole.clone();
            file[records[n].0..records[n].0 + 4].copy_from_slice(&second.to_le_bytes());
            let read = lenient(&file);
            assert_eq!((read.records.len(), &read.skips[..]), (all.len(), &[][..]), "record {n}");
            assert_eq!(read.records[n].data, all[n].data);
        }
    }
}

#[test]
fn pages_of_zeros_or_lost_bytes_cost_what_they_cover() {
    let whole = captured("rxe_all_ops.pcap");
    let (records, all) = (layout(&whole), read_good(&whole));
    let page = whole.len() / 2 / 4096 * 4096;
    let touched = |range: core::ops::Range<usize>| {
        let hits = |&(at, size): &(usize, usize)| at < range.end && at + size > range.start;
        records.iter().enumerate().filter(|(_, r)| hits(r)).map(|(n, _)| n).collect::<Vec<_>>()
    };
    let hit = touched(page..page + 4096);
    let expected: Vec<_> = all.iter().enumerate().filter(|(n, _)| !hit.contains(n)).collect();
    let check = |file: &[u8], lost: usize, what: &str| {
        let read = lenient(file);
        assert!(read.end.is_none() && read.skips.len() <= 2, "{what}: {:?}", read.skips);
        // The first may be whole in its header, so it comes out with a body that is not its own.
        let whole = read.records.iter().filter(|&r| expected.iter().any(|(_, e)| *e == r)).count();
        assert!(whole + lost >= expected.len(), "{what}: all that was not touched comes out");
        assert!(read.records.len() <= expected.len() + 1, "{what}: and nothing is invented");
    };
    let mut zeros = whole.clone();
    zeros[page..page + 4096].fill(0);
    check(&zeros, 0, "zeros");
    // The record that is cut by it reaches as far into one that follows.
    check(&[&whole[..page], &whole[page + 4096..]].concat(), 1, "lost");
    let garbage: Vec<u8> =
        (0..4096_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut random = whole.clone();
    random[page..page + 4096].copy_from_slice(&garbage);
    check(&random, 0, "random");
}

#[test]
fn inserted_bytes_are_skipped_to_the_byte() {
    let whole = captured("rxe_cm.pcap");
    let (records, all) = (layout(&whole), read_good(&whole));
    let at = records[50].0;
    let file = [&whole[..at], b"this was never a record, but a line of a log file", &whole[at..]];
    let read = lenient(&file.concat());
    assert!(read.records == all);
    assert_eq!(read.skips, [(at as u64, 49)]);
}

#[test]
fn zeros_up_to_the_end_are_skipped_and_a_cut_capture_is_still_cut() {
    let whole = captured("rxe_cm.pcap");
    let all = read_good(&whole);
    let read = lenient(&[&whole[..], &[0; 10_000]].concat());
    assert!(read.records == all && read.end.is_none());
    assert_eq!(read.skips, [(whole.len() as u64, 10_000)]);
    let read = lenient(&whole[..whole.len() - 5]);
    assert!(read.skips.is_empty() && matches!(read.end, Some(Error::Cut { .. })));
    assert_eq!(read.records.len(), all.len() - 1);
}

#[test]
fn message_says_what_was_skipped() {
    let file = Build::little().pcap(0xa1b2_c3d4, 1).record(5, 0, 4, b"good");
    let at = file.bytes.len();
    let damaged = file.u32(5).u32(0).u32(u32::MAX).u32(4).raw(b"gone");
    let file = damaged.record(6, 0, 5, b"after").record(6, 1, 4, b"then").bytes;
    let mut reader = Reader::new(&file[..]).unwrap().lenient();
    assert_eq!(reader.next().unwrap().unwrap().data, b"good");
    let error = reader.next().unwrap_err();
    assert!(error.is_skipped());
    assert_eq!(
        error.to_string(),
        format!(
            "record at offset {at} claims 4294967295 captured bytes, the limit is 1048576: \
             skipped 20 bytes, the next record is at offset {}",
            at + 20
        )
    );
    assert_eq!(reader.next().unwrap().unwrap().data, b"after");
    let strict = read_all(&file);
    assert!(strict.0.len() == 1 && matches!(strict.1, Some(Error::RecordTooLong { .. })));
}

#[test]
fn captures_with_habits_of_their_own_are_read_whole() {
    // Lengths and fractions that no specification allows, in every record; times that jump; empty
    // packets.
    let start = || Build::little().pcap(0xa1b2_c3d4, 1);
    let short = (0..9).fold(start(), |file, n| file.record(n, 0, 0, b"longer than it was"));
    let fraction = (0..9).fold(start(), |file, n| file.record(n, 2_000_000 + n, 4, b"frac"));
    let jumps = (0..9).fold(start(), |file, n| file.record(n * 0x1234_5678, 0, 4, b"jump"));
    let jump = (0..9).fold(start(), |file, n| file.record(u32::from(n == 4) << 30, 0, 3, b"one"));
    let empty = (0..9).fold(start(), |file, n| {
        file.record(n, 0, u32::from(n % 2 == 1) * 3, if n % 2 == 1 { b"not" } else { b"" })
    });
    for file in [short, fraction, jumps, jump, empty] {
        let read = lenient(&file.bytes);
        assert!(
            read.records == read_good(&file.bytes) && read.skips.is_empty(),
            "{:?}",
            read.skips
        );
    }
}

#[test]
fn every_good_capture_is_the_same_to_a_lenient_reader() {
    for name in ["rxe_cm.pcap", "rxe_all_ops.pcap", "rxe_lossy.pcap", "vectors.pcap"] {
        let whole = captured(name);
        let read = lenient(&whole);
        assert!(read.records == read_good(&whole) && read.skips.is_empty(), "{name}");
    }
    let read = lenient(&motley());
    assert!(read.records == motley_records() && read.skips.is_empty() && read.end.is_none());
    assert_eq!(lenient(&noise(5000)).records.len(), 5000);
}

/// A pcapng of two interfaces with `count` packets, and the offset and size of every packet's
/// block.
fn pcapng(count: u8) -> (Vec<u8>, Vec<(usize, usize)>) {
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let ids = ["eth0", "eth1"].map(|name| writer.add_interface(LinkType::ETHERNET, name).unwrap());
    let mut places = Vec::new();
    for n in 0..count {
        let at = writer.get_mut().len();
        let time = Instant::from_nanos(1_794_701_211_000_000_000 + u64::from(n));
        let data: Vec<u8> = (0..40 + n).map(|i| i.wrapping_mul(37) ^ n).collect();
        writer.write(ids[usize::from(n % 2)], time, 100, &data).unwrap();
        places.push((at, writer.get_mut().len() - at));
    }
    (writer.into_inner(), places)
}

#[test]
fn damaged_block_of_a_pcapng_costs_one_packet() {
    let (whole, places) = pcapng(30);
    let all = read_good(&whole);
    for n in [0, 1, 7, 28] {
        let (at, size) = places[n];
        let damage = |range: core::ops::Range<usize>, bytes: &[u8]| {
            let mut file = whole.clone();
            file[at + range.start..at + range.end].copy_from_slice(bytes);
            file
        };
        let long = u32::try_from(size + 8).unwrap().to_le_bytes();
        let cases = [
            (damage(0..size, &vec![0xff; size]), "ones"),
            (damage(0..size, &vec![0; size]), "zeros"),
            (damage(4..8, &[0xff; 4]), "length of ones"),
            (damage(4..8, &long), "length too long"),
            (damage(4..8, &[8, 0, 0, 0]), "length too short"),
            (damage(size - 4..size, &long), "second length"),
            (damage(8..12, &[9, 0, 0, 0]), "unknown interface"),
            (damage(20..24, &[0, 0, 1, 0]), "captured length"),
            ([&whole[..at], &whole[at + 5..]].concat(), "bytes lost"),
        ];
        for (file, what) in cases {
            only_lost(&file, &all, &[n], &format!("packet {n} at {at}, {what}"));
        }
    }
}

#[test]
fn pcapng_within_a_damaged_packet_is_not_read() {
    let (inner, _) = pcapng(5);
    let mut writer = PcapngWriter::new(Vec::new()).unwrap();
    let eth0 = writer.add_interface(LinkType::ETHERNET, "eth0").unwrap();
    let mut write = |data: &[u8]| writer.write(eth0, Instant::ZERO, 5000, data).unwrap();
    [b"before".as_slice(), &inner, b"after"].into_iter().for_each(&mut write);
    let mut file = writer.into_inner();
    let at = file.windows(inner.len()).position(|window| window == inner).unwrap();
    file[at - 28 + 8] = 7;
    let all: Vec<_> = lenient(&file).records.into_iter().map(|record| record.data).collect();
    assert_eq!(all, [b"before".to_vec(), b"after".to_vec()]);
}

#[test]
fn damaged_interface_description_keeps_the_numbers_of_the_others() {
    let description = |file: Build, resolution: &[u8]| {
        let options = file.part().option(9, resolution).option(0, &[]);
        file.interface(1, 0, options)
    };
    let file = description(Build::little().section(), &[6]);
    // A resolution of two bytes: the packets of this interface have no times that could be known.
    let file = description(description(file, &[9, 9]), &[9]);
    let file = file.enhanced(0, 1_000_000, 1, b"a").enhanced(1, 2_000_000, 1, b"b");
    let file = file.enhanced(1, 3_000_000, 1, b"c").enhanced(2, 4_000_000_000, 1, b"d");
    let read = lenient(&file.bytes);
    let all: Vec<_> = read.records.iter().map(|r| (r.time.unwrap(), &r.data[..])).collect();
    assert_eq!(all, [(1_000_000_000, &b"a"[..]), (4_000_000_000, b"d")]);
    assert_eq!(
        read.skips.len(),
        2,
        "the description, and the two packets together: {:?}",
        read.skips
    );
}

#[test]
fn new_section_of_either_byte_order_is_found() {
    let (first, places) = pcapng(3);
    let second = Build::big().section().ethernet(9).enhanced(0, 5, 2, b"ok").bytes;
    let mut file = [&first[..], &second].concat();
    file[places[2].0..places[2].0 + places[2].1].fill(0x55);
    let read = lenient(&file);
    assert_eq!(read.records.len(), 3);
    assert_eq!((read.records[2].section, &read.records[2].data[..]), (1, &b"ok"[..]));
    assert_eq!(read.skips, [(places[2].0 as u64, places[2].1 as u64)]);
}

#[test]
fn search_goes_beyond_one_buffer() {
    let whole = captured("rxe_cm.pcap");
    let at = layout(&whole)[50].0;
    let length = 2_600_000;
    let file = [&whole[..at], &vec![0x40; length], &whole[at..]].concat();
    // However it comes.
    let read = lenient_source(Dribble { bytes: &file, step: 100_003, interrupted: false });
    assert!(read.records == read_good(&whole), "{:?}", read.skips);
    assert_eq!(read.skips, [(at as u64, length as u64)]);
}

proptest::proptest! {
    /// Whatever is done to the bytes, reading ends, and what comes out lies in the order of the
    /// file.
    #[test]
    fn any_damage_ends(
        ng in proptest::bool::ANY,
        damage in proptest::collection::vec((proptest::num::u16::ANY, proptest::num::u8::ANY), 0..40)
    ) {
        let mut file = if ng { motley() } else { noise(20) };
        for (at, byte) in damage {
            let at = 24 + usize::from(at) % (file.len() - 24);
            file[at] = byte;
        }
        if let Ok(reader) = Reader::new(&file[..]) {
            drop(reader);
            lenient(&file);
        }
    }
}
