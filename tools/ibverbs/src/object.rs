//! Objects to which a program holds pointers.
//!
//! C knows the beginning of each object and may read it, and write some of it, at any time. So what
//! C knows lies in an `UnsafeCell`, of which no reference is ever formed; the rest is this
//! library's, and shared by threads as Rust has it.

use std::ptr;

use roce::ibverbs::{
    ibv_ah, ibv_comp_channel, ibv_context, ibv_cq_ex, ibv_device, ibv_dm, ibv_flow, ibv_mr, ibv_mw,
    ibv_pd, ibv_qp_ex, ibv_rwq_ind_table, ibv_srq, ibv_td, ibv_wq, ibv_xrcd,
};

use crate::call::{Failed, Result};
use crate::fork::Owner;
use crate::registry;

/// An object as it lies in memory: C knows where it begins, and not that something follows.
#[repr(C)]
struct Held<T> {
    object: T,
    /// Process that it belongs to.
    owner: Owner,
    /// Identity that C was told, and must not have changed.
    identity: Identity,
}

/// Drops an object whose device is closed, and leaves its memory: every call with it is refused.
///
/// # Safety
///
/// There must be a `Held<T>` at this address that was not dropped and that nothing uses.
unsafe fn drop_held<T>(address: usize) {
    let held: *mut Held<T> = ptr::with_exposed_provenance_mut(address);
    // SAFETY: the caller vouches for it.
    unsafe { (*held).owner.disown() };
    // SAFETY: the caller vouches for it.
    let object = unsafe { &raw mut (*held).object };
    // SAFETY: the caller vouches for it; from now on nothing but its owner is looked at.
    unsafe { ptr::drop_in_place(object) };
}

/// Identity of an object for a kernel: the open device that it is of, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    context: *mut ibv_context,
    number: u32,
}

/// A structure of C that says by what a kernel would know the object.
pub(crate) trait Identified {
    /// Reads it.
    ///
    /// # Safety
    ///
    /// `held` must point to such a structure.
    unsafe fn identity(held: *const Self) -> Identity;
}

/// Declares where structures of C say it. Only these fields are read: C may be writing others.
macro_rules! identified {
    ($($c:ident: $($context:ident).+, $($number:ident).+;)*) => {
        $(impl Identified for $c {
            unsafe fn identity(held: *const Self) -> Identity {
                // SAFETY: the caller vouches for it.
                let context = unsafe { (*held).$($context).+ };
                // SAFETY: as above.
                let number = unsafe { (*held).$($number).+ };
                Identity { context, number: u32::from_ne_bytes(number.to_ne_bytes()) }
            }
        })*
    };
}

identified! {
    ibv_pd: context, handle;
    ibv_mr: context, handle;
    ibv_mw: context, handle;
    ibv_dm: context, handle;
    ibv_ah: context, handle;
    ibv_cq_ex: context, handle;
    ibv_qp_ex: qp_base.context, qp_base.handle;
    ibv_srq: context, handle;
    ibv_wq: context, handle;
    ibv_flow: context, handle;
    ibv_rwq_ind_table: context, ind_tbl_handle;
    ibv_comp_channel: context, fd;
}

/// Declares those that have no number.
macro_rules! unnumbered {
    ($($c:ident)*) => {
        $(impl Identified for $c {
            unsafe fn identity(held: *const Self) -> Identity {
                // SAFETY: the caller vouches for it.
                Identity { context: unsafe { (*held).context }, number: 0 }
            }
        })*
    };
}

unnumbered! { ibv_xrcd ibv_td }

impl Identified for ibv_device {
    unsafe fn identity(_: *const Self) -> Identity {
        Identity { context: ptr::null_mut(), number: 0 }
    }
}

/// An object whose beginning C knows as `C`.
///
/// # Safety
///
/// It must be `repr(C)` and begin with an `UnsafeCell<C>`.
pub(crate) unsafe trait Object: Sized + 'static {
    /// Structure of C.
    type C: Identified;

    /// The object, for C to hold. It is there until it is [taken](Self::take).
    fn give(self) -> *mut Self::C {
        let given = self.keep();
        // SAFETY: it was just made.
        let Identity { context, .. } = unsafe { Self::C::identity(given) };
        registry::add_to::<Self, _>(context, given, drop_held::<Self>);
        given
    }

    /// The object, for C to look at for ever.
    fn keep(self) -> *mut Self::C {
        let owner = Owner::current();
        // SAFETY: it begins with what C knows, as its declaration says.
        let identity = unsafe { Self::C::identity((&raw const self).cast()) };
        Box::into_raw(Box::new(Held { object: self, owner, identity })).cast()
    }

    /// The object that C holds, for verbs off the data path: what is none of this type, and what C
    /// has changed to be another's, fails with `EINVAL`.
    ///
    /// # Safety
    ///
    /// No other thread may destroy it meanwhile.
    unsafe fn live<'a>(held: *const Self::C) -> Result<&'a Self> {
        registry::check::<Self, _>(held)?;
        // SAFETY: it is there, and of this type.
        let made = unsafe { (*held.cast::<Held<Self>>()).identity };
        // SAFETY: as above.
        if made != unsafe { Self::C::identity(held) } {
            return Err(Failed::EINVAL);
        }
        // SAFETY: as above.
        unsafe { Self::of(held) }
    }

    /// Returns the object, which must be of this open device.
    ///
    /// # Safety
    ///
    /// As for [`live`](Self::live).
    unsafe fn live_in<'a>(held: *const Self::C, context: *const ibv_context) -> Result<&'a Self> {
        // SAFETY: the caller vouches for it.
        let object = unsafe { Self::live(held) }?;
        // SAFETY: it is there.
        let Identity { context: own, .. } = unsafe { Self::C::identity(held) };
        if own.cast_const() == context { Ok(object) } else { Err(Failed::EINVAL) }
    }

    /// Returns the object for verbs that destroy it, which fail as a kernel that knows no such
    /// object: with `ENOENT`.
    ///
    /// # Safety
    ///
    /// As for [`live`](Self::live).
    unsafe fn to_destroy<'a>(held: *const Self::C) -> Result<&'a Self> {
        let unknown = |failed| if failed == Failed::EINVAL { Failed::ENOENT } else { failed };
        // SAFETY: the caller vouches for it.
        unsafe { Self::live(held) }.map_err(unknown)
    }

    /// The object that C holds, if it is this process's.
    ///
    /// # Safety
    ///
    /// `held` must be null, or come from [`give`](Self::give) and not have been taken.
    #[inline]
    unsafe fn of<'a>(held: *const Self::C) -> Result<&'a Self> {
        // SAFETY: the caller vouches for it, and what C may write lies in a cell.
        let held = unsafe { held.cast::<Held<Self>>().as_ref() }.ok_or(Failed::EINVAL)?;
        held.owner.check()?;
        Ok(&held.object)
    }

    /// The object that C holds, even if it is a parent's: only what never changes of it may be
    /// used.
    ///
    /// # Safety
    ///
    /// As for [`of`](Self::of).
    unsafe fn inherited<'a>(held: *const Self::C) -> Result<&'a Self> {
        // SAFETY: the caller vouches for it, and what C may write lies in a cell.
        unsafe { held.cast::<Self>().as_ref() }.ok_or(Failed::EINVAL)
    }

    /// Takes the object back, once: fails as [`to_destroy`](Self::to_destroy).
    ///
    /// # Safety
    ///
    /// Nothing may use it any more.
    unsafe fn take(held: *mut Self::C) -> Result<Self> {
        // SAFETY: the caller vouches for it.
        unsafe { Self::to_destroy(held) }?;
        registry::remove::<Self, _>(held)?;
        // SAFETY: it was there, this is the only one to take it, and it was made as such a box.
        Ok(unsafe { Box::from_raw(held.cast::<Held<Self>>()) }.object)
    }
}

/// Returns a structure that a program passed to be read.
///
/// # Safety
///
/// `from` must be null, or point to what it says for as long as it is used.
#[inline]
pub(crate) unsafe fn given<'a, T>(from: *const T) -> Result<&'a T> {
    // SAFETY: the caller vouches for it.
    unsafe { from.as_ref() }.ok_or(Failed::EINVAL)
}

/// Writes where a program wants an answer.
///
/// # Safety
///
/// `to` must be null, or have room for it.
#[inline]
pub(crate) unsafe fn answer<T>(to: *mut T, value: T) -> Result<()> {
    if to.is_null() {
        return Err(Failed::EINVAL);
    }
    // SAFETY: the caller vouches for it.
    unsafe { to.write(value) };
    Ok(())
}

/// Declares what begins with a structure of C.
macro_rules! objects {
    ($($object:ident: $c:ty;)*) => {
        $(
            // SAFETY: its declaration says so.
            unsafe impl $crate::object::Object for $object {
                type C = $c;
            }
            // The beginning that C knows must be at the beginning.
            const _: () = assert!(core::mem::offset_of!($object, c) == 0);
        )*
    };
}

pub(crate) use objects;
