//! Events that a program can wait for: completions by a channel, and asynchronous events.
#![allow(unsafe_code, reason = "calls of libibverbs")]

use core::ffi::{c_int, c_void};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::context::Context;
use super::errors::last_errno;
use super::object::Made;
use crate::device::Events;
use crate::ibverbs::{ibv_async_event, ibv_comp_channel};
use crate::verbs::{
    AsyncEvent, CqHandle, DeviceTag, Errno, EventSubject, EventType, Id, QpHandle, SrqHandle,
};

/// An id as C carries it beside an object. It is never followed.
pub(super) fn to_c(id: Id) -> *mut c_void {
    // Zero is for objects without an id.
    core::ptr::without_provenance_mut((id.index() as usize).wrapping_add(1))
}

/// The id that C carried beside an object of this device, if it is one.
fn from_c(context: *mut c_void, device: DeviceTag) -> Option<Id> {
    u32::try_from(context.addr().checked_sub(1)?).ok().map(|index| Id::new(device, index))
}

/// Sets a descriptor up so that a second reader does not block on an event that the first took.
pub(super) fn never_block(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::ioctl_fionbio(fd, true)?)
}

/// Waits until `take` has something, or until nothing came of a descriptor for the timeout.
fn wait<T>(
    fd: BorrowedFd<'_>,
    timeout: Option<Duration>,
    take: impl Fn() -> io::Result<Option<T>>,
) -> io::Result<Option<T>> {
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    loop {
        if let Some(taken) = take()? {
            return Ok(Some(taken));
        }
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return Ok(None),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a call got something; that there is nothing yet is no error.
fn got(context: &Context, code: c_int) -> io::Result<bool> {
    if code == 0 {
        return Ok(true);
    }
    let errno = last_errno();
    let error = io::Error::from_raw_os_error(errno.0);
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(false),
        _ => {
            context.set_broken(errno);
            Err(error)
        }
    }
}

/// The events of completion queues.
#[derive(Debug)]
pub(super) struct Completions(pub(super) Arc<Made<ibv_comp_channel>>);

impl Completions {
    fn take(&self) -> io::Result<Option<CqHandle>> {
        let context = self.0.context();
        let (mut cq, mut name) = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: the channel lives, and there is room for both answers.
        let code =
            unsafe { (context.library.get_cq_event)(self.0.at(), &raw mut cq, &raw mut name) };
        if !got(context, code)? {
            return Ok(None);
        }
        // SAFETY: the queue is there until its event is acknowledged, which is here: destroying it
        // waits for that.
        unsafe {
            (context.library.ack_cq_events)(cq, 1);
        }
        Ok(from_c(name, context.tag).map(CqHandle))
    }
}

impl Events<CqHandle> for Completions {
    fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<CqHandle>> {
        wait(self.as_fd(), timeout, || self.take())
    }
}

impl AsFd for Completions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives.
        let fd = unsafe { (*self.0.at()).fd };
        // SAFETY: the descriptor is open as long as the channel lives, which is as long as `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// Asynchronous events of a device.
#[derive(Debug)]
pub(super) struct Asynchronous(pub(super) Arc<Context>);

impl Asynchronous {
    /// The next event that can be told. Unknown ones, and those of objects that are gone, are
    /// skipped.
    fn take(&self) -> io::Result<Option<AsyncEvent>> {
        loop {
            let mut event = ibv_async_event::zeroed();
            // SAFETY: the device is open, and there is room for the answer.
            let code = unsafe { (self.0.library.get_async_event)(self.0.at(), &raw mut event) };
            if !got(&self.0, code)? {
                return Ok(None);
            }
            let told = EventType::from_code(event.event_type)
                .and_then(|kind| tell(kind, &event, self.0.tag));
            // SAFETY: it is the event that was just got, for the first time.
            unsafe {
                (self.0.library.ack_async_event)(&raw mut event);
            }
            if let Some(AsyncEvent::Device(EventType::DeviceFatal)) = told {
                self.0.set_broken(Errno(libc::EIO));
            }
            if told.is_some() {
                return Ok(told);
            }
        }
    }
}

/// An event that is not acknowledged yet, in words.
fn tell(kind: EventType, event: &ibv_async_event, device: DeviceTag) -> Option<AsyncEvent> {
    /// The name beside the object that an event is about.
    macro_rules! name {
        ($element:ident, $field:ident) => {{
            // SAFETY: an event of this kind is about such an object.
            let object = unsafe { event.element.$element };
            // SAFETY: an object is there until its events are acknowledged: destroying it waits for
            // that.
            from_c(unsafe { (*object).$field }, device)?
        }};
    }
    Some(match kind.subject() {
        EventSubject::Cq => AsyncEvent::Cq(kind, CqHandle(name!(cq, cq_context))),
        EventSubject::Qp => AsyncEvent::Qp(kind, QpHandle(name!(qp, qp_context))),
        EventSubject::Srq => AsyncEvent::Srq(kind, SrqHandle(name!(srq, srq_context))),
        EventSubject::Port => AsyncEvent::Port(kind),
        EventSubject::Device => AsyncEvent::Device(kind),
        // There are none of these here.
        EventSubject::Wq => return None,
    })
}

impl Events<AsyncEvent> for Asynchronous {
    fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<AsyncEvent>> {
        wait(self.as_fd(), timeout, || self.take())
    }
}

impl AsFd for Asynchronous {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.async_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_way_through_c() {
        let device = DeviceTag::from_random(7);
        for id in [0, 7, u32::MAX].map(|index| Id::new(device, index)) {
            assert_eq!(from_c(to_c(id), device), Some(id));
        }
        assert_eq!(from_c(core::ptr::null_mut(), device), None);
        assert_eq!(from_c(core::ptr::without_provenance_mut(usize::MAX), device), None);
    }
}
