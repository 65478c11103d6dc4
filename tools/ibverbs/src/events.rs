//! Queues with descriptors, and where the events of a NIC go.
//!
//! A NIC knows objects by handles, C by pointers; several contexts share a NIC. [`Routes`] knows for each object whose
//! it is, and puts what happens to it into the queue of its context or of its completion channel.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use roce::engine::Event;
use roce::ibverbs::{ibv_async_event, ibv_async_event_element, ibv_cq, ibv_qp, ibv_srq};
use roce::verbs::{AsyncEvent, CqHandle, QpHandle, SrqHandle};

use crate::call::{Failed, Result};

/// A thread that panicked left everything as it was.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue that a program waits for by its descriptor, which is readable while there is something in it. The descriptor
/// is the program's to make non-blocking, and taking from the queue then does not block either.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    letters: Mutex<VecDeque<T>>,
    /// Counts the letters; both change under the lock.
    flag: OwnedFd,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error().into());
        }
        // SAFETY: it was just made, and nobody else has it.
        let flag = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { letters: Mutex::default(), flag })
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> c_int {
        self.flag.as_raw_fd()
    }

    pub(crate) fn put(&self, letter: T) {
        let mut letters = lock(&self.letters);
        letters.push_back(letter);
        self.count(1);
    }

    /// The oldest one. If there is none it waits, unless the descriptor was made non-blocking.
    pub(crate) fn take(&self) -> Result<T> {
        loop {
            if let Some(letter) = self.try_take() {
                return Ok(letter);
            }
            self.wait()?;
        }
    }

    fn try_take(&self) -> Option<T> {
        let mut letters = lock(&self.letters);
        let letter = letters.pop_front()?;
        self.discount(1);
        Some(letter)
    }

    /// Forgets those that `keep` does not want.
    pub(crate) fn retain(&self, keep: impl FnMut(&T) -> bool) {
        let mut letters = lock(&self.letters);
        let before = letters.len();
        letters.retain(keep);
        self.discount(before - letters.len());
    }

    /// Waits until there may be something; fails at once if the program does not want to wait.
    fn wait(&self) -> Result<()> {
        // SAFETY: a system call without pointers.
        let flags = unsafe { libc::fcntl(self.fd(), libc::F_GETFL) };
        if flags & libc::O_NONBLOCK != 0 {
            return Err(Failed::EAGAIN);
        }
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which is ours.
        if unsafe { libc::poll(&raw mut poll, 1, -1) } < 0 {
            return Err(io::Error::last_os_error().into());
        }
        Ok(())
    }

    fn count(&self, letters: u64) {
        let bytes = letters.to_ne_bytes();
        // SAFETY: the bytes are ours. There is more room to count than memory for letters.
        unsafe { libc::write(self.fd(), bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Takes as many off the counter as were taken out: it never blocks, because they were counted.
    fn discount(&self, letters: usize) {
        let mut bytes = [0_u8; 8];
        for _ in 0..letters {
            // SAFETY: the bytes are ours.
            unsafe { libc::read(self.fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
        }
    }
}

/// How many events of an object a program was told, and how many it acknowledged. The object is not unmade before it
/// acknowledged all.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    /// Told and not acknowledged.
    open: Mutex<i64>,
    changed: Condvar,
}

impl Acks {
    pub(crate) fn told(&self) {
        *lock(&self.open) += 1;
    }

    pub(crate) fn acknowledge(&self, count: u32) {
        *lock(&self.open) -= i64::from(count);
        self.changed.notify_all();
    }

    pub(crate) fn wait(&self) {
        let open = lock(&self.open);
        let all = self.changed.wait_while(open, |open| *open > 0);
        drop(all.unwrap_or_else(PoisonError::into_inner));
    }
}

/// A pointer that is only handed back to the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told<T>(pub(crate) T);

// SAFETY: nobody here looks at what it points to.
unsafe impl<T> Send for Told<T> {}

/// Completion queues that have what an event was asked for.
pub(crate) type Completions = Queue<Told<*mut ibv_cq>>;

/// What happened beside the work.
pub(crate) type Asynchronous = Queue<Told<ibv_async_event>>;

/// Where the events of one object go.
#[derive(Debug)]
struct Route<T> {
    object: Told<*mut T>,
    events: Arc<Asynchronous>,
    completions: Option<Arc<Completions>>,
}

impl<T> Route<T> {
    fn new(object: *mut T, events: &Arc<Asynchronous>) -> Self {
        Self { object: Told(object), events: Arc::clone(events), completions: None }
    }

    /// The object is gone; what happened to it and was not told is forgotten.
    fn forget(self) {
        let Self { object: Told(object), events, completions } = self;
        let about = |told: &Told<ibv_async_event>| {
            // SAFETY: pointers of any kind, or a number: only bits are compared.
            unsafe { told.0.element.qp }.cast() == object
        };
        events.retain(|told| !about(told));
        if let Some(completions) = completions {
            completions.retain(|Told(cq)| cq.cast() != object);
        }
    }
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

/// Where the events of a NIC's objects go. Its lock is taken while the NIC is locked, so nothing is asked of the NIC
/// under it.
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
        macro_rules! tell {
            ($routes:expr, $field:ident) => {
                for Route { object: Told($field), events, .. } in $routes {
                    events.put(told(event, ibv_async_event_element { $field: *$field }));
                }
            };
        }
        match event {
            AsyncEvent::Cq(_, handle) => tell!(table.cqs.get(&handle).into_iter(), cq),
            AsyncEvent::Qp(_, handle) => tell!(table.qps.get(&handle).into_iter().flatten(), qp),
            AsyncEvent::Srq(_, handle) => tell!(table.srqs.get(&handle).into_iter(), srq),
            AsyncEvent::Port(_) | AsyncEvent::Device(_) => {
                for context in table.contexts.iter().filter_map(Weak::upgrade) {
                    context.put(told(event, ibv_async_event_element { port_num: 1 }));
                }
            }
        }
    }
}

fn told(event: AsyncEvent, element: ibv_async_event_element) -> Told<ibv_async_event> {
    Told(ibv_async_event { element, event_type: event.event().code() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(queue: &Queue<i32>) -> bool {
        let mut poll = libc::pollfd { fd: queue.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which is ours.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn a_queue_is_readable_while_there_is_something_in_it() {
        let queue = Queue::new().unwrap();
        assert!(!readable(&queue));
        for letter in [1, 2, 3] {
            queue.put(letter);
        }
        queue.retain(|letter| *letter != 2);
        assert_eq!((queue.take(), readable(&queue)), (Ok(1), true));
        assert_eq!((queue.take(), readable(&queue)), (Ok(3), false));
    }

    #[test]
    fn who_made_the_descriptor_non_blocking_does_not_wait() {
        let queue = Queue::<i32>::new().unwrap();
        // SAFETY: a system call without pointers.
        unsafe { libc::fcntl(queue.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(queue.take(), Err(Failed::EAGAIN));
        queue.put(4);
        assert_eq!(queue.take(), Ok(4));
    }

    #[test]
    fn who_waits_is_woken() {
        let queue = Queue::new().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.take());
            queue.put(7);
            assert_eq!(waiting.join().unwrap(), Ok(7));
        });
    }

    #[test]
    fn an_object_waits_for_what_was_told_of_it() {
        let acks = Acks::default();
        acks.wait();
        acks.told();
        acks.told();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| acks.wait());
            acks.acknowledge(2);
            waiting.join().unwrap();
        });
    }
}
