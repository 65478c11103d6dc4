//! What is known of the memory that peers reach: bytes by host, key and address.
//!
//! A byte is unknown until a WRITE, a READ response or an ATOMIC reveals it; from then on it must be what was revealed.
//! But the memory is that of a program, too, which may write to it whenever it runs. So all bytes of a host become
//! unknown when its program shows activity: it posts a request of its own, or a receive of it completes.

use std::collections::HashMap;

use super::limits::{PAGE_BYTES, PAGES_MAX};

/// A host, by a number that the session gives.
pub(super) type HostId = u32;

/// Where bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Location {
    pub(super) host: HostId,
    pub(super) rkey: u32,
    pub(super) address: u64,
}

/// What was found where a READ or an ATOMIC looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Known bytes are what they must be, and the others were unknown.
    Fits,
    /// The byte at this offset is another than the known one, which the responder `writer` revealed, at the latest at
    /// frame `frame`.
    Other { offset: usize, expected: u8, writer: u32, frame: u64 },
}

type PageKey = (HostId, u64);

/// The bytes of one page as seen through one key.
#[derive(Debug)]
struct Page {
    rkey: u32,
    bytes: Box<[u8; PAGE_BYTES]>,
    known: [u64; PAGE_BYTES / 64],
    epoch: u64,
    writer: u32,
    frame: u64,
}

impl Page {
    fn new(rkey: u32, epoch: u64) -> Self {
        let bytes = Box::new([0; PAGE_BYTES]);
        Self { rkey, bytes, known: [0; PAGE_BYTES / 64], epoch, writer: 0, frame: 0 }
    }

    fn is_known(&self, at: usize) -> bool {
        self.known.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// Marks bytes as known or not.
    fn mark(&mut self, from: usize, len: usize, is_known: bool) {
        let (mut at, end) = (from, from + len);
        while at < end {
            let count = (64 - at % 64).min(end - at);
            let ones = if count == 64 { u64::MAX } else { (1 << count) - 1 };
            let mask = ones << (at % 64);
            if let Some(word) = self.known.get_mut(at / 64) {
                *word = if is_known { *word | mask } else { *word & !mask };
            }
            at += count;
        }
    }

    /// Whether all these bytes are known.
    fn all_known(&self, from: usize, len: usize) -> bool {
        let (mut at, end) = (from, from + len);
        while at < end {
            let count = (64 - at % 64).min(end - at);
            let ones = if count == 64 { u64::MAX } else { (1 << count) - 1 };
            let mask = ones << (at % 64);
            if self.known.get(at / 64).is_none_or(|word| word & mask != mask) {
                return false;
            }
            at += count;
        }
        true
    }
}

/// What is known of memory. Pages that were not used for long are forgotten.
#[derive(Debug, Default)]
pub(super) struct Memory {
    young: HashMap<PageKey, Vec<Page>>,
    old: HashMap<PageKey, Vec<Page>>,
    young_pages: usize,
    /// Of each host: how often its program showed activity, and the last frame that shows it.
    epochs: Vec<(u64, u64)>,
    /// Pages that were forgotten to make room.
    forgotten: u64,
}

impl Memory {
    /// The program of a host shows activity in this frame.
    pub(super) fn note_activity(&mut self, host: HostId, frame: u64) {
        let at = host as usize;
        if at >= self.epochs.len() {
            self.epochs.resize(at + 1, (0, 0));
        }
        if let Some((epoch, last)) = self.epochs.get_mut(at) {
            *epoch += 1;
            *last = frame;
        }
    }

    /// The last frame that shows activity of the program of a host; 0 if none did.
    pub(super) fn last_activity(&self, host: HostId) -> u64 {
        self.epochs.get(host as usize).map_or(0, |(_, frame)| *frame)
    }

    fn epoch(&self, host: HostId) -> u64 {
        self.epochs.get(host as usize).map_or(0, |(epoch, _)| *epoch)
    }

    /// The pages at an address, one per key.
    fn pages(&mut self, key: PageKey) -> &mut Vec<Page> {
        if !self.young.contains_key(&key) {
            if self.young_pages >= PAGES_MAX / 2 {
                self.forgotten += self.old.values().map(|pages| pages.len() as u64).sum::<u64>();
                self.old = core::mem::take(&mut self.young);
                self.young_pages = 0;
            }
            let pages = self.old.remove(&key).unwrap_or_default();
            self.young_pages += pages.len();
            self.young.insert(key, pages);
        }
        self.young.entry(key).or_default()
    }

    /// The page of one key, as far as it is of this epoch; a new one with `create`.
    fn page(&mut self, key: PageKey, rkey: u32, create: bool) -> Option<&mut Page> {
        let epoch = self.epoch(key.0);
        let pages = self.pages(key);
        let at = pages.iter().position(|page| page.rkey == rkey);
        let at = match at {
            Some(at) => at,
            // One address through many keys: more are not remembered.
            None if create && pages.len() < 16 => {
                pages.push(Page::new(rkey, epoch));
                let at = pages.len() - 1;
                self.young_pages += 1;
                at
            }
            None => return None,
        };
        let page = self.young.get_mut(&key)?.get_mut(at)?;
        if page.epoch != epoch {
            page.epoch = epoch;
            page.known = [0; PAGE_BYTES / 64];
        }
        Some(page)
    }

    /// Bytes were written by the responder `writer`, between the frames `from` and `to`; with `None`, bytes that are not
    /// known. If another responder wrote to the same page meanwhile, nobody knows who was first.
    pub(super) fn write(
        &mut self,
        at: Location,
        len: usize,
        bytes: Option<&[u8]>,
        (writer, since, frame): (u32, u64, u64),
    ) {
        for (address, range) in parts(at.address, len) {
            let key = (at.host, address / PAGE_BYTES as u64);
            let from = in_page(address);
            // The same memory may be known by other keys.
            let others = self.pages(key).iter_mut().filter(|page| page.rkey != at.rkey);
            others.for_each(|page| page.mark(from, range.len(), false));
            let Some(page) = self.page(key, at.rkey, bytes.is_some()) else { continue };
            let is_race = page.writer != writer && page.frame > since;
            let part = bytes.filter(|_| !is_race).and_then(|bytes| bytes.get(range.clone()));
            if let (Some(part), Some(place)) = (part, page.bytes.get_mut(from..from + range.len()))
            {
                place.copy_from_slice(part);
            }
            page.mark(from, range.len(), part.is_some());
            (page.writer, page.frame) = (writer, frame);
        }
    }

    /// Holds bytes that a responder showed against those that are known.
    pub(super) fn check(&mut self, at: Location, bytes: &[u8]) -> Found {
        for (address, range) in parts(at.address, bytes.len()) {
            let key = (at.host, address / PAGE_BYTES as u64);
            let from = in_page(address);
            let Some(page) = self.page(key, at.rkey, false) else { continue };
            let Some(part) = bytes.get(range.clone()) else { continue };
            let Some(known) = page.bytes.get(from..from + part.len()) else { continue };
            if known == part {
                continue;
            }
            let differs = (0..part.len())
                .find(|&at| known.get(at) != part.get(at) && page.is_known(from + at));
            if let Some(differs) = differs {
                let expected = known.get(differs).copied().unwrap_or_default();
                let (writer, frame) = (page.writer, page.frame);
                return Found::Other { offset: range.start + differs, expected, writer, frame };
            }
        }
        Found::Fits
    }

    /// Bytes that a responder showed are known from now on; those that were known stay marked with who revealed them.
    pub(super) fn adopt(&mut self, at: Location, bytes: &[u8], by: (u32, u64)) {
        for (address, range) in parts(at.address, bytes.len()) {
            let key = (at.host, address / PAGE_BYTES as u64);
            let from = in_page(address);
            let Some(page) = self.page(key, at.rkey, true) else { continue };
            let Some(part) = bytes.get(range) else { continue };
            let all_known = page.all_known(from, part.len());
            let Some(place) = page.bytes.get_mut(from..from + part.len()) else { continue };
            if all_known && place == part {
                continue;
            }
            place.copy_from_slice(part);
            page.mark(from, part.len(), true);
            (page.writer, page.frame) = by;
        }
    }
}

impl Memory {
    /// The eight bytes at a place as the number that an ATOMIC works on, if all are known, and by whom, since which frame.
    pub(super) fn number(&mut self, at: Location) -> Option<(u64, u32, u64)> {
        let key = (at.host, at.address / PAGE_BYTES as u64);
        let from = in_page(at.address);
        let page = self.page(key, at.rkey, false)?;
        let bytes: [u8; 8] = page.bytes.get(from..from + 8)?.try_into().ok()?;
        let value = u64::from_le_bytes(bytes);
        page.all_known(from, 8).then_some((value, page.writer, page.frame))
    }

    /// Who wrote to a page last, and until which frame.
    pub(super) fn stamp(&mut self, at: Location) -> Option<(u32, u64)> {
        let key = (at.host, at.address / PAGE_BYTES as u64);
        self.page(key, at.rkey, false).map(|page| (page.writer, page.frame))
    }

    /// The bytes at a place: known ones as they are known, the others as `shown`.
    pub(super) fn overlay(&mut self, at: Location, shown: &[u8]) -> Vec<u8> {
        let mut bytes = shown.to_vec();
        for (address, range) in parts(at.address, shown.len()) {
            let key = (at.host, address / PAGE_BYTES as u64);
            let from = in_page(address);
            let Some(page) = self.page(key, at.rkey, false) else { continue };
            for (at, index) in range.enumerate() {
                let known = page.is_known(from + at).then(|| page.bytes.get(from + at)).flatten();
                if let (Some(&byte), Some(out)) = (known, bytes.get_mut(index)) {
                    *out = byte;
                }
            }
        }
        bytes
    }
}

fn in_page(address: u64) -> usize {
    usize::try_from(address % PAGE_BYTES as u64).unwrap_or(0)
}

/// A range of addresses, cut at the ends of pages: the address of each part, and which bytes of the whole it has.
/// Addresses wrap around, as those of a broken request may.
fn parts(address: u64, len: usize) -> impl Iterator<Item = (u64, core::ops::Range<usize>)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let here = address.wrapping_add(done as u64);
        let count = (PAGE_BYTES - in_page(here)).min(len - done);
        let range = done..done + count;
        done += count;
        Some((here, range))
    })
}
