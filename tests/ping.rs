//! `roce ping` and `roce mesh` as users run them, over soft NICs on loopback, and as strangers
//! abuse them.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, and waits no longer than so"
)]

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Output, Stdio};
use std::time::Duration;

use common::command::{LONG, Running, Server, command};
use common::loopback::loopback;
use common::process::Command;
use common::requests::{self, first_line};
use common::tmp::Scratch;
use roce::control::Protocol;
use rustix::process::Signal;
use serde_json::{Value, json as value};

/// An address of this run.
fn address(host: u8) -> String {
    loopback(0, host).to_string()
}

/// Starts a server; `host` tells those of this file apart.
fn serve(host: u8, token: Option<&str>) -> Server {
    let env: Vec<_> = token.map(|token| ("ROCE_TOKEN", token)).into_iter().collect();
    Server::start(loopback(0, host), &[], &env)
}

fn roce(args: &[&str], token: Option<&str>) -> Command {
    let mut command = command(args);
    command.envs(token.map(|token| ("ROCE_TOKEN", token)));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// `roce ping` of a server.
fn ping_server(server: &Server, args: &[&str]) -> Output {
    ping(&server.address.to_string(), server.port, args)
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
    let server = serve(1, None);
    let args = ["-c", "6", "-i", "0.01", "-W", "30", "--paths", "3", "--json"];
    let output = ping_server(&server, &args);
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
    server.process.wait_for("6 probes answered");
}

#[test]
fn each_probe_is_a_line_and_the_summary_follows() {
    let server = serve(2, None);
    let output = ping_server(&server, &["-c", "2", "-i", "0.01", "-W", "30"]);
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
    let quiet = ping_server(&server, &["-c", "1", "-W", "30", "-q"]);
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
    let server = serve(5, None);
    let (address, port) = (server.address.to_string(), server.port.to_string());
    let ping = ["ping", &address, "-p", &port, "-i", "0.05", "--json"];
    let mut prober = Running::start(&mut roce(&ping, None));
    // Both runs of the server answer something.
    std::thread::sleep(Duration::from_millis(300));
    drop(server);
    prober.wait_for("the server is gone");
    let device = format!("udp:{address}");
    let server = Running::start(&mut command(&["serve", "-d", &device, "-p", &port]));
    prober.wait_for("the server is back");
    std::thread::sleep(Duration::from_millis(300));
    prober.child.signal(Signal::INT);
    let mut report = String::new();
    prober.child.stdout.take().unwrap().read_to_string(&mut report).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(prober.child.wait().unwrap().code(), Some(0), "{report:#}");
    assert!(report["answered"].as_u64().unwrap() > 0, "{report:#}");
    server.wait_for("probes answered");
}

/// Sends an opening; returns all that the server answers.
fn ask(server: &Server, text: &str) -> String {
    requests::ask(server.connect(), text)
}

#[test]
fn stranger_cannot_direct_probes_or_answers_at_others() {
    let server = serve(6, None);
    let answer =
        ask(&server, &(first_line(Protocol::Ping) + &requests::ping("::ffff:192.0.2.1", 0x11, 10)));
    assert!(answer.contains("error the queue pairs are on 192.0.2.1"), "{answer}");
    let task = requests::mesh(&["192.0.2.1:18515".to_owned()]);
    let opening = first_line(Protocol::Mesh) + &task;
    let answer = ask(&server, &opening);
    assert!(answer.contains("only for clients that know its token"), "{answer}");
    // With a token, only after the proof of it.
    let server = serve(7, Some("a secret of tests"));
    let answer = ask(&server, &format!("{opening}proof 00\n"));
    assert!(answer.contains("does not prove the token"), "{answer}");
}

#[test]
fn senseless_requests_are_refused() {
    let server = serve(8, None);
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
    let servers = [11, 12, 13].map(|host| serve(host, token));
    let hosts = servers.each_ref().map(|server| server.socket_address().to_string());
    let page = Scratch::name("mesh.html");
    let output = roce(&["mesh", "-c", "3", "--paths", "2", "-W", "30", "--json"], token)
        .args(&hosts)
        .arg("--html")
        .arg(page.path())
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
    let html = page.text();
    assert!(
        hosts.iter().all(|host| html.contains(host.as_str())) && html.contains("class=\"map\"")
    );
    for server in &servers {
        server.process.wait_for("probed 2 servers on 2 paths each");
    }
}

#[test]
fn host_of_a_mesh_that_refuses_is_not_dead() {
    let servers = [(17, "one secret"), (18, "another secret")];
    let servers = servers.map(|(host, token)| serve(host, Some(token)));
    let hosts = servers.each_ref().map(|server| server.socket_address().to_string());
    let output =
        roce(&["mesh", "-c", "1", "--json"], Some("one secret")).args(&hosts).output().unwrap();
    let report = json(&output);
    assert_eq!(output.status.code(), Some(1), "{report:#}");
    assert_eq!(report["silent"], Value::Array(vec![]), "{report:#}");
    assert_eq!(report["refused"][0]["host"], hosts[1].as_str(), "{report:#}");
    assert_eq!(report["findings"][0]["fault"], "refusing host", "{report:#}");
}

#[test]
fn host_of_a_mesh_that_is_down_is_named() {
    let token = Some("a secret of tests");
    let up = serve(14, token);
    let at = up.socket_address().to_string();
    let down = format!("{}:1", address(15));
    let output = roce(&["mesh", "-c", "1", &at, &down], token).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = format!("dead host {down}: it did not probe: cannot connect");
    assert!(text.contains(&line), "{text}");
    assert_eq!(text.matches(&format!("{down}: ")).count(), 1, "it is named once: {text}");
    assert!(text.contains("; 1 of 1 host could not probe it either"), "{text}");
    // Where no host is up, there is no map of nothing, and no praise.
    let others = format!("{}:1", address(16));
    let pairs = Scratch::new("pairs.txt", format!("{down} {others} # both are down\n"));
    let output = roce(&["mesh", "-c", "1", "--pairs", pairs.path()], token).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("2 hosts, 1 silent, 0 probes, nothing is known of the network, 1 finding"),
        "{text}"
    );
    assert!(!text.contains("best pair") && !text.contains("no findings"), "{text}");
    // Without the token nothing is probed.
    let output = roce(&["mesh", "-c", "1", &at, &down], None).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("the server wants a token"), "{text}");
}

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
