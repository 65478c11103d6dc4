//! Programs in C with `libroce.so`, compiled and run.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../../tests/common/process.rs"]
mod process;

/// Packets of strangers, which the suite of the root package sends.
#[path = "../../../tests/strangers/packets.rs"]
#[allow(dead_code, unreachable_pub, reason = "the suite uses the rest")]
mod packets;

/// The part of that suite's harness that packets need.
mod harness {
    pub(crate) const ROCE_PORT: u16 = 4791;
}

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Output, Stdio};

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use process::{Child, Command};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Version of the library, which is that of its tests.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Time that a build has, on a loaded machine.
const BUILD: Duration = Duration::from_secs(1200);

/// Builds `libroce.so`, which no test links, and returns the folder that it is in.
fn library() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let own = std::env::current_exe().unwrap();
        let folder = own.ancestors().nth(2).unwrap().to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--package", "roce-c"]);
        if folder.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.current_dir(ROOT).deadline(BUILD).status().unwrap().success());
        assert!(folder.join("libroce.so").exists(), "{folder:?}");
        folder
    })
}

/// Returns a path of the caller's own, beside the library.
fn own_path(name: &str) -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    library().join(format!("roce-c-{name}-{}-{number}", std::process::id()))
}

/// Compiles a program, and returns its path.
fn compile(name: &str, source: &Path) -> PathBuf {
    let program = own_path(name);
    let status = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-std=gnu11", "-O1", "-I", ROOT])
        .arg(format!("-DVERSION=\"{VERSION}\""))
        .arg(source)
        .arg("-L")
        .arg(library())
        .args(["-lroce", "-lpthread", "-o"])
        .arg(&program)
        .status()
        .unwrap();
    assert!(status.success());
    program
}

/// A program of `tests/c`, which is removed in the end.
struct Program(PathBuf);

impl Program {
    fn new(name: &str) -> Self {
        Self(compile(name, &Path::new(ROOT).join(format!("tests/c/{name}.c"))))
    }

    fn start(&self, arguments: &[&str]) -> Running {
        start(Command::new(&self.0).args(arguments))
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.start(arguments).finish()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn start(command: &mut Command) -> Running {
    start_as_is(command.env("LD_LIBRARY_PATH", library()))
}

/// Starts a program without the folder of the library.
fn start_as_is(command: &mut Command) -> Running {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    Running { child, stdout }
}

/// A program that runs. It is killed when the test ends before it, or after its deadline.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Waits for a line.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "{:?} ended before it said a line: {line:?}", self.child);
        line.trim_end().to_owned()
    }

    /// Waits for its end.
    fn finish(mut self) -> Output {
        let mut stdout = Vec::new();
        self.stdout.read_to_end(&mut stdout).unwrap();
        Output { stdout, ..self.child.wait_with_output().unwrap() }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn assert_well(output: &Output) {
    let (said, remarked) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{}: {said}{remarked}", output.status);
    assert!(said.ends_with("all is well\n"), "{said}{remarked}");
}

#[test]
fn every_call_does_its_work_and_refuses_what_is_wrong() {
    assert_well(&Program::new("api").run(&[]));
}

#[test]
fn threads_share_connections_and_handles() {
    assert_well(&Program::new("threads").run(&[]));
}

#[test]
fn clients_that_left_leave_no_memory() {
    let program = Program::new("comes_and_goes");
    for how in ["snow", "close", "own"] {
        let output = program.run(&[how, "40"]);
        println!("{how}: {}", text(&output.stdout));
        assert_well(&output);
    }
}

/// Has a client end in some way; returns what the server said.
fn end(how: &str, address: &str) -> String {
    let program = Program::new("endings");
    let mut server = program.start(&["server", address]);
    let at = server.line();
    let client = program.run(&[how, &at]);
    let is_killed = client.status.code().is_none();
    assert!(client.status.success() || (how == "dies" && is_killed), "{}", text(&client.stderr));
    let server = server.finish();
    assert!(server.status.success(), "{}", text(&server.stderr));
    text(&server.stdout)
}

#[test]
fn a_connection_that_is_closed_delivers_what_was_sent() {
    let said = end("closes", "127.23.5.1:0");
    assert_eq!(said, "50 messages: the peer has closed the connection\n");
}

#[test]
fn a_process_that_exits_delivers_what_was_sent() {
    let said = end("exits", "127.23.6.1:0");
    assert_eq!(said, "50 messages: the peer has closed the connection\n");
    let said = end("returns", "127.23.6.2:0");
    assert_eq!(said, "50 messages: the peer has closed the connection\n");
}

#[test]
fn a_forked_child_does_not_touch_the_connections_of_its_parent() {
    let said = end("forks", "127.23.7.1:0");
    assert_eq!(said, "51 messages: the peer has closed the connection\n");
}

#[test]
fn a_peer_that_dies_is_lost() {
    let said = end("dies", "127.23.8.1:0");
    assert!(said.ends_with("messages: the connection is lost\n"), "{said}");
}

#[test]
fn what_is_not_delivered_is_said() {
    let program = Program::new("endings");
    let mut sleeper = program.start(&["sleeper", "127.23.9.1:0"]);
    let at = sleeper.line();
    let client = program.run(&["undelivered", &at]);
    assert!(client.status.success(), "{}", text(&client.stderr));
    assert_eq!(text(&client.stdout), "undelivered\n");
}

#[test]
fn calls_of_snow_rdma_work() {
    let program = Program::new("snow");
    let mut server = program.start(&["server", "127.23.0.101"]);
    let port = server.line();
    let port = port.strip_prefix("port ").unwrap();
    assert_well(&program.run(&["client", "127.23.0.101", port]));
    let server = server.finish();
    assert!(server.status.success(), "{}", text(&server.stderr));
}

/// Number of requests that a stranger leaves half-open. If a server waited for each, its clients
/// would give up.
const HALF_OPEN: u32 = 40;

/// Has a stranger ask a server for connections and say nothing when it is answered.
fn leave_half_open(server: SocketAddrV4, from: Ipv4Addr) -> UdpSocket {
    let socket = UdpSocket::bind((from, harness::ROCE_PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let to = *server.ip();
    // A ring of 64 KiB and a window of 64, as roce::net tells them.
    let mut hello = vec![b'r', b'N', 1, 16, 64, 0, 0, 0];
    hello.extend([0; 12]);
    for number in 0..HALF_OPEN {
        let request = packets::Request {
            gid: from,
            claimed: from,
            to,
            port: server.port(),
            comm_id: 0x5000_0000 | number,
            ca_guid: 0x1234,
            qpn: 0x4000 + number,
            private_data: &hello,
        };
        let packet = packets::management(from, to, packets::REQ, &request.message());
        socket.send_to(&packet, (to, harness::ROCE_PORT)).unwrap();
    }
    // The first one is answered: the server knows of them.
    let mut answer = [0; 2048];
    loop {
        let len = socket.recv(&mut answer).expect("a REP comes");
        if matches!(packets::message_of(&answer[..len]), Some((packets::REP, _))) {
            return socket;
        }
    }
}

#[test]
fn half_open_requests_hold_up_no_client() {
    let program = Program::new("endings");
    let mut server = program.start(&["server", "127.23.10.1:0"]);
    let at = server.line();
    let _stranger = leave_half_open(at.parse().unwrap(), Ipv4Addr::new(127, 23, 10, 66));
    let client = program.run(&["closes", &at]);
    assert!(client.status.success(), "{}", text(&client.stderr));
    let said = text(&server.finish().stdout);
    assert_eq!(said, "50 messages: the peer has closed the connection\n");
}

#[test]
fn half_open_requests_hold_up_no_client_of_snow_rdma() {
    let program = Program::new("snow");
    let mut server = program.start(&["server", "127.23.10.101"]);
    let port = server.line();
    let port = port.strip_prefix("port ").unwrap();
    let at = SocketAddrV4::new(Ipv4Addr::new(127, 23, 10, 101), port.parse().unwrap());
    let _stranger = leave_half_open(at, Ipv4Addr::new(127, 23, 10, 166));
    assert_well(&program.run(&["client", "127.23.10.101", port]));
    assert!(server.finish().status.success());
}

/// Runs a program under valgrind, which reports memory that nothing points to any more.
fn run_in_valgrind(name: &str, arguments: &[&str]) {
    let program = Program::new(name);
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
    command.args(["--show-leak-kinds=definite", "--error-exitcode=99", "--num-callers=30"]);
    assert_well(&start(command.arg(&program.0).args(arguments)).finish());
}

#[test]
fn valgrind_finds_no_leak() {
    run_in_valgrind("comes_and_goes", &["own", "6"]);
    run_in_valgrind("comes_and_goes", &["snow", "6"]);
}

/// The page of the C library.
fn page() -> String {
    std::fs::read_to_string(format!("{ROOT}/../../docs/c.md")).unwrap()
}

/// Commands of a page, and what each prints.
fn commands(page: &str) -> Vec<(String, String)> {
    let blocks = page.split("```console\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut commands = Vec::<(String, String)>::new();
    for line in blocks.flat_map(str::lines) {
        match line.strip_prefix("$ ") {
            Some(command) => commands.push((command.to_owned(), String::new())),
            None => commands.last_mut().unwrap().1.push_str(&format!("{line}\n")),
        }
    }
    commands
}

/// A folder of the test's own.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = own_path(name);
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Sets the user's folder to another one, for all but cargo.
fn set_home(command: &mut Command, folder: &Path) {
    let home = std::env::var_os("HOME").unwrap_or_default();
    for (name, default) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        let set = std::env::var_os(name).filter(|set| !set.is_empty());
        let set = set.unwrap_or_else(|| Path::new(&home).join(default).into_os_string());
        command.env(name, set);
    }
    command.env("HOME", folder).env("ROCE_PROFILE", "dev");
}

#[test]
fn commands_of_the_page_do_what_it_says() {
    let folder = Folder::new("page");
    // As in a checkout, where programs are compiled to a folder of the user's.
    std::os::unix::fs::symlink(Path::new(ROOT).join(".."), folder.0.join("tools")).unwrap();
    let commands = commands(&page());
    assert!(commands.iter().any(|(command, _)| command.starts_with("cc ")), "{commands:?}");
    let script: Vec<&str> = commands.iter().map(|(command, _)| command.as_str()).collect();
    let script = format!("set -e\n{}\nwait\n", script.join("\n"));
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).current_dir(&folder.0).deadline(BUILD);
    set_home(&mut bash, &folder.0);
    // The library that programs find is the installed one.
    let output = start_as_is(&mut bash).finish();
    assert!(output.status.success(), "{script}{}", text(&output.stderr));
    let said = text(&output.stdout);
    let installed =
        folder.0.canonicalize().unwrap().join(format!(".local/lib/libroce.so.{VERSION}"));
    let printed: String = commands.iter().map(|(_, printed)| printed.as_str()).collect();
    assert_eq!(said, format!("{}\n{printed}", installed.display()));
    check_installed(&folder.0.join(".local"));
}

/// The installed library has the soname that its links have, and exports what the header declares.
fn check_installed(prefix: &Path) {
    let library = prefix.join(format!("lib/libroce.so.{VERSION}"));
    let run = |program: &str, arguments: [&OsStr; 2]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success(), "{program}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let dynamic = run("readelf", ["--dynamic".as_ref(), library.as_ref()]);
    assert!(dynamic.contains("Library soname: [libroce.so.0]"), "{dynamic}");
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
    let symbols = run("nm", ["--dynamic".as_ref(), library.as_ref()]);
    let exported: BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| line.split_once(" T ").map(|(_, name)| name.split('@').next().unwrap()))
        .collect();
    let header = std::fs::read_to_string(prefix.join("include/roce.h")).unwrap();
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#', '*']) && line.contains('('))
        .filter(|line| !line.starts_with("typedef"))
        .map(|line| line.split('(').next().unwrap().rsplit(|c| !is_name(c)).next().unwrap())
        .collect();
    assert_eq!(exported, declared);
    let old = std::fs::read_link(prefix.join("lib/libroce.so")).unwrap();
    assert_eq!(old, Path::new("libroce.so.0"));
}

#[test]
fn errors_have_the_texts_of_the_header() {
    let header = std::fs::read_to_string(format!("{ROOT}/roce.h")).unwrap();
    let errors = header.lines().filter_map(|line| line.strip_prefix("#define ROCE_E"));
    let errors: Vec<(&str, &str)> = errors
        .map(|line| {
            let (name, rest) = line.split_once(' ').unwrap();
            let text = rest.split_once("/* ").unwrap().1.strip_suffix(" */").unwrap();
            (name, text)
        })
        .collect();
    assert!(errors.len() >= 20, "{errors:?}");
    let checks = errors.iter().zip(1..).map(|((name, text), number)| {
        let name = format!("ROCE_E{name}");
        format!("CHECK({name} == -{number} && !strcmp(roce_strerror({name}), \"{text}\"));\n")
    });
    let checks: String = checks.collect();
    let none = format!("strcmp(roce_strerror(-{}), \"there is no such error\")", errors.len() + 1);
    let well = "CHECK(!strcmp(roce_strerror(0), \"success\"));\nputs(\"all is well\");";
    let folder = Folder::new("errors");
    let source = folder.0.join("errors.c");
    let include = format!("#include \"{ROOT}/tests/c/check.h\"");
    let program =
        format!("{include}\nint main(void) {{\n{checks}CHECK(!{none});\n{well}\nreturn 0;\n}}\n");
    std::fs::write(&source, program).unwrap();
    let program = Program(compile("errors", &source));
    assert_well(&program.run(&[]));
}
