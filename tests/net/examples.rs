//! The examples, run as a user runs them.

use std::io::{BufRead, BufReader, Lines};
use std::process::{ChildStdout, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::common::example::{assert_wrong_arguments_are_named, example};
use crate::common::loopback::loopback;
use crate::common::process::Child;
use crate::common::tmp::Folder;

/// Held by a test whose example takes 127.0.0.1. A client does, whatever loopback address its
/// server has.
static LOCALHOST: Mutex<()> = Mutex::new(());

#[test]
fn echo_in_one_process() {
    let _localhost = LOCALHOST.lock().unwrap_or_else(PoisonError::into_inner);
    let output = example("echo").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("client: without a line of TCP\nclient: 500000 bytes\n"), "{text}");
}

#[test]
fn echo_in_two_processes() {
    let _localhost = LOCALHOST.lock().unwrap_or_else(PoisonError::into_inner);
    let mut server = example("echo")
        .args(["serve", &format!("{}:0", loopback(40, 1))])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let at = first.strip_prefix("listening at ").unwrap();
    for word in ["one", "two"] {
        let output = example("echo").args(["connect", at, word]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text, format!("client: {word}\nclient: 500000 bytes\n"), "{output:?}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn file_copy_copies() {
    let _localhost = LOCALHOST.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = Folder::new("net");
    let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
    for len in [0, 1, 256 << 10, 3_000_001] {
        std::fs::write(&from, crate::message(len, len)).unwrap();
        let output = example("file_copy").args([&from, &to]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap(), "{len} bytes");
        let progress = String::from_utf8(output.stderr).unwrap();
        assert!(progress.contains(&format!("{len} of {len} bytes")), "{progress}");
    }
}

/// Each is told in one line, which names it.
#[test]
fn wrong_arguments_are_named() {
    assert_wrong_arguments_are_named(&[
        ("echo", &["serve", "x"], "'x' is not ADDRESS:PORT, as 127.0.0.1:7000: "),
        ("echo", &["connect", "127.0.0.1:70000"], "'127.0.0.1:70000' is not ADDRESS:PORT"),
        ("echo", &["--loud"], "wrong arguments '--loud'; usage: echo "),
        ("echo", &["serve", "203.0.113.1:7"], "203.0.113.1 is not an address of this machine"),
        ("file_copy", &[], "an argument is missing; usage: file_copy "),
        ("file_copy", &["/dev/null", "/dev/null/to"], "/dev/null/to: Not a directory"),
        ("cm_echo", &["127.0.0.1", "x"], "SERVER-ADDRESS: 'x' is not an IP address"),
        ("rc_over_udp", &["x"], "OWN-ADDRESS: 'x' is not an IP address"),
        ("ud_probe", &["x"], "DEVICE: 'x': a device is udp:ADDRESS"),
        ("decode_capture", &["/dev/null/x"], "cannot open /dev/null/x: Not a directory"),
        ("two_nics", &["x"], "wrong arguments 'x': it takes none"),
        ("registered_pool", &["x"], "wrong arguments 'x': it takes none"),
    ]);
}

/// An example that runs until the test ends.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(name: &str, arguments: &[&str]) -> Self {
        let mut child = example(name).args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Returns the address that it listens on.
    fn address(&mut self) -> String {
        let line = self.lines.next().unwrap().unwrap();
        line.strip_prefix("listening at ").unwrap().to_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const BAD_NETWORKS: [&str; 2] = ["loss=1%,reorder=1%", "loss=10%"];

/// Devices of a server and a client on a bad network.
fn devices(net: u8, faults: &str) -> [String; 2] {
    [1, 2].map(|host| format!("udp:{}?{faults}", loopback(net, host)))
}

#[test]
fn echo_on_a_bad_network() {
    for (net, faults) in (41..).zip(BAD_NETWORKS) {
        let [server, client] = devices(net, faults);
        let listen = format!("{}:0", loopback(net, 1));
        let mut server = Running::start("echo", &["-d", &server, "serve", &listen]);
        let arguments = ["-d", &client, "connect", &server.address(), "lossy"];
        let output = example("echo").args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text, "client: lossy\nclient: 500000 bytes\n", "{output:?}");
    }
}

#[test]
fn file_copy_on_a_bad_network() {
    let folder = Folder::new("lossy");
    for (net, faults) in (43..).zip(BAD_NETWORKS) {
        let [from, to] = ["from", "to"].map(|name| folder.file(name));
        std::fs::write(&from, crate::message(7, 700_001)).unwrap();
        let [receiver, sender] = devices(net, faults);
        let listen = format!("{}:0", loopback(net, 1));
        let mut receiver = Running::start("file_copy", &["receive", &listen, &to, "-d", &receiver]);
        let arguments = ["send", &from, &receiver.address(), "-d", &sender];
        let output = example("file_copy").args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(receiver.child.wait().unwrap().success());
        assert!(std::fs::read(&from).unwrap() == std::fs::read(&to).unwrap());
    }
}

/// The echo server's answers are not read: it holds up its client, so that no more messages are
/// accepted than rings hold.
#[test]
fn echo_to_a_client_that_does_not_read() {
    let mut server = Running::start("echo", &["serve", &format!("{}:0", loopback(45, 1))]);
    let client = crate::endpoint(loopback(45, 2), None);
    let connection = client.connect(server.address()).unwrap();
    connection.send(b"first").unwrap();
    assert_eq!(connection.recv().unwrap().as_deref(), Some(&b"first"[..]));
    let (mut sent, mut buffer) = (0, Vec::new());
    while connection.send_timeout(&crate::message(sent, 1000), HELD_UP).is_ok() {
        sent += 1;
        assert!(sent < 10_000, "it is never held up");
    }
    for number in 0..sent {
        assert!(connection.recv_timeout(&mut buffer, crate::WAIT).unwrap());
        assert_eq!(buffer, crate::message(number, 1000));
    }
    connection.close().unwrap();
}

/// A client that is held up for so long is taken to be held up for good. On a busy machine it may
/// be too early: fewer messages are in flight then.
const HELD_UP: Duration = Duration::from_millis(500);

#[test]
fn file_copy_ends_with_an_error_when_the_receiver_is_killed() {
    let folder = Folder::new("killed");
    let [from, to] = ["from", "to"].map(|name| folder.file(name));
    std::fs::write(&from, vec![7; 80 << 20]).unwrap();
    let mut receiver =
        Running::start("file_copy", &["receive", &format!("{}:0", loopback(46, 1)), &to]);
    let arguments = ["send", &from, &receiver.address(), "-d", &format!("udp:{}", loopback(46, 2))];
    let sender = example("file_copy").args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    // The receiver creates the file before the first byte comes.
    while std::fs::metadata(&to).is_err() {
        std::thread::yield_now();
    }
    receiver.child.kill().unwrap();
    let output = sender.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.starts_with("file_copy: the connection is lost: "), "{message}");
}
