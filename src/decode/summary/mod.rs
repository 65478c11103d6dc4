//! Summary of a capture: packets, conversations, errors.

#[cfg(feature = "analysis")]
mod serialize;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::address::address_text;
use super::field::put;
use super::time::write_date_and_time;
use super::{Context, TrainPosition};
use crate::time::Instant;
use crate::wire::aeth::{Answer, NakCode, RnrTimer};
use crate::wire::{Bits, Gid, IcrcVerdict, Opcode, Qpn};

/// Maximum number of conversations with an entry of their own; packets of further ones are counted
/// together. At some hundred bytes each this keeps a summary of any capture within ten megabytes.
pub const CONVERSATIONS_MAX: usize = 65_536;

/// Number of conversations that a summary as text lists.
const CONVERSATIONS_SHOWN: usize = 20;

/// Summary of a capture.
#[derive(Clone, Debug)]
pub struct Summary {
    frames: u64,
    bytes: u64,
    roce_frames: u64,
    trains: Trains,
    malformed: u64,
    first_time: Option<Instant>,
    last_time: Option<Instant>,
    opcodes: Counts<256>,
    verdicts: [u64; VERDICTS.len()],
    /// Refusals by code, and receivers that were not ready by timer code.
    naks: Counts<32>,
    rnrs: Counts<32>,
    congested: u64,
    /// Conversations in the order of their first packets.
    conversations: Vec<(Conversation, Traffic)>,
    /// Index of each conversation in the list.
    index: HashMap<Conversation, usize>,
    /// Indices of some of the latest conversations, each in the slot that it hashes to: most
    /// packets find theirs here.
    latest: [usize; LATEST],
    /// Packets of conversations that came when the list was full.
    elsewhere: Traffic,
    /// Number of damaged stretches that the reader skipped.
    skips: u64,
    skipped_bytes: u64,
}

/// Frames with several packets, because of segmentation offload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "analysis", derive(serde::Serialize))]
pub struct Trains {
    /// Captured frames with several packets.
    pub frames: u64,
    /// Number of packets that were found in them.
    pub packets: u64,
    /// Packets of them of which nothing was captured, because a snap length cut the frame.
    pub cut_off: u64,
}

impl Trains {
    /// Counts a packet at this position.
    #[inline]
    pub fn add(&mut self, position: TrainPosition) {
        self.packets += 1;
        self.frames += u64::from(position.index == 1);
        if position.index == position.captured {
            self.cut_off += u64::from(position.of.saturating_sub(position.captured));
        }
    }

    /// Adds the counts of later packets.
    fn append(&mut self, later: Self) {
        self.frames += later.frames;
        self.packets += later.packets;
        self.cut_off += later.cut_off;
    }

    /// Returns a sentence about them without its period, unless there is none.
    pub fn sentence(&self) -> Option<String> {
        let Self { frames, packets, cut_off } = self;
        let s = if *frames == 1 { "" } else { "s" };
        let text = format!("{frames} frame{s} held {packets} packets: segmentation offload");
        match (frames, cut_off) {
            (0, _) => None,
            (_, 0) => Some(text),
            _ => Some(format!("{text}; {cut_off} more were cut off by the snap length")),
        }
    }
}

/// Number of slots for the latest conversations.
const LATEST: usize = 64;

const VERDICTS: [IcrcVerdict; 3] = [IcrcVerdict::Ok, IcrcVerdict::Bad, IcrcVerdict::Absent];

/// Packets from one address to one queue pair of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Conversation {
    source: Gid,
    destination: Gid,
    qp: Qpn,
}

impl Conversation {
    /// Returns its slot among the latest. The queue pair tells most conversations apart; replies
    /// come from the peer's.
    #[inline]
    fn slot(&self) -> usize {
        let [.., a, b] = self.source.0;
        (self.qp.get() as usize ^ usize::from(a) << 3 ^ usize::from(b) << 4) % LATEST
    }
}

/// Number of occurrences of each of `N` codes. To clear it, or to add it to another, costs as much
/// as there are codes that did: it is done once per batch.
#[derive(Clone, Debug)]
struct Counts<const N: usize> {
    counts: [u64; N],
    /// The codes that occurred, in any order.
    occurred: Vec<u8>,
}

impl<const N: usize> Counts<N> {
    const fn new() -> Self {
        Self { counts: [0; N], occurred: Vec::new() }
    }

    #[inline]
    fn add(&mut self, code: u8, more: u64) {
        if let Some(count) = self.counts.get_mut(usize::from(code)) {
            if *count == 0 {
                self.occurred.push(code);
            }
            *count += more;
        }
    }

    fn append(&mut self, later: &Self) {
        later.occurred.iter().for_each(|&code| self.add(code, later.get(code)));
    }

    fn clear(&mut self) {
        for code in self.occurred.drain(..) {
            if let Some(count) = self.counts.get_mut(usize::from(code)) {
                *count = 0;
            }
        }
    }

    fn get(&self, code: u8) -> u64 {
        self.counts.get(usize::from(code)).copied().unwrap_or_default()
    }

    /// The codes that occurred, in their order, with how often.
    fn iter(&self) -> impl Iterator<Item = (u8, u64)> {
        (0..=u8::MAX).zip(self.counts).filter(|&(_, count)| count > 0)
    }
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
    /// Creates an empty summary.
    pub fn new() -> Self {
        Self {
            frames: 0,
            bytes: 0,
            roce_frames: 0,
            trains: Trains::default(),
            malformed: 0,
            first_time: None,
            last_time: None,
            opcodes: Counts::new(),
            verdicts: [0; 3],
            naks: Counts::new(),
            rnrs: Counts::new(),
            congested: 0,
            conversations: Vec::new(),
            index: HashMap::new(),
            latest: [0; LATEST],
            elsewhere: Traffic::default(),
            skips: 0,
            skipped_bytes: 0,
        }
    }

    /// Takes damage into account that was passed over: so many stretches of so many bytes in all.
    pub fn add_skipped(&mut self, places: u64, bytes: u64) {
        self.skips += places;
        self.skipped_bytes += bytes;
    }

    /// Takes a frame into account.
    pub fn add(&mut self, context: &Context<'_>) {
        // The packets of a train are in one captured frame.
        let is_first = context.train.is_none_or(|train| train.index == 1);
        self.frames += u64::from(is_first);
        self.bytes += u64::from(context.wire_len);
        if let Some(position) = context.train {
            self.trains.add(position);
        }
        self.first_time = min_some(self.first_time, context.time);
        self.last_time = self.last_time.max(context.time);
        self.malformed += u64::from(context.frame.error().is_some());
        let Some(verdict) = context.icrc() else {
            return;
        };
        self.roce_frames += u64::from(is_first);
        self.verdicts[verdict as usize] += 1;
        let Some(packet) = context.frame.packet() else {
            return;
        };
        self.opcodes.add(packet.bth().opcode().0, 1);
        self.congested += u64::from(packet.bth().opcode() == Opcode::CNP);
        match packet.aeth().map(|aeth| aeth.syndrome().answer()) {
            Some(Answer::Nak(code)) => self.naks.add(low_byte(code.code()), 1),
            Some(Answer::RnrNak(timer)) => self.rnrs.add(low_byte(timer.0), 1),
            Some(Answer::Ack(_) | Answer::Reserved(_)) | None => {}
        }
        let (source, destination) = context.addresses();
        let conversation = Conversation { source, destination, qp: packet.bth().dest_qp() };
        self.count(conversation, Traffic { packets: 1, payload: packet.payload_len() as u64 });
    }

    fn count(&mut self, conversation: Conversation, traffic: Traffic) {
        let slot = &mut self.latest[conversation.slot()];
        match self.conversations.get_mut(*slot) {
            Some((same, sum)) if *same == conversation => return sum.add(traffic),
            _ => {}
        }
        match self.index.entry(conversation) {
            Entry::Occupied(at) => *slot = *at.get(),
            Entry::Vacant(_) if self.conversations.len() >= CONVERSATIONS_MAX => {
                return self.elsewhere.add(traffic);
            }
            Entry::Vacant(new) => {
                *slot = *new.insert(self.conversations.len());
                self.conversations.push((conversation, Traffic::default()));
            }
        }
        if let Some((_, sum)) = self.conversations.get_mut(*slot) {
            sum.add(traffic);
        }
    }

    /// Adds the frames of `later`, which come after these: the sum is as if all had been added to
    /// one summary.
    pub fn append(&mut self, later: &Self) {
        self.frames += later.frames;
        self.bytes += later.bytes;
        self.roce_frames += later.roce_frames;
        self.trains.append(later.trains);
        self.malformed += later.malformed;
        self.first_time = min_some(self.first_time, later.first_time);
        self.last_time = self.last_time.max(later.last_time);
        for (count, more) in self.verdicts.iter_mut().zip(later.verdicts) {
            *count += more;
        }
        self.opcodes.append(&later.opcodes);
        self.naks.append(&later.naks);
        self.rnrs.append(&later.rnrs);
        self.congested += later.congested;
        for &(conversation, traffic) in &later.conversations {
            self.count(conversation, traffic);
        }
        self.elsewhere.add(later.elsewhere);
        self.add_skipped(later.skips, later.skipped_bytes);
    }

    /// Clears the summary, and keeps the memory.
    pub fn clear(&mut self) {
        (self.frames, self.bytes, self.roce_frames, self.malformed) = (0, 0, 0, 0);
        self.trains = Trains::default();
        (self.first_time, self.last_time) = (None, None);
        (self.congested, self.verdicts) = (0, [0; 3]);
        self.opcodes.clear();
        self.naks.clear();
        self.rnrs.clear();
        // What `latest` says of an empty list is wrong, and found to be.
        self.conversations.clear();
        self.index.clear();
        self.elsewhere = Traffic::default();
        (self.skips, self.skipped_bytes) = (0, 0);
    }

    /// The conversations, busiest first.
    fn sorted(&self) -> Vec<(Conversation, Traffic)> {
        let mut all = self.conversations.clone();
        all.sort_by_key(|(who, what)| {
            (core::cmp::Reverse(what.packets), who.source.0, who.destination.0, who.qp.get())
        });
        all
    }

    /// Returns the opcodes that occurred, most frequent first.
    fn opcodes(&self) -> Vec<(Opcode, u64)> {
        let mut all: Vec<_> =
            self.opcodes.iter().map(|(code, count)| (Opcode(code), count)).collect();
        all.sort_by_key(|&(opcode, count)| (core::cmp::Reverse(count), opcode));
        all
    }

    /// Returns the reasons of NAKs, with their numbers.
    fn naks(&self) -> impl Iterator<Item = (NakCode, u64)> {
        self.naks.iter().map(|(code, count)| (NakCode::from_code(Bits::low(code.into())), count))
    }

    /// Returns the RNR timers of NAKs, with their numbers.
    fn rnrs(&self) -> impl Iterator<Item = (RnrTimer, u64)> {
        self.rnrs.iter().map(|(code, count)| (RnrTimer(Bits::low(code.into())), count))
    }

    /// The summary for people.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        let (frames, roce, bytes) = (self.frames, self.roce_frames, self.bytes);
        put(&mut out, format_args!("frames         {frames}, {bytes} bytes on the wire\n"));
        put(&mut out, format_args!("RoCE frames    {roce}\n"));
        if let Some(sentence) = self.trains.sentence() {
            put(&mut out, format_args!("trains         {sentence}\n"));
        }
        for (label, time) in
            [("first          ", self.first_time), ("last           ", self.last_time)]
        {
            if let Some(time) = time {
                out.push_str(label);
                write_date_and_time(time, &mut out);
                out.push_str(" UTC\n");
            }
        }
        if self.skips > 0 {
            let (places, bytes) = (self.skips, self.skipped_bytes);
            put(
                &mut out,
                format_args!("skipped        {bytes} bytes of damage at {places} places\n"),
            );
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

    fn write_conversations(&self, out: &mut String) {
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
}

/// The bits of a code as a byte.
fn low_byte(bits: Bits<5>) -> u8 {
    u8::try_from(bits.get()).unwrap_or(u8::MAX)
}

/// The earlier of two times, where they are known.
fn min_some(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
