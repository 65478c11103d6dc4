//! Who drives the engine, and when.
//!
//! Whoever polls drives: it takes in what has arrived, and sends what is to be sent, in its own thread. While somebody
//! does so all the time, the progress thread stays out of the way. Otherwise it sleeps until a packet comes, a timer is
//! due or the doorbell rings, and drives. Programs that poll for a while, and then look at memory until a peer has written
//! there, need it: it stays out of the way of those only who get on without it.
//!
//! Locks are taken in one order: the receiving half, or the sending half, then the core. Packets are received, checked,
//! sealed and sent without the core; so one thread can talk to the kernel while another works on queue pairs.

mod attendant;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::alarm::{Alarm, Watched};
use super::core::{Core, Work};
use super::port::PortWatch;
use super::timed_mutex::{TimedGuard, TimedMutex};
use super::trust::STEADY;
use crate::link::{Frames, Receiver, Sender};
use crate::time::Instant;
use crate::wire::Batch;

/// How many packets are sent at a time, and how many bytes: three times what a socket takes at once, and few enough to be
/// in a cache when the kernel copies them.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 3 << 16;

/// What may be left for the next poll. Answers wait for one that finds nothing, or for the second that finds something: a
/// program that looks at one queue after the other answers itself when it has looked at all.
const NOTHING: u8 = 0;
const ANSWERS: u8 = 1;
const REQUESTS: u8 = 2;

/// What all threads share.
pub(super) struct Shared {
    core: Mutex<Core>,
    outgoing: TimedMutex<Outgoing>,
    incoming: TimedMutex<Box<dyn Receiver>>,
    /// A copy of the receiving half's, to wait for without its lock.
    arrivals: OwnedFd,
    /// The same once a group was joined, if it is another one then.
    arrivals_with_groups: OnceLock<OwnedFd>,
    /// What becomes of the port.
    pub(super) port_watch: Option<PortWatch>,
    pub(super) alarm: Arc<Alarm>,
    clock: std::time::Instant,
    /// Whether there may be something to send that nobody is sending.
    unsent: AtomicBool,
    /// When the progress thread wakes by itself, in nanoseconds.
    wakes: AtomicU64,
    /// When the sending half wants to be called again, in nanoseconds.
    held: AtomicU64,
    /// Whether the progress thread only sees to it that whoever polls goes on.
    watching: AtomicBool,
    /// What is left for the next poll to send: nothing, [`ANSWERS`] or [`REQUESTS`].
    deferred: AtomicU8,
    /// How often somebody polled since events were last asked for.
    polls: AtomicU64,
    last_poll: AtomicU64,
    stopped: AtomicBool,
}

/// What came of taking in what had arrived.
struct Taken {
    /// Whether anything had.
    arrived: bool,
    /// How much there was to take then.
    count: usize,
    /// What is left to be done.
    work: Work,
}

struct Outgoing {
    sender: Box<dyn Sender>,
    batch: Batch,
    /// When the link wants to be called again.
    wants: Option<Instant>,
    /// Where frames of raw packets go.
    frames: Option<Arc<dyn Frames>>,
}

impl Shared {
    pub(super) fn new(
        core: Core,
        sender: Box<dyn Sender>,
        receiver: Box<dyn Receiver>,
        frames: Option<Arc<dyn Frames>>,
        port_watch: Option<PortWatch>,
    ) -> io::Result<Arc<Self>> {
        let arrivals = receiver.fd().try_clone_to_owned()?;
        let alarm = Arc::new(Alarm::new()?);
        let batch = Batch::try_bounded(BATCH, BATCH_BYTES)?;
        let outgoing = Outgoing { sender, batch, wants: None, frames };
        Ok(Arc::new(Self {
            core: Mutex::new(core),
            outgoing: TimedMutex::new(outgoing, &alarm),
            incoming: TimedMutex::new(receiver, &alarm),
            arrivals,
            arrivals_with_groups: OnceLock::new(),
            port_watch,
            alarm,
            #[expect(clippy::disallowed_methods, reason = "here is where time comes from")]
            clock: std::time::Instant::now(),
            unsent: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            held: AtomicU64::new(u64::MAX),
            watching: AtomicBool::new(false),
            deferred: AtomicU8::new(NOTHING),
            polls: AtomicU64::new(0),
            last_poll: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }))
    }

    /// The time, counted from when the NIC was started.
    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn core(&self) -> Watched<'_, Core> {
        self.alarm.lock(&self.core)
    }

    /// The receiving half. Whoever wants the core too takes it afterwards.
    pub(super) fn receiver(&self) -> TimedGuard<'_, Box<dyn Receiver>> {
        self.incoming.lock(|| self.now())
    }

    /// The descriptors that hold the link's address: of the receiving half before it joins groups, and its copy.
    pub(super) fn address_fds(&self) -> Vec<RawFd> {
        vec![self.receiver().fd().as_raw_fd(), self.arrivals.as_raw_fd()]
    }

    /// The receiving half has joined a group, and may have another descriptor to wait for.
    pub(super) fn watch(&self, receiver: &dyn Receiver) -> io::Result<()> {
        if self.arrivals_with_groups.get().is_none() {
            let _ = self.arrivals_with_groups.set(receiver.fd().try_clone_to_owned()?);
            self.alarm.ring();
        }
        Ok(())
    }

    /// Somebody polls, and drives: `take` takes what is there for it.
    ///
    /// If there is something, what packets are to be answered with waits for the next poll, so that it goes out together
    /// with what the program will post in its turn. A poll in vain takes each lock once at the most.
    pub(super) fn poll(&self, mut take: impl FnMut(&mut Core) -> usize) -> usize {
        if self.alarm.is_raised() {
            return 0;
        }
        let mut now = self.now();
        // Another thread may ask for events just now, and this go on counting: it is found out when nobody polls.
        let polls = self.polls.load(Ordering::Relaxed) + 1;
        self.polls.store(polls, Ordering::Relaxed);
        self.last_poll.store(now.as_nanos(), Ordering::Relaxed);
        if polls.is_multiple_of(STEADY) && !self.watching.load(Ordering::Relaxed) {
            // Packets that this takes in do not wake the progress thread, but it should get out of the way.
            self.alarm.ring();
        }
        let deferred = self.deferred.load(Ordering::Relaxed);
        if deferred == REQUESTS && self.take_deferred() {
            self.send(now, true);
        }
        let (mut count, mut work) = {
            let mut core = self.core();
            (take(&mut core), core.work(now))
        };
        if count == 0 {
            let receiver = self.incoming.try_lock_or_wait(now, || self.now());
            // A wait may have taken a time slice.
            now = receiver.as_ref().map_or(now, TimedGuard::since);
            Taken { count, work, .. } = self.take_in(receiver, now, work, take);
        }
        if count > 0 {
            if work.unsent {
                self.claim(polls);
                self.leave(if deferred == ANSWERS { REQUESTS } else { ANSWERS });
            }
        } else if self.take_deferred() || work.unsent || self.is_due_on_the_link(now) {
            self.transmit(now);
        }
        count
    }

    /// Whoever polls steadily lets the progress thread know that it does, if that thinks that nobody does: it will look at
    /// once, and at what was left meanwhile if it is not convinced.
    fn claim(&self, polls: u64) {
        if polls >= STEADY && !self.watching.load(Ordering::Relaxed) {
            // The poll that found something may have begun long ago.
            self.last_poll.store(self.now().as_nanos(), Ordering::SeqCst);
            self.watching.store(true, Ordering::SeqCst);
            self.alarm.ring();
        }
    }

    /// Whether the link held something back that it wants to send by now.
    fn is_due_on_the_link(&self, now: Instant) -> bool {
        self.held.load(Ordering::Relaxed) <= now.as_nanos()
    }

    /// Sends what was left for the next poll, or held back, and what another thread is about to send: somebody does
    /// something else now, which may end what it belongs to.
    pub(super) fn flush(&self) {
        if self.alarm.is_raised() {
            return;
        }
        self.deferred.store(NOTHING, Ordering::Relaxed);
        let unsent = {
            let engine = &mut self.core().engine;
            engine.release_held();
            engine.has_transmit()
        };
        if unsent {
            // Another thread may have the lock and not have asked the engine yet.
            self.send_with(self.outgoing.lock(|| self.now()), false);
        }
    }

    /// Whether something was left for the next poll; it is the caller's now.
    fn take_deferred(&self) -> bool {
        self.deferred.load(Ordering::Relaxed) != NOTHING
            && self.deferred.swap(NOTHING, Ordering::SeqCst) != NOTHING
    }

    /// There is something to send that was posted.
    pub(super) fn posted(&self) {
        self.leave(REQUESTS);
    }

    /// There is something to send. Whoever polls steadily sends it with the next poll, together with what else there is
    /// then; anybody else sends it now. If the progress thread takes over from one that stopped polling, it says so
    /// before it looks for what is unsent, and this asks after it was posted; so one of the two sends it.
    fn leave(&self, what: u8) {
        if self.watching.load(Ordering::SeqCst) {
            self.deferred.store(what, Ordering::SeqCst);
        } else {
            self.transmit(self.now());
        }
    }

    /// Somebody will wait for an event, and not poll until it comes.
    pub(super) fn hand_over(&self) {
        self.polls.store(0, Ordering::SeqCst);
        if self.watching.load(Ordering::SeqCst) {
            self.alarm.ring();
        }
    }

    /// Takes in what has arrived, and does what is due, if there is anything; then `take` takes what came of it.
    ///
    /// Without the receiving half it does only what is due: the thread that has it will take in what has arrived.
    fn take_in(
        &self,
        mut receiver: Option<TimedGuard<'_, Box<dyn Receiver>>>,
        now: Instant,
        work: Work,
        mut take: impl FnMut(&mut Core) -> usize,
    ) -> Taken {
        let arrived = receiver.as_mut().map_or(Ok(0), |receiver| receiver.receive(now));
        if matches!(arrived, Ok(0)) && !work.due {
            return Taken { arrived: false, count: 0, work };
        }
        let mut core = self.core();
        let mut some = false;
        match (arrived, &receiver) {
            (Ok(1..), Some(receiver)) => {
                some = true;
                receiver.for_each(&mut |packet| {
                    core.engine.handle_packet(now, packet);
                });
            }
            (Err(error), _) => self.fail(&mut core, &error),
            _ => {}
        }
        if core.work(now).due {
            core.engine.handle_timeout(now);
        }
        core.deliver();
        Taken { arrived: some, count: take(&mut core), work: core.work(now) }
    }

    /// The link has failed for good: reports it once, lets the progress thread end, which would find the link's descriptor
    /// ready for ever, and refuses later calls.
    #[cold]
    fn fail(&self, core: &mut Core, error: &io::Error) {
        core.fail(error);
        self.alarm.raise();
    }

    /// Sends what is to be sent.
    pub(super) fn transmit(&self, now: Instant) {
        self.send(now, false);
    }

    /// Looks at the sending half. Whoever wanted to send meanwhile and found it taken has left that to this.
    fn with_outgoing<T>(&self, look: impl FnOnce(&Outgoing) -> T) -> T {
        let seen = look(&self.outgoing.lock(|| self.now()));
        if self.unsent.swap(false, Ordering::AcqRel) {
            self.transmit(self.now());
        }
        seen
    }

    /// Sends the frames that wait. What the network refuses is as good as lost.
    fn send_frames(&self, frames: &dyn Frames) {
        let next = || {
            let mut core = self.core();
            let frame = core.engine.poll_frame();
            core.deliver();
            frame
        };
        while let Some(frame) = next() {
            let _ = frames.send(&frame);
        }
    }

    /// Takes in a frame of any protocol.
    pub(super) fn take_frame(&self, frame: &[u8]) {
        if self.alarm.is_raised() {
            return;
        }
        let now = self.now();
        let mut core = self.core();
        core.engine.handle_frame(now, frame);
        core.deliver();
    }

    /// Sends what is to be sent; of whoever will soon do it again, what its peers wait for most comes `first`, and what
    /// they can do without for a moment is left.
    ///
    /// One thread sends at a time. Who finds the lock taken says so and tries once more; who gives it back asks
    /// afterwards whether somebody said so. Of the two exchanges one is the later, and whoever does it sees to the rest.
    fn send(&self, now: Instant, first: bool) {
        if self.alarm.is_raised() {
            return;
        }
        if let Some(outgoing) = self.try_outgoing(now) {
            self.send_with(outgoing, first);
        }
    }

    /// The sending half, unless somebody has it who will see that there is more to send.
    fn try_outgoing(&self, now: Instant) -> Option<TimedGuard<'_, Outgoing>> {
        self.outgoing.try_lock(now).or_else(|| {
            self.unsent.swap(true, Ordering::AcqRel);
            // The holder may have released the lock just before it was told, or may have lost its core.
            self.outgoing.try_lock_or_wait(now, || self.now())
        })
    }

    fn send_with<'a>(&'a self, mut outgoing: TimedGuard<'a, Outgoing>, mut first: bool) {
        loop {
            let now = outgoing.since();
            let due = self.send_all(&mut outgoing, now, first);
            drop(outgoing);
            // The progress thread might oversleep what is due, of the engine or of the link, which may hold packets
            // back.
            if due.is_some_and(|due| due.as_nanos() < self.wakes.load(Ordering::SeqCst)) {
                self.alarm.ring();
            }
            if !self.unsent.swap(false, Ordering::AcqRel) {
                return;
            }
            // Somebody else may want everything to be sent.
            first = false;
            let Some(again) = self.try_outgoing(self.now()) else { return };
            outgoing = again;
        }
    }

    /// Sends until there is nothing left; returns when there will be something to do again.
    fn send_all(&self, outgoing: &mut Outgoing, now: Instant, first: bool) -> Option<Instant> {
        let Outgoing { sender, batch, wants, frames } = outgoing;
        loop {
            batch.clear();
            let (count, due, framed) = {
                let mut core = self.core();
                let count = if first {
                    core.engine.poll_transmit_first(now, batch)
                } else {
                    core.engine.poll_transmit(now, batch)
                };
                core.deliver();
                (count, core.engine.poll_timeout(), core.engine.has_frames())
            };
            if let Some(frames) = frames.as_ref().filter(|_| framed) {
                self.send_frames(&**frames);
            }
            // With room left in it, it has all that there was, unless frames were in the way.
            let last = !batch.is_full() && !framed;
            if count > 0 || wants.is_some_and(|at| at <= now) {
                if let Err(error) = sender.send(now, batch) {
                    self.fail(&mut self.core(), &error);
                    return due;
                }
                *wants = sender.poll_timeout();
                let held = wants.map_or(u64::MAX, Instant::as_nanos);
                self.held.store(held, Ordering::Relaxed);
            }
            if last {
                return [due, *wants].into_iter().flatten().min();
            }
        }
    }

    /// The next time at which something must be done.
    fn deadline(&self) -> Option<Instant> {
        let outgoing = self.with_outgoing(|outgoing| outgoing.wants);
        let incoming = self.receiver().poll_timeout();
        let engine = self.core().engine.poll_timeout();
        [outgoing, incoming, engine].into_iter().flatten().min()
    }

    /// Lets the progress thread end.
    pub(super) fn stop(&self) {
        // A peer may wait for an answer that was left for the next poll.
        self.flush();
        self.stopped.store(true, Ordering::SeqCst);
        self.alarm.ring();
    }

    /// What both halves of the link counted.
    pub(super) fn link_counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.with_outgoing(|outgoing| outgoing.sender.counters());
        counters.extend(self.receiver().counters());
        counters
    }
}
