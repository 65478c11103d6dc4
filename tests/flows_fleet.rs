//! `roce flows` on a capture of many connections with one bad host and one bad path: these are said
//! first.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Output;

use serde_json::Value;

mod common;
#[path = "common/fleet.rs"]
mod fleet;

use common::process::Command;
use common::tmp::Folder;

/// Connections of the fleet.
const CONNECTIONS: u32 = 2000;

/// A folder with the capture.
struct Fleet {
    folder: Folder,
}

impl Fleet {
    fn new() -> Self {
        let folder = Folder::new("fleet");
        std::fs::write(folder.path().join("fleet.pcapng"), fleet::capture(CONNECTIONS)).unwrap();
        Self { folder }
    }

    fn flows(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_roce"))
            .arg("flows")
            .args(args)
            .arg("fleet.pcapng")
            .env("COLUMNS", "100")
            .current_dir(self.folder.path())
            .output()
            .unwrap()
    }

    fn stdout(&self, args: &[&str]) -> String {
        String::from_utf8(self.flows(args).stdout).unwrap()
    }
}

/// The bad host and the bad path, as a report names them.
fn bad() -> [String; 2] {
    let [a, b] = fleet::BAD_PATH.map(fleet::address);
    [format!("host {}", fleet::address(fleet::BAD_HOST)), format!("path {a} ↔ {b}")]
}

#[test]
fn bad_host_and_bad_path_are_said_before_all_findings() {
    let text = Fleet::new().stdout(&["--top", "3"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[2], "What stands out:", "{text}");
    let [host, path] = bad();
    assert!(lines[3].starts_with(&format!("  {host}: packet loss on ")), "{text}");
    let place = |wanted: &str| text.find(wanted).unwrap_or_else(|| panic!("{wanted}: {text}"));
    let order =
        [&host, &path, "Connections by what was found", "worst hosts first", "findings, worst"];
    assert!(order.map(place).is_sorted(), "{text}");
    assert_eq!(text.matches("For example").count(), 2, "no other subject: {text}");
    assert!(text.contains("more findings, see --json, --html or --top 0"), "{text}");
    assert!(lines.iter().all(|line| line.chars().count() <= 100 || line.contains("roce decode")));
}

#[test]
fn groups_and_matrix_are_in_json() {
    let report: Value = serde_json::from_str(&Fleet::new().stdout(&["--json"])).unwrap();
    let groups = report["groups"]["outstanding"].as_array().unwrap();
    let subjects: Vec<_> = groups.iter().map(|group| group["subject"].as_str().unwrap()).collect();
    assert_eq!(subjects, ["host", "path"]);
    assert_eq!(groups[0]["host"], fleet::address(fleet::BAD_HOST).to_string());
    assert_eq!(groups[0]["shares"][0]["kind"], "loss");
    assert_eq!(report["groups"]["bursts"].as_array().unwrap().len(), 0);
    let matrix = &report["matrix"];
    assert_eq!(matrix["hosts"].as_array().unwrap().len(), 32);
    assert_eq!(matrix["other_hosts"], fleet::HOSTS - 32);
    assert_eq!(matrix["hosts"][0], groups[0]["host"]);
    let sum = |key: &str| -> u64 {
        matrix["cells"].as_array().unwrap().iter().map(|cell| cell[key].as_u64().unwrap()).sum()
    };
    assert_eq!(sum("connections"), u64::from(CONNECTIONS));
    assert_eq!(sum("lost"), report["totals"]["all"]["lost_requests"].as_u64().unwrap());
}

#[test]
fn exit_status_is_that_of_the_kinds_that_are_named() {
    let fleet = Fleet::new();
    let status = |args: &[&str]| fleet.flows(args).status.code();
    assert_eq!(status(&[]), Some(1));
    assert_eq!(status(&["--fail-on", "any"]), Some(1));
    assert_eq!(status(&["--fail-on", "corruption,loss"]), Some(1));
    assert_eq!(status(&["--fail-on", "corruption", "--fail-on", "retry_limit"]), Some(0));
    let wrong = fleet.flows(&["--fail-on", "losses"]);
    let says = String::from_utf8(wrong.stderr).unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(says.contains("'losses'") && says.contains("receiver_not_ready"), "{says}");
}

#[test]
fn page_of_a_fleet_is_bounded_and_has_the_groups() {
    let fleet = Fleet::new();
    fleet.flows(&["--html", "fleet.html"]);
    let page = std::fs::read_to_string(fleet.folder.path().join("fleet.html")).unwrap();
    let json = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: Value = serde_json::from_str(json).unwrap();
    let subjects: Vec<_> = data["groups"]["outstanding"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["subject"])
        .collect();
    assert_eq!(subjects, bad().each_ref().map(|text| text.as_str()));
    let pairs = data["pairs"]["pairs"].as_array().unwrap();
    assert_eq!((pairs.len(), &pairs[0]["inflight"]["max"]), (32, &Value::from(64)));
    assert!(page.len() < usize::try_from(CONNECTIONS).unwrap() * 2000, "{} bytes", page.len());
}
