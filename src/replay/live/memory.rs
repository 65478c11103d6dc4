//! The memory that the requests of a script touch: what the peer must have, and what it must hold.

use std::collections::BTreeMap;

use super::limits::{MEMORY_MAX, RECEIVES_MAX, REGION_GAP_MAX, REGIONS_MAX};
use super::script::{Captured, Event, Order, Script};
use crate::wire::aeth::{Answer, NakCode};
use crate::wire::{AtomicEth, Operation, RKey, Right};

/// Rights of a peer to a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// May be written.
    pub write: bool,
    /// May be read.
    pub read: bool,
    /// May be changed by atomic operations.
    pub atomic: bool,
}

/// Memory of the capture's responder that a key gives access to.
#[derive(Clone, PartialEq, Eq)]
pub struct Region {
    /// The key, in the capture.
    pub rkey: RKey,
    /// First address, in the capture.
    pub start: u64,
    /// Rights that the responder granted.
    pub rights: Rights,
    /// Contents.
    pub bytes: Vec<u8>,
    /// Bytes of the contents that are known.
    pub known: Vec<bool>,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Region");
        out.field("rkey", &self.rkey).field("start", &self.start).field("rights", &self.rights);
        out.field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Region {
    /// Returns the place of an access in the region, if all of it lies there.
    fn offset(&self, rkey: RKey, address: u64, len: u64) -> Option<usize> {
        let offset = address.checked_sub(self.start).filter(|_| rkey == self.rkey)?;
        let end = offset.checked_add(len)?;
        (end <= self.bytes.len() as u64).then(|| usize::try_from(offset).ok())?
    }
}

/// Error: a script's memory cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Too many regions.
    #[error(
        "the requests touch more than {REGIONS_MAX} memory regions: name what to map onto (--map rkey:OLD=NEW)"
    )]
    TooManyRegions,
    /// Too many bytes.
    #[error("the requests touch more than {} MiB of memory", MEMORY_MAX >> 20)]
    TooLarge,
    /// Too many messages that take receives.
    #[error(
        "the requests need more than {RECEIVES_MAX} receives at once: play a part of the capture"
    )]
    TooManyReceives,
}

/// Memory that a peer must have so that it can answer as the capture's responder did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Memory regions.
    pub regions: Vec<Region>,
    /// Receives.
    pub receives: usize,
    /// The length of the longest message that takes a receive.
    pub receive_bytes: usize,
}

/// One access of a request, as its first packet names it.
#[derive(Clone, Copy, Debug)]
struct Access {
    rkey: RKey,
    address: u64,
    len: u64,
    rights: Rights,
}

impl Needs {
    /// Returns the memory that a script needs. Where a request was refused in the capture, its
    /// memory is not mapped: the peer is to refuse it too.
    pub fn of(script: &Script) -> Result<Self, MemoryError> {
        let refused = refused(script);
        let mut spans: BTreeMap<(u32, u64), (u64, Rights)> = BTreeMap::new();
        let (mut receives, mut longest, mut message) = (0, 0, 0);
        let mut order = Order::new(script);
        for request in script.requests() {
            let is_new = order.accepts(request);
            let Some(info) = request.view().and_then(|packet| packet.info()) else { continue };
            if is_new && info.operation == Operation::Send {
                let len = request.view().map_or(0, |packet| packet.payload_len());
                message = if info.position.begins() { len } else { message + len };
                longest = longest.max(message);
            }
            receives += usize::from(is_new && info.receive.completes());
            if let Some(access) = access_of(request)
                && !refused.iter().any(|at| request_covers(script, request, *at))
            {
                let span = spans.entry((access.rkey.get(), access.address));
                let (len, rights) = span.or_default();
                *len = access.len.max(*len);
                *rights = union(*rights, access.rights);
            }
        }
        if receives > RECEIVES_MAX {
            return Err(MemoryError::TooManyReceives);
        }
        let mut needs = Self { regions: regions(spans)?, receives, receive_bytes: longest };
        needs.learn(script);
        Ok(needs)
    }

    /// Learns what the memory held before the script began, from what was read of it.
    fn learn(&mut self, script: &Script) {
        let mut model = Model::new(script, self.regions.clone());
        let mut initial = self.regions.clone();
        let requests = DataRequests::new(script);
        for event in &script.events {
            match event {
                Event::Request(request) => drop(model.execute(request)),
                Event::Answer(answer) => {
                    if let Some((access, data, becomes)) = requests.memory_of(answer) {
                        model.learn(access, &data, &becomes, &mut initial);
                    }
                }
            }
        }
        self.regions = initial;
    }

    /// Returns the memory with zeros for all bytes that the capture does not tell.
    #[must_use]
    pub fn zeroed(mut self) -> Self {
        self.regions.iter_mut().for_each(|region| region.known.fill(true));
        self
    }
}

fn union(a: Rights, b: Rights) -> Rights {
    Rights { write: a.write | b.write, read: a.read | b.read, atomic: a.atomic | b.atomic }
}

/// The sequence numbers at which the responder refused something for good.
pub(super) fn refused(script: &Script) -> Vec<i64> {
    let fatal = script.answers().filter(|answer| {
        let syndrome = answer.view().and_then(|packet| packet.aeth().map(|aeth| aeth.syndrome()));
        syndrome.is_some_and(|syndrome| {
            matches!(syndrome.answer(), Answer::Nak(code) if code != NakCode::PsnSequenceError)
        })
    });
    fatal.map(|answer| answer.sequence).collect()
}

/// Whether the message that a packet begins has this sequence number.
fn request_covers(script: &Script, request: &Captured, at: i64) -> bool {
    let len = access_of(request).map_or(0, |access| access.len);
    let packets = len.div_ceil(u64::from(script.mtu.max(1))).max(1);
    let end = request.sequence.saturating_add(i64::try_from(packets).unwrap_or(i64::MAX));
    (request.sequence..end).contains(&at)
}

/// The access that a request names, if it has an RETH or AtomicETH and touches any byte.
fn access_of(request: &Captured) -> Option<Access> {
    let packet = request.view()?;
    let right = packet.info()?.right;
    let rights = Rights {
        write: right == Right::Write,
        read: right == Right::Read,
        atomic: right == Right::Atomic,
    };
    let (rkey, address, len) = match (packet.reth(), packet.atomic_eth()) {
        (Some(reth), _) => (reth.rkey(), reth.va(), u64::from(reth.dma_len())),
        (None, Some(atomic)) => (atomic.rkey(), atomic.va(), 8),
        (None, None) => return None,
    };
    (len > 0 && address.checked_add(len).is_some()).then_some(Access { rkey, address, len, rights })
}

/// Merges accesses into regions: those of one key whose addresses are not far apart are one.
fn regions(spans: BTreeMap<(u32, u64), (u64, Rights)>) -> Result<Vec<Region>, MemoryError> {
    // Atomic operations want aligned addresses, and buffers are aligned to eight bytes at least.
    const ALIGN: u64 = 8;
    let mut ranges: Vec<(u32, u64, u64, Rights)> = Vec::new();
    for ((rkey, address), (len, rights)) in spans {
        let (start, end) = (address & !(ALIGN - 1), address.saturating_add(len));
        match ranges.last_mut() {
            Some((key, _, last, all))
                if *key == rkey && start <= last.saturating_add(REGION_GAP_MAX) =>
            {
                *last = end.max(*last);
                *all = union(*all, rights);
            }
            _ => ranges.push((rkey, start, end, rights)),
        }
    }
    if ranges.len() > REGIONS_MAX {
        return Err(MemoryError::TooManyRegions);
    }
    let total = ranges.iter().map(|(_, start, end, _)| end - start).try_fold(0, u64::checked_add);
    if total.is_none_or(|total| total > MEMORY_MAX) {
        return Err(MemoryError::TooLarge);
    }
    let make = |(rkey, start, end, rights): (u32, u64, u64, Rights)| {
        let len = usize::try_from(end - start).unwrap_or(0);
        let (bytes, known) = (vec![0; len], vec![false; len]);
        Region { rkey: RKey::new(rkey), start, rights, bytes, known }
    };
    Ok(ranges.into_iter().map(make).collect())
}

/// Applies a request to memory, and returns the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// The data of a READ, each byte if it is known; the old value of an atomic operation.
    pub data: Vec<Option<u8>>,
}

/// The memory of the peer, as it must be after the requests that were executed.
#[derive(Clone, Debug)]
pub struct Model {
    regions: Vec<Region>,
    /// Key and address of the next packet of a WRITE.
    cursor: Option<(RKey, u64)>,
    order: Order,
    /// Bytes that the capture shows with another value than the requests explain.
    pub changed_by_program: u64,
}

impl Model {
    /// Memory that nothing was executed on.
    pub fn new(script: &Script, regions: Vec<Region>) -> Self {
        Self { regions, cursor: None, order: Order::new(script), changed_by_program: 0 }
    }

    /// The regions as they are now.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Starts another round of the script, whose sequence numbers begin again.
    pub fn next_round(&mut self, script: &Script) {
        self.order = Order::new(script);
        self.cursor = None;
    }

    /// Executes a request, if it is the next one in order.
    pub fn execute(&mut self, request: &Captured) -> Effect {
        if !self.order.accepts(request) {
            return Effect::default();
        }
        let Some(packet) = request.view() else { return Effect::default() };
        let Some(info) = packet.info() else { return Effect::default() };
        let access = access_of(request);
        match info.operation {
            Operation::Write => {
                if info.position.begins() {
                    self.cursor = access.map(|access| (access.rkey, access.address));
                }
                self.write(packet.payload());
                Effect::default()
            }
            Operation::AtomicWrite => {
                self.cursor = access.map(|access| (access.rkey, access.address));
                self.write(packet.payload());
                Effect::default()
            }
            Operation::ReadRequest => Effect { data: self.read(access) },
            Operation::CompareSwap | Operation::FetchAdd => {
                let data = self.read(access);
                if let (Some(access), Some(eth)) = (access, packet.atomic_eth()) {
                    let old: Option<Vec<u8>> = data.iter().copied().collect();
                    let old = old.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
                    // What an unknown word becomes is unknown.
                    let new = old.map(|old| atomic(info.operation, u64::from_le_bytes(old), eth));
                    self.store(access, new);
                }
                Effect { data }
            }
            _ => Effect::default(),
        }
    }

    fn write(&mut self, payload: &[u8]) {
        let Some((rkey, address)) = self.cursor else { return };
        self.cursor = address.checked_add(payload.len() as u64).map(|next| (rkey, next));
        for region in &mut self.regions {
            let Some(at) = region.offset(rkey, address, payload.len() as u64) else { continue };
            region.bytes.iter_mut().skip(at).zip(payload).for_each(|(to, from)| *to = *from);
            region.known.iter_mut().skip(at).take(payload.len()).for_each(|known| *known = true);
        }
    }

    fn read(&self, access: Option<Access>) -> Vec<Option<u8>> {
        let Some(Access { rkey, address, len, .. }) = access else { return Vec::new() };
        let found = self.regions.iter().find_map(|it| Some((it, it.offset(rkey, address, len)?)));
        let Some((region, at)) = found else { return Vec::new() };
        let bytes = region.bytes.iter().zip(&region.known).skip(at);
        let bytes = bytes.map(|(byte, known)| known.then_some(*byte));
        bytes.take(usize::try_from(len).unwrap_or(0)).collect()
    }

    /// The word is in the byte order of a little-endian host, as all devices here are.
    fn store(&mut self, access: Access, word: Option<u64>) {
        let bytes = word.unwrap_or(0).to_le_bytes();
        for region in &mut self.regions {
            let Some(at) = region.offset(access.rkey, access.address, 8) else { continue };
            region.bytes.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = from);
            region.known.iter_mut().skip(at).take(8).for_each(|known| *known = word.is_some());
        }
    }

    /// Learns from an answer of the capture what the memory held: bytes that were unknown are what
    /// was read, and were so from the start.
    fn learn(&mut self, access: Access, data: &[u8], becomes: &[u8], initial: &mut [Region]) {
        let len = data.len() as u64;
        for (region, initial) in self.regions.iter_mut().zip(initial) {
            let Some(at) = region.offset(access.rkey, access.address, len) else { continue };
            for (index, (&byte, &after)) in (at..).zip(data.iter().zip(becomes)) {
                let (Some(value), Some(known)) =
                    (region.bytes.get_mut(index), region.known.get_mut(index))
                else {
                    continue;
                };
                let was_known = std::mem::replace(known, true);
                let was = std::mem::replace(value, after);
                self.changed_by_program += u64::from(was_known && was != after);
                if was_known {
                    continue;
                }
                if let (Some(value), Some(known)) =
                    (initial.bytes.get_mut(index), initial.known.get_mut(index))
                {
                    (*value, *known) = (byte, true);
                }
            }
        }
    }
}

/// READs and atomic operations by their sequence numbers, for the answers with data to find.
struct DataRequests<'s> {
    script: &'s Script,
    by_sequence: BTreeMap<i64, &'s Captured>,
}

impl<'s> DataRequests<'s> {
    fn new(script: &'s Script) -> Self {
        use Operation::{CompareSwap, FetchAdd, ReadRequest};
        let asks =
            |it: &&Captured| matches!(it.operation(), Some(ReadRequest | CompareSwap | FetchAdd));
        let by_sequence = script.requests().filter(asks).map(|it| (it.sequence, it)).collect();
        Self { script, by_sequence }
    }

    /// The memory that an answer with data tells of, what it held, and what it holds then.
    fn memory_of(&self, answer: &Captured) -> Option<(Access, Vec<u8>, Vec<u8>)> {
        let packet = answer.view().filter(|_| !answer.is_cut)?;
        let (_, request) = self.by_sequence.range(..=answer.sequence).next_back()?;
        let access = access_of(request)?;
        match packet.info()?.operation {
            Operation::ReadResponse if access.rights.read => {
                let packets = u64::try_from(answer.sequence - request.sequence).ok()?;
                let offset = packets.checked_mul(u64::from(self.script.mtu))?;
                let address = access.address.checked_add(offset)?;
                let data = packet.payload().to_vec();
                Some((Access { address, ..access }, data.clone(), data))
            }
            Operation::AtomicAcknowledge if access.rights.atomic => {
                let (old, asked) = (packet.atomic_ack_eth()?.original(), request.view()?);
                let new = atomic(asked.info()?.operation, old, asked.atomic_eth()?);
                Some((access, old.to_le_bytes().into(), new.to_le_bytes().into()))
            }
            _ => None,
        }
    }
}

/// Returns the result of an atomic operation on a word.
fn atomic(operation: Operation, old: u64, eth: &AtomicEth) -> u64 {
    match operation {
        Operation::FetchAdd => old.wrapping_add(eth.swap_or_add()),
        _ if old == eth.compare() => eth.swap_or_add(),
        _ => old,
    }
}
