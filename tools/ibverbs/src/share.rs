//! Objects that several contexts of one program share: a device is found again by a copy of the
//! descriptor of an open one, what was made there by its number.
//!
//! Only the process that made an object can share it: a NIC is in its process, and no kernel is
//! between two of them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard};

use roce::ibverbs::{ibv_context, ibv_dm, ibv_mr, ibv_pd};
use roce::memory::Buffer;
use roce::verbs::{Access, MrHandle, PdHandle};

use crate::call::{Failed, Result, pointer, quiet};
use crate::context::Context;
use crate::device::Device;
use crate::dm::Dm;
use crate::events::lock;
use crate::mr::Mr;
use crate::object::Object;
use crate::pd::Pd;

/// Objects that a program can look up by number, with their devices.
#[derive(Debug)]
pub(crate) struct Shared<T>(Mutex<BTreeMap<u32, T>>);

impl<T: Clone> Shared<T> {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub(crate) fn add(&self, number: u32, object: T) {
        lock(&self.0).insert(number, object);
    }

    pub(crate) fn remove(&self, number: u32) {
        lock(&self.0).remove(&number);
    }

    fn find(&self, number: u32) -> Result<T> {
        lock(&self.0).get(&number).cloned().ok_or(Failed(libc::ENOENT))
    }
}

/// Protection domains.
pub(crate) static PDS: Shared<(&'static Device, PdHandle)> = Shared::new();

/// Memory regions, and how long they are.
pub(crate) static MRS: Shared<(&'static Device, MrHandle, usize)> = Shared::new();

/// Memory of devices' own.
pub(crate) static DMS: Shared<(&'static Device, Buffer)> = Shared::new();

/// Objects that several objects of a program may stand for: each by its key, with the number of
/// those. It goes with the last of them.
#[derive(Debug)]
pub(crate) struct Counted<K, T>(Mutex<BTreeMap<K, (T, u32)>>);

impl<K, T> Default for Counted<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord, T: Clone> Counted<K, T> {
    /// Opens the object of `key`: adds a reference, or creates it with `make`. If it must be `new`,
    /// fails with EEXIST if it exists.
    pub(crate) fn open(&self, key: K, new: bool, make: impl FnOnce() -> Result<T>) -> Result<T> {
        match lock(&self.0).entry(key) {
            Entry::Occupied(_) if new => Err(Failed(libc::EEXIST)),
            Entry::Occupied(mut known) => {
                let (object, count) = known.get_mut();
                *count = count.checked_add(1).ok_or(Failed(libc::ENOMEM))?;
                Ok(object.clone())
            }
            Entry::Vacant(place) => Ok(place.insert((make()?, 1)).0.clone()),
        }
    }

    /// Drops a reference. The last one destroys the object, and is kept if that fails.
    pub(crate) fn close(&self, key: &K, destroy: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut known = lock(&self.0);
        match known.get_mut(key) {
            Some((_, count)) if *count > 1 => *count -= 1,
            _ => {
                destroy()?;
                known.remove(key);
            }
        }
        Ok(())
    }
}

/// Open devices, each by the file that its descriptor stands for.
static OPEN: Mutex<Vec<(File, &'static Device)>> = Mutex::new(Vec::new());

/// Locks of these tables, while a thread forks.
pub(crate) struct Held {
    _open: MutexGuard<'static, Vec<(File, &'static Device)>>,
    _pds: MutexGuard<'static, BTreeMap<u32, (&'static Device, PdHandle)>>,
    _mrs: MutexGuard<'static, BTreeMap<u32, (&'static Device, MrHandle, usize)>>,
    _dms: MutexGuard<'static, BTreeMap<u32, (&'static Device, Buffer)>>,
}

impl Held {
    /// Waits until no thread changes any of it, and keeps them from it.
    pub(crate) fn new() -> Self {
        Self { _open: lock(&OPEN), _pds: lock(&PDS.0), _mrs: lock(&MRS.0), _dms: lock(&DMS.0) }
    }
}

/// A file, whatever its descriptor is called.
pub(crate) type File = (libc::dev_t, libc::ino_t);

/// The descriptor of an open device. A kernel's would take commands; this one is a file of its own,
/// which nothing reads.
#[derive(Debug)]
pub(crate) struct CommandFile {
    fd: OwnedFd,
    file: File,
}

impl CommandFile {
    /// A new one.
    pub(crate) fn new(device: &'static Device) -> Result<Self> {
        // SAFETY: a system call with a text.
        let fd = unsafe { libc::memfd_create(c"roce".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error().into());
        }
        // SAFETY: it was just made, and nothing else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let file = file_of(fd.as_raw_fd())?;
        lock(&OPEN).push((file, device));
        Ok(Self { fd, file })
    }

    /// A copy of another's, which becomes this one's own, and of which device it is.
    fn adopt(fd: c_int) -> Result<(Self, &'static Device)> {
        let file = file_of(fd)?;
        let mut open = lock(&OPEN);
        let found = open.iter().find(|(known, _)| *known == file);
        let &(_, device) = found.ok_or(Failed::EOPNOTSUPP)?;
        // A child that opens what its parent had open has a NIC of its own.
        let device = device.own();
        open.push((file, device));
        // SAFETY: the program hands it over.
        Ok((Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, file }, device))
    }

    pub(crate) fn fd(&self) -> c_int {
        self.fd.as_raw_fd()
    }
}

impl Drop for CommandFile {
    fn drop(&mut self) {
        let mut open = lock(&OPEN);
        if let Some(at) = open.iter().position(|(file, _)| *file == self.file) {
            open.swap_remove(at);
        }
    }
}

/// The file that a descriptor stands for.
pub(crate) fn file_of(fd: c_int) -> Result<File> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for an answer.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the kernel has filled it in.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.st_dev, stat.st_ino))
}

/// Opens a device again, by a copy of the descriptor of an open one.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_device(fd: c_int) -> *mut ibv_context {
    pointer(|| {
        let (file, device) = CommandFile::adopt(fd)?;
        Context::open(device, file)
    })
}

/// Checks that an object is of the device on which it is looked up.
fn same_device(context: &Context, device: &'static Device) -> Result<()> {
    if std::ptr::eq(context.device, device) { Ok(()) } else { Err(Failed(libc::ENOENT)) }
}

/// A protection domain by its number.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_pd(context: *mut ibv_context, number: u32) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: the program says that it is open.
        let open = unsafe { Context::of(context) }?;
        let (device, handle) = PDS.find(number)?;
        same_device(open, device)?;
        Ok(Pd::imported(context, open, number, handle).give())
    })
}

/// Forgets a domain that was found by its number; the domain stays.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    // SAFETY: the program says that it is one, and does not need it any more.
    quiet(|| unsafe { Pd::take(pd) }.map(drop));
}

/// A memory region by its number. Its address is unknown here.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, number: u32) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program says that it is one.
        let domain = unsafe { Pd::live(pd) }?;
        // SAFETY: it was open when the domain was made, and is until that is destroyed.
        let open = unsafe { Context::of(domain.context()) }?;
        let (device, handle, length) = MRS.find(number)?;
        same_device(open, device)?;
        let (none, access) = (std::ptr::null_mut::<c_void>(), Access::LOCAL_WRITE);
        Ok(Mr::new(pd, domain, none, length, access, handle, number).give())
    })
}

/// Forgets a region that was found by its number; the region stays.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    // SAFETY: the program says that it is one, and does not need it any more.
    quiet(|| unsafe { Mr::take(mr) }.map(drop));
}

/// Memory of a device's own by its number.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_import_dm(context: *mut ibv_context, number: u32) -> *mut ibv_dm {
    pointer(|| {
        // SAFETY: the program says that it is open.
        let open = unsafe { Context::of(context) }?;
        let (device, memory) = DMS.find(number)?;
        same_device(open, device)?;
        Ok(Dm::new(context, number, memory, None).give())
    })
}

/// Forgets memory that was found by its number; the memory stays.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    // SAFETY: the program says that it is one, and does not need it any more.
    quiet(|| unsafe { Dm::take(dm) }.map(drop));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_several_stand_for_goes_with_the_last() {
        let things = Counted::default();
        let failed = || Err(Failed::EBUSY);
        assert_eq!(things.open(1, false, failed), Err(Failed::EBUSY));
        assert_eq!(things.open(1, true, || Ok("made")), Ok("made"));
        assert_eq!(things.open(1, false, failed), Ok("made"));
        assert_eq!(things.open(1, true, failed), Err(Failed(libc::EEXIST)));
        assert_eq!(things.open(2, true, || Ok("other")), Ok("other"));
        // Two handles stand for it: the first goes even if destroying would fail, the last not.
        let refused = || Err(Failed::EBUSY);
        assert_eq!(things.close(&1, refused), Ok(()));
        assert_eq!(things.close(&1, refused), Err(Failed::EBUSY));
        assert_eq!(things.open(1, false, failed), Ok("made"));
        assert_eq!((things.close(&1, refused), things.close(&1, || Ok(()))), (Ok(()), Ok(())));
        assert_eq!(things.open(1, true, || Ok("again")), Ok("again"));
    }
}
