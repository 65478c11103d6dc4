//! The library that a released command carries in its own file, so that copying one file is an
//! installation. It is unpacked once, into a folder that only its user can write.
//!
//! A bundle is a list of its files, one a line (name, length and SHA-256), an empty line, and a
//! zstd frame with their bytes in that order. `tools/release/build` makes it.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use roce::ibverbs::files::private_directory;
use rustix::fs::StatVfsMountFlags;
use sha2::{Digest as _, Sha256};

/// The bundle of this command, if it was built with one.
#[cfg(roce_bundle)]
const CARRIED: Option<&[u8]> = Some(include_bytes!(env!("ROCE_BUNDLE")));
#[cfg(not(roce_bundle))]
const CARRIED: Option<&[u8]> = None;

/// Maximum length of a file in a bundle.
const FILE_MAX: u64 = 1 << 28;

/// A file of a bundle.
#[derive(Debug, PartialEq, Eq)]
struct Entry<'a> {
    name: &'a str,
    length: u64,
    /// SHA-256 in hexadecimal digits.
    digest: &'a str,
}

/// A bundle whose list has been read.
#[derive(Debug)]
pub(crate) struct Bundle<'a> {
    entries: Vec<Entry<'a>>,
    /// The zstd frame.
    packed: &'a [u8],
}

/// Returns the bundle of this command. A damaged one is an error: the file was cut or changed.
pub(crate) fn carried() -> Result<Option<Bundle<'static>>> {
    CARRIED.map(|bytes| Bundle::read(bytes).context("this command is damaged")).transpose()
}

impl<'a> Bundle<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self> {
        let end = bytes.windows(2).position(|pair| pair == b"\n\n");
        let (list, rest) = bytes.split_at(end.context("the bundle has no list")?);
        let list = str::from_utf8(list).context("the list of the bundle is no text")?;
        let entries = list.lines().map(|line| entry(line).context("a line of the bundle's list"));
        Ok(Self { entries: entries.collect::<Result<_>>()?, packed: &rest[2..] })
    }

    /// The name of the folder of exactly these files.
    fn folder(&self) -> String {
        let mut all = Sha256::new();
        for entry in &self.entries {
            all.update(entry.digest);
        }
        let digest = hexadecimal(&all.finalize());
        format!("{}-{}", env!("CARGO_PKG_VERSION"), &digest[..16])
    }

    /// Returns the folder of the files, in the first place where they are or can be unpacked.
    pub(crate) fn unpack(&self) -> Result<PathBuf> {
        let mut refusals = Vec::new();
        for place in places() {
            let tried = place.and_then(|place| {
                let folder = place.join(self.folder());
                self.unpack_to(&folder).with_context(|| folder.display().to_string())?;
                Ok(folder)
            });
            match tried {
                Ok(folder) => return Ok(folder),
                Err(error) => refusals.push(format!("{error:#}")),
            }
        }
        anyhow::bail!(
            "this command cannot unpack its library ({}); set XDG_CACHE_HOME to a directory of yours that can be \
             written and executed from",
            refusals.join("; ")
        )
    }

    /// Makes sure that the files are in a folder.
    fn unpack_to(&self, folder: &Path) -> Result<()> {
        make_private(folder)?;
        ensure!(
            !rustix::fs::statvfs(folder)?.f_flag.contains(StatVfsMountFlags::NOEXEC),
            "its file system is mounted noexec"
        );
        if self.entries.iter().all(|entry| entry.is_whole(&folder.join(entry.name))) {
            return Ok(());
        }
        let mut unpacked = zstd::Decoder::new(self.packed)?;
        for entry in &self.entries {
            let mut bytes = Vec::new();
            io::Read::by_ref(&mut unpacked).take(entry.length).read_to_end(&mut bytes)?;
            ensure!(entry.is_of(&bytes), "{} of the bundle is damaged", entry.name);
            place(&folder.join(entry.name), &bytes)?;
        }
        Ok(())
    }
}

impl Entry<'_> {
    fn is_of(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == self.length && hexadecimal(&Sha256::digest(bytes)) == self.digest
    }

    /// Whether a file has these bytes.
    fn is_whole(&self, file: &Path) -> bool {
        let read = || {
            let mut bytes = Vec::new();
            File::open(file)?.take(self.length + 1).read_to_end(&mut bytes)?;
            io::Result::Ok(bytes)
        };
        read().is_ok_and(|bytes| self.is_of(&bytes))
    }
}

/// Reads a line of the list. A name is one of a file in the folder itself.
fn entry(line: &str) -> Option<Entry<'_>> {
    let mut words = line.split(' ');
    let (name, length, digest) = (words.next()?, words.next()?.parse().ok()?, words.next()?);
    let is_plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    (is_plain && length <= FILE_MAX && digest.len() == 64 && words.next().is_none())
        .then_some(Entry { name, length, digest })
}

/// Directories in which the files may be unpacked, best first.
fn places() -> impl Iterator<Item = Result<PathBuf>> {
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let cache = cache.map(|cache| cache.join("roce")).context("neither XDG_CACHE_HOME nor HOME");
    let temporary = || private_directory().context("the directory for temporary files");
    std::iter::once(cache).chain(std::iter::once_with(temporary))
}

/// Makes a folder that only this user can write, or checks that an existing one is. Another user's
/// library would run in this user's programs.
fn make_private(folder: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let there = fs::symlink_metadata(folder)?;
    let own = rustix::process::geteuid().as_raw();
    ensure!(there.is_dir(), "it is no directory");
    ensure!(there.uid() == own, "it belongs to another user");
    ensure!(there.mode() & 0o022 == 0, "other users can write it");
    Ok(())
}

/// Puts a file in its place in one step, so that a program that is being started finds all of it.
fn place(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let unfinished = file.with_extension(format!("unfinished-{}", std::process::id()));
    let write = || {
        let mut out = File::options().write(true).create_new(true).mode(0o755).open(&unfinished)?;
        out.write_all(bytes)?;
        fs::rename(&unfinished, file)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&unfinished);
    })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const FILES: [(&str, &[u8]); 2] = [("one", b"first"), ("two", b"the second")];

    fn packed() -> Vec<u8> {
        let list = FILES.map(|(name, bytes)| {
            format!("{name} {} {}\n", bytes.len(), hexadecimal(&Sha256::digest(bytes)))
        });
        let bytes = FILES.map(|(_, bytes)| bytes).concat();
        [list.concat().as_bytes(), b"\n", &zstd::encode_all(&bytes[..], 3).unwrap()].concat()
    }

    /// A folder of a test's own, which is removed with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            Self(env::temp_dir().join(format!("roce-bundle-{}-{name}", std::process::id())))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_are_unpacked_once_and_anew_when_damaged() {
        let (bytes, folder) = (packed(), Folder::new("unpack"));
        let bundle = Bundle::read(&bytes).unwrap();
        let check = || {
            bundle.unpack_to(&folder.0).unwrap();
            for (name, bytes) in FILES {
                assert_eq!(fs::read(folder.0.join(name)).unwrap(), bytes);
            }
            fs::metadata(folder.0.join("one")).unwrap().ino()
        };
        let first = check();
        assert_eq!(check(), first);
        for damage in [&b"FIRST"[..], b"first and more", b""] {
            fs::write(folder.0.join("one"), damage).unwrap();
            check();
        }
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2);
        assert_eq!(fs::metadata(&folder.0).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn folder_that_others_can_write_is_refused() {
        let (bytes, folder) = (packed(), Folder::new("shared"));
        fs::create_dir(&folder.0).unwrap();
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Bundle::read(&bytes).unwrap().unpack_to(&folder.0).unwrap_err();
        assert_eq!(refused.to_string(), "other users can write it");
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    }

    #[test]
    fn damaged_bundle_is_refused() {
        let whole = packed();
        let start = whole.windows(2).position(|pair| pair == b"\n\n").unwrap();
        for at in [0, start] {
            assert!(Bundle::read(&whole[..at]).is_err());
        }
        let other = String::from_utf8_lossy(&whole[..start]).replace("one", "../one");
        assert!(Bundle::read(&[other.as_bytes(), b"\n\n"].concat()).is_err());
        let folder = Folder::new("damaged");
        for end in [start + 2, whole.len() - 1] {
            assert!(Bundle::read(&whole[..end]).unwrap().unpack_to(&folder.0).is_err());
        }
        let mut wrong = whole;
        wrong[6] ^= 1; // a digit of the first length or digest
        let refused = Bundle::read(&wrong).and_then(|bundle| bundle.unpack_to(&folder.0));
        assert!(refused.is_err());
    }
}
