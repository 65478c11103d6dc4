//! Work that is split over threads and keeps its order.

use std::collections::BTreeMap;
use std::hint;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;

/// Maximum number of items per thread that wait for their turn. More would even out larger
/// differences in how long items take.
const WAITING_PER_THREAD: usize = 2;

/// Number of times a thread checks whether it may read before it sleeps: some tens of microseconds,
/// as long as another thread's read takes. To sleep and to be woken takes longer.
const LOOKS: u32 = 1000;

/// Processes a stream of items on `threads` threads, and takes the results in the order of the
/// stream.
///
/// - `make` makes an empty item. Items are used again, so that their memory is allocated once.
/// - `next` fills an item with the next part of the input, and returns `false` at the end. One
///   thread at a time calls it.
/// - `work` processes an item, on any thread, while other threads process other items.
/// - `take` takes the processed items one at a time, in the order in which `next` filled them. An
///   error ends everything.
///
/// The thread that has filled an item processes it too, while its bytes are in that core's cache.
/// The calling thread takes all results, so that what `take` works on stays in one core's cache;
/// while none is ready, it fills and processes items as the others do. A bounded number of items is
/// held: a thread that is far ahead waits.
pub(crate) fn in_order<T: Send, E: Send>(
    threads: usize,
    make: impl Fn() -> T + Sync,
    next: impl FnMut(&mut T) -> bool + Send,
    work: impl Fn(&mut T) + Sync,
    mut take: impl FnMut(&mut T) -> Result<(), E>,
) -> Result<(), E> {
    let input = Mutex::new(Input { next, filled: 0, ended: false });
    let line = Line {
        state: Mutex::new(State {
            turn: 0,
            done: BTreeMap::new(),
            spare: (0..threads).map(|_| Vec::new()).collect(),
            made: 0,
            waiting: 0,
            stopped: None,
        }),
        moved: Condvar::new(),
        limit: threads * WAITING_PER_THREAD,
    };
    // Fills and processes one item; returns its number, or nothing at the end.
    let process = |thread: usize| {
        let mut item = line.spare(thread)?.unwrap_or_else(|| Item { value: make(), owner: thread });
        let number = lock_soon(&input).fill(&mut item.value)?;
        work(&mut item.value);
        line.hand_over(number, item);
        Some(number)
    };
    let process = &process;
    thread::scope(|scope| {
        for thread in 1..threads {
            let line = &line;
            scope.spawn(move || {
                let _guard = StopOnPanic(line);
                while process(thread).is_some() {
                    line.wait_for_room();
                }
            });
        }
        let _guard = StopOnPanic(&line);
        while process(0).is_some() {
            line.take_ready(&mut take, |state| state.done.len() > line.limit);
        }
        // The others may still be at work.
        let filled = lock(&input).filled;
        line.take_ready(&mut take, |state| state.turn < filled);
    });
    let state = line.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    match state.stopped {
        Some(Stop::Failed(error)) => Err(error),
        Some(Stop::Panicked) | None => Ok(()),
    }
}

/// Source of items.
struct Input<N> {
    next: N,
    filled: u64,
    ended: bool,
}

impl<N> Input<N> {
    /// Fills an item and returns its number; nothing at the end.
    fn fill<T>(&mut self, item: &mut T) -> Option<u64>
    where
        N: FnMut(&mut T) -> bool,
    {
        if self.ended || !(self.next)(item) {
            self.ended = true;
            return None;
        }
        self.filled += 1;
        Some(self.filled - 1)
    }
}

/// An item, and the thread in whose cache its memory is.
struct Item<T> {
    value: T,
    owner: usize,
}

/// Items that are processed and wait for their turn.
struct Line<T, E> {
    state: Mutex<State<T, E>>,
    /// An item was taken, or the item whose turn it is was processed, or everything ends.
    moved: Condvar,
    limit: usize,
}

struct State<T, E> {
    /// The number of the item that is taken next.
    turn: u64,
    done: BTreeMap<u64, Item<T>>,
    /// Items to use again, by the thread that made them.
    spare: Vec<Vec<Item<T>>>,
    /// Number of items in all.
    made: usize,
    /// Number of threads that wait for `moved`.
    waiting: usize,
    stopped: Option<Stop<E>>,
}

/// Reason for which the run ends before the input does.
enum Stop<E> {
    Failed(E),
    /// A thread panicked; the panic goes on where the threads are joined.
    Panicked,
}

impl<T, E> Line<T, E> {
    /// An item to use again, if possible one of this thread's own; nothing in it if one is to be
    /// made. Nothing at all if everything ends.
    fn spare(&self, thread: usize) -> Option<Option<Item<T>>> {
        let mut state = lock(&self.state);
        if state.stopped.is_some() {
            return None;
        }
        let own = state.spare.get_mut(thread).and_then(Vec::pop);
        let item = match own {
            None if state.made > self.limit => state.spare.iter_mut().find_map(Vec::pop),
            own => own,
        };
        state.made += usize::from(item.is_none());
        Some(item)
    }

    /// Puts a processed item into the line.
    fn hand_over(&self, number: u64, item: Item<T>) {
        let mut state = lock(&self.state);
        state.done.insert(number, item);
        if number == state.turn {
            self.wake(&state);
        }
    }

    /// Waits while the line is full.
    fn wait_for_room(&self) {
        let mut state = lock(&self.state);
        while state.stopped.is_none() && state.done.len() > self.limit {
            state = self.wait(state);
        }
    }

    /// Takes all items whose turn it is; waits for further ones while `must_wait`.
    fn take_ready(
        &self,
        take: &mut impl FnMut(&mut T) -> Result<(), E>,
        must_wait: impl Fn(&State<T, E>) -> bool,
    ) {
        let mut state = lock(&self.state);
        while state.stopped.is_none() {
            let turn = state.turn;
            let Some(mut item) = state.done.remove(&turn) else {
                if !must_wait(&state) {
                    return;
                }
                state = self.wait(state);
                continue;
            };
            drop(state);
            let taken = take(&mut item.value);
            state = lock(&self.state);
            state.turn += 1;
            if let Some(spare) = state.spare.get_mut(item.owner) {
                spare.push(item);
            }
            if let Err(error) = taken {
                state.stopped = Some(Stop::Failed(error));
            }
            self.wake(&state);
        }
    }

    fn wait<'a>(&'a self, mut state: Guard<'a, T, E>) -> Guard<'a, T, E> {
        state.waiting += 1;
        let mut state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }

    /// Wakes the threads that wait: a system call, which is spared if there is none.
    fn wake(&self, state: &State<T, E>) {
        if state.waiting > 0 {
            self.moved.notify_all();
        }
    }
}

type Guard<'a, T, E> = MutexGuard<'a, State<T, E>>;

/// Ends everything when its thread panics: the other threads would wait for its item for ever.
struct StopOnPanic<'a, T, E>(&'a Line<T, E>);

impl<T, E> Drop for StopOnPanic<'_, T, E> {
    fn drop(&mut self) {
        if thread::panicking() {
            lock(&self.0.state).stopped = Some(Stop::Panicked);
            self.0.moved.notify_all();
        }
    }
}

/// A lock that a panic in another thread does not turn into a second panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock that is held for microseconds, by spinning first.
fn lock_soon<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    for _ in 0..LOOKS {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => hint::spin_loop(),
        }
    }
    lock(mutex)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Squares the numbers below `count`; even ones take longer. `take` may refuse one.
    fn squares(threads: usize, count: u64, refused: Option<u64>) -> (Vec<u64>, Result<(), u64>) {
        let (mut input, mut output) = (0..count, Vec::new());
        let result = in_order(
            threads,
            || 0,
            |item| input.next().map(|number| *item = number).is_some(),
            |item| {
                if item.is_multiple_of(2) {
                    thread::yield_now();
                }
                *item *= *item;
            },
            |item| {
                if Some(*item) == refused {
                    return Err(*item);
                }
                output.push(*item);
                Ok(())
            },
        );
        (output, result)
    }

    #[test]
    fn results_come_in_the_order_of_the_input() {
        for threads in 1..9 {
            for count in [0, 1, 2, 7, 1000] {
                let (output, result) = squares(threads, count, None);
                assert_eq!(output, (0..count).map(|n| n * n).collect::<Vec<_>>());
                assert_eq!(result, Ok(()));
            }
        }
    }

    #[test]
    fn error_ends_everything_after_the_results_before_it() {
        for threads in 1..9 {
            let (output, result) = squares(threads, u64::MAX, Some(400));
            assert_eq!(output, (0..20).map(|n| n * n).collect::<Vec<_>>());
            assert_eq!(result, Err(400));
        }
    }

    #[test]
    fn items_are_bounded_while_the_first_takes_long() {
        let (made, read) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut left = 10_000;
        let result: Result<(), ()> = in_order(
            4,
            || made.fetch_add(1, Ordering::Relaxed),
            |item| {
                *item = read.fetch_add(1, Ordering::Relaxed);
                left -= 1;
                left > 0
            },
            |item| {
                // The first item is done when the others have run as far ahead as they may.
                while *item == 0 && read.load(Ordering::Relaxed) < 10 {
                    thread::yield_now();
                }
            },
            |_| Ok(()),
        );
        assert_eq!(result, Ok(()));
        let most = 4 * WAITING_PER_THREAD + 1 + 4;
        assert!(made.load(Ordering::Relaxed) <= most, "{made:?} items");
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn panic_of_a_thread_ends_the_others() {
        let mut left = 1000;
        let caller = thread::current().id();
        let _: Result<(), ()> = in_order(
            3,
            || (),
            |()| {
                left -= 1;
                left > 0
            },
            |()| {
                assert!(thread::current().id() == caller, "work fails");
                thread::yield_now();
            },
            |()| Ok(()),
        );
    }
}
