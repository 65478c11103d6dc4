//! The secret of a user, from which its processes compute the names where they find each other.
//!
//! A name is one of an abstract socket, which belongs to a network namespace and is gone with the
//! last process that has it. It is computed from a secret in a directory that only this user can
//! read: no other user can take a name before it is used. One that takes it later is found out by
//! its credentials, and the next name is tried.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags};

use crate::proof::Proof;

/// Bytes of the secret.
const SECRET_LEN: usize = 32;

/// File of the secret in the directory.
const SECRET_FILE: &str = "secret";

/// Reason for which processes of this user cannot find each other.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error("{0}: {1}")]
    System(PathBuf, #[source] io::Error),
    #[error("{0} is no directory of this user alone")]
    NotPrivate(PathBuf),
    #[error("{0} is no secret of this user alone")]
    NotSecret(PathBuf),
}

/// The secret of a user, from which names are computed.
pub(crate) struct UserSecret {
    secret: [u8; SECRET_LEN],
}

impl UserSecret {
    /// Reads the secrets of this user, in `$XDG_RUNTIME_DIR/roce`, `/run/user/UID/roce` and
    /// `/tmp/roce-UID`, as far as these can be; makes those that are missing. Not every process
    /// knows of its user's session, so there may be several.
    pub(crate) fn all() -> Result<Vec<Self>, SecretError> {
        let mut opened = Vec::new();
        let mut failure = None;
        for directory in directories(std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)) {
            match Self::open_in(&directory) {
                Ok(secret) => opened.push(secret),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if opened.is_empty() => Err(error),
            _ => Ok(opened),
        }
    }

    pub(super) fn open_in(directory: &Path) -> Result<Self, SecretError> {
        let folder = private_directory(directory)?;
        let file = directory.join(SECRET_FILE);
        let system = |error: io::Error| SecretError::System(file.clone(), error);
        let secret = match read_secret(folder.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_secret(folder.as_fd()).map_err(system)?;
                read_secret(folder.as_fd())
            }
            read => read,
        };
        let secret = secret.map_err(system)?;
        Ok(Self { secret: secret.ok_or(SecretError::NotSecret(file))? })
    }

    /// Returns the name where the members of an address of an interface are found. If another user
    /// has it, the next is tried.
    pub(crate) fn name(&self, address: IpAddr, interface: u32, attempt: u8) -> String {
        let tag = Proof::new(&self.secret, "roce shared address 1")
            .field("address", address.to_canonical().to_string().as_bytes())
            .field("interface", &interface.to_be_bytes())
            .field("attempt", &[attempt])
            .tag();
        let digits: String = tag.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        format!("roce {digits}")
    }
}

/// Returns the directories: that of the session, if it is one of this user alone, and one in
/// `/tmp`.
fn directories(of_session: Option<PathBuf>) -> Vec<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let user = outer_uid(own, &map);
    let usual = PathBuf::from(format!("/run/user/{user}"));
    let of_session = of_session.filter(|path| path.is_absolute() && *path != usual);
    let of_sessions = of_session.into_iter().chain([usual]).filter(|path| is_private(path));
    let all = of_sessions.map(|path| path.join("roce"));
    all.chain([PathBuf::from(format!("/tmp/roce-{user}"))]).collect()
}

/// Returns the number of a user outside of its user namespace, by the namespace's map: users of
/// several namespaces have the same numbers there, and are others.
fn outer_uid(uid: u32, map: &str) -> u32 {
    let outer = |line: &str| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u32>().ok());
        let [inside, outside, count] = [(); 3].map(|()| numbers.next().flatten());
        let offset = uid.checked_sub(inside?).filter(|offset| Some(*offset) < count)?;
        outside?.checked_add(offset)
    };
    map.lines().find_map(outer).unwrap_or(uid)
}

/// Whether a path is a directory that belongs to this user, and that no other user can enter.
fn is_private(path: &Path) -> bool {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::PATH;
    rustix::fs::open(path, flags, Mode::empty()).is_ok_and(|folder| is_own(&folder, 0o077))
}

/// Whether a file belongs to this user, and others have none of these rights.
fn is_own(file: &OwnedFd, others: u32) -> bool {
    let own = rustix::process::geteuid().as_raw();
    rustix::fs::fstat(file).is_ok_and(|stat| stat.st_uid == own && stat.st_mode & others == 0)
}

/// Opens the directory, and makes it if there is none.
fn private_directory(path: &Path) -> Result<OwnedFd, SecretError> {
    let system = |error: rustix::io::Errno| SecretError::System(path.into(), error.into());
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(system(error)),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(folder) => folder,
        // A symbolic link, or a file.
        Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
            return Err(SecretError::NotPrivate(path.into()));
        }
        Err(error) => return Err(system(error)),
    };
    if !is_own(&folder, 0o077) {
        return Err(SecretError::NotPrivate(path.into()));
    }
    Ok(folder)
}

/// Reads the secret; `None` if the file is not one of this user alone, or has another length.
fn read_secret(folder: BorrowedFd<'_>) -> io::Result<Option<[u8; SECRET_LEN]>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::openat(folder, SECRET_FILE, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_own(&file, 0o077) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    File::from(file).take(SECRET_LEN as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes.try_into().ok())
}

/// Makes the secret, unless another process is quicker.
fn write_secret(folder: BorrowedFd<'_>) -> io::Result<()> {
    let mut random = [0; SECRET_LEN + 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let (secret, suffix) = random.split_at(SECRET_LEN);
    let unfinished: String = suffix.iter().map(|byte| format!("{byte:02x}")).collect();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, &unfinished, flags, Mode::RUSR | Mode::WUSR)?;
    let written = File::from(file).write_all(secret);
    written.and_then(|()| {
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(folder, &unfinished, folder, SECRET_FILE, flags) {
            Ok(()) => Ok(()),
            Err(error) => {
                let _ = rustix::fs::unlinkat(folder, &unfinished, AtFlags::empty());
                if error == rustix::io::Errno::EXIST { Ok(()) } else { Err(error.into()) }
            }
        }
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    pub(in crate::link::share) struct Folder(pub(in crate::link::share) PathBuf);

    impl Folder {
        pub(in crate::link::share) fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("roce-secret-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn names_are_the_same_in_all_processes_and_differ_by_address() {
        let folder = Folder::new("names");
        let [one, other] = [(); 2].map(|()| UserSecret::open_in(&folder.0).unwrap());
        let address = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(one.name(address, 1, 0), other.name(address, 1, 0));
        let names = [
            one.name(address, 1, 0),
            one.name(address, 1, 1),
            one.name(address, 2, 0),
            one.name([127, 0, 0, 2].into(), 1, 0),
        ];
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        drop(fs::remove_file(folder.0.join(SECRET_FILE)));
        let another = UserSecret::open_in(&folder.0).unwrap();
        assert_ne!(one.name(address, 1, 0), another.name(address, 1, 0));
    }

    #[test]
    fn directory_of_the_session_comes_first_if_it_is_private() {
        let folder = Folder::new("session");
        fs::create_dir(&folder.0).unwrap();
        let found = || directories(Some(folder.0.clone()));
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(found().first(), Some(&folder.0.join("roce")));
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(!found().contains(&folder.0.join("roce")));
        assert!(found().last().unwrap().starts_with("/tmp"));
        assert_eq!(directories(Some("relative".into())), directories(None));
    }

    #[test]
    fn user_is_the_one_outside_of_its_namespace() {
        assert_eq!(outer_uid(0, "         0       1000          1\n"), 1000);
        assert_eq!(outer_uid(7, "0 1000 1\n1 100000 65536\n"), 100_006);
        assert_eq!(outer_uid(1000, "         0          0 4294967295\n"), 1000);
        assert_eq!(outer_uid(5, "0 1000 1\n"), 5);
        assert_eq!(outer_uid(5, "nonsense"), 5);
    }

    #[test]
    fn directory_or_secret_that_others_reach_is_refused() {
        let folder = Folder::new("others");
        UserSecret::open_in(&folder.0).unwrap();
        let secret = folder.0.join(SECRET_FILE);
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(UserSecret::open_in(&folder.0), Err(SecretError::NotSecret(_))));
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(UserSecret::open_in(&folder.0), Err(SecretError::NotPrivate(_))));
    }

    #[test]
    fn symbolic_link_in_its_place_is_refused() {
        let (folder, link) = (Folder::new("target"), Folder::new("link"));
        UserSecret::open_in(&folder.0).unwrap();
        symlink(&folder.0, &link.0).unwrap();
        assert!(matches!(UserSecret::open_in(&link.0), Err(SecretError::NotPrivate(_))));
    }
}
