//! Domains of extended reliable connections.
//!
//! A domain belongs to a file, or to its creator alone: a caller in this process that opens one on
//! the same device by a descriptor of the same file gets the same.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::fs;
use std::os::unix::fs::OpenOptionsExt as _;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use roce::device::Device as _;
use roce::ibverbs::{
    IBV_XRCD_INIT_ATTR_FD, IBV_XRCD_INIT_ATTR_OFLAGS, ibv_context, ibv_xrcd, ibv_xrcd_init_attr,
};
use roce::nic::SoftNic;
use roce::verbs::{PdHandle, QpHandle, QpInitAttr, XrcdHandle};

use crate::call::{Failed, Result, code, pointer};
use crate::context::Context;
use crate::device::Device;
use crate::object::{Object, given, objects};
use crate::share::{Counted, File, file_of};

/// The descriptor of a domain that belongs to no file.
const NO_FILE: c_int = -1;

/// A domain, which one object stands for or several.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) handle: XrcdHandle,
    /// The receiving halves in it by their numbers, which may be opened again.
    pub(crate) receivers: Counted<u32, Receiver>,
    /// Holds the file that it belongs to, so that no other gets its number.
    _file: Option<fs::File>,
}

/// A queue pair that several objects may stand for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiver {
    pub(crate) handle: QpHandle,
    pub(crate) init: QpInitAttr,
    /// The protection domain that was made for it, and goes with it.
    pub(crate) own_pd: Option<PdHandle>,
}

/// Structure that a program holds of a domain.
#[repr(C)]
pub(crate) struct Xrcd {
    c: UnsafeCell<ibv_xrcd>,
    nic: Arc<SoftNic>,
    pub(crate) device: &'static Device,
    pub(crate) domain: Arc<Domain>,
    /// The file through which others find it.
    file: Option<File>,
    /// Whether the program has closed it.
    closed: AtomicBool,
}

impl Xrcd {
    /// One object less stands for the domain. The last one destroys it, unless something is still
    /// in it.
    fn close(&self) -> Result<()> {
        let destroy = || Ok(self.nic.destroy_xrcd(self.domain.handle)?);
        match &self.file {
            Some(file) => self.device.xrcds.close(file, destroy)?,
            None => destroy()?,
        }
        self.closed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Xrcd {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Relaxed) {
            // The device is closed, and everything in the domain is destroyed.
            let _ = self.close();
        }
    }
}

objects! { Xrcd: ibv_xrcd; }

impl Xrcd {
    /// The domain that C names, which must be of the same device.
    ///
    /// # Safety
    ///
    /// No other thread may close it meanwhile.
    pub(crate) unsafe fn domain_of<'a>(
        held: *const ibv_xrcd,
        open: &Context,
    ) -> Result<&'a Arc<Domain>> {
        // SAFETY: the caller vouches for it.
        let xrcd = unsafe { Self::live(held) }?;
        if ptr::eq(xrcd.device, open.device) { Ok(&xrcd.domain) } else { Err(Failed::EINVAL) }
    }
}

/// Holds the file of a descriptor without having it open: programs that close theirs see the same
/// as without this.
fn hold(fd: c_int) -> Result<fs::File> {
    let path = format!("/proc/thread-self/fd/{fd}");
    Ok(fs::File::options().read(true).custom_flags(libc::O_PATH).open(path)?)
}

/// Makes a domain that is found through the file of a descriptor, or not at all; or finds one that
/// is there.
pub(crate) unsafe extern "C" fn open(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    pointer(|| {
        // SAFETY: the program hands it over.
        let attr = unsafe { given(attr) }?;
        let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        if attr.comp_mask != needed {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program says that it is open.
        let Context { device, nic, .. } = unsafe { Context::of(context) }?;
        let make = |file| {
            let (handle, receivers) = (nic.create_xrcd()?, Counted::default());
            Ok(Arc::new(Domain { handle, receivers, _file: file }))
        };
        let creates = attr.oflags & libc::O_CREAT != 0;
        let (file, domain) = if attr.fd == NO_FILE {
            (None, make(None)?)
        } else {
            let file = file_of(attr.fd)?;
            let new = creates && attr.oflags & libc::O_EXCL != 0;
            let domain = device.xrcds.open(file, new, || match creates {
                true => make(Some(hold(attr.fd)?)),
                false => Err(Failed(libc::ENOENT)),
            })?;
            (Some(file), domain)
        };
        let (c, nic) = (UnsafeCell::new(ibv_xrcd { context }), Arc::clone(nic));
        Ok(Xrcd { c, nic, device, domain, file, closed: AtomicBool::new(false) }.give())
    })
}

/// Closes a domain; if it is open nowhere else, it is destroyed, unless something is still in it.
pub(crate) unsafe extern "C" fn close(xrcd: *mut ibv_xrcd) -> c_int {
    code(|| {
        // SAFETY: the program says that it is one.
        unsafe { Xrcd::to_destroy(xrcd) }?.close()?;
        // SAFETY: and that it does not need it any more.
        unsafe { Xrcd::take(xrcd) }.map(drop)
    })
}
