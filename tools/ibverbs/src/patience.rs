//! How long a thread may look for completions in vain.
//!
//! Programs for hardware look all the time, and have a core each. Where cores are fewer than those who look, what one
//! waits for is done by a thread that has no core because of it. So a thread that looks in vain asks now and then whether
//! the system took its core away for somebody else, and if so sleeps a little each time, for a while. It sleeps rather
//! than yields: whoever yields often loses its turns for seconds. Where there are cores enough it never sleeps.

use std::cell::Cell;
use std::time::Duration;

/// How often a thread looks in vain before it asks.
const LOOKS: u32 = 256;

/// How often it asks, and nobody wanted its core, before it forgets that somebody did.
const QUIET: u32 = 64;

/// How often it sleeps the first time that somebody wants its core; if that goes on, twice as often each time, and so often
/// at the most.
const NAPS: u32 = 64;
const NAPS_MAX: u32 = 4096;

/// The shortest sleep: with what the system adds, about 50 µs.
const NAP: Duration = Duration::from_nanos(1);

/// What a thread knows of its core.
#[derive(Clone, Copy, Debug, Default)]
struct Patience {
    /// How often it looked in vain.
    in_vain: u32,
    /// How often the core had been taken away when it asked last.
    taken: i64,
    /// How often it asked since that changed.
    quiet: u32,
    /// How often it will sleep yet, and how often it was to sleep the last time.
    naps: u32,
    last_naps: u32,
}

impl Patience {
    const NEW: Self = Self { in_vain: 0, taken: 0, quiet: 0, naps: 0, last_naps: 0 };

    /// The thread has looked in vain. Whether it should sleep; `taken` tells how often its core was taken away so far.
    fn is_over(&mut self, taken: impl FnOnce() -> i64) -> bool {
        self.in_vain += 1;
        if self.in_vain < LOOKS {
            return false;
        }
        self.in_vain = 0;
        if self.naps > 0 {
            self.naps -= 1;
            return true;
        }
        let taken = taken();
        if taken == self.taken {
            self.quiet = self.quiet.saturating_add(1);
            if self.quiet == QUIET {
                self.last_naps = 0;
            }
            return false;
        }
        self.taken = taken;
        self.quiet = 0;
        self.last_naps = (2 * self.last_naps).clamp(NAPS, NAPS_MAX);
        self.naps = self.last_naps;
        true
    }
}

thread_local! {
    static PATIENCE: Cell<Patience> = const { Cell::new(Patience::NEW) };
}

/// How often the system took this thread's core away for another.
fn taken() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: it is written to, and has the room.
    let code = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: zeros are one, too.
    let usage = unsafe { usage.assume_init() };
    if code == 0 { usage.ru_nivcsw } else { 0 }
}

/// A thread has looked for completions and found so many.
pub(crate) fn looked(found: usize) {
    let mut patience = PATIENCE.get();
    let over = if found == 0 {
        patience.is_over(taken)
    } else {
        patience.in_vain = 0;
        false
    };
    PATIENCE.set(patience);
    if over {
        let nap = libc::timespec { tv_sec: 0, tv_nsec: i64::from(NAP.subsec_nanos()) };
        let rest = std::ptr::null_mut::<libc::timespec>();
        // Not the C library's function, which is a cancellation point.
        // SAFETY: the time is ours, and the rest of it is not wanted.
        unsafe { libc::syscall(libc::SYS_nanosleep, &raw const nap, rest) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often it sleeps in so many looks.
    fn naps(patience: &mut Patience, looks: u32, mut taken: impl FnMut() -> i64) -> u32 {
        (0..looks).map(|_| u32::from(patience.is_over(&mut taken))).sum()
    }

    #[test]
    fn who_has_a_core_never_sleeps() {
        let mut patience = Patience { taken: 17, ..Patience::NEW };
        assert_eq!(naps(&mut patience, 1_000_000, || 17), 0);
    }

    #[test]
    fn who_shares_its_core_sleeps_most_of_the_time() {
        let mut patience = Patience::NEW;
        let mut times = 0;
        let slept = naps(&mut patience, 100_000 * LOOKS, || {
            times += 1;
            times
        });
        assert!(slept > 99_900, "{slept}");
        assert!(times < 100, "it asks no more often than it must: {times}");
    }

    #[test]
    fn what_happened_once_is_forgotten() {
        let mut patience = Patience { last_naps: NAPS_MAX, ..Patience::NEW };
        assert_eq!(naps(&mut patience, QUIET * LOOKS, || 0), 0);
        assert_eq!(naps(&mut patience, 1000 * LOOKS, || 1), NAPS + 1);
    }
}
