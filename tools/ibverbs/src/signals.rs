//! The C library's functions for signals, in front of which this library stands.
//!
//! `roce::memory` needs its handler for SIGSEGV and SIGBUS to be the one that the kernel calls. A
//! program that installs one after it registered memory would replace it. So the shared library has
//! these functions too, under the C library's versions, and the dynamic linker finds them first in
//! programs that are linked with libibverbs, or have it preloaded. A program sees what it would see
//! without them: its own actions. `install` puts them under their names.

use std::ffi::c_int;

use libc::{sighandler_t, sigset_t};
use roce::memory::{masks_changed, replace_action};

use crate::behind::{Behind, call_behind};

static SIGACTION: Behind = Behind::new(c"sigaction");
static SIGNAL: Behind = Behind::new(c"signal");
static SYSV_SIGNAL: Behind = Behind::new(c"__sysv_signal");
static SIGPROCMASK: Behind = Behind::new(c"sigprocmask");
static PTHREAD_SIGMASK: Behind = Behind::new(c"pthread_sigmask");

/// Finds all of them. Programs may call them in signal handlers, which may have interrupted what
/// looking for a symbol takes locks of.
pub(crate) fn resolve() {
    for behind in [&SIGACTION, &SIGNAL, &SYSV_SIGNAL, &SIGPROCMASK, &PTHREAD_SIGMASK] {
        behind.address();
    }
    roce::memory::resolve();
}

/// Installs or returns an action for a signal.
#[unsafe(no_mangle)]
unsafe extern "C" fn old_sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the program hands over an action, or none.
    let action = unsafe { new.as_ref() }.copied();
    let Some(replaced) = replace_action(signal, action) else {
        return call_behind!(
            SIGACTION,
            fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int,
            (signal, new, old),
            -1
        );
    };
    if !old.is_null() {
        // SAFETY: the program has room for it.
        unsafe { old.write(replaced) };
    }
    0
}

/// Installs a handler that stays, and lets system calls go on.
#[unsafe(no_mangle)]
unsafe extern "C" fn old_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    match replace_action(signal, Some(simple(handler, libc::SA_RESTART))) {
        Some(replaced) => replaced.sa_sigaction,
        None => call_behind!(
            SIGNAL,
            fn(c_int, sighandler_t) -> sighandler_t,
            (signal, handler),
            libc::SIG_ERR
        ),
    }
}

/// Installs a handler that is called once, as System V has it.
#[unsafe(no_mangle)]
unsafe extern "C" fn old___sysv_signal(signal: c_int, handler: sighandler_t) -> sighandler_t {
    let flags = libc::SA_RESETHAND | libc::SA_NODEFER;
    match replace_action(signal, Some(simple(handler, flags))) {
        Some(replaced) => replaced.sa_sigaction,
        None => call_behind!(
            SYSV_SIGNAL,
            fn(c_int, sighandler_t) -> sighandler_t,
            (signal, handler),
            libc::SIG_ERR
        ),
    }
}

/// An action with an empty mask.
fn simple(handler: sighandler_t, flags: c_int) -> libc::sigaction {
    // SAFETY: zeroes are an action with an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    action
}

/// Changes which signals are blocked in this thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn old_sigprocmask(
    how: c_int,
    set: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    let done = call_behind!(
        SIGPROCMASK,
        fn(c_int, *const sigset_t, *mut sigset_t) -> c_int,
        (how, set, old),
        -1
    );
    changed(set);
    done
}

/// Changes which signals are blocked in this thread.
#[unsafe(no_mangle)]
unsafe extern "C" fn old_pthread_sigmask(
    how: c_int,
    set: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    let done = call_behind!(
        PTHREAD_SIGMASK,
        fn(c_int, *const sigset_t, *mut sigset_t) -> c_int,
        (how, set, old),
        libc::ENOSYS
    );
    changed(set);
    done
}

/// Has threads check their masks anew, if a mask was set.
fn changed(set: *const sigset_t) {
    if !set.is_null() {
        masks_changed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_behind_are_found_when_the_library_is_loaded() {
        for behind in [&SIGACTION, &SIGNAL, &SYSV_SIGNAL, &SIGPROCMASK, &PTHREAD_SIGMASK] {
            assert!(behind.is_found(), "{behind:?}");
        }
    }
}
