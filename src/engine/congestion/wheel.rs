//! Deadlines of paced queue pairs.
//!
//! They move with every packet, so a tree of them would cost more the more queue pairs there are.
//! Here a deadline is put into the bucket of its microsecond, in the order of time; a bitmap finds
//! the next bucket. Deadlines beyond the buckets, which only slow queue pairs have, are in a tree.

use std::collections::BTreeSet;
use std::iter::successors;

use crate::table::SlotId;
use crate::time::Instant;

/// Number of nanoseconds of a bucket, as a power of two.
const BUCKET_BITS: u32 = 10;

/// Number of buckets: 8.4 ms, the gap of packets of 1 KiB at 1 Mb/s.
const BUCKETS: usize = 1 << 13;

/// Number of bits of a word of the bitmap.
const WORD: usize = 64;

/// No entry.
const NONE: u32 = u32::MAX;

/// Position of an entry, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct EntryId(u32);

impl EntryId {
    pub(in crate::engine) const NONE: Self = Self(NONE);
}

/// One deadline: an element of the circular list of its bucket.
#[derive(Clone, Copy, Debug)]
struct Entry {
    deadline: u64,
    slot: SlotId,
    before: u32,
    after: u32,
    /// Its bucket, or [`NONE`] in the tree.
    bucket: u32,
}

/// Deadlines of paced queue pairs, at most one for each.
#[derive(Debug, Default)]
pub(in crate::engine) struct Wheel {
    entries: Vec<Entry>,
    unused: Vec<u32>,
    /// First entry of each bucket; empty until the first deadline.
    heads: Vec<u32>,
    /// Buckets that have entries, and words of `used` that are not zero.
    used: Vec<u64>,
    summary: [u64; BUCKETS / WORD / WORD],
    /// Number of the first bucket since the origin of time: no entry in a bucket is due before it.
    start: u64,
    far: BTreeSet<(u64, u32)>,
    count: usize,
}

impl Wheel {
    /// Whether it has no deadline.
    #[inline]
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the earliest deadline.
    #[inline]
    pub(in crate::engine) fn next(&self) -> Option<Instant> {
        if self.count == 0 {
            return None;
        }
        let far = self.far.first().map(|(deadline, _)| *deadline);
        let near = self.first_entry().map(|entry| entry.deadline);
        near.into_iter().chain(far).min().map(Instant::from_nanos)
    }

    /// Adds the deadline of a queue pair; returns its entry.
    pub(in crate::engine) fn insert(&mut self, deadline: Instant, slot: SlotId) -> EntryId {
        if self.heads.is_empty() {
            self.heads = vec![NONE; BUCKETS];
            self.used = vec![0; BUCKETS / WORD];
        }
        let deadline = deadline.as_nanos();
        let entry = Entry { deadline, slot, before: NONE, after: NONE, bucket: NONE };
        let id = match self.unused.pop() {
            Some(id) => id,
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).unwrap_or(NONE)
            }
        };
        self.entries[id as usize] = entry;
        self.count += 1;
        let bucket = (deadline >> BUCKET_BITS).max(self.start);
        if bucket - self.start < BUCKETS as u64 {
            self.link(id, index_of(bucket));
        } else {
            self.far.insert((deadline, id));
        }
        EntryId(id)
    }

    /// Removes a deadline.
    pub(in crate::engine) fn remove(&mut self, id: EntryId) {
        let EntryId(id) = id;
        let Entry { deadline, bucket, .. } = self.entries[id as usize];
        if bucket == NONE {
            self.far.remove(&(deadline, id));
        } else {
            self.unlink(id);
        }
        self.unused.push(id);
        self.count -= 1;
    }

    /// Removes the next deadline that is due at `now`; returns its queue pair.
    pub(in crate::engine) fn pop_due(&mut self, now: Instant) -> Option<SlotId> {
        let now = now.as_nanos();
        let near = self.first().map(|id| (self.entries[id as usize].deadline, id));
        let far = self.far.first().copied();
        let next = near.into_iter().chain(far).min().filter(|(deadline, _)| *deadline <= now);
        let Some((_, id)) = next else {
            // Every deadline is later: the buckets before are empty.
            self.start = self.start.max(now >> BUCKET_BITS);
            return None;
        };
        let slot = self.entries[id as usize].slot;
        self.remove(EntryId(id));
        Some(slot)
    }

    /// Queue pairs of the first bucket that has any, in the order of their deadlines.
    #[inline]
    pub(in crate::engine) fn upcoming(&self) -> impl Iterator<Item = SlotId> {
        let first = self.first();
        let entry = |id: u32| &self.entries[id as usize];
        let after = move |&id: &u32| Some(entry(id).after).filter(|after| Some(*after) != first);
        successors(first, after).map(move |id| entry(id).slot)
    }

    fn first_entry(&self) -> Option<&Entry> {
        Some(&self.entries[self.first()? as usize])
    }

    /// Returns the first entry of the buckets, which is that of the first used bucket from `start`.
    fn first(&self) -> Option<u32> {
        if self.heads.is_empty() {
            return None;
        }
        let start = index_of(self.start) as usize;
        let word = start / WORD;
        let here = self.used[word] & (u64::MAX << (start % WORD));
        let (word, bits) = if here != 0 {
            (word, here)
        } else {
            // The words behind, around to this one, of which then the bits before `start` are left.
            let word = self.next_word(word + 1).or_else(|| self.next_word(0))?;
            (word, self.used[word])
        };
        Some(self.heads[word * WORD + bits.trailing_zeros() as usize])
    }

    /// Returns the first word of the bitmap from `from` on that is not zero.
    fn next_word(&self, from: usize) -> Option<usize> {
        let mut at = from / WORD;
        let mut bits = *self.summary.get(at)? & (u64::MAX << (from % WORD));
        while bits == 0 {
            at += 1;
            bits = *self.summary.get(at)?;
        }
        Some(at * WORD + bits.trailing_zeros() as usize)
    }

    /// Puts an entry into a bucket, behind those that are due before it. Mostly it is the last.
    fn link(&mut self, id: u32, bucket: u32) {
        let deadline = self.entries[id as usize].deadline;
        let head = self.heads[bucket as usize];
        self.entries[id as usize].bucket = bucket;
        if head == NONE {
            (self.entries[id as usize].before, self.entries[id as usize].after) = (id, id);
            self.heads[bucket as usize] = id;
            self.used[bucket as usize / WORD] |= 1 << (bucket as usize % WORD);
            self.summary[bucket as usize / WORD / WORD] |= 1 << (bucket as usize / WORD % WORD);
            return;
        }
        let mut before = self.entries[head as usize].before;
        let mut is_first = false;
        while self.entries[before as usize].deadline > deadline {
            is_first = before == head;
            before = self.entries[before as usize].before;
            if is_first {
                break;
            }
        }
        let after = self.entries[before as usize].after;
        (self.entries[id as usize].before, self.entries[id as usize].after) = (before, after);
        self.entries[before as usize].after = id;
        self.entries[after as usize].before = id;
        if is_first {
            self.heads[bucket as usize] = id;
        }
    }

    fn unlink(&mut self, id: u32) {
        let Entry { before, after, bucket, .. } = self.entries[id as usize];
        let bucket = bucket as usize;
        if after == id {
            self.heads[bucket] = NONE;
            self.used[bucket / WORD] &= !(1 << (bucket % WORD));
            if self.used[bucket / WORD] == 0 {
                self.summary[bucket / WORD / WORD] &= !(1 << (bucket / WORD % WORD));
            }
            return;
        }
        self.entries[before as usize].after = after;
        self.entries[after as usize].before = before;
        if self.heads[bucket] == id {
            self.heads[bucket] = after;
        }
    }
}

/// Returns the index of a bucket among the buckets that are kept.
#[expect(clippy::cast_possible_truncation, reason = "the remainder is small")]
const fn index_of(bucket: u64) -> u32 {
    (bucket % BUCKETS as u64) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::random::{Random, seeds};

    /// Deadlines of the wheel against those of a map, with times as they come from random rates.
    #[test]
    fn the_wheel_is_a_queue_of_deadlines() {
        for seed in seeds() {
            let mut random = Random::new(seed);
            let (mut wheel, mut model, mut now) = (Wheel::default(), BTreeMap::new(), 0_u64);
            let span = 100 << (seed % 7 * 5);
            for slot in 0..1000 {
                match random.next() % 4 {
                    0 | 1 => {
                        let deadline = (now + random.next() % span).saturating_sub(span / 8);
                        let id = wheel.insert(Instant::from_nanos(deadline), SlotId(slot));
                        assert!(model.insert(slot, (deadline, id)).is_none());
                    }
                    2 if !model.is_empty() => {
                        let at = usize::try_from(random.next() % model.len() as u64).unwrap();
                        let slot = *model.keys().nth(at).unwrap();
                        wheel.remove(model.remove(&slot).unwrap().1);
                    }
                    _ => {
                        now += random.next() % (span / 2);
                        let mut last = 0;
                        while let Some(SlotId(slot)) = wheel.pop_due(Instant::from_nanos(now)) {
                            let (deadline, _) = model.remove(&slot).unwrap();
                            assert!(deadline <= now && deadline >= last, "in order");
                            last = deadline;
                        }
                        assert!(model.values().all(|(deadline, _)| *deadline > now));
                    }
                }
                let next = model.values().map(|(deadline, _)| *deadline).min();
                assert_eq!(wheel.next().map(Instant::as_nanos), next, "seed {seed}");
                assert_eq!(wheel.is_empty(), model.is_empty());
            }
        }
    }
}
