//! Memory of the device's own: a soft NIC has none but the host's, and sets some of it aside.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

use roce::device::Device as _;
use roce::ibverbs::{IBV_DM_MASK_HANDLE, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};
use roce::memory::Buffer;
use roce::verbs::{Access, MrAttr};

use crate::call::{Failed, Result, code, pointer};
use crate::context::Context;
use crate::device::Device;
use crate::mr;
use crate::object::{Object, given, objects};
use crate::pd::{Pd, next_number};
use crate::share::DMS;

/// Size of a device's own memory.
pub(crate) const SIZE: usize = 1 << 20;

/// Alignment, as on devices that write words.
const WORD: usize = 4;

/// The strictest alignment that can be asked for: a page's.
const ALIGN_MAX: u32 = 12;

/// A piece of it.
#[repr(C)]
pub(crate) struct Dm {
    c: UnsafeCell<ibv_dm>,
    memory: Buffer,
    /// Device whose memory it takes; `None` for a piece that was imported.
    owner: Option<&'static Device>,
}

objects! { Dm: ibv_dm; }

/// Number of bytes of a device's memory that are in use.
#[derive(Debug, Default)]
pub(crate) struct Used(AtomicUsize);

impl Used {
    fn take(&self, length: usize) -> Result<()> {
        let more = |used: usize| used.checked_add(length).filter(|used| *used <= SIZE);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.map(drop).map_err(|_| Failed(libc::ENOMEM))
    }

    fn give(&self, length: usize) {
        self.0.fetch_sub(length, Ordering::Relaxed);
    }
}

impl Drop for Dm {
    fn drop(&mut self) {
        if let Some(device) = self.owner {
            // SAFETY: it was written when this was made, and programs leave it.
            DMS.remove(unsafe { (*self.c.get()).handle });
            device.dm_used.give(self.memory.len());
        }
    }
}

impl Dm {
    /// A piece of memory that exists already.
    pub(crate) fn new(
        context: *mut ibv_context,
        number: u32,
        memory: Buffer,
        owner: Option<&'static Device>,
    ) -> Self {
        let c = ibv_dm {
            context,
            memcpy_to_dm: Some(copy_to),
            memcpy_from_dm: Some(copy_from),
            comp_mask: IBV_DM_MASK_HANDLE,
            handle: number,
        };
        Self { c: UnsafeCell::new(c), memory, owner }
    }
}

/// Sets memory aside.
pub(crate) unsafe extern "C" fn alloc(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    pointer(|| {
        // Memory that a child sets aside is the child's, whichever process opened the device.
        // SAFETY: the program says that it is open.
        let device = unsafe { Context::inherited(context) }?.device;
        // SAFETY: the program hands it over.
        let ibv_alloc_dm_attr { length, log_align_req, comp_mask } = *unsafe { given(attr) }?;
        if comp_mask != 0 {
            return Err(Failed::EOPNOTSUPP);
        }
        if length == 0 || log_align_req > ALIGN_MAX {
            return Err(Failed::EINVAL);
        }
        let memory = Buffer::try_new(length).map_err(|_| Failed(libc::ENOMEM))?;
        device.dm_used.take(length)?;
        let number = next_number();
        DMS.add(number, (device, memory.clone()));
        Ok(Dm::new(context, number, memory, Some(device)).give())
    })
}

/// Gives it back. Regions of it keep it until they are gone.
pub(crate) unsafe extern "C" fn free(dm: *mut ibv_dm) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one, and does not need it any more.
        unsafe { Dm::take(dm) }.map(drop)
    })
}

/// Registers a part of it. Addresses in it count from zero.
pub(crate) unsafe extern "C" fn register(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program says that it is one.
        let domain = unsafe { Pd::live(pd) }?;
        // SAFETY: the program says that it is one.
        let memory = &unsafe { Dm::live(dm) }?.memory;
        let access = Access::from_user(access).ok_or(Failed::EINVAL)?;
        let offset = word(offset)?;
        if !access.contains(Access::ZERO_BASED) || access.contains(Access::ON_DEMAND) {
            return Err(Failed::EINVAL);
        }
        let region = memory.part(offset, length).map_err(|_| Failed::EINVAL)?;
        let attr = MrAttr { region, base: 0, access };
        let handle = domain.nic.register_region(domain.handle, attr)?;
        mr::give(pd, domain, std::ptr::null_mut(), length, Access::LOCAL_WRITE, handle)
    })
}

/// A number that must be one of words.
fn word(number: u64) -> Result<usize> {
    let number = usize::try_from(number).map_err(|_| Failed::EINVAL)?;
    if number.is_multiple_of(WORD) { Ok(number) } else { Err(Failed::EINVAL) }
}

/// The bytes of a program's that are copied, and where they go or come from.
unsafe fn copied<'a>(dm: *mut ibv_dm, offset: u64, length: usize) -> Result<(&'a Buffer, usize)> {
    // SAFETY: the caller vouches for it.
    let memory = &unsafe { Dm::live(dm) }?.memory;
    let offset = word(offset)?;
    word(length as u64)?;
    // Before anything of the program's is looked at.
    memory.part(offset, length).map_err(|_| Failed::EINVAL)?;
    Ok((memory, offset))
}

/// Copies bytes to it.
unsafe extern "C" fn copy_to(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let (memory, offset) = unsafe { copied(dm, offset, length) }?;
        if from.is_null() {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program has `length` bytes there, and leaves them meanwhile.
        let bytes = unsafe { slice::from_raw_parts(from.cast(), length) };
        memory.write(offset, bytes).map_err(|_| Failed::EINVAL)
    })
}

/// Copies bytes from it.
unsafe extern "C" fn copy_from(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let (memory, offset) = unsafe { copied(dm, offset, length) }?;
        if to.is_null() {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program has room for `length` bytes there, which nothing else uses meanwhile.
        let room = unsafe { slice::from_raw_parts_mut(to.cast(), length) };
        memory.read(offset, room).map_err(|_| Failed::EINVAL)
    })
}
