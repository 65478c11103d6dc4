//! Protection domains, and the domains of threads.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use roce::device::Device as _;
use roce::ibverbs::{ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr};
use roce::nic::SoftNic;
use roce::verbs::PdHandle;

use crate::call::{Failed, Result, code, pointer};
use crate::context::Context;
use crate::object::{Object, given, objects};
use crate::share::PDS;

/// A protection domain, or a parent domain, which is another name for one.
#[repr(C)]
pub(crate) struct Pd {
    c: UnsafeCell<ibv_pd>,
    pub(crate) nic: Arc<SoftNic>,
    pub(crate) handle: PdHandle,
    /// The domain that this is another name for.
    parent_of: Option<&'static Self>,
    /// Number of other protection domains that stand for it.
    names: AtomicU32,
    /// Whether other contexts find it by its number for as long as this is there.
    is_shared: bool,
}

impl Drop for Pd {
    fn drop(&mut self) {
        if self.is_shared {
            PDS.remove(self.number());
        }
    }
}

/// A thread domain: a promise that is taken note of.
#[repr(C)]
pub(crate) struct Td {
    c: UnsafeCell<ibv_td>,
}

objects! {
    Pd: ibv_pd;
    Td: ibv_td;
}

impl Pd {
    /// A domain that the NIC has already.
    pub(crate) fn imported(
        context: *mut ibv_context,
        open: &Context,
        number: u32,
        handle: PdHandle,
    ) -> Self {
        let c = UnsafeCell::new(ibv_pd { context, handle: number });
        let (nic, names) = (Arc::clone(&open.nic), AtomicU32::new(0));
        Self { c, nic, handle, parent_of: None, names, is_shared: false }
    }

    fn number(&self) -> u32 {
        // SAFETY: it was written when this was made, and programs leave it.
        unsafe { (*self.c.get()).handle }
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        // SAFETY: it was written when this was made, and programs leave it.
        unsafe { (*self.c.get()).context }
    }
}

/// A number for the next object, as the kernel gives one.
pub(crate) fn next_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Makes a protection domain.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: the program says that it is open.
        let open = unsafe { Context::of(context) }?;
        let handle = open.nic.create_pd()?;
        let number = next_number();
        PDS.add(number, (open.device, handle));
        let mut made = Pd::imported(context, open, number, handle);
        made.is_shared = true;
        Ok(made.give())
    })
}

/// Destroys a protection domain, or a parent domain.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let domain = unsafe { Pd::to_destroy(pd) }?;
        if domain.names.load(Ordering::Acquire) > 0 {
            return Err(Failed::EBUSY);
        }
        match domain.parent_of {
            Some(named) => drop(named.names.fetch_sub(1, Ordering::Release)),
            None => {
                domain.nic.destroy_pd(domain.handle)?;
                PDS.remove(domain.number());
            }
        }
        // SAFETY: and that it does not need it any more.
        unsafe { Pd::take(pd) }.map(drop)
    })
}

/// Makes another name for a protection domain. Soft NICs take neither hints about threads nor
/// memory from a program.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: the program hands it over.
        let attr = unsafe { given(attr) }?;
        check_parent(attr)?;
        // SAFETY: the program says that it is one, and it is not destroyed before its names are.
        let named: &'static Pd = unsafe { Pd::live_in(attr.pd, context) }?;
        named.names.fetch_add(1, Ordering::Relaxed);
        let c = UnsafeCell::new(ibv_pd { context, handle: next_number() });
        let (nic, names) = (Arc::clone(&named.nic), AtomicU32::new(0));
        let (handle, parent_of) = (named.handle, Some(named));
        Ok(Pd { c, nic, handle, parent_of, names, is_shared: false }.give())
    })
}

fn check_parent(attr: &ibv_parent_domain_init_attr) -> Result<()> {
    use roce::ibverbs::{
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
    };
    let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    if attr.comp_mask & !known == 0 { Ok(()) } else { Err(Failed::EINVAL) }
}

/// Makes a thread domain.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    pointer(|| {
        // SAFETY: the program hands it over.
        if unsafe { given(attr) }?.comp_mask != 0 {
            return Err(Failed::EINVAL);
        }
        Ok(Td { c: UnsafeCell::new(ibv_td { context }) }.give())
    })
}

/// Destroys a thread domain.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: the program says that it is one, and does not need it any more.
    code(|| unsafe { Td::take(td) }.map(drop))
}
