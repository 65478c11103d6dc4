//! The library of `roce run`: found, of this version, loadable, and not shadowed by another.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Result, ensure};

use super::Finding;
use crate::run::library::{self, Library, NAME, Origin};

const CHECK: &str = "library";

/// Name of the probe that sees whether the library was loaded.
pub(super) const PROBE: &str = "library";

pub(super) fn check() -> Vec<Finding> {
    let found = match library::locate() {
        Ok(found) => found,
        Err(error) => {
            let text = format!("{error:#}");
            // Its messages end with what to do.
            let (finding, cure) = text.rsplit_once("; ").unwrap_or((&text, "install the library"));
            return vec![Finding::failure(CHECK, finding, cure)];
        }
    };
    let mut findings = vec![loaded(&found)];
    findings.extend(shadows());
    findings
}

/// Loads the library into a copy of this command, as it is loaded into a program.
fn loaded(found: &Library) -> Finding {
    let file = found.file.display();
    let tried = super::probe(PROBE, |copy| {
        copy.env("LD_PRELOAD", &found.file).stdout(Stdio::null());
    });
    let origin = match found.origin {
        Origin::Given => ", named by ROCE_LIBRARY",
        Origin::Installed => "",
        Origin::Carried => ", which this command carried",
    };
    match tried {
        Ok(()) => Finding::ok(CHECK, format!("{file}{origin}, version {}", library::VERSION)),
        Err(why) => Finding::failure(
            CHECK,
            format!("{file}{origin} cannot be loaded: {why}"),
            "install it for this system: the dynamic linker is glibc's, and the path has no space, ':' or '$'",
        ),
    }
}

/// Checks that the library is in this process, where the dynamic linker was told to put it.
pub(super) fn try_probe() -> Result<()> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let wanted = fs::canonicalize(env::var("LD_PRELOAD")?)?;
    let is_loaded = maps.lines().any(|line| line.ends_with(&*wanted.to_string_lossy()));
    ensure!(is_loaded, "the dynamic linker did not load it");
    Ok(())
}

/// Other libraries with the same name that variables put into programs.
fn shadows() -> Option<Finding> {
    let list = |name: &str| env::var_os(name).unwrap_or_default();
    let searched = env::split_paths(&list("LD_LIBRARY_PATH"))
        .map(|directory| directory.join(NAME))
        .filter(|file| file.is_file())
        .collect::<Vec<PathBuf>>();
    let preloaded = env::split_paths(&list("LD_PRELOAD"))
        .filter(|file| file.file_name().is_some_and(|name| name == NAME))
        .collect::<Vec<PathBuf>>();
    let variable = match (searched.first(), preloaded.first()) {
        (_, Some(file)) => ("LD_PRELOAD", file),
        (Some(file), _) => ("LD_LIBRARY_PATH", file),
        (None, None) => return None,
    };
    Some(shadow(variable.0, variable.1))
}

fn shadow(variable: &str, file: &Path) -> Finding {
    Finding::warning(
        "shadow",
        format!(
            "{variable} has another {}; roce run puts its own first, but a program that sets the variable anew gets \
             that one",
            file.display()
        ),
        format!("unset {variable}"),
    )
}
