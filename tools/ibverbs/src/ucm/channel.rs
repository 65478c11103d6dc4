//! An open file of the device: a pipe, of which the program has the read end. It is readable while
//! the channel has an event, and never writable, as the kernel's file.
//!
//! The program may copy the descriptor, hand it to a child, or close it in any way: the kernel
//! counts its holders. When the last copy is gone, also those that threads wait with, the write end
//! says so, and the channel is closed.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use roce::cm::ChannelId;

use super::Process;
use super::descriptors::DESCRIPTORS;
use crate::call::{Failed, Result, caught};
use crate::share::File;

/// An open file.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) id: ChannelId,
    /// File that all copies of its descriptor stand for.
    pub(super) file: File,
    write_end: OwnedFd,
    /// Whether a byte was written to the pipe and not drained. It changes with the manager locked.
    has_byte: AtomicBool,
    /// Number of threads that may have read it meanwhile: those that wait, and those that a signal
    /// or a cancellation took from it.
    readers: AtomicUsize,
}

/// Opens the device; the descriptor.
pub(super) fn open(flags: c_int) -> Result<RawFd> {
    let process = Process::current()?;
    let mut ends = [-1; 2];
    // SAFETY: there is room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: they were just made, and belong to nothing else.
    let [read_end, write_end] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    set_flags(&read_end, flags)?;
    let file = super::interpose::file_of(read_end.as_raw_fd())?.0;
    let id = process.command(|manager, _| Ok(manager.create_channel()?))?;
    let (has_byte, readers) = (AtomicBool::new(false), AtomicUsize::new(0));
    let channel = Arc::new(Channel { id, file, write_end, has_byte, readers });
    process.channels.insert(&channel);
    if let Err(failed) = process.watcher.add(&channel) {
        process.close(id);
        return Err(failed);
    }
    let fd = std::os::fd::IntoRawFd::into_raw_fd(read_end);
    DESCRIPTORS.insert(fd);
    Ok(fd)
}

/// Gives a descriptor the flags that the program wants, of those that a file without contents has.
fn set_flags(fd: &OwnedFd, flags: c_int) -> Result<()> {
    // SAFETY: a system call without pointers.
    let blocking = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags & libc::O_NONBLOCK) };
    let close_on_exec = if flags & libc::O_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: as above.
    let inherited = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, close_on_exec) };
    if blocking < 0 || inherited < 0 { Err(io::Error::last_os_error().into()) } else { Ok(()) }
}

impl Channel {
    /// Makes the descriptor readable. The manager must be locked.
    pub(super) fn set_readable(&self) {
        if !self.has_byte.swap(true, Ordering::Relaxed) || self.was_read() {
            without_sigpipe(|| {
                // Not the C library's function, which is a cancellation point.
                // SAFETY: one byte, which is ours.
                let written = unsafe {
                    libc::syscall(libc::SYS_write, self.write_end.as_raw_fd(), [0_u8].as_ptr(), 1)
                };
                written < 0
            });
        }
    }

    /// Whether a thread that waits has read the byte. Only where one does, the kernel must be
    /// asked.
    fn was_read(&self) -> bool {
        if self.readers.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let mut bytes: c_int = 0;
        // SAFETY: there is room for a number.
        unsafe { libc::ioctl(self.write_end.as_raw_fd(), libc::FIONREAD, &raw mut bytes) };
        bytes == 0
    }

    /// A thread is going to wait for the byte, and to read it. It looks at the channel then.
    pub(super) fn begin_wait(&self) {
        self.readers.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread that waited has looked at the channel, and settled it. The manager must be locked.
    pub(super) fn end_wait(&self) {
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Makes the descriptor what the channel is, after its events were taken or dropped. The
    /// manager must be locked. `fd` is a descriptor of this channel.
    pub(super) fn settle(&self, is_readable: bool, fd: RawFd) {
        if is_readable {
            self.set_readable();
        } else if self.has_byte.swap(false, Ordering::Relaxed) && !drain(fd) {
            self.drain_by_name();
        }
    }

    /// Empties the pipe through a read end of its own.
    fn drain_by_name(&self) {
        let path = std::ffi::CString::new(format!("/proc/self/fd/{}", self.write_end.as_raw_fd()));
        let Ok(path) = path else { return };
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC;
        // SAFETY: the path is a C string.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        let Ok(fd) = RawFd::try_from(fd) else { return };
        if fd >= 0 {
            drain(fd);
            // SAFETY: it was just opened, and belongs to nothing else.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

/// Writes to a pipe whose readers may be gone: SIGPIPE would be the program's. `write` says whether
/// it failed.
fn without_sigpipe(write: impl FnOnce() -> bool) {
    const SIGPIPE: u64 = 1 << (libc::SIGPIPE - 1);
    let mask = |how: c_int, new: u64, old: &mut u64| {
        let (new, old, size) = (&raw const new, &raw mut *old, size_of::<u64>());
        // SAFETY: two masks of this size, as the kernel has them.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, new, old, size) };
    };
    let pending = || {
        let mut pending = 0_u64;
        // SAFETY: there is room for a mask of this size.
        unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, size_of::<u64>()) };
        pending & SIGPIPE != 0
    };
    let (mut old, mut ignored) = (0, 0);
    mask(libc::SIG_BLOCK, SIGPIPE, &mut old);
    let was_pending = old & SIGPIPE != 0 && pending();
    if write() && !was_pending {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let (wanted, size) = (SIGPIPE, size_of::<u64>());
        // SAFETY: a mask and a time; without room for it nothing more is told of the signal.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigtimedwait,
                &raw const wanted,
                std::ptr::null_mut::<libc::siginfo_t>(),
                &raw const now,
                size,
            )
        };
    }
    if old & SIGPIPE == 0 {
        mask(libc::SIG_UNBLOCK, SIGPIPE, &mut ignored);
    }
}

/// Empties a pipe without waiting; whether that is possible through this descriptor.
fn drain(fd: RawFd) -> bool {
    let mut sink = [0_u8; 64];
    loop {
        let room = libc::iovec { iov_base: sink.as_mut_ptr().cast(), iov_len: sink.len() };
        let nowhere = -1_i64;
        // SAFETY: `room` is the whole of `sink`; a pipe has no offset, whose second half counts on
        // 32-bit processors only.
        let read = unsafe {
            libc::syscall(
                libc::SYS_preadv2,
                fd,
                &raw const room,
                1,
                nowhere,
                nowhere,
                libc::RWF_NOWAIT,
            )
        };
        match usize::try_from(read) {
            Ok(read) if read == sink.len() => {}
            Ok(_) => return true,
            // A thread that waited was quicker.
            Err(_) => return io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock,
        }
    }
}

/// Closes channels whose descriptors are all gone.
#[derive(Debug)]
pub(super) struct Watcher {
    epoll: OwnedFd,
}

impl Watcher {
    /// Starts its thread, in which no signal of the program's is delivered.
    pub(super) fn start() -> Result<Self> {
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error().into());
        }
        // SAFETY: it was just made, and belongs to nothing else.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        let watched = epoll.as_raw_fd();
        roce::link::spawn_detached(c"roce-cm-files", move || watch(watched))?;
        Ok(Self { epoll })
    }

    fn add(&self, channel: &Channel) -> Result<()> {
        // Errors are always told; nothing else is asked for.
        let mut event = libc::epoll_event { events: 0, u64: u64::from(channel.id.number()) };
        let (epoll, fd) = (self.epoll.as_raw_fd(), channel.write_end.as_raw_fd());
        // SAFETY: the event is there.
        let added = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if added < 0 { Err(io::Error::last_os_error().into()) } else { Ok(()) }
    }
}

/// Runs the thread, for as long as the process is there.
fn watch(epoll: RawFd) {
    const BATCH: usize = 16;
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    loop {
        let room = c_int::try_from(BATCH).unwrap_or(1);
        // SAFETY: `events` has room for `BATCH`.
        let count = unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), room, -1) };
        if count < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
        let Some(process) = Process::existing() else { continue };
        for event in events.iter().take(usize::try_from(count).unwrap_or(0)) {
            // Dropping the write end ends the watch of it.
            let number = u32::try_from(event.u64).unwrap_or_default();
            process.close(ChannelId::from_number(number));
        }
    }
}

/// A descriptor that a command was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A channel of this process.
    Channel(ChannelId),
    /// One that a parent opened: it is refused.
    Inherited,
    /// A file of another kind.
    Other,
}

/// Returns the file that a descriptor stands for, by asking the kernel.
pub(super) fn target(fd: c_int) -> Target {
    caught(|| Ok(find_target(fd))).unwrap_or(Target::Other)
}

fn find_target(fd: c_int) -> Target {
    let before = DESCRIPTORS.closes();
    let Ok((file, is_fifo)) = super::interpose::file_of(fd) else {
        DESCRIPTORS.remove(fd);
        return Target::Other;
    };
    if is_fifo {
        let found = Process::existing().and_then(|process| process.channels.find(file));
        if let Some(id) = found {
            DESCRIPTORS.insert(fd);
            DESCRIPTORS.remember(fd, id, before);
            return Target::Channel(id);
        }
        if DESCRIPTORS.contains(fd) && crate::fork::Generation::is_forked() && is_read_end(fd) {
            return Target::Inherited;
        }
    }
    DESCRIPTORS.remove(fd);
    Target::Other
}

fn is_read_end(fd: c_int) -> bool {
    // SAFETY: a system call without pointers.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_ACCMODE == libc::O_RDONLY
}

/// The channel that a command was written to.
pub(super) fn channel(target: Target) -> Result<(&'static Process, Arc<Channel>)> {
    let Target::Channel(id) = target else { return Err(Failed::ENODEV) };
    let process = Process::existing().ok_or(Failed::ENODEV)?;
    let channel = process.channels.get(id).ok_or(Failed(libc::EBADF))?;
    Ok((process, channel))
}
