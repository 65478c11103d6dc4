//! TX: one thread sends at a time, and no thread waits for another to send.
//!
//! A thread that finds the sending half locked leaves its packets to the holder: see the [TX
//! lock](super::driver) of the shared word.

use std::io;
use std::sync::atomic::Ordering;

use super::core::{CoreGuard, earlier};
use super::shared::Shared;
use super::timed_mutex::TimedGuard;
use crate::link::Sender;
use crate::time::Instant;
use crate::wire::Batch;

/// Maximum number of packets, and of bytes, in one batch: three times what a socket takes at once,
/// and few enough to be in a cache when the kernel copies them.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 3 << 16;

/// The sending half of the link.
pub(super) struct Tx {
    sender: Box<dyn Sender>,
    batch: Batch,
    /// Time at which the link wants to be called again, because it holds packets back.
    deadline: Option<Instant>,
    /// Sends frames of raw packet queue pairs.
    frames: Option<std::sync::Arc<dyn crate::link::Frames>>,
}

impl Tx {
    pub(super) fn new(
        sender: Box<dyn Sender>,
        frames: Option<std::sync::Arc<dyn crate::link::Frames>>,
    ) -> io::Result<Self> {
        let batch = Batch::try_bounded(BATCH, BATCH_BYTES)?;
        Ok(Self { sender, batch, deadline: None, frames })
    }

    pub(super) fn counters(&self) -> Vec<(&'static str, u64)> {
        self.sender.counters()
    }
}

/// Packets that are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Everything,
    /// Packets that peers wait for most: ACKs may be delayed, because the caller will transmit
    /// again soon.
    Urgent,
}

impl Shared {
    /// Transmits everything that is to be sent.
    pub(super) fn transmit(&self, now: Instant) {
        self.try_send(now, Extent::Everything);
    }

    /// Transmits what peers wait for most. The caller is a poller, and transmits the rest soon.
    pub(super) fn transmit_urgent(&self, now: Instant) {
        self.try_send(now, Extent::Urgent);
    }

    /// Transmits what peers wait for most, of what the caller has just posted, without releasing
    /// the core in between.
    pub(super) fn transmit_posted(&self, core: CoreGuard<'_>) {
        let now = self.now();
        match self.tx.try_lock(now) {
            Some(tx) if !self.signals.has_failed() => self.send(tx, Extent::Urgent, Some(core)),
            _ => {
                drop(core);
                self.transmit_urgent(now);
            }
        }
    }

    /// Transmits what was deferred or delayed, after what another thread is sending: the caller is
    /// about to do something else, which may destroy what it belongs to.
    pub(super) fn flush(&self) {
        if self.signals.has_failed() {
            return;
        }
        self.signals.take_deferred();
        let has_tx = {
            let engine = &mut self.core().engine;
            engine.end_ack_delays();
            engine.has_transmit()
        };
        if has_tx {
            // Another thread may have the lock and not have asked the engine yet.
            self.send(self.tx.lock(|| self.now()), Extent::Everything, None);
        }
    }

    /// Waits until no packet that is being sent references payload of the program: what the caller
    /// deregistered, flushed or destroyed is the program's again.
    pub(super) fn settle_references(&self) {
        self.with_tx(|_| ());
    }

    /// Looks at the sending half. Transmits what another thread wanted to send meanwhile.
    pub(super) fn with_tx<T>(&self, look: impl FnOnce(&Tx) -> T) -> T {
        let seen = look(&self.tx.lock(|| self.now()));
        if self.signals.tx_released(None) {
            self.transmit(self.now());
        }
        seen
    }

    /// Returns the next time at which something must be done.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let tx = self.with_tx(|tx| tx.deadline);
        let rx = self.receiver().poll_timeout();
        let engine = self.core().engine.poll_timeout();
        [tx, rx, engine].into_iter().flatten().min()
    }

    fn try_send(&self, now: Instant, extent: Extent) {
        if self.signals.has_failed() {
            return;
        }
        if let Some(tx) = self.try_tx(now) {
            self.send(tx, extent, None);
        }
    }

    /// Locks the sending half, unless another thread has it, which will see that there is more to
    /// send.
    fn try_tx(&self, now: Instant) -> Option<TimedGuard<'_, Tx>> {
        self.tx.try_lock(now).or_else(|| {
            self.signals.tx_blocked();
            // The holder may have released the lock just before it was told, or may have lost its
            // core.
            self.tx.try_lock_or_wait(now, || self.now())
        })
    }

    /// Sends, and then what other threads wanted to send meanwhile. `core` is the core, if the
    /// caller has it.
    fn send<'a>(
        &'a self,
        mut tx: TimedGuard<'a, Tx>,
        mut extent: Extent,
        mut core: Option<CoreGuard<'a>>,
    ) {
        loop {
            let now = tx.since();
            let deadline = self.send_batches(&mut tx, now, extent, core.take());
            drop(tx);
            if !self.signals.tx_released(deadline) {
                return;
            }
            // The other thread may want everything to be sent.
            extent = Extent::Everything;
            let Some(again) = self.try_tx(self.now()) else { return };
            tx = again;
        }
    }

    fn publish_tx_deadline(&self, deadline: Option<Instant>) {
        let nanos = deadline.map_or(u64::MAX, Instant::as_nanos);
        self.tx_deadline.store(nanos, Ordering::Relaxed);
    }

    /// Sends until there is nothing left, or no room; returns the next deadline of the engine and
    /// the sending half.
    fn send_batches<'a>(
        &'a self,
        tx: &mut Tx,
        now: Instant,
        extent: Extent,
        mut held: Option<CoreGuard<'a>>,
    ) -> Option<Instant> {
        let Tx { sender, batch, deadline, .. } = tx;
        loop {
            batch.clear();
            let mut room = sender.room();
            if room == 0 {
                held = None;
                if let Err(error) = sender.send(now, batch) {
                    self.fail(&mut self.core(), &error);
                    return None;
                }
                room = sender.room();
                if room == 0 {
                    *deadline = sender.poll_timeout();
                    self.publish_tx_deadline(*deadline);
                    let due = self.core().engine.poll_timeout();
                    return earlier(due, *deadline);
                }
            }
            let (count, has_frames) = {
                batch.set_takes_references(sender.takes_references());
                batch.limit(BATCH_BYTES.min(room));
                let mut core = held.take().unwrap_or_else(|| self.core());
                let count = match extent {
                    Extent::Urgent => core.engine.poll_transmit_delaying_acks(now, batch),
                    Extent::Everything => core.engine.poll_transmit(now, batch),
                };
                core.deliver();
                (count, core.has_frames())
            };
            let due = self.hints.deadline();
            if let Some(frames) = tx.frames.as_ref().filter(|_| has_frames) {
                self.send_frames(now, &**frames);
            }
            // A batch that is not full has everything, unless the engine stopped because of frames.
            let is_last = !batch.is_full() && !has_frames;
            if count > 0 || deadline.is_some_and(|at| at <= now) {
                let sent = sender.send(now, batch);
                // Its references end here.
                batch.clear();
                if let Err(error) = sent {
                    self.fail(&mut self.core(), &error);
                    return due;
                }
                *deadline = sender.poll_timeout();
                self.publish_tx_deadline(*deadline);
            }
            if is_last {
                return earlier(due, *deadline);
            }
        }
    }
}
