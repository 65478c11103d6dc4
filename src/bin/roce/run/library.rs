//! Finds the libibverbs.so.1 whose devices are soft NICs.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::files::find_program;

/// File name that programs search.
pub(super) const NAME: &str = "libibverbs.so.1";

/// Bytes that only our library has; `tools/ibverbs/install` puts them into an ELF note.
const MARK: &[u8] = b"roce libibverbs over soft NICs";

/// Maximum size of a library that is searched for the mark.
const LIBRARY_MAX: u64 = 1 << 30;

/// The directory of the library, as the dynamic linker can be told of it.
pub(super) fn find() -> Result<PathBuf> {
    let file = match env::var_os("ROCE_LIBRARY") {
        Some(given) => given_library(&given)?,
        None => installed_library()?,
    };
    let refused = || format!("{} cannot be used", file.display());
    ensure!(is_ours(&file).with_context(refused)?, not_ours(&file));
    let directory = file.parent().unwrap_or_else(|| Path::new("/")).to_owned();
    // The linker would take its parts for several directories, some of them relative to the current
    // one.
    if !is_one_search_path(&directory) {
        bail!(
            "{}: the dynamic linker cannot search a directory with ':', ';' or '$' in its name; install the library \
             elsewhere with `tools/ibverbs/install --prefix DIR`, or name a copy with ROCE_LIBRARY",
            directory.display()
        );
    }
    Ok(directory)
}

/// The library that ROCE_LIBRARY names, by its file or its directory.
fn given_library(given: &OsString) -> Result<PathBuf> {
    ensure!(!given.is_empty(), "ROCE_LIBRARY is empty; unset it, or name {NAME} or its directory");
    let given = PathBuf::from(given);
    let file = if given.is_dir() { given.join(NAME) } else { given.clone() };
    ensure!(file.is_file(), "ROCE_LIBRARY: there is no {NAME} at {}", given.display());
    let is_named_so = file.file_name().is_some_and(|name| name == NAME);
    ensure!(
        is_named_so,
        "ROCE_LIBRARY: programs look for the name {NAME}, which {} has not",
        given.display()
    );
    Ok(std::path::absolute(file)?)
}

/// The library in the first directory that has one.
fn installed_library() -> Result<PathBuf> {
    let directories = directories();
    let found =
        directories.iter().map(|directory| directory.join(NAME)).find(|file| file.is_file());
    found.with_context(|| {
        let list: Vec<String> =
            directories.iter().map(|directory| directory.display().to_string()).collect();
        format!(
            "there is no {NAME} of roce in {}; `tools/ibverbs/install` builds and installs it, and ROCE_LIBRARY names \
             another directory{}",
            list.join(", "),
            if env::current_exe().is_ok() { "" } else { NO_PROC }
        )
    })
}

/// Message for an unknown directory of this command.
const NO_PROC: &str =
    "; /proc is not mounted, so where this command is was guessed from how it was called";

/// The file of this command. Without /proc it is the one by whose name the command was called.
fn own_file() -> Option<PathBuf> {
    if let Ok(known) = env::current_exe() {
        return Some(known);
    }
    let called = find_program(&env::args_os().next()?)?;
    std::fs::canonicalize(called).ok()
}

/// Returns the directories in which the library is searched: beside this command, and where
/// `install` puts it.
fn directories() -> Vec<PathBuf> {
    let mut directories = Vec::new();
    if let Some(bin) = own_file().as_deref().and_then(Path::parent) {
        directories.extend([bin.join("../lib/roce"), bin.join("ibverbs")]);
    }
    directories.extend(home_directory(env::var_os("HOME")));
    directories.extend(["/usr/local/lib/roce", "/usr/lib/roce"].map(PathBuf::from));
    directories
}

/// The directory below the home directory. With an empty or relative HOME it would be one below the
/// current directory, where anyone may have put a library.
fn home_directory(home: Option<OsString>) -> Option<PathBuf> {
    let home = PathBuf::from(home?);
    home.is_absolute().then(|| home.join(".local/lib/roce"))
}

/// Whether the dynamic linker takes it for one directory, and as it is.
fn is_one_search_path(directory: &Path) -> bool {
    !directory.as_os_str().as_bytes().iter().any(|byte| b":;$".contains(byte))
}

/// Whether a file is an ELF file with our mark in it.
fn is_ours(file: &Path) -> io::Result<bool> {
    let mut bytes = Vec::new();
    File::open(file)?.take(LIBRARY_MAX).read_to_end(&mut bytes)?;
    Ok(bytes.starts_with(b"\x7fELF") && find_bytes(&bytes, MARK))
}

/// Whether `part` is in `whole`.
fn find_bytes(whole: &[u8], part: &[u8]) -> bool {
    let Some((first, _)) = part.split_first() else { return true };
    let mut rest = whole;
    while let Some(at) = rest.iter().position(|byte| byte == first) {
        if rest[at..].starts_with(part) {
            return true;
        }
        rest = &rest[at + 1..];
    }
    false
}

fn not_ours(file: &Path) -> String {
    format!(
        "{} is not the library of roce, so its devices are no soft NICs; `tools/ibverbs/install` builds and installs ours",
        file.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_that_is_not_absolute_is_ignored() {
        let directory = |home: &str| home_directory(Some(home.into()));
        assert_eq!(directory("/home/user"), Some("/home/user/.local/lib/roce".into()));
        assert_eq!(
            [directory(""), directory("."), directory("user"), home_directory(None)],
            [const { None }; 4]
        );
    }

    #[test]
    fn directories_that_the_linker_would_split_are_refused() {
        for (directory, one) in
            [("/a b/lib", true), ("/a:b", false), ("/a;b", false), ("/$LIB/roce", false)]
        {
            assert_eq!(is_one_search_path(Path::new(directory)), one, "{directory}");
        }
    }

    #[test]
    fn mark_is_found_wherever_it_is() {
        assert!(find_bytes(b"rrrroce", b"rroce"));
        assert!(!find_bytes(b"rrrroc", b"rroce"));
        assert!(find_bytes(b"x", b"") && !find_bytes(b"", b"x"));
    }
}
