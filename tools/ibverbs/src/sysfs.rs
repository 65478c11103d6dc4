//! The files that programs read of devices: no kernel has them for a soft NIC.
//! `roce::ibverbs::files` says what they are.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Mutex;

use roce::device::Device as _;
use roce::ibverbs::files::hw_counters::{self, HwCounters};
use roce::ibverbs::files::{DeviceFiles, Node, Tree};
use roce::link::GidTable;
use roce::verbs::Guid;

use crate::call::{Failed, Result, number};
use crate::device::Device;
use crate::env;

/// The longest file that is read.
const FILE_MAX: usize = 4096;

/// Returns the mount point of sysfs.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Reads a file, without the newline at its end; how many bytes it has.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    number(|| {
        if directory.is_null() || file.is_null() || buffer.is_null() {
            return Err(Failed::EINVAL);
        }
        // SAFETY: the program hands over texts.
        let directory =
            unsafe { CStr::from_ptr(directory) }.to_str().map_err(|_| Failed::EINVAL)?;
        // SAFETY: the program hands over texts.
        let file = unsafe { CStr::from_ptr(file) }.to_str().map_err(|_| Failed::EINVAL)?;
        let text = read(&format!("{directory}/{file}"))?;
        let bytes = text.trim_end_matches('\n').as_bytes();
        let length = bytes.len().min(size);
        // SAFETY: the program has room for `size` bytes, of which these are `length`.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), buffer, length) };
        if length < size {
            // SAFETY: there is room for one more.
            unsafe { buffer.wrapping_add(length).write(0) };
        }
        Ok(c_int::try_from(length).unwrap_or(c_int::MAX))
    })
}

/// A file of a soft device, or of the system.
fn read(path: &str) -> Result<String> {
    if let Some((device, rest)) = Device::at_path(path) {
        return soft_file(device, path, rest);
    }
    let mut bytes = fs::read(path)?;
    bytes.truncate(FILE_MAX);
    String::from_utf8(bytes).map_err(|_| Failed(libc::EILSEQ))
}

/// A file of a soft device, by its path below the device's directory.
fn soft_file(device: &Device, path: &str, rest: &str) -> Result<String> {
    let rest: Vec<&str> = rest.split('/').filter(|word| !word.is_empty()).collect();
    let rest = rest.join("/");
    let files = device.files();
    let files = match path.starts_with("/sys/class/infiniband_verbs/") {
        true => files.verbs_device(),
        false => files.rdma_device(),
    };
    match files.into_iter().find(|(path, _)| *path == rest) {
        Some((_, Node::Text(text))) => Ok(text),
        Some((path, Node::Counter)) => {
            let name = path.strip_prefix("ports/1/").unwrap_or_default();
            let own = device.counted().and_then(|counted| counted.get(name)).unwrap_or(0);
            Ok((sum_of_programs(&device.name, name) + own).to_string())
        }
        Some((_, Node::Unreadable)) => Err(Failed::EINVAL),
        _ => Err(Failed(libc::ENOENT)),
    }
}

impl Device {
    /// Returns the contents of its files: as of its NIC while it is open, and else as it will be.
    pub(crate) fn files(&self) -> DeviceFiles {
        let mut files = DeviceFiles::of_spec(&self.spec, &self.name, self.number());
        files.guid = Guid(self.guid().to_ne_bytes());
        if let Some(nic) = self.running() {
            files.gids = GidTable::new(&nic.gids());
            files.interface = nic.port().interface.clone().or(files.interface);
            files.state = nic.query_port().map_or(files.state, |port| port.state);
        }
        files
    }
}

impl Device {
    /// Returns what its NIC has counted and not added to the files yet.
    fn counted(&self) -> Option<HwCounters> {
        let now = HwCounters::from(&self.running()?.counters());
        Some(now.since(&self.added()))
    }

    fn take_counted(&self) -> Option<HwCounters> {
        let now = HwCounters::from(&self.running()?.counters());
        Some(now.since(&self.replace_added(now)))
    }
}

/// The root of the tree that `roce run` made: `/` in a mount namespace, or a directory for
/// libroce-files.so.
const TREE: &str = "ROCE_TREE";

/// Brings the files that this process sees up to date: a device that was opened can have another
/// address than the one that `roce run` expected.
pub(crate) fn refresh() {
    let Some(root) = env::variable(TREE) else { return };
    let Ok(devices) = Device::list() else { return };
    let files: Vec<DeviceFiles> = devices.iter().map(|device| device.files()).collect();
    let tree = Tree::new(&files);
    let result = match root.as_str() {
        // Only in the mount namespace does this directory exist.
        "/" if !Path::new("/sys/devices/roce").is_dir() => Ok(()),
        "/" => tree.write(Path::new("/")),
        _ => write_shared(tree),
    };
    if let Err(error) = result {
        env::failed(&error, libc::EIO);
    }
}

/// Returns the roots of the files that programs of this run see: the one that `roce run` made, and
/// where this process has redirected itself since.
fn roots() -> Vec<PathBuf> {
    let Some(root) = env::variable(TREE).map(PathBuf::from) else { return Vec::new() };
    if root == Path::new("/") {
        return if Path::new("/sys/devices/roce").is_dir() { vec![root] } else { Vec::new() };
    }
    let own = WRITTEN.try_lock().ok().and_then(|written| Some(written.as_ref()?.1.clone()));
    let own = own.filter(|own| *own != root);
    [root].into_iter().chain(own).collect()
}

/// Returns the sum of a counter of the programs that have closed a device.
fn sum_of_programs(device: &str, name: &str) -> u64 {
    let root = roots().into_iter().next();
    root.and_then(|root| hw_counters::read_file(&root, device, name)).unwrap_or(0)
}

/// Adds what a device has counted, and has not added yet, to its files.
pub(crate) fn add_counters(device: &Device) {
    let roots = roots();
    let Some(counted) = (!roots.is_empty()).then(|| device.take_counted()).flatten() else {
        return;
    };
    for root in roots {
        if let Err(error) = counted.add_to_files(&root, &device.name) {
            env::failed(&error, libc::EIO);
        }
    }
}

/// Tree that this process wrote last into a directory that is named for its content, and its path.
/// Each file is read before it is written, which takes hundreds of system calls; a program opens
/// its devices more than once.
static WRITTEN: Mutex<Option<(Tree, PathBuf)>> = Mutex::new(None);

/// Writes the files into the directory that all programs with the same devices share.
fn write_shared(tree: Tree) -> io::Result<()> {
    // For a child, a thread that it does not have may hold the lock for ever: it writes.
    let mut written = WRITTEN.try_lock().ok();
    let is_there = |(known, root): &(Tree, PathBuf)| *known == tree && root.is_dir();
    if written.as_deref().and_then(Option::as_ref).is_some_and(is_there) {
        return Ok(());
    }
    let root = tree.write_shared()?;
    redirect_to(&root);
    if let Some(written) = &mut written {
        **written = Some((tree, root));
    }
    Ok(())
}

/// Has libroce-files.so look in another directory.
fn redirect_to(root: &Path) {
    let Ok(root) = CString::new(root.as_os_str().as_encoded_bytes()) else { return };
    // SAFETY: the name is a text; the default scope is searched.
    let function = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"roce_files_redirect".as_ptr()) };
    if function.is_null() {
        return;
    }
    // SAFETY: files.c defines it so.
    let redirect: extern "C" fn(*const c_char) = unsafe { mem::transmute(function) };
    redirect(root.as_ptr());
}
