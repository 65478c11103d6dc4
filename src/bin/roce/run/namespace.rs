//! A user and mount namespace in which the files of devices are real: for every process in it, and every way of looking.
//!
//! An ordinary user may not change `/sys` or `/dev`. In a user namespace of its own a process may mount, though, and tmpfs is
//! a file system that it may mount. So `/sys/class`, `/sys/devices` and `/dev` are each covered by a tmpfs that has
//! everything that was there, as bind mounts and copied links, and one directory more. The caller keeps its user and group;
//! the capabilities that it has in the namespace end when it runs the program.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use roce::ibverbs::files::{DIRECTORIES, Node, Tree};
use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive};
use rustix::thread::UnshareFlags;

/// Limits of each tmpfs: the files of a device are a hundred, of a few bytes.
const TMPFS: &std::ffi::CStr = c"mode=755,size=64m";

/// Moves this process into new namespaces and mounts the files there.
pub(super) fn enter(tree: &Tree) -> io::Result<()> {
    let own = fs::metadata("/proc/self")?;
    unshare()?;
    // The same user and group as before. No others: a caller without privilege can map only its own.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{0} {0} 1", own.uid()))?;
    fs::write("/proc/self/gid_map", format!("{0} {0} 1", own.gid()))?;
    let mut covered = Vec::new();
    for directory in DIRECTORIES.map(Path::new) {
        make_room(directory, &mut covered)?;
    }
    tree.write(Path::new("/"))?;
    for (path, _) in tree.files().iter().filter(|(_, node)| *node == Node::CharDevice) {
        fs::remove_file(path)?;
        File::create(path)?;
        mount_bind("/dev/null", path)?;
    }
    Ok(())
}

fn unshare() -> io::Result<()> {
    #[expect(
        deprecated,
        reason = "only unsharing descriptors is unsafe, and these namespaces have none"
    )]
    Ok(rustix::thread::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?)
}

/// Makes a directory for the files, or covers the one that is there.
fn make_room(directory: &Path, covered: &mut Vec<PathBuf>) -> io::Result<()> {
    if directory.is_dir() {
        return mount_tmpfs(directory);
    }
    let parent = directory.parent().unwrap_or(Path::new("/"));
    if !covered.iter().any(|other| other == parent) {
        cover(parent)?;
        covered.push(parent.to_owned());
    }
    fs::create_dir(directory)
}

fn mount_tmpfs(directory: &Path) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("roce", directory, "tmpfs", flags, TMPFS)?)
}

/// Covers a directory with a tmpfs that has the same in it.
fn cover(directory: &Path) -> io::Result<()> {
    // The directory below the cover stays reachable through a descriptor.
    let descriptor = File::open(directory)?;
    let below = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    mount_tmpfs(directory)?;
    for entry in fs::read_dir(&below)? {
        let entry = entry?;
        let (from, to) = (entry.path(), directory.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&to)?;
        } else {
            File::create(&to)?;
        }
        mount_bind_recursive(&from, &to)?;
    }
    Ok(())
}
