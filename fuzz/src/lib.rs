//! Functions of the fuzz targets. The targets themselves are a line each, and `tests/fuzz.rs`
//! replays every input that ever failed through the same functions, on a stable compiler.

/// The name that the C library has for it.
extern crate roce as library;

mod bench_control;
#[path = "../../src/bin/roce/bench/control/mod.rs"]
#[allow(dead_code, reason = "the command uses the rest")]
mod bench_protocol;
mod cm;
mod conform;
mod congestion;
mod conversions;
mod flows;
mod honest;
mod hostile;
mod libroce;
mod links;
#[path = "../../tests/simulation/model/mod.rs"]
#[allow(dead_code, reason = "the simulation uses the rest")]
mod model;
#[path = "../../tests/simulation/names.rs"]
mod names;
mod opening;
mod operations;
mod replay;
mod sack;

pub use bench_control::bench_control;
pub use cm::cm;
pub use conform::{conform_control, scenarios};
pub use congestion::congestion;
pub use conversions::conversions;
pub use flows::flows;
pub use hostile::hostile;
pub use libroce::libroce;
pub use links::{raw_link, ring, udp_link};
pub use opening::opening;
pub use operations::operations;
pub use replay::replay;
pub use roce::group::fuzzing::{group_hello, group_link};
pub use roce::net::fuzzing::{net_hello, net_ring};
pub use roce::nic::status::fuzzing::status_text;
pub use sack::sack;

use roce::capture::{Copier, Error, Format, MAX_CAPTURED, Merge, Reader, Record};
use roce::decode::{Context, Decoder, Filter, LineStyle, write_json, write_tree};
use roce::time::Instant;
use roce::wire::mad::Mad;
use roce::wire::{Frame, IcrcVerdict, LinkType, Packet, PacketRepr, ROCE_PORT, TRAIN_PACKETS_MAX};

/// The link types that frames are taken apart for, by the first byte of the input.
const LINKS: [LinkType; 9] = [
    LinkType::ETHERNET,
    LinkType::LINUX_SLL,
    LinkType::LINUX_SLL2,
    LinkType::RAW,
    LinkType::NULL,
    LinkType::ERF,
    LinkType::INFINIBAND,
    LinkType::IPV6,
    LinkType(147),
];

/// Function of a target.
type Body = fn(&[u8]);

/// One name a target, for tests that replay files.
pub const TARGETS: &[(&str, Body)] = &[
    ("frame", frame),
    ("packet", packet),
    ("mad", mad),
    ("capture", capture),
    ("filter", filter),
    ("hostile", hostile),
    ("operations", operations),
    ("scenarios", scenarios),
    ("conform_control", conform_control),
    ("bench_control", bench_control),
    ("opening", opening),
    ("ring", ring),
    ("udp_link", udp_link),
    ("raw_link", raw_link),
    ("conversions", conversions),
    ("flows", flows),
    ("cm", cm),
    ("replay", replay),
    ("net_hello", net_hello),
    ("net_ring", net_ring),
    ("group_hello", group_hello),
    ("group_link", group_link),
    ("libroce", libroce),
    ("congestion", congestion),
    ("sack", sack),
    ("status_text", status_text),
];

/// A frame of some link type: everything that is said of it.
pub fn frame(input: &[u8]) {
    let Some((&first, bytes)) = input.split_first() else { return };
    let link = LINKS[usize::from(first) % LINKS.len()];
    let frame = Frame::parse(link, bytes, ROCE_PORT);
    // An ERF record may say that it is shorter than it is.
    let bytes = frame.bytes();
    let mut end = 0;
    for (layer, range) in frame.layers().iter() {
        assert!(range.start >= end, "{layer} begins where the one before it ended, or later");
        assert!(range.end <= bytes.len(), "{layer} lies within the frame");
        end = range.end;
    }
    let _ = frame.vcrc();
    if frame.icrc() == Some(IcrcVerdict::Absent) {
        assert!(frame.is_cut(), "a whole frame has a verdict");
    }
    let record = Record {
        time: Some(Instant::from_nanos(1)),
        len: u32::try_from(bytes.len()).expect("inputs are short"),
        ..Record::frame(link, input.get(1..).unwrap_or_default())
    };
    words(&record);
}

/// Formats all packets of a frame, and checks the invariants of trains.
fn words(record: &Record<'_>) {
    let (mut packets, mut of) = (0_usize, 1);
    Decoder::new(ROCE_PORT).decode_with(record, |packet| {
        packets += 1;
        of = packet.train.map_or(1, |train| usize::from(train.captured));
        assert!(packet.frame.bytes().len() <= record.data.len(), "a packet is a part of a frame");
        words_of(packet);
    });
    assert_eq!(packets, of, "every packet of a train is told");
    assert!(packets <= TRAIN_PACKETS_MAX);
}

/// Formats a packet in every form.
fn words_of(context: &Context<'_>) {
    let mut text = String::new();
    LineStyle::default().write(context, &mut text);
    assert!(!text.contains('\n'), "a line is a line");
    write_tree(context, &mut text);
    text.clear();
    write_json(context, &[], &mut text);
    assert!(text.starts_with('{') && text.ends_with('}') && !text.contains('\n'));
}

/// A packet from the BTH up: what it says, emitted again, says the same.
pub fn packet(input: &[u8]) {
    let Ok(packet) = Packet::parse(input) else { return };
    assert!(
        packet.header_len() + packet.payload_len() + usize::from(packet.pad_len()) == input.len()
    );
    let _ = packet.mad();
    let Some(repr) = PacketRepr::of(&packet) else { return };
    let mut out = Vec::new();
    repr.emit(&mut out);
    assert_eq!(out.len(), input.len());
    assert_eq!(out.len(), repr.wire_len());
    let again = Packet::parse(&out).expect("what is emitted can be parsed");
    assert_eq!(PacketRepr::of(&again), Some(repr));
}

/// A management datagram.
pub fn mad(input: &[u8]) {
    let Ok(mad) = Mad::parse(input) else { return };
    let _ = mad.to_string();
    assert_eq!(mad.header.repr().emit().repr(), mad.header.repr());
    if let Ok(Some(message)) = mad.cm() {
        assert!(!format!("{message:?}").is_empty());
    }
}

/// A capture: every record keeps to the limits, and the end comes; so it does for a lenient reader,
/// which reads on behind damage and never reads a byte twice; and what is copied can be read.
pub fn capture(input: &[u8]) {
    let Ok(mut reader) = Reader::new(input) else { return };
    let mut records = 0_u64;
    let clean = loop {
        match reader.next() {
            // What the records say is the business of the target `frame`.
            Ok(Some(record)) => assert!(record.data.len() <= MAX_CAPTURED as usize),
            Ok(None) => break true,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break false;
            }
        }
        records += 1;
    };
    let lenient = || Reader::new(input).expect("it could be read before").lenient();
    let (mut reader, mut position, mut found) = (lenient(), 0, 0_u64);
    loop {
        match reader.next() {
            Ok(Some(record)) => {
                assert!(record.offset.bytes >= position, "no byte is read twice");
                position = record.offset.bytes + record.data.len() as u64;
                found += 1;
            }
            Ok(None) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                if let Error::Skipped { offset, bytes, .. } = error {
                    assert!(offset.bytes >= position && bytes > 0, "what is skipped lies between");
                    position = offset.bytes + bytes;
                }
            }
        }
    }
    assert!(!clean || found <= records, "a lenient reader finds no more in a clean capture");
    for format in [Format::Pcap, Format::Pcapng] {
        copy([lenient(), lenient()], format);
    }
}

/// All that can be read of two captures, merged and written, is read again: as many records.
fn copy(readers: [Reader<&[u8]>; 2], format: Format) {
    let mut merge = Merge::new(readers);
    let mut copier = Copier::new(Vec::new(), format, Vec::new());
    let mut written = 0;
    loop {
        match merge.next() {
            Ok(Some(record)) => {
                if copier.observe(&record).is_err() {
                    return;
                }
                written += u64::from(copier.write(&record).is_ok());
            }
            Ok(None) => break,
            Err(_) => {}
        }
    }
    if copier.finish(&merge).is_err() {
        return;
    }
    let file = copier.into_inner().expect("memory does not fail");
    let mut reader = Reader::new(&file[..]).expect("what is written is a capture");
    let mut read = 0;
    while reader.next().expect("what is written can be read").is_some() {
        read += 1;
    }
    assert_eq!(read, written);
}

/// A filter, and where it points when it is wrong.
pub fn filter(input: &[u8]) {
    let Ok(source) = core::str::from_utf8(input) else { return };
    match Filter::parse(source) {
        Ok(filter) => {
            let mut decoder = Decoder::new(ROCE_PORT);
            for frame in [&[0; 60][..], &SEND] {
                let mut packet = decoder.decode(&Record::frame(LinkType::ETHERNET, frame));
                packet.annotations.file = Some("a.pcap");
                packet.annotations.flow = Some(1);
                let first = filter.matches(&packet);
                assert_eq!(first, filter.matches(&packet), "a packet passes or does not");
            }
        }
        Err(error) => {
            assert!(error.at.start <= source.chars().count());
            assert!(error.at.end <= source.chars().count().max(1));
            let _ = error.point(source);
        }
    }
}

/// A frame with a SEND of four bytes, without its ICRC.
const SEND: [u8; 58] = {
    let mut frame = [0; 58];
    // Ethernet, IPv4, UDP to port 4791, BTH.
    (frame[12], frame[14], frame[17], frame[23]) = (8, 0x45, 44, 17);
    (frame[36], frame[37], frame[39]) = (0x12, 0xb7, 24);
    (frame[42], frame[44], frame[45], frame[49]) = (4, 0xff, 0xff, 0x11);
    frame
};
