//! Times of packets at a rate.

use core::time::Duration;

use crate::time::{Instant, nanos};

/// Times of packets at a rate: a packet may be sent when the one before it would have left a line
/// of that rate.
///
/// In any time w it admits at most rate · (w + burst) and one packet more. When the rate changes, a
/// wait is rescaled: it never lasts longer than one packet does at the new rate.
///
/// ```
/// use core::time::Duration;
///
/// use roce::engine::congestion::Pacer;
/// use roce::time::Instant;
///
/// let us = |us: u64| Instant::from_nanos(us * 1000);
/// let mut pacer = Pacer::new(1_000_000_000, Duration::ZERO);
/// assert!(pacer.admits(us(5)));
/// pacer.sent(us(5), 1250);
/// assert_eq!(pacer.next(), us(15));
/// pacer.set_rate(us(10), 10_000_000_000);
/// assert_eq!(pacer.next().as_nanos(), 10_500);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    rate: u64,
    /// Duration of a byte.
    byte: u64,
    /// Time of the next packet.
    next: u128,
    burst: u64,
}

/// Number of fraction bits of a nanosecond in the pacer's own times.
const BITS: u32 = 32;

/// Returns the duration of a byte at a rate.
fn byte_time(rate: u64) -> u64 {
    let time = (8_000_000_000_u128 << BITS) / u128::from(rate.max(1));
    u64::try_from(time).unwrap_or(u64::MAX)
}

/// Returns a time in the pacer's own units.
#[inline]
fn fine(ns: u64) -> u128 {
    u128::from(ns) << BITS
}

impl Pacer {
    /// A pacer for `rate` bit/s. A sender that was late may catch up by as many bytes as the rate
    /// allows in `burst`.
    pub fn new(rate: u64, burst: Duration) -> Self {
        Self { rate, byte: byte_time(rate), next: 0, burst: nanos(burst) }
    }

    /// Returns the rate, in bit/s; [`u64::MAX`] is unlimited.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Whether a packet may be sent at `now`.
    #[inline]
    pub fn admits(&self, now: Instant) -> bool {
        self.next <= fine(now.as_nanos())
    }

    /// Returns the time from which on the next packet may be sent.
    #[inline]
    pub fn next(&self) -> Instant {
        let ns = self.next.saturating_add((1 << BITS) - 1) >> BITS;
        Instant::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Counts a packet that is sent at `now`: its bytes on the wire.
    #[inline]
    pub fn sent(&mut self, now: Instant, bytes: u32) {
        let from = fine(now.as_nanos().saturating_sub(self.burst));
        let gap = u128::from(self.byte) * u128::from(bytes);
        self.next = self.next.max(from).saturating_add(gap);
    }

    /// Sets the rate from `now` on, and rescales the wait.
    pub fn set_rate(&mut self, now: Instant, rate: u64) {
        if rate == self.rate {
            return;
        }
        let byte = byte_time(rate);
        if let Some(left) = self.next.checked_sub(fine(now.as_nanos())) {
            // The wait has at most some packets of a slow rate: 2^57 or so.
            let scaled = left.saturating_mul(byte.into()) / u128::from(self.byte.max(1));
            self.next = fine(now.as_nanos()).saturating_add(scaled);
        }
        (self.rate, self.byte) = (rate, byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const GIGA: u64 = 1_000_000_000;

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    /// Sends packets as soon as they are admitted, at rates that change; returns times and sizes.
    fn send(pacer: &mut Pacer, random: &mut Random, count: usize) -> Vec<(u64, u32)> {
        let mut now = 0;
        let mut sent = Vec::new();
        for _ in 0..count {
            now = now.max(pacer.next().as_nanos());
            if random.next().is_multiple_of(4) {
                now += random.next() % 20_000;
            }
            let bytes = 64 + u32::try_from(random.next() % 4096).unwrap();
            assert!(pacer.admits(at(now)));
            pacer.sent(at(now), bytes);
            sent.push((now, bytes));
        }
        sent
    }

    #[test]
    fn a_window_has_at_most_its_share_and_one_packet() {
        for (seed, burst, rate) in
            [(1, 0, GIGA), (2, 0, 100 * GIGA), (3, 5_000, 10 * GIGA), (4, 20_000, 3_333_333_333)]
        {
            let mut random = Random::new(seed);
            let mut pacer = Pacer::new(rate, Duration::from_nanos(burst));
            let sent = send(&mut pacer, &mut random, 2000);
            for first in 0..sent.len() {
                let mut bytes = 0;
                for &(time, size) in &sent[first..] {
                    // The window ends with this packet.
                    let window = u128::from(time - sent[first].0 + burst);
                    let share = window * u128::from(rate) / 8 / u128::from(GIGA);
                    assert!(bytes <= share + 1, "{bytes} bytes before a packet, {share} admitted");
                    bytes += u128::from(size);
                }
            }
        }
    }

    #[test]
    fn the_rate_is_used_up() {
        for rate in [1_000_000, GIGA, 100 * GIGA, 400 * GIGA] {
            let mut pacer = Pacer::new(rate, Duration::ZERO);
            let mut now = 0;
            for _ in 0..100_000 {
                now = pacer.next().as_nanos();
                pacer.sent(at(now), 4096);
            }
            // A packet waits for a whole nanosecond.
            let ideal = 99_999 * 4096 * 8 * u128::from(GIGA) / u128::from(rate);
            let late = u128::from(now) - ideal;
            assert!(late <= 100_000, "{rate}: {late} ns late after {ideal}");
            assert!(rate > 100 * GIGA || late * 200 <= ideal, "{rate}: {late} ns after {ideal}");
        }
    }

    #[test]
    fn after_a_cut_and_a_recovery_the_wait_is_one_packet_of_the_new_rate() {
        let mut pacer = Pacer::new(100 * GIGA, Duration::ZERO);
        pacer.sent(at(1000), 4096);
        assert_eq!(pacer.next(), at(1328));
        pacer.set_rate(at(1000), GIGA);
        assert_eq!(pacer.next(), at(1000 + 32_768));
        pacer.set_rate(at(11_000), 100 * GIGA);
        assert_eq!(pacer.next(), at(11_000 + 228), "the rest of the packet at the new rate");
        pacer.set_rate(at(11_000), u64::MAX);
        assert!(pacer.next() <= at(11_001));
        assert!(pacer.admits(at(11_001)));
    }

    #[test]
    fn no_rate_overflows() {
        for rate in [0, 1, u64::MAX] {
            let mut pacer = Pacer::new(rate, Duration::MAX);
            for now in [0, 1, u64::MAX] {
                pacer.sent(at(now), u32::MAX);
                pacer.set_rate(at(now), u64::MAX - rate);
                pacer.set_rate(at(now), rate);
                let _ = pacer.next();
            }
        }
    }
}
