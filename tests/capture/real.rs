//! Real captures, plain and compressed.

use roce::capture::{Compression, Error, Format, LinkType, PcapngWriter, Reader, open};

use super::build::*;
use super::source::*;

/// Name, then what `capinfos -M` and `tshark -T fields -e frame.time_epoch -e frame.len` say:
/// number of packets, data size, time and length of the first and of the last packet.
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
