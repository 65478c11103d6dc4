//! Captures many times over, on standard output: `replay COPIES CAPTURE…`.
//!
//! Each copy has hosts, queue pairs, PSNs, keys and a time of its own, and its ICRCs are made anew
//! (one that was wrong is wrong in the copy), so a replay of all copies sees as many connections as
//! there are, and none that begins twice. Messages of the connection manager are left out: they
//! name such numbers in their data. `tools/bench/replay` replays it.

use std::io::{self, BufWriter, Write};
use std::ops::Range;

use roce::capture::{LinkType, PcapWriter, Reader};
use roce::time::Instant;
use roce::wire::{Frame, IcrcVerdict, Layer, Qpn, ROCE_PORT, checksum};

const USAGE: &str = "usage: bench-replay COPIES CAPTURE…";

/// Pause between two copies, in nanoseconds.
const PAUSE: u64 = 200_000_000;

/// Copies that have numbers of their own: 2^24 queue pairs, 1024 for each.
const COPIES_MAX: u32 = 1 << 14;

/// A frame of a capture: its time since the first one, its length on the wire, its bytes.
struct Captured {
    nanos: u64,
    len: u32,
    bytes: Vec<u8>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let copies: u32 = args.next().ok_or(USAGE)?.parse()?;
    let captures: Vec<Vec<Captured>> = args.map(|name| read(&name)).collect::<Result<_, _>>()?;
    let count = u32::try_from(captures.len())?;
    if count == 0 || copies.saturating_mul(count) >= COPIES_MAX {
        return Err(format!("{USAGE}; fewer than {COPIES_MAX} copies of all captures").into());
    }
    let out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    let mut writer = PcapWriter::new(out, LinkType::ETHERNET)?;
    let (mut start, mut bytes) = (1_700_000_000_000_000_000, Vec::new());
    for copy in 0..copies {
        for (number, capture) in (copy * count..).zip(&captures) {
            for frame in capture {
                bytes.clone_from(&frame.bytes);
                if renumber(&mut bytes, number).is_some() {
                    writer.write(Instant::from_nanos(start + frame.nanos), frame.len, &bytes)?;
                }
            }
            start += capture.last().map_or(0, |last| last.nanos) + PAUSE;
        }
    }
    Ok(writer.into_inner().flush()?)
}

fn read(name: &str) -> Result<Vec<Captured>, Box<dyn std::error::Error>> {
    let bytes = std::fs::read(name)?;
    let (mut reader, mut frames, mut first) = (Reader::new(bytes.as_slice())?, Vec::new(), None);
    while let Some(record) = reader.next()? {
        let time = record.time.ok_or("a frame without a time")?;
        let nanos = time.saturating_since(*first.get_or_insert(time)).as_nanos();
        let (nanos, bytes) = (u64::try_from(nanos)?, record.data.to_vec());
        frames.push(Captured { nanos, len: record.len, bytes });
    }
    Ok(frames)
}

/// Gives a frame the numbers of a copy. Nothing if it is left out.
fn renumber(bytes: &mut [u8], copy: u32) -> Option<()> {
    let frame = Frame::parse(LinkType::ETHERNET, bytes, ROCE_PORT);
    let Some(packet) = frame.packet() else { return Some(()) };
    if packet.bth().dest_qp() == Qpn::GSI {
        return None;
    }
    let is_bad = frame.icrc() == Some(IcrcVerdict::Bad);
    let layers = frame.layers();
    let at = |layer: Layer| layers.find(layer).map(|range| range.start);
    let bth = at(Layer::Bth)?;
    let icrc = bth + packet.bytes().len();
    let part = |layer, range: Range<usize>| Some(at(layer)? + range.start..at(layer)? + range.end);
    let queue_pairs = [Some(bth + 5..bth + 8), part(Layer::Deth, 5..8)];
    let keys = [part(Layer::Reth, 8..12), part(Layer::AtomicEth, 8..12), part(Layer::Ieth, 0..4)];
    let (ipv4, ipv6, udp) = (at(Layer::Ipv4), at(Layer::Ipv6), at(Layer::Udp));
    for range in queue_pairs.into_iter().flatten() {
        add(bytes, range, copy << 10);
    }
    add(bytes, bth + 9..bth + 12, copy.wrapping_mul(0x0001_3579));
    for range in keys.into_iter().flatten() {
        add(bytes, range, copy << 16);
    }
    for at in ipv4.into_iter().flat_map(|at| [at + 12, at + 16]) {
        add(bytes, at + 1..at + 3, copy);
    }
    for at in ipv6.into_iter().flat_map(|at| [at + 8, at + 24]) {
        add(bytes, at + 2..at + 4, copy);
    }
    seal(bytes, ipv4, udp?, icrc, is_bad)
}

/// Adds a number to the big-endian number in a range, modulo its width.
fn add(bytes: &mut [u8], range: Range<usize>, by: u32) {
    let Some(field) = bytes.get_mut(range) else { return };
    let old = field.iter().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
    let width = field.len().min(4);
    let new = old.wrapping_add(by).to_be_bytes();
    field.iter_mut().zip(new.iter().skip(4 - width)).for_each(|(to, from)| *to = *from);
}

/// Makes checksums and ICRC anew. UDP needs no checksum: the ICRC covers all.
fn seal(
    bytes: &mut [u8],
    ipv4: Option<usize>,
    udp: usize,
    icrc: usize,
    is_bad: bool,
) -> Option<()> {
    bytes.get_mut(udp + 6..udp + 8)?.fill(0);
    if let Some(at) = ipv4 {
        let len = usize::from(*bytes.get(at)? & 0xf) * 4;
        let header = bytes.get_mut(at..at + len)?;
        header.get_mut(10..12)?.fill(0);
        let sum = checksum([&*header]).to_be_bytes();
        header.get_mut(10..12)?.copy_from_slice(&sum);
    }
    let expected = Frame::parse(LinkType::ETHERNET, bytes, ROCE_PORT).expected_icrc();
    if let (Some(mut right), Some(place)) = (expected, bytes.get_mut(icrc..icrc + 4)) {
        if is_bad {
            right = right.map(|byte| !byte);
        }
        place.copy_from_slice(&right);
    }
    Some(())
}
