//! `roce serve` and `roce bench` as users run them, and as strangers abuse them.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, and waits no longer than so"
)]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::command::{self, LONG, Running, command, port_of, roce, text};
use common::loopback::loopback;
use common::process::{Child, Command};
use common::requests;
use roce::control::Protocol;
use rustix::process::Signal;
use serde_json::{Value, json};

/// A server on a loopback address of its own.
struct Server(command::Server);

impl Server {
    /// `host` tells the servers of this file apart.
    fn start(host: u8, args: &[&str], env: &[(&str, &str)]) -> Self {
        Self(command::Server::start(address(host), args, env))
    }

    /// The arguments of a client of this server.
    fn client(&self, args: &[&str]) -> Command {
        let (port, to) = (self.0.port.to_string(), self.0.address.to_string());
        let mut command = command(&[&["bench"], args, &["-p", &port, &to]].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn bench(&self, args: &[&str]) -> Output {
        self.client(args).output().unwrap()
    }

    fn succeeds(&self) {
        let output = self.bench(&["send", "bw", "-s", "64", "-n", "50"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }

    fn wait_until(&self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        self.0.process.wait_until(what, |_| is_so(self));
    }

    fn descriptors(&self) -> usize {
        self.0.process.count("fd")
    }

    fn said(&self) -> String {
        self.0.process.said()
    }
}

/// Returns a loopback address of this run.
fn address(host: u8) -> Ipv4Addr {
    loopback(0, host)
}

fn interrupt(child: &Child) {
    child.signal(Signal::INT);
}

/// The opening of a client that wants traffic at a GID.
fn hello(gid: Ipv4Addr, extent: Value, qps: u32, tx_depth: u32) -> String {
    let request =
        requests::Bench { extent, qps, tx_depth, ..requests::Bench::new(gid, "send", "ud") };
    format!("{}{}\"ready\"\n", requests::first_line(Protocol::Bench), request.request())
}

/// Sends an opening; returns all that the server answers.
fn ask(server: &Server, text: &str) -> String {
    requests::ask(server.0.connect(), text)
}

#[test]
fn stranger_cannot_direct_traffic_at_a_third_party() {
    let server = Server::start(10, &[], &[]);
    let third = address(99);
    let victim = UdpSocket::bind((third, 4791)).unwrap();
    let answer = ask(&server, &hello(third, json!({"seconds": 600_u64}), 1, 512));
    assert!(answer.contains(&format!("error the queue pairs are on {third}")), "{answer}");
    let gid = u32::from(third);
    let pingpong = format!("0000:000011:000000:00000000000000000000ffff{gid:08x}\0");
    ask(&server, &pingpong);
    server.wait_until("the pingpong is refused", |server| {
        server.said().matches(&format!("are on {third}")).count() == 2
    });
    victim.set_nonblocking(true).unwrap();
    assert!(victim.recv(&mut [0; 64]).is_err(), "the third party has received a packet");
    server.succeeds();
}

#[test]
fn demands_beyond_the_limits_are_refused_and_named() {
    let server = Server::start(20, &["--max-duration", "60"], &[]);
    let own = Ipv4Addr::LOCALHOST;
    let answer = ask(&server, &hello(own, json!({"seconds": 61_u64}), 1, 16));
    assert!(answer.contains("at most 60 seconds"), "{answer}");
    let answer = ask(&server, &hello(own, json!({"iterations": 5_u64}), 256, 3583));
    assert!(answer.contains("--max-memory"), "{answer}");
    let answer = ask(&server, &hello(own, json!({"iterations": 18446744073709551615_u64}), 1, 16));
    assert!(answer.contains("error -n: 1 to"), "{answer}");
    let old = ask(&server, "roce-bench 2\ntest send bw RC\n");
    assert!(old.contains("use the same version of roce on both sides"), "{old}");
    server.succeeds();
}

#[test]
fn server_survives_abuse_and_gives_everything_back() {
    let server = Server::start(30, &["--max-clients", "32"], &[]);
    server.succeeds();
    server.wait_until("the client has left", |server| server.said().contains("RC send bw"));
    let descriptors = server.descriptors();
    let own = Ipv4Addr::LOCALHOST;
    // Silent clients and half-open ones, some of which have begun to speak; more than one address
    // gets.
    let mut held: Vec<TcpStream> = (0..20).map(|_| server.0.connect()).collect();
    for (number, stream) in held.iter_mut().enumerate() {
        let start = ["", "roce-", "roce-bench 4 ", "0000:"][number % 4];
        let _ = stream.write_all(start.as_bytes());
    }
    // A client of another address is served meanwhile.
    let other = format!("udp:{}", address(40));
    let output = server.bench(&["send", "lat", "-n", "50", "-d", &other]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    drop(held);
    // Garbage, and lines without an end.
    for round in 0..40_u8 {
        let mut stream = server.0.connect();
        let byte = if round % 2 == 0 { b'A' } else { round.wrapping_mul(37) };
        let _ = stream.write_all(b"roce-").and_then(|()| stream.write_all(&vec![byte; 3000]));
    }
    // Floods of whole openings, whose clients go away or fall silent.
    let mut silent = Vec::new();
    for _ in 0..60 {
        let mut stream = server.0.connect();
        let _ = stream.write_all(hello(own, json!({"seconds": 3600_u64}), 8, 128).as_bytes());
        silent.push(stream);
    }
    drop(silent);
    // One that speaks a byte at a time, and ends.
    let mut slow = server.0.connect();
    for byte in hello(own, json!({"iterations": 1_u64}), 1, 1).bytes().take(100) {
        if slow.write_all(&[byte]).is_err() {
            break;
        }
    }
    drop(slow);
    server.wait_until("descriptors come back", |server| server.descriptors() <= descriptors);
    // The place of a client is free a moment after its descriptor.
    server.wait_until("clients are served again", |server| {
        server.bench(&["send", "bw", "-s", "64", "-n", "50"]).status.code() == Some(0)
    });
}

#[test]
fn shortage_of_descriptors_does_not_end_the_server() {
    let server = Server::start(50, &["--max-clients", "1000"], &[]);
    let pid = server.0.process.child.id();
    let few = server.descriptors() + 8;
    let limited = Command::new("prlimit")
        .args([format!("--pid={pid}"), format!("--nofile={few}:{few}")])
        .status();
    assert!(limited.unwrap().success());
    let held: Vec<TcpStream> = (0..30).map(|_| server.0.connect()).collect();
    server
        .wait_until("it says so", |server| server.said().contains("cannot accept clients for now"));
    drop(held);
    server.wait_until("clients are served again", |server| {
        server.bench(&["send", "bw", "-s", "64", "-n", "50"]).status.code() == Some(0)
    });
}

#[test]
fn wrong_options_of_nics_are_refused_before_clients_come() {
    for (args, reason) in [
        (&["--cc", "fast"][..], "--cc: no congestion control is called"),
        (&["--line-rate", "quick"], "--line-rate: "),
        (&["-d", "soft:lo", "-x", "9"], "-x: "),
    ] {
        let output = roce(&[&["serve", "-p", "0"], args].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(reason), "{args:?}: {error}");
    }
}

#[test]
fn wrong_variables_of_links_are_refused_and_named() {
    let mut serve = command(&["serve", "-d", &format!("udp:{}", address(19))]);
    serve.env("ROCE_SHM", "nope").stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = serve.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("ROCE_SHM=`nope` means nothing: set it to on or off"), "{error}");
}

#[test]
fn server_listens_only_where_its_nic_is() {
    let server = Server::start(60, &[], &[]);
    assert!(TcpStream::connect((address(61), server.0.port)).is_err());
    assert!(TcpStream::connect(("::1", server.0.port)).is_err());
    assert!(server.said().ends_with(&format!(" of {}\n", address(60))));
    let wide = Server::start(62, &["--listen", "::"], &[]);
    drop(TcpStream::connect((address(61), wide.0.port)).unwrap());
}

#[test]
fn devices_lists_a_nic_that_runs() {
    let server = Server::start(31, &["--cc", "fixed:1G"], &[]);
    let spec = format!("udp:{}", address(31));
    let output = roce(&["devices", "--json", "lo"]);
    let entries: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = entries.as_array().unwrap();
    let nic = all.iter().find(|entry| entry["running"] == spec.as_str()).unwrap();
    assert_eq!(nic["pid"], server.0.process.child.id());
    assert_eq!(nic["program"], "roce");
    assert_eq!(nic["qps"], 0);

    let mut exporter = Running::start(&mut command(&["devices", "--metrics", "127.0.0.1:0"]));
    let first = exporter.wait_for("\n");
    let address = first.split(['/', ' ']).find(|word| word.starts_with("127.")).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let pid = server.0.process.child.id();
    let line = format!("roce_qps{{program=\"roce\",pid=\"{pid}\",device=\"{spec}\"}} 0\n");
    assert!(answer.contains(&line), "{answer}");
    interrupt(&exporter.child);
    assert!(exporter.child.wait().unwrap().success());
}

#[test]
fn packets_are_sprayed_only_to_a_side_that_takes_them() {
    for (net, receive, is_sprayed) in [(32, &[][..], false), (33, &["--receive", "buffer"], true)] {
        let server = Server::start(net, receive, &[]);
        let output = server.bench(&["write", "bw", "--paths", "4", "-s", "64k", "-n", "200"]);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{error}");
        assert_eq!(error.contains("--paths is not used"), !is_sprayed, "{error}");
        assert!(!error.contains("drop_wrong_source_port"), "{error}");
    }
}

#[test]
fn token_keeps_others_out() {
    let server = Server::start(70, &[], &[("ROCE_TOKEN", "correct horse")]);
    let with = |token: Option<&str>, args: &[&str]| {
        let mut client =
            server.client(&[&["send", "bw", "-s", "64", "-n", "50"][..], args].concat());
        if let Some(token) = token {
            client.env("ROCE_TOKEN", token);
        }
        let output = client.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, error) = with(None, &[]);
    assert!(status == Some(2) && error.contains("the server wants a token"), "{error}");
    let (status, error) = with(Some("wrong horse"), &[]);
    assert!(status == Some(2) && error.contains("does not prove the token"), "{error}");
    assert_eq!(with(Some("correct horse"), &[]).0, Some(0));
    assert_eq!(with(None, &["--token", "correct horse"]).0, Some(0));
    let (status, error) = with(None, &["--token", "short"]);
    assert!(status == Some(2) && error.contains("at least 8"), "{error}");
    let output = server.bench(&["pingpong", "-n", "1"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn both_sides_on_one_host_take_addresses_of_their_own() {
    // Neither names a device: the server has 127.0.0.1, and the client takes the next free address.
    let server = Running::start(&mut command(&["serve", "-p", "0", "--listen", "127.0.0.1"]));
    let port = port_of(&server);
    // Where another NIC of this machine has 127.0.0.1, the server takes the next one as well.
    let output = roce(&["bench", "send", "lat", "-n", "50", "-p", &port, "127.0.0.1", "--any-gid"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Starts a client, ends it somehow once it measures, and returns its status and what it printed.
/// On a machine under load it may have measured nothing by then: then it gets more time.
fn cut_short(
    start: impl Fn() -> (Child, Option<Server>),
    end: impl Fn(&Child, Option<Server>),
    has_results: impl Fn(&str) -> bool,
) -> (Option<i32>, String) {
    let mut wait = Duration::from_millis(100);
    loop {
        let (mut client, server) = start();
        let mut first = String::new();
        let mut stderr = BufReader::new(client.stderr.take().unwrap());
        stderr.read_line(&mut first).unwrap();
        assert!(first.contains(" QP, MTU "), "{first}");
        std::thread::sleep(wait);
        end(&client, server);
        let mut out = String::new();
        client.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        let status = client.wait().unwrap().code();
        wait *= 4;
        if has_results(&out) || wait > LONG {
            return (status, out);
        }
    }
}

fn json_has_results(out: &str) -> bool {
    let json: Value = serde_json::from_str(out).unwrap();
    json["results"][0]["iterations"].as_u64().is_some_and(|count| count > 0)
}

#[test]
fn interrupted_bench_prints_what_it_has() {
    let server = Server::start(80, &[], &[]);
    for (json, metric) in [(true, "bw"), (false, "lat"), (false, "bw")] {
        let mut args = vec!["write", metric, "-s", "1k", "-D", "600"];
        args.extend(json.then_some("--json"));
        let has_results = |out: &str| match json {
            true => json_has_results(out),
            false => out.lines().nth(1).is_some_and(|line| line.starts_with(" 1024 ")),
        };
        let start = || (server.client(&args).spawn().unwrap(), None);
        let (status, out) = cut_short(start, |client, _| interrupt(client), has_results);
        assert_eq!(status, Some(130), "{out}");
        assert!(has_results(&out), "{out}");
        assert_eq!(out.contains("\"interrupted\":true"), json, "{out}");
    }
    server.succeeds();
}

#[test]
fn bench_whose_server_dies_prints_what_it_has() {
    let start = || {
        let server = Server::start(90, &[], &[]);
        (server.client(&["send", "bw", "-D", "600", "--json"]).spawn().unwrap(), Some(server))
    };
    let (status, out) = cut_short(start, |_, server| drop(server), json_has_results);
    assert_eq!(status, Some(2));
    let json: Value = serde_json::from_str(&out).unwrap();
    assert!(json_has_results(&out), "{json}");
    assert!(json["error"].as_str().unwrap().contains("the server"), "{json}");
}

#[test]
fn unreachable_nics_are_told_apart_at_once() {
    let server = Server::start(100, &[], &[]);
    let refused = |args: &[&str], word: &str| {
        let output = server.bench(&[&["send", "bw", "-n", "1"][..], args].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(word), "{args:?}: {error}");
    };
    refused(&["-d", "udp:::1"], "one is of IPv4, the other of IPv6");
    let device = format!("udp:{}", address(101));
    let elsewhere = roce(&["bench", "send", "bw", "-d", &device, "192.0.2.1"]);
    let error = String::from_utf8(elsewhere.stderr).unwrap();
    assert!(
        error.contains("reaches its own host only") || error.contains("cannot be reached"),
        "{error}"
    );
}

#[test]
fn histogram_counts_every_message() {
    let server = Server::start(110, &[], &[]);
    let output = server.bench(&["send", "lat", "-n", "200", "-H"]);
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(out.contains("\n from[usec]   to[usec]     #messages      cumulative[%]\n"), "{out}");
    let counts = out.lines().skip(3).map(|line| line.split_whitespace().nth(2).unwrap());
    assert_eq!(counts.map(|count| count.parse::<u64>().unwrap()).sum::<u64>(), 200, "{out}");
    let output = server.bench(&["send", "bw", "-H"]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("-H: a histogram is of lat"));
}

#[test]
fn connection_manager_connects_the_queue_pairs() {
    let server = Server::start(120, &["-R"], &[]);
    for args in [
        &["send", "bw", "-s", "3000", "-n", "50", "-q", "3", "--verify", "-R"][..],
        &["read", "lat", "-n", "50", "--verify", "-R"],
        &["atomic", "bw", "-n", "50", "-b", "--verify", "--rdma-cm"],
        // The same server takes clients that connect without it.
        &["write", "bw", "-s", "3000", "-n", "50", "--verify"],
    ] {
        let output = server.bench(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {error}");
    }
    let served = [
        "RC send bw, 3 QP, by rdma_cm",
        "RC atomic bw, 1 QP, by rdma_cm",
        "RC write bw, 1 QP, MTU ",
    ];
    server.wait_until("it tells of its clients", |server| {
        let said = server.said();
        served.iter().all(|line| said.contains(line))
    });
    let output = server.bench(&["send", "bw", "-c", "ud", "-R"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains("-R: "), "{error}");
}

#[test]
fn server_without_a_connection_manager_says_what_to_do() {
    let server = Server::start(121, &[], &[]);
    let output = server.bench(&["send", "bw", "-n", "50", "-R"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(2) && error.contains("start it with roce serve -R"),
        "{error}"
    );
    server.succeeds();
}

/// A client that was told where to connect, and never does, or that knows no key.
#[test]
fn stranger_is_refused_at_the_port_of_the_connection_manager() {
    use roce::connect::{ConnectionManager, Error, Options};
    use roce::device::Device as _;

    let server = Server::start(122, &["-R"], &[]);
    let own = address(123);
    let link = roce::link::udp::open(&roce::link::udp::Options::new(own.into())).unwrap();
    let nic = Arc::new(roce::nic::SoftNic::start(link).unwrap());
    let (pd, cq) = (nic.create_pd().unwrap(), nic.create_cq(16).unwrap());
    let qp = nic.create_simple_qp(pd, cq, roce::verbs::QpType::Rc).unwrap();
    let manager = ConnectionManager::start(nic).unwrap();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((own, 0)).into()).unwrap();
    socket.connect(&server.0.socket_address().into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LONG)).unwrap();
    let hello = requests::Bench::new(own, "send", "rc").request();
    let hello = requests::first_line(Protocol::BenchByCm) + &hello;
    stream.write_all(hello.as_bytes()).unwrap();
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let messages = lines.filter_map(|line| serde_json::from_str::<Value>(&line.unwrap()).ok());
    let port = messages.filter_map(|message| message["rendezvous"]["port"].as_u64()).next();
    let port = u16::try_from(port.unwrap()).unwrap();
    let at = SocketAddr::from((server.0.address, port));
    let options = Options::with_private_data(b"roce-qp\0 no key of anything");
    match manager.connect(qp, at, &options).unwrap_err() {
        Error::Refused { reason: 28, private_data } => {
            assert!(
                private_data.as_slice().starts_with(b"roce serve: this port is for one client")
            );
        }
        other => panic!("{other}"),
    }
    drop(stream);
    let output = server.bench(&["send", "bw", "-n", "50", "-R"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}
