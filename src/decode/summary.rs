//! A capture as a whole: what is in it, between whom, and what went wrong.

use std::collections::HashMap;

use super::Context;
use super::address::address_text;
use super::field::put;
use super::time::write_date_and_time;
use crate::time::Instant;
use crate::wire::aeth::{Answer, NakCode, RnrTimer};
use crate::wire::{Bits, Gid, IcrcVerdict, Opcode, Qpn};

/// The most conversations that are told apart; packets of further ones are counted together. At some hundred bytes
/// each this keeps a summary of any capture within ten megabytes.
pub const CONVERSATIONS_MAX: usize = 65_536;

/// How many conversations a summary for people lists.
const CONVERSATIONS_SHOWN: usize = 20;

/// What a capture holds.
#[derive(Clone, Debug)]
pub struct Summary {
    frames: u64,
    bytes: u64,
    roce_frames: u64,
    malformed: u64,
    first_time: Option<Instant>,
    last_time: Option<Instant>,
    opcodes: [u64; 256],
    verdicts: [u64; VERDICTS.len()],
    /// Refusals by code, and receivers that were not ready by timer code.
    naks: [u64; 32],
    rnrs: [u64; 32],
    congested: u64,
    conversations: HashMap<Conversation, Traffic>,
    /// Packets of conversations that came when the list was full.
    elsewhere: Traffic,
    latest: Option<(Conversation, Traffic)>,
}

const VERDICTS: [IcrcVerdict; 3] = [IcrcVerdict::Ok, IcrcVerdict::Bad, IcrcVerdict::Absent];

/// From whom to whom: packets to one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Conversation {
    source: Gid,
    destination: Gid,
    qp: Qpn,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traffic {
    packets: u64,
    payload: u64,
}

impl Traffic {
    fn add(&mut self, other: Self) {
        self.packets += other.packets;
        self.payload += other.payload;
    }
}

impl Default for Summary {
    fn default() -> Self {
        Self::new()
    }
}

impl Summary {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self {
            frames: 0,
            bytes: 0,
            roce_frames: 0,
            malformed: 0,
            first_time: None,
            last_time: None,
            opcodes: [0; 256],
            verdicts: [0; 3],
            naks: [0; 32],
            rnrs: [0; 32],
            congested: 0,
            conversations: HashMap::new(),
            elsewhere: Traffic::default(),
            latest: None,
        }
    }

    /// Takes a frame into account.
    pub fn add(&mut self, context: &Context<'_>) {
        self.frames += 1;
        self.bytes += u64::from(context.wire_len);
        self.first_time = min_some(self.first_time, context.time);
        self.last_time = self.last_time.max(context.time);
        self.malformed += u64::from(context.frame.error().is_some());
        let Some(verdict) = context.icrc() else {
            return;
        };
        self.roce_frames += 1;
        self.verdicts[verdict as usize] += 1;
        let Some(packet) = context.frame.packet() else {
            return;
        };
        self.opcodes[usize::from(packet.bth().opcode().0)] += 1;
        self.congested += u64::from(packet.bth().opcode() == Opcode::CNP);
        match packet.aeth().map(|aeth| aeth.syndrome().answer()) {
            Some(Answer::Nak(code)) => self.naks[code.code().get() as usize] += 1,
            Some(Answer::RnrNak(timer)) => self.rnrs[timer.0.get() as usize] += 1,
            Some(Answer::Ack(_) | Answer::Reserved(_)) | None => {}
        }
        let (source, destination) = context.addresses();
        let conversation = Conversation { source, destination, qp: packet.bth().dest_qp() };
        self.count(conversation, Traffic { packets: 1, payload: packet.payload_len() as u64 });
    }

    /// Packets come in runs of one conversation, so the one in hand is kept out of the table.
    fn count(&mut self, conversation: Conversation, traffic: Traffic) {
        match &mut self.latest {
            Some((latest, sum)) if *latest == conversation => sum.add(traffic),
            _ => {
                self.settle();
                self.latest = Some((conversation, traffic));
            }
        }
    }

    fn settle(&mut self) {
        let Some((conversation, traffic)) = self.latest.take() else {
            return;
        };
        let full = self.conversations.len() >= CONVERSATIONS_MAX;
        match self.conversations.get_mut(&conversation) {
            Some(sum) => sum.add(traffic),
            None if full => self.elsewhere.add(traffic),
            None => {
                self.conversations.insert(conversation, traffic);
            }
        }
    }

    /// The conversations, busiest first.
    fn sorted(&mut self) -> Vec<(Conversation, Traffic)> {
        self.settle();
        let mut all: Vec<_> = self.conversations.iter().map(|(&who, &what)| (who, what)).collect();
        all.sort_by_key(|(who, what)| {
            (core::cmp::Reverse(what.packets), who.source.0, who.destination.0, who.qp.get())
        });
        all
    }

    /// Opcodes that occurred, most frequent first.
    fn opcodes(&self) -> Vec<(Opcode, u64)> {
        let mut all: Vec<_> = (0..=255)
            .map(|byte| (Opcode(byte), self.opcodes[usize::from(byte)]))
            .filter(|&(_, count)| count > 0)
            .collect();
        all.sort_by_key(|&(opcode, count)| (core::cmp::Reverse(count), opcode));
        all
    }

    /// Refusals that occurred.
    fn naks(&self) -> impl Iterator<Item = (NakCode, u64)> {
        counted(self.naks).map(|(code, count)| (NakCode::from_code(code), count))
    }

    /// For how long receivers that were not ready asked to wait.
    fn rnrs(&self) -> impl Iterator<Item = (RnrTimer, u64)> {
        counted(self.rnrs).map(|(code, count)| (RnrTimer(code), count))
    }

    /// The summary for people.
    pub fn to_text(&mut self) -> String {
        let mut out = String::new();
        let (frames, roce, bytes) = (self.frames, self.roce_frames, self.bytes);
        put(&mut out, format_args!("frames         {frames}, {bytes} bytes on the wire\n"));
        put(&mut out, format_args!("RoCE frames    {roce}\n"));
        for (label, time) in
            [("first          ", self.first_time), ("last           ", self.last_time)]
        {
            if let Some(time) = time {
                out.push_str(label);
                write_date_and_time(time, &mut out);
                out.push_str(" UTC\n");
            }
        }
        out.push_str("ICRC          ");
        for verdict in VERDICTS {
            put(&mut out, format_args!(" {} {}", verdict.name(), self.verdicts[verdict as usize]));
        }
        put(&mut out, format_args!("\nincomplete     {}\n", self.malformed));
        out.push_str("\nopcodes\n");
        for (opcode, count) in self.opcodes() {
            put(&mut out, format_args!("{count:>12}  {opcode}\n"));
        }
        self.write_refusals(&mut out);
        self.write_conversations(&mut out);
        out
    }

    fn write_refusals(&self, out: &mut String) {
        if self.naks().next().is_none() && self.rnrs().next().is_none() {
            return;
        }
        out.push_str("\nrefusals\n");
        for (code, count) in self.naks() {
            put(out, format_args!("{count:>12}  NAK {code}\n"));
        }
        for (timer, count) in self.rnrs() {
            put(out, format_args!("{count:>12}  RNR {timer}\n"));
        }
    }

    fn write_conversations(&mut self, out: &mut String) {
        let all = self.sorted();
        out.push_str("\nconversations (packets, payload bytes, from > to, queue pair)\n");
        for (who, what) in all.iter().take(CONVERSATIONS_SHOWN) {
            let (source, destination) = (address_text(who.source), address_text(who.destination));
            put(out, format_args!("{:>12} {:>14}  ", what.packets, what.payload));
            put(out, format_args!("{source} > {destination} qp {}\n", who.qp));
        }
        let rest = all.len().saturating_sub(CONVERSATIONS_SHOWN);
        if rest > 0 {
            put(out, format_args!("               … and {rest} more (--json lists them)\n"));
        }
        if self.elsewhere.packets > 0 {
            let (packets, payload) = (self.elsewhere.packets, self.elsewhere.payload);
            put(out, format_args!("{packets:>12} {payload:>14}  in further conversations\n"));
        }
    }

    /// The summary for machines: one JSON object.
    pub fn to_json(&mut self) -> String {
        let mut out = String::new();
        put(&mut out, format_args!("{{\"frames\":{},\"bytes\":{}", self.frames, self.bytes));
        put(&mut out, format_args!(",\"roce_frames\":{}", self.roce_frames));
        put(&mut out, format_args!(",\"incomplete\":{}", self.malformed));
        for (name, time) in [("first_time", self.first_time), ("last_time", self.last_time)] {
            match time {
                Some(time) => put(&mut out, format_args!(",\"{name}\":\"{time}\"")),
                None => put(&mut out, format_args!(",\"{name}\":null")),
            }
        }
        let verdicts = VERDICTS.map(|verdict| (verdict.name(), self.verdicts[verdict as usize]));
        write_counts(&mut out, "icrc", verdicts);
        write_counts(&mut out, "opcodes", self.opcodes());
        write_counts(&mut out, "naks", self.naks());
        write_counts(&mut out, "rnrs_us", self.rnrs().map(|(timer, n)| (timer.micros(), n)));
        put(&mut out, format_args!(",\"cnps\":{},\"conversations\":[", self.congested));
        for (i, (who, what)) in self.sorted().into_iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let (source, destination) = (address_text(who.source), address_text(who.destination));
            put(&mut out, format_args!("{comma}{{\"src\":\"{source}\",\"dst\":\"{destination}\""));
            put(&mut out, format_args!(",\"destqp\":{}", who.qp.get()));
            put(&mut out, format_args!(",\"packets\":{}", what.packets));
            put(&mut out, format_args!(",\"payload_bytes\":{}}}", what.payload));
        }
        put(&mut out, format_args!("],\"other_packets\":{}}}", self.elsewhere.packets));
        out
    }
}

/// The codes that occurred, with how often.
fn counted(counts: [u64; 32]) -> impl Iterator<Item = (Bits<5>, u64)> {
    (0..).map(Bits::low).zip(counts).filter(|&(_, count)| count > 0)
}

/// `,"name":{"key":count,…}`.
fn write_counts<K: core::fmt::Display>(
    out: &mut String,
    name: &str,
    counts: impl IntoIterator<Item = (K, u64)>,
) {
    put(out, format_args!(",\"{name}\":{{"));
    for (i, (key, count)) in counts.into_iter().enumerate() {
        let comma = if i > 0 { "," } else { "" };
        put(out, format_args!("{comma}\"{key}\":{count}"));
    }
    out.push('}');
}

/// The earlier of two times, where they are known.
fn min_some(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
