//! Shape of a request packet by itself: version, padding, payload, flags.

use super::rules;
use crate::observe::mtu::MTUS;
use crate::replay::Rule;
use crate::wire::{Operation, Packet, PayloadRule, Position};

/// A broken rule.
#[derive(Clone, Debug)]
pub(in crate::replay) struct Break {
    pub(in crate::replay) rule: &'static Rule,
    pub(in crate::replay) found: String,
    /// Other frames to look at.
    pub(in crate::replay) frames: Vec<u64>,
    /// A packet that would have been right.
    pub(in crate::replay) expected: Option<Vec<u8>>,
}

impl Break {
    pub(in crate::replay) fn new(rule: &'static Rule, found: String) -> Self {
        Self { rule, found, frames: Vec::new(), expected: None }
    }

    pub(in crate::replay) fn with_frame(mut self, frame: u64) -> Self {
        self.frames.push(frame);
        self
    }
}

/// The longest message.
const MESSAGE_MAX: u32 = 1 << 31;

/// Checks a packet by itself, at a path MTU of `mtu` bytes where that is known.
pub(in crate::replay) fn check(packet: &Packet<'_>, mtu: Option<u32>) -> Option<Break> {
    let version = packet.bth().tver().get();
    if version != 0 {
        let mut wrong =
            Break::new(&rules::HEADER_VERSION, format!("transport header version {version}"));
        wrong.expected = changed(packet, 1, |byte| byte & 0xf0);
        return Some(wrong);
    }
    check_pad(packet)
        .or_else(|| check_payload(packet, mtu))
        .or_else(|| check_length(packet))
        .or_else(|| check_solicited(packet))
}

/// The packet with one byte changed.
fn changed(packet: &Packet<'_>, at: usize, change: impl Fn(u8) -> u8) -> Option<Vec<u8>> {
    let mut bytes = packet.bytes().to_vec();
    let byte = bytes.get_mut(at)?;
    *byte = change(*byte);
    Some(bytes)
}

/// The pad count that a payload needs.
fn pad_for(len: u32) -> u32 {
    len.wrapping_neg() & 3
}

fn payload_len(packet: &Packet<'_>) -> u32 {
    u32::try_from(packet.payload_len()).unwrap_or(u32::MAX)
}

fn check_pad(packet: &Packet<'_>) -> Option<Break> {
    let info = packet.info()?;
    let (payload, pad) = (payload_len(packet), u32::from(packet.pad_len()));
    // A pad count that is wrong by itself moves the end of the payload: where the headers say how
    // long that is, they tell.
    let told = match info.payload {
        PayloadRule::Exactly(len) => u32::try_from(len).ok(),
        _ if info.position == Position::Only => packet.reth().map(|reth| reth.dma_len()),
        _ => None,
    };
    let wanted = match told {
        Some(len) if len.checked_add(pad_for(len)) == payload.checked_add(pad) => pad_for(len),
        _ if info.payload == PayloadRule::FullMtu => 0,
        _ => pad_for(payload),
    };
    if pad != wanted {
        let found = format!("pad count {pad} with {payload} bytes of payload, expected {wanted}");
        let mut wrong = Break::new(&rules::PAD, found);
        wrong.expected =
            changed(packet, 1, |byte| byte & !0x30 | u8::try_from(wanted << 4).unwrap_or(0));
        return Some(wrong);
    }
    let start = packet.header_len() + packet.payload_len();
    let bytes = packet.bytes().get(start..).unwrap_or_default();
    let at = bytes.iter().position(|&byte| byte != 0)?;
    let found = format!("pad byte {at} is {:#04x}", bytes.get(at).copied().unwrap_or_default());
    let mut wrong = Break::new(&rules::PAD, found);
    let mut whole = packet.bytes().to_vec();
    whole.iter_mut().skip(start).for_each(|byte| *byte = 0);
    wrong.expected = Some(whole);
    Some(wrong)
}

fn check_payload(packet: &Packet<'_>, mtu: Option<u32>) -> Option<Break> {
    let info = packet.info()?;
    let len = payload_len(packet);
    let fits = |mtu: u32| info.payload.allows(packet.payload_len(), mtu as usize);
    let is_right = mtu.map_or_else(|| MTUS.into_iter().any(fits), fits);
    if is_right {
        return None;
    }
    let expected = match (info.payload, mtu) {
        (PayloadRule::FullMtu, Some(mtu)) => format!("the path MTU of {mtu}"),
        (PayloadRule::FullMtu, None) => "a path MTU".into(),
        (PayloadRule::UpToMtu(least), mtu) => format!("{least} to {}", mtu.unwrap_or(4096)),
        (PayloadRule::Exactly(len), _) => format!("{len}"),
        (PayloadRule::Bitmap, _) => "8, 16, 24 or 32".into(),
    };
    let found = format!("{} with {len} bytes of payload, expected {expected}", info.name);
    Some(Break::new(&rules::PAYLOAD_LENGTH, found))
}

fn check_length(packet: &Packet<'_>) -> Option<Break> {
    let (info, reth) = (packet.info()?, packet.reth()?);
    let len = reth.dma_len();
    if info.operation == Operation::Flush {
        return None;
    }
    if len > MESSAGE_MAX {
        return Some(Break::new(&rules::DMA_LENGTH_LIMIT, format!("DMA length {len}")));
    }
    let payload = payload_len(packet);
    let is_right = match (info.operation, info.position) {
        (Operation::Write, Position::Only) => payload == len,
        (Operation::Write, Position::First) => payload < len,
        (Operation::AtomicWrite, _) => len == 8,
        _ => true,
    };
    if is_right {
        return None;
    }
    let found = format!("{} with {payload} bytes of payload has DMA length {len}", info.name);
    Some(Break::new(&rules::WRITE_DMA_LENGTH, found))
}

fn check_solicited(packet: &Packet<'_>) -> Option<Break> {
    let info = packet.info()?;
    if !packet.bth().solicited() || info.receive.completes() {
        return None;
    }
    let mut wrong =
        Break::new(&rules::SOLICITED_EVENT, format!("{} has the solicited event bit", info.name));
    wrong.expected = changed(packet, 1, |byte| byte & 0x7f);
    Some(wrong)
}

/// A digest of all that a retransmission must repeat. MigReq, AckReq and what the ICRC does not
/// cover may change.
pub(super) fn digest(packet: &[u8]) -> u64 {
    let (head, rest) = packet.split_at(packet.len().min(12));
    let mut bth = [0; 12];
    for ((at, to), &byte) in bth.iter_mut().enumerate().zip(head) {
        *to = match at {
            1 => byte & !0x40,
            4 => 0,
            8 => byte & !0x80,
            _ => byte,
        };
    }
    hash(hash(0, &bth), rest)
}

/// A digest of bytes, and of what `start` is the digest of. Four lanes, since each step waits for
/// the one before.
pub(in crate::replay) fn hash(start: u64, bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |hash: u64, word: u64| (hash ^ word).wrapping_mul(FACTOR).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let (rows, last) = words.as_chunks::<4>();
    let mut lanes = [fold(start, bytes.len() as u64), 1, 2, 3];
    for row in rows {
        for (lane, word) in lanes.iter_mut().zip(row) {
            *lane = fold(*lane, u64::from_le_bytes(*word));
        }
    }
    let last = last.iter().map(|word| u64::from_le_bytes(*word));
    let rest = rest.iter().map(|&byte| u64::from(byte));
    lanes.into_iter().chain(last).chain(rest).fold(0, fold)
}
