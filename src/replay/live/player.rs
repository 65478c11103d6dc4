//! Playing of a script: the timing of the capture, scaled or not, and the answers to wait for.

use std::time::Duration;

use super::limits::REWINDS_MAX;
use super::script::{Captured, Event, Script};
use crate::time::Instant;
use crate::wire::aeth::{Answer, NakCode};

/// Speed at which a script is played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Speed {
    /// The times between packets are those of the capture, divided by this.
    Times(f64),
    /// The fastest possible.
    Max,
}

/// Whether the player waits for answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loop {
    /// A request is sent when the answers have come that the capture shows before it.
    Closed,
    /// Requests are sent by the clock alone.
    Open,
}

/// Options of playing a script. Set the fields of the default: once, at the times of the capture,
/// waiting for answers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PlayOptions {
    /// Speed.
    pub speed: Speed,
    /// Whether answers are waited for.
    pub wait: Loop,
    /// Longest wait for an answer.
    pub timeout: Duration,
    /// Number of times that the script is played.
    pub rounds: u32,
}

impl Default for PlayOptions {
    fn default() -> Self {
        Self {
            speed: Speed::Times(1.0),
            wait: Loop::Closed,
            timeout: Duration::from_secs(1),
            rounds: 1,
        }
    }
}

/// Next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Send the request that is this event of the script, in this round.
    Send {
        /// The index of the event.
        event: usize,
        /// The round, counted from 0.
        round: u32,
    },
    /// Wait until then, or until an answer comes.
    Wait(Instant),
    /// The script is over.
    Done,
}

/// Plays a script.
#[derive(Debug)]
pub struct Player {
    options: PlayOptions,
    /// Sequence numbers that, for each event, must be answered before what follows: the end of the
    /// last sequence number.
    gates: Vec<i64>,
    times: Vec<Instant>,
    is_request: Vec<bool>,
    sequences: Vec<i64>,
    /// Sequence number before which all must be answered in the end.
    last_gate: i64,
    span: i64,
    event: usize,
    round: u32,
    /// A moment of the capture, and when it is here.
    anchor: Option<(Instant, Instant)>,
    /// Start of the wait for an answer.
    waiting_since: Option<Instant>,
    /// No request is sent before.
    not_before: Instant,
    rewinds: u32,
    /// Waits that ended without an answer.
    timeouts: u64,
}

impl Player {
    /// A player at the start of a script.
    pub fn new(script: &Script, options: PlayOptions) -> Self {
        let demanded: Vec<(i64, i64)> = {
            let asking = script.requests().filter(|it| it.demands_answer());
            asking.map(|it| (it.sequence, it.sequence + i64::from(it.span(script.mtu)))).collect()
        };
        let mut gates = Vec::with_capacity(script.events.len());
        let (mut seen, mut gate) = (0, 0);
        for event in &script.events {
            match event {
                Event::Request(request) => seen += usize::from(request.demands_answer()),
                Event::Answer(answer) => {
                    gate = gate.max(gate_of(demanded.get(..seen).unwrap_or_default(), answer));
                }
            }
            gates.push(gate);
        }
        Self {
            options,
            gates,
            times: script.events.iter().map(|event| event.packet().time).collect(),
            is_request: script.events.iter().map(|it| matches!(it, Event::Request(_))).collect(),
            sequences: script.events.iter().map(|event| event.packet().sequence).collect(),
            // What the capture shows no answer to is not waited for.
            last_gate: gate,
            span: i64::from(script.span()),
            event: 0,
            round: 0,
            anchor: None,
            waiting_since: None,
            not_before: Instant::ZERO,
            rewinds: 0,
            timeouts: 0,
        }
    }

    /// Returns the number of waits that ended without an answer.
    pub fn timeouts(&self) -> u64 {
        self.timeouts
    }

    /// Returns the next action. Everything before the sequence number `answered_to` was answered,
    /// counted over all rounds.
    pub fn poll(&mut self, now: Instant, answered_to: i64) -> Next {
        loop {
            if self.event >= self.times.len() {
                let gate = self.last_gate;
                // The last answers are waited for even without a closed loop.
                if let Some(until) = self.wait_for(now, gate, answered_to) {
                    return Next::Wait(until);
                }
                if self.round + 1 >= self.options.rounds {
                    return Next::Done;
                }
                (self.round, self.event, self.anchor) = (self.round + 1, 0, None);
                continue;
            }
            if !self.is_request.get(self.event).copied().unwrap_or(false) {
                let gate = self.gates.get(self.event).copied().unwrap_or(0);
                if self.options.wait == Loop::Closed {
                    if let Some(until) = self.wait_for(now, gate, answered_to) {
                        return Next::Wait(until);
                    }
                    let time = self.times.get(self.event).copied().unwrap_or(now);
                    self.anchor = Some((time, now));
                }
                self.event += 1;
                continue;
            }
            let due = self.due(now).max(self.not_before);
            if due > now {
                return Next::Wait(due);
            }
            let (event, round) = (self.event, self.round);
            self.event += 1;
            return Next::Send { event, round };
        }
    }

    /// Returns until when to wait for answers before a sequence number of this round; nothing if
    /// they are there, or late.
    fn wait_for(&mut self, now: Instant, gate: i64, answered_to: i64) -> Option<Instant> {
        if answered_to >= gate + i64::from(self.round) * self.span {
            self.waiting_since = None;
            return None;
        }
        let until = self.waiting_since.get_or_insert(now).saturating_add(self.options.timeout);
        if now < until {
            return Some(until);
        }
        self.waiting_since = None;
        self.timeouts += 1;
        None
    }

    /// Returns the time when the next request is due.
    fn due(&mut self, now: Instant) -> Instant {
        let Speed::Times(speed) = self.options.speed else { return now };
        let time = self.times.get(self.event).copied().unwrap_or(now);
        let (then, here) = *self.anchor.get_or_insert((time, now));
        let nanos = time.saturating_since(then).as_secs_f64() * 1e9 / speed.max(1e-6);
        // At most a day: a longer pause is a mistake of a clock.
        let nanos = Duration::from_secs_f64((nanos / 1e9).clamp(0.0, 86_400.0));
        here.saturating_add(nanos)
    }

    /// Goes back to the request of a sequence number, counted over all rounds, not before a moment.
    /// Whether it did: a peer that asks too often is not obeyed.
    pub fn rewind(&mut self, sequence: i64, not_before: Instant) -> bool {
        if self.rewinds >= REWINDS_MAX || self.span == 0 {
            return false;
        }
        let round = sequence.div_euclid(self.span);
        let at = sequence.rem_euclid(self.span);
        let found = self.sequences.iter().zip(&self.is_request);
        let Some(event) = found.clone().position(|(it, is_request)| *is_request && *it == at)
        else {
            return false;
        };
        let Ok(round) = u32::try_from(round) else { return false };
        if (round, event) >= (self.round, self.event) {
            return false;
        }
        self.rewinds += 1;
        (self.round, self.event) = (round, event);
        (self.anchor, self.waiting_since, self.not_before) = (None, None, not_before);
        true
    }

    /// Forgets how often it went back: the peer got on.
    pub fn progressed(&mut self) {
        self.rewinds = 0;
    }
}

/// Returns what must be answered before an answer of the capture is passed: what it answers, if a
/// responder must answer that, or else the last before it that a responder must answer. A request
/// that is refused for good is always answered.
fn gate_of(demanded: &[(i64, i64)], answer: &Captured) -> i64 {
    let syndrome = answer.view().and_then(|it| it.aeth().map(|aeth| aeth.syndrome().answer()));
    if matches!(syndrome, Some(Answer::Nak(code)) if code != NakCode::PsnSequenceError) {
        return answer.sequence + 1;
    }
    let before = demanded.iter().rev().find(|(first, _)| *first <= answer.sequence);
    before.map_or(0, |(_, end)| (*end).min(answer.sequence + 1))
}
