//! The examples, run as a user runs them.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};

use crate::example::example;

/// Held by a test whose example takes 127.0.0.1. A client does, whatever loopback address its server has.
static LOCALHOST: Mutex<()> = Mutex::new(());

#[test]
fn echo_in_one_process() {
    let _localhost = LOCALHOST.lock().unwrap_or_else(PoisonError::into_inner);
    let output = example("echo").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("client: without a line of TCP\nclient: 5000000 bytes\n"), "{text}");
}

#[test]
fn echo_in_two_processes() {
    let _localhost = LOCALHOST.lock().unwrap_or_else(PoisonError::into_inner);
    let mut server =
        example("echo").args(["serve", "127.21.40.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let at = first.strip_prefix("listening at ").unwrap();
    for word in ["one", "two"] {
        let output = example("echo").args(["connect", at, word]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text, format!("client: {word}\nclient: 5000000 bytes\n"), "{output:?}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn file_copy_copies() {
    let _localhost = LOCALHOST.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = std::env::temp_dir().join(format!("roce-net-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [from, to] = ["from", "to"].map(|name| folder.join(name));
    for len in [0, 1, 256 << 10, 3_000_001] {
        std::fs::write(&from, crate::message(len, len)).unwrap();
        let output = example("file_copy").args([&from, &to]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap(), "{len} bytes");
        let progress = String::from_utf8(output.stderr).unwrap();
        assert!(progress.contains(&format!("{len} of {len} bytes")), "{progress}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
