//! Files that end too early.

use roce::capture::{Error, Part};

use super::build::*;
use super::source::*;

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
    // Where each block ends, walked independently: the length is the second word, in the byte order
    // that makes it less than the file.
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
