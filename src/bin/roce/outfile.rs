//! Files that the user names for output: checked before the run whose results they are to hold.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};

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

/// The same for a capture, which replaces an older capture or an empty file, but no other file.
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
}
