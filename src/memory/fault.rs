//! Access to memory of the user's program that survives a fault.
//!
//! A verbs program may unmap, protect or truncate memory while it is registered. A real NIC has
//! pinned the pages and carries on; here the access faults, and the request must fail with an
//! access error instead of killing the program.
//!
//! The routines in [`routines`] touch the memory from a few known instructions. A handler for
//! SIGSEGV and SIGBUS recognizes a fault at one of them by the program counter and resumes at the
//! routine's error exit. Every other fault goes to the action that the program had installed, as if
//! this handler were not there.
//!
//! # Why a signal handler
//!
//! Measured on a Xeon with Linux 6.18 that had other work to do, one warm copy, in nanoseconds,
//! best of several runs:
//!
//! | way | 64 B | 1 KiB | 4 KiB | 1 MiB |
//! |---|---|---|---|---|
//! | `memcpy`, which a fault kills | 2 | 7–10 | 27–41 | 62,000–83,000 |
//! | [`routines`], ordered and guarded | 11 | 10–13 | 29–42 | 72,000–86,000 |
//! | `process_vm_writev` on the own process | 620 | 690 | 460 | 87,000 |
//! | `MADV_POPULATE_WRITE` alone, to which a copy would be added | 400 | 300 | 330 | 9,900 |
//! | `mincore` alone, which does not see protections | 730 | 420 | 530 | 740 |
//!
//! A 4 KiB packet costs about 800 ns altogether, so a system call for each copy takes a third of
//! the bandwidth. Checks before a copy race with the program's other threads besides. `userfaultfd`
//! reports neither `mprotect` nor `ftruncate`. Signal handling costs nothing until a fault happens.
//!
//! # When the handler is not in place
//!
//! The program may install another handler later, or block the two signals. `tools/ibverbs` exports
//! `sigaction`, `signal`, `sigprocmask` and `pthread_sigmask`, so that later handlers are put
//! behind this one ([`replace_action`]), and a change of a mask is noticed at once
//! ([`masks_changed`]). What bypasses these functions is noticed by a check in each thread, once in
//! [`CHECK_INTERVAL`] accesses; until the handler is back, accesses go through the kernel
//! (`kernel`). The check unblocks the two signals in the calling thread: a blocked synchronous
//! fault cannot be handled by anyone, so the program loses nothing.

use core::cell::Cell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use super::actions::{Changing, Next, set_mask};
use super::routines;

/// Number of accesses of one thread between two checks that the handler is still in place: three
/// system calls of about 200 ns, so some 3 ns for each access.
const CHECK_INTERVAL: u32 = 256;

/// The signals of memory that cannot be accessed: not mapped or protected, and beyond the end of
/// its file.
const SIGNALS: [libc::c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Whether the last check found the handler in place for both signals.
static IN_PLACE: AtomicBool = AtomicBool::new(false);

/// Changes whenever a thread has to check again.
static GENERATION: AtomicU32 = AtomicU32::new(1);

/// The actions that the program has for the signals, in the order of [`SIGNALS`].
static NEXT: [Next; SIGNALS.len()] = [Next::new(), Next::new()];

thread_local! {
    /// The generation that this thread checked, and how many accesses it may do before it checks
    /// again.
    static CHECKED: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
}

/// The `sigaction` behind one that is interposed, if it is.
type SigactionFn =
    unsafe extern "C" fn(libc::c_int, *const libc::sigaction, *mut libc::sigaction) -> libc::c_int;

/// Returns the C library's own `sigaction`: a library that interposes it must not be called from
/// here.
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

/// Finds the C library's function that is called from the handler, which must not look for it:
/// looking takes locks.
pub fn resolve() {
    real_sigaction();
}

/// Installs the handler for both signals, once; the actions that the program had become the next
/// ones.
pub(super) fn install() {
    if !routines::AVAILABLE || INSTALLED.load(Ordering::SeqCst) {
        return;
    }
    resolve();
    let changing = Changing::new();
    if TRIED.swap(true, Ordering::Relaxed) {
        return;
    }
    for (signal, next) in SIGNALS.into_iter().zip(&NEXT) {
        let Some(old) = query(signal) else { return };
        next.replace(old, &changing);
        if !put_in_front(signal, &old) {
            return;
        }
    }
    PROCESS.store(process(), Ordering::SeqCst);
    INSTALLED.store(true, Ordering::SeqCst);
    masks_changed();
}

/// Whether [`install`] has been called. Changed only by a thread that has [`Changing`].
static TRIED: AtomicBool = AtomicBool::new(false);

/// Whether [`install`] has put the handler in place.
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// The process whose memory the actions in [`NEXT`] are in. A child of `vfork` shares that memory,
/// but has actions of its own in the kernel.
static PROCESS: AtomicI32 = AtomicI32::new(0);

fn process() -> libc::pid_t {
    // SAFETY: it returns a number.
    unsafe { libc::getpid() }
}

/// Keeps other threads from installing the handler and from replacing actions while a thread forks:
/// a child would wait for ever for a thread that it does not have.
#[derive(Debug)]
pub struct ForkGuard {
    _changing: Changing,
}

impl ForkGuard {
    /// Prepares a fork; called before a thread forks. All signals are blocked in it until the guard
    /// is dropped, in both processes.
    #[must_use]
    pub fn new() -> Self {
        Self { _changing: Changing::new() }
    }

    /// Sets the process ID, in the child.
    pub fn in_child(self) {
        if PROCESS.load(Ordering::SeqCst) != 0 {
            PROCESS.store(process(), Ordering::SeqCst);
        }
    }
}

impl Default for ForkGuard {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the action that the kernel has for a signal.
fn query(signal: libc::c_int) -> Option<libc::sigaction> {
    let mut old = MaybeUninit::zeroed();
    // SAFETY: there is room for the action.
    let failed = unsafe { real_sigaction()(signal, core::ptr::null(), old.as_mut_ptr()) };
    // SAFETY: the call filled it.
    (failed == 0).then(|| unsafe { old.assume_init() })
}

/// Installs the handler for a signal whose next action is this one: it runs on the same stack and
/// with the same signals blocked as that would.
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

/// Does what `sigaction` does, for a library that interposes it: an action for one of the two
/// signals is put behind the handler, once that is installed. Returns `None` if the call is for the
/// C library, as that of a child of `vfork` is.
#[must_use]
pub fn replace_action(
    signal: libc::c_int,
    new: Option<libc::sigaction>,
) -> Option<libc::sigaction> {
    let index = SIGNALS.iter().position(|own| *own == signal)?;
    let next = NEXT.get(index)?;
    if !INSTALLED.load(Ordering::SeqCst) || PROCESS.load(Ordering::SeqCst) != process() {
        return None;
    }
    let Some(new) = new else { return Some(next.get()) };
    let changing = Changing::new();
    if new.sa_sigaction == handle as *const () as usize {
        // A call that bypassed this function returned the handler as the old action, and the
        // program restores that. As its own next action the handler would call itself without end:
        // it is put in front of the program's again.
        let own = next.get();
        put_in_front(signal, &own);
        masks_changed();
        return Some(own);
    }
    let old = next.replace(new, &changing);
    put_in_front(signal, &new);
    masks_changed();
    Some(old)
}

/// Makes each thread check, before its next access to memory of the program's, that the handler is
/// in place and the two signals are not blocked.
pub fn masks_changed() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
}

/// Whether this thread may access memory of the program's by [`routines`] now. If not, only the
/// kernel can.
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
        // The instruction faults again, and the default action ends the program there, with a
        // useful core file.
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
        next.replace(unsafe { MaybeUninit::zeroed().assume_init() }, &Changing::new());
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

#[cfg(all(test, not(miri)))]
mod tests {
    use core::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn no_action_changes_while_a_thread_forks() {
        install();
        if !INSTALLED.load(Ordering::SeqCst) {
            return;
        }
        let _actions = super::super::tests::ACTIONS.lock();
        let (before, stop) = (replace_action(libc::SIGBUS, None).unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        assert!(replace_action(libc::SIGBUS, Some(before)).is_some());
                    }
                });
            }
            let mut changes = 0;
            let mut last = NEXT[1].version();
            // On a busy machine the other threads may begin late.
            let mut rounds = 0;
            while rounds < 200 || changes == 0 && rounds < 1_000_000 {
                rounds += 1;
                let guard = ForkGuard::new();
                let version = NEXT[1].version();
                changes += u32::from(version != last);
                std::thread::yield_now();
                last = NEXT[1].version();
                assert!(version.is_multiple_of(2), "an action is half changed");
                assert_eq!(version, last, "an action was changed during a fork");
                drop(guard);
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            assert!(changes > 0, "nothing happened");
        });
    }

    /// Whether this thread blocks a signal.
    fn is_blocked(signal: libc::c_int) -> bool {
        let mut set = MaybeUninit::zeroed();
        // SAFETY: there is room for an answer.
        unsafe { set_mask(libc::SIG_BLOCK, core::ptr::null(), set.as_mut_ptr()) };
        // SAFETY: the set is filled.
        unsafe { libc::sigismember(set.as_ptr(), signal) == 1 }
    }

    #[test]
    fn handler_runs_with_the_flags_and_mask_of_the_action_behind_it() {
        extern "C" fn own(_: libc::c_int) {}
        /// The C library adds this one.
        const RESTORER: libc::c_int = 0x0400_0000;
        install();
        if !INSTALLED.load(Ordering::SeqCst) {
            return;
        }
        let _actions = super::super::tests::ACTIONS.lock();
        // SAFETY: zeroes are the default action.
        let default: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut action = default;
        action.sa_sigaction = own as *const () as usize;
        action.sa_flags = libc::SA_RESETHAND | libc::SA_NODEFER;
        // SAFETY: the set is ours.
        unsafe { libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR2) };
        let blocks = |action: &libc::sigaction| {
            // SAFETY: the set is whole.
            unsafe { libc::sigismember(&raw const action.sa_mask, libc::SIGUSR2) == 1 }
        };
        let before = replace_action(libc::SIGBUS, Some(action)).unwrap();
        let seen = query(libc::SIGBUS).unwrap();
        assert_eq!(seen.sa_sigaction, handle as *const () as usize);
        assert_eq!(seen.sa_flags & !RESTORER, libc::SA_SIGINFO | libc::SA_NODEFER);
        assert!(blocks(&seen));
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        replace_action(libc::SIGBUS, Some(action)).unwrap();
        let seen = query(libc::SIGBUS).unwrap();
        assert_eq!(seen.sa_flags & !RESTORER, libc::SA_SIGINFO | libc::SA_ONSTACK);
        replace_action(libc::SIGBUS, Some(default)).unwrap();
        let seen = query(libc::SIGBUS).unwrap();
        let flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        assert_eq!(seen.sa_flags & !RESTORER, flags);
        assert!(!blocks(&seen));
        replace_action(libc::SIGBUS, Some(before)).unwrap();
        assert!(!is_blocked(libc::SIGUSR1) && !is_blocked(libc::SIGBUS), "the mask is restored");
    }

    #[test]
    fn child_has_the_actions_only_if_it_was_forked_with_the_guard() {
        install();
        if !INSTALLED.load(Ordering::SeqCst) {
            return;
        }
        let _actions = super::super::tests::ACTIONS.lock();
        let is_known_to_child = |is_announced: bool| {
            let guard = ForkGuard::new();
            // SAFETY: the child calls what a signal handler may call, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                if is_announced {
                    guard.in_child();
                } else {
                    drop(guard);
                }
                let known = replace_action(libc::SIGBUS, None).is_some();
                // SAFETY: it ends the child.
                unsafe { libc::_exit(known.into()) };
            }
            drop(guard);
            let mut status = 0;
            // SAFETY: there is room for a number.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert!(libc::WIFEXITED(status));
            libc::WEXITSTATUS(status) == 1
        };
        // As fork and vfork do it.
        assert_eq!((is_known_to_child(true), is_known_to_child(false)), (true, false));
        assert!(replace_action(libc::SIGBUS, None).is_some());
    }

    #[test]
    fn action_that_was_replaced_behind_its_back_is_noticed() {
        install();
        if !INSTALLED.load(Ordering::SeqCst) {
            return;
        }
        let _actions = super::super::tests::ACTIONS.lock();
        masks_changed();
        assert!(is_guarded());
        // SAFETY: zeroes are the default action.
        let default: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let own = query(libc::SIGBUS).unwrap();
        let set = |action: &libc::sigaction| {
            // SAFETY: the action is whole.
            unsafe { real_sigaction()(libc::SIGBUS, action, core::ptr::null_mut()) }
        };
        assert_eq!(set(&default), 0);
        let is_unguarded = (0..=CHECK_INTERVAL).any(|_| !is_guarded());
        assert_eq!(set(&own), 0);
        masks_changed();
        assert!(is_unguarded && is_guarded());
    }
}
