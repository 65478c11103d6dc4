//! Completion queues of a device, which give back the memory of completed work.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::context::Context;
use super::interface::Channel;
use super::memory::{Buf, Memory};
use super::pending::Queues;
use crate::time::Instant as DeviceTime;
use crate::verbs::limits::GRH_BYTES;
use crate::verbs::{CqHandle, Notify, Wc, WcFlags, WcOpcode, WcStatus};

/// Number of completions that are taken from the device by one call.
const BATCH: usize = 16;

/// A completion queue. Cloning gives another handle to the same one.
///
/// Work that was posted with memory of its own ([`Qp::send`](super::Qp::send),
/// [`AnyQp::post`](super::AnyQp::post)) is polled by [`poll`](Self::poll), [`next`](Self::next) and
/// [`wait`](Self::wait), which give the memory back. A program that posts bare
/// [`SendWr`](crate::verbs::SendWr)s and [`RecvWr`](crate::verbs::RecvWr)s may use
/// [`poll_wcs`](Self::poll_wcs) instead; both on one completion queue do not go together.
///
/// ```
/// # use roce::{link::cable, nic::SoftNic, wire::Gid};
/// use std::time::Duration;
/// use roce::device::Context;
///
/// # let gids = [1, 2].map(|host| Gid::from(std::net::Ipv4Addr::new(192, 0, 2, host)));
/// # let (link, _other_end) = cable(gids[0], gids[1])?;
/// # let context = Context::new(SoftNic::start(link)?);
/// let cq = context.create_cq_with_events(16)?;
/// assert!(cq.next().is_none());
/// let error = cq.wait(Some(Duration::from_millis(1))).unwrap_err();
/// assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cq(Arc<CqInner>);

#[derive(Debug)]
struct CqInner {
    context: Context,
    handle: CqHandle,
    /// A channel that no other completion queue uses.
    channel: Option<Channel>,
    queues: Queues,
    /// Whether completions are polled with their time.
    timed: bool,
    /// Completions that were taken from the device and not yet by the program.
    ready: Mutex<VecDeque<Completion>>,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let _ = self.context.device().destroy_cq(self.handle);
    }
}

/// A work request that has completed, and its memory.
#[derive(Debug)]
pub struct Completion {
    /// The completion. Its `id` is the one that the program gave the work request.
    pub wc: Wc,
    /// The memory of the work request.
    pub memory: Memory,
    /// The time of the completion by the clock of the device, of a
    /// [timed](Context::create_timed_cq_with_events) queue and a device that can tell it.
    pub time: Option<DeviceTime>,
}

impl Completion {
    /// Returns the buffer of the work request, if it had one and no more.
    pub fn into_buf(self) -> Option<Buf> {
        match self.memory {
            Memory::Owned(buf) => Some(buf),
            _ => None,
        }
    }

    /// Returns a copy of the bytes that were received or read. Of a datagram, the 40 bytes of the
    /// network header are left out.
    pub fn payload(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.memory.append_to(self.wc.byte_len as usize, &mut bytes);
        if self.wc.flags().contains(WcFlags::GRH) {
            bytes.drain(..(GRH_BYTES as usize).min(bytes.len()));
        }
        bytes
    }

    /// Returns it if it succeeded, or its status.
    pub fn into_result(self) -> Result<Self, WcStatus> {
        if self.wc.is_success() { Ok(self) } else { Err(self.wc.status) }
    }
}

/// The completion of a send that was not signaled and that the completion of a later one completes.
fn succeeded(opcode: WcOpcode, later: &Wc) -> Wc {
    Wc::new(later.id, WcStatus::Success, opcode, later.qp_num)
}

impl Cq {
    pub(super) fn new(context: &Context, handle: CqHandle, channel: Option<Channel>) -> Self {
        let (context, queues) = (context.clone(), Queues::new());
        let (timed, ready) = (false, Mutex::default());
        Self(Arc::new(CqInner { context, handle, channel, queues, timed, ready }))
    }

    /// Returns the handle as one whose completions have time stamps of the device. It must be the
    /// only handle.
    pub(super) fn timed(mut self) -> Self {
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.timed = true;
        }
        self
    }

    /// Returns its handle, for [`Device`](super::Device).
    pub fn handle(&self) -> CqHandle {
        self.0.handle
    }

    /// Returns its device.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Returns the channel of its own, if it has one: its descriptor is readable once an event that
    /// was [requested](Self::request_notify) has come.
    pub fn channel(&self) -> Option<&Channel> {
        self.0.channel.as_ref()
    }

    pub(super) fn queues(&self) -> &Queues {
        &self.0.queues
    }

    /// Moves completions to `out`, oldest first, without the memory of their work requests; returns
    /// how many.
    #[inline]
    pub fn poll_wcs(&self, out: &mut [Wc]) -> usize {
        self.0.context.device().poll_cq(self.0.handle, out)
    }

    /// Appends completions to `out`, oldest first, until there is none left or `out` has no spare
    /// capacity; returns how many.
    pub fn poll(&self, out: &mut Vec<Completion>) -> usize {
        let before = out.len();
        while out.len() < out.capacity() {
            match self.next() {
                Some(completion) => out.push(completion),
                None => break,
            }
        }
        out.len() - before
    }

    /// Returns the oldest completion, if there is any. On a soft NIC, it drives the NIC.
    pub fn next(&self) -> Option<Completion> {
        let mut ready = self.0.ready.lock().unwrap_or_else(PoisonError::into_inner);
        while self.0.timed && ready.is_empty() {
            let (wc, time) = self.0.context.device().poll_cq_timed(self.0.handle)?;
            self.complete(&wc, time, &mut ready);
        }
        while ready.is_empty() {
            let mut wcs = [Wc::default(); BATCH];
            let count = self.poll_wcs(&mut wcs);
            if count == 0 {
                return None;
            }
            for wc in wcs.iter().take(count) {
                self.complete(wc, None, &mut ready);
            }
        }
        ready.pop_front()
    }

    /// Adds what a completion of the device completes to `ready`.
    fn complete(&self, wc: &Wc, time: Option<DeviceTime>, ready: &mut VecDeque<Completion>) {
        let own = self.0.queues.complete(wc.id, |entry, reported| {
            // A send that was not signaled has succeeded if a later one is reported.
            let mut wc = if reported { *wc } else { succeeded(entry.opcode, wc) };
            wc.id = entry.id;
            ready.push_back(Completion { wc, memory: entry.memory, time });
        });
        if !own {
            ready.push_back(Completion { wc: *wc, memory: Memory::None, time });
        }
    }

    /// Has the channel tell of the next completion. One that is there already does not count: poll
    /// once more.
    pub fn request_notify(&self, notify: Notify) {
        self.0.context.device().request_notify(self.0.handle, notify);
    }

    /// Waits for a completion: asleep if the queue has a [channel](Context::create_cq_with_events)
    /// of its own, otherwise polling. Fails with `TimedOut` after `timeout`, and when the device is
    /// broken.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Completion> {
        #[expect(clippy::disallowed_methods, reason = "the program waits in real time")]
        let now = Instant::now;
        let deadline = timeout.and_then(|timeout| now().checked_add(timeout));
        loop {
            if let Some(completion) = self.next() {
                return Ok(completion);
            }
            if let Some(error) = self.0.context.device().broken() {
                return Err(error);
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match &self.0.channel {
                None => std::thread::yield_now(),
                Some(channel) => {
                    self.request_notify(Notify::Next);
                    if let Some(completion) = self.next() {
                        return Ok(completion);
                    }
                    channel.wait(left)?;
                }
            }
        }
    }
}
