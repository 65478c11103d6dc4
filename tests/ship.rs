//! Release files: versions agree, and the SBOM and the licenses name every dependency.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;

use common::process::Command;
use common::tmp::Scratch;
use common::tree::ROOT;
use serde_json::Value;

mod common;
use common::needs;

fn read(name: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{name}")).unwrap()
}

/// The first value of a key in a manifest.
fn key(manifest: &str, name: &str) -> String {
    let text = read(manifest);
    let start = format!("{name} = \"");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("{manifest} has no {name}")).trim_end_matches('"').to_owned()
}

/// `roce run` wants a library of its own version, and the library takes it from its manifest.
#[test]
fn members_of_the_workspace_have_one_version() {
    for name in ["version", "rust-version"] {
        let own = key("Cargo.toml", name);
        for member in ["ibverbs", "libroce", "middlebox"] {
            assert_eq!(key(&format!("tools/{member}/Cargo.toml"), name), own, "{member}");
        }
    }
    let heading = format!("\n## [{}]", key("Cargo.toml", "version"));
    assert!(read("CHANGELOG.md").contains(&heading), "CHANGELOG.md has {heading}");
}

/// CI builds with the oldest compiler that the manifest promises.
#[test]
fn oldest_compiler_is_the_one_of_ci() {
    let oldest = key("Cargo.toml", "rust-version");
    for file in [".github/workflows/ci.yml", "tools/release/Dockerfile"] {
        assert!(read(file).contains(&format!("rust:{oldest}-")), "{file}");
    }
}

#[test]
fn every_dependency_is_in_the_sbom_and_among_the_licenses() {
    let [sbom, licenses] = ["sbom.json", "licenses.txt"].map(|name| Scratch::new(name, b""));
    let mut notices = Command::new("python3");
    notices.arg(format!("{ROOT}/tools/release/notices.py"));
    notices.args(["--sbom", sbom.path(), "--licenses", licenses.path()]);
    let Ok(output) = notices.output() else {
        let test = "every_dependency_is_in_the_sbom_and_among_the_licenses";
        return needs::skip(test, "`python3` cannot be run");
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let sbom: Value = serde_json::from_str(&std::fs::read_to_string(sbom.path()).unwrap()).unwrap();
    let licenses = std::fs::read_to_string(licenses.path()).unwrap();
    assert_eq!(sbom["bomFormat"], "CycloneDX");
    let components = sbom["components"].as_array().unwrap().iter();
    let listed: BTreeSet<String> = components
        .chain([&sbom["metadata"]["component"]])
        .map(|it| format!("{} {}", it["name"].as_str().unwrap(), it["version"].as_str().unwrap()))
        .collect();

    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--locked", "--offline", "--format-version", "1", "--all-features"]);
    metadata.args(["--filter-platform", "x86_64-unknown-linux-gnu"]).current_dir(ROOT);
    let metadata: Value = serde_json::from_slice(&metadata.output().unwrap().stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100, "{}", packages.len());
    for package in packages {
        let text = |name: &str| package[name].as_str().unwrap();
        let named = format!("{} {}", text("name"), text("version"));
        assert!(listed.contains(&named), "{named} is not in the SBOM");
        assert!(licenses.contains(&format!("\n{named} (")), "{named} has no license text");
    }
}
