//! Examples, run as a user runs them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::process::Command;
use std::path::PathBuf;

/// An example that cargo has built with the tests, or builds now.
pub(crate) fn example(name: &str) -> Command {
    let own = std::env::current_exe().unwrap();
    let path: PathBuf = own.ancestors().nth(2).unwrap().join("examples").join(name);
    if !path.exists() {
        let cargo = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--offline", "--example", name])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .deadline(std::time::Duration::from_secs(1200))
            .status();
        assert!(cargo.unwrap().success());
    }
    Command::new(path)
}

/// Runs examples with wrong arguments: each names them in one line, which begins as it should, with
/// status 1.
pub(crate) fn assert_wrong_arguments_are_named(wrong: &[(&str, &[&str], &str)]) {
    for (name, arguments, says) in wrong {
        let output = example(name).args(*arguments).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{name}: {message}");
        assert!(message.starts_with(&format!("{name}: {says}")), "{message}");
        assert_eq!(message.matches('\n').count(), 1, "{message}");
    }
}
