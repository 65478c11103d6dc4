//! Finds the libibverbs.so.1 whose devices are soft NICs.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};

use super::bundle;
use super::files::find_program;

/// File name that programs search.
pub(crate) const NAME: &str = "libibverbs.so.1";

/// Bytes that only our library has; `tools/ibverbs/install` puts them into an ELF note.
const MARK: &[u8] = b"roce libibverbs over soft NICs";

/// Maximum size of a library that is searched for the mark.
const LIBRARY_MAX: u64 = 1 << 30;

/// Version that the library must have: the command's.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A library that was found.
#[derive(Debug)]
pub(crate) struct Library {
    /// File of the library.
    pub(crate) file: PathBuf,
    /// Way by which it was found.
    pub(crate) origin: Origin,
}

/// Way by which a library is found, in the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `ROCE_LIBRARY` names it.
    Given,
    /// It is installed.
    Installed,
    /// This command carries it.
    Carried,
}

/// The directory of the library, as the dynamic linker can be told of it.
pub(super) fn find() -> Result<PathBuf> {
    let file = locate()?.file;
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

/// Finds the library: the one that is named, else the first installed one of this command's
/// version, else the one that this command carries.
pub(crate) fn locate() -> Result<Library> {
    ensure!(
        !cfg!(target_env = "musl"),
        "this static command has no library for programs; roce run needs glibc 2.28 or later and the command for it"
    );
    if let Some(given) = env::var_os("ROCE_LIBRARY") {
        let file = given_library(&given)?;
        check(&file).context("ROCE_LIBRARY")?;
        return Ok(Library { file, origin: Origin::Given });
    }
    let installed: Vec<PathBuf> = installed_libraries();
    let mut refusals = Vec::new();
    for file in installed {
        match check(&file) {
            Ok(()) => return Ok(Library { file, origin: Origin::Installed }),
            Err(refusal) => refusals.push(refusal),
        }
    }
    if let Some(bundle) = bundle::carried()? {
        return Ok(Library { file: bundle.unpack()?.join(NAME), origin: Origin::Carried });
    }
    Err(refusals.into_iter().next().unwrap_or_else(not_installed))
}

/// Checks that a file is our library, and of this command's version: the two agree on variables of
/// the environment and on files.
fn check(file: &Path) -> Result<()> {
    let refused = || format!("{} cannot be used", file.display());
    match inspect(file).with_context(refused)? {
        Kind::Ours(version) if version == VERSION => Ok(()),
        Kind::Ours(version) => bail!(
            "{} is of roce {version} and this command of {VERSION}; install the library of this version, or remove \
             that one",
            file.display()
        ),
        Kind::Foreign => bail!(not_ours(file)),
    }
}

/// The library that ROCE_LIBRARY names, by its file or its directory.
fn given_library(given: &OsString) -> Result<PathBuf> {
    ensure!(!given.is_empty(), "ROCE_LIBRARY is empty; unset it, or name {NAME} or its directory");
    let given = PathBuf::from(given);
    let file = if given.is_dir() { given.join(NAME) } else { given.clone() };
    ensure!(
        file.is_file(),
        "ROCE_LIBRARY: there is no {NAME} at {}; unset it, or name the directory that has it",
        given.display()
    );
    let is_named_so = file.file_name().is_some_and(|name| name == NAME);
    ensure!(
        is_named_so,
        "ROCE_LIBRARY: programs look for the name {NAME}, which {} has not",
        given.display()
    );
    Ok(std::path::absolute(file)?)
}

/// The libraries that are installed, in the order of precedence.
fn installed_libraries() -> Vec<PathBuf> {
    let files = directories().into_iter().map(|directory| directory.join(NAME));
    files.filter(|file| file.is_file()).collect()
}

fn not_installed() -> anyhow::Error {
    let list: Vec<String> =
        directories().iter().map(|directory| directory.display().to_string()).collect();
    anyhow!(
        "there is no {NAME} of roce in {}{}, and `cargo install` does not build it; run `tools/ibverbs/install` in the \
         source of roce {VERSION}, or install a released wheel, package or tarball, which have it",
        list.join(", "),
        if env::current_exe().is_ok() { "" } else { NO_PROC }
    )
}

/// Message for an unknown directory of this command.
const NO_PROC: &str =
    " (/proc is not mounted, so where this command is was guessed from how it was called)";

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

/// Owner of a library.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    /// A library of roce, of this version.
    Ours(String),
    /// Any other file.
    Foreign,
}

/// Looks into a library for our mark, which is followed by the version.
fn inspect(file: &Path) -> io::Result<Kind> {
    let mut bytes = Vec::new();
    File::open(file)?.take(LIBRARY_MAX).read_to_end(&mut bytes)?;
    Ok(kind_of(&bytes))
}

fn kind_of(library: &[u8]) -> Kind {
    let after = find_bytes(library, MARK).filter(|_| library.starts_with(b"\x7fELF"));
    let Some(after) = after else { return Kind::Foreign };
    let is_version = |byte: &&u8| byte.is_ascii_alphanumeric() || b".-+".contains(byte);
    let version = after.strip_prefix(b", version ").unwrap_or_default().iter();
    let version: String =
        version.take_while(is_version).take(64).copied().map(char::from).collect();
    Kind::Ours(if version.is_empty() { "an older version".to_owned() } else { version })
}

/// Returns what follows `part` in `whole`.
fn find_bytes<'a>(whole: &'a [u8], part: &[u8]) -> Option<&'a [u8]> {
    let (first, _) = part.split_first()?;
    let mut rest = whole;
    while let Some(at) = rest.iter().position(|byte| byte == first) {
        if let Some(after) = rest[at..].strip_prefix(part) {
            return Some(after);
        }
        rest = &rest[at + 1..];
    }
    None
}

fn not_ours(file: &Path) -> String {
    format!(
        "{} is not the library of roce, so its devices are no soft NICs; unset ROCE_LIBRARY or remove that file, and if \
         there is no other, `tools/ibverbs/install` installs ours",
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
    fn mark_and_version_are_found_wherever_they_are() {
        let ours = |version: &str| Kind::Ours(version.to_owned());
        let mark = str::from_utf8(MARK).unwrap();
        for (text, kind) in [
            (format!("\x7fELF rroce {mark}, version 1.2.3-rc.1\0x"), ours("1.2.3-rc.1")),
            (format!("\x7fELF {mark}\0"), ours("an older version")),
            (format!("\x7fELF {}", &mark[1..]), Kind::Foreign),
            (format!("{mark}, version 1.2.3"), Kind::Foreign),
        ] {
            assert_eq!(kind_of(text.as_bytes()), kind, "{text}");
        }
        assert_eq!(find_bytes(b"rrrroce!", b"rroce"), Some(&b"!"[..]));
    }
}
