//! Latency test: one message at a time, and its answer.

use std::time::{Duration, Instant};

use anyhow::ensure;
use roce::histogram::Histogram;
use roce::verbs::{SendWr, Wc};

use super::bandwidth::{Outcome, nanos};
use super::control::messages::{Done, Seen};
use super::control::plan::{Connection, Op};
use super::side::{Side, is_receive};
use super::watch::{Watch, now};

/// Time after which an unanswered message counts as lost.
const LOST: Duration = Duration::from_secs(5);

/// Maximum number of samples that are kept. A longer run keeps every second sample, or every
/// fourth, and so on.
const KEPT_MAX: usize = 1 << 22;

/// Samples of latencies.
pub(crate) struct Samples {
    nanos: Vec<u64>,
    /// Number of messages of which one sample is kept.
    stride: u64,
    histogram: Histogram,
}

impl Samples {
    pub(crate) fn new(expected: u64) -> Self {
        let room = usize::try_from(expected).unwrap_or(usize::MAX).min(KEPT_MAX);
        Self { nanos: Vec::with_capacity(room), stride: 1, histogram: Histogram::with_precision(3) }
    }

    #[inline]
    pub(crate) fn add(&mut self, time: Duration) {
        if self.count().is_multiple_of(self.stride) {
            if self.nanos.len() == KEPT_MAX {
                self.thin_out();
            }
            self.nanos.push(nanos(time));
        }
        self.histogram.add(time);
    }

    /// Returns the number of messages that were measured.
    fn count(&self) -> u64 {
        self.histogram.count()
    }

    #[cold]
    fn thin_out(&mut self) {
        let mut keep = false;
        self.nanos.retain(|_| {
            keep = !keep;
            keep
        });
        self.stride *= 2;
    }

    /// Summarizes the samples. A message takes `share` of a measured time.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a run")]
    pub(crate) fn summary(mut self, share: f64) -> Summary {
        self.nanos.sort_unstable();
        let us = |nanos: u64| nanos as f64 * share / 1000.0;
        let micros = |time: Duration| us(nanos(time));
        let kept = self.nanos.len();
        // The time that `part` of ten thousand samples do not exceed.
        let within = |part: usize| {
            let at = (kept * part).div_ceil(10_000).clamp(1, kept.max(1)) - 1;
            us(self.nanos.get(at).copied().unwrap_or(0))
        };
        let average = nanos(self.histogram.sum()) as f64 / self.count().max(1) as f64;
        let squares = self.nanos.iter().map(|&nanos| (nanos as f64 - average).powi(2)).sum::<f64>();
        Summary {
            count: self.count(),
            min: self.histogram.min().map_or(0.0, micros),
            max: self.histogram.max().map_or(0.0, micros),
            typical: within(5_000),
            average: average * share / 1000.0,
            deviation: (squares / kept.max(1) as f64).sqrt() * share / 1000.0,
            p99: within(9_900),
            p999: within(9_990),
            histogram: self
                .histogram
                .buckets()
                .map(|it| Bucket { from: micros(it.start), to: micros(it.end), count: it.count })
                .collect(),
        }
    }
}

/// Number of messages whose latency is in a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bucket {
    /// First latency of the range, in microseconds.
    pub(crate) from: f64,
    /// First latency beyond the range.
    pub(crate) to: f64,
    pub(crate) count: u64,
}

/// Summary of latencies, in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Summary {
    pub(crate) count: u64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// The median.
    pub(crate) typical: f64,
    pub(crate) average: f64,
    pub(crate) deviation: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    /// Number of messages for every range of latencies that is not empty.
    pub(crate) histogram: Vec<Bucket>,
}

/// Returns the share of a measured time that one message takes: half, if it is a message and its
/// answer.
pub(crate) fn share(op: Op) -> f64 {
    match op {
        Op::Send | Op::Write => 0.5,
        Op::Read | Op::Atomic => 1.0,
    }
}

/// Runs the client's side: sends, waits for the answer, and takes the time. An error comes with the
/// samples so far.
pub(crate) fn measure(
    side: &mut Side,
    watch: &mut Watch<'_>,
    size: u32,
) -> (Samples, Outcome, anyhow::Result<()>) {
    let extent = side.plan().extent;
    let mut samples = Samples::new(if extent.time().is_some() { 1 << 20 } else { extent.quota() });
    let sges = [side.local(0, size)];
    let mut exchange = match side.message(0, &sges) {
        Ok(message) => Exchange::new(message, size),
        Err(error) => return (samples, Outcome::default(), Err(error)),
    };
    let started = now();
    let ends = extent.time().map(|time| started + time);
    let mut before = started;
    let mut drive = || {
        while samples.count() < extent.quota() && ends.is_none_or(|ends| before < ends) {
            exchange.send(side)?;
            exchange.wait_for_answer(side, watch)?;
            let now = now();
            samples.add(now - before);
            before = now;
            watch.look(now, samples.count())?;
            if watch.is_stopping() {
                break;
            }
        }
        let nanos = nanos(before - started);
        watch.tell(Done { messages: samples.count(), nanos, peak: 0 })?;
        watch.wait_for_peer()?;
        Ok(())
    };
    let result = drive();
    let own = Done { messages: samples.count(), nanos: nanos(before - started), peak: 0 };
    let peer = watch.peer.unwrap_or_default();
    (samples, Outcome { own, peer, seen: exchange.seen() }, result)
}

/// Runs the server's side: answers until the client is done.
pub(crate) fn answer(side: &mut Side, watch: &mut Watch<'_>, size: u32) -> anyhow::Result<Outcome> {
    let sges = [side.local(0, size)];
    let mut exchange = Exchange::new(side.message(0, &sges)?, size);
    let mut own = Done::default();
    loop {
        if exchange.poll_message(side)? {
            exchange.send(side)?;
            own.messages += 1;
            watch.progressed();
            continue;
        }
        if !watch.polled_in_vain() {
            continue;
        }
        side.check_nic()?;
        watch.look(now(), own.messages)?;
        if let Some(peer) = watch.peer {
            watch.tell(own)?;
            return Ok(Outcome { own, peer, seen: exchange.seen() });
        }
    }
}

/// Messages and answers, in turn.
struct Exchange<'a> {
    message: [SendWr<'a>; 1],
    size: u32,
    op: Op,
    received: u64,
    wrong: u64,
    /// Number of WRITEs that were sent, modulo 256: each carries it in its last byte.
    written: u8,
    /// Number of the last WRITE that arrived.
    peer_written: u8,
    /// Messages that have not completed.
    inflight: u32,
    /// Reads and atomics that completed.
    completed: u64,
}

impl<'a> Exchange<'a> {
    fn new(message: SendWr<'a>, size: u32) -> Self {
        let op = match message.op {
            roce::verbs::SendOp::Send { .. } => Op::Send,
            roce::verbs::SendOp::Write { .. } => Op::Write,
            roce::verbs::SendOp::Read { .. } => Op::Read,
            _ => Op::Atomic,
        };
        Self {
            message: [message],
            size,
            op,
            received: 0,
            wrong: 0,
            written: 0,
            peer_written: 0,
            inflight: 0,
            completed: 0,
        }
    }

    fn seen(&self) -> Seen {
        let counts = matches!(self.op, Op::Send | Op::Write);
        let received = counts.then_some(self.received);
        Seen { received, wrong: self.wrong, ..Seen::default() }
    }

    /// Number of messages that were answered.
    fn answers(&self) -> u64 {
        match self.op {
            Op::Send | Op::Write => self.received,
            Op::Read | Op::Atomic => self.completed,
        }
    }

    #[inline]
    fn send(&mut self, side: &mut Side) -> anyhow::Result<()> {
        // An answer may arrive before its message has completed: the depth of the queue limits the
        // number of messages that have not.
        while self.inflight >= side.plan().tx_depth {
            self.poll(side)?;
        }
        if self.op == Op::Write {
            self.written = self.written.wrapping_add(1);
            side.set_last(self.size, self.written)?;
        }
        self.inflight += 1;
        side.post(0, &self.message)
    }

    /// Polls for completions. Returns the number of messages that were received.
    #[inline]
    fn poll(&mut self, side: &mut Side) -> anyhow::Result<u32> {
        let mut wcs = [Wc::default(); 4];
        let (count, mut came) = (side.poll(&mut wcs)?, 0);
        for wc in wcs.iter().take(count) {
            if is_receive(wc) {
                came += 1;
                self.received += 1;
                self.wrong += u64::from(!side.take(wc, self.size)?);
            } else {
                self.inflight -= 1;
                self.completed += 1;
            }
        }
        Ok(came)
    }

    /// Polls, and returns whether a message or an answer has arrived.
    #[inline]
    fn poll_message(&mut self, side: &mut Side) -> anyhow::Result<bool> {
        let before = self.completed;
        let came = self.poll(side)?;
        Ok(match self.op {
            Op::Send => came > 0,
            Op::Write => {
                let byte = side.last_written(self.size)?;
                let new = byte == self.peer_written.wrapping_add(1);
                self.peer_written = if new { byte } else { self.peer_written };
                self.received += u64::from(new);
                new
            }
            Op::Read | Op::Atomic => self.completed > before,
        })
    }

    fn wait_for_answer(&mut self, side: &mut Side, watch: &mut Watch<'_>) -> anyhow::Result<()> {
        let mut since: Option<Instant> = None;
        while !self.poll_message(side)? {
            if !watch.polled_in_vain() {
                continue;
            }
            side.check_nic()?;
            let now = now();
            watch.look(now, self.answers())?;
            ensure!(!watch.gives_up(now), "stopped while waiting for an answer");
            let since = *since.get_or_insert(now);
            ensure!(
                now.duration_since(since) < LOST,
                "no answer for {} seconds after {} messages: {}",
                LOST.as_secs(),
                self.answers(),
                reason_of_silence(side.plan().connection)
            );
        }
        watch.progressed();
        Ok(())
    }
}

/// Returns the reason for which no answer comes, and what to look at.
fn reason_of_silence(connection: Connection) -> String {
    if connection.qp_type().is_reliable() {
        return "every message arrived, but the program of the other side does not answer: \
            see whether it was stopped"
            .to_owned();
    }
    format!(
        "a message was lost, and {} does not retransmit: run the test again, or with -c rc",
        connection.name()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let mut samples = Samples::new(1000);
        for us in (1..=1000).rev() {
            samples.add(Duration::from_micros(us));
        }
        let summary = samples.summary(1.0);
        assert_eq!(summary.count, 1000);
        assert_eq!((summary.min, summary.max), (1.0, 1000.0));
        assert_eq!((summary.typical, summary.p99, summary.p999), (500.0, 990.0, 999.0));
        assert!((summary.average - 500.5).abs() < 1e-9);
        assert!((summary.deviation - 288.675).abs() < 0.001);
    }

    #[test]
    fn one_time_is_every_percentile_and_half_a_round_trip_is_half() {
        let mut samples = Samples::new(1);
        samples.add(Duration::from_micros(8));
        let summary = samples.summary(0.5);
        assert_eq!((summary.min, summary.typical, summary.p999), (4.0, 4.0, 4.0));
        assert_eq!(summary.deviation, 0.0);
        assert_eq!(Samples::new(0).summary(1.0), Summary::default());
    }

    #[test]
    fn a_long_run_keeps_times_from_all_of_it() {
        let mut samples = Samples::new(u64::MAX);
        let count = 3 * KEPT_MAX as u64;
        for at in 0..count {
            samples.add(Duration::from_nanos(at));
        }
        assert!(samples.nanos.len() <= KEPT_MAX);
        let summary = samples.summary(1.0);
        assert_eq!(summary.count, count);
        let middle = count as f64 / 2000.0;
        assert!((summary.typical - middle).abs() < middle / 100.0, "{}", summary.typical);
    }
}
