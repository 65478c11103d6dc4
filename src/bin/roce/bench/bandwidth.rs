//! Bandwidth test: as many messages in flight as the plan allows.

use std::time::{Duration, Instant};

use anyhow::bail;
use roce::verbs::{SendWr, Sge, Wc};

use super::control::messages::{Done, Seen};
use super::control::plan::Connection;
use super::session::Traffic;
use super::side::{Side, is_receive};
use super::watch::{Watch, now};

/// Maximum number of completions of one poll.
const POLL: usize = 64;

/// Maximum number of messages that one signaled completion covers.
const GROUP_MAX: u32 = 64;

/// Length of a slice of a run; the fastest slice is the peak.
const SLICE: Duration = Duration::from_millis(10);

/// Time without a message, after the sender is done, after which missing messages count as lost.
const LINGER: Duration = Duration::from_millis(300);

/// Time without a message, after the sender is done, after which a run on a reliable connection
/// fails. Its messages have been acknowledged: they only wait for this side to poll them.
const LINGER_RELIABLE: Duration = Duration::from_secs(10);

/// Result of one side of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Messages that this side sent.
    pub(crate) own: Done,
    /// Messages that the peer reports to have sent.
    pub(crate) peer: Done,
    /// Messages that this side received.
    pub(crate) seen: Seen,
}

/// Progress of a queue pair.
#[derive(Clone, Copy, Default)]
struct Flow {
    posted: u64,
    completed: u64,
}

/// Runs one side until both sides are done: sends if `sends`, and receives what the peer sends. An
/// error comes with the result so far.
pub(crate) fn run(
    side: &mut Side,
    watch: &mut Watch<'_>,
    size: u32,
    sends: bool,
) -> (Outcome, anyhow::Result<()>) {
    let qps = if sends { side.plan().qps as usize } else { 0 };
    let sges: Vec<[Sge; 1]> = (0..qps).map(|q| [side.local(q, size)]).collect();
    let group = (side.plan().tx_depth / 4).clamp(1, GROUP_MAX) as usize;
    let groups = sges.iter().enumerate().map(|(q, sges)| side.group(q, sges, group));
    let groups: Vec<Vec<SendWr<'_>>> = match groups.collect() {
        Ok(groups) => groups,
        Err(error) => return (Outcome::default(), Err(error)),
    };
    let started = watch.started();
    let mut run = Run {
        sending: Sending {
            groups: &groups,
            flows: vec![Flow::default(); groups.len()],
            ready: (0..groups.len()).collect(),
            quota: side.plan().extent.quota(),
            depth: u64::from(side.plan().tx_depth),
            completed: 0,
            pace: Pace::new(started),
        },
        received: 0,
        wrong: 0,
        last: started,
        last_received: started,
        told: None,
        is_counting: !side.plan().takes_receives() && side.plan().connection != Connection::Rc,
        packets: None,
        grew: started,
        counted: started,
    };
    let result = run.drive(side, watch, size, sends);
    let Run { sending, told, last, .. } = &run;
    let own = told.unwrap_or_else(|| sending.pace.finish(*last, sending.completed));
    let takes = side.plan().takes_receives();
    let seen = Seen {
        received: takes.then_some(run.received),
        wrong: run.wrong,
        nanos: nanos(run.last_received.duration_since(started)),
        packets: None,
    };
    (Outcome { own, peer: watch.peer.unwrap_or_default(), seen }, result)
}

/// A run of one size, seen from one side.
struct Run<'a> {
    sending: Sending<'a>,
    received: u64,
    wrong: u64,
    /// Time of the last completion.
    last: Instant,
    /// Time at which the last message arrived.
    last_received: Instant,
    /// Final message to the peer, if it was sent.
    told: Option<Done>,
    /// Whether only the NIC's counter of packets shows that messages arrive, as for UC WRITEs.
    is_counting: bool,
    /// Last value of the NIC's counter of received packets.
    packets: Option<u64>,
    /// Time at which `packets` last grew.
    grew: Instant,
    /// Time at which `packets` was last read.
    counted: Instant,
}

impl Run<'_> {
    /// Returns the time at which the NIC's counter of received packets last grew. Reads the counter
    /// at most once in a [`SLICE`], and only after the peer has sent everything.
    fn counter_grew(&mut self, side: &Side, watch: &Watch<'_>, now: Instant) -> Instant {
        if watch.peer.is_some() && now.duration_since(self.counted) >= SLICE {
            self.counted = now;
            let packets = Traffic::of(side).map(|traffic| traffic.received);
            if packets != self.packets {
                (self.packets, self.grew) = (packets, now);
            }
        }
        self.grew
    }

    fn drive(
        &mut self,
        side: &mut Side,
        watch: &mut Watch<'_>,
        size: u32,
        sends: bool,
    ) -> anyhow::Result<()> {
        let ends = side.plan().extent.time().map(|time| watch.started() + time);
        let mut wcs = [Wc::default(); POLL];
        loop {
            self.sending.post(side)?;
            // Idle time ends before this poll: the next poll finds messages that arrive while the
            // thread is not scheduled, and they must not count as lost.
            let polled = watch.peer.is_some().then(now);
            let count = side.poll(&mut wcs)?;
            if count == 0 && !watch.polled_in_vain() {
                continue;
            }
            let before = self.received;
            for wc in wcs.iter().take(count) {
                if is_receive(wc) {
                    self.received += 1;
                    self.wrong += u64::from(!side.take(wc, size)?);
                } else {
                    self.sending.completed(wc);
                }
            }
            let now = now();
            if count > 0 {
                watch.progressed();
                self.last = now;
            } else {
                side.check_nic()?;
            }
            if self.received > before {
                self.last_received = now;
            }
            self.sending.pace.note(now, self.sending.completed);
            if ends.is_some_and(|ends| now >= ends) || watch.is_stopping() {
                self.sending.stop();
            }
            watch.look(now, self.sending.completed.max(self.received))?;
            let last = if self.is_counting {
                self.last.max(self.counter_grew(side, watch, now))
            } else {
                self.last
            };
            let caught_up = caught_up(side, watch, self.received, polled, last)?;
            let sent = self.sending.is_done() || watch.gives_up(now);
            if self.told.is_none() && sent && (sends || caught_up) {
                let done = self.sending.pace.finish(now, self.sending.completed);
                watch.tell(done)?;
                self.told = Some(done);
            }
            if self.told.is_some() && caught_up {
                return Ok(());
            }
        }
    }
}

/// Whether the peer is done, and all its messages were received or count as lost: nothing had
/// arrived for [`LINGER`] when the last poll began, at `polled`.
fn caught_up(
    side: &Side,
    watch: &Watch<'_>,
    received: u64,
    polled: Option<Instant>,
    last: Instant,
) -> anyhow::Result<bool> {
    let (Some(peer), Some(polled)) = (watch.peer, polled) else { return Ok(false) };
    let (plan, idle) = (side.plan(), polled.saturating_duration_since(last.max(watch.heard())));
    let reliable = plan.connection == Connection::Rc;
    if !plan.takes_receives() {
        // No completion shows that the last UC WRITE has arrived.
        return Ok(reliable || peer.messages == 0 || idle > LINGER);
    }
    if received >= peer.messages {
        return Ok(true);
    }
    if !reliable || watch.is_stopping() {
        return Ok(idle > LINGER);
    }
    if idle > LINGER_RELIABLE {
        bail!(
            "{received} of {} messages have arrived, and no more for {} seconds",
            peer.messages,
            LINGER_RELIABLE.as_secs()
        );
    }
    Ok(false)
}

/// State of the sending half.
struct Sending<'a> {
    groups: &'a [Vec<SendWr<'a>>],
    flows: Vec<Flow>,
    /// Queue pairs that may have room for another group.
    ready: Vec<usize>,
    /// Number of messages that each queue pair sends.
    quota: u64,
    /// Maximum number of messages in flight.
    depth: u64,
    /// Number of completed messages of all queue pairs.
    completed: u64,
    pace: Pace,
}

impl Sending<'_> {
    /// Posts as much as may be in flight, on the queue pairs on which something completed.
    fn post(&mut self, side: &Side) -> anyhow::Result<()> {
        while let Some(q) = self.ready.pop() {
            let (Some(flow), Some(group)) = (self.flows.get_mut(q), self.groups.get(q)) else {
                continue;
            };
            while flow.posted < self.quota {
                let count = (self.quota - flow.posted).min(group.len() as u64);
                if flow.posted - flow.completed + count > self.depth {
                    break;
                }
                // The last message of a group is signaled: a short group is the end of a whole one.
                let skip = group.len() - usize::try_from(count)?;
                side.post(q, group.get(skip..).unwrap_or_default())?;
                flow.posted += count;
            }
        }
        Ok(())
    }

    /// Counts a group as completed. Only the last group of a queue pair may be short.
    fn completed(&mut self, wc: &Wc) {
        let q = usize::try_from(wc.id.0).unwrap_or(usize::MAX);
        let (Some(flow), Some(group)) = (self.flows.get_mut(q), self.groups.get(q)) else { return };
        let before = flow.completed;
        flow.completed = (before + group.len() as u64).min(flow.posted);
        self.completed += flow.completed - before;
        self.ready.push(q);
    }

    /// Stops posting.
    fn stop(&mut self) {
        self.quota = 0;
    }

    fn is_done(&self) -> bool {
        self.flows.iter().all(|flow| flow.posted >= self.quota && flow.completed == flow.posted)
    }
}

/// Average and peak rate of completed messages.
struct Pace {
    started: Instant,
    /// Start of the current slice.
    slice: Instant,
    /// Number of messages completed before the slice.
    slice_from: u64,
    /// Highest rate of a slice, in messages a second.
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

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "whole messages a second"
    )]
    fn finish(&self, now: Instant, messages: u64) -> Done {
        let time = now.duration_since(self.started);
        let peak = self.peak.max(rate(messages, time)).round() as u64;
        Done { messages, nanos: nanos(time), peak }
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the rate in messages a second.
#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
pub(crate) fn rate(messages: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { messages as f64 / seconds } else { 0.0 }
}
