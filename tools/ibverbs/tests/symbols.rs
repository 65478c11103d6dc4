//! Every symbol of `symbols.txt` is there with its version, and nothing else is.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

use common::process::Command;
use std::collections::BTreeSet;

mod common;

#[test]
fn every_symbol_has_its_version() {
    let table = include_str!("../symbols.txt");
    let mut wanted = BTreeSet::new();
    for line in table.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let words: Vec<&str> = line.split(' ').collect();
        let symbol = match words[..] {
            ["LIBC" | "IBVERBS_PRIVATE", name] => name.to_owned(),
            [version, name] => format!("{name}@@{version}"),
            [version, name, "old"] => format!("{name}@{version}"),
            _ => panic!("what is {line:?}?"),
        };
        assert!(wanted.insert(symbol), "{line} is there twice");
    }
    let library = common::library().join("libibverbs.so.1");
    let mut readelf = Command::new("readelf");
    let listed = common::said(readelf.args(["--dyn-syms", "-W"]).arg(library), "binutils");
    let mut found = BTreeSet::new();
    for line in listed.lines() {
        // Number, value, size, type, binding, visibility, section, name.
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, _, _, kind, _, _, section, name, ..] = words[..]
            && section != "UND"
            && section != "Ndx"
            && !(kind == "OBJECT" && section == "ABS")
        {
            found.insert(name.to_owned());
        }
    }
    let missing: Vec<_> = wanted.difference(&found).collect();
    let too_many: Vec<_> = found.difference(&wanted).collect();
    assert!(
        missing.is_empty() && too_many.is_empty(),
        "missing {missing:?}, not wanted {too_many:?}"
    );
}

#[test]
fn the_library_is_the_one_that_programs_look_for() {
    let library = common::library().join("libibverbs.so.1");
    let dynamic = common::said(Command::new("readelf").args(["-d", "-W"]).arg(library), "binutils");
    assert!(dynamic.contains("Library soname: [libibverbs.so.1]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "its threads outlive dlclose: {dynamic}");
}

/// Programs and drivers of each release of rdma-core name the private version of that release, and
/// do not start without it.
#[test]
fn private_versions_of_all_releases_are_there() {
    let library = common::library().join("libibverbs.so.1");
    let versions =
        common::said(Command::new("readelf").args(["-V", "-W"]).arg(library), "binutils");
    // Ubuntu 18.04, RHEL 8, Ubuntu 20.04, Debian 11, 12 and 13, Ubuntu 26.04, Debian unstable.
    for release in [17, 22, 25, 33, 34, 59, 65] {
        let version = format!("Name: IBVERBS_PRIVATE_{release}");
        assert!(versions.lines().any(|line| line.trim_end().ends_with(&version)), "{version}");
    }
}
