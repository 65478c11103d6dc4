//! `roce doctor`: set-ups that are broken are named with their cures, which work when followed.
//!
//! `tools/release/broken` has those that need root, a released command, or a filter of system
//! calls.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use common::command::command;
use common::netns::{in_namespace, ip};
use common::tmp::Folder;
use serde_json::Value;

mod common;

/// A diagnosis: the exit status and the findings.
fn diagnose(library: &Path) -> (i32, Vec<Value>) {
    let output = command(&["doctor", "--json"]).env("ROCE_LIBRARY", library).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let status = output.status.code().unwrap();
    assert_eq!(report["can_run"].as_bool().unwrap(), status == 0, "{report}");
    (status, report["findings"].as_array().unwrap().clone())
}

/// Returns the finding of a check that has this text in it.
#[track_caller]
fn find<'a>(findings: &'a [Value], check: &str, text: &str) -> &'a Value {
    let has = |it: &&Value| it["check"] == check && it["finding"].as_str().unwrap().contains(text);
    findings.iter().find(has).unwrap_or_else(|| panic!("{check}: {text}: {findings:#?}"))
}

#[test]
fn every_problem_has_a_cure() {
    let (status, findings) = diagnose(Path::new("/no/such/library"));
    assert_eq!(status, 1);
    for finding in &findings {
        let has_problem = finding["status"] == "warning" || finding["status"] == "failure";
        assert!(!has_problem || !finding["cure"].as_str().unwrap().is_empty(), "{finding}");
        assert!(!finding["finding"].as_str().unwrap().contains('\n'), "{finding}");
    }
    for check in ["kernel", "environment", "library", "devices", "system calls", "memlock"] {
        assert!(findings.iter().any(|it| it["check"] == check), "{check}: {findings:#?}");
    }
}

#[test]
fn libraries_that_cannot_be_used_are_failures() {
    let folder = Folder::new("library");
    let file = folder.path().join("libibverbs.so.1");
    let (status, findings) = diagnose(folder.path());
    assert_eq!(status, 1);
    find(&findings, "library", "there is no libibverbs.so.1");
    for (bytes, text) in [
        ("\x7fELF of another project", "is not the library of roce"),
        ("\x7fELF roce libibverbs over soft NICs, version 9.9.9\0", "is of roce 9.9.9"),
    ] {
        std::fs::write(&file, bytes).unwrap();
        let (status, findings) = diagnose(folder.path());
        assert_eq!((status, &find(&findings, "library", text)["status"]), (1, &"failure".into()));
    }
    // It has the right mark and version, and is no library.
    let ours = concat!("roce libibverbs over soft NICs, version ", env!("CARGO_PKG_VERSION"), "\0");
    std::fs::write(&file, format!("\x7fELF {ours}")).unwrap();
    let (status, findings) = diagnose(folder.path());
    assert_eq!(status, 1);
    find(&findings, "library", "cannot be loaded");
}

#[test]
fn loopback_that_is_down_is_a_failure_until_it_is_up() {
    in_namespace(|| {
        let anywhere = Path::new("/no/such/library");
        ip("link set lo down");
        let (_, findings) = diagnose(anywhere);
        let down = find(&findings, "devices", "no interface is up");
        assert_eq!(down["status"], "failure");
        let cure = down["cure"].as_str().unwrap().to_owned();
        ip(cure.strip_prefix("ip ").unwrap());
        let (_, findings) = diagnose(anywhere);
        assert_eq!(find(&findings, "devices", "soft:lo can be used")["status"], "ok");
        assert_eq!(find(&findings, "system calls", "exchange messages")["status"], "ok");
    });
}

#[test]
fn interface_with_a_small_mtu_is_told_until_it_is_large() {
    in_namespace(|| {
        let anywhere = Path::new("/no/such/library");
        ip("link set lo mtu 200");
        let (_, findings) = diagnose(anywhere);
        let small = find(&findings, "MTU", "too small for RoCE");
        assert_eq!(small["status"], "warning");
        assert_eq!(find(&findings, "devices", "will not open")["status"], "failure");
        let cure = small["cure"].as_str().unwrap().to_owned();
        ip(cure.strip_prefix("ip ").unwrap());
        let (_, findings) = diagnose(anywhere);
        assert_eq!(find(&findings, "MTU", "RoCE MTU")["status"], "ok");
        assert_eq!(find(&findings, "devices", "can be used")["status"], "ok");
    });
}

#[test]
fn holder_of_the_port_is_named() {
    in_namespace(|| {
        let anywhere = Path::new("/no/such/library");
        let taken = std::net::UdpSocket::bind("0.0.0.0:4791").unwrap();
        let (_, findings) = diagnose(anywhere);
        let own = format!("(process {})", std::process::id());
        let found = find(&findings, "devices", &own);
        assert_eq!(found["status"], "failure");
        let cure = found["cure"].as_str().unwrap();
        assert!(cure.starts_with(&format!("kill {}", std::process::id())), "{cure}");
        drop(taken);
        let (_, findings) = diagnose(anywhere);
        assert_eq!(find(&findings, "devices", "is free")["status"], "ok");
    });
}
