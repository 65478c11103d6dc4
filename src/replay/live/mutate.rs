//! Mutations: a field changed, a packet dropped, doubled or swapped, by a seed.

use std::fmt;
use std::str::FromStr;

use super::outgoing::{Outgoing, write_bits};
use crate::capture::Record;
use crate::decode::{Decoder, FieldRef};
use crate::random::Random;
use crate::wire::layout::BitRange;
use crate::wire::{Bth, LinkType, PACKET_MAX, ROCE_PORT};

/// Change of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets this value.
    Set(u64),
    /// One bit, counted from the least significant.
    Flip(u32),
    /// Moves it to a neighbor: by so much, modulo its width.
    Add(i64),
}

impl Change {
    fn apply(self, old: u64, bits: usize) -> u64 {
        let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        let new = match self {
            Self::Set(value) => value,
            Self::Flip(bit) => old ^ (1 << (bit as usize % bits.clamp(1, 64))),
            Self::Add(by) => old.wrapping_add_signed(by),
        };
        new & mask
    }
}

/// Change of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MutationKind {
    /// A field, by its name, is changed. Checksums are made anew, unless one is the field.
    Field(&'static str, Change),
    /// Bits of the ICRC are wrong.
    Icrc(u32),
    /// The packet becomes longer or shorter by so many bytes at its end; no header says so.
    Length(i32),
    /// The packet is not sent.
    Drop,
    /// The packet is sent twice.
    Double,
    /// The packet is sent behind the next one.
    Swap,
}

/// Mutation of one request of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// Number of the request, in the order of [`Script::requests`](super::Script::requests).
    pub at: usize,
    /// The change.
    pub kind: MutationKind,
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.at + 1;
        match &self.kind {
            MutationKind::Field(name, Change::Set(value)) => {
                write!(f, "{name} of request {number} set to {value:#x}")
            }
            MutationKind::Field(name, Change::Flip(bit)) => {
                write!(f, "bit {bit} of {name} of request {number} flipped")
            }
            MutationKind::Field(name, Change::Add(by)) => {
                write!(f, "{by:+} added to {name} of request {number}")
            }
            MutationKind::Icrc(flips) => {
                write!(f, "ICRC of request {number} damaged by {flips:#010x}")
            }
            MutationKind::Length(by) => write!(f, "length of request {number} changed by {by:+}"),
            MutationKind::Drop => write!(f, "request {number} dropped"),
            MutationKind::Double => write!(f, "request {number} doubled"),
            MutationKind::Swap => write!(f, "request {number} swapped with the next"),
        }
    }
}

/// Change of a field of a [`Spec`](MutateSpec).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Any of the following, by chance.
    Any,
    Set(u64),
    Flip,
    Neighbor,
    Add(i64),
    Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Any,
    Field(&'static str, How),
    Icrc,
    Length,
    Drop,
    Double,
    Swap,
}

/// Fields and actions that a run may mutate: `any`, or a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutateSpec(Vec<Choice>);

/// Short names for fields.
const SHORT: [(&str, &str); 12] = [
    ("psn", "infiniband.bth.psn"),
    ("opcode", "infiniband.bth.opcode"),
    ("qpn", "infiniband.bth.destqp"),
    ("padcnt", "infiniband.bth.padcnt"),
    ("pkey", "infiniband.bth.p_key"),
    ("tver", "infiniband.bth.tver"),
    ("ackreq", "infiniband.bth.a"),
    ("key", "infiniband.reth.r_key"),
    ("va", "infiniband.reth.va"),
    ("dmalen", "infiniband.reth.dmalen"),
    ("syndrome", "infiniband.aeth.syndrome"),
    ("crc", "infiniband.invariant.crc"),
];

impl FromStr for MutateSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let choices = text.split(',').map(|word| choice(word.trim())).collect::<Result<_, _>>()?;
        Ok(Self(choices))
    }
}

fn choice(word: &str) -> Result<Choice, String> {
    match word {
        "any" => return Ok(Choice::Any),
        "icrc" => return Ok(Choice::Icrc),
        "length" => return Ok(Choice::Length),
        "drop" => return Ok(Choice::Drop),
        "double" => return Ok(Choice::Double),
        "swap" => return Ok(Choice::Swap),
        _ => {}
    }
    let (name, how) = word.split_once('=').unwrap_or((word, ""));
    let how = match how {
        "" | "any" => How::Any,
        "flip" => How::Flip,
        "neighbor" => How::Neighbor,
        "random" => How::Random,
        text => number(text).ok_or_else(|| {
            format!("'{text}' is none of a number, +N, -N, flip, neighbor and random")
        })?,
    };
    let long = SHORT.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| *long);
    let field = FieldRef::find(long).ok_or_else(|| {
        format!(
            "'{name}' is neither a field (roce decode --list-fields lists them) nor any, icrc, length, drop, double, swap, \
             psn, opcode, qpn, padcnt, pkey, tver, ackreq, key, va, dmalen, syndrome, crc"
        )
    })?;
    Ok(Choice::Field(field.name(), how))
}

fn number(text: &str) -> Option<How> {
    if text.starts_with(['+', '-']) {
        return text.parse().ok().map(How::Add);
    }
    let value = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    Some(How::Set(value))
}

/// Headers that may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Headers from the BTH on, which every link can send.
    Transport,
    /// All of the frame.
    Frame,
}

impl MutateSpec {
    /// Whether a list names a field that only whole frames can have.
    pub fn needs_frames(&self) -> bool {
        let low = |name: &str| !(name.starts_with("infiniband.") || name.starts_with("roce."));
        self.0.iter().any(|choice| matches!(choice, Choice::Field(name, _) if low(name)))
    }

    /// One mutation of some requests, chosen by chance; nothing if none of them has such a field.
    pub fn choose(
        &self,
        random: &mut MutateSeed,
        frames: &[(usize, Outgoing)],
        reach: Reach,
    ) -> Option<Mutation> {
        // A packet that lacks the field is not the end.
        (0..64).find_map(|_| {
            let (at, out) = frames.get(random.below(frames.len()))?;
            let choice = *self.0.get(random.below(self.0.len()))?;
            let kind = kind(choice, random, out, reach)?;
            Some(Mutation { at: *at, kind })
        })
    }

    /// Returns mutations of every request.
    pub fn choose_each(
        &self,
        random: &mut MutateSeed,
        frames: &[(usize, Outgoing)],
        reach: Reach,
    ) -> Vec<Mutation> {
        let each = frames
            .iter()
            .filter_map(|frame| self.choose(random, std::slice::from_ref(frame), reach));
        each.collect()
    }
}

/// The chance of a run: the same seed chooses the same.
#[derive(Clone, Debug)]
pub struct MutateSeed(Random);

impl MutateSeed {
    /// A seed.
    pub fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// A number below `end`, or 0.
    pub fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.0.next() % end).unwrap_or(0)
    }
}

fn kind(
    choice: Choice,
    random: &mut MutateSeed,
    out: &Outgoing,
    reach: Reach,
) -> Option<MutationKind> {
    Some(match choice {
        Choice::Icrc => MutationKind::Icrc(1 << random.below(32)),
        Choice::Length => {
            let by = i32::try_from(random.below(64)).unwrap_or(0) + 1;
            MutationKind::Length(if random.below(2) == 0 { by } else { -by })
        }
        Choice::Drop => MutationKind::Drop,
        Choice::Double => MutationKind::Double,
        Choice::Swap => MutationKind::Swap,
        Choice::Field(name, how) => {
            let bits = range_of(name, out)?.len;
            MutationKind::Field(name, change(how, random, bits))
        }
        Choice::Any => match random.below(16) {
            0 => kind(Choice::Icrc, random, out, reach)?,
            1 => kind(Choice::Length, random, out, reach)?,
            2 => MutationKind::Drop,
            3 => MutationKind::Double,
            4 => MutationKind::Swap,
            _ => {
                let fields = fields(out, reach);
                let name = *fields.get(random.below(fields.len()))?;
                kind(Choice::Field(name, How::Any), random, out, reach)?
            }
        },
    })
}

fn change(how: How, random: &mut MutateSeed, bits: usize) -> Change {
    let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    match how {
        How::Set(value) => Change::Set(value & mask),
        How::Add(by) => Change::Add(by),
        How::Flip => Change::Flip(u32::try_from(random.below(bits)).unwrap_or(0)),
        How::Neighbor => Change::Add(if random.below(2) == 0 { 1 } else { -1 }),
        How::Random => Change::Set(random.0.next() & mask),
        How::Any => {
            let how = [How::Flip, How::Neighbor, How::Random, How::Set(0), How::Set(u64::MAX)];
            change(how.get(random.below(how.len())).copied().unwrap_or(How::Flip), random, bits)
        }
    }
}

/// The fields of a frame that can be changed: simply bits of a header, and no other name for all of
/// it.
fn fields(out: &Outgoing, reach: Reach) -> Vec<&'static str> {
    let frame = out.emit();
    let context = Decoder::new(ROCE_PORT).decode(&Record::frame(LinkType::ETHERNET, &frame));
    let bth = 8 * out.bth_at();
    let names = FieldRef::names().iter().copied();
    let fits = |name: &&str| {
        let range = FieldRef::find(name).and_then(|it| it.bit_ranges(&context).first().copied());
        range.is_some_and(|range| reach == Reach::Frame || range.start >= bth)
    };
    names.filter(fits).collect()
}

/// Returns the place of a field in a frame.
fn range_of(name: &str, out: &Outgoing) -> Option<BitRange> {
    let frame = out.emit();
    let context = Decoder::new(ROCE_PORT).decode(&Record::frame(LinkType::ETHERNET, &frame));
    FieldRef::find(name)?.bit_ranges(&context).first().copied()
}

/// Does to frames what mutations say. Those of requests that are not among them do nothing.
pub fn mutate(frames: Vec<(usize, Outgoing)>, mutations: &[Mutation]) -> Vec<(usize, Outgoing)> {
    let mut result: Vec<(usize, Outgoing)> = Vec::with_capacity(frames.len() + mutations.len());
    let mut late: Option<(usize, Outgoing)> = None;
    for (at, mut out) in frames {
        let mut copies = 1;
        let mut is_late = false;
        for mutation in mutations.iter().filter(|it| it.at == at) {
            match mutation.kind {
                MutationKind::Field(name, change) => mutate_field(&mut out, name, change),
                MutationKind::Icrc(flips) => out.icrc_flips ^= flips,
                MutationKind::Length(by) => {
                    let len = out.packet.len().saturating_add_signed(by as isize);
                    out.packet.resize(len.clamp(Bth::LEN, PACKET_MAX), 0);
                }
                MutationKind::Drop => copies = 0,
                MutationKind::Double => copies = 2,
                MutationKind::Swap => is_late = true,
            }
        }
        if is_late && late.is_none() {
            late = Some((at, out));
            continue;
        }
        result.extend(std::iter::repeat_n((at, out), copies));
        result.extend(late.take());
    }
    result.extend(late);
    result
}

fn mutate_field(out: &mut Outgoing, name: &str, change: Change) {
    let Some(range) = range_of(name, out) else { return };
    let frame = out.emit();
    let old = range.read(&frame).unwrap_or(0);
    let new = change.apply(old, range.len);
    let (bth, icrc) = (8 * out.bth_at(), 8 * (out.bth_at() + out.packet.len()));
    if range.start >= icrc {
        let flips = u32::try_from((old ^ new) & u64::from(u32::MAX)).unwrap_or(0);
        out.icrc_flips ^= flips;
    } else if range.start >= bth {
        let range = BitRange::new(range.start - bth, range.len);
        write_bits(&mut out.packet, range, new);
    } else {
        out.edits.push((range, new));
    }
}
