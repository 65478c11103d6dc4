//! Completion channels.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use roce::ibverbs::{ibv_comp_channel, ibv_context, ibv_cq};

use crate::call::{Attempt, Failed, code, fast_quiet, pointer, waiting};
use crate::context::Context;
use crate::cq::Cq;
use crate::events::{AssertSend, Completions};
use crate::object::{Object, answer, objects};

/// A channel.
#[repr(C)]
pub(crate) struct Channel {
    c: UnsafeCell<ibv_comp_channel>,
    pub(crate) events: Arc<Completions>,
    /// Number of completion queues that use the channel.
    pub(crate) users: AtomicU32,
}

objects! { Channel: ibv_comp_channel; }

impl Channel {
    /// Drives the NIC for a while, unless the calling thread should rather sleep at once; returns
    /// whether there is an event.
    fn drive_until_event(&self) -> bool {
        // SAFETY: nothing writes it after the channel was made.
        let context = unsafe { (*self.c.get()).context };
        // SAFETY: the context stays as long as the channel.
        let context = unsafe { Context::of(context) };
        context.is_ok_and(|context| context.nic.drive_until(|| !self.events.is_empty()))
    }
}

/// Makes a channel.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    pointer(|| {
        // SAFETY: the program says that it is open.
        unsafe { Context::of(context) }?;
        let events = Arc::new(Completions::new()?);
        let c = ibv_comp_channel { context, fd: events.fd(), refcnt: 0 };
        Ok(Channel { c: UnsafeCell::new(c), events, users: AtomicU32::new(0) }.give())
    })
}

/// Destroys a channel at which no completion queue tells.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        if unsafe { Channel::to_destroy(channel) }?.users.load(Ordering::Acquire) > 0 {
            return Err(Failed::EBUSY);
        }
        // SAFETY: and that it does not need it any more.
        unsafe { Channel::take(channel) }.map(drop)
    })
}

/// The next completion queue that has what an event was asked for.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    waiting(|has_waited| {
        // SAFETY: the program says that it is one.
        let channel = unsafe { Channel::of(channel) }?;
        let take = || {
            channel.events.take(|AssertSend(cq)| {
                // SAFETY: it is there as long as the channel has an event of it, and cannot remove
                // that just now.
                if let Ok(queue) = unsafe { Cq::of(cq.cast()) } {
                    queue.completions.report();
                }
            })
        };
        let mut taken = take()?;
        if taken.is_err() && !has_waited && channel.drive_until_event() {
            taken = take()?;
        }
        let AssertSend(event) = match taken {
            Ok(event) => event,
            Err(fd) => return Ok(Attempt::Wait(fd)),
        };
        // SAFETY: it stays until this event is acknowledged.
        let queue = unsafe { Cq::of(event.cast()) }?;
        // SAFETY: the program has room for it.
        unsafe { answer(cq, event) }?;
        // SAFETY: the program has room for it.
        unsafe { answer(cq_context, queue.program_context()) }?;
        Ok(Attempt::Done)
    })
}

/// The program has dealt with `count` events of a completion queue.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    fast_quiet(|| {
        // SAFETY: the program says that it is one.
        unsafe { Cq::of(cq.cast()) }?.completions.acknowledge(count);
        Ok(())
    });
}
