//! The shared word and the doorbell, by which threads of a NIC signal each other.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, eventfd};

use super::word::{DeferredTx, MustRing, SharedWord, SleepKind, Word};
use crate::time::Instant;

/// The [shared word](super::word), and the descriptor that wakes the progress thread where the word
/// says so.
#[derive(Debug)]
pub(in crate::nic) struct Signals {
    word: SharedWord,
    doorbell: OwnedFd,
    /// The progress thread, once it runs.
    progress_thread: AtomicUsize,
}

/// A number that no other thread has, and that is not 0. Unlike `std::thread::current`, it needs no
/// memory.
fn current_thread() -> usize {
    thread_local!(static MARK: u8 = const { 0 });
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

impl Signals {
    pub(in crate::nic) fn new() -> io::Result<Self> {
        let doorbell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { word: SharedWord::new(), doorbell, progress_thread: AtomicUsize::new(0) })
    }

    /// Returns a recent value of the shared word.
    #[inline]
    pub(in crate::nic) fn load(&self) -> Word {
        self.word.load()
    }

    /// Whether the NIC has failed for good.
    #[inline]
    pub(in crate::nic) fn has_failed(&self) -> bool {
        self.word.load().has_failed()
    }

    /// Wakes the progress thread.
    pub(in crate::nic) fn wake(&self) {
        self.ring_if(self.word.wake());
    }

    /// The calling thread is the progress thread.
    pub(in crate::nic) fn enter_progress_thread(&self) {
        self.progress_thread.store(current_thread(), Ordering::Relaxed);
    }

    /// Wakes the progress thread, unless it is the calling one.
    pub(in crate::nic) fn wake_from_other(&self) {
        if self.progress_thread.load(Ordering::Relaxed) != current_thread() {
            self.wake();
        }
    }

    /// Wakes the progress thread if it would sleep past the deadline. The caller has released the
    /// lock under which it changed the deadline.
    #[inline]
    pub(in crate::nic) fn wake_before(&self, deadline: Option<Instant>) {
        if deadline.is_some_and(|deadline| self.word.load().sleeps_past(deadline)) {
            self.wake();
        }
    }

    /// A busy poller drives, if the progress thread does not know that yet.
    pub(in crate::nic) fn claim(&self) {
        self.ring_if(self.word.claim());
    }

    /// A program requests a CQ event, and may stop polling.
    pub(in crate::nic) fn arm(&self) {
        self.ring_if(self.word.arm());
    }

    /// See [`SharedWord::defer`].
    #[inline]
    pub(in crate::nic) fn defer(&self, tx: DeferredTx) -> bool {
        self.word.defer(tx)
    }

    /// See [`SharedWord::take_deferred`].
    #[inline]
    pub(in crate::nic) fn take_deferred(&self) -> DeferredTx {
        self.word.take_deferred()
    }

    /// See [`SharedWord::tx_blocked`].
    pub(in crate::nic) fn tx_blocked(&self) {
        self.word.tx_blocked();
    }

    /// The TX lock was released. Wakes the progress thread if it would sleep past the next
    /// deadline; returns whether another thread found the lock taken.
    pub(in crate::nic) fn tx_released(&self, deadline: Option<Instant>) -> bool {
        let before = self.word.tx_released();
        if deadline.is_some_and(|deadline| before.sleeps_past(deadline)) {
            self.wake();
        }
        before.has_tx_pending()
    }

    /// See [`SharedWord::take_over`].
    pub(in crate::nic) fn take_over(&self) {
        self.word.take_over();
    }

    /// See [`SharedWord::try_sleep`].
    pub(in crate::nic) fn try_sleep(&self, kind: SleepKind) -> bool {
        self.word.try_sleep(kind)
    }

    /// Ends the progress thread.
    pub(in crate::nic) fn stop(&self) {
        self.ring_if(self.word.stop());
    }

    /// The NIC fails for good: the progress thread reports it, and ends.
    #[cold]
    pub(in crate::nic) fn fail(&self) {
        self.ring_if(self.word.fail());
    }

    /// The progress thread has slept; returns whether another thread woke it.
    pub(in crate::nic) fn awake(&self, doorbell_is_readable: bool) -> bool {
        if doorbell_is_readable {
            let _ = rustix::io::read(&self.doorbell, &mut [0_u8; 8]);
        }
        // A thread may ring late, after its token was taken: then the next sleep ends for nothing.
        self.word.awake() || doorbell_is_readable
    }

    fn ring_if(&self, must_ring: MustRing) {
        if must_ring {
            let _ = rustix::io::write(&self.doorbell, &1_u64.to_ne_bytes());
        }
    }
}

impl AsFd for Signals {
    /// Readable once the doorbell has rung.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }
}
