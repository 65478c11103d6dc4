//! `open`, `write`, `close`, `dup2` and `fstat`, in front of the C library's: by these librdmacm
//! talks to its device. Everything else that it does with the descriptor, the kernel does with a
//! pipe.
//!
//! `write` costs other descriptors one look at a table. Which channel a descriptor is, is
//! remembered until the descriptor is closed or made a copy of another. If that happens behind this
//! library's back, it is found out when a command that is written to the number fails; and a number
//! that means a channel newly, by the error that `write` gets from the read end of a pipe.
//!
//! All of these can be canceled, by unwinding: none of them has anything to be dropped while it
//! calls another's. Rust cannot define a function with a varying number of arguments; on the
//! processors that `install` is for, `open` gets its mode in the register of a third argument
//! whether it is declared so or not.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::mem::MaybeUninit;

use super::channel::{Target, target};
use super::descriptors::DESCRIPTORS;
use super::{Process, channel, commands};
use crate::behind::{Behind, call_behind};
use crate::call::{Failed, Result, caught, number, set_errno, waiting_on_file};
use crate::share::File;
use roce::cm::ChannelId;

/// The device.
const DEVICE: &CStr = c"/dev/infiniband/rdma_cm";

static OPEN: Behind = Behind::new(c"open");
static OPEN64: Behind = Behind::new(c"open64");
static OPENAT: Behind = Behind::new(c"openat");
static OPENAT64: Behind = Behind::new(c"openat64");
static OPEN_2: Behind = Behind::new(c"__open_2");
static OPEN64_2: Behind = Behind::new(c"__open64_2");
static OPENAT_2: Behind = Behind::new(c"__openat_2");
static OPENAT64_2: Behind = Behind::new(c"__openat64_2");
static WRITE: Behind = Behind::new(c"write");
static CLOSE: Behind = Behind::new(c"close");
static DUP2: Behind = Behind::new(c"dup2");
static DUP3: Behind = Behind::new(c"dup3");
static CLOSE_RANGE: Behind = Behind::new(c"close_range");
static CLOSEFROM: Behind = Behind::new(c"closefrom");
static FSTAT: Behind = Behind::new(c"fstat");
static FSTAT64: Behind = Behind::new(c"fstat64");
static FXSTAT: Behind = Behind::new(c"__fxstat");
static FXSTAT64: Behind = Behind::new(c"__fxstat64");

/// Finds what programs may call in signal handlers.
pub(crate) fn resolve() {
    for behind in
        [&OPEN, &OPEN64, &OPENAT, &OPENAT64, &WRITE, &CLOSE, &DUP2, &DUP3, &FSTAT, &FSTAT64]
    {
        behind.address();
    }
}

/// Returns this library's function in front of one of the C library's.
pub(super) fn function(name: &CStr) -> Option<*mut c_void> {
    let function: *const () = match name.to_bytes() {
        b"open" => old_open as *const (),
        b"open64" => old_open64 as *const (),
        b"openat" => old_openat as *const (),
        b"openat64" => old_openat64 as *const (),
        b"__open_2" => old___open_2 as *const (),
        b"__open64_2" => old___open64_2 as *const (),
        b"write" => old_write as *const (),
        b"close" => old_close as *const (),
        b"dup2" => old_dup2 as *const (),
        b"fstat" => old_fstat as *const (),
        b"fstat64" => old_fstat64 as *const (),
        b"__fxstat" => old___fxstat as *const (),
        b"__fxstat64" => old___fxstat64 as *const (),
        _ => return None,
    };
    Some(function.cast_mut().cast())
}

/// The addresses of `write` in this library and in the C library.
pub(super) fn own_and_libc() -> [usize; 2] {
    [(old_write as *const ()).expose_provenance(), WRITE.address().expose_provenance()]
}

/// Whether a path is that of the device.
unsafe fn is_device(path: *const c_char) -> bool {
    // SAFETY: the program hands over a text, or null.
    !path.is_null() && unsafe { libc::strcmp(path, DEVICE.as_ptr()) } == 0
}

macro_rules! opens {
    ($($name:ident $behind:ident ($($before:ident: $type:ty)?) ($($mode:ident)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                $($before: $type,)?
                path: *const c_char,
                flags: c_int,
                $($mode: c_uint,)?
            ) -> c_int {
                // SAFETY: the program hands over a path.
                if unsafe { is_device(path) } {
                    return number(|| channel::open(flags));
                }
                opens!(@call $behind, ($($before: $type)?), path, flags, ($($mode)?))
            }
        )*
    };
    (@call $behind:ident, ($($before:ident: $type:ty)?), $path:ident, $flags:ident, ($mode:ident)) => {
        call_behind!(
            $behind,
            fn($($type,)? *const c_char, c_int; ...) -> c_int,
            ($($before,)? $path, $flags, $mode),
            -1
        )
    };
    (@call $behind:ident, ($($before:ident: $type:ty)?), $path:ident, $flags:ident, ()) => {
        call_behind!(
            $behind,
            fn($($type,)? *const c_char, c_int) -> c_int,
            ($($before,)? $path, $flags),
            -1
        )
    };
}

opens! {
    old_open OPEN () (mode);
    old_open64 OPEN64 () (mode);
    old_openat OPENAT (at: c_int) (mode);
    old_openat64 OPENAT64 (at: c_int) (mode);
    old___open_2 OPEN_2 () ();
    old___open64_2 OPEN64_2 () ();
    old___openat_2 OPENAT_2 (at: c_int) ();
    old___openat64_2 OPENAT64_2 (at: c_int) ();
}

/// Writes, or does what a command says.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn old_write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    if DESCRIPTORS.contains(fd) {
        if let Some(channel) = DESCRIPTORS.remembered(fd) {
            let written = command(Target::Channel(channel), fd, bytes, len);
            if written >= 0 || is_still(fd, channel) {
                return written;
            }
        }
        let target = target(fd);
        if target != Target::Other {
            return command(target, fd, bytes, len);
        }
    }
    // SAFETY: the program hands over `len` bytes.
    if let Some(sent) = unsafe { crate::netlink::answered(fd, bytes, len) } {
        return sent;
    }
    let written =
        call_behind!(WRITE, fn(c_int, *const c_void, usize) -> isize, (fd, bytes, len), -1);
    if written < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EBADF) {
        // A copy of a channel's descriptor is no writable file either.
        let target = target(fd);
        if target != Target::Other {
            return command(target, fd, bytes, len);
        }
        set_errno(libc::EBADF);
    }
    written
}

/// Whether a descriptor stands for the channel that it stood for before; `errno` stays.
fn is_still(fd: c_int, channel: ChannelId) -> bool {
    let code = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let is_still = target(fd) == Target::Channel(channel);
    set_errno(code);
    is_still
}

/// Executes a command; how many bytes were written.
fn command(target: Target, fd: c_int, bytes: *const c_void, len: usize) -> isize {
    match waiting_on_file(|has_waited| commands::write(target, fd, bytes, len, has_waited)) {
        0 => isize::try_from(len).unwrap_or(isize::MAX),
        _ => -1,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn old_close(fd: c_int) -> c_int {
    DESCRIPTORS.forget(fd, fd);
    crate::netlink::forget(fd);
    call_behind!(CLOSE, fn(c_int) -> c_int, (fd), -1)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn old_dup2(from: c_int, to: c_int) -> c_int {
    DESCRIPTORS.forget(to, to);
    call_behind!(DUP2, fn(c_int, c_int) -> c_int, (from, to), -1)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn old_dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    DESCRIPTORS.forget(to, to);
    call_behind!(DUP3, fn(c_int, c_int, c_int) -> c_int, (from, to, flags), -1)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn old_close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let number = |fd| c_int::try_from(fd).unwrap_or(c_int::MAX);
    DESCRIPTORS.forget(number(first), number(last));
    call_behind!(CLOSE_RANGE, fn(c_uint, c_uint, c_int) -> c_int, (first, last, flags), -1)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn old_closefrom(first: c_int) {
    DESCRIPTORS.forget(first, c_int::MAX);
    call_behind!(CLOSEFROM, fn(c_int) -> (), (first), ());
}

/// The file that a descriptor stands for, and whether it is a pipe.
pub(super) fn file_of(fd: c_int) -> Result<(File, bool)> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for an answer, which the kernel and the C library have alike on these
    // processors.
    if unsafe { libc::syscall(libc::SYS_fstat, fd, stat.as_mut_ptr()) } < 0 {
        return Err(Failed(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EBADF)));
    }
    // SAFETY: the kernel has filled it in.
    let stat = unsafe { stat.assume_init() };
    Ok(((stat.st_dev, stat.st_ino), stat.st_mode & libc::S_IFMT == libc::S_IFIFO))
}

/// Shows a channel as the character device that the program opened.
///
/// # Safety
///
/// There must be an answer of the C library, if it was successful.
unsafe fn disguise(result: c_int, stat: *mut libc::stat) -> c_int {
    if result != 0 || stat.is_null() {
        return result;
    }
    // SAFETY: the caller vouches for it.
    let stat = unsafe { &mut *stat };
    if stat.st_mode & libc::S_IFMT != libc::S_IFIFO {
        return result;
    }
    let file = (stat.st_dev, stat.st_ino);
    let _ = caught(|| {
        if Process::existing().is_some_and(|process| process.channels.find(file).is_some()) {
            stat.st_mode = libc::S_IFCHR | 0o666;
            stat.st_rdev = device_number();
        }
        Ok(())
    });
    result
}

/// The number of the device: that of the kernel's own where there is one, or the one in its file,
/// where librdmacm looks. The kernel's may be there only now: librdmacm asks the kernel for it
/// first, which loads the module.
fn device_number() -> libc::dev_t {
    let text = std::fs::read_to_string(roce::ibverbs::files::KERNEL_RDMA_CM_DEV_FILE)
        .or_else(|_| std::fs::read_to_string(roce::ibverbs::files::RDMA_CM_DEV_FILE));
    let text = text.unwrap_or_else(|_| roce::ibverbs::files::RDMA_CM_DEV.to_owned());
    let number = |part: Option<&str>| part.and_then(|part| part.parse().ok()).unwrap_or(0);
    let mut parts = text.trim().split(':');
    libc::makedev(number(parts.next()), number(parts.next()))
}

macro_rules! stats {
    ($($name:ident $behind:ident ($($version:ident)?);)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn $name(
                $($version: c_int,)?
                fd: c_int,
                stat: *mut libc::stat,
            ) -> c_int {
                let result = call_behind!(
                    $behind,
                    fn($(stats!(@int $version),)? c_int, *mut libc::stat) -> c_int,
                    ($($version,)? fd, stat),
                    -1
                );
                // SAFETY: the C library has just answered there.
                unsafe { disguise(result, stat) }
            }
        )*
    };
    (@int $version:ident) => { c_int };
}

stats! {
    old_fstat FSTAT ();
    old_fstat64 FSTAT64 ();
    old___fxstat FXSTAT (version);
    old___fxstat64 FXSTAT64 (version);
}
