//! Scenarios on soft devices, as a library and as a command.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;

mod common;
use common::command::{Server, roce};
use common::loopback::{device, loopback};
use common::netns::{Host, in_namespace, meet_v4, wire_with_bump};
use common::tmp::Scratch;
use roce::conform::agent::Agent;
use roce::conform::diff::Subject;
use roce::conform::judge::{Judge, Pair, Reference, Verdict};
use roce::conform::{Side, fits, scenario, wire};
use roce::link::raw::bump::Bump;
use roce::link::{Link, Sender, cable, udp};
use roce::nic::SoftNic;
use roce::time::Instant;
use roce::wire::{Batch, Gid, ICRC_ROOM};

/// Runs a command: exit status, standard output, standard error.
fn conform(args: &[&str]) -> (i32, String, String) {
    let output = roce(&[&["conform"], args].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn soft_nics_in_memory_do_what_every_scenario_expects() {
    let (mut judge, instances) = (Judge::in_memory().unwrap(), scenario::built_in().unwrap());
    for instance in &instances {
        let finding = judge.run(instance).unwrap();
        assert_eq!(finding.verdict, Verdict::Agree, "{}: {:#?}", finding.name, finding.differences);
        let seen = finding.trace.requester.packets.is_some();
        assert!(seen && finding.trace.responder.packets.is_some(), "{}", finding.name);
    }
    // Every family is there.
    for family in [
        "send",
        "write",
        "read",
        "lost",
        "duplicate",
        "reorder",
        "rnr",
        "error",
        "window",
        "ud",
        "uc-send",
    ] {
        assert!(instances.iter().any(|it| it.name.starts_with(family)), "{family}");
    }
}

#[test]
fn soft_nics_on_sockets_do_the_same_either_way() {
    let [own, peer] = [1, 2].map(|host| device(71, host));
    let (status, out, err) = conform(&["-d", &own, "--peer", &peer]);
    assert_eq!(status, 0, "{out}{err}");
    let all = 2 * scenario::built_in().unwrap().len();
    let summary =
        format!("{all} scenarios: {all} agreed, 0 known deviations, 0 differences, 0 not run");
    assert_eq!(out.trim(), summary);
}

/// A scenario that expects the wrong thing.
const WRONG: &str = r#"
[[scenario]]
name = "wrong <&> expectation"
about = "It expects what no device does."
steps = [{ requester = "write" }]
expect.requester = [{ opcode = "rdma_read" }]
expect.requester_events = ["comm_est"]

[[scenario]]
name = "right"
about = "It expects what every device does."
steps = [{ requester = "write" }]
expect.requester = [{ opcode = "rdma_write" }]
expect.memory = ["responder 0..size = requester 0"]
"#;

#[test]
fn a_wrong_expectation_is_a_difference_in_every_report() {
    let (file, junit) = (Scratch::new("wrong.toml", WRONG), Scratch::new("junit.xml", ""));
    let args = ["--scenario", file.path(), "--junit", junit.path()];
    let (status, out, _) = conform(&args);
    assert_eq!(status, 1, "{out}");
    for line in [
        "DIFFERENCE  wrong <&> expectation  (cable:a → cable:b)",
        "      expected  success rdma_read",
        "      found     send 1: success rdma_write",
        "      expected  comm_est",
        "      found     no events",
        "      found     main[0] is 0x4a and must be 0x6f",
        "2 scenarios: 1 agreed, 0 known deviations, 1 difference, 0 not run",
    ] {
        assert!(out.contains(line), "{line} is not in\n{out}");
    }
    let xml = junit.text();
    assert_eq!(elements(&xml), ["testsuite", "testcase", "failure", "testcase"]);
    assert!(xml.contains("name=\"wrong &lt;&amp;&gt; expectation\""), "{xml}");
    assert!(xml.contains("tests=\"2\" failures=\"1\" errors=\"0\" skipped=\"0\""), "{xml}");
    let (status, out, _) = conform(&["--scenario", file.path(), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &json["summary"]["differences"]), (1, &1.into()));
    assert_eq!(json["scenarios"][0]["differences"][0]["found"], "send 1: success rdma_write");
    assert_eq!(json["scenarios"][1]["verdict"], "agree");
}

/// The names of the elements of a document, in order. What is not closed as it was opened, or not
/// escaped, fails.
fn elements(xml: &str) -> Vec<&str> {
    let mut rest = xml.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n").unwrap();
    let (mut open, mut all) = (Vec::new(), Vec::new());
    while let Some((text, tag)) = rest.split_once('<') {
        assert!(!text.contains('>') && (!open.is_empty() || text.trim().is_empty()), "{text}");
        for entity in text.split('&').skip(1) {
            assert!(["lt;", "gt;", "amp;", "quot;"].iter().any(|name| entity.starts_with(name)));
        }
        let (tag, behind) = tag.split_once('>').unwrap();
        rest = behind;
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
            continue;
        }
        all.push(name);
        if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty());
    all
}

/// A device that is not as the reference is told by its first packet that differs.
#[test]
fn another_packet_than_the_references_is_shown_in_the_words_of_decode() {
    let record = Scratch::new("record.json", "");
    let filter = ["--filter", "write/size=mtu+1,mtu=256"];
    let (status, out, _) = conform(&[&filter[..], &["--record", record.path()]].concat());
    assert_eq!(status, 0, "{out}");
    let (status, out, _) = conform(&[&filter[..], &["--reference", record.path()]].concat());
    assert_eq!(status, 0, "{out}");
    // As if the other device had written elsewhere, and acknowledged otherwise.
    let text = record.text();
    let changed = text.replace("va 0x8 rkey", "va 0x9 rkey").replace("msn=1", "msn=2");
    assert_ne!(changed, text);
    let other = Scratch::new("other.json", &changed);
    let (status, out, _) = conform(&[&filter[..], &["--reference", other.path()]].concat());
    assert_eq!(status, 1, "{out}");
    for line in [
        "requester: packet 1",
        "expected  RC_RDMA_WRITE_FIRST qp 0x000001 psn 0 va 0x9 rkey 0x00000001 dmalen 257 len 256",
        "found     RC_RDMA_WRITE_FIRST qp 0x000001 psn 0 va 0x8 rkey 0x00000001 dmalen 257 len 256",
        "responder: packet 1",
        "expected  RC_ACKNOWLEDGE qp 0x000001 psn 1 ACK credits=31 msn=2 len 0",
    ] {
        assert!(out.contains(line), "{line} is not in\n{out}");
    }
}

#[test]
fn what_is_known_of_a_device_is_no_finding_and_what_is_gone_is_told() {
    let file = Scratch::new("known.toml", WRONG);
    let table = Scratch::new(
        "table.toml",
        r#"
device = "this one"
names = []
[[deviation]]
scenario = "wrong*"
plays = "requester"
reason = "It is the scenario that is wrong."
[[deviation]]
scenario = "right"
plays = "requester"
reason = "It was repaired."
"#,
    );
    let args = ["--scenario", file.path(), "--deviations", table.path()];
    let (status, out, _) = conform(&args);
    assert_eq!(status, 0, "{out}");
    assert!(out.contains("known: It is the scenario that is wrong."), "{out}");
    assert!(out.contains("gone        right  It was repaired."), "{out}");
    assert!(
        out.contains("2 scenarios: 1 agreed, 1 known deviation, 0 differences, 0 not run"),
        "{out}"
    );
}

#[test]
fn two_processes_play_over_tcp() {
    let (at, own) = (loopback(73, 1).to_string(), device(73, 2));
    let server = Server::run(&["conform", "serve"], loopback(73, 1), &[], &[]);
    let here = ["-d", &own, "-p", &server.port.to_string(), &at];
    let some = ["--filter", "*mtu=1024", "--filter", "lost/*", "--filter", "window/*"];
    let (status, out, err) = conform(&[&here[..], &some].concat());
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.contains(" 0 differences, 0 not run"), "{out}");
    // A second client finds it as the first did.
    let (status, out, err) =
        conform(&[&here[..], &["--filter", "send/*", "--role", "responder"]].concat());
    assert_eq!(status, 0, "{out}{err}");
    assert!(out.starts_with("30 scenarios: 30 agreed"), "{out}");
}

#[test]
fn what_cannot_be_run_is_said_with_the_cure() {
    let device = device(75, 1);
    for (args, message) in [
        (&["--filter", "no such"][..], "`roce conform --list` lists them"),
        (&["-d", &device], "--peer DEVICE"),
        (&["-d", &device, "--peer", &device, "-x", "9"], "-x: "),
        (&["-d", &device, "-p", "1", "127.0.0.1"], "roce conform serve -d DEVICE -p 1"),
        (&["127.0.0.1"], "-d DEVICE is needed"),
        (&["--scenario", "/nonexistent/x.toml"], "cannot read /nonexistent/x.toml"),
    ] {
        let (status, out, err) = conform(args);
        assert_eq!(status, 2, "{args:?}: {out}{err}");
        assert!(err.contains(message), "{args:?}: {err}");
    }
    let file = Scratch::new("sound.toml", WRONG.replace("\"write\"", "\"rite\""));
    let (status, _, err) = conform(&["--scenario", file.path()]);
    assert_eq!(status, 2);
    assert!(
        err.contains("scenario `wrong <&> expectation`") && err.contains("unknown variant `rite`"),
        "{err}"
    );
}

#[test]
fn scenarios_are_listed_with_what_they_show() {
    let (status, out, _) = conform(&["--list"]);
    assert_eq!(status, 0);
    assert!(out.contains("lost/ack: An acknowledgement is lost;"), "{out}");
    assert!(out.contains("    write/size=mtu+1,mtu=256\n"), "{out}");
}

#[test]
fn a_scenario_that_never_ends_is_a_difference() {
    let text =
        WRONG.replace("about", "limit = 1\nabout").replace("[{ requester = \"write\" }]", "[]");
    let file = Scratch::new("endless.toml", &text);
    let (status, out, _) = conform(&["--scenario", file.path()]);
    assert_eq!(status, 1, "{out}");
    assert!(out.contains("found     0 of 1 completions after 1 s"), "{out}");
    assert!(out.contains("found     the peer says: 0 of 1 completions after 1 s"), "{out}");
}

/// A link that never says that a message is solicited.
struct Forgetful(Box<dyn Sender>);

impl Sender for Forgetful {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        let mut changed = Batch::new(batch.len());
        for (path, bytes) in batch.iter() {
            let mut packet = bytes[..bytes.len() - ICRC_ROOM].to_vec();
            packet[1] &= 0x7f;
            assert!(changed.push(path, &packet));
        }
        self.0.send(now, &mut changed)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }
}

#[test]
fn a_device_that_does_something_wrong_is_found_out_by_its_packet() {
    let [a, b] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
    let (a, b) = cable(a, b).unwrap();
    let agent = |link: Link, forgetful: bool| {
        let (mut link, wire) = wire::watch(link);
        if forgetful {
            link.sender = Box::new(Forgetful(link.sender));
        }
        let device = Arc::new(SoftNic::start(link).unwrap());
        Agent { device, wire: Some(wire), gid_index: None, manager: None }
    };
    let pair = Pair::local(agent(a, true), agent(b, false)).unwrap();
    let reference = Reference::Live(Box::new(Pair::in_memory().unwrap()));
    let mut judge = Judge::new(pair, Side::Requester, reference, [None, None]);
    let mut found = Vec::new();
    for instance in scenario::built_in().unwrap().iter().filter(|it| fits("s*", &it.name)) {
        let finding = judge.run(instance).unwrap();
        let wrong = finding.verdict == Verdict::Difference;
        assert_eq!(wrong, finding.name.starts_with("solicited"), "{finding:#?}");
        found.extend(finding.differences);
    }
    assert!(found.iter().all(|it| it.subject == Subject::Packet && it.side == Side::Requester));
    let first = found[0].to_string();
    let expected = "expected  RC_SEND_ONLY qp 0x000001 psn 0 solicited len 1 pad 3";
    assert!(first.contains(expected) && first.contains("psn 0 len 1 pad 3"), "{first}");
}

/// Two soft NICs on a cable, of which only one side's wire is held.
#[test]
fn who_holds_a_wire_loses_what_comes_from_a_device_that_cannot() {
    let [a, b] = [1, 2].map(|host| Gid::from(Ipv4Addr::new(192, 0, 2, host)));
    let (bare, held) = cable(a, b).unwrap();
    let bare = Agent {
        device: Arc::new(SoftNic::start(bare).unwrap()),
        wire: None,
        gid_index: None,
        manager: None,
    };
    let (held, wire) = wire::watch(held);
    let device = Arc::new(SoftNic::start(held).unwrap());
    let held = Agent { device, wire: Some(wire), gid_index: None, manager: None };
    let globs =
        ["lost/*", "corrupt/*", "duplicate/*", "reorder/*", "late/*", "timeout*", "uc-lost/*"];
    for side in Side::BOTH {
        let pair = Pair::local(bare.clone(), held.clone()).unwrap();
        let reference = Reference::Live(Box::new(Pair::in_memory().unwrap()));
        let mut judge = Judge::new(pair, side, reference, [None, None]);
        for instance in scenario::built_in().unwrap() {
            if globs.iter().any(|glob| fits(glob, &instance.name)) {
                let finding = judge.run(&instance).unwrap();
                assert_eq!(finding.verdict, Verdict::Agree, "{finding:#?}");
            }
        }
    }
}

/// Devices whose packets cannot be seen, as those of RNICs, with a bump in the wire between them.
#[test]
fn a_bump_in_the_wire_sees_and_loses_packets_of_devices_that_cannot() {
    in_namespace(|| {
        let (a, b) = wire_with_bump(4500);
        let wire = wire::behind(Bump::open("inner", "outer").unwrap()).unwrap();
        meet_v4(&a, &b);
        let device = |host: &Host| {
            let link = host.run(|| udp::open(&udp::Options::new(host.v4.into())).unwrap());
            Arc::new(host.run(|| SoftNic::start(link).unwrap()))
        };
        let bare =
            |host| Agent { device: device(host), wire: None, gid_index: None, manager: None };
        let reference = || Reference::Live(Box::new(Pair::in_memory().unwrap()));
        let all = scenario::built_in().unwrap();
        let chosen = |globs: &[&str]| {
            let fit = |name: &str| globs.iter().any(|glob| fits(glob, name));
            all.iter().filter(|it| fit(&it.name)).cloned().collect::<Vec<_>>()
        };
        // Without the bump nothing can drop packets.
        let (first, second) = (bare(&a), bare(&b));
        let pair = Pair::local(first.clone(), second.clone()).unwrap();
        let mut judge = Judge::new(pair, Side::Requester, reference(), [None, None]);
        let finding = judge.run(&chosen(&["lost/ack"])[0]).unwrap();
        assert!(
            matches!(finding.verdict, Verdict::NotRun(why) if why.contains("faults need a soft device"))
        );
        drop(judge);
        // With it, all is as in memory, packet by packet.
        let held = Agent { wire: Some(wire), ..first };
        let pair = Pair::local(held, second).unwrap();
        let mut judge = Judge::new(pair, Side::Requester, reference(), [None, None]);
        let globs =
            ["lost/*", "corrupt/*", "duplicate/*", "reorder/*", "late/*", "send/*", "read/*"];
        for instance in chosen(&globs) {
            let finding = judge.run(&instance).unwrap();
            assert_eq!(finding.verdict, Verdict::Agree, "{finding:#?}");
            assert!(finding.trace.sent_by(Side::Responder).is_some_and(|sent| !sent.is_empty()));
        }
    });
}
