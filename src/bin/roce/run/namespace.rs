//! A user and mount namespace in which the files of devices are real: for every process in it, and
//! every way of looking.
//!
//! An ordinary user may not change `/sys` or `/dev`. In a user namespace of its own a process may
//! mount, though, and tmpfs is a file system that it may mount. So `/sys/class`, `/sys/devices` and
//! `/dev` are each covered by a tmpfs that has everything that was there, as bind mounts and copied
//! links, and one directory more. The caller keeps its user and group; the capabilities that it has
//! in the namespace end when it runs the program.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use roce::ibverbs::files::{DIRECTORIES, Node, Tree, private_directory, stand_in};
use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Limits of each tmpfs: the files of a device are a hundred, of a few bytes.
const TMPFS: &std::ffi::CStr = c"mode=755,size=64m";

/// User namespace that a process enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    /// A new namespace.
    New,
    /// The namespace of the caller's other programs under `roce run`, if there are any. Between
    /// user namespaces the kernel denies what programs of one user may do to each other, such as
    /// `process_vm_readv`, with which UCX and Open MPI copy.
    Shared,
}

/// Moves this process into a user namespace and a new mount namespace, and mounts the files there.
pub(super) fn enter(user: User, tree: &Tree) -> io::Result<()> {
    match user {
        User::New => enter_new_user()?,
        User::Shared => enter_shared_user()?,
    }
    unshare(UnshareFlags::NEWNS)?;
    let mut covered = Vec::new();
    for directory in DIRECTORIES.map(Path::new) {
        make_room(directory, &mut covered)?;
    }
    tree.write(Path::new("/"))?;
    for (path, _) in tree.files().iter().filter(|(_, node)| *node == Node::CharDevice) {
        fs::remove_file(path)?;
        File::create(path)?;
        mount_bind(stand_in(), path)?;
    }
    Ok(())
}

fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    #[expect(
        deprecated,
        reason = "only unsharing descriptors is unsafe, and these namespaces have none"
    )]
    Ok(rustix::thread::unshare(namespaces)?)
}

/// The user and the group of this process, as the maps of its user namespace have them: the same as
/// outside, and no others, for a caller without privilege can map only its own.
fn own_maps() -> io::Result<[String; 2]> {
    let own = fs::metadata("/proc/self")?;
    Ok([own.uid(), own.gid()].map(|id| format!("{id} {id} 1")))
}

fn enter_new_user() -> io::Result<()> {
    let [users, groups] = own_maps()?;
    unshare(UnshareFlags::NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", users)?;
    fs::write("/proc/self/gid_map", groups)
}

/// Enters the user namespace of another program of this user, or makes one for those to come. It
/// stays as long as a process is in it.
fn enter_shared_user() -> io::Result<()> {
    let registry = private_directory().and_then(|directory| {
        let name = directory.join("user-namespace");
        File::options().read(true).write(true).create(true).truncate(false).open(name)
    });
    // Where nothing can be written, other programs cannot be found, but this one can run.
    let Ok(mut registry) = registry else { return enter_new_user() };
    // Programs that start at the same time find the same.
    registry.lock()?;
    let mut last = String::new();
    registry.read_to_string(&mut last)?;
    if let Some(namespace) = find_namespace(Path::new(&last), &own_maps()?) {
        return Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User))?);
    }
    let is_nested = fs::read_link(OWN_NAMESPACE)? == Path::new(&last);
    enter_new_user()?;
    if !is_nested {
        registry.rewind()?;
        registry.set_len(0)?;
        registry.write_all(fs::read_link(OWN_NAMESPACE)?.as_os_str().as_encoded_bytes())?;
    }
    Ok(())
}

/// The link that names the user namespace of this process: `user:[4026531837]`.
const OWN_NAMESPACE: &str = "/proc/self/ns/user";

/// The user namespace with this name, if a process is in it, and it is another than this process's,
/// with these maps.
fn find_namespace(name: &Path, maps: &[String; 2]) -> Option<File> {
    if fs::read_link(OWN_NAMESPACE).ok()? == name {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut inside = processes.filter(|process| {
        fs::read_link(process.join("ns/user")).is_ok_and(|namespace| namespace == name)
    });
    inside.find_map(|process| {
        let namespace = File::open(process.join("ns/user")).ok()?;
        let has = |file: &str, map: &String| {
            let text = fs::read_to_string(process.join(file)).unwrap_or_default();
            text.split_whitespace().eq(map.split(' '))
        };
        (has("uid_map", &maps[0]) && has("gid_map", &maps[1])).then_some(namespace)
    })
}

/// Makes a directory for the files, or covers the one that is there.
fn make_room(directory: &Path, covered: &mut Vec<PathBuf>) -> io::Result<()> {
    if directory.is_dir() {
        return mount_tmpfs(directory);
    }
    let parent = directory.parent().unwrap_or_else(|| Path::new("/"));
    if !covered.iter().any(|other| other == parent) {
        if parent.is_dir() {
            cover(parent)?;
        } else {
            make_room(parent, covered)?;
        }
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
        show_through(&entry, &directory.join(entry.file_name()), |from, to| {
            Ok(mount_bind_recursive(from, to)?)
        })?;
    }
    Ok(())
}

/// Shows an entry of a covered directory at `to`. One that has vanished since it was listed is left
/// out: in `/dev`, a device that was unplugged, or a terminal that was closed.
fn show_through(
    entry: &fs::DirEntry,
    to: &Path,
    bind: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> io::Result<()> {
    let from = entry.path();
    let show = || {
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            return symlink(fs::read_link(&from)?, to);
        }
        if kind.is_dir() {
            fs::create_dir(to)?;
        } else {
            File::create(to)?;
        }
        bind(&from, to)
    };
    match show() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let _ = fs::remove_file(to).or_else(|_| fs::remove_dir(to));
            Ok(())
        }
        shown => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_that_vanishes_is_left_out() {
        let base = std::env::temp_dir().join(format!("roce-cover-{}", std::process::id()));
        let (below, above) = (base.join("below"), base.join("above"));
        fs::create_dir_all(below.join("directory")).unwrap();
        fs::create_dir_all(&above).unwrap();
        for name in ["file", "stays"] {
            fs::write(below.join(name), name).unwrap();
        }
        symlink("nowhere", below.join("link")).unwrap();
        let entries: Vec<_> = fs::read_dir(&below).unwrap().map(Result::unwrap).collect();
        assert_eq!(entries.len(), 4);
        fs::remove_file(below.join("file")).unwrap();
        fs::remove_file(below.join("link")).unwrap();
        fs::remove_dir(below.join("directory")).unwrap();
        // A bind mount of a missing file fails like this.
        let bind = |from: &Path, _: &Path| fs::metadata(from).map(drop);
        for entry in &entries {
            show_through(entry, &above.join(entry.file_name()), bind).unwrap();
        }
        let shown: Vec<_> =
            fs::read_dir(&above).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(shown, ["stays"]);
        let refused = |_: &Path, _: &Path| Err(io::ErrorKind::PermissionDenied.into());
        let stays = entries.iter().find(|entry| entry.file_name() == "stays").unwrap();
        assert!(show_through(stays, &above.join("other"), refused).is_err());
        fs::remove_dir_all(&base).unwrap();
    }
}
