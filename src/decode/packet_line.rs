//! The line of a packet that has no frame around it.

use std::net::Ipv4Addr;

use super::{Decoder, LineStyle, TimeStyle};
use crate::capture::{LinkType, Record};
use crate::wire::{Gid, ICRC_ROOM, Path, ROCE_PORT};

/// A packet from its BTH on, without ICRC, as `roce decode` shows it, without time, addresses and
/// ICRC verdict.
pub fn packet_line(packet: &[u8]) -> String {
    let host = |number| Gid::from(Ipv4Addr::new(192, 0, 2, number));
    let path = Path { source: host(1), destination: host(2), hop_limit: 64, ..Path::NOWHERE };
    let mut bytes = packet.to_vec();
    bytes.extend([0; ICRC_ROOM]);
    let headers = path.seal(&mut bytes);
    let (ip, udp) = headers.as_bytes();
    let frame = [ip, udp, &bytes].concat();
    let record = Record::frame(LinkType::RAW, &frame);
    let mut line = String::new();
    let style = LineStyle { time: TimeStyle::None, ..LineStyle::default() };
    style.write(&Decoder::new(ROCE_PORT).decode(&record), &mut line);
    let text = line.split_once(": ").map_or(line.as_str(), |(_, text)| text);
    text.trim_end_matches(" icrc ok").to_owned()
}
