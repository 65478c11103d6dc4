//! Events of a run beside its traffic: messages of the control connection, Ctrl-C, time limits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use indicatif::ProgressBar;
use roce::control::{Channel, ControlError, Incoming};

use super::control::messages::{Done, Message, receive};
use super::control::plan::Extent;

/// Interval at which the control connection, Ctrl-C and the time limits are checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Interval of keep-alive messages to the peer.
const ALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// Time without a message after which the peer counts as gone.
const SILENCE: Duration = Duration::from_secs(15);

/// Time in which messages in flight must complete once the run is to stop.
const STOP_WAIT: Duration = Duration::from_secs(1);

/// Time in which the peer must finish once the run is to stop.
const PEER_STOP_WAIT: Duration = Duration::from_secs(3);

/// Names of the messages that a peer may send during a run.
const RUNNING: &str = "stop or done";

/// Number of empty polls after which the thread yields the processor.
const POLLS_IN_VAIN: u32 = 64;

/// Returns the current time.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// State of a run beside its traffic.
pub(crate) struct Watch<'a> {
    control: &'a mut Channel,
    bar: &'a ProgressBar,
    extent: Extent,
    started: Instant,
    /// Time of the last check.
    looked: Instant,
    /// Time of the last keep-alive message to the peer.
    told: Instant,
    /// Time of the last message from the peer.
    heard: Instant,
    /// Number of empty polls since the last completion or yield.
    in_vain: u32,
    /// Set by Ctrl-C.
    interrupt: &'a AtomicBool,
    /// Time at which the run was told to stop early.
    stopping: Option<Instant>,
    /// The peer's final message.
    pub(crate) peer: Option<Done>,
}

impl<'a> Watch<'a> {
    /// Begins a run with a peer that is ready.
    pub(crate) fn begin(
        control: &'a mut Channel,
        bar: &'a ProgressBar,
        extent: Extent,
        interrupt: &'a AtomicBool,
    ) -> Self {
        let started = now();
        Self {
            control,
            bar,
            extent,
            started,
            looked: started,
            told: started,
            heard: started,
            in_vain: 0,
            interrupt,
            stopping: None,
            peer: None,
        }
    }

    /// Returns the time at which the run began.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Returns the time of the last message from the peer.
    pub(crate) fn heard(&self) -> Instant {
        self.heard
    }

    /// Resets the number of empty polls.
    #[inline]
    pub(crate) fn progressed(&mut self) {
        self.in_vain = 0;
    }

    /// Counts an empty poll. Returns whether it is time to [`look`](Self::look).
    #[inline]
    pub(crate) fn polled_in_vain(&mut self) -> bool {
        self.in_vain += 1;
        if self.in_vain < POLLS_IN_VAIN {
            core::hint::spin_loop();
            return false;
        }
        self.in_vain = 0;
        std::thread::yield_now();
        true
    }

    /// Reads the control connection, updates the progress bar and checks the time limits, at most
    /// once in a [`LOOK_INTERVAL`].
    pub(crate) fn look(&mut self, now: Instant, messages: u64) -> anyhow::Result<()> {
        if now.duration_since(self.looked) < LOOK_INTERVAL {
            return Ok(());
        }
        self.looked = now;
        if now.duration_since(self.told) > ALIVE_INTERVAL {
            self.told = now;
            self.control.send_alive()?;
        }
        match self.extent {
            Extent::Iterations(_) => self.bar.set_position(messages),
            Extent::Seconds(_) => {
                self.bar.set_position(now.duration_since(self.started).as_secs());
            }
        }
        // Messages that follow the peer's `Done` are for another reader.
        while self.peer.is_none() {
            match self.control.try_receive(RUNNING)? {
                Incoming::Nothing => break,
                Incoming::Alive => {}
                Incoming::Message(Message::Stop) => self.stopping = self.stopping.or(Some(now)),
                Incoming::Message(Message::Done(done)) => self.peer = Some(done),
                Incoming::Message(other) => {
                    return Err(self.control.unexpected(&other, RUNNING).into());
                }
            }
            self.heard = now;
        }
        if self.stopping.is_none() && self.interrupt.load(Ordering::SeqCst) {
            self.stopping = Some(now);
            self.control.send(&Message::Stop)?;
        }
        let silent = self.peer.is_none() && now.duration_since(self.heard) > SILENCE;
        ensure!(!silent, "the other side has sent nothing for {} seconds", SILENCE.as_secs());
        let stopping = self.stopping.map_or(Duration::ZERO, |since| now.duration_since(since));
        ensure!(stopping < PEER_STOP_WAIT, "the other side did not stop in time");
        Ok(())
    }

    /// Whether the run is to end early: because of Ctrl-C here, or because the peer asks for it.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    /// Whether the time to wait for messages in flight is over.
    pub(crate) fn gives_up(&self, now: Instant) -> bool {
        self.stopping.is_some_and(|since| now.duration_since(since) > STOP_WAIT)
    }

    /// Tells the peer that this side is done.
    pub(crate) fn tell(&mut self, done: Done) -> Result<(), ControlError> {
        self.control.send(&Message::Done(done))
    }

    /// Waits until the peer is done.
    pub(crate) fn wait_for_peer(&mut self) -> Result<Done, ControlError> {
        if let Some(done) = self.peer {
            return Ok(done);
        }
        loop {
            match receive(self.control, RUNNING)? {
                Message::Stop => {}
                Message::Done(done) => {
                    self.peer = Some(done);
                    return Ok(done);
                }
                other => return Err(self.control.unexpected(&other, RUNNING)),
            }
        }
    }

    /// Ends the run, and returns the control connection.
    pub(crate) fn end(self) -> &'a mut Channel {
        self.control
    }
}
