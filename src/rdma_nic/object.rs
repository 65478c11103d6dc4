//! Objects of libibverbs that this module owns and destroys.
#![allow(unsafe_code, reason = "objects of libibverbs, held by pointers")]

use core::ffi::c_int;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use std::sync::Arc;

use super::context::{Context, extended, op};
use super::errors::{check, last_errno};
use super::timed::Timing;
use crate::ibverbs::{
    ibv_ah, ibv_comp_channel, ibv_cq, ibv_mr, ibv_mw, ibv_pd, ibv_qp, ibv_srq, ibv_xrcd,
};
use crate::memory::Region;
use crate::verbs::{Errno, LKey, MwType, QpCap, QpType};

/// A kind of object of C.
pub(super) trait Object: Sized {
    /// Objects and memory that must outlive this one: those that it was built on, and the memory
    /// that it registers.
    type Needs: Send + Sync;
    /// Facts about an object.
    type Facts: fmt::Debug + Send + Sync;

    /// Destroys an object with the function of C for its kind, and returns the function's result.
    ///
    /// # Safety
    ///
    /// This context must have made the object at `at`, and nothing may use it meanwhile or, if this
    /// succeeds, afterwards.
    unsafe fn destroy(context: &Context, at: *mut Self) -> c_int;
}

/// An object of C. It is destroyed when this is dropped; if the device refuses, it stays, and so
/// does all that it needs.
pub(super) struct Made<T: Object> {
    at: NonNull<T>,
    pub(super) facts: T::Facts,
    /// Other objects that must outlive this one, its open device among them.
    stays: ManuallyDrop<(T::Needs, Arc<Context>)>,
}

// SAFETY: the objects of `libibverbs` may be used from any thread, and by many at a time.
unsafe impl<T: Object> Send for Made<T> {}

// SAFETY: as above.
unsafe impl<T: Object> Sync for Made<T> {}

impl<T: Object> Made<T> {
    /// Takes over the object that a function of C just returned for this context. Null is the error
    /// that `errno` names.
    pub(super) fn new(
        context: &Arc<Context>,
        at: *mut T,
        facts: T::Facts,
        needs: T::Needs,
    ) -> Result<Self, Errno> {
        let at = NonNull::new(at).ok_or_else(last_errno)?;
        Ok(Self { at, facts, stays: ManuallyDrop::new((needs, Arc::clone(context))) })
    }

    /// Returns the pointer to the object. It stays there as long as this does.
    #[inline]
    pub(super) fn at(&self) -> *mut T {
        self.at.as_ptr()
    }

    /// The open device that it belongs to.
    #[inline]
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.stays.1
    }

    /// Returns the objects that it is built on.
    pub(super) fn needs(&self) -> &T::Needs {
        &self.stays.0
    }

    /// Destroys it, or gives it back if the device refuses.
    pub(super) fn destroy(self) -> Result<(), (Self, Errno)> {
        let mut this = ManuallyDrop::new(self);
        match this.try_destroy() {
            Ok(()) => {
                // SAFETY: `this` is never dropped, so its facts are dropped this once.
                unsafe {
                    core::ptr::drop_in_place(&raw mut this.facts);
                }
                Ok(())
            }
            Err(errno) => Err((ManuallyDrop::into_inner(this), errno)),
        }
    }

    /// Destroys the object and lets go of what it needed. It must not be used again if that
    /// succeeds.
    fn try_destroy(&mut self) -> Result<(), Errno> {
        // SAFETY: the object is this context's, and a `&mut` proves that nothing else has the
        // pointer.
        let code = unsafe { T::destroy(&self.stays.1, self.at.as_ptr()) };
        check(code)?;
        // SAFETY: neither of the two callers touches it afterwards, or comes here again.
        unsafe {
            ManuallyDrop::drop(&mut self.stays);
        }
        Ok(())
    }
}

impl<T: Object> Drop for Made<T> {
    fn drop(&mut self) {
        // If the device refuses, it may still use the object: all that the object needs stays
        // forever.
        let _ = self.try_destroy();
    }
}

impl<T: Object> fmt::Debug for Made<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Made")
            .field("at", &self.at)
            .field("facts", &self.facts)
            .finish_non_exhaustive()
    }
}

/// Declares for each kind of object what it needs, what is known of it, and which function destroys
/// it.
macro_rules! objects {
    ($($type:ident: $needs:ty, $facts:ty, |$context:ident| $function:expr;)*) => {
        $(impl Object for $type {
            type Needs = $needs;
            type Facts = $facts;

            unsafe fn destroy($context: &Context, at: *mut Self) -> c_int {
                let function: Option<unsafe extern "C" fn(*mut Self) -> c_int> = $function;
                // A device without the function keeps the object.
                let Some(function) = function else { return Errno::EOPNOTSUPP.0 };
                // SAFETY: the caller vouches for the pointer, and the function is the one for its
                // kind.
                unsafe { function(at) }
            }
        })*
    };
}

objects! {
    ibv_pd: (), (), |context| Some(context.library.dealloc_pd);
    ibv_mr: (Arc<Made<ibv_pd>>, Region), LKey, |context| Some(context.library.dereg_mr);
    ibv_mw: Arc<Made<ibv_pd>>, Window, |context| op!(context, dealloc_mw);
    ibv_comp_channel: (), (), |context| Some(context.library.destroy_comp_channel);
    ibv_cq: Option<Arc<Made<ibv_comp_channel>>>, Timing,
        |context| Some(context.library.destroy_cq);
    ibv_xrcd: (), (), |context| extended!(context, close_xrcd);
    ibv_srq: (Arc<Made<ibv_pd>>, Option<(Arc<Made<ibv_xrcd>>, Arc<Made<ibv_cq>>)>), Shared,
        |context| Some(context.library.destroy_srq);
    ibv_qp: QpNeeds, Pair, |context| Some(context.library.destroy_qp);
    ibv_ah: Arc<Made<ibv_pd>>, (), |context| Some(context.library.destroy_ah);
}

/// Facts about a memory window. The lock is held while its key in C is read or changed.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) kind: MwType,
    pub(super) key: std::sync::Mutex<u32>,
}

/// Facts about a shared receive queue.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) max_sge: u32,
    /// Number on the wire, for XRC.
    pub(super) number: u32,
}

/// Facts about a queue pair.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) kind: QpType,
    pub(super) cap: QpCap,
    pub(super) number: u32,
    /// Whether it takes its receives from a shared queue.
    pub(super) shares: bool,
}

/// Objects that a queue pair is built on.
pub(super) struct QpNeeds {
    pub(super) pd: Arc<Made<ibv_pd>>,
    pub(super) send_cq: Arc<Made<ibv_cq>>,
    pub(super) recv_cq: Arc<Made<ibv_cq>>,
    pub(super) srq: Option<Arc<Made<ibv_srq>>>,
    pub(super) xrcd: Option<Arc<Made<ibv_xrcd>>>,
}
