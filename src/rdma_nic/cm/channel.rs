//! Event channels of `librdmacm`.
#![allow(unsafe_code, reason = "calls of librdmacm")]

use core::ptr::NonNull;
use std::os::fd::{AsFd, BorrowedFd};

use super::super::errors::last_errno;
use super::super::events::never_block;
use super::id::CallError;
use super::library::CmLibrary;
use crate::ibverbs::rdma_event_channel;
use crate::verbs::Errno;

/// An event channel. Its descriptor is readable while an event waits; taking one never blocks.
#[derive(Debug)]
pub(super) struct EventChannel {
    library: &'static CmLibrary,
    at: NonNull<rdma_event_channel>,
}

// SAFETY: a channel of `librdmacm` may be used from any thread, and by many at a time.
unsafe impl Send for EventChannel {}

// SAFETY: as above.
unsafe impl Sync for EventChannel {}

impl EventChannel {
    pub(super) fn create(library: &'static CmLibrary) -> Result<Self, CallError> {
        const CALL: &str = "rdma_create_event_channel";
        // SAFETY: it takes nothing, and gives a channel or null.
        let at = unsafe { (library.create_event_channel)() };
        let at = NonNull::new(at).ok_or_else(|| CallError { call: CALL, errno: last_errno() })?;
        let channel = Self { library, at };
        never_block(channel.as_fd()).map_err(|error| CallError {
            call: CALL,
            errno: error.raw_os_error().map_or(Errno::EINVAL, Errno),
        })?;
        Ok(channel)
    }

    /// Returns the pointer to the channel, valid as long as `self`.
    pub(super) fn at(&self) -> *mut rdma_event_channel {
        self.at.as_ptr()
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives, and its descriptor never changes.
        let fd = unsafe { (*self.at()).fd };
        // SAFETY: the descriptor is open as long as the channel lives, which is as long as `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: ids on it hold it, so there is none; it is destroyed this once.
        unsafe {
            (self.library.destroy_event_channel)(self.at());
        }
    }
}
