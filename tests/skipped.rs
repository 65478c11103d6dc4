//! Tests that cannot run on this machine are skipped and named, and fail where nothing may be
//! skipped.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;
use common::needs;

use std::env;
use std::process::Output;

use common::process::Command;

/// Runs the test below in a process of its own, on a machine without any program.
fn run_without_programs(require: &str) -> Output {
    let mut copy = Command::new(env::current_exe().unwrap());
    copy.args(["--ignored", "--exact", "needs_namespaces"]);
    copy.env("ROCE_TEST_REQUIRE", require).env("PATH", "/nonexistent").output().unwrap()
}

#[test]
fn skipped_tests_are_named_with_the_reason() {
    let output = run_without_programs("");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("SKIPPED 1 of these tests"), "{said}");
    assert!(said.contains("SKIPPED: needs_namespaces"), "{said}");
    assert!(said.contains("Debian has it in util-linux"), "{said}");
}

#[test]
fn nothing_is_skipped_where_everything_is_required() {
    let output = run_without_programs("all");
    assert_eq!(output.status.code(), Some(101), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("ROCE_TEST_REQUIRE=all"),
        "{output:?}"
    );
}

#[test]
#[ignore = "run by the tests above"]
fn needs_namespaces() {
    let _ = needs::can_have_namespaces("needs_namespaces");
}
