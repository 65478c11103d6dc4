//! Threads of the library's own, which take no signals of the program.
#![allow(unsafe_code, reason = "threads of the C library")]

use std::ffi::CStr;
use std::io;
use std::mem::{self, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Signals that stay unblocked: the kernel raises them in the thread whose instruction caused them,
/// and ends the process at once if that thread blocks them, whatever handler the program has.
const SYNCHRONOUS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Stack of a thread that lives as long as a NIC.
const STACK: usize = 2 << 20;

/// A thread that can be waited for. Otherwise it goes on by itself.
///
/// Not one of the standard library's: when memory is short, those end the program where this
/// returns an error, because they allocate what only a thread of a Rust program needs.
#[derive(Debug)]
pub(crate) struct Thread(Option<libc::pthread_t>);

// SAFETY: the name of a thread, which any thread may wait for or detach. With musl it is a pointer.
unsafe impl Send for Thread {}
// SAFETY: as above; nothing can be done with it by reference.
unsafe impl Sync for Thread {}

impl Thread {
    /// Waits for its end.
    pub(crate) fn join(mut self) -> io::Result<()> {
        let Some(id) = self.0.take() else { return Ok(()) };
        // SAFETY: the thread is there, as nothing has waited for it or detached it.
        checked(unsafe { libc::pthread_join(id, ptr::null_mut()) })
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            // SAFETY: as above.
            unsafe { libc::pthread_detach(id) };
        }
    }
}

/// Starts a thread that blocks every signal that can be meant for the program.
///
/// The program may have blocked a signal everywhere to take it by `sigwait` or a `signalfd`, or
/// rely on it interrupting a call: a signal that a thread of the library took would be lost to it.
/// A new thread inherits the mask of the thread that starts it, so signals are blocked here before
/// it is started: there is no moment at which it takes one.
pub(crate) fn spawn(
    name: &'static CStr,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<Thread> {
    start(name, STACK, Box::new(run))
}

/// Calls a function in a thread with a stack of this size, and waits for it: the calling thread may
/// have the smallest stack that there is. No signal of the program's is delivered there.
#[doc(hidden)]
pub fn on_stack<T: Send>(stack: usize, call: impl FnOnce() -> T + Send) -> io::Result<T> {
    let mut result = None;
    let run: Box<dyn FnOnce() + Send + '_> = Box::new(|| result = Some(call()));
    // SAFETY: the thread has ended before anything that it borrows does: nothing between here and
    // `join` panics.
    let run = unsafe { mem::transmute::<Box<dyn FnOnce() + Send + '_>, Run>(run) };
    start(c"roce-open", stack, run)?.join()?;
    result.ok_or_else(|| io::Error::other("the thread panicked"))
}

/// Returns how often the scheduler has taken the core from the calling thread.
pub(crate) fn involuntary_switches() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure has the size that the call fills in.
    let code = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: zeros are a value of it, too.
    let usage = unsafe { usage.assume_init() };
    if code == 0 { usage.ru_nivcsw } else { 0 }
}

/// Function of a thread.
type Run = Box<dyn FnOnce() + Send>;

struct Start {
    name: &'static CStr,
    run: Run,
}

fn start(name: &'static CStr, stack: usize, run: Run) -> io::Result<Thread> {
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: it initializes them.
    checked(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
    // SAFETY: they are initialized. A size that cannot be had is refused.
    let sized = unsafe { libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack) };
    let mut id = MaybeUninit::uninit();
    let started = checked(sized).and_then(|()| Masked::new()).and_then(|_masked| {
        let start = Box::into_raw(Box::new(Start { name, run }));
        let code = if is_refused() {
            libc::EAGAIN
        } else {
            // SAFETY: the thread takes what is handed over, if it is started.
            unsafe {
                libc::pthread_create(id.as_mut_ptr(), attributes.as_ptr(), first, start.cast())
            }
        };
        if code != 0 {
            // SAFETY: it was not started, so this is still ours.
            drop(unsafe { Box::from_raw(start) });
        }
        checked(code)
    });
    // SAFETY: they are initialized.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    started?;
    // SAFETY: the thread was started.
    Ok(Thread(Some(unsafe { id.assume_init() })))
}

/// Whether a test refuses threads to this one, as a system does that has no more.
#[cfg(test)]
fn is_refused() -> bool {
    tests::REFUSED.get()
}

#[cfg(not(test))]
const fn is_refused() -> bool {
    false
}

/// Entry point of a thread.
extern "C" fn first(start: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: it was handed over by `start`.
    let Start { name, run } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: a function without a contract.
    let own = unsafe { libc::pthread_self() };
    // SAFETY: the name is a C string. One that is too long is refused, and the thread has that of
    // the program.
    unsafe { libc::pthread_setname_np(own, name.as_ptr()) };
    unblock_synchronous();
    // Nothing may unwind into C. What panicked has said so.
    let _ = catch_unwind(AssertUnwindSafe(run));
    ptr::null_mut()
}

fn checked(code: libc::c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// All signals are blocked in this thread until it is dropped.
struct Masked {
    before: libc::sigset_t,
}

impl Masked {
    fn new() -> io::Result<Self> {
        let mut all = MaybeUninit::uninit();
        // SAFETY: it initializes the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets live until the call returns; the first was initialized, the second is
        // filled in.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) }
        {
            // SAFETY: it succeeded, so the set is filled in.
            0 => Ok(Self { before: unsafe { before.assume_init() } }),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: the set is one that this thread had. It fails only for an unknown first argument.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

/// Unblocks the [synchronous](SYNCHRONOUS) signals in this thread.
fn unblock_synchronous() {
    let mut set = MaybeUninit::uninit();
    // SAFETY: it initializes the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in SYNCHRONOUS {
        // SAFETY: a set that was initialized, and signals that there are.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: the set lives until the call returns. It fails only for an unknown first argument.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut()) };
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use super::*;

    thread_local! {
        /// Whether threads that this thread starts are refused.
        pub(super) static REFUSED: Cell<bool> = const { Cell::new(false) };
    }

    /// Calls a function to which every new thread is refused.
    pub(crate) fn without_threads<T>(call: impl FnOnce() -> T) -> T {
        REFUSED.set(true);
        let result = call();
        REFUSED.set(false);
        result
    }

    /// The signals that this thread blocks, as the kernel lists them.
    fn blocked() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    }

    #[test]
    fn thread_blocks_all_but_synchronous_signals_and_its_parent_is_unchanged() {
        let before = blocked();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = spawn(c"masked", move || tell.send(blocked()).unwrap()).unwrap();
        thread.join().unwrap();
        // The C library keeps the two after SIGSYS to itself.
        let open = SYNCHRONOUS.into_iter().chain([32, 33]).map(|signal| 1_u64 << (signal - 1));
        // No thread can block these.
        let never = [libc::SIGKILL, libc::SIGSTOP].map(|signal| 1_u64 << (signal - 1));
        assert_eq!(told.recv().unwrap(), !(open.chain(never).sum::<u64>()));
        assert_eq!(blocked(), before);
    }

    #[test]
    fn refused_thread_leaves_nothing_and_the_signals_as_they_were() {
        let (before, owned) = (blocked(), Arc::new(()));
        let handed_over = Arc::clone(&owned);
        let refused = without_threads(|| spawn(c"refused", move || drop(handed_over)));
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EAGAIN));
        assert_eq!((Arc::strong_count(&owned), blocked()), (1, before));
    }

    #[test]
    fn thread_has_its_name_and_ends_also_by_a_panic() {
        let (tell, told) = std::sync::mpsc::channel();
        let name = || std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        spawn(c"a name", move || tell.send(name()).unwrap()).unwrap().join().unwrap();
        assert_eq!(told.recv().unwrap(), "a name\n");
        spawn(c"panics", || panic!("on purpose")).unwrap().join().unwrap();
    }

    #[test]
    fn call_on_another_stack_borrows_and_returns() {
        let mut words = vec![1, 2, 3];
        let sum = on_stack(1 << 16, || {
            words.push(4);
            words.iter().sum::<i32>()
        });
        assert_eq!((sum.unwrap(), words.len()), (10, 4));
        assert!(on_stack(1 << 16, || panic!("on purpose")).is_err());
        // More than there are addresses.
        assert!(on_stack(1 << 62, || ()).is_err());
    }
}
