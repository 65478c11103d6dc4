//! Completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use roce::device::Device as _;
use roce::ibverbs::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_wc};
use roce::nic::SoftNic;
use roce::verbs::{CqHandle, Notify, Wc};

use crate::call::{Failed, Result, code, fast_code, fast_number, pointer};
use crate::channel::Channel;
use crate::context::Context;
use crate::cq_ex::Poll;
use crate::events::{Acks, Routes};
use crate::object::{Object, objects};
use crate::pd::next_number;

/// Number of completions that are moved at a time.
const BATCH: usize = 16;

/// A completion queue.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) c: UnsafeCell<ibv_cq_ex>,
    pub(crate) nic: Arc<SoftNic>,
    pub(crate) handle: CqHandle,
    routes: Arc<Routes>,
    channel: Option<&'static Channel>,
    /// Events that its channel told.
    pub(crate) completions: Acks,
    /// Number of its asynchronous events that the context reported.
    pub(crate) events: Acks,
    /// State of reading completions field by field.
    pub(crate) poll: Poll,
}

objects! { Cq: ibv_cq_ex; }

impl Cq {
    /// Makes a completion queue for at least `wanted` completions, which `readers` read if they are
    /// read field by field.
    ///
    /// # Safety
    ///
    /// The context must be open, and the channel null or one.
    pub(crate) unsafe fn create(
        context: *mut ibv_context,
        wanted: usize,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: u32,
        readers: &ibv_cq_ex,
    ) -> Result<*mut ibv_cq_ex> {
        // SAFETY: the caller vouches for it.
        let open = unsafe { Context::of(context) }?;
        // SAFETY: it was written when the device was opened, and programs leave it.
        let vectors = unsafe { (*context).num_comp_vectors };
        if vector >= vectors.cast_unsigned() {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the caller vouches for it; it stays until no completion queue tells there.
        let notified = (!channel.is_null())
            .then(|| unsafe { Channel::live_in(channel, context) })
            .transpose()?;
        let handle = open.nic.create_cq(wanted)?;
        let c = ibv_cq_ex {
            context,
            channel,
            cq_context,
            handle: next_number(),
            cqe: c_int::try_from(wanted).unwrap_or(c_int::MAX),
            ..*readers
        };
        let routes = Arc::clone(&open.device.routes);
        let cq = Self {
            c: UnsafeCell::new(c),
            nic: Arc::clone(&open.nic),
            handle,
            routes: Arc::clone(&routes),
            channel: notified,
            completions: Acks::default(),
            events: Acks::default(),
            poll: Poll::default(),
        };
        let given = cq.give();
        routes.add_cq(handle, given.cast(), &open.events);
        if let Some(channel) = notified {
            channel.users.fetch_add(1, Ordering::Relaxed);
            routes.set_channel(handle, &channel.events);
        }
        Ok(given)
    }

    /// Returns the context that the program gave it.
    pub(crate) fn program_context(&self) -> *mut c_void {
        // SAFETY: a pointer that a program may change, and not while it waits for it.
        unsafe { (*self.c.get()).cq_context }
    }
}

/// Returns the number of completions that a queue shall hold, as C counts.
pub(crate) fn size(cqe: c_int) -> Result<usize> {
    usize::try_from(cqe).ok().filter(|cqe| *cqe > 0).ok_or(Failed::EINVAL)
}

/// Makes a completion queue.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    pointer(|| {
        let vector = u32::try_from(vector).map_err(|_| Failed::EINVAL)?;
        let none = ibv_cq_ex::zeroed();
        // SAFETY: the program says that the context is open, and the channel one.
        let cq = unsafe { Cq::create(context, size(cqe)?, cq_context, channel, vector, &none) }?;
        Ok(cq.cast())
    })
}

/// Gives a completion queue another size.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let queue = unsafe { Cq::live(cq.cast()) }?;
        queue.nic.resize_cq(queue.handle, size(cqe)?)?;
        // SAFETY: programs only read it, and not while they change it.
        unsafe { (*queue.c.get()).cqe = cqe };
        Ok(())
    })
}

/// Destroys a completion queue at which nothing completes, after all its events were acknowledged.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let queue = unsafe { Cq::to_destroy(cq.cast()) }?;
        queue.nic.destroy_cq(queue.handle)?;
        queue.routes.remove_cq(queue.handle);
        queue.completions.wait();
        queue.events.wait();
        if let Some(channel) = queue.channel {
            channel.users.fetch_sub(1, Ordering::Release);
        }
        // SAFETY: and that it does not need it any more.
        unsafe { Cq::take(cq.cast()) }.map(drop)
    })
}

/// Moves completions to a program, oldest first; how many.
pub(crate) unsafe extern "C" fn poll(cq: *mut ibv_cq, count: c_int, to: *mut ibv_wc) -> c_int {
    fast_number(|| {
        // SAFETY: the program says that it is one.
        let queue = unsafe { Cq::of(cq.cast()) }?;
        let wanted = usize::try_from(count).map_err(|_| Failed::EINVAL)?;
        let mut moved = 0;
        let mut batch = [Wc::default(); BATCH];
        while moved < wanted {
            let room = BATCH.min(wanted - moved);
            let got = queue.nic.poll_cq(queue.handle, &mut batch[..room]);
            for (place, wc) in batch[..got].iter().enumerate() {
                let to = to.wrapping_add(moved + place);
                // SAFETY: the program has room for `count` of them.
                unsafe { ptr::write(to, (*wc).into()) };
            }
            moved += got;
            if got < room {
                break;
            }
        }
        if moved == 0 && queue.nic.has_failed() {
            return Err(Failed(libc::EIO));
        }
        Ok(c_int::try_from(moved).unwrap_or(c_int::MAX))
    })
}

/// Asks for an event when a completion comes.
pub(crate) unsafe extern "C" fn request_notify(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    fast_code(|| {
        // SAFETY: the program says that it is one.
        let queue = unsafe { Cq::of(cq.cast()) }?;
        let notify = if solicited_only == 0 { Notify::Next } else { Notify::Solicited };
        queue.nic.request_notify(queue.handle, notify);
        if queue.nic.has_failed() { Err(Failed(libc::EIO)) } else { Ok(()) }
    })
}
