//! The word through which program threads and the progress thread agree on who transmits and who is
//! woken.
//!
//! | bits | set by | cleared by | meaning |
//! |---|---|---|---|
//! | `POLLED` | the progress thread as it falls asleep; a busy poller, together with `WAKE` | the progress thread | a poller drives: TX may be deferred to its next poll |
//! | `DEFERRED` | a thread that posts or polls, while `POLLED` | a poller, or the progress thread, before it transmits | what was deferred |
//! | `TX_PENDING` | a thread that found the TX lock taken | the thread that released it | there is more to transmit |
//! | `ARMED` | a thread that requests a CQ event | the progress thread | its program may stop polling |
//! | `WAKE` | any thread | the progress thread | the wake token |
//! | `SLEEPING` | the progress thread | the progress thread | the thread that sets `WAKE` rings the doorbell |
//! | `STOPPED`, `FAILED` | any thread | none | the progress thread ends |
//! | `WAKE_BEFORE` | the progress thread | the progress thread | it is woken for deadlines before this time; 0 for none |
//!
//! Every change is an atomic read-modify-write of the one word, so of any two changes one is the
//! later and sees the other. No wake-up is lost because of it:
//!
//! 1. **Deferred TX.** [`defer`](SharedWord::defer) sets `DEFERRED` only while `POLLED`. If it
//!    comes before [`take_over`](SharedWord::take_over), the progress thread transmits; if after,
//!    it fails and its caller transmits.
//! 2. **Wake token.** A `WAKE` before [`try_sleep`](SharedWord::try_sleep) refuses the sleep. A
//!    later one sees `SLEEPING`, and the doorbell ends the sleep.
//! 3. **Deadlines.** A thread that changes a deadline does so under a lock, releases it, and then
//!    reads `WAKE_BEFORE`. The progress thread writes `WAKE_BEFORE`, and then reads the deadlines
//!    under the same locks. The lock orders the two: either the progress thread sees the deadline,
//!    or the other thread sees `WAKE_BEFORE`.
//! 4. **TX lock.** A thread that finds it taken sets `TX_PENDING` and tries once more. The holder
//!    releases the lock, clears `TX_PENDING`, and transmits once more if it was set. If it was
//!    cleared before it was set, the lock was free by then.
//! 5. **Events.** [`arm`](SharedWord::arm) sets `ARMED`. If it comes before the progress thread
//!    falls asleep to wait for a poller, the sleep is refused; if after, it sees the sleep and
//!    wakes the thread.
//! 6. **Busy pollers.** [`claim`](SharedWord::claim) sets `POLLED` only together with `WAKE`: the
//!    progress thread decides again, and takes over what was deferred meanwhile if it decides
//!    otherwise.
//!
//! Changes are `AcqRel`: a thread that sees a bit sees what was done before it was set. Plain reads
//! are `Relaxed`: they are hints, or ordered by a lock (3).

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU64, Ordering};

use crate::time::Instant;

const POLLED: u64 = 1 << 0;
const DEFERRED: u64 = 3 << DEFERRED_SHIFT;
const DEFERRED_SHIFT: u32 = 1;
const TX_PENDING: u64 = 1 << 3;
const ARMED: u64 = 1 << 4;
const WAKE: u64 = 1 << 5;
const SLEEPING: u64 = 1 << 6;
const STOPPED: u64 = 1 << 7;
const FAILED: u64 = 1 << 8;
const WAKE_BEFORE: u64 = !0 << WAKE_BEFORE_SHIFT;
const WAKE_BEFORE_SHIFT: u32 = 9;

/// Nanoseconds in a unit of `WAKE_BEFORE`, as a power of two: 55 bits of 16 ns last for 18 years.
const UNIT_SHIFT: u32 = 4;

/// Transmission that is left for the next poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::nic) enum DeferredTx {
    #[default]
    None,
    /// Responses wait for a poll that finds nothing, or for the second that finds something: a
    /// program that polls one CQ after the other posts its own replies when it has polled all, and
    /// the responses go out with them.
    Responses,
    /// Requests wait for the next poll.
    Requests,
}

/// A value of the shared word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::nic) struct Word(u64);

impl Word {
    #[cfg(all(test, not(loom)))]
    pub(super) const fn of(value: u64) -> Self {
        Self(value)
    }

    #[cfg(all(test, not(loom)))]
    pub(super) const fn value(self) -> u64 {
        self.0
    }

    const fn has(self, bits: u64) -> bool {
        self.0 & bits != 0
    }

    /// Whether a poller drives, and TX may be deferred.
    pub(in crate::nic) const fn is_polled(self) -> bool {
        self.has(POLLED)
    }

    pub(in crate::nic) const fn deferred(self) -> DeferredTx {
        match (self.0 & DEFERRED) >> DEFERRED_SHIFT {
            0 => DeferredTx::None,
            1 => DeferredTx::Responses,
            _ => DeferredTx::Requests,
        }
    }

    pub(in crate::nic) const fn has_deferred(self) -> bool {
        self.has(DEFERRED)
    }

    pub(in crate::nic) const fn has_tx_pending(self) -> bool {
        self.has(TX_PENDING)
    }

    /// Whether the NIC has failed for good.
    pub(in crate::nic) const fn has_failed(self) -> bool {
        self.has(FAILED)
    }

    /// Whether the progress thread ends.
    pub(in crate::nic) const fn is_ending(self) -> bool {
        self.has(STOPPED | FAILED)
    }

    /// Whether the progress thread would sleep past `deadline`.
    pub(in crate::nic) fn sleeps_past(self, deadline: Instant) -> bool {
        deadline.as_nanos() >> UNIT_SHIFT < self.0 >> WAKE_BEFORE_SHIFT
    }

    const fn with_deferred(self, tx: DeferredTx) -> Self {
        Self(self.0 & !DEFERRED | (tx as u64) << DEFERRED_SHIFT)
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const NAMES: [(u64, &str); 7] = [
            (POLLED, "POLLED"),
            (TX_PENDING, "TX_PENDING"),
            (ARMED, "ARMED"),
            (WAKE, "WAKE"),
            (SLEEPING, "SLEEPING"),
            (STOPPED, "STOPPED"),
            (FAILED, "FAILED"),
        ];
        let set = NAMES.iter().filter(|(bit, _)| self.has(*bit));
        let mut list = f.debug_list();
        list.entries(set.map(|(_, name)| name)).entry(&self.deferred());
        list.entry(&((self.0 & WAKE_BEFORE) >> (WAKE_BEFORE_SHIFT - UNIT_SHIFT))).finish()
    }
}

/// Limit of the progress thread's next sleep, and the thread that drives meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::nic) enum SleepKind {
    /// The progress thread drives. It is woken for deadlines before this one; without one, for any.
    UntilDue(Option<Instant>),
    /// The progress thread drives, and wakes soon: it is not woken for deadlines.
    Briefly,
    /// A poller drives, and minds the deadlines.
    Polled,
}

/// Whether the caller has to ring the doorbell of the progress thread.
pub(in crate::nic) type MustRing = bool;

/// The word that all threads of a NIC share.
#[derive(Debug)]
pub(in crate::nic) struct SharedWord(AtomicU64);

impl SharedWord {
    /// Returns the word of a new NIC: the progress thread is awake, and drives.
    pub(in crate::nic) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn of(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    /// Returns a recent value. It may have changed already.
    #[inline]
    pub(in crate::nic) fn load(&self) -> Word {
        Word(self.0.load(Ordering::Relaxed))
    }

    /// Changes the word, unless `change` refuses; returns what it was before, or what was refused.
    #[inline]
    fn update(&self, change: impl Fn(Word) -> Option<Word>) -> Result<Word, Word> {
        let mut current = self.load();
        loop {
            let Some(next) = change(current) else { return Err(current) };
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            match self.0.compare_exchange_weak(current.0, next.0, success, failure) {
                Ok(_) => return Ok(current),
                Err(changed) => current = Word(changed),
            }
        }
    }

    fn set(&self, bits: u64) -> Word {
        Word(self.0.fetch_or(bits, Ordering::AcqRel))
    }

    // Threads that post and poll.

    /// Defers TX to the next poll; returns false if no poller drives: then the caller transmits.
    #[inline]
    pub(in crate::nic) fn defer(&self, tx: DeferredTx) -> bool {
        self.update(|word| word.is_polled().then(|| word.with_deferred(tx))).is_ok()
    }

    /// Takes what was deferred: the caller transmits it.
    #[inline]
    pub(in crate::nic) fn take_deferred(&self) -> DeferredTx {
        let none = |word: Word| word.has_deferred().then(|| word.with_deferred(DeferredTx::None));
        self.update(none).map_or(DeferredTx::None, Word::deferred)
    }

    /// A busy poller drives from now on, unless a CQ event was requested meanwhile. The progress
    /// thread is woken.
    pub(in crate::nic) fn claim(&self) -> MustRing {
        let polled = |word: Word| if word.has(ARMED) { word.0 } else { word.0 | POLLED };
        let claimed = self.update(|word| Some(Word(polled(word) | WAKE)));
        claimed.is_ok_and(must_ring)
    }

    /// A program requests a CQ event, and may stop polling until it comes.
    pub(in crate::nic) fn arm(&self) -> MustRing {
        let before = self.set(ARMED);
        let is_brief = before.has(SLEEPING) && !before.has(WAKE_BEFORE);
        (before.is_polled() || is_brief) && self.wake()
    }

    // Threads that transmit.

    /// The TX lock is taken: its holder, or the next try of this thread, transmits.
    pub(in crate::nic) fn tx_blocked(&self) {
        self.set(TX_PENDING);
    }

    /// The TX lock was released. The word before says whether there is more to transmit, and until
    /// when the progress thread sleeps.
    pub(in crate::nic) fn tx_released(&self) -> Word {
        Word(self.0.fetch_and(!TX_PENDING, Ordering::AcqRel))
    }

    // Any thread.

    /// Leaves a wake token for the progress thread.
    pub(in crate::nic) fn wake(&self) -> MustRing {
        must_ring(self.set(WAKE))
    }

    /// Ends the progress thread.
    pub(in crate::nic) fn stop(&self) -> MustRing {
        must_ring(self.set(STOPPED | WAKE))
    }

    /// The NIC has failed for good.
    pub(in crate::nic) fn fail(&self) -> MustRing {
        must_ring(self.set(FAILED | WAKE))
    }

    // The progress thread.

    /// The progress thread drives from now on: posts are not deferred any more.
    pub(in crate::nic) fn take_over(&self) {
        self.0.fetch_and(!POLLED, Ordering::AcqRel);
    }

    /// The progress thread falls asleep. Returns false if it must not: it was woken, or a CQ event
    /// was requested since it decided to wait for a poller. The wake token is taken then.
    #[must_use]
    pub(in crate::nic) fn try_sleep(&self, kind: SleepKind) -> bool {
        // A program that waits for an event is served in a sleep until due, and in no other.
        let refuses = if matches!(kind, SleepKind::UntilDue(_)) { WAKE } else { WAKE | ARMED };
        let asleep = |word: Word| {
            let kept = word.0 & !(POLLED | WAKE_BEFORE) | SLEEPING;
            Word(kept | kind.bits())
        };
        let slept = self.update(|word| (!word.has(refuses)).then(|| asleep(word)));
        if slept.is_err() {
            self.awake();
        }
        slept.is_ok()
    }

    /// The progress thread is awake; returns whether it was woken by a token, which it takes.
    pub(in crate::nic) fn awake(&self) -> bool {
        let bits = SLEEPING | WAKE | ARMED | WAKE_BEFORE;
        Word(self.0.fetch_and(!bits, Ordering::AcqRel)).has(WAKE)
    }
}

impl SleepKind {
    fn bits(self) -> u64 {
        match self {
            Self::UntilDue(None) => WAKE_BEFORE,
            Self::UntilDue(Some(due)) => (due.as_nanos() >> UNIT_SHIFT) << WAKE_BEFORE_SHIFT,
            Self::Briefly => 0,
            Self::Polled => POLLED,
        }
    }
}

/// Only the first token rings: the doorbell stays readable until the progress thread is awake.
const fn must_ring(before: Word) -> MustRing {
    before.has(SLEEPING) && !before.has(WAKE)
}
