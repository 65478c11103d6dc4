//! `roce demo` and `roce devices`, as a user runs them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;

mod common;
use common::command::{command, roce, stdout};
use common::tmp::{Folder, Scratch};
use roce::capture;
use roce::wire::{Frame, IcrcVerdict, ROCE_PORT, Service};

#[test]
fn the_demo_shows_every_operation_and_keeps_its_packets() {
    let file = Scratch::name("demo.pcapng");
    let shown = stdout(&["demo", "--pcap", file.path()]);
    for opcode in [
        "SEND",
        "SEND_WITH_IMM",
        "SEND_WITH_INV",
        "RDMA_WRITE",
        "RDMA_WRITE_WITH_IMM",
        "RDMA_READ",
        "ATOMIC_CMP_AND_SWP",
        "ATOMIC_FETCH_AND_ADD",
        "ATOMIC_WRITE",
        "FLUSH",
        "BIND_MW",
        "LOCAL_INV",
    ] {
        assert!(shown.contains(&format!(" IBV_WR_{opcode} (")), "{opcode} is not posted");
    }
    for outcome in ["remote access error", "retry counter exceeded", "Flushed", "RNR "] {
        assert!(shown.contains(outcome), "{outcome} is not shown");
    }
    let mut capture = capture::open(file.as_path()).unwrap();
    let (mut packets, mut services, mut last) = (0, BTreeSet::new(), None);
    while let Some(record) = capture.next().unwrap() {
        assert!(record.time >= last, "packet {} is older than the one before it", packets + 1);
        last = record.time;
        let frame = Frame::parse(record.link, record.data, ROCE_PORT);
        assert_eq!((frame.icrc(), frame.error()), (Some(IcrcVerdict::Ok), None));
        let service = frame.packet().unwrap().info().unwrap().service;
        services.insert(format!("{service:?}"));
        packets += 1;
    }
    assert_eq!(
        packets,
        shown.lines().filter(|line| line.contains("A ──► B") || line.contains("A ◄── B")).count()
    );
    let all = [Service::Rc, Service::Uc, Service::Ud].map(|service| format!("{service:?}"));
    assert_eq!(services, BTreeSet::from(all));
}

/// The first packet of each scene is a request, and no acknowledgement stands before the packet
/// that it acknowledges.
#[test]
fn demo_shows_requests_before_their_answers() {
    let shown = stdout(&["demo"]);
    let mut requests = BTreeSet::new();
    let mut answers = 0;
    for line in shown.lines() {
        if line.starts_with(|c: char| c.is_ascii_digit()) {
            requests.clear();
        }
        let Some((_, packet)) = line.split_once("B  ") else { continue };
        let word = |name: &str| {
            let mut words = packet.split(' ');
            words.find(|word| *word == name).and_then(|_| words.next()).map(str::to_owned)
        };
        let psn: u32 = word("psn").unwrap().parse().unwrap();
        let opcode = packet.split(' ').next().unwrap();
        if opcode.contains("ACKNOWLEDGE") || opcode.contains("RESPONSE") {
            // A READ takes a PSN for each of its responses.
            let behind = |sent: &u32| psn.wrapping_sub(*sent) & 0xff_ffff < 1 << 23;
            assert!(requests.iter().any(behind), "{line}\n{shown}");
            answers += 1;
        } else {
            requests.insert(psn);
        }
    }
    assert!(answers > 10, "{shown}");
}

#[test]
fn scenes_can_be_chosen_by_their_titles() {
    let titles = stdout(&["demo", "--list"]);
    assert!(titles.lines().count() > 10);
    let shown = stdout(&["demo", "fetch", "rdma READ"]);
    assert!(
        shown.contains("\n2. ") && !shown.contains("\n3. "),
        "two scenes have that in their titles"
    );
    assert!(shown.contains("RC_FETCH_ADD") && !shown.contains("RC_RDMA_WRITE_ONLY "));
    let output = roce(&["demo", "nothing like that"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("roce demo --list"));
}

/// Doorbells and completions follow from how the queues are used.
#[test]
fn demo_of_queues_counts_what_the_queues_did() {
    const MESSAGES: usize = 300;
    let shown = stdout(&["demo", "--queues", "--messages", &MESSAGES.to_string()]);
    let rows = |title: &str| -> Vec<Vec<usize>> {
        let (_, table) = shown.split_once(&format!("\n{title}\n")).unwrap();
        let table = table.split("\n\n").next().unwrap();
        let row = |line: &str| line.split_whitespace().map(|word| word.parse().ok()).collect();
        table.lines().filter_map(row).collect()
    };
    for row in rows("Queue depth") {
        let [_depth, rate, nanos, doorbells, completions, calls, acks] = row[..] else {
            panic!("{shown}")
        };
        assert!(rate > 0 && nanos > 0);
        assert_eq!((doorbells, completions), (MESSAGES, MESSAGES));
        assert!(acks > 0 && calls > 0, "{shown}");
    }
    let depth: Vec<_> = rows("Queue depth").iter().map(|row| row[0]).collect();
    assert_eq!(depth, [1, 4, 16, 64, 256]);
    let batches: Vec<_> = rows("Batches").iter().map(|row| (row[0], row[3], row[4])).collect();
    assert_eq!(batches, [1, 4, 16, 64].map(|batch| (batch, MESSAGES.div_ceil(batch), MESSAGES)));
    let moderated: Vec<_> =
        rows("Completion moderation").iter().map(|row| (row[0], row[4])).collect();
    assert_eq!(moderated, [1, 4, 16, 64].map(|every| (every, MESSAGES.div_ceil(every))));
}

#[test]
fn two_demos_run_side_by_side() {
    let start = || command(&["demo"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    let (mut first, mut second) = (start(), start());
    assert!(first.wait().unwrap().success() && second.wait().unwrap().success());
}

#[test]
fn devices_are_listed_with_what_is_missing() {
    let listed = stdout(&["devices", "lo"]);
    assert!(listed.starts_with("lo: PORT_ACTIVE, MTU 65536 (RDMA MTU 4096)"), "{listed}");
    assert!(listed.contains("-d udp:127.0.0.1") && listed.contains("-d raw:lo"), "{listed}");
    let json: serde_json::Value = serde_json::from_str(&stdout(&["devices", "--json"])).unwrap();
    let lo = json.as_array().unwrap().iter().find(|entry| entry["interface"] == "lo").unwrap();
    assert_eq!((&lo["active"], &lo["rdma_mtu"]), (&true.into(), &4096.into()));
    assert_eq!(lo["gids"][0], "::ffff:127.0.0.1");
    // A directory where a library is sought first, with something in it that is none.
    let empty = Folder::new("no-verbs");
    std::fs::write(empty.path().join("libibverbs.so.1"), "no library").unwrap();
    let output = command(&["devices"]).env("LD_LIBRARY_PATH", empty.path()).output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && listed.contains("verbs: unavailable: "), "{listed}");
    assert!(listed.contains("libibverbs.so.1") && listed.contains("libibverbs1"), "{listed}");
    let output = roce(&["devices", "nosuch0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("there are: lo"));
}

#[test]
fn demo_does_not_overwrite_a_file_that_is_no_capture() {
    let notes = Scratch::new("notes", "notes");
    let output = roce(&["demo", "--pcap", notes.path()]);
    assert_eq!((output.status.code(), notes.text().as_str()), (Some(2), "notes"));
    assert!(String::from_utf8(output.stderr).unwrap().contains("is no capture"));
}
