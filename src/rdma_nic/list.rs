//! Devices of the machine, as the library lists them.
#![allow(unsafe_code, reason = "calls of libibverbs")]

use core::ffi::{CStr, c_int};
use std::io;
use std::path::PathBuf;

use super::Info;
use super::context::text;
use super::errors::{last_errno, to_io};
use super::library::Library;
use crate::ibverbs::{ibv_context, ibv_device};
use crate::verbs::{Errno, Guid, NodeType, TransportType};

/// Maximum number of devices of a machine that are listed.
const DEVICES_MAX: usize = 4096;

/// The devices of the machine, as the library lists them.
pub(super) struct List {
    library: &'static Library,
    first: *mut *mut ibv_device,
    count: usize,
}

/// One of them, there as long as the list is.
pub(super) struct Listed<'a>(*mut ibv_device, core::marker::PhantomData<&'a List>);

impl List {
    pub(super) fn new(library: &'static Library) -> io::Result<Self> {
        let mut count: c_int = 0;
        // SAFETY: there is room for the number.
        let first = unsafe { (library.get_device_list)(&raw mut count) };
        if first.is_null() {
            let errno = last_errno();
            return Err(match errno {
                Errno::ENOSYS => io::Error::new(
                    io::ErrorKind::Unsupported,
                    "this kernel has no RDMA: its module ib_uverbs is not loaded",
                ),
                errno => to_io(errno),
            });
        }
        Ok(Self { library, first, count: usize::try_from(count).unwrap_or(0).min(DEVICES_MAX) })
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = Listed<'_>> {
        (0..self.count).filter_map(|at| {
            // SAFETY: the list has `count` places.
            let device = unsafe { *self.first.wrapping_add(at) };
            (!device.is_null()).then_some(Listed(device, core::marker::PhantomData))
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it is the list that the library gave, freed this once.
        unsafe { (self.library.free_device_list)(self.first) };
    }
}

impl Listed<'_> {
    /// Opens the device; returns null if that fails.
    pub(super) fn open(&self, library: &Library) -> *mut ibv_context {
        // SAFETY: the device is there as long as its list is.
        unsafe { (library.open_device)(self.0) }
    }

    pub(super) fn name(&self, library: &Library) -> String {
        // SAFETY: the device is there as long as its list is.
        let name = unsafe { (library.get_device_name)(self.0) };
        if name.is_null() {
            return String::new();
        }
        // SAFETY: the library's name of a device ends with a zero, and is there as long as the
        // device is.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    /// The device as the library describes it.
    fn copy(&self) -> ibv_device {
        // SAFETY: the device is there as long as its list is.
        unsafe { *self.0 }
    }

    pub(super) fn directory(&self) -> PathBuf {
        PathBuf::from(text(&self.copy().ibdev_path))
    }

    pub(super) fn info(&self, library: &Library) -> Info {
        let device = self.copy();
        // SAFETY: the device is there as long as its list is.
        let guid = unsafe { (library.get_device_guid)(self.0) };
        let known = |code: c_int| u32::try_from(code).ok();
        Info {
            name: self.name(library),
            node_type: known(device.node_type).and_then(NodeType::from_code),
            transport: known(device.transport_type).and_then(TransportType::from_code),
            guid: Guid(guid.to_ne_bytes()),
        }
    }
}
