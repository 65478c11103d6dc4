//! `roce ping` and `roce mesh` as users run them, over soft NICs on loopback, and as strangers
//! abuse them.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, and waits no longer than so"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use process::{Child, Command};
use requests::first_line;
use roce::control::Protocol;
use rustix::process::Signal;
use serde_json::{Value, json as value};

/// Time limit of any step on a machine under load.
const LONG: Duration = Duration::from_secs(60);

/// Output of a program, while it runs.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<String>>);

impl Said {
    fn of(from: impl Read + Send + 'static) -> Self {
        let (said, mut from) = (Self::default(), BufReader::new(from));
        let keep = said.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            while from.read_line(&mut line).is_ok_and(|count| count > 0) {
                keep.0.lock().unwrap().push_str(&line);
                line.clear();
            }
        });
        said
    }

    fn text(&self) -> String {
        self.0.lock().unwrap().clone()
    }

    fn wait_for(&self, what: &str) -> String {
        const PAUSE: Duration = Duration::from_millis(20);
        for _ in 0..LONG.as_millis() / PAUSE.as_millis() {
            if self.text().contains(what) {
                return self.text();
            }
            std::thread::sleep(PAUSE);
        }
        panic!("'{what}' was not said, but: {}", self.text());
    }
}

/// An address of this run.
fn address(host: u8) -> String {
    loopback::loopback(0, host).to_string()
}

struct Server {
    child: Child,
    address: String,
    port: u16,
    said: Said,
}

impl Server {
    /// `host` tells the servers of this file apart; any port will do if it is 0.
    fn start(host: u8, port: u16, token: Option<&str>) -> Self {
        let address = address(host);
        let mut child = Command::new(env!("CARGO_BIN_EXE_roce"))
            .args(["serve", "-d", &format!("udp:{address}"), "-p", &port.to_string()])
            .env_remove("ROCE_TOKEN")
            .envs(token.map(|token| ("ROCE_TOKEN", token)))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Said::of(child.stderr.take().unwrap());
        let first = said.wait_for("TCP port ");
        let (_, at) = first.split_once("TCP port ").unwrap();
        let port = at.split(' ').next().unwrap().trim().parse().unwrap();
        Self { child, address, port, said }
    }

    fn at(&self) -> String {
        format!("{}:{}", self.address, self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn roce(args: &[&str], token: Option<&str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_roce"));
    command.args(args).env_remove("ROCE_TOKEN").envs(token.map(|token| ("ROCE_TOKEN", token)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn ping(to: &str, port: u16, args: &[&str]) -> Output {
    roce(&["ping", to, "-p", &port.to_string()], None).args(args).output().unwrap()
}

fn json(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
}

#[test]
fn probes_are_answered_on_every_path_with_all_times() {
    let server = Server::start(1, 0, None);
    let args = ["-c", "6", "-i", "0.01", "-W", "30", "--paths", "3", "--json"];
    let output = ping(&server.address, server.port, &args);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(0), "{report:#}");
    assert_eq!(
        (&report["sent"], &report["answered"], &report["lost"]),
        (&6.into(), &6.into(), &0.into())
    );
    assert_eq!(report["time_stamps"], "nic", "a soft NIC has time stamps");
    for path in report["paths"].as_array().unwrap() {
        assert_eq!(path["answered"], 2, "{path:#}");
    }
    let ports: Vec<u64> = report["paths"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["source_port"].as_u64().unwrap())
        .collect();
    assert_eq!(ports, [0xc001, 0xc002, 0xc003]);
    let timed = report["implausible"].as_u64().unwrap() + report["untimed"].as_u64().unwrap();
    if timed < 6 {
        for times in ["network_us", "prober_us", "responder_us"] {
            assert!(report[times]["p99"].as_f64().is_some(), "{report:#}");
        }
    }
    server.said.wait_for("6 probes answered");
}

#[test]
fn each_probe_is_a_line_and_the_summary_follows() {
    let server = Server::start(2, 0, None);
    let output = ping(&server.address, server.port, &["-c", "2", "-i", "0.01", "-W", "30"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for (number, line) in lines.iter().take(2).enumerate() {
        assert!(
            line.starts_with(&format!("{}: seq={number} port=49153 ", server.address)),
            "{text}"
        );
    }
    assert_eq!(lines[2], format!("--- {} probe statistics ---", server.address));
    assert!(lines[3].starts_with("2 probes, 2 answered, 0.0 % lost"), "{text}");
    let quiet = ping(&server.address, server.port, &["-c", "1", "-W", "30", "-q"]);
    assert!(quiet.stdout.starts_with(b"--- "));
}

/// A server that promises a responder that is not there.
fn liar(host: u8) -> (String, u16) {
    let address = address(host);
    let listener = TcpListener::bind((address.as_str(), 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let gid = format!("::ffff:{address}");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let responder = value!({"gid": gid, "qpn": 0x11, "qkey": 0x22});
        let welcome = value!({"responder": responder, "instance": 5});
        let _ = write!(stream, "open\nwelcome\n{welcome}\n");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    (address, port)
}

#[test]
fn status_is_one_if_nothing_answers() {
    let (address, port) = liar(3);
    let output = ping(&address, port, &["-c", "3", "-i", "0.01", "-W", "0.05", "--json"]);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert_eq!(
        (&report["sent"], &report["lost"], &report["network_us"]),
        (&3.into(), &3.into(), &Value::Null)
    );
}

#[test]
fn server_that_is_not_there_is_an_error_with_the_cure() {
    let output = ping(&address(4), 1, &["-c", "1"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors.contains("roce serve"), "{errors}");
    for (args, word) in [
        (["--paths", "65"], "--paths: 1 to 64"),
        (["-i", "0.00001"], "-i: at least 0.0001"),
        (["-W", "61"], "-W: at most 60"),
    ] {
        let output = ping(&address(4), 1, &args);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && errors.contains(word), "{errors}");
    }
}

#[test]
fn prober_goes_on_after_a_restart_of_the_server_and_ctrl_c_prints_the_summary() {
    let server = Server::start(5, 0, None);
    let (address, port) = (server.address.clone(), server.port);
    let mut child =
        roce(&["ping", &address, "-p", &port.to_string(), "-i", "0.05", "--json"], None)
            .spawn()
            .unwrap();
    let said = Said::of(child.stderr.take().unwrap());
    // Both runs of the server answer something.
    std::thread::sleep(Duration::from_millis(300));
    drop(server);
    said.wait_for("the server is gone");
    let server = Server::start(5, port, None);
    said.wait_for("the server is back");
    std::thread::sleep(Duration::from_millis(300));
    child.signal(Signal::INT);
    let mut report = String::new();
    child.stdout.take().unwrap().read_to_string(&mut report).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{report:#}");
    assert!(report["answered"].as_u64().unwrap() > 0, "{report:#}");
    server.said.wait_for("probes answered");
}

/// Sends an opening; returns all that the server answers.
fn ask(server: &Server, text: &str) -> String {
    requests::ask(TcpStream::connect(server.at()).unwrap(), text)
}

#[test]
fn stranger_cannot_direct_probes_or_answers_at_others() {
    let server = Server::start(6, 0, None);
    let answer =
        ask(&server, &(first_line(Protocol::Ping) + &requests::ping("::ffff:192.0.2.1", 0x11, 10)));
    assert!(answer.contains("error the queue pairs are on 192.0.2.1"), "{answer}");
    let task = requests::mesh(&["192.0.2.1:18515".to_owned()]);
    let opening = first_line(Protocol::Mesh) + &task;
    let answer = ask(&server, &opening);
    assert!(answer.contains("only for clients that know its token"), "{answer}");
    // With a token, only after the proof of it.
    let server = Server::start(7, 0, Some("a secret of tests"));
    let answer = ask(&server, &format!("{opening}proof 00\n"));
    assert!(answer.contains("does not prove the token"), "{answer}");
}

#[test]
fn senseless_requests_are_refused() {
    let server = Server::start(8, 0, None);
    for (hello, word) in [
        (requests::ping("::1", 0x100_0000, 10), "at most 24 bits"),
        (requests::ping("ff02::1", 1, 10), "no address of a host"),
        (requests::ping("::1", 1, 0), "probes a second"),
        ("{\"rate\":1}\n".to_owned(), "missing field `prober`"),
    ] {
        let answer = ask(&server, &(first_line(Protocol::Ping) + &hello));
        assert!(answer.contains("error ") && answer.contains(word), "{hello}: {answer}");
    }
}

#[test]
fn hosts_of_a_mesh_probe_each_other() {
    let token = Some("a secret of tests");
    let servers = [11, 12, 13].map(|host| Server::start(host, 0, token));
    let hosts = servers.each_ref().map(Server::at);
    let page = std::env::temp_dir().join(format!("roce-mesh-{}.html", std::process::id()));
    let output = roce(&["mesh", "-c", "3", "--paths", "2", "-W", "30", "--json"], token)
        .args(&hosts)
        .arg("--html")
        .arg(&page)
        .output()
        .unwrap();
    let report = json(&output);
    // On a machine under load a host may be slow: that is a finding, and no error.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{report:#}");
    assert_eq!(
        (&report["silent"], &report["failed"]),
        (&Value::Array(vec![]), &Value::Array(vec![]))
    );
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 3 * 2 * 2, "{report:#}");
    assert!(cells.iter().all(|cell| cell["answered"] == 3), "{report:#}");
    let html = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_file(&page).unwrap();
    assert!(
        hosts.iter().all(|host| html.contains(host.as_str())) && html.contains("class=\"map\"")
    );
    for server in &servers {
        server.said.wait_for("probed 2 servers on 2 paths each");
    }
}

#[test]
fn host_of_a_mesh_that_is_down_is_named() {
    let token = Some("a secret of tests");
    let up = Server::start(14, 0, token);
    let down = format!("{}:1", address(15));
    let output = roce(&["mesh", "-c", "1", &up.at(), &down], token).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = format!("dead host {down}: it did not probe: cannot connect");
    assert!(text.contains(&line), "{text}");
    assert_eq!(text.matches(&format!("{down}: ")).count(), 1, "it is named once: {text}");
    assert!(text.contains("; 1 of 1 host could not probe it either"), "{text}");
    // Where no host is up, there is no map of nothing, and no praise.
    let others = format!("{}:1", address(16));
    let pairs = std::env::temp_dir().join(format!("roce-pairs-{}.txt", std::process::id()));
    std::fs::write(&pairs, format!("{down} {others} # both are down\n")).unwrap();
    let output = roce(&["mesh", "-c", "1", "--pairs", pairs.to_str().unwrap()], token).output();
    std::fs::remove_file(&pairs).unwrap();
    let output = output.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("2 hosts, 1 silent, 0 probes, nothing is known of the network, 1 finding"),
        "{text}"
    );
    assert!(!text.contains("best pair") && !text.contains("no findings"), "{text}");
    // Without the token nothing is probed.
    let output = roce(&["mesh", "-c", "1", &up.at(), &down], None).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("the server wants a token"), "{text}");
}

#[path = "common/loopback.rs"]
mod loopback;
#[path = "common/process.rs"]
mod process;
#[path = "common/requests.rs"]
mod requests;
#[path = "../examples/ud_probe.rs"]
#[allow(dead_code, reason = "its main is for a command line")]
mod ud_probe;

#[test]
fn example_probes_every_path() {
    use roce::device::Context;
    use roce::link::cable;
    use roce::nic::SoftNic;
    let gids = [1, 2].map(|host| std::net::Ipv4Addr::new(192, 0, 2, host).into());
    let (near, far) = cable(gids[0], gids[1]).unwrap();
    let [near, far] = [near, far].map(|link| Context::new(SoftNic::start(link).unwrap()));
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let at = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        ud_probe::serve(&far, listener.accept().unwrap().0).map_err(|error| error.to_string())
    });
    let paths = ud_probe::probe(&near, TcpStream::connect(at).unwrap(), LONG).unwrap();
    assert_eq!(paths.iter().map(|path| path.answered).collect::<Vec<_>>(), [5; 4]);
    assert_eq!(server.join().unwrap(), Ok(20));
}
