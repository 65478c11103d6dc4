//! The files of a program's devices: their form, and the way the program sees them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use roce::ibverbs::files::{DeviceFiles, Tree};
use roce::link::{NamedSpec, Spec};

use super::namespace::{self, User};
use crate::output::say;

/// Form in which a program sees the files of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A mount namespace: real files, for every program and every way of looking at them.
    Namespace,
    /// Through a preloaded library that redirects calls of libc.
    Preload,
}

/// The variable that overrides the choice.
const CHOICE: &str = "ROCE_FILES";

/// The variable that is set for a copy of this command that finds out whether a namespace works.
const PROBE: &str = "ROCE_RUN_PROBE";

/// Environment variable with the directory of the files, for the program and the library in it.
const TREE: &str = "ROCE_TREE";

/// Tries, if this process is such a copy, and returns the exit status.
pub(super) fn probe() -> Option<Result<()>> {
    env::var_os(PROBE)?;
    let entered = namespace::enter(User::New, &Tree::new(&[]));
    Some(entered.context("a mount namespace with the files"))
}

/// Decides how a program sees the files of its devices.
pub(super) fn choose(program: &OsStr) -> Result<Form> {
    match env::var(CHOICE).as_deref() {
        Ok("namespace") => Ok(Form::Namespace),
        Ok("preload") => Ok(Form::Preload),
        Ok("") | Err(_) => Ok(match would_lose(program) || namespace_refusal().is_some() {
            true => Form::Preload,
            false => Form::Namespace,
        }),
        Ok(other) => bail!("{CHOICE}={other}: it is 'namespace' or 'preload'"),
    }
}

/// Whether a program would lose something in a user namespace of its own.
fn would_lose(program: &OsStr) -> bool {
    is_privileged() || find_program(program).is_some_and(|file| gains_privilege(&file))
}

/// Whether this process can do more than an ordinary user's: it would lose raw sockets, for one.
/// A status that cannot be read counts as privilege.
fn is_privileged() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let capabilities = field("CapEff:").and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let user = field("Uid:").and_then(|text| text.split_whitespace().next());
    capabilities != Some(0) || user.is_none_or(|user| user == "0")
}

/// The file of a program, as `execvp` finds it; it may not be there if the name is a path.
pub(super) fn find_program(name: &OsStr) -> Option<PathBuf> {
    if name.as_encoded_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// Whether a program has more privilege than its caller: it is setuid, setgid, or has capabilities.
fn gains_privilege(file: &Path) -> bool {
    const SETUID_SETGID: u32 = 0o6000;
    let mut capabilities = [0_u8; 64];
    fs::metadata(file).is_ok_and(|there| there.mode() & SETUID_SETGID != 0)
        || rustix::fs::getxattr(file, "security.capability", &mut capabilities).is_ok()
}

/// Returns the reason for which the caller cannot have a mount namespace with the files, if it
/// cannot. What was entered cannot be left, so a copy of this command tries.
pub(super) fn namespace_refusal() -> Option<String> {
    let mut copy = Command::new("/proc/self/exe");
    copy.args(["run", "--", "true"]).env(PROBE, "1");
    copy.stdin(Stdio::null()).stdout(Stdio::null());
    match copy.output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next().unwrap_or_default();
            Some(said.rsplit(": ").next().unwrap_or_default().to_owned())
        }
        Err(error) => Some(error.to_string()),
    }
}

/// Lets the program that is about to be run see the files of its devices, and preloads the library,
/// which a program may otherwise not find: it can have its own search path (DT_RPATH), or a renamed
/// copy of libibverbs.
///
/// This is the last thing before the program is run: in a namespace, this process has its devices'
/// files itself.
pub(super) fn show(
    command: &mut Command,
    form: Form,
    devices: &[NamedSpec],
    library: &Path,
    redirect: &Path,
) -> Result<()> {
    let mut preload = Vec::new();
    let tree = tree_of(devices)?;
    match form {
        Form::Namespace => {
            namespace::enter(User::Shared, &tree).context(
                "cannot make a mount namespace with the files of devices; ROCE_FILES=preload needs none",
            )?;
            command.env(TREE, "/");
        }
        Form::Preload if redirect.is_file() => match tree.write_shared() {
            Ok(root) => {
                command.env(TREE, root);
                preload.push(redirect);
            }
            Err(error) => {
                command.env_remove(TREE);
                say!(
                    "cannot write the files of devices: {error}; the program will not see them; set TMPDIR to a \
                     directory that can be written"
                );
            }
        },
        Form::Preload => {
            command.env_remove(TREE);
        }
    }
    preload.push(library);
    if let Some(path) = preload.iter().find(|path| !can_be_listed(path)) {
        say!(
            "cannot preload {}: its path has a space, ':' or '$'; a program with its own libibverbs will not find \
             the devices, and files of devices can be missing",
            path.display()
        );
        return Ok(());
    }
    command.env("LD_PRELOAD", first_of("LD_PRELOAD", &preload));
    // A program with an address sanitizer would not start: it wants to be the first.
    let unordered = [Path::new("verify_asan_link_order=0")];
    command.env("ASAN_OPTIONS", first_of("ASAN_OPTIONS", &unordered));
    Ok(())
}

/// The files of these devices, named as the library names them.
fn tree_of(devices: &[NamedSpec]) -> Result<Tree> {
    let devices = match devices {
        [] => {
            let all = Spec::of_every_interface().context("cannot list the interfaces")?;
            all.into_iter().map(NamedSpec::from).collect()
        }
        given => given.to_vec(),
    };
    let files = devices
        .iter()
        .enumerate()
        .map(|(index, device)| DeviceFiles::of_spec(&device.spec, &device.name_at(index), index));
    Ok(Tree::new(&files.collect::<Vec<_>>()))
}

/// A list, separated by colons: these, and then what the environment has in it already.
pub(super) fn first_of(name: &str, items: &[&Path]) -> OsString {
    let mut list = OsString::new();
    let others = env::var_os(name).filter(|others| !others.is_empty());
    for item in items.iter().map(|item| item.as_os_str()).chain(others.as_deref()) {
        if !list.is_empty() {
            list.push(":");
        }
        list.push(item);
    }
    list
}

/// Whether the dynamic linker takes it for one path.
fn can_be_listed(path: &Path) -> bool {
    path.to_str().is_some_and(|path| !path.contains([' ', ':', '$']))
}
