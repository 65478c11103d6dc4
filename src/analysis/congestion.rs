//! Marks, congestion notifications, and whether the sender slows down after them.

use core::time::Duration;

use super::evidence::Frames;
use crate::time::{Instant, nanos};

/// Length of the windows before and after a CNP in which the sender's rate is measured.
const WINDOW: Duration = Duration::from_millis(1);

/// Reaction of a sender to congestion: its CE-marked packets, the CNPs that it gets, and its rate
/// around them.
#[derive(Clone, Debug, Default)]
pub(super) struct Congestion {
    /// Bytes sent in the current window and in the one before.
    window_start: Instant,
    window: [u64; 2],
    /// A measurement after a CNP: since when, bytes before it, bytes since.
    after: Option<(Instant, u64, u64)>,
    /// Bytes in a window before CNPs, and in a window after them.
    pub(super) reaction: [u64; 2],
    /// Packets of the sender marked CE: requests, responses.
    pub(super) marks: [u64; 2],
    pub(super) mark_frames: Frames,
    /// CNPs that the sender *sent*.
    pub(super) cnps: u64,
    pub(super) cnp_frames: Frames,
}

impl Congestion {
    /// Notes a packet of the sender.
    pub(super) fn handle_packet(&mut self, time: Instant, bytes: u32) {
        self.roll(time);
        self.window[0] += u64::from(bytes);
        if let Some((since, before, sum)) = &mut self.after {
            if time.saturating_since(*since) < WINDOW {
                *sum += u64::from(bytes);
            } else {
                self.reaction[0] += *before;
                self.reaction[1] += *sum;
                self.after = None;
            }
        }
    }

    /// Notes a CNP to the sender.
    pub(super) fn handle_cnp(&mut self, time: Instant) {
        self.roll(time);
        if self.after.is_none() {
            let elapsed = time.saturating_since(self.window_start);
            let rest = u128::from(self.window[1]) * WINDOW.saturating_sub(elapsed).as_nanos();
            let rest = u64::try_from(rest / WINDOW.as_nanos()).unwrap_or(u64::MAX);
            self.after = Some((time, self.window[0].saturating_add(rest), 0));
        }
    }

    fn roll(&mut self, time: Instant) {
        let elapsed = time.saturating_since(self.window_start);
        if elapsed >= WINDOW {
            self.window = [0, if elapsed < WINDOW * 2 { self.window[0] } else { 0 }];
            let within = Duration::from_nanos(nanos(elapsed) % nanos(WINDOW));
            self.window_start = time.saturating_sub(within);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_measured_before_and_after_a_cnp() {
        let mut congestion = Congestion::default();
        let after = |nanos: u64| Instant::from_nanos(5_000_000 + nanos);
        for i in 0..300 {
            congestion.handle_packet(after(i * 10_000), 1000);
        }
        congestion.handle_cnp(after(3_000_000));
        for i in 0..100 {
            congestion.handle_packet(after(3_000_000 + i * 40_000), 1000);
        }
        let [before, after] = congestion.reaction;
        assert!((95_000..=105_000).contains(&before), "{before}");
        assert_eq!(after, 25_000);
    }
}
