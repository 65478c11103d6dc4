//! Files that the user names for output: checked before the run whose results they are to hold, and
//! replaced as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

/// A file that is written as a whole. Until it is finished, its name keeps what it had before: a
/// run that fails, or is killed, or finds the disk full leaves no half of a result.
///
/// The bytes go into a file without a name in the same folder, which the system removes with the
/// process. Where a file system has no such files, its name begins with a dot and ends with
/// `.unfinished`. What is no ordinary file, such as a pipe, and a file in a folder that cannot be
/// written, is written in place.
#[derive(Debug)]
pub(crate) struct WholeFile {
    out: BufWriter<File>,
    /// The file as errors name it, with the option that named it.
    named: String,
    place: Place,
}

/// Location of the bytes of a file until it is finished.
#[derive(Debug)]
enum Place {
    /// The file itself.
    Itself,
    /// A file without a name, which becomes the file at the path.
    Unnamed(PathBuf),
    /// A temporary file, the first path, which is renamed to the second.
    Beside(PathBuf, PathBuf),
}

/// Number of bytes that are written at once.
const PIECE: usize = 256 << 10;

impl WholeFile {
    /// Begins a file. `named` says in errors which it is: the option that names it, and its path.
    pub(crate) fn create(named: impl Into<String>, path: &Path) -> Result<Self> {
        let named = named.into();
        let (file, place) = open(path).with_context(|| named.clone())?;
        Ok(Self { out: BufWriter::with_capacity(PIECE, file), named, place })
    }

    /// Writes all of a file at once.
    pub(crate) fn write(named: impl Into<String>, path: &Path, bytes: &[u8]) -> Result<()> {
        let mut file = Self::create(named, path)?;
        let written = file.write_all(bytes);
        written.with_context(|| file.named.clone())?;
        file.finish()
    }

    /// Gives the file its name. Everything is on the disk then, or the error says why not.
    pub(crate) fn finish(self) -> Result<()> {
        self.seal()?.publish()
    }

    /// Writes what is left. What [`SealedFile::publish`] does then needs no room on the disk.
    pub(crate) fn seal(mut self) -> Result<SealedFile> {
        let named = self.named.clone();
        let sealed = self.out.flush().and_then(|()| {
            // Some file systems find out only here that the disk is full. A pipe cannot be
            // synchronized.
            match self.out.get_ref().sync_data() {
                Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
                done => done,
            }
        });
        sealed.with_context(|| named)?;
        Ok(SealedFile(self))
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A file that has all its bytes, but not its name yet.
#[derive(Debug)]
pub(crate) struct SealedFile(WholeFile);

impl SealedFile {
    /// Gives the file its name.
    pub(crate) fn publish(self) -> Result<()> {
        let WholeFile { out, place, named } = &self.0;
        publish(out.get_ref(), place).with_context(|| named.clone())
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if let Place::Beside(unfinished, _) = &self.place {
            // If the file was finished, it was renamed, and this removes nothing.
            let _ = fs::remove_file(unfinished);
        }
    }
}

/// Opens the file to write to.
fn open(path: &Path) -> io::Result<(File, Place)> {
    let mut in_place = OpenOptions::new();
    in_place.write(true).create(true).truncate(true);
    // What a symbolic link names is replaced, not the link.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let old = fs::metadata(&path).ok();
    let is_link = fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
    if is_link || old.as_ref().is_some_and(|found| !found.is_file()) {
        return Ok((in_place.open(&path)?, Place::Itself));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let opened = match open_unnamed(folder) {
        Ok(file) => Ok((file, Place::Unnamed(path.clone()))),
        Err(_) => open_beside(folder).map(|(file, name)| (file, Place::Beside(name, path.clone()))),
    };
    match opened {
        Ok((file, place)) => {
            if let Some(old) = old {
                file.set_permissions(old.permissions())?;
            }
            Ok((file, place))
        }
        Err(error)
            if old.is_some()
                && matches!(
                    error.kind(),
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
                ) =>
        {
            Ok((in_place.open(&path)?, Place::Itself))
        }
        Err(error) => Err(error),
    }
}

/// Opens a file for what a run keeps for itself. It goes with the process.
#[cfg(feature = "parquet")]
pub(crate) fn scratch(folder: &Path) -> io::Result<File> {
    open_unnamed(folder).or_else(|_| {
        let name = unfinished_name(folder);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&name)?;
        fs::remove_file(name)?;
        Ok(file)
    })
}

/// Opens a file without a name, if it can be given one later.
fn open_unnamed(folder: &Path) -> io::Result<File> {
    fs::metadata("/proc/self/fd")?;
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, folder, flags, Mode::from_raw_mode(0o666))?.into())
}

/// Opens a new file with a name of its own.
fn open_beside(folder: &Path) -> io::Result<(File, PathBuf)> {
    let name = unfinished_name(folder);
    let file = OpenOptions::new().write(true).create_new(true).open(&name)?;
    Ok((file, name))
}

/// A name that no other file of this process has, nor one of another.
fn unfinished_name(folder: &Path) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!(".roce-{}-{count}.unfinished", std::process::id()))
}

/// Gives a file its name, in place of what had it.
fn publish(file: &File, place: &Place) -> io::Result<()> {
    let (unfinished, path) = match place {
        Place::Itself => return Ok(()),
        Place::Beside(unfinished, path) => (unfinished.clone(), path),
        Place::Unnamed(path) => {
            use std::os::fd::AsRawFd as _;
            let folder = path.parent().unwrap_or_else(|| Path::new("."));
            let unfinished = unfinished_name(folder);
            let own = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(CWD, own, CWD, &unfinished, AtFlags::SYMLINK_FOLLOW)?;
            (unfinished, path)
        }
    };
    let done = match fs::rename(&unfinished, path) {
        // A file that a container mounts has its name for good, and can be written only in place.
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            fs::copy(&unfinished, path).map(drop)
        }
        done => done,
    };
    // If the file was renamed, this removes nothing.
    let _ = fs::remove_file(&unfinished);
    done
}

/// Checks that a file can be written, without changing it. `flag` is the option that named it.
pub(crate) fn check_writable(flag: &str, path: &Path) -> Result<()> {
    let named = || format!("{flag} {}", path.display());
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => bail!("{}: is a directory; name a file", named()),
        // Opening a pipe or a device may wait, or have effects.
        Ok(found) if !found.is_file() => Ok(()),
        Ok(_) => OpenOptions::new().append(true).open(path).map(drop).with_context(named),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // Only creating it tells whether it can be created.
            OpenOptions::new().write(true).create_new(true).open(path).with_context(named)?;
            fs::remove_file(path).with_context(named)
        }
        Err(error) => Err(error).with_context(named),
    }
}

/// Checks that a file other than a capture can be written: it replaces no capture, and no file
/// that the command reads.
pub(crate) fn check_report(flag: &str, path: &Path, read: &[PathBuf]) -> Result<()> {
    if path == "-" {
        bail!("{flag} -: standard output has other text; name a file");
    }
    check_writable(flag, path)?;
    check_not_read(flag, path, read)?;
    if fs::metadata(path).is_ok_and(|found| found.is_file()) && roce::capture::open(path).is_ok() {
        bail!("{flag} {}: is a capture; choose another name", path.display());
    }
    Ok(())
}

/// Checks that a file is none of those that the command reads.
pub(crate) fn check_not_read(flag: &str, path: &Path, read: &[PathBuf]) -> Result<()> {
    let Ok(out) = fs::canonicalize(path) else { return Ok(()) };
    match read.iter().find(|input| fs::canonicalize(input).is_ok_and(|input| input == out)) {
        None => Ok(()),
        Some(input) => bail!(
            "{flag} {}: is {}, which is read; choose another name",
            path.display(),
            input.display()
        ),
    }
}

/// Checks that a capture can be written: it replaces an older capture or an empty file, but no
/// other file.
pub(crate) fn check_capture(flag: &str, path: &Path) -> Result<()> {
    check_writable(flag, path)?;
    let Ok(found) = fs::metadata(path) else { return Ok(()) };
    if found.is_file() && found.len() > 0 && roce::capture::open(path).is_err() {
        bail!(
            "{flag} {}: the file exists and is no capture; remove it or choose another name",
            path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn refused(check: fn(&str, &Path) -> Result<()>, path: &Path) -> String {
        format!("{:#}", check("--pcap", path).unwrap_err())
    }

    /// A directory of this test's own, which is removed with it.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("roce-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn report_replaces_no_capture_and_no_file_that_is_read() {
        let scratch = Scratch::new("report");
        let [capture, hosts, old] = ["c.pcap", "hosts", "r.html"].map(|name| scratch.0.join(name));
        let header = [[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0], [0; 8], [0, 0, 4, 0, 1, 0, 0, 0]];
        fs::write(&capture, header.concat()).unwrap();
        fs::write(&hosts, "10.0.0.1").unwrap();
        fs::write(&old, "<!DOCTYPE html>").unwrap();
        let check = |path: &Path| check_report("--html", path, std::slice::from_ref(&hosts));
        let refused = |path: &Path| format!("{:#}", check(path).unwrap_err());
        assert!(refused(&capture).ends_with("c.pcap: is a capture; choose another name"));
        assert!(refused(&hosts).ends_with("hosts, which is read; choose another name"));
        assert!(refused(Path::new("-")).contains("name a file"));
        check(&old).unwrap();
        check(&scratch.0.join("new.html")).unwrap();
    }

    #[test]
    fn unwritable_path_is_refused_with_flag_and_path() {
        let scratch = Scratch::new("unwritable");
        let missing = scratch.0.join("none/results");
        let error = refused(check_writable, &missing);
        assert!(error.contains("--pcap") && error.contains("none/results"), "{error}");
        assert!(refused(check_writable, &scratch.0).contains("is a directory"));
        let below_file = Path::new("/dev/null/results");
        assert!(refused(check_writable, below_file).contains("--pcap /dev/null/results"));
    }

    #[test]
    fn check_leaves_files_as_they_are() {
        let scratch = Scratch::new("unchanged");
        let new = scratch.0.join("new");
        check_capture("--pcap", &new).unwrap();
        assert!(!new.exists());
        let old = scratch.0.join("old");
        fs::write(&old, "results of yesterday").unwrap();
        check_writable("--junit", &old).unwrap();
        assert_eq!(fs::read(&old).unwrap(), b"results of yesterday");
        check_writable("--junit", Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn capture_replaces_captures_and_empty_files_only() {
        let scratch = Scratch::new("capture");
        let file = scratch.0.join("file");
        fs::write(&file, "notes").unwrap();
        let error = refused(check_capture, &file);
        assert!(error.contains("the file exists and is no capture"), "{error}");
        assert_eq!(fs::read(&file).unwrap(), b"notes");
        fs::write(&file, "").unwrap();
        check_capture("--pcap", &file).unwrap();
        let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/captures/vectors.pcap");
        fs::copy(capture, &file).unwrap();
        check_capture("--pcap", &file).unwrap();
        check_capture("--pcap", Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn unfinished_file_leaves_the_old_one() {
        let scratch = Scratch::new("whole");
        let path = scratch.0.join("result");
        fs::write(&path, "results of yesterday").unwrap();
        let mut file = WholeFile::create("--html", &path).unwrap();
        file.write_all(b"half of a res").unwrap();
        file.flush().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"results of yesterday");
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"results of yesterday");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1, "nothing unfinished is left");
        WholeFile::write("--html", &path, b"results of today").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"results of today");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1, "nothing unfinished is left");
    }

    #[test]
    fn every_place_publishes_and_keeps_permissions() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let scratch = Scratch::new("places");
        let path = scratch.0.join("result");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        // By a symbolic link.
        let link = scratch.0.join("link");
        symlink(&path, &link).unwrap();
        WholeFile::write("-w", &link, b"one").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        // Where files cannot be without a name.
        let (file, unfinished) = open_beside(&scratch.0).unwrap();
        let place = Place::Beside(unfinished, path.clone());
        let mut file = WholeFile { out: BufWriter::new(file), named: "-w".into(), place };
        file.write_all(b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        file.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 2, "nothing unfinished is left");
        WholeFile::write("-w", Path::new("/dev/null"), b"three").unwrap();
        let full = WholeFile::write("-w /dev/full", Path::new("/dev/full"), b"four").unwrap_err();
        assert!(format!("{full:#}").contains("-w /dev/full: No space left"), "{full:#}");
    }
}
