//! Memory regions.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use roce::device::Device as _;
use roce::ibverbs::{
    IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, IBV_REREG_MR_CHANGE_ACCESS,
    IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION, IBV_REREG_MR_ERR_CMD,
    IBV_REREG_MR_ERR_INPUT, IBV_REREG_MR_FLAGS_SUPPORTED, ibv_mr, ibv_pd, ibv_sge,
};
use roce::memory::Region;
use roce::nic::SoftNic;
use roce::verbs::{Access, LKey, MrAttr, MrHandle, Sge};

use crate::call::{Failed, Result, code, pointer, set_errno};
use crate::context::Context;
use crate::object::{Object, objects};
use crate::pd::{Pd, next_number};
use crate::share::MRS;

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    c: UnsafeCell<ibv_mr>,
    nic: Arc<SoftNic>,
    handle: MrHandle,
    /// The rights for which its memory was looked at. What has no memory of the program's counts as
    /// writable.
    access: AtomicU32,
    /// Whether other contexts find it by its number for as long as this is there.
    is_shared: bool,
}

impl Drop for Mr {
    fn drop(&mut self) {
        if self.is_shared {
            MRS.remove(self.number());
        }
    }
}

objects! { Mr: ibv_mr; }

/// Memory that a program wants registered.
struct Wanted {
    addr: *mut c_void,
    length: usize,
    /// The address that stands for the first byte.
    iova: u64,
    access: Access,
}

impl Wanted {
    /// # Safety
    ///
    /// No Rust reference claims to be the only one to the memory.
    unsafe fn new(addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> Result<Self> {
        let access = Access::from_user(access).ok_or(Failed::EINVAL)?;
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        Ok(Self { addr, length, iova, access })
    }

    /// The memory as something to register. What cannot be accessed with the rights that are asked
    /// for is refused now, as a kernel does that pins it; memory on demand is looked at when it is
    /// used.
    fn region(&self) -> Result<Region> {
        // SAFETY: the program's memory, to which this library has no reference.
        let region = unsafe { Region::foreign(self.addr.cast(), self.length) };
        if self.access.contains(Access::ON_DEMAND) {
            return Ok(region);
        }
        self.addr.addr().checked_add(self.length).ok_or(Failed::EINVAL)?;
        let brought_in = region.bring_in(0, self.length, needs_writable(self.access));
        brought_in.map_err(|_| Failed(libc::EFAULT))?;
        Ok(region)
    }

    fn attr(&self) -> Result<MrAttr> {
        Ok(MrAttr { region: self.region()?, base: self.iova, access: self.access })
    }
}

/// Whether memory that is registered with these rights must be writable: the kernel's
/// `ib_access_writable`.
fn needs_writable(access: Access) -> bool {
    let writing =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::MW_BIND;
    access.intersects(writing)
}

/// Registers memory.
unsafe fn register(pd: *mut ibv_pd, wanted: Result<Wanted>) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program says that it is one.
        let domain = unsafe { Pd::live(pd) }?;
        let wanted = wanted?;
        let handle = domain.nic.register_region(domain.handle, wanted.attr()?)?;
        give(pd, domain, wanted.addr, wanted.length, wanted.access, handle)
    })
}

impl Mr {
    /// A region that the NIC has.
    pub(crate) fn new(
        pd: *mut ibv_pd,
        domain: &Pd,
        addr: *mut c_void,
        length: usize,
        access: Access,
        handle: MrHandle,
        number: u32,
    ) -> Self {
        let c = UnsafeCell::new(ibv_mr {
            context: domain.context(),
            pd,
            addr,
            length,
            handle: number,
            lkey: handle.lkey().get(),
            rkey: handle.rkey().get(),
        });
        let (nic, access) = (Arc::clone(&domain.nic), AtomicU32::new(access.bits()));
        Self { c, nic, handle, access, is_shared: false }
    }

    fn number(&self) -> u32 {
        // SAFETY: it was written when this was made, and programs leave it.
        unsafe { (*self.c.get()).handle }
    }
}

/// Hands a region to a program, which may ask for it by its number.
pub(crate) fn give(
    pd: *mut ibv_pd,
    domain: &Pd,
    addr: *mut c_void,
    length: usize,
    access: Access,
    handle: MrHandle,
) -> Result<*mut ibv_mr> {
    let number = next_number();
    // SAFETY: it was open when the domain was made, and is until that is destroyed.
    let open = unsafe { Context::of(domain.context()) }?;
    MRS.add(number, (open.device, handle, length));
    let mut made = Mr::new(pd, domain, addr, length, access, handle, number);
    made.is_shared = true;
    Ok(made.give())
}

/// Registers memory under its own address.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the program keeps the memory.
    let wanted = unsafe { Wanted::new(addr, length, addr.addr() as u64, access.cast_unsigned()) };
    // SAFETY: as this function's.
    unsafe { register(pd, wanted) }
}

/// Registers memory under another address.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: as this function's.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

/// Registers memory under another address, with rights that a device may ignore.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the program keeps the memory.
    let wanted = unsafe { Wanted::new(addr, length, iova, access) };
    // SAFETY: as this function's.
    unsafe { register(pd, wanted) }
}

/// Makes a region of no memory: what is written to it vanishes, what is read from it is zero.
pub(crate) unsafe extern "C" fn alloc_null(pd: *mut ibv_pd) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program says that it is one.
        let domain = unsafe { Pd::live(pd) }?;
        let length = usize::MAX;
        let access = Access::LOCAL_WRITE;
        let attr = MrAttr { region: Region::null(length), base: 0, access };
        let handle = domain.nic.register_region(domain.handle, attr)?;
        give(pd, domain, ptr::null_mut(), length, access, handle)
    })
}

/// A program says that it will soon need memory that is brought in on demand. If it wants to know,
/// it waits.
pub(crate) unsafe extern "C" fn advise(
    pd: *mut ibv_pd,
    advice: c_uint,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let domain = unsafe { Pd::live(pd) }?;
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 {
            return Err(Failed::EINVAL);
        }
        let write = match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH | IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => false,
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => true,
            _ => return Err(Failed::EOPNOTSUPP),
        };
        if count == 0 || list.is_null() {
            return Err(Failed::EINVAL);
        }
        for at in 0..count as usize {
            // SAFETY: the program hands over as many as it says, at any address.
            let sge = unsafe { list.wrapping_add(at).read_unaligned() };
            let sge = Sge { addr: sge.addr, length: sge.length, lkey: LKey::new(sge.lkey) };
            let found = domain.nic.prefetch(domain.handle, sge, write);
            let found = found.ok_or(Failed(libc::ENOENT))?;
            // Without a fault nothing is brought in; and no caller waits for advice that is not
            // flushed.
            let is_reported = flags & IBV_ADVISE_MR_FLAG_FLUSH != 0
                && advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT;
            if found.is_err() && is_reported {
                return Err(Failed(libc::EFAULT));
            }
        }
        Ok(())
    })
}

/// Forgets a region.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        let region = unsafe { Mr::to_destroy(mr) }?;
        region.nic.deregister(region.handle)?;
        MRS.remove(region.number());
        // SAFETY: and that it does not need it any more.
        unsafe { Mr::take(mr) }.map(drop)
    })
}

/// Changes a region: its memory, its domain, its rights, as the flags say.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let mut failure = IBV_REREG_MR_ERR_INPUT;
    let done = code(|| {
        // SAFETY: the program says that it is one.
        let region = unsafe { Mr::live(mr) }?;
        let has = |flag: c_int| flags & flag != 0;
        if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 || flags == 0 {
            return Err(Failed::EINVAL);
        }
        let moved = has(IBV_REREG_MR_CHANGE_TRANSLATION);
        if moved && (addr.is_null() || length == 0) {
            return Err(Failed::EINVAL);
        }
        let rights = Access::from_user(access.cast_unsigned()).ok_or(Failed::EINVAL);
        let rights = has(IBV_REREG_MR_CHANGE_ACCESS).then_some(rights).transpose()?;
        // SAFETY: the program says that it is one, if it is asked for.
        let domain = has(IBV_REREG_MR_CHANGE_PD).then(|| unsafe { Pd::live(pd) }).transpose()?;
        let old = Access::from_bits_retain(region.access.load(Ordering::Relaxed));
        let access = rights.unwrap_or(old);
        let wanted = Wanted { addr, length, iova: addr.addr() as u64, access };
        let memory = moved.then(|| wanted.attr()).transpose()?;
        if !moved && needs_writable(access) && !needs_writable(old) {
            // The memory was looked at for reading only.
            // SAFETY: programs only read it, and not while they change it.
            let ibv_mr { addr, length, .. } = unsafe { region.c.get().read() };
            Wanted { addr, length, iova: 0, access: access | (old & Access::ON_DEMAND) }
                .region()?;
        }
        failure = IBV_REREG_MR_ERR_CMD;
        region.nic.reregister(region.handle, domain.map(|pd| pd.handle), memory, rights)?;
        region.access.store(access.bits(), Ordering::Relaxed);
        let c = region.c.get();
        // SAFETY: programs only read it, and not while they change it.
        let mut new = unsafe { c.read() };
        if moved {
            (new.addr, new.length) = (addr, length);
        }
        if domain.is_some() {
            new.pd = pd;
        }
        // SAFETY: as above.
        unsafe { c.write(new) };
        Ok(())
    });
    if done == 0 {
        return 0;
    }
    set_errno(done);
    failure
}
