//! Functions of the C library in front of which this library stands: how the ones behind are found
//! and called.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_void;

/// A function of the C library behind one of this library's, found when the library is loaded, or
/// when it is first needed: a program may call before this library is initialized.
#[derive(Debug)]
pub(crate) struct Behind(&'static CStr, AtomicPtr<c_void>);

impl Behind {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self(name, AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the address, or null.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let found = self.1.load(Ordering::Relaxed);
        if found.is_null() { self.find() } else { found }
    }

    /// Whether it was found, without looking for it.
    #[cfg(test)]
    pub(crate) fn is_found(&self) -> bool {
        !self.1.load(Ordering::Relaxed).is_null()
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: the name is a C string.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.0.as_ptr()) };
        if found.is_null() {
            // A program that is linked with librdmacm alone has this library behind the C library.
            // SAFETY: as above.
            let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, self.0.as_ptr()) };
            if object_of(first) != object_of((&raw const OWN).cast_mut().cast()) {
                found = first;
            }
        }
        self.1.store(found, Ordering::Relaxed);
        found
    }
}

/// A variable of this library, whose address identifies it.
static OWN: u8 = 0;

/// Returns the start of the object that has an address; null if none has.
fn object_of(address: *mut c_void) -> *mut c_void {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: there is room for an answer.
    let is_found = unsafe { libc::dladdr(address, found.as_mut_ptr()) } != 0;
    // SAFETY: it was zeros before, for all of which there is a value.
    if is_found { unsafe { found.assume_init() }.dli_fbase } else { ptr::null_mut() }
}

/// Calls the function behind one of these, which has the same type; without one, the call fails
/// with this value.
macro_rules! call_behind {
    ($behind:expr, fn($($type:ty),* $(; $variadic:tt)?) -> $result:ty, ($($argument:expr),*), $failure:expr) => {{
        let address = $behind.address();
        if address.is_null() {
            $crate::call::set_errno(libc::ENOSYS);
            $failure
        } else {
            type Function = unsafe extern "C-unwind" fn($($type),* $(, $variadic)?) -> $result;
            // SAFETY: the C library's function of this name has this type.
            let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(address) };
            // SAFETY: the arguments are the caller's.
            unsafe { function($($argument),*) }
        }
    }};
}

pub(crate) use call_behind;
