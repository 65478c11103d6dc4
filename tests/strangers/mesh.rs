//! `roce mesh`: hosts that lie, that say only that they are alive, and that are stopped.

use rustix::process::Signal;
use serde_json::json;

use super::common::tmp::Scratch;
use super::harness::{Server, ThirdParty, run, serve, text};
use super::liar::{Behavior, Liar, responder};

const TRUSTING: [&str; 1] = ["--any-gid"];
const TOKEN: [(&str, &str); 1] = [("ROCE_TOKEN", "correct-horse-battery")];

fn names(servers: &[Server]) -> Vec<String> {
    servers.iter().map(|server| format!("{}:{}", server.address, server.port)).collect()
}

/// Runs a round; returns its exit status and what it said.
fn mesh(hosts: &[String], env: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut args = vec!["mesh", "-c", "5", "--paths", "2", "-W", "1", "--json"];
    args.extend(hosts.iter().map(String::as_str));
    let output = run(&args, env);
    (output.status.code(), text(&output))
}

/// The findings of a report, each as fault and hosts, without those of times: on a machine under
/// load they are true.
fn findings(report: &str) -> Vec<(String, Vec<String>)> {
    let start = report.find('{').unwrap_or_else(|| panic!("{report}"));
    let report: serde_json::Value =
        serde_json::Deserializer::from_str(&report[start..]).into_iter().next().unwrap().unwrap();
    let words = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let all = report["findings"].as_array().unwrap().iter();
    let all = all.filter(|finding| finding["symptom"] != "latency").map(|finding| {
        let hosts = finding["hosts"].as_array().unwrap().iter().map(words).collect();
        (words(&finding["fault"]), hosts)
    });
    all.collect()
}

#[test]
fn hosts_probe_no_third_party() {
    let third = ThirdParty::new(410);
    let gid = third.address;
    let liar =
        Liar::start(411, Behavior::Alive, move |first| match first.starts_with("roce-ping") {
            true => responder(gid),
            false => "\"end\"\n".to_owned(),
        });
    // With a token, a server that cannot prove it is not even asked for a responder.
    let servers = [412, 413].map(|number| serve(number, &[], &TOKEN));
    let (status, said) = mesh(&[&names(&servers)[..], &[liar.name()]].concat(), &TOKEN);
    assert_eq!(status, Some(1), "{said}");
    let named = findings(&said);
    assert!(named.contains(&("dead host".to_owned(), vec![liar.name()])), "{said}");
    third.assert_untouched();
}

#[test]
fn stopped_host_is_named_and_the_others_probe() {
    let servers: Vec<Server> = (420..425).map(|number| serve(number, &TRUSTING, &[])).collect();
    let names = names(&servers);
    servers[4].process.child.signal(Signal::STOP);
    let (status, said) = mesh(&names, &[]);
    servers[4].process.child.signal(Signal::CONT);
    assert_eq!(status, Some(1), "{said}");
    assert_eq!(findings(&said), [("dead host".to_owned(), vec![names[4].clone()])], "{said}");
    let start = said.find('{').unwrap();
    let report: serde_json::Value =
        serde_json::Deserializer::from_str(&said[start..]).into_iter().next().unwrap().unwrap();
    // Four hosts probe three others each, on two paths, and all of it is answered.
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4 * 3 * 2, "{said}");
    assert!(cells.iter().all(|cell| cell["answered"] == 5), "{said}");
}

#[test]
fn host_that_only_says_that_it_is_alive_is_given_up() {
    let alive = Liar::start(430, Behavior::Alive, |_| String::new());
    let servers = [431, 432].map(|number| serve(number, &TRUSTING, &[]));
    let names = [&names(&servers)[..], &[alive.name()]].concat();
    let (status, said) = mesh(&names, &[]);
    assert_eq!(status, Some(1), "{said}");
    assert_eq!(findings(&said), [("dead host".to_owned(), vec![alive.name()])], "{said}");
}

#[test]
fn terminal_and_page_show_nothing_that_a_host_made_up() {
    let liar = Liar::start(440, Behavior::Silent, |_| {
        let reason = "<script>alert(1)</script>&\"";
        format!("{}\n\"end\"\n", json!({"failed": {"target": 0, "reason": reason}}))
    });
    let servers = [serve(441, &TRUSTING, &[])];
    let names = [&names(&servers)[..], &[liar.name()]].concat();
    let page = Scratch::name("strangers.html");
    let mut args = vec!["mesh", "-c", "5", "--paths", "1", "--html", page.path()];
    args.extend(names.iter().map(String::as_str));
    let output = run(&args, &[]);
    let html = page.text();
    assert!(!html.contains("<script") && html.contains("&lt;script&gt;"), "{}", text(&output));
}
