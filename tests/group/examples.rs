//! The examples, run as a user runs them.

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};

use crate::common::example::{assert_wrong_arguments_are_named, example};
use crate::common::loopback::loopback;
use crate::common::process::Child;
use crate::hosts_text;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Three server processes on a bad network, of which one is killed, starts again and catches up,
/// and another one is killed then.
#[test]
fn kv_loses_nothing_when_servers_are_killed() {
    let output = example("kv")
        .args(["-d", "udp:{}?loss=1%,reorder=1%"])
        .env("KV", hosts_text(41, 4, 7010))
        .output()
        .unwrap();
    let text = text(&output);
    assert!(output.status.success(), "{output:?}");
    assert!(text.contains("20 keys, 0 acknowledged values lost"), "{text}");
    assert_eq!(text.matches("server 0 is ready").count(), 2, "{text}");
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn kv_by_hand() {
    let hosts = &hosts_text(43, 4, 7010);
    let kv = |arguments: &[&str]| {
        let mut command = example("kv");
        command.args(arguments).env("KV", hosts);
        command
    };
    let mut servers: Vec<Killed> = ["0", "1", "2"]
        .map(|own| Killed(kv(&["serve", own]).stdout(Stdio::piped()).spawn().unwrap()))
        .into();
    for server in &mut servers {
        let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().ends_with("is ready"));
    }
    let output = kv(&["put", "name", "value"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    drop(servers.remove(1));
    let output = kv(&["get", "name"]).output().unwrap();
    assert_eq!(text(&output), "value\n", "{output:?}");
    let output = kv(&["put", &"long".repeat(9), "value"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(message, "kv: a key has up to 32 bytes, a value up to 208\n");
}

#[test]
fn all_reduce_by_threads() {
    for (members, floats) in [("1", "10"), ("4", "100001"), ("5", "3")] {
        let arguments = ["--members", members, "--floats", floats];
        let output = example("all_reduce").args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let right = format!("of {members}: {floats} floats, 0 wrong");
        let count = text(&output).matches(&right).count();
        assert_eq!(count.to_string(), members, "{output:?}");
    }
}

#[test]
fn all_reduce_by_processes_on_a_bad_network() {
    let hosts = &hosts_text(44, 3, 7020);
    let members: Vec<Child> = (0..3)
        .map(|own| {
            let device = format!("udp:{}?loss=10%,reorder=5%", loopback(44, own + 1));
            let own = own.to_string();
            let arguments = ["--hosts", hosts, "--own", &own, "-d", &device, "--floats", "50000"];
            let mut command = example("all_reduce");
            command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for member in members {
        let output = member.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(text(&output).contains("of 3: 50000 floats, 0 wrong"), "{output:?}");
    }
}

#[test]
fn all_reduce_with_a_member_that_is_killed_ends() {
    let hosts = &hosts_text(46, 3, 7020);
    let mut members: Vec<Child> = (0..3)
        .map(|own: usize| {
            let own = own.to_string();
            // More than it can be done with before the kill.
            let arguments = ["--hosts", hosts, "--own", &own, "--floats", "8000000"];
            let mut command = example("all_reduce");
            command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    std::thread::sleep(std::time::Duration::from_millis(300));
    drop(members.remove(1));
    for member in members {
        let output = member.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let names_it = ["server 1 is lost", "server 1 is not connected", "has left the group"];
        assert!(names_it.iter().any(|reason| said.contains(reason)), "{said}");
    }
}

#[test]
fn wrong_arguments_are_named() {
    assert_wrong_arguments_are_named(&[
        ("all_reduce", &["--members", "x"], "--members: 'x' is not a number from 1 to 255"),
        ("all_reduce", &["--floats"], "wrong arguments '--floats'; usage: all_reduce "),
        ("all_reduce", &["--loud", "1"], "wrong arguments '--loud'; usage: all_reduce "),
        (
            "all_reduce",
            &["--hosts", "127.24.5.1:7020", "--own", "1"],
            "list of servers: it has servers 0 to 0, and no server 1",
        ),
        ("kv", &["serve", "x"], "serve NUMBER: 'x' is not the number of a server, from 0"),
        ("kv", &["serve", "9"], "there is no server 9: KV lists 4, from 0 on"),
    ]);
}
