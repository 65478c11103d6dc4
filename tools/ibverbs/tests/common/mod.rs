//! The shared library as `install` makes it, and stock programs that run on it.

#[path = "../../../../tests/common/process.rs"]
pub mod process;

use process::Command;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::OnceLock;

/// The directory of the library, which is built once for each test program.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
        let mut install = Command::new(here.join("install"));
        install.arg("--prefix").arg(&prefix).args(["--profile", "dev"]);
        let output = install.output().expect("install is a script for bash");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "install: {said}");
        prefix.join("lib/roce")
    })
}

/// A stock program on the library, with these devices.
#[allow(dead_code, reason = "not every test program runs others")]
pub(crate) fn stock(program: &str, devices: &str) -> Command {
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", library()).env("ROCE_DEVICES", devices);
    command
}

/// Compiles one of the programs in C, and links it with the library.
#[allow(dead_code, reason = "not every test program has programs in C")]
pub(crate) fn compiled(name: &str) -> PathBuf {
    compiled_with(name, &["-L", library().to_str().unwrap(), "-l:libibverbs.so.1"])
}

/// Compiles one of the programs in C, and links it with these.
#[allow(dead_code, reason = "not every test program has programs in C")]
pub(crate) fn compiled_with(name: &str, libraries: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).with_extension("");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
    cc.arg(&program).arg(source).args(libraries);
    said(&mut cc, "gcc, libibverbs-dev and librdmacm-dev");
    program
}

/// Compiles one of the files in C as a library to be preloaded.
#[allow(dead_code, reason = "not every test program has programs in C")]
pub(crate) fn compiled_library(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name);
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).with_extension("so");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    cc.arg(&library).arg(source).arg("-ldl");
    said(&mut cc, "gcc");
    library
}

/// Returns the output of a program of Debian's package `package`, if it was successful.
pub(crate) fn said(command: &mut Command, package: &str) -> String {
    let output = command.output();
    let Output { status, stdout, stderr } =
        output.unwrap_or_else(|error| panic!("{command:?}: {error}; Debian has it in {package}"));
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    out.into_owned()
}
