//! `roce run`: what a program finds in its environment, and what is said when it cannot be run.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory with something in it that has the library's name.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("roce-run-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("libibverbs.so.1"), b"").unwrap();
        Self(path)
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_roce"));
        command.arg("run").args(args).env("ROCE_LIBRARY", &self.0).env("ROCE_FAULT", "left over");
        command.env_remove("LD_LIBRARY_PATH").output().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_program_finds_the_library_and_what_its_devices_shall_be() {
    let place = Place::new("environment");
    let spec =
        ["--device", "udp:127.9.4.4", "-d", "udp:127.9.4.5", "--pcap", "it", "--fault", "loss=1%"];
    let output = place.run(&[&spec[..], &["--", "/usr/bin/env"]].concat());
    let lines = text(&output.stdout);
    let here = std::env::current_dir().unwrap();
    for line in [
        format!("LD_LIBRARY_PATH={}", place.0.display()),
        "ROCE_DEVICES=udp:127.9.4.4 udp:127.9.4.5".to_owned(),
        format!("ROCE_PCAP={}", here.join("it").display()),
        "ROCE_FAULT=loss=1%".to_owned(),
    ] {
        assert!(lines.lines().any(|other| other == line), "{line} is not in {lines}");
    }
}

#[test]
fn the_library_is_preloaded_before_others_and_behind_what_redirects_files() {
    let place = Place::new("files");
    let files = place.0.join("libroce-files.so");
    std::fs::write(&files, b"").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_roce"));
    command
        .args(["run", "--device", "udp:127.9.4.6", "/usr/bin/env"])
        .env("ROCE_LIBRARY", &place.0);
    command.env("LD_PRELOAD", "/no/other.so").env("ASAN_OPTIONS", "detect_leaks=0");
    command.env("ROCE_FILES", "preload");
    let lines = text(&command.output().unwrap().stdout);
    for line in [
        format!(
            "LD_PRELOAD={}:{}/libibverbs.so.1:/no/other.so",
            files.display(),
            place.0.display()
        ),
        "ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=0".to_owned(),
    ] {
        assert!(lines.lines().any(|other| other == line), "{line} is not in {lines}");
    }
}

#[test]
fn without_options_nothing_is_left_from_before() {
    let place = Place::new("nothing");
    let lines = text(&place.run(&["/usr/bin/env"]).stdout);
    for name in ["ROCE_DEVICES=", "ROCE_PCAP=", "ROCE_FAULT="] {
        assert!(!lines.lines().any(|line| line.starts_with(name)), "{name} is in {lines}");
    }
}

#[test]
fn the_exit_status_is_the_programs() {
    let place = Place::new("status");
    assert_eq!(place.run(&["--", "sh", "-c", "exit 7"]).status.code(), Some(7));
}

#[test]
fn what_cannot_be_run_is_told_with_the_cure() {
    let place = Place::new("errors");
    for (args, word) in [
        (&["--", "/no/such/program"][..], "cannot run /no/such/program"),
        (&["--device", "udp:203.0.113.77", "--", "true"], "--device udp:203.0.113.77: "),
        (&["--device", "eth0", "--", "true"], "a device is udp:ADDRESS"),
        (&["--fault", "loss=lots", "--", "true"], "loss"),
        (&[], "PROGRAM"),
    ] {
        let output = place.run(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(word), "{args:?}: {error}");
    }
    let gone = Place(std::env::temp_dir().join("roce-run-no-such-place"));
    let error = text(&gone.run(&["true"]).stderr);
    assert!(error.contains("ROCE_LIBRARY: there is no libibverbs.so.1 at"), "{error}");
}

/// What a command that is installed at `bin` says of the search path that its programs have.
fn search_path(bin: &Path, home: &Path) -> Output {
    let mut command = Command::new(bin.join("roce"));
    command.args(["run", "--device", "udp:127.9.4.1", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"]);
    command.env_remove("ROCE_LIBRARY").env_remove("LD_LIBRARY_PATH").env("HOME", home);
    command.output().unwrap()
}

#[test]
fn the_library_is_found_where_install_puts_it() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run-installed");
    let _ = std::fs::remove_dir_all(&root);
    let (bin, home) = (root.join("bin"), root.join("home"));
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::hard_link(env!("CARGO_BIN_EXE_roce"), bin.join("roce")).unwrap();
    let error = text(&search_path(&bin, &home).stderr);
    assert!(error.contains("`tools/ibverbs/install` builds and installs it"), "{error}");
    // The nearest is taken: beside the command, where it was built, in the home directory.
    for place in ["home/.local/lib/roce", "bin/ibverbs", "lib/roce"] {
        let place = root.join(place);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("libibverbs.so.1"), b"").unwrap();
        let output = search_path(&bin, &home);
        let found = text(&output.stdout);
        let found = std::fs::canonicalize(found.trim()).unwrap();
        assert_eq!(found, std::fs::canonicalize(place).unwrap(), "{}", text(&output.stderr));
    }
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn an_address_that_is_taken_is_told_with_the_cure() {
    let place = Place::new("taken");
    let taken = std::net::UdpSocket::bind("127.9.4.2:4791").unwrap();
    let output = place.run(&["--device", "udp:127.9.4.2", "--", "true"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("is taken") && error.contains("use another address"), "{error}");
    drop(taken);
    assert!(place.run(&["--device", "udp:127.9.4.2", "--", "true"]).status.success());
}

#[test]
fn a_capture_of_an_earlier_run_makes_room() {
    let place = Place::new("pcap");
    let (old, pipe) = (place.0.join("old.pcapng"), Path::new("/dev/null"));
    std::fs::write(&old, b"of an earlier run").unwrap();
    for file in [&*old, pipe] {
        let args = ["--device", "udp:127.9.4.3", "--pcap", file.to_str().unwrap(), "--", "true"];
        assert!(place.run(&args).status.success());
    }
    assert!(!old.exists() && pipe.exists());
}
