//! Threads of the library's own, which take no signals of the program.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::thread::{Builder, JoinHandle};

/// Signals that stay unblocked: the kernel raises them in the thread whose instruction caused them, and ends the process
/// at once if that thread blocks them, whatever handler the program has.
const SYNCHRONOUS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread that blocks every signal that can be meant for the program.
///
/// The program may have blocked a signal everywhere to take it by `sigwait` or a `signalfd`, or rely on it interrupting a
/// call: a signal that a thread of the library took would be lost to it. A new thread inherits the mask of the thread
/// that starts it, so signals are blocked here before it is started: there is no moment at which it takes one.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let masked = Masked::new()?;
    let thread = Builder::new().name(name.to_owned()).spawn(|| {
        unblock_synchronous();
        run();
    });
    drop(masked);
    thread
}

/// All signals are blocked in this thread until it is dropped.
struct Masked {
    before: libc::sigset_t,
}

impl Masked {
    #[expect(unsafe_code, reason = "calls of the C library")]
    fn new() -> io::Result<Self> {
        let mut all = MaybeUninit::uninit();
        // SAFETY: it initializes the set.
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        let mut before = MaybeUninit::uninit();
        // SAFETY: both sets live until the call returns; the first was initialized, the second is filled in.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) }
        {
            // SAFETY: it succeeded, so the set is filled in.
            0 => Ok(Self { before: unsafe { before.assume_init() } }),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Drop for Masked {
    #[expect(unsafe_code, reason = "a call of the C library")]
    fn drop(&mut self) {
        // SAFETY: the set is one that this thread had. It fails only for an unknown first argument.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

/// Unblocks the [synchronous](SYNCHRONOUS) signals in this thread.
#[expect(unsafe_code, reason = "calls of the C library")]
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
mod tests {
    use super::*;

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
        let thread = spawn("masked", move || tell.send(blocked()).unwrap()).unwrap();
        thread.join().unwrap();
        // The C library keeps the two after SIGSYS to itself.
        let open = SYNCHRONOUS.into_iter().chain([32, 33]).map(|signal| 1_u64 << (signal - 1));
        // Nobody can block these.
        let never = [libc::SIGKILL, libc::SIGSTOP].map(|signal| 1_u64 << (signal - 1));
        assert_eq!(told.recv().unwrap(), !(open.chain(never).sum::<u64>()));
        assert_eq!(blocked(), before);
    }
}
