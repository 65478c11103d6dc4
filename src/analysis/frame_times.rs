//! Times of frames by their numbers, in bounded memory.

use crate::time::Instant;

/// Maximum number of frames whose times are remembered; of more, every second, every fourth, and so
/// on.
const FRAMES_MAX: usize = 1 << 15;

/// Times of frames, which come in the order of their numbers.
#[derive(Clone, Debug)]
pub(super) struct FrameTimes {
    /// Number and time.
    kept: Vec<(u64, Instant)>,
    stride: u64,
    /// Frames to skip until the next is remembered.
    skip: u64,
}

impl Default for FrameTimes {
    fn default() -> Self {
        Self { kept: Vec::new(), stride: 1, skip: 0 }
    }
}

impl FrameTimes {
    /// Takes the next frame.
    #[inline]
    pub(super) fn push(&mut self, frame: u64, time: Instant) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        self.skip = self.stride - 1;
        self.kept.push((frame, time));
        if self.kept.len() == FRAMES_MAX {
            let mut is_kept = false;
            self.kept.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.stride *= 2;
            self.skip = self.stride - 1;
        }
    }

    /// The time of a frame: its own, or that of the remembered frame before it.
    pub(super) fn of(&self, frame: u64) -> Option<Instant> {
        let after = self.kept.partition_point(|&(number, _)| number <= frame);
        self.kept.get(after.checked_sub(1)?).map(|&(_, time)| time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_in_small_captures_and_bounded_in_large_ones() {
        let mut times = FrameTimes::default();
        assert_eq!(times.of(1), None);
        for frame in 1..=1000 {
            times.push(frame, Instant::from_nanos(frame * 10));
        }
        assert_eq!(times.of(777), Some(Instant::from_nanos(7770)));
        for frame in 1001..=1_000_000 {
            times.push(frame, Instant::from_nanos(frame * 10));
        }
        assert!(times.kept.len() < FRAMES_MAX);
        let step = 1_000_000 / (FRAMES_MAX as u64 / 2) * 2;
        for frame in [1, 500_000, 1_000_000] {
            let nanos = times.of(frame).map_or(0, Instant::as_nanos);
            assert!(nanos <= frame * 10 && nanos + step * 10 > frame * 10, "{frame}: {nanos}");
        }
    }
}
