//! An open RDMA device of libibverbs, and queries of its attributes.
#![allow(unsafe_code, reason = "calls of libibverbs")]

use core::ffi::{CStr, c_int};
use core::ptr::NonNull;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};

use super::errors::{check, last_errno, to_io};
use super::library::Library;
use super::sysfs;
use crate::ibverbs::{
    VERBS_ABI_IS_EXTENDED, ibv_context, ibv_device_attr_ex, ibv_gid_entry, ibv_port_attr,
    verbs_context,
};
use crate::verbs::{DeviceAttr, DeviceCaps, DeviceTag, Errno, GidType, PortAttr, PortNum};
use crate::wire::Gid;

/// Port of a device that is used.
pub(super) const PORT: PortNum = PortNum::FIRST;

/// Maximum number of GIDs of a port that can be named: an index has eight bits.
const GIDS_MAX: usize = 256;

/// Maximum number of entries of a device's GID table that are read.
const GID_ENTRIES_MAX: usize = 4096;

/// An open device. It is closed when nothing needs it any more.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) library: &'static Library,
    at: NonNull<ibv_context>,
    /// Tag of the device in its handles.
    pub(super) tag: DeviceTag,
    /// Name of the device.
    pub(super) name: String,
    /// Directory of the device in sysfs.
    pub(super) directory: PathBuf,
    /// Error number of the failure that broke the device; 0 while it works.
    broken: AtomicI32,
}

// SAFETY: an open device of `libibverbs` may be used from any thread, and by many at a time.
unsafe impl Send for Context {}

// SAFETY: as above.
unsafe impl Sync for Context {}

/// Returns a function of the table `ops` of an open device, through which the inline functions of
/// `infiniband/verbs.h` call; `None` if the device lacks it.
macro_rules! op {
    ($context:expr, $name:ident) => {{
        let at: *mut $crate::ibverbs::ibv_context = $context.at();
        // SAFETY: the device is open as long as its `Context` lives, and its table is not changed
        // after it was opened.
        let function = unsafe { (*at).ops.$name };
        function
    }};
}

/// Returns a function of `verbs_context`, the table of functions that are newer than `ops`; `None`
/// if the library or the device lacks it.
macro_rules! extended {
    ($context:expr, $name:ident) => {{
        let offset = core::mem::offset_of!($crate::ibverbs::verbs_context, $name);
        match $context.extension(offset) {
            Some(at) => {
                // SAFETY: the table reaches to this function, and is not changed after the device
                // was opened.
                let function = unsafe { (*at).$name };
                function
            }
            None => None,
        }
    }};
}

pub(super) use {extended, op};

impl Context {
    /// Takes ownership of the pointer that `ibv_open_device` of this library just returned.
    pub(super) fn new(
        library: &'static Library,
        at: *mut ibv_context,
        name: String,
        directory: PathBuf,
        tag: DeviceTag,
    ) -> Result<Self, Errno> {
        let at = NonNull::new(at).ok_or_else(last_errno)?;
        Ok(Self { library, at, tag, name, directory, broken: AtomicI32::new(0) })
    }

    /// Returns the pointer to the open device, valid as long as `self`.
    #[inline]
    pub(super) fn at(&self) -> *mut ibv_context {
        self.at.as_ptr()
    }

    /// Returns the table of newer functions, if it has the one at `offset`. New functions are added
    /// at its beginning; `sz` is its length.
    pub(super) fn extension(&self, offset: usize) -> Option<*const verbs_context> {
        // SAFETY: the device is open.
        let mark = unsafe { (*self.at()).abi_compat };
        if mark.addr() != VERBS_ABI_IS_EXTENDED {
            return None;
        }
        let whole = core::mem::offset_of!(verbs_context, context);
        let table: *const verbs_context = self.at().wrapping_byte_sub(whole).cast();
        // SAFETY: a context with this mark is the last field of a `verbs_context`, which always has
        // `sz`.
        let size = unsafe { (*table).sz };
        (size >= size_of::<verbs_context>().saturating_sub(offset)).then_some(table)
    }

    /// Returns the descriptor of asynchronous events.
    pub(super) fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the device is open.
        let fd = unsafe { (*self.at()).async_fd };
        // SAFETY: the descriptor is open as long as the device is, which is as long as `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Records the error that broke the device.
    pub(super) fn set_broken(&self, errno: Errno) {
        // The first error is kept.
        let _ = self.broken.compare_exchange(0, errno.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(super) fn broken(&self) -> Option<io::Error> {
        match self.broken.load(Ordering::Relaxed) {
            0 => None,
            code => Some(io::Error::from_raw_os_error(code)),
        }
    }

    pub(super) fn query_device(&self) -> io::Result<DeviceAttr> {
        let mut attr = ibv_device_attr_ex::zeroed();
        if let Some(query) = extended!(self, query_device_ex) {
            // SAFETY: the device is open, the input may be null, and `attr` has the length that is
            // passed.
            let code =
                unsafe { query(self.at(), core::ptr::null(), &raw mut attr, size_of_val(&attr)) };
            if check(code).is_ok() {
                let more = DeviceCaps::from_bits_retain(attr.device_cap_flags_ex);
                let mut known = attr.orig_attr.to_device_attr();
                known.device_cap_flags |= more;
                return Ok(known);
            }
        }
        // SAFETY: the device is open, and there is room for the answer.
        let code = unsafe { (self.library.query_device)(self.at(), &raw mut attr.orig_attr) };
        check(code).map_err(to_io)?;
        Ok(attr.orig_attr.to_device_attr())
    }

    pub(super) fn query_port(&self) -> io::Result<PortAttr> {
        let mut attr = ibv_port_attr::zeroed();
        let code = match extended!(self, query_port) {
            // SAFETY: the device is open, and `attr` has the length that is passed.
            Some(query) => unsafe { query(self.at(), PORT.0, &raw mut attr, size_of_val(&attr)) },
            // SAFETY: the device is open, and the function fills the beginning of the structure.
            None => unsafe { (self.library.query_port)(self.at(), PORT.0, &raw mut attr) },
        };
        check(code).map_err(to_io)?;
        attr.to_port_attr().ok_or_else(|| {
            io::Error::other(format!("{} has a port with unknown attributes: {attr:?}", self.name))
        })
    }

    /// Returns the GIDs of the port for RoCEv2, each at its index; the others are unset.
    pub(super) fn gids(&self) -> Vec<Gid> {
        let found =
            self.query_gids().unwrap_or_else(|| sysfs::gids(&self.directory, PORT, GIDS_MAX));
        let mut gids = Vec::new();
        for (index, gid) in found.into_iter().filter(|&(index, _)| index < GIDS_MAX) {
            if gids.len() <= index {
                gids.resize(index + 1, Gid::default());
            }
            gids[index] = gid;
        }
        gids
    }

    /// Returns the GIDs with their indices by one call of the library; `None` if it cannot.
    fn query_gids(&self) -> Option<Vec<(usize, Gid)>> {
        let query = self.library.query_gid_table?;
        let length = usize::try_from(self.query_port().ok()?.gid_tbl_len).ok()?;
        // The table has the entries of all ports.
        let ports = usize::from(self.query_device().ok()?.phys_port_cnt.max(1));
        let mut entries =
            vec![ibv_gid_entry::zeroed(); length.saturating_mul(ports).min(GID_ENTRIES_MAX)];
        let (room, size) = (entries.len(), size_of::<ibv_gid_entry>());
        // SAFETY: the device is open, and `entries` has `room` entries of this size.
        let count = unsafe { query(self.at(), entries.as_mut_ptr(), room, 0, size) };
        let count = usize::try_from(count).ok()?;
        let ours = entries.iter().take(count).filter(|entry| {
            entry.port_num == u32::from(PORT.0) && entry.gid_type == GidType::RoceV2.code()
        });
        Some(
            ours.filter_map(|at| Some((usize::try_from(at.gid_index).ok()?, at.gid.into())))
                .collect(),
        )
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every object of the device holds its `Context`, so no object is left.
        let _: c_int = unsafe { (self.library.close_device)(self.at()) };
    }
}

/// Returns the text in an array of C, up to its NUL; empty if it has none.
pub(super) fn text(chars: &[core::ffi::c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&char| char.to_ne_bytes()[0]).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}
