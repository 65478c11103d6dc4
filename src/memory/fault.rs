//! Access to memory of the user's program that survives a fault.
//!
//! A verbs program may unmap, protect or truncate memory while it is registered. A real NIC has pinned the pages and
//! carries on; here the access faults, and the request must fail with an access error instead of killing the program.
//!
//! The routines in [`routines`] touch the memory from a few known instructions. A handler for SIGSEGV and SIGBUS
//! recognizes a fault at one of them by the program counter and resumes at the routine's error exit. Every other fault
//! goes to the action that the program had installed, as if this handler were not there.
//!
//! # Why a signal handler
//!
//! Measured on a Xeon with Linux 6.18 that had other work to do, one warm copy, in nanoseconds, best of several runs:
//!
//! | way | 64 B | 1 KiB | 4 KiB | 1 MiB |
//! |---|---|---|---|---|
//! | `memcpy`, which a fault kills | 2 | 7–10 | 27–41 | 62,000–83,000 |
//! | [`routines`], ordered and guarded | 11 | 10–13 | 29–42 | 72,000–86,000 |
//! | `process_vm_writev` on the own process | 620 | 690 | 460 | 87,000 |
//! | `MADV_POPULATE_WRITE` alone, to which a copy would be added | 400 | 300 | 330 | 9,900 |
//! | `mincore` alone, which does not see protections | 730 | 420 | 530 | 740 |
//!
//! A 4 KiB packet costs about 800 ns altogether, so a system call for each copy takes a third of the bandwidth.
//! Checks before a copy race with the program's other threads besides. `userfaultfd` reports neither `mprotect` nor
//! `ftruncate`. Signal handling costs nothing until a fault happens.
//!
//! # When the handler is not in place
//!
//! The program may install another handler later, or block the two signals. `tools/ibverbs` exports `sigaction`,
//! `signal`, `sigprocmask` and `pthread_sigmask`, so that later handlers are put behind this one ([`replace_action`]), and
//! a change of a mask is noticed at once ([`masks_changed`]). What bypasses these functions is noticed by a check in each
//! thread, once in [`CHECK_INTERVAL`] accesses; until the handler is back, accesses go through the kernel (`kernel`).
//! The check unblocks the two signals in the calling thread: a blocked synchronous fault cannot be handled by anyone, so
//! the program loses nothing.

use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Once;

use super::routines;

/// Number of accesses of one thread between two checks that the handler is still in place: three system calls of about
/// 200 ns, so some 3 ns for each access.
const CHECK_INTERVAL: u32 = 256;

/// The signals of memory that cannot be accessed: not mapped or protected, and beyond the end of its file.
const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Whether the last check found the handler in place for both signals.
static IN_PLACE: AtomicBool = AtomicBool::new(false);

/// Changes whenever a thread has to check again.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// The actions that the program has for the signals, in the order of [`SIGNALS`].
static NEXT: [Next; SIGNALS.len()] = [Next::new(), Next::new()];

thread_local! {
    /// The generation that this thread checked, and how many accesses it may do before it checks again.
    static CHECKED: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// An action of the program's, read by signal handlers and replaced by any thread.
struct Next {
    /// Even when the action is whole; replacing it makes it odd for a moment.
    version: AtomicU32,
    action: UnsafeCell<MaybeUninit<libc::sigaction>>,
}

// SAFETY: readers copy the action by volatile reads and retry when the version tells that it changed meanwhile;
// writers exclude each other by the odd version.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Sync for Next {}

impl Next {
    const fn new() -> Self {
        Self { version: AtomicU32::new(0), action: UnsafeCell::new(MaybeUninit::zeroed()) }
    }

    /// Returns the action. Zeroes are the default action, so one that was never set is valid.
    #[expect(unsafe_code, reason = "a copy that may race, and is retried if it did")]
    fn get(&self) -> libc::sigaction {
        loop {
            let version = self.version.load(Ordering::Acquire);
            // SAFETY: it is always initialized, and a torn copy is not used.
            let copy = unsafe { self.action.get().read_volatile() };
            core::sync::atomic::fence(Ordering::Acquire);
            if version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version {
                // SAFETY: every field is a plain number or an address of a function as a number, or was zeroed.
                return unsafe { copy.assume_init() };
            }
            core::hint::spin_loop();
        }
    }

    /// Replaces the action, and returns the old one. All signals are blocked meanwhile, so that no handler of this
    /// thread waits for it.
    #[expect(unsafe_code, reason = "the one place that writes it")]
    fn replace(&self, new: libc::sigaction) -> libc::sigaction {
        let _blocked = AllBlocked::new();
        loop {
            let version = self.version.load(Ordering::Relaxed);
            let odd = version | 1;
            let taken = version != odd
                && self
                    .version
                    .compare_exchange(version, odd, Ordering::Acquire, Ordering::Relaxed)
                    .is_ok();
            if taken {
                let place = self.action.get();
                // SAFETY: the odd version keeps other writers out.
                let old = unsafe { place.read() };
                // SAFETY: as above; readers discard what they read meanwhile.
                unsafe { place.write_volatile(MaybeUninit::new(new)) };
                self.version.store(odd.wrapping_add(1), Ordering::Release);
                // SAFETY: as in `get`.
                return unsafe { old.assume_init() };
            }
            core::hint::spin_loop();
        }
    }
}

/// Blocks all signals in this thread while it lives.
struct AllBlocked(libc::sigset_t);

impl AllBlocked {
    #[expect(unsafe_code, reason = "system calls")]
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
    #[expect(unsafe_code, reason = "a system call")]
    fn drop(&mut self) {
        // SAFETY: the set is ours.
        unsafe { set_mask(libc::SIG_SETMASK, &raw const self.0, core::ptr::null_mut()) };
    }
}

/// The kernel's `rt_sigprocmask`. The C library's function of that purpose may be interposed and call [`masks_changed`].
///
/// # Safety
///
/// As `pthread_sigmask` has it.
#[expect(unsafe_code, reason = "a system call")]
unsafe fn set_mask(how: libc::c_int, set: *const libc::sigset_t, old: *mut libc::sigset_t) {
    // A kernel's set has 64 signals, and the C library's begins with them.
    const KERNEL_SET_BYTES: usize = 8;
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, set, old, KERNEL_SET_BYTES) };
}

/// The `sigaction` behind one that is interposed, if it is.
type SigactionFn =
    unsafe extern "C" fn(libc::c_int, *const libc::sigaction, *mut libc::sigaction) -> libc::c_int;

/// Returns the C library's own `sigaction`: a library that interposes it must not be called from here.
#[expect(unsafe_code, reason = "a symbol of the C library")]
fn real_sigaction() -> SigactionFn {
    static REAL: core::sync::atomic::AtomicPtr<libc::c_void> =
        core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());
    let mut found = REAL.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: the name is a C string.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"sigaction".as_ptr()) };
        REAL.store(found, Ordering::Relaxed);
    }
    if found.is_null() {
        // A statically linked program has one only.
        return libc::sigaction;
    }
    // SAFETY: the symbol is this function.
    unsafe { core::mem::transmute::<*mut libc::c_void, SigactionFn>(found) }
}

/// Installs the handler for both signals, once; the actions that the program had become the next ones.
pub(super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if !routines::AVAILABLE {
            return;
        }
        let _blocked = AllBlocked::new();
        for (signal, next) in SIGNALS.into_iter().zip(&NEXT) {
            let Some(old) = query(signal) else { return };
            next.replace(old);
            if !put_in_front(signal, &old) {
                return;
            }
        }
        INSTALLED.store(true, Ordering::SeqCst);
        masks_changed();
    });
}

/// Whether [`install`] has put the handler in place.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Returns the action that the kernel has for a signal.
#[expect(unsafe_code, reason = "a system call")]
fn query(signal: libc::c_int) -> Option<libc::sigaction> {
    let mut old = MaybeUninit::zeroed();
    // SAFETY: there is room for the action.
    let failed = unsafe { real_sigaction()(signal, core::ptr::null(), old.as_mut_ptr()) };
    // SAFETY: the call filled it.
    (failed == 0).then(|| unsafe { old.assume_init() })
}

/// Installs the handler for a signal whose next action is this one: it runs on the same stack and with the same signals
/// blocked as that would.
#[expect(unsafe_code, reason = "a system call")]
fn put_in_front(signal: libc::c_int, next: &libc::sigaction) -> bool {
    let mut action = *next;
    action.sa_sigaction = handle as *const () as usize;
    if is_handler(next) {
        action.sa_flags = (next.sa_flags & !libc::SA_RESETHAND) | libc::SA_SIGINFO;
    } else {
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the set is ours.
        unsafe { libc::sigemptyset(&raw mut action.sa_mask) };
    }
    // SAFETY: the handler does only what is allowed in one, and the action is whole.
    unsafe { real_sigaction()(signal, &raw const action, core::ptr::null_mut()) == 0 }
}

/// Whether an action is a function of the program's.
fn is_handler(action: &libc::sigaction) -> bool {
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
}

/// Does what `sigaction` does, for a library that interposes it: an action for one of the two signals is put behind the
/// handler, once that is installed. Returns `None` if the call is for the C library.
#[must_use]
pub fn replace_action(
    signal: libc::c_int,
    new: Option<libc::sigaction>,
) -> Option<libc::sigaction> {
    let index = SIGNALS.iter().position(|own| *own == signal)?;
    let next = NEXT.get(index)?;
    if !INSTALLED.load(Ordering::SeqCst) {
        return None;
    }
    let Some(new) = new else { return Some(next.get()) };
    if new.sa_sigaction == handle as *const () as usize {
        // A call that bypassed this function returned the handler as the old action, and the program restores that. As
        // its own next action the handler would call itself without end: it is put in front of the program's again.
        let own = next.get();
        put_in_front(signal, &own);
        masks_changed();
        return Some(own);
    }
    let old = next.replace(new);
    put_in_front(signal, &new);
    masks_changed();
    Some(old)
}

/// Makes each thread check, before its next access to memory of the program's, that the handler is in place and the two
/// signals are not blocked.
pub fn masks_changed() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
}

/// Whether this thread may access memory of the program's by [`routines`] now. If not, only the kernel can.
#[inline]
pub(super) fn is_guarded() -> bool {
    let generation = GENERATION.load(Ordering::Relaxed);
    CHECKED.with(|checked| match checked.get() {
        (seen, left @ 1..) if seen == generation => {
            checked.set((seen, left - 1));
            IN_PLACE.load(Ordering::Relaxed)
        }
        _ => check(checked, generation),
    })
}

/// Checks that the handler is in place, and lets the two signals through in this thread.
#[cold]
#[expect(unsafe_code, reason = "system calls")]
fn check(checked: &Cell<(u32, u32)>, generation: u32) -> bool {
    let ours = |signal| {
        query(signal).is_some_and(|action| action.sa_sigaction == handle as *const () as usize)
    };
    let installed = INSTALLED.load(Ordering::SeqCst);
    let in_place = installed && SIGNALS.into_iter().all(ours);
    // Another thread may find the handler back in place before this one checks again.
    if installed {
        let mut set = MaybeUninit::uninit();
        // SAFETY: it fills the set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        for signal in SIGNALS {
            // SAFETY: the set is filled.
            unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        }
        // SAFETY: the set is ours.
        unsafe { set_mask(libc::SIG_UNBLOCK, set.as_ptr(), core::ptr::null_mut()) };
    }
    IN_PLACE.store(in_place, Ordering::Relaxed);
    checked.set((generation, CHECK_INTERVAL));
    in_place
}

/// The handler. It does nothing that is not allowed in one.
#[expect(unsafe_code, reason = "a signal handler")]
unsafe extern "C" fn handle(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel hands over the interrupted thread's registers.
    if unsafe { routines::resume_at_error_exit(context) } {
        return;
    }
    let Some(next) = SIGNALS.iter().position(|own| *own == signal).and_then(|i| NEXT.get(i)) else {
        return;
    };
    let action = next.get();
    if !is_handler(&action) {
        // SAFETY: the kernel filled it.
        let synchronous = unsafe { (*info).si_code } > 0;
        if !synchronous && action.sa_sigaction == libc::SIG_IGN {
            return;
        }
        // The instruction faults again, and the default action ends the program there, with a useful core file.
        // SAFETY: zeroes are the default action.
        let default = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
        // SAFETY: the action is whole.
        unsafe { real_sigaction()(signal, &raw const default, core::ptr::null_mut()) };
        if !synchronous {
            // Sent by a process: it is delivered again when this returns.
            // SAFETY: no memory is involved.
            unsafe { libc::raise(signal) };
        }
        return;
    }
    if action.sa_flags & libc::SA_RESETHAND != 0 {
        // SAFETY: zeroes are the default action.
        next.replace(unsafe { MaybeUninit::zeroed().assume_init() });
    }
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: the program installed a handler of this type.
        let handler = unsafe { core::mem::transmute::<usize, Handler>(action.sa_sigaction) };
        handler(signal, info, context);
    } else {
        // SAFETY: the program installed a handler of this type.
        let handler = unsafe {
            core::mem::transmute::<usize, extern "C" fn(libc::c_int)>(action.sa_sigaction)
        };
        handler(signal);
    }
}
