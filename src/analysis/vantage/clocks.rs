//! Differences of the files' clocks, and the order in which the files see packets from one host to
//! another.
//!
//! From file `f` to file `g` a packet takes `transit + offset` by their clocks; a packet of the
//! other direction takes `offset − transit`. So half the sum of the shortest times of both
//! directions is the offset, if the shortest transits of both directions are the same, which is
//! assumed; and the direction with the greater time passes `f` first. With packets of one direction
//! only, the clocks are assumed to be right.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, VecDeque};

use super::super::limits::{VANTAGE_CANDIDATES_MAX, VANTAGE_DIRECTIONS_MAX};
use super::chains::{Group, Hop};
use crate::wire::Gid;

/// Source and destination host.
pub(super) type Direction = (Gid, Gid);

/// Differences of two files' times for the same packets of one direction.
#[derive(Clone, Copy, Debug)]
struct Difference {
    min: i64,
    max: i64,
    sum: i128,
    count: u64,
    /// Window that the packets were in.
    window: u64,
    /// Whether it is that of a packet that was seen more than once.
    is_rough: bool,
}

/// A direction, and by pair of files the differences of times that are possible.
type Candidates = (Direction, BTreeMap<(u16, u16), Vec<i64>>);

/// Whether each file that saw a packet saw it once.
fn is_once(group: &Group) -> bool {
    group.sightings.len() == group.files().count_ones() as usize
}

/// Returns the differences of times for each sighting of one file and each of another, by pair of
/// files, the lower one first.
fn differences_of(group: &Group) -> impl Iterator<Item = ((u16, u16), i64)> {
    let all = &group.sightings;
    let later = move |a: &super::chains::Sighting| {
        let a = *a;
        let others = all.iter().filter(move |b| b.file > a.file);
        others.map(move |b| ((a.file, b.file), b.time.saturating_sub(a.time)))
    };
    all.iter().flat_map(later)
}

/// The differences near which most of them lie, in order.
fn most_frequent(all: &[i64]) -> Vec<i64> {
    let mut all = all.to_vec();
    all.sort_unstable();
    let near = |(at, &first): (usize, &i64)| {
        let rest = &all[at..];
        let count = rest.partition_point(|other| other.saturating_sub(first) <= NEAR_NANOS);
        (count, rest[count / 2])
    };
    let clusters: Vec<(usize, i64)> = all.iter().enumerate().map(near).collect();
    let most = clusters.iter().map(|(count, _)| *count).max();
    let best = clusters.into_iter().filter(|(count, _)| Some(*count) == most);
    best.map(|(_, middle)| middle).collect()
}

/// The differences that are possible between two files of which `seen`, as bits, saw packets of the
/// other direction: one that alone did is nearer to their sender, and sees later what goes there.
fn possible(all: &[i64], (a, b): (u16, u16), seen: u64) -> Vec<i64> {
    let is_seen = |file: u16| seen >> file & 1 == 1;
    let is_possible = |difference: &&i64| match (is_seen(a), is_seen(b)) {
        (false, true) => **difference >= 0,
        (true, false) => **difference <= 0,
        _ => true,
    };
    let likely: Vec<i64> = all.iter().filter(is_possible).copied().collect();
    if likely.is_empty() { all.to_vec() } else { likely }
}

/// The one that is nearest to `expected`.
fn nearest(all: &[i64], expected: i64) -> Option<i64> {
    all.iter().copied().min_by_key(|difference| difference.abs_diff(expected))
}

/// The one of `all` that is nearest to any of `others`, which are in order.
fn nearest_to_any(all: &[i64], others: &[i64]) -> Option<i64> {
    let distance = |difference: &i64| {
        let at = others.partition_point(|other| other < difference);
        let near = others.get(at.saturating_sub(1)..others.len().min(at + 1));
        let near = near.unwrap_or_default().iter();
        near.map(|other| other.abs_diff(*difference)).min().unwrap_or(u64::MAX)
    };
    all.iter().copied().min_by_key(distance).filter(|_| !others.is_empty())
}

/// Differences that are nearer to each other are taken to be the same.
const NEAR_NANOS: i64 = 1_000;

impl Difference {
    fn new(difference: i64, window: u64, is_rough: bool) -> Self {
        let (min, max, sum) = (difference, difference, difference.into());
        Self { min, max, sum, count: 1, window, is_rough }
    }

    fn mean(&self) -> i64 {
        i64::try_from(self.sum / i128::from(self.count.max(1))).unwrap_or(0)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Clocks {
    /// Time of the lower file subtracted from that of the other, by direction and pair of files.
    differences: HashMap<Direction, BTreeMap<(u16, u16), Difference>>,
    /// Time by which each file is ahead of the first file that it can be compared with.
    offsets: Vec<Option<i64>>,
    window: u64,
}

impl Clocks {
    pub(super) fn new(files: usize) -> Self {
        Self { differences: HashMap::new(), offsets: vec![None; files], window: 0 }
    }

    /// Returns the time by which each file's clock is ahead of that of the first file, where known.
    pub(super) fn offsets(&self) -> &[Option<i64>] {
        &self.offsets
    }

    /// A file's time by the first file's clock.
    pub(super) fn correct(&self, file: u16, time: i64) -> i64 {
        time.saturating_sub(self.offset(file))
    }

    fn offset(&self, file: u16) -> i64 {
        self.offsets.get(usize::from(file)).copied().flatten().unwrap_or(0)
    }

    /// The next window of packets begins; clocks drift, so it counts alone where it has enough.
    pub(super) fn begin(&mut self) {
        self.window += 1;
    }

    /// Takes a packet that several files saw, if each saw it once.
    pub(super) fn add(&mut self, group: &Group) {
        let direction = group.direction();
        let is_known = self.differences.contains_key(&direction);
        if !is_once(group) || (!is_known && self.differences.len() >= VANTAGE_DIRECTIONS_MAX) {
            return;
        }
        let pairs = self.differences.entry(direction).or_default();
        for ((a, b), difference) in differences_of(group) {
            let fresh = Difference::new(difference, self.window, false);
            let known = pairs.entry((a, b)).or_insert(fresh);
            if known.window != self.window || known.is_rough {
                *known = fresh;
                continue;
            }
            known.min = known.min.min(difference);
            known.max = known.max.max(difference);
            known.sum += i128::from(difference);
            known.count += 1;
        }
    }

    /// Takes the packets that a file saw more than once, for directions and files of which nothing
    /// better is known. Which sightings are of the same transmission is not known: but the right
    /// difference occurs in every group, and others differ. If several occur as often, it is the
    /// one that is nearest to that of the other direction, or of packets of other hosts, or to any
    /// that is possible for the other direction.
    pub(super) fn add_repeated(&mut self, groups: &[Group]) {
        let mut candidates: BTreeMap<[[u8; 16]; 2], Candidates> = BTreeMap::new();
        let whole = || groups.iter().filter(|group| !group.is_damaged);
        for group in whole().filter(|group| group.is_shared() && !is_once(group)) {
            let direction = group.direction();
            let known = self.differences.get(&direction);
            let has_once = |files: &(u16, u16)| {
                known.and_then(|pairs| pairs.get(files)).is_some_and(|known| !known.is_rough)
            };
            let pairs = &mut candidates
                .entry([direction.0.0, direction.1.0])
                .or_insert_with(|| (direction, BTreeMap::new()))
                .1;
            for (files, difference) in differences_of(group).filter(|(files, _)| !has_once(files)) {
                let all = pairs.entry(files).or_default();
                if all.len() < VANTAGE_CANDIDATES_MAX {
                    all.push(difference);
                }
            }
        }
        for (&[source, destination], (direction, pairs)) in &candidates {
            if self.differences.len() >= VANTAGE_DIRECTIONS_MAX {
                return;
            }
            for (&files, all) in pairs {
                let back = self.differences.get(&(direction.1, direction.0));
                let back = back.and_then(|pairs| pairs.get(&files)).map(Difference::mean);
                let rough_back = || candidates.get(&[destination, source])?.1.get(&files);
                let difference = match back.or_else(|| self.usual(files)) {
                    Some(expected) => nearest(&most_frequent(all), expected),
                    None => match rough_back() {
                        Some(back) => nearest_to_any(&most_frequent(all), &most_frequent(back)),
                        None => {
                            let homeward = (direction.1, direction.0);
                            let answers = whole().filter(|group| group.direction() == homeward);
                            let seen = answers.fold(0, |seen, group| seen | group.files());
                            nearest(&most_frequent(&possible(all, files, seen)), 0)
                        }
                    },
                };
                let Some(difference) = difference else { continue };
                let fresh = Difference::new(difference, self.window, true);
                self.differences.entry(*direction).or_default().insert(files, fresh);
            }
        }
    }

    /// The difference of two files' times for packets that each saw once, of the direction that has
    /// most of them.
    fn usual(&self, files: (u16, u16)) -> Option<i64> {
        let all = self.differences.values().filter_map(|pairs| pairs.get(&files));
        let once = all.filter(|difference| !difference.is_rough);
        once.map(|known| (known.count, known.mean())).max().map(|(_, mean)| mean)
    }

    /// Works out the offsets from what was taken.
    pub(super) fn estimate(&mut self) {
        let mut between: BTreeMap<(u16, u16), (u64, i64)> = BTreeMap::new();
        let mut directions: Vec<&Direction> = self.differences.keys().collect();
        directions.sort_unstable_by_key(|(source, destination)| (source.0, destination.0));
        for &&(source, destination) in
            directions.iter().filter(|(source, destination)| source.0 < destination.0)
        {
            let Some(forth) = self.differences.get(&(source, destination)) else { continue };
            let Some(back) = self.differences.get(&(destination, source)) else { continue };
            for (files, there) in forth {
                let Some(homeward) = back.get(files) else { continue };
                let least = there.count.min(homeward.count);
                let sum = if there.mean() >= homeward.mean() {
                    i128::from(there.min) + i128::from(homeward.max)
                } else {
                    i128::from(there.max) + i128::from(homeward.min)
                };
                let offset = i64::try_from(sum / 2).unwrap_or(0);
                let best = between.entry(*files).or_insert((least, offset));
                if least > best.0 {
                    *best = (least, offset);
                }
            }
        }
        self.spread(&between);
    }

    /// Brings the differences between pairs of files to the first one's clock.
    fn spread(&mut self, between: &BTreeMap<(u16, u16), (u64, i64)>) {
        let mut known: Vec<Option<i64>> = vec![None; self.offsets.len()];
        for start in 0..known.len() {
            if known[start].is_some() {
                continue;
            }
            // A file that cannot be compared with those before it keeps its clock.
            let mut queue = VecDeque::from([start]);
            known[start] = Some(self.offsets[start].filter(|_| start > 0).unwrap_or(0));
            while let Some(file) = queue.pop_front() {
                for (&(a, b), &(_, offset)) in between {
                    let (a, b) = (usize::from(a), usize::from(b));
                    let (next, step) = match file {
                        _ if file == a => (b, offset),
                        _ if file == b => (a, offset.saturating_neg()),
                        _ => continue,
                    };
                    if known[next].is_none() {
                        known[next] = known[file].map(|at| at.saturating_add(step));
                        queue.push_back(next);
                    }
                }
            }
        }
        let compared =
            |file: usize| between.keys().any(|(a, b)| [*a, *b].map(usize::from).contains(&file));
        for (file, slot) in self.offsets.iter_mut().enumerate() {
            if compared(file) {
                *slot = known[file];
            }
        }
    }

    /// The files that have seen packets of this direction that others have seen, as bits.
    pub(super) fn files(&self, direction: Direction) -> u64 {
        let pairs = self.differences.get(&direction);
        pairs.into_iter().flatten().fold(0, |files, ((a, b), _)| files | 1 << a | 1 << b)
    }

    /// Returns which of two files sees the packets of a direction first: the one that sees those of
    /// the other direction last, if nothing else is known.
    pub(super) fn order(&self, direction: Direction, a: u16, b: u16) -> Ordering {
        let there = self.transit(direction, a, b);
        let back = || self.transit((direction.1, direction.0), b, a);
        match there.or_else(back) {
            Some((mean, _)) => 0.cmp(&mean).then(a.cmp(&b)),
            None => a.cmp(&b),
        }
    }

    /// The shortest time from one file to another in a direction, by their own clocks.
    pub(super) fn transit_least(&self, direction: Direction, from: u16, to: u16) -> i64 {
        let there = self.transit(direction, from, to);
        let back = || self.transit((direction.1, direction.0), to, from);
        let least = there.or_else(back).map_or(0, |(_, least)| least);
        least.saturating_add(self.offset(to).saturating_sub(self.offset(from)))
    }

    /// The time from one file to another in a direction, by their own clocks.
    pub(super) fn hop(&self, direction: Direction, from: u16, to: u16) -> Hop {
        let there = self.transit(direction, from, to);
        let back = || self.transit((direction.1, direction.0), to, from);
        let spread = there.or_else(back).map_or(0, |(mean, least)| mean.saturating_sub(least));
        let ahead = self.offset(to).saturating_sub(self.offset(from));
        let least = self.transit_least(direction, from, to);
        // The offset is half of the sum of both shortest times, of which either may be nothing: it
        // is wrong by at most the shortest transit.
        let is_two_way = there.is_some() && back().is_some();
        let error = if is_two_way { least.saturating_sub(ahead).max(0) } else { 0 };
        Hop { least, ahead: ahead.saturating_sub(error), spread }
    }

    /// The mean and the shortest time from one file to another in a direction, by corrected clocks.
    fn transit(&self, direction: Direction, from: u16, to: u16) -> Option<(i64, i64)> {
        let (low, high) = (from.min(to), from.max(to));
        let known = self.differences.get(&direction)?.get(&(low, high))?;
        let ahead = self.offset(high).saturating_sub(self.offset(low));
        let mean = known.mean().saturating_sub(ahead);
        if from == low {
            Some((mean, known.min.saturating_sub(ahead)))
        } else {
            Some((mean.saturating_neg(), ahead.saturating_sub(known.max)))
        }
    }
}
