//! Queues with descriptors, and the routes of a NIC's events.
//!
//! A NIC knows objects by handles, C by pointers; several contexts share a NIC. [`Routes`] knows
//! for each object whose it is, and puts what happens to it into the queue of its context or of its
//! completion channel.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CString, c_int};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use roce::engine::Event;
use roce::ibverbs::{ibv_async_event, ibv_async_event_element, ibv_cq, ibv_qp, ibv_srq};
use roce::verbs::{AsyncEvent, CqHandle, EventType, QpHandle, SrqHandle};

use crate::call::{Failed, Result};

/// A thread that panicked left everything as it was.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue that a program waits for by its descriptor, which is readable while there is something
/// in it. The descriptor is the program's to make non-blocking, and taking from the queue then does
/// not block either.
///
/// It is the read end of a pipe: like a kernel's completion channel, and unlike an `eventfd`, it is
/// never writable, so event loops that ask for both do not spin. It wakes as fast as an `eventfd`
/// does.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// Events; the pipe has a byte for each, as far as it has room, but for those that waiting
    /// threads have read.
    events: Mutex<VecDeque<T>>,
    /// Descriptor that the program waits for.
    readable: UserFd,
    /// The library's own end, which never blocks.
    private: PrivateEnd,
}

/// A descriptor that a program has too, and may have closed. An `OwnedFd` would end the program for
/// that in a debug build.
#[derive(Debug)]
struct UserFd(c_int);

impl AsRawFd for UserFd {
    fn as_raw_fd(&self) -> c_int {
        self.0
    }
}

impl Drop for UserFd {
    fn drop(&mut self) {
        // SAFETY: a system call without pointers. Like a kernel's channel, it is closed by its
        // number when it is destroyed.
        unsafe { libc::close(self.0) };
    }
}

/// The library's own end of a pipe whose read end a program has. It does not depend on what the
/// program does with that descriptor: closing it, reading from it, or using its number for
/// something else.
#[derive(Debug)]
enum PrivateEnd {
    /// Reads and writes. As it reads, a write raises no `SIGPIPE` when the program has closed its
    /// descriptor.
    ReadWrite(OwnedFd),
    /// The write end, where `/proc` is missing. Bytes are then read from the program's descriptor.
    WriteOnly(OwnedFd),
}

impl PrivateEnd {
    /// Opens the pipe with these ends once more, and keeps `writable` only if that fails.
    fn new(readable: &UserFd, writable: OwnedFd) -> Result<Self> {
        let path = CString::new(format!("/proc/self/fd/{}", readable.as_raw_fd()));
        let path = path.map_err(|_| Failed::EINVAL)?;
        let flags = libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC;
        // SAFETY: the path is a C string.
        let opened = unsafe { libc::open(path.as_ptr(), flags) };
        if opened >= 0 {
            // SAFETY: it was just opened, and belongs to nothing else.
            return Ok(Self::ReadWrite(unsafe { OwnedFd::from_raw_fd(opened) }));
        }
        // SAFETY: a system call without pointers.
        if unsafe { libc::fcntl(writable.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } < 0 {
            return Err(io::Error::last_os_error().into());
        }
        Ok(Self::WriteOnly(writable))
    }

    fn to_write(&self) -> c_int {
        let (Self::ReadWrite(fd) | Self::WriteOnly(fd)) = self;
        fd.as_raw_fd()
    }

    /// Reads without waiting.
    fn read(&self, readable: &UserFd, sink: &mut [u8]) -> io::Result<usize> {
        let (at, len) = (sink.as_mut_ptr(), sink.len());
        let read = match self {
            // SAFETY: `at` and `len` are those of `sink`.
            Self::ReadWrite(fd) => unsafe {
                libc::syscall(libc::SYS_read, fd.as_raw_fd(), at, len)
            },
            Self::WriteOnly(_) => {
                let room = libc::iovec { iov_base: at.cast(), iov_len: len };
                // The program's descriptor waits, unless each call says that it must not.
                let (fd, nowhere) = (readable.as_raw_fd(), -1_i64);
                // SAFETY: as above; a pipe has no offset, whose second half counts on 32-bit
                // processors only.
                unsafe {
                    libc::syscall(
                        libc::SYS_preadv2,
                        fd,
                        &raw const room,
                        1,
                        nowhere,
                        nowhere,
                        libc::RWF_NOWAIT,
                    )
                }
            }
        };
        usize::try_from(read).map_err(|_| io::Error::last_os_error())
    }
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Result<Self> {
        let mut ends = [-1; 2];
        // SAFETY: there is room for two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error().into());
        }
        let [readable, writable] = ends;
        let readable = UserFd(readable);
        // SAFETY: it was just made, and belongs to nothing else.
        let writable = unsafe { OwnedFd::from_raw_fd(writable) };
        let private = PrivateEnd::new(&readable, writable)?;
        Ok(Self { events: Mutex::new(VecDeque::new()), readable, private })
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> c_int {
        self.readable.as_raw_fd()
    }

    pub(crate) fn put(&self, event: T) {
        let mut events = lock(&self.events);
        events.push_back(event);
        self.write_byte();
    }

    /// A pipe without room is readable, and that is all it is for.
    fn write_byte(&self) {
        let fd = self.private.to_write();
        // Not the C library's function, which is a cancellation point; nor below.
        // SAFETY: one byte, which is ours.
        unsafe { libc::syscall(libc::SYS_write, fd, [0_u8].as_ptr(), 1) };
    }

    /// Takes the oldest event. If there is none, returns the descriptor to wait for, unless that
    /// was made non-blocking. `note` sees the event before any other thread can see that it was
    /// taken.
    pub(crate) fn take(&self, note: impl Fn(&T)) -> Result<std::result::Result<T, c_int>> {
        if let Some(event) = self.try_take(note) {
            return Ok(Ok(event));
        }
        // SAFETY: a system call without pointers.
        let flags = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) };
        if flags & libc::O_NONBLOCK != 0 { Err(Failed::EAGAIN) } else { Ok(Err(self.fd())) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.events).is_empty()
    }

    fn try_take(&self, note: impl Fn(&T)) -> Option<T> {
        let mut events = lock(&self.events);
        let event = events.pop_front()?;
        note(&event);
        self.adjust(events.len());
        Some(event)
    }

    /// Forgets the events that `keep` does not want.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut events = lock(&self.events);
        events.retain(keep);
        self.adjust(events.len());
    }

    /// Takes bytes out of the pipe until there are no more than events; puts one in if there is
    /// none for them. Threads that wait take out bytes without the lock, so the pipe is asked.
    fn adjust(&self, events: usize) {
        let mut sink = [0_u8; 64];
        let mut bytes = self.bytes();
        while bytes > events {
            let more = (bytes - events).min(sink.len());
            match self.private.read(&self.readable, sink.get_mut(..more).unwrap_or_default()) {
                Ok(read @ 1..) => bytes -= read.min(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A thread that waits, or the program itself, was faster.
                _ => bytes = self.bytes().min(events),
            }
        }
        if bytes == 0 && events > 0 {
            self.write_byte();
        }
    }

    /// Number of bytes in the pipe.
    fn bytes(&self) -> usize {
        let mut bytes: c_int = 0;
        // SAFETY: there is room for a number.
        unsafe { libc::ioctl(self.private.to_write(), libc::FIONREAD, &raw mut bytes) };
        usize::try_from(bytes).unwrap_or(0)
    }
}

/// Counts the events of an object that a program was told and has not acknowledged. The object is
/// not destroyed before it has acknowledged all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Acks(Arc<Unacknowledged>);

#[derive(Debug, Default)]
struct Unacknowledged {
    count: Mutex<i64>,
    changed: Condvar,
}

impl Acks {
    pub(crate) fn report(&self) {
        *lock(&self.0.count) += 1;
    }

    pub(crate) fn acknowledge(&self, count: u32) {
        // The object that this belongs to may be gone as soon as the count is 0.
        let unacknowledged = Arc::clone(&self.0);
        *lock(&unacknowledged.count) -= i64::from(count);
        unacknowledged.changed.notify_all();
    }

    /// Whether an event is not acknowledged, or that cannot be known without waiting: for a forked
    /// child, in which the thread that has the lock is missing.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.count.try_lock().map_or(true, |count| *count > 0)
    }

    pub(crate) fn wait(&self) {
        let count = lock(&self.0.count);
        let all = self.0.changed.wait_while(count, |count| *count > 0);
        drop(all.unwrap_or_else(PoisonError::into_inner));
    }
}

/// A pointer that is only handed back to the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AssertSend<T>(pub(crate) T);

// SAFETY: nothing here reads what it points to.
unsafe impl<T> Send for AssertSend<T> {}

/// Completion queues that have what an event was asked for.
pub(crate) type Completions = Queue<AssertSend<*mut ibv_cq>>;

/// Asynchronous events.
pub(crate) type Asynchronous = Queue<AssertSend<ibv_async_event>>;

/// Destination of the events of one object.
#[derive(Debug)]
struct Route<T> {
    object: AssertSend<*mut T>,
    events: Arc<Asynchronous>,
    completions: Option<Arc<Completions>>,
}

impl<T> Route<T> {
    fn new(object: *mut T, events: &Arc<Asynchronous>) -> Self {
        Self { object: AssertSend(object), events: Arc::clone(events), completions: None }
    }

    /// The object is gone; what happened to it and was not told is forgotten.
    fn forget(self) {
        let Self { object: AssertSend(object), events, completions } = self;
        let about = |event: &AssertSend<ibv_async_event>| {
            // SAFETY: pointers of any kind, or a number: only bits are compared.
            unsafe { event.0.element.qp }.cast() == object
        };
        events.retain(|event| !about(event));
        if let Some(completions) = completions {
            completions.retain(|AssertSend(cq)| cq.cast() != object);
        }
    }
}

/// Objects that are left of a context that was closed.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    pub(crate) qps: Vec<QpHandle>,
    pub(crate) srqs: Vec<SrqHandle>,
    pub(crate) cqs: Vec<CqHandle>,
}

#[derive(Debug, Default)]
struct Table {
    cqs: BTreeMap<CqHandle, Route<ibv_cq>>,
    /// A queue pair may be open several times, and all who have it are told.
    qps: BTreeMap<QpHandle, Vec<Route<ibv_qp>>>,
    srqs: BTreeMap<SrqHandle, Route<ibv_srq>>,
    /// The queues of all contexts, for what happens to the port or the device.
    contexts: Vec<Weak<Asynchronous>>,
}

/// Destinations of the events of a NIC's objects. Its lock is taken while the NIC is locked, so
/// nothing is asked of the NIC under it.
#[derive(Debug, Default)]
pub(crate) struct Routes(Mutex<Table>);

macro_rules! routes {
    ($($add:ident $remove:ident $table:ident $handle:ident $c:ident;)*) => {
        $(
            pub(crate) fn $add(&self, handle: $handle, object: *mut $c, events: &Arc<Asynchronous>) {
                lock(&self.0).$table.insert(handle, Route::new(object, events));
            }

            /// The object is gone.
            pub(crate) fn $remove(&self, handle: $handle) {
                let removed = lock(&self.0).$table.remove(&handle);
                removed.into_iter().for_each(Route::forget);
            }
        )*
    };
}

impl Routes {
    routes! {
        add_cq remove_cq cqs CqHandle ibv_cq;
        add_srq remove_srq srqs SrqHandle ibv_srq;
    }

    pub(crate) fn add_qp(&self, handle: QpHandle, object: *mut ibv_qp, events: &Arc<Asynchronous>) {
        lock(&self.0).qps.entry(handle).or_default().push(Route::new(object, events));
    }

    /// The object is gone; others may stand for the same queue pair.
    pub(crate) fn remove_qp(&self, handle: QpHandle, object: *mut ibv_qp) {
        let mut table = lock(&self.0);
        let Some(routes) = table.qps.get_mut(&handle) else { return };
        let removed = routes.extract_if(.., |route| route.object.0 == object).collect::<Vec<_>>();
        if routes.is_empty() {
            table.qps.remove(&handle);
        }
        drop(table);
        removed.into_iter().for_each(Route::forget);
    }

    /// Completions of this queue are told to a channel.
    pub(crate) fn set_channel(&self, cq: CqHandle, channel: &Arc<Completions>) {
        if let Some(route) = lock(&self.0).cqs.get_mut(&cq) {
            route.completions = Some(Arc::clone(channel));
        }
    }

    pub(crate) fn add_context(&self, events: &Arc<Asynchronous>) {
        let mut table = lock(&self.0);
        table.contexts.retain(|context| context.strong_count() > 0);
        table.contexts.push(Arc::downgrade(events));
    }

    /// Removes all objects of a context that is closed; returns those that no other context has.
    pub(crate) fn remove_context(&self, events: &Arc<Asynchronous>) -> Orphans {
        let mut table = lock(&self.0);
        let is_its = |route: &Arc<Asynchronous>| Arc::ptr_eq(route, events);
        let srqs = table.srqs.extract_if(.., |_, route| is_its(&route.events));
        let srqs = srqs.map(|(srq, _)| srq).collect();
        let cqs = table.cqs.extract_if(.., |_, route| is_its(&route.events));
        let cqs = cqs.map(|(cq, _)| cq).collect();
        let qps = table.qps.extract_if(.., |_, routes| {
            routes.retain(|route| !is_its(&route.events));
            routes.is_empty()
        });
        let qps = qps.map(|(qp, _)| qp).collect();
        Orphans { qps, srqs, cqs }
    }

    /// Puts an event where it belongs.
    pub(crate) fn deliver(&self, event: Event) {
        let table = lock(&self.0);
        let event = match event {
            Event::Completion(cq) => {
                if let Some(Route { object, completions: Some(channel), .. }) = table.cqs.get(&cq) {
                    channel.put(*object);
                }
                return;
            }
            Event::Async(event) => event,
        };
        macro_rules! put {
            ($routes:expr, $field:ident) => {
                for Route { object: AssertSend($field), events, .. } in $routes {
                    events.put(element_event(event, ibv_async_event_element { $field: *$field }));
                }
            };
        }
        match event {
            AsyncEvent::Cq(_, handle) => put!(table.cqs.get(&handle).into_iter(), cq),
            AsyncEvent::Qp(_, handle) => put!(table.qps.get(&handle).into_iter().flatten(), qp),
            AsyncEvent::Srq(_, handle) => put!(table.srqs.get(&handle).into_iter(), srq),
            AsyncEvent::Port(_) | AsyncEvent::Device(_) => {
                for context in table.contexts.iter().filter_map(Weak::upgrade) {
                    context.put(element_event(event, ibv_async_event_element { port_num: 1 }));
                }
                if event.event() == EventType::DeviceFatal {
                    // Nothing completes any more: threads that wait for completions are told.
                    for Route { object, completions, .. } in table.cqs.values() {
                        completions.iter().for_each(|channel| channel.put(*object));
                    }
                }
            }
        }
    }
}

fn element_event(
    event: AsyncEvent,
    element: ibv_async_event_element,
) -> AssertSend<ibv_async_event> {
    AssertSend(ibv_async_event { element, event_type: event.event().code() })
}

#[cfg(test)]
mod tests {
    use roce::device::Device as _;

    use super::*;
    use crate::call::{Attempt, waiting};

    fn events_of(queue: &Queue<i32>) -> i16 {
        let events = libc::POLLIN | libc::POLLOUT;
        let mut poll = libc::pollfd { fd: queue.fd(), events, revents: 0 };
        // SAFETY: one entry, which is ours.
        assert!(unsafe { libc::poll(&raw mut poll, 1, 0) } >= 0);
        poll.revents
    }

    #[test]
    fn queue_is_readable_while_it_has_events_and_never_writable() {
        let queue = Queue::new().unwrap();
        assert_eq!(events_of(&queue), 0);
        for event in [1, 2, 3] {
            queue.put(event);
        }
        queue.retain(|event| *event != 2);
        assert_eq!((queue.take(|_| {}), events_of(&queue)), (Ok(Ok(1)), libc::POLLIN));
        assert_eq!((queue.take(|_| {}), events_of(&queue)), (Ok(Ok(3)), 0));
    }

    #[test]
    fn queue_holds_more_events_than_its_pipe_has_room() {
        const MANY: i32 = 70_000;
        let queue = Queue::new().unwrap();
        (0..MANY).for_each(|event| queue.put(event));
        queue.retain(|event| event % 2 == 0);
        for event in (0..MANY).step_by(2) {
            assert_eq!((events_of(&queue), queue.take(|_| {})), (libc::POLLIN, Ok(Ok(event))));
        }
        assert_eq!(events_of(&queue), 0);
    }

    #[test]
    fn take_does_not_wait_on_a_non_blocking_descriptor() {
        let queue = Queue::<i32>::new().unwrap();
        // SAFETY: a system call without pointers.
        unsafe { libc::fcntl(queue.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(queue.take(|_| {}), Err(Failed::EAGAIN));
        queue.put(4);
        assert_eq!(queue.take(|_| {}), Ok(Ok(4)));
    }

    #[test]
    fn every_event_is_an_edge() {
        let queue = Queue::new().unwrap();
        // SAFETY: system calls whose structures are there until they return.
        let waited = |epoll| unsafe {
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            libc::epoll_wait(epoll, &raw mut event, 1, 0)
        };
        // SAFETY: a system call without pointers.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        let edges = u32::from_ne_bytes((libc::EPOLLIN | libc::EPOLLET).to_ne_bytes());
        let mut event = libc::epoll_event { events: edges, u64: 0 };
        // SAFETY: the structure is there until the call returns.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, queue.fd(), &raw mut event) };
        for event in 0..3 {
            queue.put(event);
            assert_eq!((waited(epoll), waited(epoll)), (1, 0));
            assert_eq!(queue.take(|_| {}), Ok(Ok(event)));
        }
        // SAFETY: a descriptor of this test's own.
        unsafe { libc::close(epoll) };
    }

    #[test]
    fn lost_byte_does_not_hide_an_event() {
        // A thread that was canceled right after it had read a byte leaves the event to others.
        let queue = Queue::new().unwrap();
        (1..=3).for_each(|event| queue.put(event));
        let mut bytes = [0_u8; 2];
        // SAFETY: there is room for two bytes.
        assert_eq!(unsafe { libc::read(queue.fd(), bytes.as_mut_ptr().cast(), 2) }, 2);
        for event in 1..=3 {
            assert_eq!((events_of(&queue), queue.take(|_| {})), (libc::POLLIN, Ok(Ok(event))));
        }
        assert_eq!(events_of(&queue), 0);
    }

    #[test]
    fn queue_without_a_private_end_does_not_block() {
        let mut queue = Queue::new().unwrap();
        let PrivateEnd::ReadWrite(private) = &queue.private else { return };
        queue.private = PrivateEnd::WriteOnly(private.try_clone().unwrap());
        (1..=2).for_each(|event| queue.put(event));
        queue.retain(|event| *event == 2);
        assert_eq!((queue.take(|_| {}), events_of(&queue)), (Ok(Ok(2)), 0));
        // The program has read the byte itself.
        queue.put(3);
        // SAFETY: there is room for a byte.
        assert_eq!(unsafe { libc::read(queue.fd(), [0_u8].as_mut_ptr().cast(), 1) }, 1);
        assert_eq!((queue.take(|_| {}), events_of(&queue)), (Ok(Ok(3)), 0));
    }

    #[test]
    fn waiting_thread_is_woken() {
        let queue = Queue::new().unwrap();
        let attempt = |_| match queue.take(|_| {})? {
            Ok(letter) => (letter == 7).then_some(Attempt::Done).ok_or(Failed::EINVAL),
            Err(fd) => Ok(Attempt::Wait(fd)),
        };
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| waiting(attempt));
            queue.put(7);
            assert_eq!(waiter.join().unwrap(), 0);
        });
    }

    #[test]
    fn event_is_counted_before_its_object_can_be_destroyed() {
        // As `ibv_destroy_cq` does: it forgets events that were not taken, then waits for those
        // that were.
        let (queue, acks) = (Queue::new().unwrap(), Acks::default());
        queue.put(1);
        let (taken, taking) = std::sync::mpsc::channel();
        let destroyed = Mutex::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let event = queue.take(|_| {
                    taken.send(()).unwrap();
                    // The other thread destroys the object now, if it can.
                    std::thread::sleep(std::time::Duration::from_millis(50));
                    acks.report();
                });
                assert_eq!(event, Ok(Ok(1)));
                assert!(
                    !*lock(&destroyed),
                    "the object was destroyed before its event was acknowledged"
                );
                acks.acknowledge(1);
            });
            taking.recv().unwrap();
            queue.retain(|_| false);
            acks.wait();
            *lock(&destroyed) = true;
        });
    }

    #[test]
    fn object_waits_for_events_that_were_told() {
        let acks = Acks::default();
        acks.wait();
        acks.report();
        acks.report();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| acks.wait());
            acks.acknowledge(2);
            waiting.join().unwrap();
        });
    }

    #[test]
    fn fatal_error_reaches_every_context_and_wakes_every_channel() {
        let nic = roce::nic::SoftNic::start(cable().0).unwrap();
        let (routes, contexts) =
            (Routes::default(), [(); 2].map(|()| Asynchronous::new().unwrap()));
        let contexts = contexts.map(Arc::new);
        contexts.iter().for_each(|context| routes.add_context(context));
        let channel = Arc::new(Completions::new().unwrap());
        let cqs = [(); 2].map(|()| nic.create_cq(4).unwrap());
        for (place, cq) in cqs.iter().enumerate() {
            routes.add_cq(*cq, std::ptr::without_provenance_mut(8 * (place + 1)), &contexts[place]);
            routes.set_channel(*cq, &channel);
        }
        routes.deliver(Event::Async(AsyncEvent::Device(EventType::DeviceFatal)));
        for context in &contexts {
            let AssertSend(event) = context.take(|_| {}).unwrap().unwrap();
            assert_eq!(event.event_type, EventType::DeviceFatal.code());
        }
        let woken = [(); 2].map(|()| channel.take(|_| {}).unwrap().unwrap().0.addr());
        assert_eq!(woken, [8, 16]);
        // Of a context that is closed nothing is left.
        let orphans = routes.remove_context(&contexts[0]);
        assert_eq!((orphans.cqs, orphans.qps.len(), orphans.srqs.len()), (vec![cqs[0]], 0, 0));
    }

    fn cable() -> (roce::link::Link, roce::link::Link) {
        let gid = |host| roce::wire::Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host));
        roce::link::cable(gid(1), gid(2)).unwrap()
    }
}
