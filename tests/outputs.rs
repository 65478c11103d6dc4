//! Output under trouble: every command that writes, on a full disk, into a closed pipe or a closed
//! standard output, and ended by a signal.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use common::command::{Server, text};
use common::loopback::loopback;
use common::process::{Child, Command};
use common::tmp;
use roce::capture::{self, Reader};
use rustix::process::Signal;

const ROCE: &str = env!("CARGO_BIN_EXE_roce");
const CAPTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/captures/rxe_cm.pcap");
const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/captures/vectors.pcap");

/// A folder that is gone when the test is.
struct Folder(tmp::Folder);

impl Folder {
    fn new() -> Self {
        Self(tmp::Folder::new("outputs"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The names of all files, hidden ones too.
    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Runs the command behind a line of shell, in which `"$@"` is the command.
fn shell(line: &str, args: &[&str]) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", line, "sh", ROCE]).args(args).env("ROCE_TOKEN", TOKEN);
    command.output().unwrap()
}

/// A command that writes a whole file, `OUT` in its arguments. What the file had before is a
/// capture if it must be.
struct Writer {
    name: &'static str,
    args: &'static [&'static str],
    over: Old,
}

#[derive(Clone, Copy, PartialEq)]
enum Old {
    Text,
    Capture,
}

const WRITERS: &[Writer] = &[
    Writer { name: "r.html", args: &["flows", "--html", "OUT", "IN"], over: Old::Text },
    Writer { name: "w.pcapng", args: &["decode", "-w", "OUT", "IN"], over: Old::Capture },
    Writer { name: "w.pcap", args: &["decode", "-w", "OUT", "IN"], over: Old::Capture },
    Writer { name: "j.xml", args: &["replay", "--junit", "OUT", "IN"], over: Old::Text },
    Writer {
        name: "l.pcapng",
        args: &["replay", "--write", "OUT", "--flow", "3", "IN"],
        over: Old::Capture,
    },
    Writer {
        name: "c.xml",
        args: &["conform", "--filter", "send/size=1,mtu=256", "--junit", "OUT"],
        over: Old::Text,
    },
    Writer {
        name: "c.json",
        args: &["conform", "--filter", "send/size=1,mtu=256", "--record", "OUT"],
        over: Old::Text,
    },
    Writer { name: "d.pcapng", args: &["demo", "--pcap", "OUT", "read"], over: Old::Capture },
];

fn with_paths<'a>(args: &[&'a str], out: &'a str) -> Vec<&'a str> {
    let place = |arg: &&'a str| match *arg {
        "OUT" => out,
        "IN" => CAPTURE,
        other => other,
    };
    args.iter().map(place).collect()
}

impl Writer {
    fn old(&self) -> Vec<u8> {
        match self.over {
            Old::Text => b"results of yesterday".to_vec(),
            Old::Capture => fs::read(VECTORS).unwrap(),
        }
    }
}

#[test]
fn full_disk_leaves_the_old_file_and_is_an_error() {
    for writer in WRITERS {
        let folder = Folder::new();
        let out = folder.file(writer.name);
        fs::write(&out, writer.old()).unwrap();
        // No file may have a byte more than nothing, as on a full disk.
        let full = "trap '' XFSZ; ulimit -f 0; exec \"$@\" >/dev/null";
        let args = with_paths(writer.args, out.to_str().unwrap());
        let output = shell(full, &args);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains("File too large"), "{args:?}: {errors}");
        assert!(errors.contains(writer.name), "{args:?}: {errors}");
        assert!(fs::read(&out).unwrap() == writer.old(), "{args:?} changed the file");
        assert_eq!(folder.names(), [writer.name], "{args:?} left something");
        // And with room it is replaced.
        let output = shell("exec \"$@\" >/dev/null", &args);
        let errors = text(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{args:?}: {errors}");
        assert!(fs::read(&out).unwrap() != writer.old(), "{args:?} did not change the file");
        assert_eq!(folder.names(), [writer.name], "{args:?} left something");
    }
}

#[test]
fn full_disk_while_many_files_are_written_is_an_error() {
    let folder = Folder::new();
    let out = folder.file("man");
    let full = "trap '' XFSZ; ulimit -f 0; exec \"$@\"";
    let output = shell(full, &["man", "--out", out.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
}

/// Commands that print, without a network.
const PRINTERS: &[&[&str]] = &[
    &["decode", "IN"],
    &["decode", "-V", "IN"],
    &["decode", "--json", "IN"],
    &["decode", "--summary", "IN"],
    &["decode", "-e", "frame.number", "IN"],
    &["decode", "-w", "-", "IN"],
    &["decode", "--list-fields"],
    &["flows", "IN"],
    &["flows", "--json", "IN"],
    &["flows", "-q", "#1", "IN"],
    &["replay", "IN"],
    &["replay", "--json", "IN"],
    &["replay", "-v", "IN"],
    &["replay", "--rules"],
    &["conform", "--filter", "send/size=1,mtu=256"],
    &["conform", "--filter", "send/size=1,mtu=256", "--json"],
    &["conform", "--list"],
    &["demo", "--list"],
    &["demo", "read"],
    &["devices"],
    &["devices", "--json"],
    &["completions", "bash"],
    &["man"],
    &["help", "faults"],
    &["help", "decode"],
    &["decode", "--help"],
    &["--version"],
];

/// Token of servers that probe others for a mesh.
const TOKEN: &str = "correct-horse-battery";

/// A server at an address of this run.
fn serve(host: u8) -> Server {
    Server::start(loopback(0, host), &[], &[("ROCE_TOKEN", TOKEN)])
}

/// Commands that print what they measure: with a server at `HOST` and `PORT`, and two for a mesh.
const MEASURERS: &[&[&str]] = &[
    &["bench", "send", "bw", "-s", "64", "-n", "20", "-p", "PORT", "HOST"],
    &["bench", "write", "lat", "-s", "64", "-n", "20", "--json", "-p", "PORT", "HOST"],
    &["ping", "-c", "3", "-i", "0.01", "-p", "PORT", "HOST"],
    &["ping", "-c", "3", "-i", "0.01", "--json", "-p", "PORT", "HOST"],
    &["mesh", "-c", "2", "FIRST", "SECOND"],
    &["mesh", "-c", "2", "--json", "FIRST", "SECOND"],
];

/// Returns the arguments of a command that measures.
fn with_servers(args: &[&str], first: &Server, second: &Server) -> Vec<String> {
    let place = |arg: &&str| match *arg {
        "HOST" => first.address.to_string(),
        "PORT" => first.port.to_string(),
        "FIRST" => first.socket_address().to_string(),
        "SECOND" => second.socket_address().to_string(),
        other => other.to_owned(),
    };
    args.iter().map(place).collect()
}

/// Asserts that a command fails once, and says why, if its standard output is full or closed.
fn assert_unwritable_output_is_an_error(args: &[&str]) {
    for (line, reason) in [
        ("exec \"$@\" >/dev/full", "standard output: No space left on device"),
        ("exec \"$@\" >&-", "standard output is closed"),
    ] {
        let output = shell(line, args);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?} {line}: {errors}");
        assert!(errors.contains(reason), "{args:?} {line}: {errors}");
        assert_eq!(errors.matches(reason).count(), 1, "{args:?} {line}: {errors}");
    }
}

/// Asserts that a command ends well if what reads its standard output goes away.
fn assert_closed_pipe_is_no_error(args: &[&str]) {
    let mut command = Command::new(ROCE);
    command.args(args).env("ROCE_TOKEN", TOKEN).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{args:?}: {errors}");
    assert!(!errors.contains("pipe"), "{args:?}: {errors}");
    assert!(!errors.contains("panicked"), "{args:?}: {errors}");
}

#[test]
fn standard_output_that_cannot_be_written_is_an_error() {
    PRINTERS.iter().for_each(|args| assert_unwritable_output_is_an_error(&with_paths(args, "")));
}

#[test]
fn reader_that_goes_away_is_no_error() {
    PRINTERS.iter().for_each(|args| assert_closed_pipe_is_no_error(&with_paths(args, "")));
}

#[test]
fn measurements_that_cannot_be_written_are_an_error() {
    let (first, second) = (serve(1), serve(2));
    for args in MEASURERS {
        let args = with_servers(args, &first, &second);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        assert_unwritable_output_is_an_error(&args);
        assert_closed_pipe_is_no_error(&args);
    }
}

/// A command that reads a pipe and has read half of a capture.
fn halfway(args: &[&str]) -> (Child, std::process::ChildStdin) {
    let bytes = fs::read(CAPTURE).unwrap();
    let mut command = Command::new(ROCE);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&bytes[..bytes.len() / 2]).unwrap();
    (child, stdin)
}

#[test]
fn killed_run_leaves_the_old_page() {
    let folder = Folder::new();
    let out = folder.file("r.html");
    fs::write(&out, "results of yesterday").unwrap();
    let (mut child, stdin) = halfway(&["flows", "--html", out.to_str().unwrap(), "-"]);
    child.signal(Signal::TERM);
    assert!(!child.wait().unwrap().success());
    drop(stdin);
    assert_eq!(fs::read(&out).unwrap(), b"results of yesterday");
    assert_eq!(folder.names(), ["r.html"]);
}

/// Waits until a file holds packets.
fn wait_for_packets(path: &Path) {
    let has_packet = || {
        let mut reader = capture::open(path).ok()?;
        reader.next().ok().flatten().map(drop)
    };
    for _ in 0..60_000 {
        if has_packet().is_some() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("{} has no packet after a minute", path.display());
}

#[test]
fn capture_that_a_signal_cut_says_so() {
    let folder = Folder::new();
    let out = folder.file("w.pcapng");
    let path = out.to_str().unwrap();
    for (signal, status, is_cut) in
        [(Signal::INT, Some(130), false), (Signal::KILL, None, true), (Signal::TERM, None, true)]
    {
        let (mut child, stdin) = halfway(&["decode", "--line-buffered", "-w", path, "-"]);
        wait_for_packets(&out);
        child.signal(signal);
        assert_eq!(child.wait().unwrap().code(), status);
        drop(stdin);
        let mut reader = capture::open(&out).unwrap();
        while reader.next().unwrap().is_some() {}
        assert_eq!(reader.is_unclosed(), is_cut, "{signal:?}");
        let said = Command::new(ROCE).args(["decode", "--summary", path]).output().unwrap();
        assert_eq!(said.status.code(), Some(0), "{said:?}");
        let errors = text(&said.stderr);
        assert_eq!(errors.contains("its closing block is missing"), is_cut, "{errors}");
        let said = Command::new(ROCE).args(["flows", path]).output().unwrap();
        let errors = text(&said.stderr);
        assert_eq!(errors.contains("its closing block is missing"), is_cut, "{errors}");
        let strict = Command::new(ROCE).args(["decode", "--strict", path]).output().unwrap();
        assert_eq!(strict.status.code(), Some(if is_cut { 2 } else { 0 }));
        fs::remove_file(&out).unwrap();
    }
}

#[test]
fn stream_on_a_full_disk_is_an_error_and_says_that_it_was_cut() {
    let folder = Folder::new();
    let out = folder.file("w.pcapng");
    let path = out.to_str().unwrap();
    // Eight blocks of 512 bytes: some packets fit.
    let full = format!("trap '' XFSZ; ulimit -f 8; exec \"$@\" <'{CAPTURE}'");
    let output = shell(&full, &["decode", "-w", path, "-"]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("File too large"), "{errors}");
    assert!(fs::metadata(&out).unwrap().len() > 1000);
    let bytes = fs::read(&out).unwrap();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let mut is_cut = false;
    loop {
        match reader.next() {
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(error) => is_cut = error.is_cut(),
        }
    }
    assert!(is_cut || reader.is_unclosed());
    let said = Command::new(ROCE).args(["decode", path]).output().unwrap();
    assert!(!said.stderr.is_empty(), "it is said that the capture was cut");
}
