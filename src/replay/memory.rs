//! Known contents of the memory that peers reach: bytes by host, key and address.
//!
//! A byte is unknown until a WRITE, a READ response or an ATOMIC reveals it; from then on it must
//! be what was revealed. But the memory is that of a program, too, which may write to it whenever
//! it runs. So all bytes of a host become unknown when its program shows activity: it posts a
//! request of its own, or a receive of it completes.

use super::limits::{PAGE_BYTES, PAGES_MAX};
use crate::observe::fold_map::FoldMap;

/// A host, by a number that the session gives.
pub(super) type HostId = u32;

/// Place of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Location {
    pub(super) host: HostId,
    pub(super) rkey: u32,
    pub(super) address: u64,
}

/// Comparison of shown bytes with known ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Known bytes are what they must be, and the others were unknown.
    Fits,
    /// Others wrote to the same place at the same time.
    Race,
    /// The byte at this offset is another than the known one, which was revealed at frame `frame`
    /// at the latest.
    Other { offset: usize, expected: u8, frame: u64 },
}

/// An access to memory: the responder, and the frames between which it happened.
#[derive(Clone, Copy, Debug)]
pub(super) struct By {
    pub(super) responder: u32,
    pub(super) since: u64,
    pub(super) until: u64,
}

/// Known bytes at one page of addresses of a host.
#[derive(Debug, Default)]
struct Place {
    /// One per key.
    pages: Vec<Page>,
    /// The two responders that wrote last, and until which frame at the latest.
    writers: [(u32, u64); 2],
}

impl Place {
    fn note_writer(&mut self, by: By) {
        if self.writers[0].0 != by.responder {
            self.writers[1] = self.writers[0];
        }
        self.writers[0] = (by.responder, by.until);
    }

    /// Whether another responder wrote at the same time.
    fn is_race(&self, by: By) -> bool {
        self.writers.iter().any(|&(writer, until)| writer != by.responder && until > by.since)
    }
}

type PageKey = (HostId, u64);

/// The bytes of one page as seen through one key.
#[derive(Debug)]
struct Page {
    rkey: u32,
    bytes: Box<[u8; PAGE_BYTES]>,
    known: [u64; PAGE_BYTES / 64],
    epoch: u64,
    /// Frame of the last write, at the latest.
    frame: u64,
}

impl Page {
    fn new(rkey: u32, epoch: u64) -> Self {
        let bytes = Box::new([0; PAGE_BYTES]);
        Self { rkey, bytes, known: [0; PAGE_BYTES / 64], epoch, frame: 0 }
    }

    fn is_known(&self, at: usize) -> bool {
        self.known.get(at / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    /// Marks bytes as known or not.
    fn mark(&mut self, from: usize, len: usize, is_known: bool) {
        for (at, mask) in masks(from, len) {
            if let Some(word) = self.known.get_mut(at) {
                *word = if is_known { *word | mask } else { *word & !mask };
            }
        }
    }

    /// Whether all these bytes are known.
    fn all_known(&self, from: usize, len: usize) -> bool {
        let is_known = |(at, mask)| self.known.get(at).is_some_and(|word| word & mask == mask);
        masks(from, len).all(is_known)
    }
}

/// The words of 64 bits that `len` bits from `from` on lie in, each with a mask of these bits.
fn masks(from: usize, len: usize) -> impl Iterator<Item = (usize, u64)> {
    let end = from + len;
    (from / 64..end.div_ceil(64)).map(move |at| {
        let (first, last) = (from.max(at * 64) % 64, (end - 1).min(at * 64 + 63) % 64);
        (at, u64::MAX << first & u64::MAX >> (63 - last))
    })
}

/// Known contents of memory. Pages that were not used for long are forgotten.
#[derive(Debug, Default)]
pub(super) struct Memory {
    young: FoldMap<PageKey, Place>,
    old: FoldMap<PageKey, Place>,
    young_pages: usize,
    /// Times that the program of each host showed activity, and the last frame that shows it.
    epochs: Vec<(u64, u64)>,
    /// Maximum number of pages, young and old together.
    pages_max: usize,
}

impl Memory {
    /// Room for one of `shards`.
    pub(super) fn new(shards: usize) -> Self {
        Self { pages_max: PAGES_MAX / shards, ..Self::default() }
    }

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

    /// Returns the place of an address.
    fn place(&mut self, key: PageKey) -> &mut Place {
        if !self.young.contains_key(&key) {
            if self.young_pages >= self.pages_max / 2 {
                self.old = core::mem::take(&mut self.young);
                self.young_pages = 0;
            }
            let place = self.old.remove(&key).unwrap_or_default();
            self.young_pages += place.pages.len().max(1);
            self.young.insert(key, place);
        }
        self.young.entry(key).or_default()
    }

    /// The page of one key, as far as it is of this epoch; a new one with `create`.
    fn page(&mut self, key: PageKey, rkey: u32, create: bool) -> Option<&mut Page> {
        let epoch = self.epoch(key.0);
        let pages = &mut self.place(key).pages;
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
        let page = self.young.get_mut(&key)?.pages.get_mut(at)?;
        if page.epoch != epoch {
            page.epoch = epoch;
            page.known = [0; PAGE_BYTES / 64];
        }
        Some(page)
    }

    /// Bytes were written; with `None`, bytes that are not known. If another responder wrote to the
    /// same page at the same time, it is not known who was first.
    pub(super) fn write(&mut self, at: Location, len: usize, bytes: Option<&[u8]>, by: By) {
        for (address, range) in parts(at.address, len) {
            let key = (at.host, address / PAGE_BYTES as u64);
            let from = in_page(address);
            let place = self.place(key);
            let is_race = place.is_race(by);
            place.note_writer(by);
            // The same memory may be known by other keys.
            let others = place.pages.iter_mut().filter(|page| page.rkey != at.rkey);
            others.for_each(|page| page.mark(from, range.len(), false));
            let Some(page) = self.page(key, at.rkey, bytes.is_some()) else { continue };
            let part = bytes.filter(|_| !is_race).and_then(|bytes| bytes.get(range.clone()));
            if let (Some(part), Some(place)) = (part, page.bytes.get_mut(from..from + range.len()))
            {
                place.copy_from_slice(part);
            }
            page.mark(from, range.len(), part.is_some());
            page.frame = by.until;
        }
    }

    /// Holds bytes that a responder showed against those that are known.
    pub(super) fn check(&mut self, at: Location, bytes: &[u8], by: By) -> Found {
        for (address, range) in parts(at.address, bytes.len()) {
            let key = (at.host, address / PAGE_BYTES as u64);
            let from = in_page(address);
            let is_race = self.place(key).is_race(by);
            let Some(page) = self.page(key, at.rkey, false) else { continue };
            let Some(part) = bytes.get(range.clone()) else { continue };
            let Some(known) = page.bytes.get(from..from + part.len()) else { continue };
            if known == part {
                continue;
            }
            let differs = (0..part.len())
                .find(|&at| known.get(at) != part.get(at) && page.is_known(from + at));
            if let Some(differs) = differs {
                if is_race {
                    return Found::Race;
                }
                let expected = known.get(differs).copied().unwrap_or_default();
                return Found::Other { offset: range.start + differs, expected, frame: page.frame };
            }
        }
        Found::Fits
    }

    /// Bytes that a responder showed are known from now on, but where others wrote at the same
    /// time.
    pub(super) fn adopt(&mut self, at: Location, bytes: &[u8], by: By) {
        for (address, range) in parts(at.address, bytes.len()) {
            let key = (at.host, address / PAGE_BYTES as u64);
            let from = in_page(address);
            let is_race = self.place(key).is_race(by);
            let Some(page) = self.page(key, at.rkey, !is_race) else { continue };
            let Some(part) = bytes.get(range) else { continue };
            if is_race {
                // What is the same as before is as known as before.
                let known = page.bytes.get(from..from + part.len());
                if known != Some(part) {
                    page.mark(from, part.len(), false);
                }
                continue;
            }
            let all_known = page.all_known(from, part.len());
            let Some(place) = page.bytes.get_mut(from..from + part.len()) else { continue };
            if all_known && place == part {
                continue;
            }
            place.copy_from_slice(part);
            page.mark(from, part.len(), true);
            page.frame = by.until;
            // It shows what others may have written just before.
            self.place(key).note_writer(by);
        }
    }

    /// The eight bytes at a place as the number that an ATOMIC works on, if all are known and no
    /// other connection wrote at the same time, and since which frame.
    pub(super) fn number(&mut self, at: Location, by: By) -> Option<(u64, u64)> {
        let key = (at.host, at.address / PAGE_BYTES as u64);
        let from = in_page(at.address);
        if self.place(key).is_race(by) {
            return None;
        }
        let page = self.page(key, at.rkey, false)?;
        let bytes: [u8; 8] = page.bytes.get(from..from + 8)?.try_into().ok()?;
        page.all_known(from, 8).then(|| (u64::from_le_bytes(bytes), page.frame))
    }

    /// Returns the responder that wrote to a page last, and until which frame.
    pub(super) fn last_writer(&mut self, at: Location) -> (u32, u64) {
        self.place((at.host, at.address / PAGE_BYTES as u64)).writers[0]
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

/// A range of addresses, cut at the ends of pages: the address of each part, and which bytes of the
/// whole it has. Addresses wrap around, as those of a broken request may.
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
