//! pcap, by hand.

use roce::capture::{Error, MAX_CAPTURED};

use super::build::*;
use super::source::*;

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
