//! Who drives the engine, and when.
//!
//! Whoever polls drives: it takes in what has arrived, and sends what is to be sent, in its own thread. While somebody
//! does so all the time, the progress thread stays out of the way. Otherwise it sleeps until a packet comes, a timer is
//! due or the doorbell rings, and drives.
//!
//! Locks are taken in one order: the receiving half, or the sending half, then the core. Packets are received, checked,
//! sealed and sent without the core; so one thread can talk to the kernel while another works on queue pairs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::core::Core;
use super::mailbox::wait_readable;
use crate::link::{Frames, Receiver, Sender};
use crate::time::Instant;
use crate::wire::Batch;

/// How many packets are sent at a time.
const BATCH: usize = 256;

/// How often one must poll, without asking for events in between, to be thought to go on.
const STEADY: u64 = 64;

/// How long after the last poll one is thought to poll on.
const PATIENCE: Duration = Duration::from_millis(1);

/// What all threads share.
pub(super) struct Shared {
    core: Mutex<Core>,
    outgoing: Mutex<Outgoing>,
    incoming: Mutex<Box<dyn Receiver>>,
    /// A copy of the receiving half's, to wait for without its lock.
    arrivals: OwnedFd,
    /// The same once a group was joined, if it is another one then.
    arrivals_with_groups: OnceLock<OwnedFd>,
    doorbell: OwnedFd,
    clock: std::time::Instant,
    /// Whether there may be something to send that nobody is sending.
    unsent: AtomicBool,
    /// When the progress thread wakes by itself, in nanoseconds.
    wakes: AtomicU64,
    /// Whether the progress thread only sees to it that whoever polls goes on.
    watching: AtomicBool,
    /// Whether something is to be sent with the next poll.
    deferred: AtomicBool,
    /// How often somebody polled since events were last asked for.
    polls: AtomicU64,
    last_poll: AtomicU64,
    stopped: AtomicBool,
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
    ) -> io::Result<Arc<Self>> {
        let arrivals = receiver.fd().try_clone_to_owned()?;
        let outgoing = Outgoing { sender, batch: Batch::new(BATCH), wants: None, frames };
        Ok(Arc::new(Self {
            core: Mutex::new(core),
            outgoing: Mutex::new(outgoing),
            incoming: Mutex::new(receiver),
            arrivals,
            arrivals_with_groups: OnceLock::new(),
            doorbell: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            #[expect(clippy::disallowed_methods, reason = "here is where time comes from")]
            clock: std::time::Instant::now(),
            unsent: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            watching: AtomicBool::new(false),
            deferred: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            last_poll: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        }))
    }

    /// The time, counted from when the NIC was started.
    pub(super) fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The receiving half. Whoever wants the core too takes it afterwards.
    pub(super) fn receiver(&self) -> MutexGuard<'_, Box<dyn Receiver>> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The receiving half has joined a group, and may have another descriptor to wait for.
    pub(super) fn watch(&self, receiver: &dyn Receiver) -> io::Result<()> {
        if self.arrivals_with_groups.get().is_none() {
            let _ = self.arrivals_with_groups.set(receiver.fd().try_clone_to_owned()?);
            self.ring();
        }
        Ok(())
    }

    /// Somebody polls, and drives: `take` takes what is there for it.
    ///
    /// If there is something only after packets were taken in, what they are to be answered with waits for the next
    /// poll, so that it goes out together with what the program will post in its turn.
    pub(super) fn poll(&self, mut take: impl FnMut(&mut Core) -> usize) -> usize {
        self.flush();
        let now = self.now();
        let count = take(&mut self.core());
        if count > 0 {
            return count;
        }
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.last_poll.store(now.as_nanos(), Ordering::Relaxed);
        self.take_in(now);
        let count = take(&mut self.core());
        if count > 0 {
            self.posted();
        } else {
            self.transmit(now);
        }
        count
    }

    /// Sends what was left for the next poll: somebody does something else now.
    pub(super) fn flush(&self) {
        if self.deferred.swap(false, Ordering::SeqCst) {
            self.transmit(self.now());
        }
    }

    /// There is something to send. Whoever polls steadily sends it with the next poll, together with what else there is
    /// then; anybody else sends it now. If the progress thread takes over from one that stopped polling, it says so
    /// before it looks for what is unsent, and this asks after it was posted; so one of the two sends it.
    pub(super) fn posted(&self) {
        if self.watching.load(Ordering::SeqCst) {
            self.deferred.store(true, Ordering::SeqCst);
        } else {
            self.transmit(self.now());
        }
    }

    /// Somebody will wait for an event, and not poll until it comes.
    pub(super) fn hand_over(&self) {
        self.polls.store(0, Ordering::SeqCst);
        if self.watching.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    fn is_driven(&self, now: Instant) -> bool {
        let last = Instant::from_nanos(self.last_poll.load(Ordering::Relaxed));
        self.polls.load(Ordering::Relaxed) >= STEADY && last.saturating_add(PATIENCE) > now
    }

    /// Takes in what has arrived, and does what is due.
    fn take_in(&self, now: Instant) {
        self.receive(now);
        let mut core = self.core();
        if core.engine.poll_timeout().is_some_and(|due| due <= now) {
            core.engine.handle_timeout(now);
            core.deliver();
        }
    }

    fn receive(&self, now: Instant) {
        // If another thread is at it, it will finish.
        let mut receiver = match self.incoming.try_lock() {
            Ok(receiver) => receiver,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        match receiver.receive(now) {
            Ok(0) => {}
            Ok(_) => {
                let mut core = self.core();
                receiver.for_each(&mut |packet| {
                    core.engine.handle_packet(now, packet);
                });
                core.deliver();
            }
            Err(error) => self.core().fail(&error),
        }
    }

    /// Sends what is to be sent.
    pub(super) fn transmit(&self, now: Instant) {
        self.unsent.store(true, Ordering::SeqCst);
        let mut held = None;
        while self.unsent.load(Ordering::SeqCst) {
            // Whoever holds the lock looks again after giving it back.
            let mut outgoing = match self.outgoing.try_lock() {
                Ok(outgoing) => outgoing,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            self.unsent.store(false, Ordering::SeqCst);
            self.send_all(&mut outgoing, now);
            held = outgoing.wants;
        }
        self.wake_for_deadline(held);
    }

    /// Looks at the sending half. Whoever wanted to send meanwhile and found it taken has left that to this.
    fn with_outgoing<T>(&self, look: impl FnOnce(&Outgoing) -> T) -> T {
        let seen = look(&self.outgoing.lock().unwrap_or_else(PoisonError::into_inner));
        if self.unsent.load(Ordering::SeqCst) {
            self.transmit(self.now());
        }
        seen
    }

    fn send_all(&self, outgoing: &mut Outgoing, now: Instant) {
        let Outgoing { sender, batch, wants, frames } = outgoing;
        loop {
            batch.clear();
            let (count, framed) = {
                let mut core = self.core();
                let count = core.engine.poll_transmit(now, batch);
                core.deliver();
                (count, core.engine.has_frames())
            };
            if let Some(frames) = frames.as_ref().filter(|_| framed) {
                self.send_frames(&**frames);
                if count == 0 {
                    continue;
                }
            }
            if count == 0 && wants.is_none_or(|at| at > now) {
                return;
            }
            if let Err(error) = sender.send(now, batch) {
                return self.core().fail(&error);
            }
            *wants = sender.poll_timeout();
            if count == 0 {
                return;
            }
        }
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
        let now = self.now();
        let mut core = self.core();
        core.engine.handle_frame(now, frame);
        core.deliver();
    }

    /// Wakes the progress thread if it would oversleep a deadline, of the engine or of the link, which may hold packets
    /// back.
    fn wake_for_deadline(&self, held: Option<Instant>) {
        let engine = self.core().engine.poll_timeout();
        let due = [held, engine].into_iter().flatten().min();
        if due.is_some_and(|due| due.as_nanos() < self.wakes.load(Ordering::SeqCst)) {
            self.ring();
        }
    }

    /// The next time at which something must be done.
    fn deadline(&self) -> Option<Instant> {
        let outgoing = self.with_outgoing(|outgoing| outgoing.wants);
        let incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner).poll_timeout();
        let engine = self.core().engine.poll_timeout();
        [outgoing, incoming, engine].into_iter().flatten().min()
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
    }

    /// Lets the progress thread end.
    pub(super) fn stop(&self) {
        // A peer may wait for an answer that was left for the next poll.
        self.flush();
        self.stopped.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// What the progress thread does.
    pub(super) fn run(&self) {
        while !self.stopped.load(Ordering::SeqCst) {
            let now = self.now();
            if self.is_driven(now) {
                // Whoever polls minds the deadlines, too.
                self.wakes.store(0, Ordering::SeqCst);
                self.watching.store(true, Ordering::SeqCst);
                self.sleep(Some(now.saturating_add(PATIENCE)), false);
                continue;
            }
            // From now on whoever posts sends by itself. Nobody rings while it is awake, least of all itself.
            self.wakes.store(0, Ordering::SeqCst);
            self.watching.store(false, Ordering::SeqCst);
            self.take_in(now);
            self.transmit(now);
            let deadline = self.deadline();
            // From now on whoever sets an earlier deadline rings; whoever did so just before did not.
            self.wakes.store(deadline.map_or(u64::MAX, Instant::as_nanos), Ordering::SeqCst);
            let until = [deadline, self.deadline()].into_iter().flatten().min();
            self.sleep(until, true);
        }
    }

    fn sleep(&self, until: Option<Instant>, for_packets: bool) {
        let timeout = until.map(|until| {
            let ns = until.as_nanos().saturating_sub(self.now().as_nanos());
            Duration::from_nanos(ns)
        });
        let arrivals = self.arrivals_with_groups.get().unwrap_or(&self.arrivals);
        let fds = [self.doorbell.as_fd(), arrivals.as_fd()];
        let fds = if for_packets { &fds[..] } else { &fds[..1] };
        // Whatever woke it, everything is looked at.
        let _ = wait_readable(fds, timeout);
        let _ = rustix::io::read(&self.doorbell, &mut [0_u8; 8]);
    }

    /// What both halves of the link counted.
    pub(super) fn link_counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters = self.with_outgoing(|outgoing| outgoing.sender.counters());
        let incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        counters.extend(incoming.counters());
        counters
    }
}
