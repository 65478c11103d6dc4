//! `roce replay --to` a soft NIC as users run it: the peer executes the capture, and its memory
//! holds what was written.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, and waits no longer than so"
)]

mod broken_nic;
#[path = "../common/mod.rs"]
mod common;
use common::loopback;
mod connected;

use std::process::{Output, Stdio};

use broken_nic::{BrokenNic, Flaw};
use common::command::{Running, command, port_after, roce, text};
use common::netns::{Host, in_namespace, wire};
use common::process::Command;
use common::tmp::Scratch;
use roce::capture::Reader;
use roce::conform::scenario;
use roce::wire::{Opcode, Operation};
use rustix::process::Signal;

const ROCE: &str = env!("CARGO_BIN_EXE_roce");

fn capture(name: &str) -> String {
    format!("{}/testdata/captures/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A server that offers queue pairs, until it is dropped.
struct Server {
    process: Running,
    port: String,
}

impl Server {
    fn start(device: &str, args: &[&str]) -> Self {
        Self::run(&[&["serve", "-d", device, "-p", "0"], args].concat(), "serving with ")
    }

    /// Starts a command that says so on which TCP port it offers.
    fn run(args: &[&str], says: &str) -> Self {
        let process = Running::start(&mut command(args));
        Self { port: port_after(&process, says), process }
    }
}

fn replay(args: &[&str]) -> Output {
    roce(&[&["replay"], args].concat())
}

/// Returns a loopback address of this run.
fn loopback(host: u8) -> String {
    loopback::loopback(0, host).to_string()
}

/// Returns the name of a soft NIC on a loopback address of this run.
fn device(host: u8) -> String {
    loopback::device(0, host)
}

/// Checks the output of a replay of all operations.
fn check_all_operations(output: &Output) {
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}{errors}");
    let whole = said.matches("messages: 158 agreed, 0 undecided, 0 different").count();
    assert_eq!(whole, 3, "{said}");
    // Two WRITEs, a READ and an ATOMIC that both responders refuse, and a SEND for which a receive
    // came late.
    assert_eq!(said.matches("messages: 1 agreed, 0 undecided, 0 different").count(), 5, "{said}");
    let memory =
        "the peer's memory holds what the capture wrote: 1 region, 393232 bytes, 130 receives";
    assert_eq!(said.matches(memory).count(), 3, "{said}");
    assert!(said.contains("1 region, 20003 bytes, 30 receives"), "UC: {said}");
    assert_eq!(said.matches("0 regions, 0 bytes, 10 receives").count(), 2, "UD: {said}");
    assert_eq!(said.matches("connection ").count(), 14, "{said}");
}

#[test]
fn peer_on_udp_executes_the_requests_of_a_capture() {
    let server = Server::start(&device(1), &["--offer"]);
    let (host, device) = (loopback(1), device(2));
    let record = Scratch::name("record.pcapng");
    let all = capture("rxe_all_ops.pcap");
    let to = ["--to", &device, "--host", &host, "-p", &server.port, "--speed", "max"];
    let output = replay(&[&to[..], &["--record", record.path(), &all]].concat());
    check_all_operations(&output);
    // What was sent and received is a capture of sound packets.
    let fields = ["decode", "-Y", "roce.icrc != \"ok\"", record.path()];
    let broken = Command::new(ROCE).args(fields).output().unwrap();
    assert_eq!((broken.status.code(), text(&broken.stdout)), (Some(0), String::new()));
    // Twice on one queue pair, by the clock of the capture but faster, and without waiting.
    for how in [["--speed", "1000", "--loop", "2"], ["--open-loop", "--speed", "max", "--loop"]] {
        let (rounds, agreed) = if how[0] == "--speed" { (None, 316) } else { (Some("1"), 158) };
        let args = ["--flow", "3", "--to", &device, "--host", &host, "-p", &server.port];
        let output = replay(&[&args[..], &how, rounds.as_slice(), &[&all]].concat());
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
        assert!(
            said.contains(&format!("messages: {agreed} agreed, 0 undecided, 0 different")),
            "{said}"
        );
    }
}

#[test]
fn soft_nic_survives_mutated_requests() {
    let server = Server::start(&device(11), &["--offer"]);
    let (host, device) = (loopback(11), device(12));
    let to = ["--to", &device, "--host", &host, "-p", &server.port];
    // Connections with few requests, most of which were refused: each run takes a moment.
    let flows = ["--flow", "8", "--flow", "9", "--flow", "13"];
    let how = ["--mutate", "any", "--seed", "100", "--runs", "20"];
    let output = replay(&[&to[..], &flows, &how, &[&capture("rxe_all_ops.pcap")]].concat());
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.contains("20 mutated runs") && said.contains(": 0 that"), "{said}");
}

#[test]
fn peer_that_dies_is_found_and_the_smallest_sequence_is_written() {
    // A server that is gone once its first client was served: whatever is sent kills it.
    let server = Server::start(&device(13), &["--offer"]);
    let (host, device) = (loopback(13), device(14));
    let found = Scratch::name("found");
    let to = ["--to", &device, "--host", &host, "-p", &server.port, "--flow", "8"];
    let how = ["--mutate", "psn=+1", "--runs", "1000000", "--found", found.path()];
    let all = capture("rxe_all_ops.pcap");
    let hunter = Command::new(ROCE)
        .arg("replay")
        .args([&to[..], &how, &[&all]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first client asks whether the server lives at all; then the hunt begins.
    server.process.wait_until("two clients are served", |server| server.said().lines().count() > 2);
    server.process.child.signal(Signal::KILL);
    let output = hunter.wait_with_output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}{}", text(&output.stderr));
    assert!(said.contains("the peer died: "), "{said}");
    assert!(said.contains("+1 added to infiniband.bth.psn of request 1"), "{said}");
    assert!(said.contains("--restart COMMAND"), "{said}");
    let files = std::fs::read_dir(found.path()).unwrap().count();
    assert_eq!(files, 2, "a capture and a scenario");
    std::fs::remove_dir_all(found.path()).unwrap();
}

fn is_send(packet: &[u8]) -> bool {
    let info = packet.first().and_then(|byte| Opcode(*byte).info());
    info.is_some_and(|info| info.operation == Operation::Send)
}

/// Dies of a reserved header version behind a SEND.
fn dies_of_a_version(last: &[u8], packet: &[u8]) -> bool {
    is_send(last) && packet[1] & 0xf != 0
}

/// Dies of a SEND that comes twice in a row.
fn dies_of_a_copy(last: &[u8], packet: &[u8]) -> bool {
    is_send(packet) && last == packet
}

/// Acknowledges a PSN that is missing, instead of reporting it.
fn acknowledges_what_is_missing(packet: &mut [u8]) {
    let is_acknowledgement = Opcode(packet[0]).info().is_some_and(|it| it.name == "RC_ACKNOWLEDGE");
    if is_acknowledgement && packet[12] == 0x60 {
        packet[12] = 0x1f;
    }
}

/// Counts one message more than it completed in every sequence NAK.
fn counts_one_message_more(packet: &mut [u8]) {
    let is_acknowledgement = Opcode(packet[0]).info().is_some_and(|it| it.name == "RC_ACKNOWLEDGE");
    if is_acknowledgement && packet[12] == 0x60 {
        packet[15] = packet[15].wrapping_add(1);
    }
}

#[test]
fn flaws_of_a_broken_nic_are_found_and_minimized() {
    let flaws = [
        ("tver=1", Flaw::Dies(dies_of_a_version), "1", "the peer died: "),
        ("double", Flaw::Dies(dies_of_a_copy), "1", "the peer died: "),
        // This seed drops the second of 18 requests: later ones are duplicates, which are not
        // missed.
        ("drop", Flaw::Answers(acknowledges_what_is_missing), "17", "a rule: ack-not-received"),
        ("drop", Flaw::Answers(counts_one_message_more), "17", "a rule: response-msn"),
    ];
    let device = device(16);
    for (number, (spec, flaw, seed, what)) in (20..).zip(flaws) {
        let (restart, found) = (Scratch::name("restart"), Scratch::name("found"));
        let host = loopback(number);
        let peer = BrokenNic::start(&host, flaw, restart.as_path().to_owned());
        let command = format!("touch {}", peer.restart.display());
        // A connection of 3 SENDs with retransmissions.
        let to = ["--to", &device, "--host", &host, "-p", &peer.port, "--flow", "12"];
        let how =
            ["--mutate", spec, "--seed", seed, "--restart", &command, "--found", found.path()];
        let output = replay(&[&to[..], &how, &[&capture("rxe_all_ops.pcap")]].concat());
        let (said, errors) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(1), "{spec}: {said}{errors}");
        assert!(said.contains(what), "{spec}: {said}{errors}");
        assert!(said.contains("the smallest sequence that does it"), "{spec}: {said}{errors}");
        check_found(found.path(), &said);
        std::fs::remove_dir_all(found.path()).unwrap();
    }
}

/// Runs a replay that can write no byte into any file, as on a full disk.
fn replay_on_a_full_disk(args: &[&str]) -> Output {
    let full = "trap '' XFSZ; ulimit -f 0; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", full, "sh", ROCE, "replay"]).args(args).env_remove("ROCE_TOKEN");
    command.output().unwrap()
}

#[test]
fn record_on_a_full_disk_is_an_error() {
    let server = Server::start(&device(31), &["--offer"]);
    let (host, device) = (loopback(31), device(32));
    let record = Scratch::name("full.pcapng");
    let to = ["--to", &device, "--host", &host, "-p", &server.port, "--speed", "max"];
    let how = ["--flow", "3", "--record", record.path()];
    let all = capture("rxe_all_ops.pcap");
    let output = replay_on_a_full_disk(&[&to[..], &how, &[&all]].concat());
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert_eq!(errors.matches("File too large").count(), 1, "{errors}");
    assert!(errors.contains(record.path()), "{errors}");
}

#[test]
fn sequence_that_cannot_be_written_is_an_error() {
    let (restart, found) = (Scratch::name("restart"), Scratch::name("full"));
    let host = loopback(33);
    let peer = BrokenNic::start(&host, Flaw::Dies(dies_of_a_copy), restart.as_path().to_owned());
    let command = format!("touch {}", peer.restart.display());
    let device = device(34);
    let to = ["--to", &device, "--host", &host, "-p", &peer.port, "--flow", "12"];
    let how = ["--mutate", "double", "--seed", "1", "--restart", &command, "--found", found.path()];
    let all = capture("rxe_all_ops.pcap");
    let output = replay_on_a_full_disk(&[&to[..], &how, &[&all]].concat());
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    // What was found is said all the same.
    assert!(said.contains("the peer died: "), "{said}{errors}");
    assert_eq!(output.status.code(), Some(2), "{said}{errors}");
    assert_eq!(errors.matches("File too large").count(), 1, "{errors}");
    let left: Vec<_> = std::fs::read_dir(found.path()).unwrap().map(Result::unwrap).collect();
    assert!(left.is_empty(), "{left:?}");
    std::fs::remove_dir_all(found.path()).unwrap();
}

/// Checks that the result is a capture of at most five packets, and a scenario.
fn check_found(dir: &str, said: &str) {
    let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|it| it.unwrap().path()).collect();
    names.sort();
    assert!(!names.is_empty() && names.len().is_multiple_of(2), "{names:?}");
    for pair in names.chunks(2) {
        let [capture, scenario] = pair else { panic!("{names:?}") };
        let bytes = std::fs::read(capture).unwrap();
        let (mut reader, mut frames) = (Reader::new(bytes.as_slice()).unwrap(), 0);
        while let Some(record) = reader.next().unwrap() {
            assert!(!record.data.is_empty());
            frames += 1;
        }
        assert!((1..=5).contains(&frames), "{frames} frames: {said}");
        let text = std::fs::read_to_string(scenario).unwrap();
        let name = scenario.to_str().unwrap();
        let instances =
            scenario::read(name, &text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(instances.len(), 1, "{text}");
    }
}

#[test]
fn server_that_is_killed_ends_a_replay_with_an_error() {
    let server = Server::start(&device(17), &["--offer"]);
    let (host, device) = (loopback(17), device(18));
    // It takes minutes, and nothing of it must be sent for the server to be missed.
    let slow = ["--flow", "1", "--speed", "0.01"];
    let to = ["--to", &device, "--host", &host, "-p", &server.port, "--timeout", "500"];
    let client = Command::new(ROCE)
        .arg("replay")
        .args([&to[..], &slow, &[&capture("rxe_all_ops.pcap")]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    server.process.child.signal(Signal::KILL);
    let output = client.wait_with_output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{}{errors}", text(&output.stdout));
    assert!(errors.contains("roce serve --offer") || errors.contains("the server"), "{errors}");
}

#[test]
fn capture_with_losses_is_executed_by_a_peer_without_them() {
    let server = Server::start(&device(3), &["--offer"]);
    let (host, device) = (loopback(3), device(4));
    let to = ["--to", &device, "--host", &host, "-p", &server.port, "--speed", "max"];
    let output = replay(&[&to[..], &[&capture("rxe_lossy.pcap")]].concat());
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(!said.contains("different:") && said.contains("the peer's memory holds"), "{said}");
}

#[test]
fn conform_serve_offers_its_device() {
    let args = ["conform", "serve", "-d", &device(30), "-p", "0", "--offer=0"];
    let server = Server::run(&args, "offers queue pairs on ");
    let (host, device) = (loopback(30), device(31));
    let to = ["--to", &device, "--host", &host, "-p", &server.port, "--speed", "max"];
    let output = replay(&[&to[..], &["--flow", "3", &capture("rxe_all_ops.pcap")]].concat());
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.contains("158 agreed, 0 undecided, 0 different"), "{said}");
    assert!(said.contains("the peer's memory holds what the capture wrote"), "{said}");
}

#[test]
fn server_offers_nothing_unless_it_was_started_for_it() {
    let server = Server::start(&device(5), &[]);
    let (host, device) = (loopback(5), device(6));
    let args = ["--to", &device, "--host", &host, "-p", &server.port, &capture("rxe_all_ops.pcap")];
    let output = replay(&args);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("roce serve --offer"), "{errors}");
}

#[test]
fn server_with_a_token_offers_to_those_who_know_it() {
    let server = Server::start(&device(7), &["--offer", "--token", "correct horse"]);
    let (host, device) = (loopback(7), device(8));
    let all = capture("rxe_all_ops.pcap");
    let args = [
        "--flow",
        "3",
        "--speed",
        "max",
        "--to",
        &device,
        "--host",
        &host,
        "-p",
        &server.port,
        &all,
    ];
    let output = replay(&args);
    assert!(text(&output.stderr).contains("wants a token"), "{}", text(&output.stderr));
    let output = replay(&[&args[..], &["--token", "correct horse"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn offer_beyond_the_limits_of_the_server_is_refused() {
    let args = ["--offer", "--max-memory", "1M"];
    let server = Server::start(&device(9), &args);
    let (host, device) = (loopback(9), device(10));
    let all = capture("rxe_all_ops.pcap");
    let output =
        replay(&["--flow", "1", "--to", &device, "--host", &host, "-p", &server.port, &all]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("all that one address gets"), "{errors}");
}

#[test]
fn rewritten_capture_is_the_capture_with_other_numbers() {
    let out = Scratch::name("out.pcap");
    let all = capture("rxe_all_ops.pcap");
    let maps =
        ["ip:10.9.0.1=192.0.2.1", "ip:10.9.0.2=192.0.2.2", "qpn:0x11=0xabc", "psn=100", "vlan=7"];
    let maps: Vec<&str> = maps.iter().flat_map(|map| ["--map", map]).collect();
    let output = replay(&[&["--flow", "1", "--write", out.path()], &maps[..], &[&all]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let fields = "ip.src,ip.dst,vlan.id,infiniband.bth.destqp,infiniband.bth.psn,roce.icrc";
    let fields: Vec<&str> = fields.split(',').flat_map(|field| ["-e", field]).collect();
    let args = [&["decode"], &fields[..], &["-c", "1", out.path()]].concat();
    let decoded = Command::new(ROCE).args(args).output().unwrap();
    let line = text(&decoded.stdout);
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(
        words,
        ["192.0.2.1", "192.0.2.2", "7", "0x000abc", "100", "ok"],
        "{}",
        text(&decoded.stderr)
    );
}

#[test]
fn what_makes_no_sense_is_refused_with_the_cure() {
    let all = capture("rxe_all_ops.pcap");
    let out = Scratch::name("out.pcap");
    for (args, cure) in [
        (vec!["--to", "udp:127.0.0.1"], "--connect HOST:PORT, or --peer ADDRESS"),
        (vec!["--write", "out.txt"], "name it .pcap or .pcapng"),
        (vec!["--write", out.path(), "--map", "rkey"], "WHAT:OLD=NEW"),
        (vec!["--write", out.path(), "--map", "color=1"], "rkey, va"),
        (vec!["--write", out.path(), "--flow", "99"], "roce flows lists them"),
        (vec!["--write", out.path(), "--map", "qpn=5"], "name OLD, or --flow"),
        (vec!["--write", out.path(), "--speed", "0"], "or max"),
    ] {
        let output = replay(&[&args[..], &[&all]].concat());
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {errors}");
        assert!(errors.contains(cure), "{args:?}: {errors}");
    }
}

#[test]
fn peer_on_a_raw_link_executes_the_requests_of_a_capture() {
    in_namespace(|| {
        let (near, far) = wire(9000);
        let device = |host: &Host| format!("raw:{}", host.interface);
        let server = far.run(|| Server::start(&device(&far), &["--offer"]));
        let host = far.v4.to_string();
        let (from, all) = (device(&near), capture("rxe_all_ops.pcap"));
        let args = ["--to", &from, "--host", &host, "-p", &server.port, "--speed", "max", &all];
        let output = near.run(|| replay(&args));
        check_all_operations(&output);
    });
}
