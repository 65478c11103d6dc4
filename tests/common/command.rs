//! The command as a user runs it.

use super::process::Command;
use std::process::Output;

/// A run.
pub fn roce(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_roce")).args(args).output().unwrap()
}

/// Returns the standard output of a run, which must succeed.
pub fn stdout(args: &[&str]) -> String {
    let output = roce(args);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""), "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}
