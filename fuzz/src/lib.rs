//! What the fuzz targets do with their input. The targets themselves are a line each, and `tests/fuzz.rs` replays
//! every input that ever failed through the same functions, on a stable compiler.

mod bench_control;
#[path = "../../src/bin/roce/bench/control/mod.rs"]
#[allow(dead_code, reason = "the command uses the rest")]
mod bench_protocol;
mod conform;
mod conversions;
mod honest;
mod hostile;
mod links;
#[path = "../../tests/simulation/model/mod.rs"]
#[allow(dead_code, reason = "the simulation uses the rest")]
mod model;
#[path = "../../tests/simulation/names.rs"]
mod names;
mod operations;

pub use bench_control::bench_control;
pub use conform::{conform_control, scenarios};
pub use conversions::conversions;
pub use hostile::hostile;
pub use links::{raw_link, udp_link};
pub use operations::operations;

use roce::capture::{MAX_CAPTURED, Reader, Record};
use roce::decode::{Decoder, Filter, LineStyle, write_json, write_tree};
use roce::time::Instant;
use roce::wire::mad::Mad;
use roce::wire::{Frame, IcrcVerdict, LinkType, Packet, PacketRepr, ROCE_PORT};

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

/// What a target does with an input.
type Body = fn(&[u8]);

/// One name a target, for whoever replays files.
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
    ("udp_link", udp_link),
    ("raw_link", raw_link),
    ("conversions", conversions),
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

/// Everything that is printed of a frame.
fn words(record: &Record<'_>) {
    let context = Decoder::new(ROCE_PORT).decode(record);
    let mut text = String::new();
    LineStyle::default().write(&context, &mut text);
    assert!(!text.contains('\n'), "a line is a line");
    write_tree(&context, &mut text);
    text.clear();
    write_json(&context, &[], &mut text);
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

/// A capture: every record keeps to the limits, and the end comes.
pub fn capture(input: &[u8]) {
    let Ok(mut reader) = Reader::new(input) else { return };
    loop {
        match reader.next() {
            // What the records say is the business of the target `frame`.
            Ok(Some(record)) => assert!(record.data.len() <= MAX_CAPTURED as usize),
            Ok(None) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                break;
            }
        }
    }
}

/// A filter, and where it points when it is wrong.
pub fn filter(input: &[u8]) {
    let Ok(source) = core::str::from_utf8(input) else { return };
    let record = Record::frame(LinkType::ETHERNET, &[0; 60]);
    match Filter::parse(source) {
        Ok(filter) => drop(filter.matches(&Decoder::new(ROCE_PORT).decode(&record))),
        Err(error) => {
            assert!(error.at.start <= source.chars().count());
            assert!(error.at.end <= source.chars().count().max(1));
            let _ = error.point(source);
        }
    }
}
