//! Forks: a child has its parent's memory and descriptors, but none of its threads.
//!
//! So a NIC that a parent has open is unusable in a child: its thread is missing, its locks may be
//! held by threads that are not there, and its sockets and queues are the parent's. What a child
//! inherits of an open device is refused to it, every call with `ENODEV`, so that it can neither
//! disturb its parent nor wait for ever. What it opens itself is its own.
//!
//! A fork waits until no other thread is changing what the processes will both have: the list of
//! devices and what can be found by its number. And a child closes the sockets that hold its
//! parent's addresses, so that they are free when the parent closes its devices.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use roce::memory::ForkGuard;

use crate::call::{Failed, Result};
use crate::{device, env, registry, share, strings, ucm};

/// Number of forks with open devices between the first process that used this library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Number of open devices.
static OPEN: AtomicU32 = AtomicU32::new(0);

/// Process, among those of whose devices something may be in its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u32);

impl Generation {
    /// Returns the generation of this process.
    #[inline]
    pub(crate) fn current() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn number(self) -> u32 {
        self.0
    }

    /// Whether a parent of this process had devices open when it forked.
    pub(crate) fn is_forked() -> bool {
        Self::current() != Self(0)
    }

    /// Fails for what a parent left.
    #[inline]
    pub(crate) fn check(self) -> Result<()> {
        if self == Self::current() { Ok(()) } else { Err(Failed::ENODEV) }
    }
}

/// Process that an object belongs to, until its device is closed.
#[derive(Debug)]
pub(crate) struct Owner(AtomicU32);

/// The owner of what belongs to no process any more.
const NO_PROCESS: u32 = u32::MAX;

impl Owner {
    /// Returns this process.
    pub(crate) fn current() -> Self {
        Self(AtomicU32::new(Generation::current().0))
    }

    /// Fails for what a parent left, or what belongs to no process.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        Generation(self.0.load(Ordering::Relaxed)).check()
    }

    /// Refuses the object from now on.
    pub(crate) fn disown(&self) {
        self.0.store(NO_PROCESS, Ordering::Relaxed);
    }
}

/// A device that is open, for as long as this is there.
#[derive(Debug)]
pub(crate) struct Open(());

impl Open {
    /// A device is going to be opened.
    pub(crate) fn new() -> Result<Self> {
        match WATCHED.load(Ordering::Relaxed) {
            0 => {
                OPEN.fetch_add(1, Ordering::SeqCst);
                Ok(Self(()))
            }
            code => Err(Failed(code)),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Error number of watching forks; 0 if they are watched.
static WATCHED: AtomicI32 = AtomicI32::new(0);

/// Watches forks. It is called once, when the library is loaded: a child of a fork that was not
/// watched might wait for threads that it does not have.
pub(crate) fn watch() {
    // SAFETY: the functions are there for as long as the process, as this library is.
    let code = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    WATCHED.store(code, Ordering::Relaxed);
}

/// Locks of this library that both processes will use, held by the thread that forks. In this order
/// they are taken elsewhere, too.
struct Held {
    _manager: MutexGuard<'static, ()>,
    _objects: registry::Held,
    _numbers: share::Held,
    devices: device::Held,
    /// The last to be taken and to be given back: signals are blocked meanwhile.
    actions: ForkGuard,
}

/// Locks that the forking thread holds meanwhile.
struct Holder(UnsafeCell<Option<Held>>);

// SAFETY: only the thread that has the locks in it looks into it.
unsafe impl Sync for Holder {}

static HOLDER: Holder = Holder(UnsafeCell::new(None));

/// A thread is going to fork: no other thread may be in the midst of something that the child will
/// want.
unsafe extern "C" fn before() {
    // What is made once is made now: a child cannot wait for the thread that makes it.
    env::keep_quiet();
    strings::make();
    let held = Held {
        _manager: ucm::hold(),
        _objects: registry::hold(),
        _numbers: share::Held::new(),
        devices: device::Held::new(),
        actions: ForkGuard::new(),
    };
    // SAFETY: this thread has the locks.
    unsafe { *HOLDER.0.get() = Some(held) };
}

/// Time at which a thread forked last while a device was open, in nanoseconds of [`clock`].
static LAST_FORK: AtomicU64 = AtomicU64::new(0);

/// Maximum time that a child needs until it has closed its copies of sockets, in nanoseconds.
const CLOSES_WITHIN: u64 = 2_000_000_000;

/// Whether a child may not have closed its copies of this process's sockets yet.
pub(crate) fn child_may_hold_addresses() -> bool {
    match LAST_FORK.load(Ordering::Relaxed) {
        0 => false,
        at => clock().saturating_sub(at) < CLOSES_WITHIN,
    }
}

fn clock() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for an answer. It fails for unknown clocks only.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    let part = |part| u64::try_from(part).unwrap_or(0);
    part(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(now.tv_nsec))
}

/// A thread has forked, in its process.
unsafe extern "C" fn in_parent() {
    if OPEN.load(Ordering::Relaxed) > 0 {
        LAST_FORK.store(clock(), Ordering::Relaxed);
    }
    // SAFETY: this thread has the locks. They are given back after it has looked.
    let held = unsafe { (*HOLDER.0.get()).take() };
    drop(held);
}

/// Runs first in a child. It has one thread, and may not wait for anything.
unsafe extern "C" fn in_child() {
    LAST_FORK.store(0, Ordering::Relaxed);
    // SAFETY: this thread has the locks, as it had them before the fork.
    let held = unsafe { (*HOLDER.0.get()).take() };
    let mut is_any_running = OPEN.swap(0, Ordering::SeqCst) > 0;
    // While the generation is still the parent's: a child of this process must not close these
    // numbers again.
    if let Some(held) = &held {
        is_any_running |= held.devices.is_any_running();
        for fd in held.devices.addresses() {
            close(fd);
        }
    }
    if is_any_running {
        GENERATION.fetch_add(1, Ordering::SeqCst);
    }
    // Signals are let through last: a handler may fork, too.
    if let Some(Held { _manager, _objects, _numbers, devices, actions }) = held {
        drop((_manager, _objects, _numbers, devices));
        actions.in_child();
    }
}

fn close(fd: c_int) {
    // SAFETY: a descriptor of a NIC that is the parent's: nothing in this process uses it any more.
    unsafe { libc::close(fd) };
}
