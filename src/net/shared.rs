//! A connection's core on its queue pair, shared by all forms of the interface.
//!
//! One lock guards the core. Each call that waits makes progress itself: it polls, tells the core
//! completions, and posts what it yields. After a while it sleeps. Of several threads that wait one
//! sleeps on the completion channel, the others on a condition variable until that one has made
//! progress.

mod prepared;
mod wait;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::config::Config;
use super::core::frame::{HEADER, Source};
use super::core::{Core, Failure, Local, Post, Taken, emit_record, receive_id};
use super::error::Error;
use crate::connect;
use crate::device::{AnyQp, Cq, Memory, Mr, MrSlice};
use crate::memory::Buffer;
use crate::verbs::{
    Access, AttrMask, Data, KeyError, PostError, QpAttr, QpState, RecvWr, SendFlags, SendOp,
    SendWr, Sge, Target, Wc, WcStatus,
};

pub(super) use prepared::Prepared;

/// Bytes of a record that goes inline.
const INLINE: usize = 256;
/// Number of work requests that are posted at once.
const POST_BATCH: usize = 16;
/// Number of completions that are polled at once.
const POLL_BATCH: usize = 32;
/// Number of receives that are posted at once.
const RECEIVE_BATCH: usize = 16;
/// Parts of memory that an operation has at the most.
pub(super) const PARTS_MAX: usize = 4;
/// Number of work requests in flight from which on a sender polls now and then: the kernel segments
/// no more packets in one call.
const POLL_FROM: usize = 64;
/// Bytes that a sender posts before it polls: while it copies the next message, the network carries
/// these. Two messages of 64 KiB share a poll and a system call to send.
const POLL_BYTES: usize = 96 << 10;
/// Time between two looks whether a peer that has closed is still there, at first and at the most.
const CLOSE_LOOK: Duration = Duration::from_millis(1);
const CLOSE_LOOK_MAX: Duration = Duration::from_millis(50);
/// Addresses of both sides, and the private data of the peer.
#[derive(Clone, Debug)]
pub(super) struct ConnectionInfo {
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) private_data: Vec<u8>,
}

/// A connection. The queue pair is destroyed before its memory.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) qp: AnyQp,
    pub(super) cq: Cq,
    pub(super) ring: Mr,
    staging: Mr,
    pub(super) config: Config,
    pub(super) info: ConnectionInfo,
    /// The connection manager's connection, which ends with this one.
    held: Option<connect::Connection>,
    /// Maximum number of bytes of a message that is copied into the peer's ring.
    pub(super) eager_max: usize,
    /// Offset of the directory of published memory in the ring's region.
    pub(super) directory_at: usize,
    /// Address and key of the peer's directory.
    pub(super) peer_directory: (u64, crate::wire::RKey),
    /// Entries of the directory; `None` is one that was withdrawn.
    pub(super) published: Mutex<Vec<Option<Published>>>,
    state: Mutex<State>,
    changed: Condvar,
    #[cfg(feature = "tokio")]
    pub(super) asynchronous: super::asynchronous::Readiness,
}

/// Memory that the peer finds by a number.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) id: u64,
    /// The region to keep registered, unless the caller does.
    pub(super) _memory: Option<MrSlice>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) core: Core,
    /// Operations that are not done, or whose memory was not taken.
    operations: VecDeque<Operation>,
    /// Number of the first.
    first: u64,
    /// Large messages that the peer has not read.
    large: VecDeque<Mr>,
    /// Messages that the NIC may still read where they lie, and the number of the first.
    lent: VecDeque<MrSlice>,
    first_lent: u64,
    /// Whether a thread sleeps on the completion channel.
    has_leader: bool,
    /// Number of threads that sleep on the condition variable.
    waiters: usize,
    /// Whether the completion queue will tell of the next completion.
    is_armed: bool,
    /// Bytes that were posted since the last poll.
    unpolled: usize,
}

#[derive(Debug)]
struct Operation {
    memory: Memory,
    sges: [Sge; PARTS_MAX],
    parts: usize,
    /// Whether its memory was taken, or nothing waits for it.
    is_taken: bool,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls, tells the core, posts what it yields. Returns whether there was a completion.
    pub(super) fn progress(&self, state: &mut State) -> bool {
        let mut wcs = [Wc::default(); POLL_BATCH];
        let mut moved = false;
        state.unpolled = 0;
        loop {
            let count = self.cq.poll_wcs(&mut wcs);
            wcs.iter().take(count).for_each(|wc| state.core.handle_completion(wc));
            moved |= count > 0;
            if count < POLL_BATCH {
                break;
            }
        }
        if moved {
            state.release();
            self.post_receives(state);
            self.wake(state);
        }
        self.transmit(state);
        moved
    }

    /// Wakes those that wait for what this thread has just seen.
    pub(super) fn wake(&self, state: &State) {
        if state.waiters > 0 {
            self.changed.notify_all();
        }
        #[cfg(feature = "tokio")]
        self.asynchronous.wake();
    }

    fn post_receives(&self, state: &mut State) {
        const WR: RecvWr<'static> = RecvWr { id: receive_id(), sges: &[] };
        if (state.core.receives_due() as usize) < RECEIVE_BATCH {
            return;
        }
        let mut count = state.core.poll_receives() as usize;
        let device = self.qp.pd().context().device();
        while count > 0 {
            let wrs = [WR; RECEIVE_BATCH];
            let batch = count.min(RECEIVE_BATCH);
            let posted = device.post_recvs(self.qp.handle(), wrs.get(..batch).unwrap_or_default());
            if let Err((_, error)) = posted {
                return state.core.fail(Failure::Post(error));
            }
            count -= batch;
        }
    }

    /// Posts what the core yields, many at once.
    pub(super) fn transmit(&self, state: &mut State) {
        while let Some(first) = state.core.poll_post() {
            match state.core.poll_post() {
                None => {
                    let (sges, parts) = self.gather(state, &first);
                    let wr = send_wr(&first, sges.get(..parts).unwrap_or_default());
                    if let Err(error) = self.qp.post_send(&wr) {
                        state.core.fail(Failure::Post(error));
                    }
                    return;
                }
                Some(second) => self.transmit_batch(state, first, second),
            }
        }
    }

    fn transmit_batch(&self, state: &mut State, first: Post, second: Post) {
        let mut posts = [first; POST_BATCH];
        let mut count = 1;
        let mut next = Some(second);
        while let Some(post) = next {
            if let Some(entry) = posts.get_mut(count) {
                *entry = post;
                count += 1;
            }
            next = if count < POST_BATCH { state.core.poll_post() } else { None };
        }
        let gathered = posts.each_ref().map(|post| self.gather(state, post));
        let wrs: [SendWr<'_>; POST_BATCH] = std::array::from_fn(|at| {
            let (post, (sges, parts)) = (&posts[at], &gathered[at]);
            send_wr(post, sges.get(..*parts).unwrap_or_default())
        });
        if let Err((_, error)) = self.qp.post_sends(wrs.get(..count).unwrap_or_default()) {
            state.core.fail(Failure::Post(error));
        }
    }

    fn gather(&self, state: &State, post: &Post) -> ([Sge; PARTS_MAX], usize) {
        let mut sges = [Sge::default(); PARTS_MAX];
        match post.local {
            Local::Staging { offset, len } => {
                sges[0] = self.staging.sge(offset as usize, len as usize);
                (sges, 1)
            }
            Local::Lent { offset, len, payload, number } => {
                let [at, len, payload] = [offset, len, payload].map(|bytes| bytes as usize);
                let pad = len - HEADER - payload;
                sges[0] = self.staging.sge(at, HEADER);
                if let Some(slice) = state.lent(number) {
                    sges[1] = slice.mr().sge(slice.offset(), payload);
                }
                sges[2] = self.staging.sge(at + HEADER + payload, pad);
                (sges, if pad == 0 { 2 } else { 3 })
            }
            Local::Operation(number) => match state.operation(number) {
                Some(operation) => (operation.sges, operation.parts),
                None => (sges, 0),
            },
            Local::None | Local::Caller => (sges, 0),
        }
    }

    /// A message to send. A large one is copied to memory that the peer may read.
    pub(super) fn outgoing<'a>(&self, parts: &'a [&'a [u8]]) -> Result<Outgoing<'a>, Error> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len <= self.eager_max {
            return Ok(Outgoing { parts, len, large: None });
        }
        let buffer = Buffer::try_new(len).map_err(|_| KeyError::NoMemory)?;
        let mut at = 0;
        for part in parts {
            buffer.write(at, part).expect("it was made for them");
            at += part.len();
        }
        let large = Some(self.qp.pd().register(&buffer, Access::REMOTE_READ)?);
        Ok(Outgoing { parts, len, large })
    }

    /// Sends a message, or only queues it if another one is to follow; false if there is no room.
    /// What is sent is posted: nothing has to be done for it afterwards.
    #[inline]
    pub(super) fn try_send(
        &self,
        state: &mut State,
        message: &Outgoing<'_>,
        is_last: bool,
    ) -> Result<bool, Error> {
        check_open(state)?;
        let Outgoing { parts, len, large } = message;
        let inflight = state.core.inflight();
        if inflight >= POLL_FROM && inflight.is_multiple_of(POLL_FROM) {
            self.progress(state);
        }
        if is_last && !state.core.may_post() && !state.core.may_post_behind() {
            self.transmit(state);
            if !state.core.may_post() {
                return Ok(false);
            }
        }
        if let Some(mr) = large {
            return Ok(self.try_send_source(state, mr, (mr.addr(), mr.len() as u64)));
        }
        let is_small = is_last && len + 16 <= INLINE;
        if is_small && let Some(post) = state.core.post_now(*len) {
            let mut record = [0; INLINE];
            let bytes = emit_record(parts, &mut record);
            let data = Data::Inline(record.get(..bytes).unwrap_or_default());
            let wr = SendWr { data, ..send_wr(&post, &[]) };
            return self.qp.post_send(&wr).map(|()| true).map_err(|error| {
                state.core.fail(Failure::Post(error));
                Error::Post(error)
            });
        }
        let queued = state.core.queue(parts);
        if is_last || !queued {
            self.transmit(state);
        }
        state.unpolled += len;
        if queued && state.unpolled >= POLL_BYTES {
            self.progress(state);
        }
        Ok(queued)
    }

    /// Sends a message from where it lies, or tells the peer where it may read it; false if there
    /// is no room.
    pub(super) fn try_send_region(
        &self,
        state: &mut State,
        message: &MrSlice,
    ) -> Result<bool, Error> {
        check_open(state)?;
        if !message.mr().pd().is_same(self.qp.pd()) {
            return Err(Error::Post(PostError::ForeignMemory));
        }
        if !state.core.may_post() {
            return Ok(false);
        }
        if message.len() > self.eager_max {
            let place = message.remote();
            return Ok(self.try_send_source(state, message.mr(), (place.addr, place.len)));
        }
        if state.core.queue_lent(message.len()).is_none() {
            return Ok(false);
        }
        state.lent.push_back(message.clone());
        self.transmit(state);
        state.unpolled += message.len();
        if state.unpolled >= POLL_BYTES {
            self.progress(state);
        }
        Ok(true)
    }

    /// Tells the peer where a message lies in a region that it may read.
    fn try_send_source(&self, state: &mut State, mr: &Mr, (addr, len): (u64, u64)) -> bool {
        let source = Source { addr, len, rkey: mr.rkey().get() };
        let queued = state.core.queue_rendezvous(source);
        if queued {
            state.large.push_back(mr.clone());
        }
        self.transmit(state);
        queued
    }

    /// Begins an operation on the peer's memory; gives the memory back if too many wait. `Ok` holds
    /// its number.
    pub(super) fn try_operate(
        &self,
        state: &mut State,
        op: SendOp,
        memory: Memory,
    ) -> Result<Result<u64, Memory>, Error> {
        check_alive(state)?;
        let mut list = Vec::with_capacity(PARTS_MAX);
        if !memory.gather(self.qp.pd(), &mut list) {
            return Err(Error::Post(PostError::ForeignMemory));
        }
        let parts = list.len();
        let mut sges = [Sge::default(); PARTS_MAX];
        if parts > PARTS_MAX {
            return Err(Error::TooManyParts { count: parts, max: PARTS_MAX });
        }
        sges.iter_mut().zip(list).for_each(|(to, from)| *to = from);
        if state.operations.len() >= super::limits::OPERATIONS_MAX {
            return Ok(Err(memory));
        }
        let Some(number) = state.core.operate(op) else { return Ok(Err(memory)) };
        state.operations.push_back(Operation { memory, sges, parts, is_taken: false });
        self.transmit(state);
        Ok(Ok(number))
    }

    /// Takes a message, if one is there; `Some(false)` at the end.
    #[inline]
    pub(super) fn try_recv(&self, state: &mut State, out: &mut Vec<u8>) -> Option<bool> {
        match state.core.take(out) {
            Taken::Message => {
                self.transmit(state);
                Some(true)
            }
            Taken::End => Some(false),
            Taken::Nothing => {
                // A large message begins to be read.
                self.transmit(state);
                None
            }
        }
    }

    /// Ends the connection without a word to the peer: its queue pair answers no more.
    pub(super) fn abort(&self) {
        let mut state = self.lock();
        state.core.fail(Failure::Status(WcStatus::WrFlushErr));
        let attr = QpAttr { qp_state: QpState::Err, ..QpAttr::default() };
        // It may have failed already.
        let device = self.qp.pd().context().device();
        let _ = device.modify_qp(self.qp.handle(), &attr, AttrMask::STATE);
        self.wake(&state);
    }

    /// Tells the peer that this side sends and reads no more, and waits until it has all messages.
    pub(super) fn close(&self, timeout: Duration) -> Result<(), Error> {
        let deadline = now().checked_add(timeout);
        let mut pause = CLOSE_LOOK;
        let closed = loop {
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(now()));
            let closed = self.wait_closed(left.min(pause));
            let is_over = left <= pause || self.has_peer_gone();
            if is_over || !matches!(closed, Err(Error::TimedOut)) {
                break closed;
            }
            pause = (pause * 2).min(CLOSE_LOOK_MAX);
        };
        let state = self.lock();
        match (closed, state.core.undelivered()) {
            // The peer has gone after it closed.
            (Err(Error::Lost(_) | Error::TimedOut), 0) if state.core.has_peer_closed() => Ok(()),
            (Ok(()) | Err(Error::Lost(_) | Error::TimedOut), messages) if messages > 0 => {
                Err(Error::Undelivered { messages })
            }
            (closed, _) => closed,
        }
    }

    /// Closes, and waits until the peer has all messages.
    fn wait_closed(&self, timeout: Duration) -> Result<(), Error> {
        let mut discarded = Vec::new();
        self.wait(Some(timeout), |state| {
            state.core.close();
            // Messages that the program did not take are dropped.
            while self.try_recv(state, &mut discarded) == Some(true) {}
            // A peer that has closed, too, is waited for: this side repeats an acknowledgment that
            // it has not got, as long as there is this side.
            Ok(state.core.is_closed_and_delivered().then_some(()))
        })
    }

    /// Whether the peer has closed and disconnected: it has all acknowledgments, and answers
    /// nothing any more.
    pub(super) fn has_peer_gone(&self) -> bool {
        let has_closed = self.lock().core.has_peer_closed();
        let has_disconnected =
            |held: &connect::Connection| held.wait_disconnected(Duration::ZERO).unwrap_or(true);
        has_closed && self.held.as_ref().is_some_and(has_disconnected)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // As a socket does: what was sent arrives, if the peer is there and reads.
        if self.lock().core.failure().is_none() && !std::thread::panicking() {
            let _ = self.close(self.config.linger);
        }
        // What was to be delivered has been waited for.
        if let Some(held) = self.held.take() {
            held.abort();
        }
    }
}

/// A message to send.
#[derive(Debug)]
pub(super) struct Outgoing<'a> {
    parts: &'a [&'a [u8]],
    len: usize,
    /// A copy for the peer to read.
    large: Option<Mr>,
}

/// Fails if the connection has, or if nothing reaches the peer any more.
fn check_alive(state: &State) -> Result<(), Error> {
    if let Some(failure) = state.core.failure() {
        return Err(failure.into());
    }
    if state.core.has_peer_closed() { Err(Error::Closed) } else { Ok(()) }
}

/// Fails if no message can be sent.
#[inline]
pub(super) fn check_open(state: &State) -> Result<(), Error> {
    check_alive(state)?;
    if state.core.is_finished() { Err(Error::Finished) } else { Ok(()) }
}

impl State {
    /// Frees what has ended: operations that nothing waits for, large messages that the peer has
    /// read, messages that were sent from where they lie.
    pub(super) fn release(&mut self) {
        while self.first_lent < self.core.lent_done() && self.lent.pop_front().is_some() {
            self.first_lent += 1;
        }
        while self.large.len() > usize::from(self.core.unread()) {
            self.large.pop_front();
        }
        while self.first < self.core.operations_done()
            && self.operations.front().is_some_and(|operation| operation.is_taken)
        {
            self.operations.pop_front();
            self.first += 1;
        }
    }

    fn lent(&self, number: u64) -> Option<&MrSlice> {
        self.lent.get(usize::try_from(number.checked_sub(self.first_lent)?).ok()?)
    }

    fn operation(&self, number: u64) -> Option<&Operation> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.operations.get(at)
    }

    /// The memory of an operation that is done.
    pub(super) fn take_operation(&mut self, number: u64) -> Option<Memory> {
        if number >= self.core.operations_done() {
            return None;
        }
        let memory = self.abandon(number);
        self.release();
        memory
    }

    /// Abandons an operation for which nothing waits any more. Its memory is not freed before it is
    /// done.
    pub(super) fn abandon(&mut self, number: u64) -> Option<Memory> {
        let is_done = number < self.core.operations_done();
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let operation = self.operations.get_mut(at)?;
        operation.is_taken = true;
        is_done.then(|| std::mem::take(&mut operation.memory))
    }
}

fn send_wr<'a>(post: &Post, sges: &'a [Sge]) -> SendWr<'a> {
    let flags = if post.is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
    let data = Data::Gather(sges);
    SendWr { id: post.id, data, flags, target: Target::Peer, op: post.op }
}

#[expect(clippy::disallowed_methods, reason = "the program waits in real time")]
pub(super) fn now() -> Instant {
    Instant::now()
}
