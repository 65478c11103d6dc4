//! `roce conform serve` with clients that mean no good, and runs of `roce conform` that end early.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Output, Stdio};
use std::time::Duration;

use common::command::{self, LONG, command, roce};
use common::loopback::{device, loopback};
use common::process::Child;
use common::tmp::Scratch;
use rustix::process::Signal;
use serde_json::{Value, json};

/// A server that ends with the test.
struct Server(command::Server);

impl Server {
    /// Starts one at a host of net 74.
    fn start(host: u8) -> Self {
        Self(serve(74, host, &[]))
    }

    fn connect(&self) -> Client {
        // From the address that `reach` names.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        socket.bind(&SocketAddr::from((client_address(), 0)).into()).unwrap();
        socket.connect(&self.0.socket_address().into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        let mut client = Client { lines: BufReader::new(stream) };
        client.write(format!("roce-conform 3 {}\n\"scenarios\"\n", "0f".repeat(16)).as_bytes());
        assert_eq!([client.line(), client.line()], ["open\n", "welcome\n"]);
        assert!(client.hear()["hello"]["device"].is_string());
        client
    }

    fn greeted(&self) -> Client {
        let mut client = self.connect();
        client.say(&json!({"hello": {"device": "d", "mtu": 4096, "wire": false}}));
        client
    }

    /// Returns the number of its threads.
    fn threads(&self) -> usize {
        self.0.process.count("task")
    }

    /// Ends it, and returns what it said.
    fn end(mut self) -> String {
        let process = &mut self.0.process;
        assert!(process.child.try_wait().unwrap().is_none(), "it still runs");
        process.child.kill().unwrap();
        process.end()
    }
}

/// Starts a server at an address of its own, where it listens.
fn serve(net: u8, host: u8, args: &[&str]) -> command::Server {
    let address = loopback(net, host);
    let server = command::Server::run(&["conform", "serve"], address, args, &[]);
    let said = server.process.said();
    assert!(said.contains(&format!("on {address}, TCP port")), "it listens where it is: {said}");
    server
}

/// A client that says what it likes.
struct Client {
    lines: BufReader<TcpStream>,
}

impl Client {
    fn say(&mut self, message: &Value) {
        self.write(format!("{message}\n").as_bytes());
    }

    /// The server may have closed the connection.
    fn write(&mut self, bytes: &[u8]) {
        let _ = self.lines.get_mut().write_all(bytes);
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    fn hear(&mut self) -> Value {
        serde_json::from_str(&self.line()).unwrap_or(Value::Null)
    }

    /// Whether the server has closed the connection, after all that it said.
    fn is_closed(&mut self) -> bool {
        // A connection that was reset is closed, too.
        self.lines.read_to_end(&mut Vec::new()).map_or_else(|error| !is_late(&error), |_| true)
    }

    /// Returns the server's outcome of an instance.
    fn outcome_of(&mut self, instance: &Value) -> String {
        self.say(&json!({"begin": {"instance": instance, "play": "responder"}}));
        loop {
            let message = self.hear();
            assert!(!message.is_null(), "the server is gone");
            if let Some(outcome) = message.get("outcome") {
                return outcome["trouble"].as_str().unwrap_or_default().to_owned();
            }
        }
    }
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
}

/// An instance that is sound, with other values in its scenario.
fn instance(changes: &Value) -> Value {
    let mut scenario =
        json!({"name": "x", "about": "x", "steps": [{"responder": "sleep", "ms": 1}], "limit": 1});
    for (key, value) in changes.as_object().unwrap() {
        scenario[key] = value.clone();
    }
    json!({"name": "x", "scenario": scenario, "mtu": 1024, "size": 64, "op": "wait"})
}

/// Address that clients connect from.
fn client_address() -> Ipv4Addr {
    loopback(74, 9)
}

/// Returns numbers, addresses and keys of a client's objects.
fn reach(last: u8, len: u64) -> Value {
    json!({"reach": {
        "gid": format!("::ffff:{}", loopback(74, last)),
        "qps": [[17, 0]],
        "buffers": [{"name": "main", "addr": 4096, "len": len, "rkey": 1}],
        "windows": {},
    }})
}

/// `roce conform` as an honest client.
fn conform(args: &[&str]) -> Output {
    roce(&[&["conform"], args].concat())
}

#[test]
fn honest_client_succeeds_while_strangers_abuse_the_server() {
    let server = Server::start(1);
    // Garbage, escapes, what is no UTF-8, and lines that never end.
    for bytes in [
        &b"\x1b]0;owned\x07\x1b[2J\n"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xfe\x9b2J\n",
        b"{\"stopped\":\"\\u001b[31mroce: all good\\u001b[2K\"}\n",
        b"{\"hello\":{\"device\":\"\\u001b[2J\",\"mtu\":-1,\"wire\":true}}\n",
        &vec![b'['; 300 << 10],
        &vec![b'\n'; 1 << 10],
    ] {
        let mut client = server.connect();
        client.write(bytes);
        assert!(client.is_closed(), "{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(40)]));
    }
    unsound_instances_are_refused(&server);
    unsound_objects_are_refused(&server);
    // Silence: before the greeting, behind it, and while it is their turn at the device.
    let mut silent: Vec<Client> = (0..4).map(|_| server.greeted()).collect();
    let mut holder = server.greeted();
    holder.say(&json!({"begin": {"instance": instance(&json!({})), "play": "responder"}}));
    holder.say(&reach(9, 256));
    holder.say(&json!("ready"));
    while holder.hear() != json!("ready") {}
    silent.extend((0..40).map(|_| server.connect()));
    let port = server.0.port.to_string();
    let args =
        ["-d", &device(74, 2), "-p", &port, &loopback(74, 1).to_string(), "--filter", "write/*"];
    let output = conform(&args);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{shown}{errors}");
    assert!(shown.contains(" 0 differences, 0 not run"), "{shown}");
    drop((silent, holder));
    let said = server.end();
    assert!(said.contains(" run"), "{said}");
    assert!(said.contains("\\u{1b}]0;owned"), "what is shown is escaped: {said}");
    assert!(said.chars().all(|c| c == '\n' || !c.is_control()), "{said:?}");
}

/// A client that closes its connection while it waits for the device leaves no thread behind, and
/// takes no time from the one that has the device.
#[test]
fn client_that_is_gone_does_not_wait_for_the_device() {
    let server = Server::start(3);
    let begin = |client: &mut Client| {
        let steps = json!({"steps": [{"responder": "sleep", "ms": 50_000}], "limit": 60});
        client.say(&json!({"begin": {"instance": instance(&steps), "play": "responder"}}));
        client.say(&reach(9, 256));
        client.say(&json!("ready"));
        // What is closed with something unread is reset.
        while client.hear().get("reach").is_none() {}
    };
    let mut holder = server.greeted();
    begin(&mut holder);
    assert_eq!(holder.hear(), json!("ready"));
    let threads = server.threads();
    let mut others: Vec<Client> = (0..10).map(|_| server.greeted()).collect();
    others.iter_mut().for_each(begin);
    assert_eq!(server.threads(), threads + 10);
    drop(others);
    while server.threads() > threads {
        std::thread::sleep(Duration::from_millis(10));
    }
    holder.lines.get_mut().set_nonblocking(true).unwrap();
    let told = holder.lines.read(&mut [0]);
    assert!(
        told.is_err_and(|error| is_late(&error)),
        "it lost the device to clients that are gone"
    );
}

/// Errors in an instance are reported, and the next one is played.
fn unsound_instances_are_refused(server: &Server) {
    let mut client = server.greeted();
    let buffers: Vec<Value> =
        (0..30).map(|at| json!({"name": format!("b{at}"), "len": 1 << 26})).collect();
    for (changes, why) in [
        (json!({"steps": [{"responder": "sleep", "ms": u64::MAX}]}), "all `ms` together"),
        (json!({"limit": u64::MAX}), "limit: "),
        (json!({"responder": {"buffers": buffers}}), "responder.buffers: "),
        (
            json!({"responder": {"buffers": [{"name": "main", "len": u64::MAX}]}}),
            "buffers.main.len",
        ),
        (json!({"steps": vec![json!({}); 2000]}), "steps: 2000 are more than 256"),
        (json!({"steps": [{"responder": "recv", "times": u32::MAX}]}), "all `times` together"),
        (
            json!({"steps": [{"responder": "send", "len": u32::MAX, "flags": ["inline"], "qp": 9}]}),
            "qp: ",
        ),
        (json!({"name": "\u{1b}[2J"}), "name: it holds the character \\u{1b}"),
        (json!({"expect": {"responder": [{"times": u32::MAX}]}}), "all `times` together"),
    ] {
        let said = client.outcome_of(&instance(&changes));
        assert!(said.starts_with("scenario: ") && said.contains(why), "{why}: {said}");
    }
    for (field, value, why) in [
        ("size", json!(u64::MAX), "size: "),
        ("size", json!(1 << 24), "requester.buffers: "),
        ("mtu", json!(3), "mtu: 3"),
        ("name", json!("\u{1b}"), "name: "),
    ] {
        let mut unsound = instance(&json!({"steps": [{"responder": "recv"}]}));
        unsound[field] = value;
        let said = client.outcome_of(&unsound);
        assert!(said.contains(why), "{why}: {said}");
    }
}

/// Packets go to the client's own address, and objects are those of the scenario.
fn unsound_objects_are_refused(server: &Server) {
    let (own, mut elsewhere) = (client_address(), reach(9, 256));
    elsewhere["reach"]["gid"] = json!("::ffff:198.51.100.7");
    let mut number = reach(9, 256);
    number["reach"]["qps"] = json!([[1 << 24, 0]]);
    let mut windows = reach(9, 256);
    windows["reach"]["windows"] = json!({"w": 1});
    for (objects, why) in [
        (elsewhere, format!("the GID ::ffff:198.51.100.7 is not the address {own}").as_str()),
        // Another address of loopback is another host.
        (reach(8, 256), &format!("the GID ::ffff:{} is not the address {own}", loopback(74, 8))),
        (number, "at most 24 bits"),
        (windows, "memory windows"),
        (reach(9, u64::MAX), "buffers"),
        (json!({"reach": {"gid": "::", "qps": [], "buffers": [], "windows": {}}}), "queue pairs"),
        (json!("settled"), "expected its objects"),
    ] {
        let mut client = server.greeted();
        client.say(&json!({"begin": {"instance": instance(&json!({})), "play": "responder"}}));
        client.say(&objects);
        let said = loop {
            let message = client.hear();
            assert!(!message.is_null(), "the server is gone");
            if let Some(why) = message.get("stopped") {
                break why.as_str().unwrap().to_owned();
            }
        };
        assert!(said.contains(why), "{why}: {said}");
    }
}

/// A scenario that takes its time, behind one that does not.
const SLOW: &str = r#"
[[scenario]]
name = "quick"
about = "It is over at once."
steps = [{ requester = "write" }]
expect.requester = [{ opcode = "rdma_write" }]
expect.memory = ["responder 0..size = requester 0"]

[[scenario]]
name = "slow"
about = "It sleeps."
limit = 60
steps = [{ requester = "sleep", ms = 60000 }]
"#;

/// Runs scenarios that take long, does something when the first is done, and returns how that ends:
/// its status, its JUnit report and what it said.
fn stopped_run(args: &[&str], stop: impl FnOnce(&Child)) -> (Option<i32>, String, String, String) {
    let (file, junit) = (Scratch::new("slow.toml", SLOW), Scratch::name("junit.xml"));
    let mut command = command(&["conform", "-v", "--scenario", file.path()]);
    command.args(["--junit", junit.path()]).args(args);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut shown = String::new();
    lines.read_line(&mut shown).unwrap();
    assert!(shown.starts_with("agree       quick"), "{shown}");
    stop(&child);
    lines.read_to_string(&mut shown).unwrap();
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let status = child.wait().unwrap().code();
    let xml = std::fs::read_to_string(junit.path()).unwrap_or_default();
    (status, shown, errors, xml)
}

#[test]
fn interrupted_run_reports_what_there_is() {
    let (status, shown, errors, xml) = stopped_run(&[], |child| {
        child.signal(Signal::INT);
    });
    assert_eq!(status, Some(130), "{shown}{errors}");
    assert!(shown.contains("1 scenario: 1 agreed,"), "{shown}");
    assert!(errors.contains("stopped before the end: interrupted"), "{errors}");
    assert!(xml.contains("tests=\"2\" failures=\"0\" errors=\"1\""), "{xml}");
    assert!(
        xml.contains("name=\"quick\"") && xml.contains("<error message=\"interrupted\"/>"),
        "{xml}"
    );
}

#[test]
fn run_whose_peer_dies_reports_what_there_is() {
    let server = serve(75, 1, &[]);
    let port = server.port.to_string();
    let args =
        ["-d", &device(75, 2), "-p", &port, &loopback(75, 1).to_string(), "--role", "requester"];
    let (status, shown, errors, xml) = stopped_run(&args, |_| drop(server));
    assert_eq!(status, Some(2), "{shown}{errors}");
    assert!(shown.contains("1 scenario: 1 agreed,"), "{shown}");
    assert!(
        errors.contains("stopped before the end: slow: the server closed the connection"),
        "{errors}"
    );
    assert!(xml.contains("tests=\"2\" failures=\"0\" errors=\"1\""), "{xml}");
}

#[test]
fn unwritable_report_is_refused_before_the_run() {
    for flag in ["--junit", "--record"] {
        let output = conform(&[flag, "/nonexistent/report", "--filter", "send/*"]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{errors}");
        assert!(errors.contains(&format!("{flag} /nonexistent/report")), "{errors}");
    }
}

/// A fault that is never injected: what the scenario is about did not happen.
#[test]
fn fault_that_never_matches_fails_its_scenario() {
    let file = Scratch::new(
        "fault.toml",
        r#"
[[scenario]]
name = "never"
about = "The packet that is to be lost is never sent."
steps = [{ requester = "write" }]
faults = [
  { from = "requester", psn = 0, do = "duplicate" },
  { from = "requester", psn = 7, do = "drop" },
  { from = "responder", packet = "ACKNOWLEDGE", nth = 99, do = "drop" },
]
expect.requester = [{ opcode = "rdma_write" }]
expect.memory = ["responder 0..size = requester 0"]
"#,
    );
    let output = conform(&["--scenario", file.path()]);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(
        shown.contains("fault 1 never matched") && shown.contains("fault 2 never matched"),
        "{shown}"
    );
    assert!(!shown.contains("fault 0 never matched"), "{shown}");
}

#[test]
fn connection_manager_connects_the_queue_pairs_of_scenarios() {
    let server = serve(79, 1, &["-R"]);
    let port = server.port.to_string();
    let filters = ["--filter", "error/recv-*", "--filter", "ud/send", "--filter", "lost/*"];
    let run = |args: &[&str]| {
        let device = ["-d", &device(79, 2), "-p", &port, &loopback(79, 1).to_string()];
        let output = conform(&[&device[..], &filters, args].concat());
        let text = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap()).concat();
        (output.status.code(), text)
    };
    let (status, text) = run(&["-R"]);
    assert!(status == Some(0) && !text.contains("0 scenarios"), "{text}");
    // A client without it is told before anything is run.
    let (status, text) = run(&[]);
    assert_eq!(status, Some(2), "{text}");
    assert!(text.contains("only the other side has -R: use it on both or on neither"), "{text}");
    // On one machine, too.
    let pair = ["-R", "-d", &device(79, 3), "--peer", &device(79, 4)];
    let output = conform(&[&pair[..], &["--filter", "error/wrong-rkey/*"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
}
