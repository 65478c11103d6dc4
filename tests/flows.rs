//! `roce flows` as a user runs it: what it prints, writes, and how it ends.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write;
use std::process::{Output, Stdio};

use rustix::process::Signal;
use serde_json::Value;

mod common;
use common::command::{command, stdout};
use common::tmp::Scratch;
use common::{assert_golden, testdata};

fn capture(name: &str) -> String {
    // Relative, so that the output does not depend on where the repository is.
    format!("testdata/captures/{name}")
}

/// A run in a terminal with this number of columns.
fn flows(columns: &str, args: &[&str]) -> Output {
    let mut command = command(&[&["flows"], args].concat());
    command.env("COLUMNS", columns).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
}

/// Returns the output of a run with findings.
fn found(columns: &str, args: &[&str]) -> String {
    let output = flows(columns, args);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), errors.as_str()), (Some(1), ""), "{args:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the message of a run that cannot be done.
fn refused(args: &[&str]) -> String {
    let output = flows("80", args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn report_says_first_what_went_wrong_and_then_lists_connections() {
    assert_golden("rxe_lossy.flows.txt", &found("160", &[&capture("rxe_lossy.pcap")]));
    assert_golden("rxe_all_ops.flows.txt", &found("160", &[&capture("rxe_all_ops.pcap")]));
    assert_golden("rxe_all_ops.flows-80.txt", &found("80", &[&capture("rxe_all_ops.pcap")]));
}

#[test]
fn lines_fit_the_terminal_but_for_commands() {
    for columns in ["80", "100", "160"] {
        let text = found(columns, &["-q#1", &capture("rxe_lossy.pcap")]);
        for line in text.lines().filter(|line| !line.contains("roce decode")) {
            assert!(line.chars().count() <= columns.parse().unwrap(), "{columns}: {line}");
        }
    }
}

#[test]
fn frames_of_findings_are_shown_by_the_commands_beside_them() {
    let text = found("160", &[&capture("rxe_lossy.pcap")]);
    let commands: Vec<_> =
        text.lines().filter_map(|line| line.trim().strip_prefix("roce decode -Y '")).collect();
    assert!(commands.len() >= 3, "{text}");
    for command in commands {
        let (filter, file) = command.split_once("' ").unwrap();
        let shown = stdout(&["decode", "-Y", filter, testdata("..").join(file).to_str().unwrap()]);
        let frames = filter.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
        assert_eq!(shown.lines().count(), frames.count(), "{filter}");
    }
}

#[test]
fn ladder_marks_losses_retransmissions_and_silences() {
    let text = found("120", &["-q#1", &capture("rxe_lossy.pcap")]);
    assert_golden("rxe_lossy.ladder.txt", &text);
    for mark in ["✕", "retransmission (timeout)", "retransmission (sequence NAK)", "of silence"] {
        assert!(text.contains(mark), "{mark}");
    }
    assert!(text.contains("more rounds of the same packets"));
}

#[test]
fn full_ladder_shows_every_packet_of_the_connection_once() {
    let text = found("120", &["--full", "-q", "0x11", &capture("rxe_lossy.pcap")]);
    let mut frames: Vec<u64> = text
        .lines()
        .filter(|line| line.contains('▶') || line.contains('◀') || line.contains('✕'))
        .filter_map(|line| line.chars().skip(20).take(6).collect::<String>().trim().parse().ok())
        .collect();
    frames.dedup();
    let summary = stdout(&[
        "decode",
        "-e",
        "frame.number",
        "-Y",
        "infiniband.bth.destqp == 0x11",
        &capture("rxe_lossy.pcap"),
    ]);
    let expected: Vec<u64> = summary.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(frames, expected);
}

#[test]
fn json_is_the_whole_report() {
    let text = found("80", &["--json", &capture("rxe_all_ops.pcap")]);
    let report: Value = serde_json::from_str(&text).unwrap();
    let connections = report["connections"].as_array().unwrap();
    assert_eq!(report["totals"]["connections"], connections.len());
    assert_eq!(report["capture"]["packets"], 2660);
    assert!(
        report["findings"].as_array().unwrap().iter().all(|finding| finding["text"].is_string())
    );
    // A selection leaves one connection and what was found about it.
    let text = found("80", &["--json", "-q#7", &capture("rxe_all_ops.pcap")]);
    let one: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(one["connections"].as_array().unwrap().len(), 1);
    assert_eq!(one["connections"][0], connections[6]);
    assert!(one["findings"].as_array().unwrap().iter().all(|finding| finding["flow"] == 7));
}

#[test]
fn output_does_not_depend_on_the_number_of_threads() {
    let file = capture("rxe_all_ops.pcap");
    let one = found("80", &["--json", "-j", "1", &file]);
    assert_eq!(one, found("80", &["--json", "-j", "7", &file]));
    let ladder = |jobs| found("80", &["-q#3", "-j", jobs, &file]);
    assert_eq!(ladder("1"), ladder("7"));
}

#[test]
fn exit_status_tells_whether_something_was_found() {
    let nothing = ["-Y", "ip.addr == 192.0.2.77", &capture("rxe_lossy.pcap")];
    let output = flows("80", &nothing);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("No RoCE packets"), "{text}");
    assert!(refused(&["/nonexistent.pcap"]).contains("cannot open the file"));
}

#[test]
fn unreadable_files_give_errors_and_no_report() {
    let (text, page) = (Scratch::name("text.pcap"), Scratch::name("nothing.html"));
    std::fs::write(text.path(), "no capture").unwrap();
    for args in [&["/nonexistent.pcap"][..], &["--json", text.path()], &["testdata"]] {
        let output = flows("80", &[args, &["--html", page.path()]].concat());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(!std::fs::exists(page.path()).unwrap(), "no page of nothing");
    }
    // With one that can be read, the report is about that one.
    let output = flows("80", &["/nonexistent.pcap", &capture("rxe_cm.pcap")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8(output.stdout).unwrap().starts_with("testdata/captures/rxe_cm.pcap:")
    );
}

#[test]
fn capture_without_roce_says_where_it_was_looked_for() {
    let file = capture("rxe_cm.pcap");
    let said = |args: &[&str]| {
        let output = flows("80", args);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("No RoCE packets") && !text.contains("No findings"), "{text}");
        String::from_utf8(output.stderr).unwrap()
    };
    let errors = said(&["--port", "4790", &file]);
    assert!(
        errors.contains("none of 182 frames is RoCE") && errors.contains("UDP port 4790"),
        "{errors}"
    );
    assert!(said(&["-Y", "ip.addr == 192.0.2.77", &file]).contains("no frame passes the filter"));
    let header = Scratch::name("header.pcap");
    let bytes = std::fs::read(testdata("captures").join("rxe_cm.pcap")).unwrap();
    std::fs::write(header.path(), &bytes[..24]).unwrap();
    assert!(said(&[header.path()]).contains("there are no frames"));
}

#[test]
fn thresholds_decide_what_is_a_finding() {
    let file = capture("rxe_lossy.pcap");
    let kinds = |args: &[&str]| {
        let output = flows("80", &[args, &["--json", &file]].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = report["findings"].as_array().unwrap().iter();
        findings.map(|finding| finding["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(kinds(&[]).contains(&"loss".to_owned()));
    assert!(!kinds(&["--threshold", "loss-share=0.9"]).contains(&"loss".to_owned()));
    assert!(refused(&["--threshold", "stall=10", &file]).contains("stall=10ms"));
}

#[test]
fn selection_that_does_not_work_says_why() {
    let file = capture("rxe_all_ops.pcap");
    assert!(refused(&["-q", "0x777777", &file]).contains("no connection matches"));
    assert!(refused(&["-q", "10.9.0.1", &file]).contains("choose one, as in -q#"));
    assert!(refused(&["-q", "nonsense", &file]).contains("neither a queue pair"));
    let output = command(&["flows", "-q#1", "-"])
        .stdin(std::fs::File::open(testdata("captures").join("rxe_lossy.pcap")).unwrap())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("which a pipe cannot"));
}

#[test]
fn page_is_self_contained_and_escapes_names() {
    let page = Scratch::name("page.html");
    let name = Scratch::name("<script>alert(1)<!--.pcap");
    std::fs::copy(testdata("captures").join("rxe_lossy.pcap"), name.path()).unwrap();
    let output = flows("80", &["--html", page.path(), name.path()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    let html = std::fs::read_to_string(page.path()).unwrap();
    assert!(said.contains(&format!("({} bytes)", html.len())), "{said}");
    assert!(html.contains("default-src 'none'; script-src 'sha256-"));
    assert!(!html.contains("<script>alert") && html.contains("&lt;script&gt;alert(1)"));
    // The name does not end the element that holds the data, nor hide its end.
    assert_eq!(html.matches("<!--").count(), 0);
    let outside = html.split("<script>").next().unwrap();
    assert!(!outside.contains("http://") && !outside.contains("src=") && !outside.contains("url("));
    assert!(refused(&["--html", "/nonexistent/page.html", name.path()]).contains("--html"));
}

#[test]
fn ctrl_c_prints_what_was_found_so_far() {
    let mut child = command(&["flows", "--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let bytes = std::fs::read(testdata("captures").join("rxe_all_ops.pcap")).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // All but what a pipe may hold has been read when this is written; the pipe stays open.
    stdin.write_all(&bytes[..1_400_003]).unwrap();
    child.signal(Signal::INT);
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["connections"].as_array().unwrap().len() > 2, "{report}");
}

#[test]
fn long_lists_are_cut_and_say_so() {
    let text = found("160", &["--top", "2", &capture("rxe_all_ops.pcap")]);
    assert!(text.contains("… 10 more findings, see --json, --html or --top 0."), "{text}");
    assert!(text.contains("… 12 more connections; --top 0 lists all."), "{text}");
}
