//! Decides who receives, transmits, sleeps and wakes: a state machine without IO, clock or thread.
//!
//! A thread that polls a CQ drives the NIC itself: it receives what has arrived and transmits what
//! is to be sent. The progress thread drives for programs that do not poll. [`Driver`] decides what
//! the progress thread does next:
//!
//! | state | program | progress thread | posted requests are sent |
//! |---|---|---|---|
//! | `Idle` | does not poll | receives, transmits, sleeps until a packet, a deadline or the doorbell | at once, by the posting thread |
//! | `BusyPolled` | polls, and keeps up | sleeps; [checks](poller) at growing intervals that it still polls | with the next poll |
//! | `Assisted` | polls, but let packets wait | sleeps until packets come, and receives those that the program leaves | with the next poll, or within about a millisecond |
//!
//! Requests that are [urgent](crate::engine::Engine::has_urgent_transmit) wait for no poll: the
//! posting thread sends them in every state.
//!
//! The thread performs an [`Action`], reports the [`Event`] that came of it, and gets the next
//! action. What other threads tell it goes through the [shared word](word), which says why no
//! wake-up is lost. What they poll is a hint ([`Polls`]): a stale value makes the NIC slow for a
//! few milliseconds and never stops it, because every sleep while a poller drives is short: after
//! 5.4 ms without a poll the progress thread has received and transmitted what there was.

mod poller;
mod polls;
mod signals;
mod word;

#[cfg(test)]
mod tests;

use std::time::Duration;

#[cfg(test)]
use self::poller::CHECK_INTERVAL_MAX;
use self::poller::PollerState;
pub(super) use self::poller::{STEADY, STEADY_AGAIN};
pub(super) use self::polls::{PollCounter, Polls};
pub(super) use self::signals::Signals;
pub(super) use self::word::{DeferredTx, SleepKind, Word};
use crate::time::Instant;

/// Time that a program that polled before, and may be reading memory now, has to receive by itself
/// what arrived, and then to reply before it is acknowledged.
const COURTESY: Duration = Duration::from_micros(200);

/// Time after its last poll for which a busy poller is expected to poll again.
const RECENT: Duration = Duration::from_millis(1);

/// Time after its last poll for which a program is given [`COURTESY`].
const AWAY: Duration = Duration::from_millis(5);

/// Maximum time that packets and deferred TX wait for a poller that does not poll any more: a check
/// interval, then the time to listen, then the courtesy before it receives and before it transmits.
#[cfg(test)]
const UNATTENDED_MAX: Duration =
    CHECK_INTERVAL_MAX.saturating_add(RECENT).saturating_add(COURTESY).saturating_add(COURTESY);

/// Next action of the progress thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// Drives the NIC from now on: receives what has arrived and runs expired timers. Reports
    /// [`Event::Received`].
    TakeOver {
        /// Whether the program has to poll [`STEADY_AGAIN`] times before it counts as a busy
        /// poller.
        restart_polls: bool,
    },
    /// Receives what has arrived, beside a poller. Reports [`Event::Received`].
    Receive,
    /// Transmits everything, with what was deferred. Reports [`Event::Transmitted`].
    Transmit,
    /// Sleeps. Reports [`Event::Woken`].
    Sleep(Sleep),
}

/// Sleep of the progress thread. The doorbell wakes it from every sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sleep {
    /// Sleep until a packet arrives, or the next deadline of the engine or the link.
    UntilDue,
    /// Sleep until `until`, or, if `for_packets`, until a packet arrives. A poller drives meanwhile
    /// if `polled`.
    Until { until: Instant, for_packets: bool, polled: bool },
}

/// Result of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// Whether packets had arrived.
    Received {
        packets: bool,
    },
    Transmitted,
    Woken(Wake),
}

/// Cause of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wake {
    /// The doorbell: everything has to be checked anew, because it does not ring twice.
    Doorbell,
    /// A packet arrived.
    Readable,
    /// The time is over.
    Timeout,
}

/// State that the driver reads when it decides.
pub(super) trait View {
    fn now(&self) -> Instant;
    /// CPU time that the threads of the program have used so far.
    fn cpu_time(&self) -> Duration;
    fn polls(&self) -> Polls;
    /// Whether TX is deferred to the next poll.
    fn has_deferred(&self) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum State {
    Idle(Idle),
    BusyPolled(Step),
    Assisted(Step),
}

/// Steps while the progress thread drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Idle {
    /// The thread receives; whether the program was a busy poller until now.
    Receiving {
        was_busy_polling: bool,
    },
    /// The thread waits for the program to reply before it acknowledges.
    Courtesy,
    Transmitting,
    Sleeping,
}

/// Steps while a poller drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// The poller is left alone for a check interval.
    Unattended,
    /// The thread waits for packets.
    Listening,
    /// Work is pending. The poller has the courtesy to do it by itself.
    Yielding,
    Receiving,
    /// The thread waits for the program to reply before it acknowledges.
    Courtesy {
        waited: bool,
    },
    Transmitting {
        waited: bool,
    },
}

/// Decides what the progress thread does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Driver {
    state: State,
    poller: PollerState,
    /// Number of polls when the thread fell asleep.
    polls: u64,
}

impl Driver {
    pub(super) fn new() -> Self {
        Self { state: State::Idle(Idle::Sleeping), poller: PollerState::default(), polls: 0 }
    }

    /// Decides from the start who drives.
    pub(super) fn decide(&mut self, view: &impl View) -> Action {
        let (now, polls) = (view.now(), view.polls());
        let was_busy_polling = self.poller.is_busy_polling(now, polls.count);
        if was_busy_polling && polls.is_within(now, RECENT) {
            return match self.poller.begin_check(now, view.cpu_time(), polls.count) {
                Some(interval) => self.wait(State::BusyPolled(Step::Unattended), interval, view),
                None => self.listen(State::Assisted, view),
            };
        }
        self.state = State::Idle(Idle::Receiving { was_busy_polling });
        Action::TakeOver { restart_polls: !was_busy_polling && polls.count >= STEADY }
    }

    /// Takes the event that came of the last action; returns the next action.
    pub(super) fn step(&mut self, event: Event, view: &impl View) -> Action {
        match (self.state, event) {
            (State::Idle(idle), event) => self.step_idle(idle, event, view),
            (State::BusyPolled(step), event) => {
                self.step_polled(State::BusyPolled, step, event, view)
            }
            (State::Assisted(step), event) => self.step_polled(State::Assisted, step, event, view),
        }
    }

    fn step_idle(&mut self, step: Idle, event: Event, view: &impl View) -> Action {
        match (step, event) {
            (Idle::Receiving { was_busy_polling }, Event::Received { packets }) => {
                let now = view.now();
                self.poller.stopped(now, || view.cpu_time(), packets);
                let has_work = packets || view.has_deferred();
                if was_busy_polling && has_work && view.polls().is_within(now, AWAY) {
                    return self.wait(State::Idle(Idle::Courtesy), COURTESY, view);
                }
                self.transmit(State::Idle(Idle::Transmitting))
            }
            (Idle::Courtesy, Event::Woken(Wake::Readable | Wake::Timeout)) => {
                self.transmit(State::Idle(Idle::Transmitting))
            }
            (Idle::Transmitting, Event::Transmitted) => {
                self.state = State::Idle(Idle::Sleeping);
                Action::Sleep(Sleep::UntilDue)
            }
            _ => self.decide(view),
        }
    }

    /// `state` makes the state of a step: `BusyPolled` or `Assisted`.
    fn step_polled(
        &mut self,
        state: fn(Step) -> State,
        step: Step,
        event: Event,
        view: &impl View,
    ) -> Action {
        let polled = view.polls().count != self.polls;
        let woken = matches!(event, Event::Woken(Wake::Doorbell));
        match (step, event) {
            (Step::Unattended, Event::Woken(_)) if !woken && !polled => self.listen(state, view),
            (Step::Listening, Event::Woken(Wake::Readable)) => self.attend(state, view),
            (Step::Yielding, Event::Woken(_)) if !woken && !polled => self.receive(state),
            (Step::Yielding, Event::Woken(_)) if !woken && view.has_deferred() => {
                self.wait(state(Step::Yielding), COURTESY, view)
            }
            (Step::Receiving, Event::Received { packets: waited }) => {
                self.wait(state(Step::Courtesy { waited }), COURTESY, view)
            }
            (Step::Courtesy { waited }, Event::Woken(_)) if !woken && !polled => {
                self.transmit(state(Step::Transmitting { waited }))
            }
            (Step::Courtesy { waited } | Step::Transmitting { waited }, _) => {
                self.end_check(waited, view)
            }
            _ => self.end_check(false, view),
        }
    }

    fn end_check(&mut self, waited: bool, view: &impl View) -> Action {
        self.poller.end_check(view.now(), view.cpu_time(), waited);
        self.decide(view)
    }

    /// Sleeps for a time in which the poller is expected to poll.
    fn wait(&mut self, state: State, time: Duration, view: &impl View) -> Action {
        self.sleep(state, time, false, view)
    }

    /// Waits for packets beside the poller, unless there is something to do.
    fn listen(&mut self, state: fn(Step) -> State, view: &impl View) -> Action {
        if view.has_deferred() {
            return self.attend(state, view);
        }
        self.sleep(state(Step::Listening), RECENT, true, view)
    }

    /// Handles pending work. A poller that is left alone did not poll for a whole check interval;
    /// one that is assisted may be about to.
    fn attend(&mut self, state: fn(Step) -> State, view: &impl View) -> Action {
        match state(Step::Yielding) {
            yielding @ State::Assisted(_) => self.wait(yielding, COURTESY, view),
            _ => self.receive(state),
        }
    }

    fn receive(&mut self, state: fn(Step) -> State) -> Action {
        self.state = state(Step::Receiving);
        Action::Receive
    }

    fn transmit(&mut self, state: State) -> Action {
        self.state = state;
        Action::Transmit
    }

    fn sleep(
        &mut self,
        state: State,
        time: Duration,
        for_packets: bool,
        view: &impl View,
    ) -> Action {
        (self.state, self.polls) = (state, view.polls().count);
        let polled = !matches!(state, State::Idle(_));
        Action::Sleep(Sleep::Until { until: view.now().saturating_add(time), for_packets, polled })
    }
}
