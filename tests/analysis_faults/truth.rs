//! The truth about a scenario: every transmission, every fault, every sighting, as the harness saw
//! it.

use roce::analysis::{PacketFacts, RetransmissionCause};
use roce::capture::{PcapWriter, Reader};
use roce::decode::Decoder;
use roce::link::fault::Action;
use roce::time::Instant;
use roce::verbs::WcStatus;
use roce::wire::{LinkType, Opcode, ROCE_PORT};

use super::plan::{Class, Op};
use super::wire::Hop;

/// A packet that an engine emitted.
#[derive(Clone, Debug)]
pub struct Transmission {
    pub connection: usize,
    /// 0: A sent it.
    pub sender: usize,
    pub class: Class,
    pub opcode: Opcode,
    pub psn: u32,
    /// PSNs that it covers: those of the responses, for a READ request.
    pub psns: u32,
    /// Distance of its PSN from the first one of its PSN space, counted on beyond 2^24.
    pub sequence: u64,
    pub time: Instant,
    /// Requests: why it was retransmitted, if it was.
    pub cause: Option<RetransmissionCause>,
    /// Requests: whether the requester went back with it.
    pub rewinds: bool,
    /// The hop that lost it, or whose last copy was lost there.
    pub lost: Option<Hop>,
    /// The hop that corrupted it.
    pub corrupted: Option<Hop>,
    /// Whether the receiver got it whole.
    pub delivered: bool,
    pub is_nak: bool,
    pub is_cnp: bool,
}

impl Transmission {
    /// The transmission of frames that belong to no connection.
    pub fn witness(time: Instant) -> Self {
        Self {
            connection: usize::MAX,
            sender: 0,
            class: Class::Request,
            opcode: Opcode::UD_SEND_ONLY,
            psn: 0,
            psns: 1,
            sequence: 0,
            time,
            cause: None,
            rewinds: false,
            lost: None,
            corrupted: None,
            delivered: true,
            is_nak: false,
            is_cnp: false,
        }
    }

    /// The first hop on its way that lost or corrupted it.
    pub fn stopped(&self) -> Option<Hop> {
        let first = if self.sender == 0 { Hop::A } else { Hop::B };
        let hops = [self.lost, self.corrupted];
        if hops.contains(&Some(first)) { Some(first) } else { self.lost.or(self.corrupted) }
    }

    /// Whether a PSN relative to the first one is one of its own.
    pub fn covers(&self, sequence: u64) -> bool {
        (self.sequence..self.sequence + u64::from(self.psns)).contains(&sequence)
    }

    /// Whether it is of the same connection, sender and kind (requests, or responses) as another
    /// one.
    pub fn is_alike(&self, other: &Self) -> bool {
        let kind =
            |packet: &Self| (packet.connection, packet.sender, packet.class == Class::Request);
        kind(self) == kind(other)
    }

    /// Index of the requester whose PSN space it belongs to: 0 for A's requests and the responses
    /// to them.
    pub fn requester(&self) -> usize {
        if self.class == Class::Request { self.sender } else { 1 - self.sender }
    }
}

/// A fault that was injected.
#[derive(Clone, Copy, Debug)]
pub struct Injected {
    pub transmission: usize,
    pub hop: Hop,
    pub action: Action,
}

/// The number of the transmission that belongs to no connection: it shows that a point captures at
/// its time.
pub const WITNESS: usize = 0;

/// A frame of a capture point.
#[derive(Clone, Debug)]
pub struct Captured {
    pub time: Instant,
    pub transmission: usize,
    /// The network made it of another.
    pub is_copy: bool,
    pub is_corrupted: bool,
    pub is_marked: bool,
    pub bytes: Vec<u8>,
}

/// Messages that were posted and how they completed, by connection and requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    pub connection: usize,
    pub requester: usize,
    pub op: Op,
    pub len: u32,
    /// Status of the completion; `None` if the message never completed.
    pub status: Option<WcStatus>,
    /// Whether a packet of it was transmitted.
    pub begun: bool,
}

/// The truth about one scenario.
#[derive(Debug, Default)]
pub struct Truth {
    pub transmissions: Vec<Transmission>,
    pub injected: Vec<Injected>,
    /// Frames captured at A, at the switch, at B.
    pub captured: [Vec<Captured>; 3],
    pub completed: Vec<Completed>,
    /// Timeouts, sequence NAKs, implied NAKs, RNR NAKs, of A's and B's engine.
    pub counters: [[u64; 4]; 2],
    /// Queue pair numbers by connection and side.
    pub qpns: Vec<[u32; 2]>,
}

/// A frame of the captures of several points.
pub struct Merged<'t> {
    pub point: usize,
    pub captured: &'t Captured,
    pub facts: PacketFacts,
    /// Bytes from the BTH to the last pad byte.
    pub packet: Vec<u8>,
}

impl Truth {
    /// The frames of some points by time, each read from a capture file in memory.
    pub fn merged(&self, points: &[usize]) -> Vec<Merged<'_>> {
        let mut all = Vec::new();
        for (file, &point) in points.iter().enumerate() {
            let captured = &self.captured[point];
            let mut writer = PcapWriter::new(Vec::new(), LinkType::RAW).unwrap();
            for frame in captured {
                writer.write(frame.time, frame.bytes.len() as u32, &frame.bytes).unwrap();
            }
            let bytes = writer.into_inner();
            let mut reader = Reader::new(bytes.as_slice()).unwrap();
            let mut decoder = Decoder::new(ROCE_PORT);
            for captured in captured {
                let record = reader.next().unwrap().expect("as many as were written");
                let context = decoder.decode(&record);
                let packet = context.frame.packet().unwrap().bytes().to_vec();
                let facts = PacketFacts::new(&context, file as u16).unwrap();
                all.push(Merged { point, captured, facts, packet });
            }
        }
        all.sort_by_key(|frame| (frame.facts.time, frame.facts.file));
        for (number, frame) in (1..).zip(&mut all) {
            frame.facts.frame = number;
        }
        all
    }
}
