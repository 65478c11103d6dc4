//! Chains of sightings: the packets of one flow at two capture points are aligned by their order.
//!
//! A network keeps the order of a flow, save for the packets that are overtaken. So the packets
//! that both points have in the same order are found first (a longest increasing subsequence, of
//! those with the least delay), which tells equal transmissions of one packet apart: a
//! retransmission is often equal to the last byte. What arrived besides is an earlier transmission
//! that was overtaken, or a copy that the network made.

use std::collections::HashMap;

use super::Flow;
use crate::analysis::limits::VANTAGE_EQUAL_MAX;
use crate::observe::disorder::Lateness;
use crate::wire::Gid;

/// One packet seen by one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sighting {
    /// Index of the held packet.
    pub(super) index: usize,
    pub(super) file: u16,
    /// Time by the file's own clock.
    pub(super) time: i64,
    /// Number that equal packets share.
    pub(super) identity: u32,
}

/// Sightings of equal packets, in the order in which they were merged.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) flow: Flow,
    pub(super) is_damaged: bool,
    pub(super) sightings: Vec<Sighting>,
}

impl Group {
    /// The two hosts.
    pub(super) fn direction(&self) -> (Gid, Gid) {
        (self.flow.source, self.flow.destination)
    }

    /// The files that saw it, as bits.
    pub(super) fn files(&self) -> u64 {
        self.sightings.iter().fold(0, |files, seen| files | 1 << seen.file)
    }

    /// Whether more than one file saw it.
    pub(super) fn is_shared(&self) -> bool {
        self.sightings
            .iter()
            .any(|seen| Some(seen.file) != self.sightings.first().map(|first| first.file))
    }
}

/// One packet on its way past the capture points.
#[derive(Debug)]
pub(super) struct Chain {
    /// Sightings in the order of the path.
    pub(super) sightings: Vec<Sighting>,
    /// Whether the network made it.
    pub(super) is_copy: bool,
    /// Extent by which it arrived out of order somewhere on its way, if it did.
    pub(super) reordered: Option<Lateness>,
}

impl Chain {
    fn begin(seen: Sighting, is_copy: bool) -> Self {
        Self { sightings: vec![seen], is_copy, reordered: None }
    }
}

/// The time from one file to another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hop {
    /// The shortest, by their own clocks.
    pub(super) least: i64,
    /// Least possible difference of the clocks: no packet takes less time, by their own clocks.
    pub(super) ahead: i64,
    /// Mean time in excess of the shortest.
    pub(super) spread: i64,
}

/// The packets that the sightings of a flow are of. `path` are the files on the way in their order.
pub(super) fn of(flow: &[Sighting], path: &[u16], hop: impl Fn(u16, u16) -> Hop) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut before: Option<u16> = None;
    for &file in path {
        let here: Vec<Sighting> = flow.iter().copied().filter(|seen| seen.file == file).collect();
        let hop = before.map_or_else(Hop::default, |before| hop(before, file));
        follow(&mut chains, before, &here, hop);
        before = Some(file);
    }
    chains
}

/// A packet that the file before saw: its chain, and when it arrives here at the earliest.
#[derive(Clone, Copy, Debug)]
struct Sent {
    chain: usize,
    identity: u32,
    due: i64,
    /// Time when it was sent, by the clock of the other file.
    sent: i64,
}

/// Appends the sightings of one file to the packets that the file before it saw, or begins new
/// ones.
fn follow(chains: &mut Vec<Chain>, before: Option<u16>, here: &[Sighting], hop: Hop) {
    let last = |chain: &Chain| chain.sightings.last().copied();
    let all = chains.iter().enumerate().filter_map(|(chain, it)| Some((chain, last(it)?)));
    let mut sent: Vec<(usize, Sent)> = all
        .filter(|(_, last)| Some(last.file) == before)
        .map(|(chain, Sighting { index, time, identity, .. })| {
            let (due, sent) = (time.saturating_add(hop.least), time.saturating_add(hop.ahead));
            (index, Sent { chain, identity, due, sent })
        })
        .collect();
    sent.sort_unstable_by_key(|&(index, _)| index);
    let sent: Vec<Sent> = sent.into_iter().map(|(_, sent)| sent).collect();
    let origins = align(&sent, here, hop.spread);
    let places = places_of_arrived(&origins, sent.len());
    let mut arrived = 0_u64;
    for (seen, origin) in here.iter().zip(origins) {
        match origin {
            Origin::Sent(at) => {
                chains[sent[at].chain].sightings.push(*seen);
                arrived += 1;
            }
            Origin::Reordered(at) => {
                let chain = &mut chains[sent[at].chain];
                chain.sightings.push(*seen);
                let nanos = seen.time.saturating_sub(sent[at].due);
                let nanos = u64::try_from(nanos).unwrap_or(0);
                let packets = arrived.abs_diff(places[at]).max(1);
                chain.reordered.get_or_insert_default().widen(Lateness { packets, nanos });
                arrived += 1;
            }
            Origin::Copy => chains.push(Chain::begin(*seen, true)),
            Origin::Unseen => chains.push(Chain::begin(*seen, false)),
        }
    }
}

/// Returns for each packet that was sent the number of earlier ones that arrived.
fn places_of_arrived(origins: &[Origin], sent: usize) -> Vec<u64> {
    let mut has_arrived = vec![false; sent];
    for origin in origins {
        if let Origin::Sent(at) | Origin::Reordered(at) = origin {
            has_arrived[*at] = true;
        }
    }
    let mut before = 0;
    let place = |has_arrived: &bool| {
        let place = before;
        before += u64::from(*has_arrived);
        place
    };
    has_arrived.iter().map(place).collect()
}

/// Origin of a sighting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// The packet at this place of those that the file before saw.
    Sent(usize),
    /// The packet at this place, out of order: it passed packets, or packets passed it.
    Reordered(usize),
    /// The network made it of one that it delivered besides.
    Copy,
    /// The file before did not see it.
    Unseen,
}

/// Aligns what arrived with what was sent, both in their order.
fn align(sent: &[Sent], here: &[Sighting], spread: i64) -> Vec<Origin> {
    let mut places: HashMap<u32, Vec<usize>> = HashMap::new();
    for (at, sent) in sent.iter().enumerate() {
        places.entry(sent.identity).or_default().push(at);
    }
    let none = Vec::new();
    let places_of = |identity: u32| places.get(&identity).unwrap_or(&none);
    let orders = orders(here);
    let copies = find_copies(sent, here, &orders, &places_of, spread);
    let mut origins = vec![Origin::Unseen; here.len()];
    let mut is_matched = vec![false; sent.len()];
    // Equal packets before this one are matched.
    let mut unmatched: HashMap<u32, usize> = HashMap::new();
    for (at, seen) in in_order(sent, here, &orders, &places_of, &copies) {
        origins[seen] = Origin::Sent(at);
        is_matched[at] = true;
    }
    for ((seen, &order), origin) in here.iter().zip(&orders).zip(&mut origins) {
        if *origin != Origin::Unseen {
            continue;
        }
        let mut candidates = candidates(places_of(seen.identity), sent, seen.time, order);
        let open = candidates.clone().rev().find(|&at| !is_matched[at]);
        let is_copy = copies.contains(&seen.index);
        let open = open.or_else(|| {
            let places = places_of(seen.identity);
            let until = sent_until(places, sent, seen.time);
            let from = unmatched.entry(seen.identity).or_default();
            let open = places[..until].iter().skip(*from).position(|&at| !is_matched[at]);
            *from = open.map_or(until, |open| *from + open);
            places[..until].get(*from).copied()
        });
        *origin = match open {
            Some(at) if !is_copy => {
                is_matched[at] = true;
                Origin::Reordered(at)
            }
            _ if candidates.next().is_none() => Origin::Unseen,
            _ => Origin::Copy,
        };
    }
    origins
}

/// The place of each sighting among the equal ones.
fn orders(here: &[Sighting]) -> Vec<usize> {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    let order = |seen: &Sighting| {
        let count = counts.entry(seen.identity).or_default();
        *count += 1;
        *count - 1
    };
    here.iter().map(order).collect()
}

/// The places of a packet's transmissions that the sighting `order`, counted from 0 among equal
/// ones, can be of: the latest that can have arrived by then, and those whose turn it is if a queue
/// held them back.
fn candidates<'p>(
    places: &'p [usize],
    sent: &[Sent],
    time: i64,
    order: usize,
) -> impl DoubleEndedIterator<Item = usize> + Clone + use<'p> {
    const HALF: usize = VANTAGE_EQUAL_MAX / 2;
    let end = sent_until(places, sent, time);
    let latest = end.saturating_sub(HALF);
    let turn = order.saturating_sub(HALF / 2).min(latest);
    let turn = turn..(turn + HALF).min(latest);
    places[turn].iter().chain(&places[latest..end]).copied()
}

/// Number of a packet's transmissions that can have arrived by a time.
fn sent_until(places: &[usize], sent: &[Sent], time: i64) -> usize {
    // The shortest time on the way is that of other packets.
    let is_sent = |&at: &usize| {
        let Sent { due, sent, .. } = sent[at];
        due.min(sent.max(due.saturating_sub(EARLY_NANOS_MAX))) <= time.saturating_add(SLACK_NANOS)
    };
    places.partition_point(is_sent)
}

/// The sightings that follow an equal one at once, much sooner than equal packets were sent, which
/// is not how much the time on the way differs: copies. One that is only next to an equal one may
/// as well be a transmission that was held back, if one before it has not arrived.
fn find_copies<'p>(
    sent: &[Sent],
    here: &[Sighting],
    orders: &[usize],
    places_of: &impl Fn(u32) -> &'p Vec<usize>,
    spread: i64,
) -> Vec<usize> {
    let mut latest: HashMap<u32, (usize, i64)> = HashMap::new();
    let mut copies = Vec::new();
    for (at, seen) in here.iter().enumerate() {
        if let Some(&(before, time)) = latest.get(&seen.identity) {
            let gap = seen.time.saturating_sub(time);
            let places = places_of(seen.identity);
            let end = sent_until(places, sent, seen.time);
            let all = &places[end.saturating_sub(VANTAGE_EQUAL_MAX)..end];
            let spacing = all.windows(2).map(|pair| sent[pair[1]].due - sent[pair[0]].due).min();
            // One that was sent since may be this.
            let is_other = sent_until(places, sent, time) < end;
            let is_next = before + 1 == at && orders[at] >= end;
            let is_next = !is_other && (is_next || gap < COPY_NANOS);
            let is_sooner = |spacing: i64| gap < spacing / 4 && spacing > 4 * spread;
            if is_next && spacing.is_none_or(is_sooner) {
                copies.push(seen.index);
                continue;
            }
            // It may be a copy as well, so that what follows is not one because of it.
            if gap < COPY_NANOS {
                continue;
            }
        }
        latest.insert(seen.identity, (at, seen.time));
    }
    copies
}

/// The most packets that were sent and arrived in the same order, those with the least delays:
/// places of both.
fn in_order<'p>(
    sent: &[Sent],
    here: &[Sighting],
    orders: &[usize],
    places_of: &impl Fn(u32) -> &'p Vec<usize>,
    copies: &[usize],
) -> Vec<(usize, usize)> {
    let mut best = PrefixBest(vec![None; sent.len() + 1]);
    let mut pairs: Vec<Pair> = Vec::with_capacity(here.len());
    for (seen, (sighting, &order)) in here.iter().zip(orders).enumerate() {
        if copies.binary_search(&sighting.index).is_ok() {
            continue;
        }
        let from = pairs.len();
        for at in candidates(places_of(sighting.identity), sent, sighting.time, order) {
            let delay = sighting.time.saturating_sub(sent[at].due);
            let early = if delay < -ROUNDING_NANOS { EARLY } else { 0 };
            let (score, before) = best.before(at).unzip();
            let score = score.unwrap_or(0) + MATCH - early - i128::from(delay.max(0));
            pairs.push(Pair { at, seen, before, score });
        }
        for (number, pair) in pairs.iter().enumerate().skip(from) {
            best.add(pair.at, (pair.score, number));
        }
    }
    let mut next = best.before(sent.len());
    let mut matched = Vec::with_capacity(here.len().min(sent.len()));
    while let Some((_, number)) = next {
        let Pair { at, seen, before, .. } = pairs[number];
        matched.push((at, seen));
        next = before.map(|number| (0, number));
    }
    matched
}

/// A sighting as the arrival of a packet that was sent, and the number of the pair before it in the
/// best alignment.
#[derive(Clone, Copy, Debug)]
struct Pair {
    at: usize,
    seen: usize,
    before: Option<usize>,
    score: i128,
}

/// Score of a match: one more counts for more than all delays.
const MATCH: i128 = 1 << 80;

/// Penalty of a packet that arrives earlier than others can: it counts for more than all delays.
const EARLY: i128 = 1 << 70;

/// The best score at any place before one, and the number of its pair: a Fenwick tree.
struct PrefixBest(Vec<Option<(i128, usize)>>);

impl PrefixBest {
    /// The best score at the places before `at`.
    fn before(&self, at: usize) -> Option<(i128, usize)> {
        let (mut best, mut node) = (None, at);
        while node > 0 {
            best = best.max(self.0[node]);
            node &= node - 1;
        }
        best
    }

    /// Takes the score of a pair at a place.
    fn add(&mut self, at: usize, score: (i128, usize)) {
        let mut node = at + 1;
        while let Some(slot) = self.0.get_mut(node) {
            *slot = (*slot).max(Some(score));
            node += node & node.wrapping_neg();
        }
    }
}

/// Maximum error of the difference of two files' clocks.
const SLACK_NANOS: i64 = 2_000;

/// Maximum time that a packet may be earlier than expected: the shortest transit is known from
/// other packets.
const EARLY_NANOS_MAX: i64 = 1_000_000;

/// The error of an estimated offset and of an estimated transit.
const ROUNDING_NANOS: i64 = 2;

/// Maximum distance of a copy from its packet, if others of the flow are between.
pub(super) const COPY_NANOS: i64 = 1_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Aligns what was sent with what arrived, both as identity and nanoseconds; where nothing else
    /// is said, packets take 4 µs.
    fn aligned(sent: &[(u32, i64)], here: &[(u32, i64)]) -> Vec<Origin> {
        aligned_with(sent, here, 0)
    }

    /// Aligns where packets take `spread` longer than the fastest, on average.
    fn aligned_with(sent: &[(u32, i64)], here: &[(u32, i64)], spread: i64) -> Vec<Origin> {
        let sent: Vec<Sent> = (0..)
            .zip(sent)
            .map(|(chain, &(identity, time))| Sent {
                chain,
                identity,
                due: time + 4_000,
                sent: time,
            })
            .collect();
        let here: Vec<Sighting> = (0..)
            .zip(here)
            .map(|(index, &(identity, time))| Sighting { index, file: 1, time, identity })
            .collect();
        align(&sent, &here, spread)
    }

    #[test]
    fn copy_between_two_transmissions_is_neither() {
        let sent = [(9, 11_766), (1, 12_108), (2, 12_465), (3, 12_481), (9, 12_497), (1, 12_839)];
        let here = [
            (9, 15_766),
            (1, 16_108),
            (2, 16_465),
            (9, 16_466),
            (3, 16_481),
            (9, 16_497),
            (1, 16_839),
        ];
        use Origin::{Copy, Sent};
        let origins = [Sent(0), Sent(1), Sent(2), Copy, Sent(3), Sent(4), Sent(5)];
        assert_eq!(aligned(&sent, &here), origins);
    }

    #[test]
    fn packet_that_comes_right_behind_its_retransmission_is_no_copy() {
        let sent = [(5, 0), (6, 144_000), (5, 152_000), (6, 152_100)];
        let here = [(6, 148_000), (5, 154_200), (5, 156_000), (6, 156_100)];
        use Origin::{Reordered, Sent};
        assert_eq!(aligned(&sent, &here), [Sent(1), Reordered(0), Sent(2), Sent(3)]);
    }

    #[test]
    fn equal_packets_that_a_queue_held_back_are_no_copies() {
        // The first takes 4.8 ms, and comes before the second is sent.
        let sent = [(7, 0), (7, 4_816_000)];
        let here = [(7, 4_789_000), (7, 4_961_000)];
        assert_eq!(aligned(&sent, &here), [Origin::Sent(0), Origin::Sent(1)]);
    }

    #[test]
    fn equal_packets_that_a_queue_released_together_are_no_copies() {
        let sent: Vec<(u32, i64)> = (0..100).map(|n| (7, n * 20_000)).collect();
        let here: Vec<(u32, i64)> = (0..100).map(|n| (7, 2_100_000 + n * 1_500)).collect();
        let origins: Vec<Origin> = (0..100).map(Origin::Sent).collect();
        assert_eq!(aligned_with(&sent, &here, 500_000), origins);
    }

    #[test]
    fn retransmission_that_arrives_alone_is_not_the_lost_packet() {
        let sent = [(6, 0), (7, 1_000), (6, 67_000_000), (7, 67_001_000)];
        let here = [(6, 67_004_000), (7, 67_005_500)];
        assert_eq!(aligned(&sent, &here), [Origin::Sent(2), Origin::Sent(3)]);
    }

    #[test]
    fn packet_that_was_overtaken_until_its_retransmission_came_is_matched_with_its_own() {
        let sent = [(5, 0), (6, 1_000), (7, 2_000), (5, 300_000), (6, 301_000), (7, 302_000)];
        let here = [(6, 5_000), (7, 6_000), (5, 304_000), (6, 305_000), (5, 305_900), (7, 306_000)];
        use Origin::{Reordered, Sent};
        let origins = [Sent(1), Sent(2), Sent(3), Sent(4), Reordered(0), Sent(5)];
        assert_eq!(aligned(&sent, &here), origins);
    }
}
