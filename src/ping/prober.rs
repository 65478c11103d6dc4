//! The prober as a state machine: told completions, packets and the time, it says what to send and
//! what became of it.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};

use super::limits::{EVENTS_MAX, INTERVAL_MIN, PATHS_MAX, PROBES_MAX, TARGETS_MAX, TIMEOUT_MAX};
use super::packet::{Bytes, Packet, ProbeId};
use super::sample::{Ending, Stamps};
use crate::time::Instant;
use crate::wire::{Bits, Gid};

/// Number of timeouts for which a lost probe is remembered, so that its answer counts as late and
/// not as foreign.
const LATE_TIMEOUTS: u32 = 4;

/// Configuration of a prober.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ProberConfig {
    /// A random number that tells this run from others.
    pub session: u64,
    /// Time between two probes to the same target; at least [`INTERVAL_MIN`].
    pub interval: Duration,
    /// Time after which a probe is lost; at most [`TIMEOUT_MAX`].
    pub timeout: Duration,
    /// Number of probes to each target; `None` is no end.
    pub count: Option<u64>,
    /// Flow labels that the probes to a target have in turn: one for each path. At most
    /// [`PATHS_MAX`].
    pub flow_labels: Vec<Bits<20>>,
}

impl ProberConfig {
    /// A probe a second, which is lost after a second, on one path, without end.
    pub fn new(session: u64) -> Self {
        let second = Duration::from_secs(1);
        Self { session, interval: second, timeout: second, count: None, flow_labels: labels(1) }
    }

    /// Sets the time between two probes to a target.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Sets the time after which a probe is lost.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets the number of probes to each target.
    #[must_use]
    pub fn count(self, count: u64) -> Self {
        Self { count: Some(count), ..self }
    }

    /// Sets the number of paths, each with a flow label and so with a UDP source port of its own.
    #[must_use]
    pub fn paths(self, paths: usize) -> Self {
        Self { flow_labels: labels(paths), ..self }
    }
}

/// Returns flow labels for a number of paths, from 1 on: each has another UDP source port, and
/// consecutive ones, so that the sockets of a soft NIC are used evenly.
fn labels(paths: usize) -> Vec<Bits<20>> {
    let paths = u32::try_from(paths.clamp(1, PATHS_MAX)).unwrap_or(1);
    (1..=paths).map(Bits::low).collect()
}

/// A probe to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Index of its target.
    pub target: usize,
    /// Index of its path among the flow labels.
    pub path: usize,
    /// Identifier: completions of its send are reported with this.
    pub id: ProbeId,
    /// The datagram.
    pub bytes: Bytes,
}

/// Event of a prober.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A probe has ended. Each ends once.
    Ended {
        /// Index of its target.
        target: usize,
        /// Index of its path.
        path: usize,
        /// Number among the probes to this target, from 0 on.
        number: u64,
        /// End of the probe.
        ending: Ending,
    },
    /// The acknowledgement of a probe came after the probe was reported as lost.
    Late {
        /// Index of its target.
        target: usize,
        /// Index of its path.
        path: usize,
        /// Number of the probe.
        number: u64,
    },
    /// The responder was restarted.
    Restarted {
        /// Index of its target.
        target: usize,
    },
}

/// Counters of packets that ended no probe, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProberCounters {
    /// Packets that are none of this protocol.
    pub malformed: u64,
    /// Answers to another run of a prober.
    pub other_session: u64,
    /// Answers to no probe that is remembered.
    pub unknown: u64,
    /// Answers from an address that the probe was not sent to.
    pub wrong_source: u64,
    /// Acknowledgements that had come before.
    pub duplicates: u64,
    /// Acknowledgements of probes that were reported as lost before.
    pub late: u64,
    /// Changes of the run of a responder.
    pub restarts: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InFlight,
    Ended,
    Lost,
}

/// A probe that is remembered.
#[derive(Clone, Copy, Debug)]
struct Probe {
    target: u32,
    path: u16,
    state: State,
    number: u64,
    posted: Instant,
    sent: Option<Instant>,
    /// Receive completion and processing of the acknowledgement.
    acked: Option<(Instant, Instant)>,
    /// Responder's time of the second acknowledgement.
    responder: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    gid: Gid,
    /// Number of probes so far.
    number: u64,
    instance: Option<u64>,
}

/// Probes any number of targets in turn.
///
/// ```
/// use std::time::Duration;
/// use roce::ping::{Ending, Event, Packet, Prober, ProberConfig};
/// use roce::time::Instant;
/// use roce::wire::Gid;
///
/// let us = |us: u64| Instant::from_nanos(us * 1000);
/// let gid = Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 2));
/// let mut prober = Prober::new(ProberConfig::new(7).count(1), &[gid], us(0));
///
/// let probe = prober.poll_transmit(us(0)).unwrap();
/// prober.handle_sent(probe.id, us(2));
/// // The responder answers twice.
/// let delay = Duration::from_micros(5);
/// let answers = [Packet::Ack { id: probe.id, instance: 1 }, Packet::Timing { id: probe.id, instance: 1, delay }];
/// for answer in answers {
///     prober.handle_packet(gid, &answer.to_bytes(), us(20), us(22));
/// }
/// let Some(Event::Ended { ending: Ending::Answered(stamps), .. }) = prober.poll_event() else { panic!() };
/// assert_eq!(stamps.network(), Some(Duration::from_micros(13)));
/// assert!(prober.is_done());
/// ```
#[derive(Debug)]
pub struct Prober {
    config: ProberConfig,
    targets: Vec<Target>,
    /// Times at which targets are probed next.
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Probes by sequence number, oldest first.
    probes: VecDeque<Probe>,
    /// Sequence number of the first of them.
    first: u32,
    /// Number of them that are in flight, and of those at the front that are not looked at for
    /// timeouts any more.
    in_flight: usize,
    expired: usize,
    events: VecDeque<Event>,
    counters: ProberCounters,
}

impl Prober {
    /// Begins to probe targets at these addresses; those beyond [`TARGETS_MAX`] are left out. The
    /// first probes to them are spread over an interval.
    pub fn new(mut config: ProberConfig, targets: &[Gid], now: Instant) -> Self {
        config.interval = config.interval.max(INTERVAL_MIN);
        config.timeout = config.timeout.min(TIMEOUT_MAX);
        config.flow_labels.truncate(PATHS_MAX);
        if config.flow_labels.is_empty() {
            config.flow_labels = labels(1);
        }
        let targets: Vec<Target> = targets
            .iter()
            .take(TARGETS_MAX)
            .map(|&gid| Target { gid, number: 0, instance: None })
            .collect();
        let count = u32::try_from(targets.len()).unwrap_or(u32::MAX).max(1);
        let step = config.interval / count;
        let due = (0..targets.len()).map(|index| {
            let offset = step.saturating_mul(u32::try_from(index).unwrap_or(0));
            Reverse((now.saturating_add(offset), index))
        });
        let due = due.collect();
        Self {
            config,
            targets,
            due,
            probes: VecDeque::new(),
            first: 0,
            in_flight: 0,
            expired: 0,
            events: VecDeque::new(),
            counters: ProberCounters::default(),
        }
    }

    /// Returns how it probes.
    pub fn config(&self) -> &ProberConfig {
        &self.config
    }

    /// Returns what it counted of packets that ended no probe.
    pub fn counters(&self) -> &ProberCounters {
        &self.counters
    }

    /// Whether every probe was sent and has ended. Never without a count.
    pub fn is_done(&self) -> bool {
        self.due.is_empty() && self.in_flight == 0
    }

    /// Sends no more probes. Those in flight end as before.
    pub fn stop(&mut self) {
        self.due.clear();
    }

    /// Returns the next probe that is due; `now` is when it is posted. May have more once
    /// [`poll_timeout`](Self::poll_timeout) has passed.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        let &Reverse((at, index)) = self.due.peek()?;
        if at > now {
            return None;
        }
        self.due.pop();
        let target = self.targets.get_mut(index)?;
        let number = target.number;
        target.number += 1;
        if self.config.count.is_none_or(|count| target.number < count) {
            // After a pause of the program, probes that were missed are not sent in a burst.
            let next = at.saturating_add(self.config.interval);
            let next = if next > now { next } else { now.saturating_add(self.config.interval) };
            self.due.push(Reverse((next, index)));
        }
        if self.probes.len() == PROBES_MAX {
            self.forget_oldest();
        }
        let paths = self.config.flow_labels.len();
        let path = usize::try_from(number % paths as u64).unwrap_or(0);
        let flow_label = self.config.flow_labels.get(path).copied().unwrap_or_default();
        #[expect(clippy::cast_possible_truncation, reason = "there are at most PROBES_MAX")]
        let sequence = self.first.wrapping_add(self.probes.len() as u32);
        self.probes.push_back(Probe {
            target: u32::try_from(index).unwrap_or(0),
            path: u16::try_from(path).unwrap_or(0),
            state: State::InFlight,
            number,
            posted: now,
            sent: None,
            acked: None,
            responder: None,
        });
        self.in_flight += 1;
        let id = ProbeId { session: self.config.session, sequence, flow_label };
        Some(Transmit { target: index, path, id, bytes: Packet::Probe(id).to_bytes() })
    }

    /// Takes the send completion of a probe, at a time of the NIC's clock.
    pub fn handle_sent(&mut self, id: ProbeId, at: Instant) {
        if let Some(index) = self.index_of(id)
            && let Some(probe) = self.probes.get_mut(index)
        {
            probe.sent = probe.sent.or(Some(at));
            self.finish_if_whole(index);
        }
    }

    /// Takes that a probe was not sent: it was refused, or its send failed.
    pub fn handle_not_sent(&mut self, id: ProbeId) {
        if let Some(index) = self.index_of(id) {
            self.end(index, State::Ended, Ending::NotSent);
        }
    }

    /// Takes a datagram from `source`: it was received at a time of the NIC's clock, and is
    /// processed `now`.
    pub fn handle_packet(&mut self, source: Gid, bytes: &[u8], received: Instant, now: Instant) {
        let (id, instance, delay) = match Packet::parse(bytes) {
            Ok(Packet::Ack { id, instance }) => (id, instance, None),
            Ok(Packet::Timing { id, instance, delay }) => (id, instance, Some(delay)),
            Ok(Packet::Probe(_)) | Err(_) => {
                self.counters.malformed += 1;
                return;
            }
        };
        if id.session != self.config.session {
            self.counters.other_session += 1;
            return;
        }
        let Some(index) = self.index_of(id) else {
            self.counters.unknown += 1;
            return;
        };
        let Some(probe) = self.probes.get_mut(index) else { return };
        let Some(target) = self.targets.get_mut(probe.target as usize) else { return };
        if target.gid != source {
            self.counters.wrong_source += 1;
            return;
        }
        let restarted = target.instance.is_some_and(|known| known != instance);
        target.instance = Some(instance);
        // The first of each counts.
        let is_new = match delay {
            None => probe.acked.is_none(),
            Some(_) => probe.responder.is_none(),
        };
        match delay {
            None => probe.acked = probe.acked.or(Some((received, now))),
            Some(delay) => probe.responder = probe.responder.or(Some(delay)),
        }
        let Probe { path, number, state, .. } = *probe;
        let (target, path) = (probe.target as usize, usize::from(path));
        if restarted {
            self.counters.restarts += 1;
            self.tell(Event::Restarted { target });
        }
        match (is_new, state) {
            (false, _) => self.counters.duplicates += 1,
            (true, State::InFlight) => self.finish_if_whole(index),
            (true, State::Lost) if delay.is_none() => {
                self.counters.late += 1;
                self.tell(Event::Late { target, path, number });
            }
            (true, _) => {}
        }
    }

    /// Takes that time has passed: probes whose answer did not come are lost.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(probe) = self.probes.get(self.expired) {
            if now < probe.posted.saturating_add(self.config.timeout) {
                break;
            }
            self.expire(self.expired);
            self.expired += 1;
        }
        let memory = self.config.timeout.saturating_mul(1 + LATE_TIMEOUTS);
        while self.expired > 0 {
            let Some(oldest) = self.probes.front() else { break };
            if now < oldest.posted.saturating_add(memory) {
                break;
            }
            self.forget_oldest();
        }
    }

    /// Returns when [`poll_transmit`](Self::poll_transmit) or
    /// [`handle_timeout`](Self::handle_timeout) has something to do. May change after any
    /// `handle_*` and `poll_transmit`.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = self.due.peek().map(|Reverse((at, _))| *at);
        let lost = self.probes.get(self.expired);
        let lost = lost.filter(|_| self.in_flight > 0);
        let lost = lost.map(|probe| probe.posted.saturating_add(self.config.timeout));
        [due, lost].into_iter().flatten().min()
    }

    /// Whether there is something to [tell](Self::poll_event).
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns what happened. May have more after any `handle_*` and `poll_transmit`.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn tell(&mut self, event: Event) {
        // A caller that does not take its events in time gets the newest.
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn index_of(&self, id: ProbeId) -> Option<usize> {
        let index = usize::try_from(id.sequence.wrapping_sub(self.first)).ok()?;
        (index < self.probes.len()).then_some(index)
    }

    /// Ends a probe of which all is known.
    fn finish_if_whole(&mut self, index: usize) {
        let Some(probe) = self.probes.get(index) else { return };
        let (Some(sent), Some((received, processed)), Some(responder)) =
            (probe.sent, probe.acked, probe.responder)
        else {
            return;
        };
        let stamps = Stamps { posted: probe.posted, sent, received, processed, responder };
        self.end(index, State::Ended, Ending::Answered(stamps));
    }

    /// Ends a probe by what is known when its time is over.
    fn expire(&mut self, index: usize) {
        let Some(probe) = self.probes.get(index) else { return };
        match probe.acked {
            Some((_, processed)) => {
                let total = processed.saturating_since(probe.posted);
                self.end(index, State::Ended, Ending::Untimed { total });
            }
            None => {
                let reached = probe.responder.is_some();
                self.end(index, State::Lost, Ending::Lost { reached });
            }
        }
    }

    /// Ends a probe if it has not ended yet.
    fn end(&mut self, index: usize, state: State, ending: Ending) {
        let Some(probe) = self.probes.get_mut(index) else { return };
        if probe.state != State::InFlight {
            return;
        }
        probe.state = state;
        let (target, path) = (probe.target as usize, usize::from(probe.path));
        let number = probe.number;
        self.in_flight -= 1;
        self.tell(Event::Ended { target, path, number, ending });
    }

    /// Ends the oldest probe, if it has not ended, and forgets it.
    fn forget_oldest(&mut self) {
        self.expire(0);
        if self.probes.pop_front().is_some() {
            self.first = self.first.wrapping_add(1);
            self.expired = self.expired.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests;
