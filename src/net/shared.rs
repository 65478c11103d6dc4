//! A connection's core on its queue pair: what all forms of the interface share.
//!
//! One lock guards the core. Each call that waits makes progress itself: it polls, tells the core completions, and posts what
//! it yields. After a while it sleeps. Of several threads that wait one sleeps on the completion channel, the others on a
//! condition variable until that one has made progress.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::config::Config;
use super::core::frame::{HEADER, Source};
use super::core::{Core, Failure, Local, OwnMemory, PeerRing, Post, Taken};
use super::core::{emit_record, receive_id, receives, sends};
use super::directory;
use super::error::Error;
use super::limits::PUBLISHED_MAX;
use crate::connect;
use crate::device::{AnyQp, Cq, Memory, Mr, MrSlice, Pd};
use crate::memory::Buffer;
use crate::verbs::{
    Access, AttrMask, Connect, Data, KeyError, Notify, PostError, QpAttr, QpState, QpType, RecvWr,
    SendFlags, SendOp, SendWr, Sge, Target, Wc, WcStatus,
};

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
/// Number of work requests in flight from which on a sender polls now and then: as many short packets as the kernel takes at once.
const POLL_FROM: usize = 64;
/// Bytes that a sender posts before it polls: while it copies the next message, the network carries these. Two messages of
/// 64 KiB share a poll and a system call to send.
const POLL_BYTES: usize = 96 << 10;
/// Number of polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 16;

/// A queue pair that has receives and is not connected.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) qp: AnyQp,
    pub(super) cq: Cq,
    ring: Mr,
    size: u32,
    config: Config,
    published: Vec<(u64, MrSlice)>,
}

impl Prepared {
    /// Creates a queue pair with its receives, a ring, and a directory of what is published from the start.
    pub(super) fn new(
        pd: &Pd,
        config: &Config,
        published: Vec<(u64, MrSlice)>,
    ) -> Result<Self, Error> {
        let (size, window) = (config.ring_bytes(), config.window());
        let depths = [sends(window), receive_depth(window)];
        let cq = pd.context().create_cq_with_events(depths.iter().sum())?;
        let [send_depth, receive_depth] =
            depths.map(|depth| u32::try_from(depth).expect("depths are small"));
        let parts = u32::try_from(PARTS_MAX).expect("a small number");
        let inline = u32::try_from(INLINE).expect("a small number");
        let builder = pd.qp(&cq).depth(send_depth, receive_depth).max_sge(parts, 1);
        let qp = builder.max_inline_data(inline).build_any(QpType::Rc)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let ring = pd.allocate(size as usize + directory::BYTES, access)?;
        for (at, (id, slice)) in published.iter().enumerate() {
            let offset = size as usize + at * directory::ENTRY;
            let entry = directory::emit(*id, &slice.remote());
            ring.write(offset, &entry).map_err(|_| Error::DirectoryFull(PUBLISHED_MAX))?;
        }
        let device = pd.context().device();
        device.bring_up(qp.handle(), QpState::Init, QpAttr::default(), &Connect::default())?;
        for _ in 0..receive_depth {
            let wr = RecvWr { id: receive_id(), sges: &[] };
            qp.post_recv(&wr).map_err(Error::Post)?;
        }
        Ok(Self { qp, cq, ring, size, config: *config, published })
    }

    /// Number of retransmissions without progress.
    pub(super) fn retries(&self) -> u8 {
        self.config.retries.min(7)
    }

    /// What the peer is told of the ring.
    pub(super) fn ring(&self) -> PeerRing {
        let (addr, rkey) = (self.ring.addr(), self.ring.rkey());
        PeerRing { addr, rkey, size: self.size, writes: self.config.window() }
    }

    /// The connection, once the queue pair is connected.
    pub(super) fn connected(
        self,
        mut peer: PeerRing,
        about: About,
        held: Option<connect::Connection>,
    ) -> Result<Arc<Shared>, Error> {
        let Self { qp, cq, ring, size, config, published } = self;
        // The send queue is for no more than this side's own window.
        peer.writes = peer.writes.min(config.window());
        let chunk = config.chunk_bytes();
        let bytes = OwnMemory::staging_bytes(peer.size, chunk);
        let staging = qp.pd().allocate(bytes, Access::LOCAL_WRITE)?;
        let own = OwnMemory {
            ring: ring.buffer().part(0, size as usize).expect("the ring is longer"),
            ring_size: size,
            staging: staging.buffer().region(),
            chunk,
            writes: config.window(),
        };
        let mut core = Core::new(own, peer, config.message_max);
        // They are posted already.
        let _ = core.poll_receives();
        let state = State {
            core,
            operations: VecDeque::new(),
            first: 0,
            large: VecDeque::new(),
            lent: VecDeque::new(),
            first_lent: 0,
            has_leader: false,
            waiters: 0,
            is_armed: false,
            unpolled: 0,
        };
        let peer_directory = peer.addr.wrapping_add(u64::from(peer.size));
        Ok(Arc::new(Shared {
            qp,
            cq,
            ring,
            staging,
            config,
            about,
            held,
            eager_max: state.core.eager_max(),
            directory_at: size as usize,
            peer_directory: (peer_directory, peer.rkey),
            published: Mutex::new(published),
            state: Mutex::new(state),
            changed: Condvar::new(),
            #[cfg(feature = "tokio")]
            asynchronous: super::asynchronous::Readiness::default(),
        }))
    }
}

fn receive_depth(window: u16) -> usize {
    receives(window) as usize + RECEIVE_BATCH
}

/// Who is connected.
#[derive(Clone, Debug)]
pub(super) struct About {
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
    pub(super) about: About,
    /// The connection manager's connection, which ends with this one.
    held: Option<connect::Connection>,
    /// Bytes of a message that is copied into the peer's ring, at the most.
    pub(super) eager_max: usize,
    /// Where the directory of published memory begins in the ring's region.
    pub(super) directory_at: usize,
    /// Where the peer's lies.
    pub(super) peer_directory: (u64, crate::wire::RKey),
    pub(super) published: Mutex<Vec<(u64, MrSlice)>>,
    state: Mutex<State>,
    changed: Condvar,
    #[cfg(feature = "tokio")]
    pub(super) asynchronous: super::asynchronous::Readiness,
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

    /// Sends a message, or only queues it if another one is to follow; false if there is no room. What is sent is posted: nothing
    /// has to be done for it afterwards.
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

    /// Sends a message from where it lies, or tells the peer where it may read it; false if there is no room.
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

    /// Begins an operation on the peer's memory; gives the memory back if too many wait. `Ok` holds its number.
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

    /// Waits until `check` has an answer, or the connection fails.
    pub(super) fn wait<T>(
        &self,
        timeout: Option<Duration>,
        mut check: impl FnMut(&mut State) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let mut state = self.lock();
        if let Some(answer) = check(&mut state)? {
            return Ok(answer);
        }
        let begun = now();
        let deadline = timeout.map(|timeout| begun + timeout);
        let mut polls = 0_u32;
        loop {
            self.progress(&mut state);
            if let Some(answer) = check(&mut state)? {
                return Ok(answer);
            }
            if let Some(failure) = state.core.failure() {
                return Err(failure.into());
            }
            polls += 1;
            if !polls.is_multiple_of(POLLS_PER_LOOK) {
                drop(state);
                std::hint::spin_loop();
                state = self.lock();
                continue;
            }
            let now = now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Err(Error::TimedOut);
            }
            if now - begun >= self.config.busy_poll {
                let left = deadline.map(|deadline| deadline - now);
                state = self.sleep(state, left)?;
            } else {
                drop(state);
                state = self.lock();
            }
        }
    }

    /// Sleeps until there may be progress. If nothing comes for a while, the peer's NIC has to show that it is there.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        left: Option<Duration>,
    ) -> Result<MutexGuard<'a, State>, Error> {
        let timeout = left.map_or(self.config.keepalive, |left| left.min(self.config.keepalive));
        if state.has_leader {
            state.waiters += 1;
            let slept = self.changed.wait_timeout(state, timeout);
            let (mut state, _) = slept.unwrap_or_else(PoisonError::into_inner);
            state.waiters -= 1;
            return Ok(state);
        }
        if !self.arm(&mut state) {
            return Ok(state);
        }
        state.has_leader = true;
        drop(state);
        let channel = self.cq.channel().expect("the completion queue was created with one");
        let slept = channel.wait(Some(timeout));
        let mut state = self.lock();
        state.has_leader = false;
        if state.waiters > 0 {
            // Another thread takes over.
            self.changed.notify_one();
        }
        match slept {
            Ok(Some(_)) => state.is_armed = false,
            Ok(None) => self.keep_alive(&mut state)?,
            Err(error) => return Err(error.into()),
        }
        Ok(state)
    }

    /// Has the completion queue tell of the next completion. Returns whether none came meanwhile.
    pub(super) fn arm(&self, state: &mut State) -> bool {
        if !state.is_armed {
            state.is_armed = true;
            self.cq.request_notify(Notify::Next);
        }
        // One that came before does not count.
        !self.progress(state)
    }

    /// The completion channel told of a completion.
    pub(super) fn disarm(&self, state: &mut State) {
        state.is_armed = false;
    }

    /// Nothing came for a while.
    pub(super) fn keep_alive(&self, state: &mut State) -> Result<(), Error> {
        if let Some(error) = self.cq.context().device().broken() {
            return Err(error.into());
        }
        state.core.probe();
        self.transmit(state);
        Ok(())
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
        let mut discarded = Vec::new();
        let closed = self.wait(Some(timeout), |state| {
            state.core.close();
            // Messages that the program did not take are dropped.
            while self.try_recv(state, &mut discarded) == Some(true) {}
            let is_delivered = state.core.is_idle() && state.core.unread() == 0;
            Ok((is_delivered || state.core.has_peer_closed()).then_some(()))
        });
        match closed {
            // The peer has gone after it closed.
            Err(Error::Lost(_)) if self.lock().core.has_peer_closed() => Ok(()),
            other => other,
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // As a socket does: what was sent arrives, if the peer is there and reads.
        if self.lock().core.failure().is_none() && !std::thread::panicking() {
            let _ = self.close(self.config.linger);
        }
        drop(self.held.take());
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
    /// Frees what has ended: operations that nothing waits for, large messages that the peer has read, messages that were sent
    /// from where they lie.
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

    /// Nothing waits for an operation. Its memory is not freed before it is done.
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
