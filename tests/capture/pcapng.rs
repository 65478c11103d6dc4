//! pcapng, by hand.

use std::io::{self, Read};

use roce::capture::{Error, Format, MAX_BLOCK, MAX_CAPTURED, MAX_INTERFACES, Reader};

use super::build::*;
use super::source::*;

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
