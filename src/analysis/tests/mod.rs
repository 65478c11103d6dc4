//! Scripts of packets, and what the analysis makes of them.

mod acknowledgements;
mod losses;
mod messages;
mod pairing;
mod reports;
mod retransmissions;
mod unreliable;

use core::net::Ipv4Addr;

use super::*;
use crate::time::Instant;
use crate::wire::aeth::{Answer, Credits, NakCode, RnrTimer, Syndrome};
use crate::wire::{Bits, Gid, IcrcVerdict, Msn, Opcode, Operation, Psn, Qpn, RKey};

/// The path MTU of scripts.
const MTU: u32 = 1024;

/// Records all that an analysis tells.
#[derive(Default)]
struct Recorder {
    notes: Vec<(u64, PacketNote)>,
    losses: Vec<LossNote>,
    messages: Vec<Message>,
}

impl Sink for Recorder {
    fn packet(&mut self, facts: &PacketFacts, note: &PacketNote) {
        self.notes.push((facts.frame, *note));
    }

    fn loss(&mut self, note: &LossNote) {
        self.losses.push(*note);
    }

    fn message(&mut self, message: &Message) {
        self.messages.push(message.clone());
    }
}

/// A connection as a script uses it: the last bytes of two addresses, and two queue pairs.
#[derive(Clone, Copy)]
struct Pair {
    hosts: [u8; 2],
    qps: [u32; 2],
}

/// The requester is host 1 with QP 0x11, the responder host 2 with QP 0x12.
const PAIR: Pair = Pair { hosts: [1, 2], qps: [0x11, 0x12] };

impl Pair {
    /// Returns the connection with its ends exchanged.
    fn reversed(self) -> Self {
        let ([a, b], [c, d]) = (self.hosts, self.qps);
        Self { hosts: [b, a], qps: [d, c] }
    }
}

/// Packets one after the other, a microsecond apart.
struct Script {
    analysis: Analysis,
    told: Recorder,
    pair: Pair,
    nanos: u64,
    frame: u64,
}

fn gid(last: u8) -> Gid {
    Gid::from(Ipv4Addr::new(10, 0, 0, last))
}

impl Script {
    fn new() -> Self {
        let (analysis, told) = (Analysis::new(Config::default()), Recorder::default());
        Self { analysis, told, pair: PAIR, nanos: 1_000_000_000, frame: 0 }
    }

    /// Continues on another connection.
    fn on(&mut self, pair: Pair) -> &mut Self {
        self.pair = pair;
        self
    }

    fn wait_micros(&mut self, micros: u64) -> &mut Self {
        self.nanos += micros * 1000;
        self
    }

    /// A packet from one end of the current connection to the other.
    fn facts(&self, from: usize, opcode: Opcode, psn: u32, payload: u32) -> PacketFacts {
        let to = 1 - from;
        let source_port = 0xc000 + u16::try_from(self.pair.qps[from]).unwrap();
        PacketFacts {
            frame: self.frame + 1,
            time: Instant::from_nanos(self.nanos + 1000),
            source: gid(self.pair.hosts[from]),
            destination: gid(self.pair.hosts[to]),
            source_port,
            opcode,
            ack_request: opcode.info().is_some_and(|info| info.position.ends()),
            dest_qp: Qpn::new(self.pair.qps[to]),
            psn: Psn::new(psn),
            payload_len: payload,
            wire_len: payload + 62,
            digest: psn << 8 | u32::from(opcode.0),
            ..PacketFacts::send_only()
        }
    }

    /// Captures a packet, and returns what was told of it.
    fn put(&mut self, facts: PacketFacts) -> PacketNote {
        (self.frame, self.nanos) = (facts.frame, facts.time.as_nanos());
        self.analysis.handle_packet(&facts, &mut self.told);
        let &(frame, note) = self.told.notes.last().expect("each packet of a script has a note");
        assert_eq!(frame, self.frame);
        note
    }

    fn request(&mut self, opcode: Opcode, psn: u32, payload: u32) -> PacketNote {
        self.put(self.facts(0, opcode, psn, payload))
    }

    /// A SEND of one packet.
    fn send(&mut self, psn: u32) -> PacketNote {
        self.request(Opcode::RC_SEND_ONLY, psn, 100)
    }

    /// SENDs of one packet each.
    fn sends(&mut self, psns: core::ops::Range<u32>) {
        for psn in psns {
            self.send(psn);
        }
    }

    fn send_first(&mut self, psn: u32) -> PacketNote {
        self.request(Opcode::RC_SEND_FIRST, psn, MTU)
    }

    fn send_middle(&mut self, psn: u32) -> PacketNote {
        self.request(Opcode::RC_SEND_MIDDLE, psn, MTU)
    }

    fn send_last(&mut self, psn: u32) -> PacketNote {
        self.request(Opcode::RC_SEND_LAST, psn, 100)
    }

    fn with_reth(&mut self, opcode: Opcode, psn: u32, payload: u32, length: u32) -> PacketNote {
        let reth = RethFacts { virtual_address: 0x1000, rkey: RKey::new(7), length };
        let facts = PacketFacts { reth: Some(reth), ..self.facts(0, opcode, psn, payload) };
        self.put(facts)
    }

    fn read(&mut self, psn: u32, length: u32) -> PacketNote {
        self.with_reth(Opcode::RC_RDMA_READ_REQUEST, psn, 0, length)
    }

    fn answer(&mut self, opcode: Opcode, psn: u32, payload: u32, answer: Answer) -> PacketNote {
        let syndrome = Syndrome::from(answer);
        let mut facts = self.facts(1, opcode, psn, payload);
        facts.digest ^= u32::from(syndrome.0) << 4;
        facts.aeth = Some((syndrome, Msn::new(0)));
        self.put(facts)
    }

    fn ack(&mut self, psn: u32) -> PacketNote {
        self.answer(Opcode::RC_ACKNOWLEDGE, psn, 0, Answer::Ack(Credits::UNLIMITED))
    }

    fn nak(&mut self, psn: u32, code: NakCode) -> PacketNote {
        self.answer(Opcode::RC_ACKNOWLEDGE, psn, 0, Answer::Nak(code))
    }

    fn sequence_nak(&mut self, psn: u32) -> PacketNote {
        self.nak(psn, NakCode::PsnSequenceError)
    }

    /// An RNR NAK of 0.64 ms.
    fn rnr(&mut self, psn: u32) -> PacketNote {
        let timer = RnrTimer(Bits::low(12));
        self.answer(Opcode::RC_ACKNOWLEDGE, psn, 0, Answer::RnrNak(timer))
    }

    /// The responses of a READ at these PSNs, of which the first begins and the last ends it.
    fn read_responses(&mut self, psns: core::ops::RangeInclusive<u32>, last_payload: u32) {
        for (psn, note) in self.answer_read(psns, last_payload) {
            assert_eq!((note.role, note.duplicate), (PacketRole::Response, false), "PSN {psn}");
        }
    }

    /// The responses of a READ at these PSNs once more.
    fn read_responses_again(&mut self, psns: core::ops::RangeInclusive<u32>) {
        self.answer_read(psns, MTU);
    }

    fn answer_read(
        &mut self,
        psns: core::ops::RangeInclusive<u32>,
        last_payload: u32,
    ) -> Vec<(u32, PacketNote)> {
        let ack = Answer::Ack(Credits::UNLIMITED);
        let mut notes = Vec::new();
        for psn in psns.clone() {
            let (opcode, payload) = match (psn == *psns.start(), psn == *psns.end()) {
                (true, true) => (Opcode::RC_RDMA_READ_RESPONSE_ONLY, last_payload),
                (true, false) => (Opcode::RC_RDMA_READ_RESPONSE_FIRST, MTU),
                (false, false) => (Opcode::RC_RDMA_READ_RESPONSE_MIDDLE, MTU),
                (false, true) => (Opcode::RC_RDMA_READ_RESPONSE_LAST, last_payload),
            };
            notes.push((psn, self.answer(opcode, psn, payload, ack)));
        }
        notes
    }

    fn finish(mut self) -> (Report, Recorder) {
        let report = self.analysis.finish(&mut self.told);
        (report, self.told)
    }
}

/// The requests of the first end of the only connection.
fn only_direction(report: &Report) -> &Direction {
    let [connection] = report.connections.as_slice() else { panic!("{:?}", report.connections) };
    &connection.directions[0]
}

/// The outcome, operation and size of each message.
fn outcomes(told: &Recorder) -> Vec<(Operation, u64, Outcome)> {
    told.messages.iter().map(|m| (m.operation, m.bytes, m.outcome)).collect()
}
