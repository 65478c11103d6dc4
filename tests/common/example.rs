//! Examples, run as a user runs them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::PathBuf;
use std::process::Command;

/// An example that cargo has built with the tests, or builds now.
pub(crate) fn example(name: &str) -> Command {
    let own = std::env::current_exe().unwrap();
    let path: PathBuf = own.ancestors().nth(2).unwrap().join("examples").join(name);
    if !path.exists() {
        let cargo = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--offline", "--example", name])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(cargo.unwrap().success());
    }
    Command::new(path)
}
