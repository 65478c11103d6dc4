//! The actions that the program has for SIGSEGV and SIGBUS, behind the handler of `fault`.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// An action of the program's, read by signal handlers and replaced by any thread.
pub(super) struct Next {
    /// Even when the action is whole; replacing it makes it odd for a moment.
    version: AtomicU32,
    action: UnsafeCell<MaybeUninit<libc::sigaction>>,
}

// SAFETY: readers copy the action by volatile reads and retry when the version tells that it
// changed meanwhile; writers have [`Changing`].
unsafe impl Sync for Next {}

impl Next {
    pub(super) const fn new() -> Self {
        Self { version: AtomicU32::new(0), action: UnsafeCell::new(MaybeUninit::zeroed()) }
    }

    /// Returns the action. Zeroes are the default action, so one that was never set is valid.
    pub(super) fn get(&self) -> libc::sigaction {
        loop {
            let version = self.version.load(Ordering::Acquire);
            // SAFETY: it is always initialized, and a torn copy is not used.
            let copy = unsafe { self.action.get().read_volatile() };
            core::sync::atomic::fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                // SAFETY: every field is a plain number or an address of a function as a number, or
                // was zeroed.
                return unsafe { copy.assume_init() };
            }
            core::hint::spin_loop();
        }
    }

    /// Replaces the action, and returns the old one.
    pub(super) fn replace(&self, new: libc::sigaction, _: &Changing) -> libc::sigaction {
        let odd = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(odd, Ordering::Relaxed);
        core::sync::atomic::fence(Ordering::Release);
        let place = self.action.get();
        // SAFETY: the caller is the only one that writes.
        let old = unsafe { place.read() };
        // SAFETY: as above; readers discard what they read meanwhile.
        unsafe { place.write_volatile(MaybeUninit::new(new)) };
        self.version.store(odd.wrapping_add(1), Ordering::Release);
        // SAFETY: as in `get`.
        unsafe { old.assume_init() }
    }

    #[cfg(test)]
    pub(super) fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }
}

/// The right to change actions, which one thread has at a time. All signals are blocked in that
/// thread, so that no handler of its own waits for it.
#[derive(Debug)]
pub(super) struct Changing {
    _blocked: AllBlocked,
}

/// Whether a thread has [`Changing`]. Not a mutex: signal handlers take it, too.
static CHANGING: AtomicBool = AtomicBool::new(false);

impl Changing {
    pub(super) fn new() -> Self {
        let blocked = AllBlocked::new();
        while CHANGING
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            std::thread::yield_now();
        }
        Self { _blocked: blocked }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        CHANGING.store(false, Ordering::Release);
    }
}

/// Blocks all signals in this thread while it lives.
#[derive(Debug)]
struct AllBlocked(libc::sigset_t);

impl AllBlocked {
    fn new() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut old = MaybeUninit::uninit();
        // SAFETY: it fills the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: both sets are ours.
        unsafe { set_mask(libc::SIG_BLOCK, all.as_ptr(), old.as_mut_ptr()) };
        // SAFETY: the call filled it, and cannot fail with these arguments.
        Self(unsafe { old.assume_init() })
    }
}

impl Drop for AllBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is ours.
        unsafe { set_mask(libc::SIG_SETMASK, &raw const self.0, core::ptr::null_mut()) };
    }
}

/// The kernel's `rt_sigprocmask`. The C library's function of that purpose may be interposed and
/// call [`masks_changed`](super::masks_changed).
///
/// # Safety
///
/// As `pthread_sigmask` has it.
pub(super) unsafe fn set_mask(
    how: libc::c_int,
    set: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) {
    // A kernel's set has 64 signals, and the C library's begins with them.
    const KERNEL_SET_BYTES: usize = 8;
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, old, KERNEL_SET_BYTES) };
}
