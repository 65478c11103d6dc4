//! Properties of any bytes and any packets.

use proptest::prelude::*;
use roce::capture::{InterfaceId, LinkType, PcapWriter, PcapngWriter};
use roce::time::Instant;

use super::build::*;
use super::source::*;

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
