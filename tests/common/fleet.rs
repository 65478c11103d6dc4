//! A capture of a fleet of hosts, in which one host and one path lose packets: the same bytes in
//! each run.

use core::net::Ipv4Addr;

use roce::capture::PcapngWriter;
use roce::time::Instant;
use roce::wire::{Gid, LinkType, Opcode, Path};

/// Number of hosts, 192.0.2.1 and up.
pub(crate) const HOSTS: u32 = 100;

/// The host of which nearly all connections lose packets.
pub(crate) const BAD_HOST: u32 = 7;

/// The hosts between which each connection loses packets.
pub(crate) const BAD_PATH: [u32; 2] = [9, 21];

/// Messages of a connection.
const MESSAGES: u32 = 6;

/// Nanoseconds in which connections begin.
const SPAN_NANOS: u64 = 10_000_000_000;

/// A generator of numbers: splitmix64.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((mixed ^ mixed >> 31) % u64::from(end)).unwrap_or(0)
    }
}

/// The address of a host.
pub(crate) fn address(host: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(192, 0, 2, 0).to_bits() + host)
}

/// A capture of `connections` connections in the middle of the network.
pub(crate) fn capture(connections: u32) -> Vec<u8> {
    let mut numbers = Numbers(1);
    let mut frames = Vec::new();
    for number in 0..connections {
        let pair = hosts(number, &mut numbers);
        let start = SPAN_NANOS / u64::from(connections.max(1)) * u64::from(number);
        // A bad host or path loses packets of most connections, all others of one in 500.
        let is_lossy = match () {
            () if pair.contains(&BAD_HOST) => numbers.below(100) < 96,
            () if pair == BAD_PATH => true,
            () => numbers.below(500) == 0,
        };
        let lost = is_lossy.then(|| 1 + numbers.below(MESSAGES - 2));
        connection(number, pair, start, lost, &mut frames);
    }
    frames.sort_by_key(|(time, _)| *time);
    let mut out = PcapngWriter::new(Vec::new()).expect("a vector takes everything");
    let port = out.add_interface(LinkType::RAW, "mirror").expect("the name is short");
    for (time, frame) in frames {
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        out.write(port, Instant::from_nanos(time), len, &frame).expect("a vector takes everything");
    }
    std::mem::take(out.get_mut())
}

/// The hosts of a connection: one in 250 is on the bad path.
fn hosts(number: u32, numbers: &mut Numbers) -> [u32; 2] {
    if number.is_multiple_of(250) {
        return BAD_PATH;
    }
    let first = 1 + numbers.below(HOSTS);
    let other = 1 + (first + numbers.below(HOSTS - 1)) % HOSTS;
    [first, other]
}

/// The frames of a connection whose message `lost`, if any, does not reach the capture point at
/// first.
fn connection(
    number: u32,
    hosts: [u32; 2],
    start: u64,
    lost: Option<u32>,
    frames: &mut Vec<(u64, Vec<u8>)>,
) {
    let qps = [0x1000 + 2 * number, 0x1001 + 2 * number];
    let mut now = 1_700_000_000_000_000_000 + start;
    let mut put = |from: usize, opcode: Opcode, psn: u32, body: &[u8]| {
        now += 20_000;
        frames.push((now, frame(hosts, from, qps[1 - from], opcode, psn, body)));
    };
    const ACK: u32 = 0x1f << 24;
    const SEQUENCE_NAK: u32 = 0x60 << 24;
    let payload = [0; 64];
    // Queue pairs begin at PSNs of their own.
    let psn_of = |message: u32| number.wrapping_mul(0x9e_37b1).wrapping_add(message) & 0xff_ffff;
    let mut message = 0;
    while message < MESSAGES {
        if lost == Some(message) {
            // It is gone, the next one shows it, and both are retransmitted.
            put(0, Opcode::RC_SEND_ONLY, psn_of(message + 1), &payload);
            let nak = (SEQUENCE_NAK | message).to_be_bytes();
            put(1, Opcode::RC_ACKNOWLEDGE, psn_of(message), &nak);
            put(0, Opcode::RC_SEND_ONLY, psn_of(message), &payload);
            message += 1;
        }
        put(0, Opcode::RC_SEND_ONLY, psn_of(message), &payload);
        message += 1;
        let ack = (ACK | message).to_be_bytes();
        put(1, Opcode::RC_ACKNOWLEDGE, psn_of(message - 1), &ack);
    }
}

/// A packet from the IP header to the ICRC.
fn frame(
    hosts: [u32; 2],
    from: usize,
    dest_qp: u32,
    opcode: Opcode,
    psn: u32,
    body: &[u8],
) -> Vec<u8> {
    const ACK_REQUEST: u32 = 1 << 31;
    let flag = if from == 0 { ACK_REQUEST } else { 0 };
    let mut packet = vec![opcode.0, 0, 0xff, 0xff];
    packet.extend(dest_qp.to_be_bytes());
    packet.extend((psn | flag).to_be_bytes());
    packet.extend(body);
    packet.extend([0; 4]);
    let path = Path {
        source: Gid::from(address(hosts[from])),
        destination: Gid::from(address(hosts[1 - from])),
        traffic_class: 26 << 2,
        hop_limit: 63,
        ..Path::NOWHERE
    };
    let headers = path.seal(&mut packet);
    let (ip, udp) = headers.as_bytes();
    [ip, udp, &packet].concat()
}
