//! Replays of captures: of any bytes, and of packets that look like those of a few connections, so
//! that it goes deep.

use std::net::Ipv4Addr;

use roce::capture::PcapWriter;
use roce::replay::{Options, ReplayReport, Style, replay_capture};
use roce::time::Instant;
use roce::wire::{Gid, ICRC_ROOM, LinkType, Opcode, Path};

/// A capture, or packets: by the first byte.
pub fn replay(input: &[u8]) {
    let [mode, rest @ ..] = input else { return };
    let generated = if mode % 4 == 0 { rest.to_vec() } else { generate(rest) };
    let mut options = Options::default();
    options.program_writes = mode & 0x10 != 0;
    options.point = (mode & 0x20 != 0).then(|| host(1));
    let mut report = ReplayReport::default();
    let Ok(survey) = replay_capture(&generated, &options, &mut report) else { return };
    report.finish(&survey);
    let counts = &report.counts;
    let undecided: u64 = counts.reasons.values().sum();
    assert_eq!(undecided, counts.undecided);
    let listed = report.listed.len() as u64 + report.not_listed;
    assert_eq!(listed, counts.different + counts.known);
    let mut text = String::new();
    report.text(Style::default(), &mut text);
    assert!(text.ends_with("differences\n") || text.ends_with(", 1 difference\n"));
    assert!(report.json().starts_with('{') && report.junit("x").ends_with("</testsuite>\n"));
}

fn host(number: u8) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, number))
}

/// Opcodes that the responders know, some of them more often.
const OPCODES: [u8; 32] = [
    0x04, 0x04, 0x00, 0x01, 0x02, 0x06, 0x07, 0x08, 0x0a, 0x0a, 0x0b, 0x0c, 0x0c, 0x0d, 0x0e, 0x0f,
    0x10, 0x10, 0x11, 0x11, 0x11, 0x11, 0x12, 0x13, 0x14, 0x17, 0x1c, 0x1d, 0xa4, 0xac, 0x2a, 0x64,
];

/// Syndromes: ACK, credits, RNR NAK, the NAKs, ones that mean nothing.
const SYNDROMES: [u8; 16] = [
    0x1f, 0x1f, 0x1f, 0x1f, 0x1f, 0x05, 0x2c, 0x20, 0x60, 0x60, 0x60, 0x61, 0x62, 0x63, 0x64, 0x5f,
];

/// Payload bytes.
const LENGTHS: [usize; 8] = [0, 0, 4, 8, 256, 256, 1024, 3];

/// Eight bytes are a packet: two queue pairs, PSNs near each other, anything else.
fn generate(bytes: &[u8]) -> Vec<u8> {
    let Ok(mut writer) = PcapWriter::new(Vec::new(), LinkType::RAW) else { return Vec::new() };
    let mut time = 1_000_000_000;
    let mut next = [0xff_fff8_u32, 0x10];
    for step in bytes.chunks_exact(8) {
        let [when, who, opcode, near, aeth, length, data, key] = *step else { continue };
        time += [0, 100, 1_000, 20_000, 600_000, 5_000_000][usize::from(when % 6)];
        let sender = usize::from(who & 1);
        let opcode = Opcode(OPCODES[usize::from(opcode % 32)]);
        let Some(info) = opcode.info() else { continue };
        let is_response = info.role == roce::wire::Role::Response;
        let space = if is_response { 1 - sender } else { sender };
        let psn = match near {
            0..160 => next[space],
            160..240 => next[space].wrapping_sub(u32::from(near - 159) / 4),
            _ => next[space].wrapping_add(u32::from(near - 239)),
        } & 0xff_ffff;
        if !is_response && near < 160 {
            next[space] = psn.wrapping_add(1 + u32::from(length >> 6)) & 0xff_ffff;
        }
        let payload = LENGTHS[usize::from(length % 8)];
        let mut packet = vec![0; info.header_len];
        packet[0] = opcode.0;
        packet[1] = ((payload.wrapping_neg() % 4) as u8) << 4;
        packet[2..4].copy_from_slice(&[0xff, 0xff]);
        packet[7] = 0x10 + sender as u8;
        packet[8] = if data & 1 == 1 { 0x80 } else { 0 };
        packet[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
        // Whatever headers follow: a syndrome and an MSN, an address that is often the same, a key,
        // a length.
        for (at, byte) in packet[12..].iter_mut().enumerate() {
            *byte = match (is_response, at) {
                (true, 0) => SYNDROMES[usize::from(aeth % 16)],
                (true, 3) => aeth >> 4,
                (false, 11) => key & 1,
                (false, 14) => length >> 5,
                (false, 15) => payload as u8,
                (false, 7) => key & 0xf8,
                _ => 0,
            };
        }
        packet.extend(vec![data; payload]);
        packet.resize(packet.len().next_multiple_of(4), 0);
        packet.extend([0; ICRC_ROOM]);
        let path = Path {
            source: host(1 + sender as u8),
            destination: host(2 - sender as u8),
            hop_limit: 64,
            ..Path::NOWHERE
        };
        let headers = path.seal(&mut packet);
        let (ip, udp) = headers.as_bytes();
        let frame = [ip, udp, &packet].concat();
        if writer.write(Instant::from_nanos(time), frame.len() as u32, &frame).is_err() {
            break;
        }
    }
    writer.into_inner()
}
