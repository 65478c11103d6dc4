//! As many messages as can be under way at once.

use std::time::{Duration, Instant};

use anyhow::bail;
use roce::verbs::{SendWr, Sge, Wc};

use super::exchange::{Done, Seen};
use super::plan::Connection;
use super::side::{Side, is_receive};
use super::watch::{Watch, now};

/// How many completions are seen at once.
const POLL: usize = 64;

/// The most messages between two that are signaled.
const GROUP_MAX: u32 = 64;

/// How long a piece of a run is, of which the fastest is the peak.
const SLICE: Duration = Duration::from_millis(10);

/// How long messages may still be on their way after their sender is done. Those of a reliable connection have been
/// acknowledged, and only wait to be taken.
const LINGER: Duration = Duration::from_millis(100);
const LINGER_RELIABLE: Duration = Duration::from_secs(10);

/// What a side did and saw.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) own: Done,
    pub(crate) peer: Done,
    pub(crate) seen: Seen,
}

/// How far a queue pair is.
#[derive(Clone, Copy, Default)]
struct Flow {
    posted: u64,
    completed: u64,
}

/// Runs one side: sends if it is to, takes what the other sends, until both are done.
pub(crate) fn run(
    side: &mut Side<'_>,
    watch: &mut Watch<'_>,
    size: u32,
    sends: bool,
) -> anyhow::Result<Outcome> {
    let sges: Vec<[Sge; 1]> =
        (0..side.plan().qps as usize).map(|q| [side.local(q, size)]).collect();
    let group = (side.plan().tx_depth / 4).clamp(1, GROUP_MAX) as usize;
    let groups: Vec<Vec<SendWr<'_>>> = sges
        .iter()
        .enumerate()
        .map(|(q, sges)| side.group(q, sges, group))
        .collect::<anyhow::Result<_>>()?;
    let quota = if sends { side.plan().extent.quota() } else { 0 };
    let started = watch.started();
    let ends = side.plan().extent.time().map(|time| started + time);
    let mut sending = Sending {
        groups: &groups,
        flows: vec![Flow::default(); groups.len()],
        quota,
        depth: u64::from(side.plan().tx_depth),
        completed: 0,
        pace: Pace::new(started),
    };
    let (mut seen, mut told, mut last) = (Seen::default(), None, started);
    let mut wcs = [Wc::default(); POLL];
    loop {
        sending.post(side)?;
        let count = side.poll(&mut wcs)?;
        if count == 0 && !watch.polled_in_vain() {
            continue;
        }
        for wc in wcs.iter().take(count) {
            if is_receive(wc) {
                seen.received += 1;
                seen.wrong += u64::from(!side.take(wc, size)?);
            } else {
                sending.completed(wc);
            }
        }
        let now = now();
        if count > 0 {
            watch.progressed();
            last = now;
        } else {
            side.check_nic()?;
        }
        sending.pace.note(now, sending.completed);
        if ends.is_some_and(|ends| now >= ends) {
            sending.stop();
        }
        watch.look(now, sending.completed.max(seen.received))?;
        let caught_up = caught_up(side, watch, &seen, now, last)?;
        if told.is_none() && sending.is_done() && (sends || caught_up) {
            let done = sending.pace.finish(now, sending.completed);
            watch.tell(done)?;
            told = Some(done);
        }
        if let (Some(own), Some(peer), true) = (told, watch.peer, caught_up) {
            return Ok(Outcome { own, peer, seen });
        }
    }
}

/// Whether the peer is done and everything it sent has been taken, or is lost.
fn caught_up(
    side: &Side<'_>,
    watch: &Watch<'_>,
    seen: &Seen,
    now: Instant,
    last: Instant,
) -> anyhow::Result<bool> {
    let Some(peer) = watch.peer else { return Ok(false) };
    let (plan, idle) = (side.plan(), now.duration_since(last.max(watch.heard())));
    let reliable = plan.connection == Connection::Rc;
    if !plan.takes_receives() {
        // Nothing tells when the last unreliable write is there.
        return Ok(reliable || peer.messages == 0 || idle > LINGER);
    }
    if seen.received >= peer.messages {
        return Ok(true);
    }
    if !reliable {
        return Ok(idle > LINGER);
    }
    if idle > LINGER_RELIABLE {
        bail!("{} of {} messages have come, and no more do", seen.received, peer.messages);
    }
    Ok(false)
}

/// What is being sent.
struct Sending<'a> {
    groups: &'a [Vec<SendWr<'a>>],
    flows: Vec<Flow>,
    /// How many messages each queue pair sends.
    quota: u64,
    /// How many may be under way.
    depth: u64,
    /// How many completed, on all.
    completed: u64,
    pace: Pace,
}

impl Sending<'_> {
    /// Posts as much as may be under way.
    fn post(&mut self, side: &Side<'_>) -> anyhow::Result<()> {
        for (q, (flow, group)) in self.flows.iter_mut().zip(self.groups).enumerate() {
            while flow.posted < self.quota {
                let count = (self.quota - flow.posted).min(group.len() as u64);
                if flow.posted - flow.completed + count > self.depth {
                    break;
                }
                // The last of a group is the one that is signaled.
                let skip = group.len() - usize::try_from(count)?;
                side.post(q, group.get(skip..).unwrap_or_default())?;
                flow.posted += count;
            }
        }
        Ok(())
    }

    /// A group completed. Only the last of a queue pair may be a short one.
    fn completed(&mut self, wc: &Wc) {
        let q = usize::try_from(wc.id.0).unwrap_or(usize::MAX);
        let (Some(flow), Some(group)) = (self.flows.get_mut(q), self.groups.get(q)) else { return };
        let before = flow.completed;
        flow.completed = (before + group.len() as u64).min(flow.posted);
        self.completed += flow.completed - before;
    }

    /// Posts no more.
    fn stop(&mut self) {
        self.quota = 0;
    }

    fn is_done(&self) -> bool {
        self.flows.iter().all(|flow| flow.posted >= self.quota && flow.completed == flow.posted)
    }
}

/// How fast it goes, and went when it was fastest.
struct Pace {
    started: Instant,
    slice: Instant,
    slice_from: u64,
    /// Messages a second.
    peak: f64,
}

impl Pace {
    fn new(started: Instant) -> Self {
        Self { started, slice: started, slice_from: 0, peak: 0.0 }
    }

    fn note(&mut self, now: Instant, messages: u64) {
        let time = now.duration_since(self.slice);
        if time >= SLICE {
            self.peak = self.peak.max(rate(messages - self.slice_from, time));
            (self.slice, self.slice_from) = (now, messages);
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate in whole")]
    fn finish(&self, now: Instant, messages: u64) -> Done {
        let time = now.duration_since(self.started);
        let peak = self.peak.max(rate(messages, time)).round() as u64;
        Done { messages, nanos: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), peak }
    }
}

/// Messages a second.
#[expect(clippy::cast_precision_loss, reason = "nobody counts that far")]
pub(crate) fn rate(messages: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { messages as f64 / seconds } else { 0.0 }
}
