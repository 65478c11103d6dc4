//! Several capture points: the sightings of each packet become one packet, and say where it was
//! lost.
//!
//! ```text
//! files, merged by time ─► window ─► groups of equal packets ─► chains along the path ─► tracker
//!                          (held)    (digest, PSN, opcode,      (which sighting follows
//!                                     addresses, QP)             which: transit, loss, copy)
//! ```
//!
//! Packets are held back until every capture point on their way had the time to see them
//! ([`limits::VANTAGE_SPAN_NANOS`], [`limits::VANTAGE_PACKETS_MAX`]). The clocks of the files are
//! brought together ([`clocks`]). The tracker then sees each packet once, as the requester saw it:
//! a request where it was sighted first, nearest to its sender; a response where it was sighted
//! last, nearest to the requester. What the other sightings tell stands in
//! [`PacketFacts::sightings`].
//!
//! A capture point lies on the way of a flow (addresses, UDP source port, queue pair) if it has
//! seen a packet of it that another one has seen too. So files with different traffic, and switches
//! that see a part of the flows, are never asked for what they could not see; nor is one that had
//! not begun to capture, or whose capture had ended.

mod chains;
mod clocks;

use std::collections::HashMap;

use self::chains::{Chain, Group, Sighting};
use self::clocks::{Clocks, Direction};
use super::limits::{
    VANTAGE_DAMAGED_MAX, VANTAGE_DELAYS_MAX, VANTAGE_EQUAL_MAX, VANTAGE_FILES_MAX,
    VANTAGE_FLOWS_MAX, VANTAGE_PACKETS_MAX, VANTAGE_SPAN_NANOS,
};
use super::sightings::{Delay, Transit};
use super::statistics::Distribution;
use super::{LostBetween, PacketFacts, Sightings};
use crate::time::Instant;
use crate::wire::{Gid, IcrcVerdict, Operation};

/// A packet as the tracker sees it, with its other sightings.
#[derive(Clone, Debug)]
pub(super) struct Shown {
    pub(super) facts: PacketFacts,
    pub(super) others: Vec<PacketFacts>,
}

/// Packets from one host and port to one queue pair: all of them take the same path through the
/// network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flow {
    source: Gid,
    destination: Gid,
    source_port: u16,
    dest_qp: u32,
}

impl Flow {
    fn of(facts: &PacketFacts) -> Self {
        Self {
            source: facts.source,
            destination: facts.destination,
            source_port: facts.source_port,
            dest_qp: facts.dest_qp.get(),
        }
    }
}

/// State of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct FlowState {
    /// The files on its way, as bits.
    files: u64,
    /// Times when the first and the last packet were sent that another file saw.
    first_sent: Option<i64>,
    last_sent: Option<i64>,
}

/// Packets from one capture point to the next.
#[derive(Clone, Debug, Default)]
struct Hop {
    transit: Distribution,
    /// The longest ones that are far from the others: transit and the frames of both sightings.
    delays: Vec<Delay>,
    delayed: u64,
}

/// Puts the sightings of several files together.
#[derive(Clone, Debug)]
pub(super) struct Vantage {
    /// Packets in the order of their arrival; `None` in place of one that was shown already.
    held: Vec<Option<PacketFacts>>,
    /// Packets that wait for others that are earlier by the corrected clocks.
    ready: Vec<Shown>,
    clocks: Clocks,
    flows: HashMap<Flow, FlowState>,
    hops: HashMap<(u16, u16), Hop>,
    /// The first and the last packet's time of each file, by its own clock.
    spans: Vec<Option<(i64, i64)>>,
    seen_elsewhere: Vec<u64>,
    delay_least: u64,
}

/// Results of the comparison of the capture points.
#[derive(Debug, Default)]
pub(super) struct VantageReport {
    /// Nanoseconds by which each file's clock is ahead of the first file's, where known.
    pub(super) clock_offsets: Vec<Option<i64>>,
    pub(super) seen_elsewhere: Vec<u64>,
    pub(super) transits: Vec<Transit>,
}

fn nanos(time: Instant) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

fn is_response(facts: &PacketFacts) -> bool {
    use Operation::{Acknowledge, AtomicAcknowledge, Cnp, ReadResponse};
    let operation = facts.opcode.info().map(|info| info.operation);
    matches!(operation, Some(Acknowledge | AtomicAcknowledge | Cnp | ReadResponse))
}

fn is_damaged(facts: &PacketFacts) -> bool {
    facts.icrc == IcrcVerdict::Bad
}

impl Vantage {
    /// Creates the comparison of `files` capture points. A transit that is longer than the usual
    /// one by `delay_least` nanoseconds is a delay.
    pub(super) fn new(files: usize, delay_least: u64) -> Self {
        let files = files.min(VANTAGE_FILES_MAX);
        Self {
            held: Vec::new(),
            ready: Vec::new(),
            clocks: Clocks::new(files),
            flows: HashMap::new(),
            hops: HashMap::new(),
            spans: vec![None; files],
            seen_elsewhere: vec![0; files],
            delay_least,
        }
    }

    /// Takes a packet; returns those that nothing can come before any more, most often none.
    pub(super) fn push(&mut self, facts: PacketFacts) -> Vec<Shown> {
        let file = usize::from(facts.file);
        let time = nanos(facts.time);
        let Some(span) = self.spans.get_mut(file) else {
            // A file beyond those that are compared.
            return vec![Shown { facts, others: Vec::new() }];
        };
        let (first, _) = *span.get_or_insert((time, time));
        *span = Some((first, time));
        self.held.push(Some(facts));
        let oldest =
            self.held.first().and_then(Option::as_ref).map_or(time, |facts| nanos(facts.time));
        if self.held.len() < VANTAGE_PACKETS_MAX && time - oldest < 2 * VANTAGE_SPAN_NANOS {
            return Vec::new();
        }
        let half = self.held.len() / 2;
        let is_old = |facts: &Option<PacketFacts>| {
            facts.as_ref().is_none_or(|facts| nanos(facts.time) < time - VANTAGE_SPAN_NANOS)
        };
        let old = self.held.partition_point(is_old).max(half.min(1));
        self.flush(if self.held.len() < VANTAGE_PACKETS_MAX { old } else { old.max(half) })
    }

    /// The capture ended: returns what is left, and what the capture points say of the network.
    pub(super) fn finish(mut self) -> (Vec<Shown>, VantageReport) {
        let shown = self.flush(self.held.len());
        let mut transits: Vec<_> = self.hops.into_iter().collect();
        transits.sort_by_key(|(files, _)| *files);
        let transit = |((from, to), hop): ((u16, u16), Hop)| Transit {
            from,
            to,
            nanos: hop.transit,
            delayed: hop.delayed,
            delays: hop.delays,
        };
        let report = VantageReport {
            clock_offsets: self.clocks.offsets().to_vec(),
            seen_elsewhere: self.seen_elsewhere,
            transits: transits.into_iter().map(transit).collect(),
        };
        (shown, report)
    }

    /// Resolves the first `old` packets that are held, with their sightings among the others.
    fn flush(&mut self, old: usize) -> Vec<Shown> {
        let groups = self.groups();
        self.learn(&groups);
        let mut resolved = Vec::new();
        for (direction, path, sightings) in self.ways(groups) {
            let hop = |from: u16, to: u16| self.clocks.hop(direction, from, to);
            let chains = chains::of(&sightings, &path, hop);
            self.note_sent(&chains);
            let is_old = |chain: &Chain| chain.sightings.iter().any(|seen| seen.index < old);
            resolved.extend(chains.into_iter().filter(is_old).map(|chain| (chain, path.clone())));
        }
        let mut shown: Vec<_> =
            resolved.into_iter().map(|(chain, path)| self.show(chain, &path)).collect();
        self.blame_damage(&mut shown);
        self.add_transits(&shown);
        self.ready.extend(shown.into_iter().map(|unordered| unordered.shown));
        self.held.retain(Option::is_some);
        self.take_due()
    }

    /// The packets that are held, in groups of equal ones.
    fn groups(&self) -> Vec<Group> {
        let key = |facts: &PacketFacts| {
            (
                facts.digest,
                facts.psn.get(),
                facts.dest_qp.get(),
                facts.opcode.0,
                facts.payload_len,
                is_damaged(facts),
            )
        };
        let held = self.held.iter().enumerate();
        let mut all: Vec<_> =
            held.filter_map(|(index, facts)| Some((index, facts.as_ref()?))).collect();
        all.sort_by_key(|(index, facts)| (key(facts), *index));
        let is_same = |(_, a): &(usize, &PacketFacts), (_, b): &(usize, &PacketFacts)| {
            key(a) == key(b) && Flow::of(a) == Flow::of(b)
        };
        let mut groups = Vec::with_capacity(all.len());
        let equal = (0u32..).zip(all.chunk_by(is_same));
        let parts = equal.flat_map(|(identity, same)| {
            same.chunks(VANTAGE_EQUAL_MAX).map(move |same| (identity, same))
        });
        for (identity, same) in parts {
            let Some((_, first)) = same.first() else { continue };
            let sighting = |(index, facts): &(usize, &PacketFacts)| Sighting {
                index: *index,
                file: facts.file,
                time: nanos(facts.time),
                identity,
            };
            groups.push(Group {
                flow: Flow::of(first),
                is_damaged: is_damaged(first),
                sightings: same.iter().map(sighting).collect(),
            });
        }
        groups
    }

    /// Learns the clocks, which files see which flows, and in which order.
    fn learn(&mut self, groups: &[Group]) {
        self.clocks.begin();
        let shared = || groups.iter().filter(|group| !group.is_damaged && group.is_shared());
        for group in shared() {
            self.clocks.add(group);
            let is_known = self.flows.contains_key(&group.flow);
            if is_known || self.flows.len() < VANTAGE_FLOWS_MAX {
                self.flows.entry(group.flow).or_default().files |= group.files();
            }
        }
        self.clocks.add_repeated(groups);
        self.clocks.estimate();
    }

    /// Notes when the first and the last packet of each flow were sent that another file saw: that
    /// file captured from then on, and until then.
    fn note_sent(&mut self, chains: &[Chain]) {
        for chain in chains.iter().filter(|chain| chain.sightings.len() > 1) {
            let Some(first) = chain.sightings.first() else { continue };
            let Some(Some(facts)) = self.held.get(first.index) else { continue };
            let sent = self.clocks.correct(first.file, first.time);
            if let Some(flow) = self.flows.get_mut(&Flow::of(facts)) {
                flow.first_sent = Some(flow.first_sent.map_or(sent, |known| known.min(sent)));
                flow.last_sent = flow.last_sent.max(Some(sent));
            }
        }
    }

    /// The sightings that are aligned with each other, with the files on their way: those of one
    /// flow in the order in which they were captured. A damaged packet stands alone, since its
    /// queue pair and port may be wrong.
    fn ways(&self, groups: Vec<Group>) -> Vec<(Direction, Vec<u16>, Vec<Sighting>)> {
        let mut places: HashMap<Flow, usize> = HashMap::new();
        let mut ways: Vec<(Direction, Vec<u16>, Vec<Sighting>)> = Vec::new();
        for group in groups {
            let direction = group.direction();
            let shared = self.flows.get(&group.flow).map_or(0, |flow| flow.files);
            let damaged = if group.is_damaged { self.clocks.files(direction) } else { 0 };
            if shared == 0 || group.is_damaged || group.files() & !shared != 0 {
                let path = self.path(direction, shared | damaged | group.files());
                ways.push((direction, path, group.sightings));
                continue;
            }
            let at = *places.entry(group.flow).or_insert_with(|| {
                ways.push((direction, self.path(direction, shared), Vec::new()));
                ways.len() - 1
            });
            ways[at].2.extend(group.sightings);
        }
        for (.., sightings) in &mut ways {
            sightings.sort_unstable_by_key(|seen| seen.index);
        }
        ways
    }

    /// Files, as bits, in the order in which they see the packets of a direction.
    fn path(&self, direction: Direction, files: u64) -> Vec<u16> {
        let mut path: Vec<u16> = Vec::new();
        for file in (0..64).filter(|file| files >> file & 1 == 1) {
            // Sorted by hand: measured times need not be a total order.
            let before = |&other: &u16| self.clocks.order(direction, file, other).is_lt();
            let at = path.iter().position(before).unwrap_or(path.len());
            path.insert(at, file);
        }
        path
    }

    /// Takes the packets of a chain out of the window.
    fn show(&mut self, chain: Chain, path: &[u16]) -> Resolved {
        let mut seen: Vec<PacketFacts> = Vec::with_capacity(chain.sightings.len());
        for sighting in &chain.sightings {
            let facts = self.held.get_mut(sighting.index).and_then(Option::take);
            seen.extend(facts);
        }
        if seen.len() > 1 {
            for facts in &seen {
                self.seen_elsewhere[usize::from(facts.file)] += 1;
            }
        }
        let times: Vec<(u16, i64)> = seen
            .iter()
            .map(|facts| (facts.file, self.clocks.correct(facts.file, nanos(facts.time))))
            .collect();
        let (lost, unseen) = self.lost(&seen, path);
        let sightings = Sightings {
            lost,
            unseen,
            is_delivered: path.len() > 1
                && seen.last().map(|facts| facts.file) == path.last().copied(),
            is_copy: chain.is_copy,
            reordered: chain.reordered,
            ..Sightings::default()
        };
        let is_response = seen.first().is_some_and(is_response);
        let instant = |time: i64| Instant::from_nanos(u64::try_from(time).unwrap_or(0));
        let far = if is_response { times.first() } else { times.last() };
        let far = far.filter(|_| times.len() > 1).map(|(_, time)| instant(*time));
        // A switch on the way may mark it: the last sightings tell.
        let is_ce_marked = seen.iter().any(|facts| facts.is_ce_marked);
        for (facts, (_, time)) in seen.iter_mut().zip(&times) {
            facts.is_ce_marked = is_ce_marked;
            facts.sightings = Some(Box::new(Sightings { far, ..sightings }));
            facts.time = instant(*time);
        }
        let facts = seen.remove(if is_response { seen.len() - 1 } else { 0 });
        Resolved { shown: Shown { facts, others: seen }, times, is_response }
    }

    /// Returns the place of a loss, if a file on the packet's way should have seen it and did not,
    /// and the place of a possible loss, if that file ends.
    fn lost(
        &self,
        seen: &[PacketFacts],
        path: &[u16],
    ) -> (Option<LostBetween>, Option<LostBetween>) {
        let Some((lost, due, (begin, end))) = self.next_point(seen, path) else {
            return (None, None);
        };
        // A file that saw what was sent before had begun, and one that saw what was sent later had
        // not ended. Where nothing later came, the packet may have been among those that took the
        // longest.
        let last = seen.last().map(|last| {
            let sent = self.clocks.correct(last.file, nanos(last.time));
            (sent, self.flows.get(&Flow::of(last)).copied().unwrap_or_default())
        });
        let is_begun = last.is_some_and(|(sent, flow)| {
            due >= begin || flow.first_sent.is_some_and(|first| first <= sent)
        });
        let is_passed = last.is_some_and(|(sent, flow)| flow.last_sent > Some(sent));
        let hop = self.hops.get(&(lost.from, lost.to));
        let longest = hop.map_or(0, |hop| hop.transit.percentiles().max);
        let latest = due.saturating_add(i64::try_from(longest).unwrap_or(i64::MAX));
        let has_ended = due > end || !is_passed && latest > end;
        ((is_begun && !has_ended).then_some(lost), has_ended.then_some(lost))
    }

    /// The next file on the way of a packet that the files before saw; when it is due there, and
    /// the time that the file has.
    fn next_point(
        &self,
        seen: &[PacketFacts],
        path: &[u16],
    ) -> Option<(LostBetween, i64, (i64, i64))> {
        let last = seen.last()?;
        let at = path.iter().position(|&file| file == last.file)?;
        let to = *path.get(at + 1)?;
        // By the own clocks of the files, which may not be known to differ. A file says nothing
        // about the time before its first and after its last packet.
        let direction = (last.source, last.destination);
        let transit = self.clocks.transit_least(direction, last.file, to);
        let due = nanos(last.time).saturating_add(transit);
        let span = (*self.spans.get(usize::from(to))?)?;
        Some((LostBetween { from: last.file, to, frame: last.frame }, due, span))
    }

    /// A damaged packet that begins in the middle of the path is one that was lost there.
    fn blame_damage(&self, shown: &mut [Resolved]) {
        let mut damaged: Vec<usize> = Vec::new();
        for (index, resolved) in shown.iter().enumerate() {
            if is_damaged(&resolved.shown.facts) && damaged.len() < VANTAGE_DAMAGED_MAX {
                damaged.push(index);
            }
        }
        for index in damaged {
            let Some(bad) = shown.get(index).map(|resolved| resolved.first()) else { continue };
            let facts = bad.clone();
            let is_it = |resolved: &Resolved| {
                let good = &resolved.shown.facts;
                let same = u8::from(good.psn == facts.psn)
                    + u8::from(good.digest == facts.digest)
                    + u8::from(good.opcode == facts.opcode)
                    + u8::from(good.dest_qp == facts.dest_qp);
                !is_damaged(good)
                    && !good.sightings().is_damaged_later
                    && good.sightings().lost.is_some_and(|lost| lost.to == facts.file)
                    && (good.source, good.destination) == (facts.source, facts.destination)
                    && good.wire_len == facts.wire_len
                    && good.time <= facts.time
                    && same >= 3
            };
            // The latest that was sent before: what was sent earlier would have been lost earlier.
            let good = shown
                .iter_mut()
                .filter(|resolved| is_it(resolved))
                .max_by_key(|resolved| resolved.shown.facts.time);
            let is_found = good.is_some();
            if let Some(good) = good {
                good.shown.facts.sightings.get_or_insert_default().is_damaged_later = true;
            }
            // The network may have copied it when it was damaged.
            let is_copy = |resolved: &Resolved| {
                let other = &resolved.shown.facts;
                other.sightings().is_damaged_copy
                    && (other.digest, other.psn) == (facts.digest, facts.psn)
            };
            // Or before: then another copy of it arrived whole.
            let arrived = shown.get(index).and_then(|bad| bad.times.first().copied());
            let is_twin = |resolved: &Resolved| {
                let good = &resolved.shown.facts;
                let is_near = |&(file, time): &(u16, i64)| {
                    arrived.is_some_and(|(at, damaged)| {
                        file == at && time.abs_diff(damaged) < chains::COPY_NANOS.unsigned_abs()
                    })
                };
                good.sightings().is_delivered
                    && !is_damaged(good)
                    && (good.psn, good.opcode, good.wire_len)
                        == (facts.psn, facts.opcode, facts.wire_len)
                    && Flow::of(good) == Flow::of(&facts)
                    && resolved.times.iter().any(is_near)
            };
            let is_known = is_found || shown.iter().any(|other| is_copy(other) || is_twin(other));
            if let Some(bad) = shown.get_mut(index) {
                let sightings = bad.shown.facts.sightings.get_or_insert_default();
                sightings.is_damaged_copy = is_known;
            }
        }
    }

    /// Adds the times that packets took from one point to the next.
    fn add_transits(&mut self, shown: &[Resolved]) {
        for resolved in shown {
            for pair in resolved.times.windows(2) {
                let &[(from, sent), (to, arrived)] = pair else { continue };
                let hop = self.hops.entry((from, to)).or_default();
                hop.transit.add(u64::try_from(arrived.saturating_sub(sent)).unwrap_or(0));
            }
        }
        for resolved in shown {
            let frame_of = |file: u16| resolved.frame_at(file);
            for pair in resolved.times.windows(2) {
                let &[(from, sent), (to, arrived)] = pair else { continue };
                let Some(hop) = self.hops.get_mut(&(from, to)) else { continue };
                let nanos = u64::try_from(arrived.saturating_sub(sent)).unwrap_or(0);
                let usual = hop.transit.percentiles().p50;
                if nanos < usual.saturating_mul(4).max(usual.saturating_add(self.delay_least)) {
                    continue;
                }
                hop.delayed += 1;
                let at = hop.delays.partition_point(|delay| delay.nanos >= nanos);
                if at < VANTAGE_DELAYS_MAX {
                    let frames = [frame_of(from), frame_of(to)];
                    hop.delays.insert(at, Delay { nanos, frames });
                    hop.delays.truncate(VANTAGE_DELAYS_MAX);
                }
            }
        }
    }

    /// The packets before which nothing that is held can come.
    fn take_due(&mut self) -> Vec<Shown> {
        let held = self.held.iter().flatten();
        let earliest = held.map(|facts| self.clocks.correct(facts.file, nanos(facts.time))).min();
        self.ready.sort_by_key(|shown| (shown.facts.time, shown.facts.identity()));
        let due = match earliest {
            Some(earliest) => {
                self.ready.partition_point(|shown| nanos(shown.facts.time) < earliest)
            }
            None => self.ready.len(),
        };
        self.ready.drain(..due).collect()
    }
}

/// A packet whose sightings are put together.
#[derive(Debug)]
struct Resolved {
    shown: Shown,
    /// Files and corrected times of its sightings, in the order of its way.
    times: Vec<(u16, i64)>,
    is_response: bool,
}

impl Resolved {
    /// Returns the first sighting.
    fn first(&self) -> &PacketFacts {
        if self.is_response {
            self.shown.others.first().unwrap_or(&self.shown.facts)
        } else {
            &self.shown.facts
        }
    }

    /// The frame of its sighting in a file.
    fn frame_at(&self, file: u16) -> u64 {
        self.seen_at(file).map_or(0, |facts| facts.frame)
    }

    /// Returns the sighting in a file.
    fn seen_at(&self, file: u16) -> Option<&PacketFacts> {
        let mut all = self.shown.others.iter().chain([&self.shown.facts]);
        all.find(|facts| facts.file == file)
    }
}

#[cfg(test)]
mod tests;
