//! The example in C, compiled and run.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds `libroce.so`, which no test links, and returns the folder that it is in.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folder = own.ancestors().nth(2).unwrap().to_owned();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--offline", "--package", "roce-c"]);
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    assert!(folder.join("libroce.so").exists(), "{folder:?}");
    folder
}

fn compile(library: &Path) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = library.join(format!("roce-c-example-{}", std::process::id()));
    let status = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-std=gnu11", "-I"])
        .arg(root)
        .arg(root.join("example.c"))
        .arg("-L")
        .arg(library)
        .args(["-lroce", "-o"])
        .arg(&program)
        .status()
        .unwrap();
    assert!(status.success());
    program
}

#[test]
fn the_example_runs() {
    let library = library();
    let program = compile(&library);
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).env("LD_LIBRARY_PATH", &library).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut server = run(&["server", "127.23.0.1"]);
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let port = lines.next().unwrap().unwrap();
    let port = port.strip_prefix("port ").unwrap();
    let client = run(&["client", "127.23.0.1", port]).wait_with_output().unwrap();
    assert!(client.status.success(), "{client:?}");
    assert_eq!(String::from_utf8(client.stdout).unwrap(), "all is well\n");
    assert!(server.wait().unwrap().success());
    std::fs::remove_file(program).unwrap();
}
