//! Packets and bytes of one stream per interval, of which only those with packets are kept.

use super::statistics::{Interval, Series};
use crate::time::Instant;

/// The first intervals are 2^10 ns long.
const FIRST_SHIFT: u32 = 10;

/// What one stream sent per interval. Intervals are 2^`shift` ns long and begin at multiples of that.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    start: u64,
    shift: u32,
    /// Intervals with packets, in order: number and contents.
    used: Vec<(u32, Interval)>,
}

impl Timeline {
    /// The interval of `time`. Their numbers are less than `max`, if need be with longer intervals than before. A time
    /// before the first interval counts as in it.
    pub(super) fn at(&mut self, time: Instant, max: usize) -> &mut Interval {
        let nanos = time.as_nanos();
        if self.used.is_empty() {
            self.shift = FIRST_SHIFT;
            self.start = nanos >> FIRST_SHIFT << FIRST_SHIFT;
        }
        while nanos.saturating_sub(self.start) >> self.shift >= max as u64 {
            self.lengthen();
        }
        let number = nanos.saturating_sub(self.start) >> self.shift;
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let at = match self.used.last() {
            Some((last, _)) if *last == number => self.used.len() - 1,
            Some((last, _)) if *last > number => {
                match self.used.binary_search_by_key(&number, |&(number, _)| number) {
                    Ok(at) => at,
                    Err(at) => {
                        self.used.insert(at, (number, Interval::default()));
                        at
                    }
                }
            }
            _ => {
                self.used.push((number, Interval::default()));
                self.used.len() - 1
            }
        };
        &mut self.used[at].1
    }

    /// Makes intervals twice as long.
    fn lengthen(&mut self) {
        let first = self.start >> self.shift;
        self.shift += 1;
        self.start = self.start >> self.shift << self.shift;
        let odd = u32::from(!first.is_multiple_of(2));
        let mut kept: usize = 0;
        for at in 0..self.used.len() {
            let (number, interval) = self.used[at];
            let number = number.saturating_add(odd) / 2;
            match kept.checked_sub(1).and_then(|last| self.used.get_mut(last)) {
                Some((last, sum)) if *last == number => sum.merge(&interval, false),
                _ => {
                    self.used[kept] = (number, interval);
                    kept += 1;
                }
            }
        }
        self.used.truncate(kept);
    }

    /// Adds what was sent to `series`, as that of its second end if `swap`.
    pub(super) fn add_to(&self, series: &mut Series, swap: bool) {
        if !self.used.is_empty() {
            let start = Instant::from_nanos(self.start);
            series.merge_used(start, 1 << self.shift.min(63), &self.used, swap);
        }
    }

    /// The same with the intervals in which nothing was sent.
    #[cfg(test)]
    fn to_series(&self) -> Series {
        let mut series = Series::default();
        self.add_to(&mut series, false);
        series
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeline_is_the_series_of_the_same_packets() {
        for (step, count) in [(700, 5000), (1_000_003, 900), (5, 3), (40_000_000_000, 700)] {
            let (mut timeline, mut series) = (Timeline::default(), Series::default());
            for i in 0..count {
                let time = Instant::from_nanos(1_794_701_586_189_970_000 + i * step);
                timeline.at(time, 512).packets[0] += 1;
                series.at(time, 512).packets[0] += 1;
            }
            let same = timeline.to_series();
            assert_eq!((same.start, same.interval_nanos), (series.start, series.interval_nanos));
            assert_eq!(same.intervals, series.intervals);
        }
    }

    #[test]
    fn times_may_go_back() {
        let mut timeline = Timeline::default();
        for micros in [1000, 1010, 1005, 500, 1010, u64::MAX / 1000, 3] {
            timeline.at(Instant::from_nanos(micros * 1000), 32).packets[0] += 1;
        }
        let series = timeline.to_series();
        assert!(series.intervals.len() <= 32);
        assert_eq!(series.intervals.iter().map(|interval| interval.packets[0]).sum::<u32>(), 7);
    }
}
