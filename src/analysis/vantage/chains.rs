//! Which sighting of a packet follows which.
//!
//! Retransmissions are often equal to the last byte, so one group holds the sightings of all transmissions of a packet. A
//! sighting is taken to be of the latest transmission that can have arrived by then. Where that one was seen already, it
//! is a copy that the network made, if it follows at once; else an earlier transmission that was delayed.

use super::Flow;
use crate::wire::Gid;

/// One packet seen by one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sighting {
    /// Where it is held.
    pub(super) index: usize,
    pub(super) file: u16,
    /// By the file's own clock.
    pub(super) time: i64,
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
    /// In the order of the path.
    pub(super) sightings: Vec<Sighting>,
    /// The network made it.
    pub(super) is_copy: bool,
}

/// The packets that the sightings of a group are of. `path` are the files on the way in their order; `transit_least` is the
/// shortest time from one to another, by their own clocks.
pub(super) fn of(
    group: &Group,
    path: &[u16],
    transit_least: impl Fn(u16, u16) -> i64,
) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut before: Option<u16> = None;
    for &file in path {
        let here: Vec<Sighting> =
            group.sightings.iter().copied().filter(|seen| seen.file == file).collect();
        let least = before.map_or(0, |before| transit_least(before, file));
        follow(&mut chains, before, &here, least);
        before = Some(file);
    }
    chains
}

/// Appends the sightings of one file to the packets that the file before it saw, or begins new ones.
fn follow(chains: &mut Vec<Chain>, before: Option<u16>, here: &[Sighting], least: i64) {
    // When each packet that the file before saw arrives here at the earliest.
    let due: Vec<Option<i64>> = chains
        .iter()
        .map(|chain| chain.sightings.last().filter(|last| Some(last.file) == before))
        .map(|last| last.map(|last| last.time.saturating_add(least)))
        .collect();
    if is_in_order(&due, here) {
        for (chain, &seen) in chains.iter_mut().zip(here) {
            chain.sightings.push(seen);
        }
        return;
    }
    let mut is_matched = vec![false; due.len()];
    for &seen in here {
        let arrivals = |until: i64| -> Vec<(usize, i64)> {
            let all = due.iter().enumerate().filter_map(|(index, due)| Some((index, (*due)?)));
            all.filter(|(_, due)| *due <= until).collect()
        };
        let mut arrivals_by = arrivals(seen.time.saturating_add(ROUNDING_NANOS));
        if arrivals_by.is_empty() {
            arrivals_by = arrivals(seen.time.saturating_add(SLACK_NANOS));
        }
        let arrivals = arrivals_by;
        let latest = arrivals.iter().max_by_key(|(_, arrival)| *arrival).copied();
        let open = arrivals.iter().filter(|(index, _)| !is_matched[*index]);
        let open = open.max_by_key(|(_, arrival)| *arrival).copied();
        match (open, latest) {
            (Some((index, arrival)), Some((_, latest)))
                if !is_copy_of(seen.time, arrival, latest) =>
            {
                is_matched[index] = true;
                chains[index].sightings.push(seen);
            }
            (_, latest) => chains.push(Chain { sightings: vec![seen], is_copy: latest.is_some() }),
        }
    }
}

/// Whether a sighting is a copy of the transmission that could arrive at `latest`, and not the one that could arrive at
/// `arrival`: it follows the later one much sooner than that one followed the earlier one.
fn is_copy_of(time: i64, arrival: i64, latest: i64) -> bool {
    let after = time.saturating_sub(latest);
    latest > arrival && after < (latest.saturating_sub(arrival) / 4).min(COPY_NANOS)
}

/// Whether each packet that the file before saw was seen here once, in the same order, and about when it was due.
fn is_in_order(due: &[Option<i64>], here: &[Sighting]) -> bool {
    let is_due = |(due, seen): (&Option<i64>, &Sighting)| {
        due.is_some_and(|due| (-SLACK_NANOS..JITTER_NANOS).contains(&seen.time.saturating_sub(due)))
    };
    due.len() == here.len() && due.iter().zip(here).all(is_due)
}

/// How much earlier than expected a packet may be: the shortest transit is known from other packets.
const SLACK_NANOS: i64 = 2_000;

/// The error of an estimated offset and of an estimated transit.
const ROUNDING_NANOS: i64 = 2;

/// How soon a copy follows its packet; what comes later is taken for an earlier transmission that was delayed.
pub(super) const COPY_NANOS: i64 = 1_000;

/// How much later than expected a packet is not taken for another.
const JITTER_NANOS: i64 = 5_000;
