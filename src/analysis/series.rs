//! Rates over time: packets and bytes per interval, in bounded memory.

use serde::Serialize;

use crate::time::Instant;

/// Packets and bytes per interval. Intervals double in length when there would be more than
/// [`Series::INTERVALS_MAX`].
///
/// Intervals without packets take no memory: most connections are silent most of the time.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(into = "Dense")]
pub struct Series {
    /// Begin of the first interval, in nanoseconds.
    start: u64,
    /// Intervals are 2^`shift` ns long and begin at multiples of that.
    shift: u32,
    /// Intervals with packets, in order: number and contents.
    used: Vec<(u32, Interval)>,
    /// Index in `used` of the last interval that was looked up: mostly that of the next look-up.
    latest: usize,
}

/// Traffic of an interval, by sender (`ends[0]`, `ends[1]`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Interval {
    /// Packets.
    pub packets: [u32; 2],
    /// Bytes on the wire.
    pub bytes: [u64; 2],
    /// Packets that are retransmissions.
    pub retransmissions: [u32; 2],
    /// The worst message latency that ended in it, in nanoseconds.
    pub latency_max: u64,
}

/// The first intervals are 2^10 ns long.
const FIRST_SHIFT: u32 = 10;

impl Series {
    /// The most intervals.
    pub const INTERVALS_MAX: usize = 512;

    /// Returns the begin of the first interval; `None` if there is none.
    pub fn start(&self) -> Option<Instant> {
        (!self.used.is_empty()).then(|| Instant::from_nanos(self.start))
    }

    /// Returns the length of each interval in nanoseconds; 0 if there is none.
    pub fn interval_nanos(&self) -> u64 {
        if self.used.is_empty() { 0 } else { 1 << self.shift.min(63) }
    }

    /// Returns the intervals one after the other, without gaps, up to the last with packets.
    pub fn intervals(&self) -> impl Iterator<Item = Interval> {
        let len = self.used.last().map_or(0, |(last, _)| last + 1);
        let mut used = self.used.iter().peekable();
        (0..len).map(move |number| {
            used.next_if(|(next, _)| *next == number).map_or_else(Interval::default, |used| used.1)
        })
    }

    /// The interval of `time`. The number of a new one is less than `max`, if need be with longer
    /// intervals than before. A time before the first interval counts as in it.
    #[inline]
    pub(super) fn at(&mut self, time: Instant, max: usize) -> &mut Interval {
        let nanos = time.as_nanos();
        let is_latest = match self.used.get(self.latest) {
            Some(&(number, _)) => {
                let begin = self.start.wrapping_add(u64::from(number) << self.shift);
                nanos.wrapping_sub(begin) >> self.shift == 0
            }
            None => false,
        };
        if !is_latest {
            self.latest = self.index_of(nanos, max);
        }
        &mut self.used[self.latest].1
    }

    /// Returns the index of the interval that `nanos` is in.
    fn index_of(&mut self, nanos: u64, max: usize) -> usize {
        if self.used.is_empty() {
            self.shift = FIRST_SHIFT;
            self.start = align(nanos, FIRST_SHIFT);
        }
        let shift = shift_for(self.shift, self.start, nanos, max);
        if shift > self.shift {
            self.lengthen(shift);
        }
        self.find(number_of(nanos, self.start, self.shift))
    }

    /// Returns the index of the interval of this number, a new one if it has no packets yet.
    fn find(&mut self, number: u32) -> usize {
        let found = match self.used.last() {
            Some((last, _)) if *last >= number => {
                self.used.binary_search_by_key(&number, |&(number, _)| number)
            }
            _ => Err(self.used.len()),
        };
        found.unwrap_or_else(|at| {
            self.used.insert(at, (number, Interval::default()));
            at
        })
    }

    /// Makes intervals 2^`shift` ns long, which is longer than they are.
    fn lengthen(&mut self, shift: u32) {
        let start = align(self.start, shift);
        let mut kept: usize = 0;
        for at in 0..self.used.len() {
            let (number, interval) = self.used[at];
            let number = number_of(self.time_of(number), start, shift);
            match kept.checked_sub(1).and_then(|last| self.used.get_mut(last)) {
                Some((last, sum)) if *last == number => sum.merge(&interval, false),
                _ => {
                    self.used[kept] = (number, interval);
                    kept += 1;
                }
            }
        }
        self.used.truncate(kept);
        (self.start, self.shift) = (start, shift);
    }

    /// Adds `other`, of which the senders are exchanged if `swap`.
    pub(super) fn merge(&mut self, other: &Self, swap: bool) {
        let Some(&(other_last, _)) = other.used.last() else { return };
        let (mut start, mut shift, mut last) =
            (other.start, other.shift, other.time_of(other_last));
        if let Some(&(own_last, _)) = self.used.last() {
            (start, shift) = (start.min(self.start), shift.max(self.shift));
            last = last.max(self.time_of(own_last));
        }
        shift = shift_for(shift, start, last, Self::INTERVALS_MAX);
        start = align(start, shift);
        let mut merged: Vec<(u32, Interval)> =
            Vec::with_capacity(self.used.len() + other.used.len());
        let mut add = |time, interval: &Interval, swap| {
            let number = number_of(time, start, shift);
            match merged.last_mut() {
                Some((last, sum)) if *last == number => sum.merge(interval, swap),
                _ => {
                    let mut sum = Interval::default();
                    sum.merge(interval, swap);
                    merged.push((number, sum));
                }
            }
        };
        let timed = |series: &Self, at: usize| {
            series.used.get(at).map(|(number, interval)| (series.time_of(*number), *interval))
        };
        let (mut own_at, mut other_at) = (0, 0);
        loop {
            match (timed(self, own_at), timed(other, other_at)) {
                (Some((own, interval)), theirs) if theirs.is_none_or(|(time, _)| own <= time) => {
                    add(own, &interval, false);
                    own_at += 1;
                }
                (_, Some((time, interval))) => {
                    add(time, &interval, swap);
                    other_at += 1;
                }
                (_, None) => break,
            }
        }
        (self.start, self.shift, self.used) = (start, shift, merged);
    }

    /// Returns the begin of an interval.
    fn time_of(&self, number: u32) -> u64 {
        self.start.saturating_add(u64::from(number) << self.shift)
    }
}

/// The last multiple of 2^`shift` that is not behind `nanos`.
fn align(nanos: u64, shift: u32) -> u64 {
    nanos >> shift << shift
}

/// The number of the interval of `nanos`. A time before the first interval counts as in it.
fn number_of(nanos: u64, start: u64, shift: u32) -> u32 {
    u32::try_from(nanos.saturating_sub(start) >> shift).unwrap_or(u32::MAX)
}

/// The least shift, from `shift` on, with which intervals that begin at `start` or up to one
/// interval before it have a number below `max` for `nanos`.
fn shift_for(mut shift: u32, start: u64, nanos: u64, max: usize) -> u32 {
    while nanos.saturating_sub(align(start, shift)) >> shift >= max as u64 {
        shift += 1;
    }
    shift
}

impl Interval {
    /// Adds `other`, of which the senders are exchanged if `swap`.
    fn merge(&mut self, other: &Self, swap: bool) {
        for (end, mine) in [0, 1].into_iter().zip(if swap { [1, 0] } else { [0, 1] }) {
            self.packets[mine] = self.packets[mine].saturating_add(other.packets[end]);
            self.bytes[mine] = self.bytes[mine].saturating_add(other.bytes[end]);
            let sum = self.retransmissions[mine].saturating_add(other.retransmissions[end]);
            self.retransmissions[mine] = sum;
        }
        self.latency_max = self.latency_max.max(other.latency_max);
    }
}

/// A series as JSON has it.
#[derive(Serialize)]
struct Dense {
    start: Option<u64>,
    interval_nanos: u64,
    intervals: Vec<Interval>,
}

impl From<Series> for Dense {
    fn from(series: Series) -> Self {
        Self {
            start: series.start().map(Instant::as_nanos),
            interval_nanos: series.interval_nanos(),
            intervals: series.intervals().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(time: u64) -> Instant {
        Instant::from_nanos(time)
    }

    /// The packets of all intervals of one sender.
    fn packets(series: &Series, end: usize) -> u32 {
        series.intervals().map(|interval| interval.packets[end]).sum()
    }

    #[test]
    fn every_packet_is_in_the_interval_of_its_time() {
        for (step, count) in [(700, 5000), (1_000_003, 900), (5, 3), (40_000_000_000, 700)] {
            let times = (0..count).map(|i| 1_794_701_586_189_970_000 + i * step);
            let mut series = Series::default();
            times.clone().for_each(|time| series.at(nanos(time), 512).packets[0] += 1);
            let (start, length) = (series.start().unwrap().as_nanos(), series.interval_nanos());
            assert!(length.is_power_of_two() && start.is_multiple_of(length));
            let all: Vec<Interval> = series.intervals().collect();
            assert!(all.len() <= 512 && (all.len() > 200 || length == 1024), "{}", all.len());
            for (at, interval) in (0..).zip(all) {
                let range = start + at * length..start + (at + 1) * length;
                let inside = times.clone().filter(|time| range.contains(time)).count();
                assert_eq!(interval.packets[0] as usize, inside, "{step} {at}");
            }
        }
    }

    #[test]
    fn times_may_go_back() {
        let mut series = Series::default();
        for micros in [1000, 1010, 1005, 500, 1010, u64::MAX / 1000, 3] {
            series.at(nanos(micros * 1000), 32).packets[0] += 1;
        }
        assert!(series.intervals().count() <= 32);
        assert_eq!(packets(&series, 0), 7);
    }

    #[test]
    fn merged_series_are_that_of_all_packets() {
        let (mut fine, mut coarse) = (Series::default(), Series::default());
        for time in (1_000_000..1_400_000).step_by(1000) {
            fine.at(nanos(time), 512).packets[0] += 1;
        }
        for time in (0..900_000_000).step_by(1_000_000) {
            coarse.at(nanos(time), 512).packets[1] += 2;
        }
        assert!(fine.interval_nanos() < coarse.interval_nanos());
        let mut all = coarse.clone();
        for time in (1_000_000..1_400_000).step_by(1000) {
            all.at(nanos(time), 512).packets[0] += 1;
        }
        for (mut first, second) in [(fine.clone(), &coarse), (coarse.clone(), &fine)] {
            first.merge(second, false);
            assert!(first.intervals().eq(all.intervals()));
            assert_eq!(first.start(), Some(nanos(0)));
        }
        let mut swapped = fine;
        swapped.merge(&coarse, true);
        assert_eq!((packets(&swapped, 0), packets(&swapped, 1)), (400 + 1800, 0));
    }

    #[test]
    fn series_far_apart_fit_into_one() {
        let (mut early, mut late) = (Series::default(), Series::default());
        early.at(nanos(5), 512).packets[0] += 1;
        late.at(nanos(1 << 40), 512).packets[0] += 1;
        late.merge(&early, false);
        assert_eq!((late.start(), packets(&late, 0)), (Some(nanos(0)), 2));
        assert!((257..=512).contains(&late.intervals().count()));
        let nothing = Series::default();
        assert_eq!((nothing.start(), nothing.interval_nanos()), (None, 0));
        late.merge(&nothing, false);
        assert_eq!(packets(&late, 0), 2);
    }
}
