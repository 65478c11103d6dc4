//! A program, its NIC and a network, in steps as small as threads can be interrupted between.

use std::time::Duration;

use super::super::word::{SharedWord, Word};
use super::super::*;

/// Delay of a timer of the engine after a transmission, or after a packet that starts one.
pub(super) const TIMER: Duration = Duration::from_millis(2);

/// Operation of the program or the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Op {
    /// The program posts a request.
    Post,
    /// The program polls.
    Poll,
    /// The program requests a CQ event.
    Arm,
    /// A packet arrives.
    Packet,
    /// A packet arrives that starts a timer and needs no response.
    QuietPacket,
}

/// A step of an [`Op`] that no other thread can interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Micro {
    Begin(Op),
    PostDone,
    PollReceive { deferred: DeferredTx },
    PollDone { found: bool, deferred: DeferredTx },
    Armed,
    Transmitted,
}

/// State of the progress thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Thread {
    Next(Action),
    Receive,
    Transmit,
    Transmitted,
    FallAsleep(Sleep, Option<Instant>),
    LookAgain(Option<Instant>),
    Asleep { until: Option<Instant>, for_packets: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) now: Instant,
    cpu_time: Duration,
    word: u64,
    doorbell: bool,
    polls: Polls,
    driver: Driver,
    thread: Thread,
    program: Vec<Micro>,
    /// Packets that wait, and since when; whether they start a timer.
    packets: Vec<(Instant, bool)>,
    /// Time since which packets are ready to be sent.
    unsent: Option<Instant>,
    timer: Option<Instant>,
    /// Number of times the progress thread woke.
    pub(super) wakes: u64,
    /// The longest that something waited: packets, TX, timers.
    pub(super) waited_max: Duration,
}

impl View for World {
    fn now(&self) -> Instant {
        self.now
    }

    fn cpu_time(&self) -> Duration {
        self.cpu_time
    }

    fn polls(&self) -> Polls {
        self.polls
    }

    fn has_deferred(&self) -> bool {
        Word::of(self.word).has_deferred()
    }
}

impl World {
    /// The progress thread sleeps, and the program does not poll.
    pub(super) fn new() -> Self {
        let mut driver = Driver::new();
        let nothing = Polls::default();
        let mut world = Self {
            now: Instant::from_nanos(1_000_000_000),
            cpu_time: Duration::ZERO,
            word: 0,
            doorbell: false,
            polls: nothing,
            driver: driver.clone(),
            thread: Thread::Transmit,
            program: Vec::new(),
            packets: Vec::new(),
            unsent: None,
            timer: None,
            wakes: 0,
            waited_max: Duration::ZERO,
        };
        world.thread = Thread::Next(driver.decide(&world));
        world.driver = driver;
        world.run_thread();
        world
    }

    /// Runs an operation on the shared word.
    fn word<T>(&mut self, run: impl FnOnce(&SharedWord) -> T) -> T {
        let word = SharedWord::of(self.word);
        let result = run(&word);
        self.word = word.load().value();
        result
    }

    fn ring_if(&mut self, must_ring: bool) {
        self.doorbell |= must_ring;
    }

    fn note_wait(&mut self, since: Instant) {
        self.waited_max = self.waited_max.max(self.now.saturating_since(since));
    }

    /// Receives what has arrived, and runs the timer if it has expired; returns whether there were
    /// packets.
    fn receive(&mut self) -> bool {
        let packets = std::mem::take(&mut self.packets);
        for (since, is_quiet) in &packets {
            self.note_wait(*since);
            if *is_quiet {
                self.timer = Some(self.now.saturating_add(TIMER));
            } else {
                self.unsent.get_or_insert(self.now);
            }
        }
        if let Some(timer) = self.timer.take_if(|timer| *timer <= self.now) {
            self.note_wait(timer);
            self.unsent.get_or_insert(self.now);
        }
        !packets.is_empty()
    }

    /// The engine is asked for packets, under the TX lock.
    fn transmit(&mut self) {
        if let Some(since) = self.unsent.take() {
            self.note_wait(since);
            self.timer = Some(self.now.saturating_add(TIMER));
        }
    }

    /// The TX lock is released.
    fn transmitted(&mut self) {
        let (before, timer) = (self.word(SharedWord::tx_released), self.timer);
        if timer.is_some_and(|timer| before.sleeps_past(timer)) {
            let must_ring = self.word(SharedWord::wake);
            self.ring_if(must_ring);
        }
    }

    // The program and the network.

    /// Begins an operation.
    pub(super) fn begin(&mut self, op: Op) {
        self.program.push(Micro::Begin(op));
    }

    pub(super) fn is_program_done(&self) -> bool {
        self.program.is_empty()
    }

    /// Runs a whole operation.
    pub(super) fn run(&mut self, op: Op) {
        self.begin(op);
        while !self.is_program_done() {
            self.step_program();
        }
    }

    /// The program, or the network, does its next step.
    pub(super) fn step_program(&mut self) {
        match self.program.pop().expect("it has something to do") {
            Micro::Begin(Op::Post) => {
                self.unsent.get_or_insert(self.now);
                self.program.push(Micro::PostDone);
            }
            Micro::PostDone => self.defer_or_transmit(DeferredTx::Requests),
            Micro::Begin(Op::Poll) => self.begin_poll(),
            Micro::PollReceive { deferred } => {
                let found = self.receive();
                self.program.push(Micro::PollDone { found, deferred });
            }
            Micro::PollDone { found, deferred } => self.end_poll(found, deferred),
            Micro::Begin(Op::Arm) => {
                self.polls.count = 0;
                self.program.push(Micro::Armed);
            }
            Micro::Armed => {
                let must_ring = self.word(SharedWord::arm);
                self.ring_if(must_ring);
            }
            Micro::Transmitted => self.transmitted(),
            Micro::Begin(Op::Packet) => self.packets.push((self.now, false)),
            Micro::Begin(Op::QuietPacket) => self.packets.push((self.now, true)),
        }
    }

    /// Begins a poll as `Shared::poll` does.
    fn begin_poll(&mut self) {
        let word = Word::of(self.word);
        self.polls = Polls { count: self.polls.count + 1, last: self.now };
        if self.polls.count.is_multiple_of(STEADY) && !word.is_polled() {
            let must_ring = self.word(SharedWord::wake);
            self.ring_if(must_ring);
        }
        let deferred = word.deferred();
        self.program.push(Micro::PollReceive { deferred });
        if deferred == DeferredTx::Requests
            && self.word(SharedWord::take_deferred) != DeferredTx::None
        {
            self.transmit();
            self.program.push(Micro::Transmitted);
        }
    }

    fn end_poll(&mut self, found: bool, deferred: DeferredTx) {
        if found && self.unsent.is_some() {
            if self.polls.count >= STEADY && !Word::of(self.word).is_polled() {
                self.polls.last = self.now;
                let must_ring = self.word(SharedWord::claim);
                self.ring_if(must_ring);
            }
            let tx = if deferred == DeferredTx::Responses {
                DeferredTx::Requests
            } else {
                DeferredTx::Responses
            };
            self.defer_or_transmit(tx);
        } else if !found
            && (self.word(SharedWord::take_deferred) != DeferredTx::None || self.unsent.is_some())
        {
            self.transmit();
            self.program.push(Micro::Transmitted);
        } else if self.timer.is_some_and(|timer| Word::of(self.word).sleeps_past(timer)) {
            let must_ring = self.word(SharedWord::wake);
            self.ring_if(must_ring);
        }
    }

    fn defer_or_transmit(&mut self, tx: DeferredTx) {
        if !self.word(|word| word.defer(tx)) {
            self.transmit();
            self.program.push(Micro::Transmitted);
        }
    }

    // The progress thread.

    /// Whether the progress thread sleeps, and neither the doorbell nor a packet nor the time wakes
    /// it.
    pub(super) fn is_asleep(&self) -> bool {
        let Thread::Asleep { until, for_packets } = self.thread else { return false };
        let is_readable = for_packets && !self.packets.is_empty();
        !self.doorbell && !is_readable && until.is_none_or(|until| until > self.now)
    }

    /// The progress thread runs until it sleeps.
    pub(super) fn run_thread(&mut self) {
        for _ in 0..1000 {
            if self.is_asleep() {
                return;
            }
            self.step_thread();
        }
        panic!("the progress thread never sleeps: {self:?}");
    }

    pub(super) fn step_thread(&mut self) {
        self.thread = match self.thread {
            Thread::Next(Action::TakeOver { restart_polls }) => {
                self.word(SharedWord::take_over);
                if restart_polls {
                    self.polls.count = STEADY - STEADY_AGAIN;
                }
                Thread::Receive
            }
            Thread::Next(Action::Receive) | Thread::Receive => {
                let packets = self.receive();
                self.next(Event::Received { packets })
            }
            Thread::Next(Action::Transmit) => {
                self.word(SharedWord::take_deferred);
                Thread::Transmit
            }
            Thread::Transmit => {
                self.transmit();
                Thread::Transmitted
            }
            Thread::Transmitted => {
                self.transmitted();
                self.next(Event::Transmitted)
            }
            Thread::Next(Action::Sleep(sleep)) => Thread::FallAsleep(sleep, self.timer),
            Thread::FallAsleep(sleep, timer) => self.fall_asleep(sleep, timer),
            Thread::LookAgain(timer) => {
                let until = [timer, self.timer].into_iter().flatten().min();
                Thread::Asleep { until, for_packets: true }
            }
            Thread::Asleep { for_packets, .. } => self.wake_up(for_packets),
        };
    }

    fn next(&mut self, event: Event) -> Thread {
        let mut driver = self.driver.clone();
        let action = driver.step(event, self);
        self.driver = driver;
        Thread::Next(action)
    }

    fn fall_asleep(&mut self, sleep: Sleep, timer: Option<Instant>) -> Thread {
        let kind = match sleep {
            Sleep::UntilDue => SleepKind::UntilDue(timer),
            Sleep::Until { polled: true, .. } => SleepKind::Polled,
            Sleep::Until { polled: false, .. } => SleepKind::Briefly,
        };
        if !self.word(|word| word.try_sleep(kind)) {
            return self.next(Event::Woken(Wake::Doorbell));
        }
        match sleep {
            Sleep::UntilDue => Thread::LookAgain(timer),
            Sleep::Until { until, for_packets, .. } => {
                Thread::Asleep { until: Some(until), for_packets }
            }
        }
    }

    fn wake_up(&mut self, for_packets: bool) -> Thread {
        self.wakes += 1;
        let rung = std::mem::take(&mut self.doorbell);
        let wake = if self.word(SharedWord::awake) || rung {
            Wake::Doorbell
        } else if for_packets && !self.packets.is_empty() {
            Wake::Readable
        } else {
            Wake::Timeout
        };
        self.next(Event::Woken(wake))
    }

    // Time.

    /// Time passes; the progress thread wakes when it has to. `busy`: the program runs meanwhile.
    pub(super) fn pass(&mut self, time: Duration, busy: bool) {
        let end = self.now.saturating_add(time);
        loop {
            self.run_thread();
            let until = match self.thread {
                Thread::Asleep { until: Some(until), .. } => until.min(end),
                _ => end,
            };
            if busy {
                self.cpu_time += until.saturating_since(self.now);
            }
            self.now = until;
            if until == end {
                return;
            }
        }
    }

    /// Time passes, and the progress thread gets no core.
    pub(super) fn stall(&mut self, time: Duration) {
        self.now = self.now.saturating_add(time);
    }

    /// Time passes until the progress thread wakes; returns false if it sleeps without an end.
    pub(super) fn pass_until_awake(&mut self) -> bool {
        match self.thread {
            _ if !self.is_asleep() => true,
            Thread::Asleep { until: Some(until), .. } => {
                self.now = until;
                true
            }
            _ => false,
        }
    }

    /// The program does nothing any more. The progress thread must do everything that is left in
    /// time, and then sleep until the next timer.
    pub(super) fn assert_nothing_is_forgotten(mut self) {
        while !self.program.is_empty() {
            self.step_program();
        }
        self.pass(UNATTENDED_MAX, false);
        self.run_thread();
        assert!(self.packets.is_empty(), "packets wait: {self:?}");
        assert_eq!(self.unsent, None, "there is something to send: {self:?}");
        let Thread::Asleep { until, for_packets: true } = self.thread else {
            panic!("it does not wait for packets: {self:?}");
        };
        assert!(!Word::of(self.word).is_polled(), "it relies on a poller: {self:?}");
        let is_late = self.timer.is_some_and(|timer| until.is_none_or(|until| until > timer));
        assert!(!is_late, "it oversleeps a timer: {self:?}");
    }

    /// The program waits for an event. The progress thread does not wait for it to poll.
    pub(super) fn assert_packet_is_received_at_once(mut self) {
        self.run_thread();
        self.run(Op::Packet);
        self.run_thread();
        assert!(self.packets.is_empty(), "a packet waits: {self:?}");
    }

    pub(super) fn is_left_to_poller(&self) -> bool {
        matches!(self.driver.state, State::BusyPolled(_))
    }

    pub(super) fn is_assisting(&self) -> bool {
        matches!(self.driver.state, State::Assisted(_))
    }
}
