//! A file of scenarios becomes instances, or an error that names its cure.

use std::collections::BTreeSet;

use serde::Deserialize;
use thiserror::Error;

use super::super::expand::{Instance, expand};
use super::Scenario;

/// The scenarios that come with the crate, by file.
const BUILT_IN: &[(&str, &str)] = &[
    ("operations.toml", include_str!("../scenarios/operations.toml")),
    ("shapes.toml", include_str!("../scenarios/shapes.toml")),
    ("faults.toml", include_str!("../scenarios/faults.toml")),
    ("not_ready.toml", include_str!("../scenarios/not_ready.toml")),
    ("errors.toml", include_str!("../scenarios/errors.toml")),
    ("windows.toml", include_str!("../scenarios/windows.toml")),
    ("datagrams.toml", include_str!("../scenarios/datagrams.toml")),
];

/// Error in a file of scenarios.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}: {}{text}", scenario.as_ref().map_or(String::new(), |name| format!("scenario `{name}`: ")))]
pub struct ScenarioError {
    /// Name of the file.
    pub file: String,
    /// Name of the scenario.
    pub scenario: Option<String>,
    /// Field, error in it, and values that are possible.
    pub text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    scenario: Vec<Scenario>,
}

/// The instances of all scenarios that come with the crate.
pub fn built_in() -> Result<Vec<Instance>, ScenarioError> {
    let mut all = Vec::new();
    for (file, text) in BUILT_IN {
        all.extend(read(file, text)?);
    }
    Ok(all)
}

/// The instances of the scenarios of a file.
pub fn read(file: &str, text: &str) -> Result<Vec<Instance>, ScenarioError> {
    let wrong = |scenario: Option<&str>, text: String| ScenarioError {
        file: file.to_owned(),
        scenario: scenario.map(ToOwned::to_owned),
        text,
    };
    let parsed: File = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        wrong(name_before(before, text, error.span()), error.to_string())
    })?;
    if parsed.scenario.is_empty() {
        return Err(wrong(None, "there is no [[scenario]] in it".to_owned()));
    }
    let mut names = BTreeSet::new();
    let mut all = Vec::new();
    for scenario in parsed.scenario {
        let name = scenario.name.clone();
        if !names.insert(name.clone()) {
            return Err(wrong(Some(&name), "name: another scenario has it".to_owned()));
        }
        all.extend(expand(scenario).map_err(|text| wrong(Some(&name), text))?);
    }
    Ok(all)
}

/// The name of the scenario that an error stands in: the last that is told before it, or the first
/// within it.
fn name_before<'t>(
    before: &'t str,
    text: &'t str,
    span: Option<std::ops::Range<usize>>,
) -> Option<&'t str> {
    let within = span.and_then(|span| text.get(span)).unwrap_or_default();
    let name = |line: &'t str| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "name").then(|| value.trim().trim_matches('"'))
    };
    let since = before.rfind("[[scenario]]").and_then(|at| before.get(at..)).unwrap_or(before);
    since.lines().find_map(name).or_else(|| within.lines().find_map(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[[scenario]]
name = "first"
about = "It does something."
steps = [{ requester = "send" }]

[[scenario]]
name = "second"
about = "It does something else."
mtu = [256, 1024]
size = ["mtu", 3]
steps = [{ responder = "recv", buffer = "small" }, { requester = "send", len = "size+1" }]
responder.buffers = [{ name = "small", len = 8, access = ["local_write"] }]
expect.memory = ["responder.small 0..8 = requester 0"]
"#;

    #[test]
    fn what_is_varied_becomes_instances_with_names() {
        let all = read("x.toml", GOOD).unwrap();
        let names: Vec<_> = all.iter().map(|instance| instance.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "first",
                "second/size=mtu,mtu=256",
                "second/size=3,mtu=256",
                "second/size=mtu,mtu=1024",
                "second/size=3,mtu=1024"
            ]
        );
        assert_eq!(all[3].size, 1024);
    }

    /// Replacements in [`GOOD`], each with the error that it causes.
    const WRONG: &[(&str, &str, &str)] = &[
        (
            "buffer = \"small\"",
            "buffer = \"tiny\"",
            "steps[0].buffer: the responder has no `tiny`; it has main, small",
        ),
        (
            "responder = \"recv\", ",
            "responder = \"recv\", requester = \"send\", ",
            "steps[0].requester or responder",
        ),
        ("local_write", "lokal_write", "there is no right `lokal_write`; there are local_write"),
        ("\"size+1\"", "\"sise+1\"", "there is no `sise` to count with; there are size and mtu"),
        ("len = \"size+1\"", "lenn = 1", "unknown field `lenn`, expected one of"),
        ("\"recv\"", "\"receive\"", "unknown variant `receive`"),
        ("0..8 =", "0-8 =", "expect.memory[0]"),
        (
            "0..8 =",
            "0..sise =",
            "expect.memory[0]: there is no `sise` to count with; there are size and mtu",
        ),
        ("0..8 =", "0..9 =", "expect.memory[0]: 0..9 is not within the 8 bytes of small"),
        ("0..8 =", "5..4 =", "expect.memory[0]: 5..4 is not within the 8 bytes of small"),
        (
            "requester 0\"",
            "requester 2*size+121\"",
            "expect.memory[0]: main has no 8 bytes from 2*size+121 on",
        ),
        ("requester 0\"", "requester x\"", "expect.memory[0]: there is no `x` to count with"),
        ("0..8 = requester 0", "0..4 = word 7", "expect.memory[0]: a word has 8 bytes, 0..4 has 4"),
        ("len = 8", "len = \"8+\"", "responder.buffers.small.len: "),
        ("len = 8", "len = 17000000", "responder.buffers: "),
        ("size = [\"mtu\", 3]", "size = [\"mtu\", 9223372036854775807]", "size: "),
        ("expect.memory", "limit = 0\nexpect.memory", "limit: 0 s is not between 1 and 60"),
        (
            "\"send\", len",
            "\"sleep\", ms = 6000, len",
            "steps: all `ms` together, of which `limit` allows: 6000 is more than 5000",
        ),
        (
            "\"send\", len",
            "\"send\", times = 5000, len",
            "all `times` together: 5001 is more than 4096",
        ),
        ("name = \"small\"", "name = \"sm\\u001ball\"", "it holds the character \\u{1b}"),
        (
            "expect.memory",
            "expect.requester = [{ status = \"sucess\" }]\nexpect.memory",
            "expect.requester[0].status: there is no status `sucess`; there are success, loc_len_err",
        ),
        (
            "expect.memory",
            "expect.requester = [{ opcode = \"rdma_red\" }]\nexpect.memory",
            "expect.requester[0].opcode: there is no opcode `rdma_red`",
        ),
        (
            "expect.memory",
            "expect.responder_state = \"error\"\nexpect.memory",
            "expect.responder_state: there is no state `error`; there are reset, init",
        ),
        (
            "expect.memory",
            "expect.responder_events = [\"qp_acces_err\"]\nexpect.memory",
            "expect.responder_events[0]: there is no event `qp_acces_err`",
        ),
        (
            "expect.memory",
            "expect.responder = [{ invalidated = \"w\" }]\nexpect.memory",
            "expect.responder[0].invalidated: the responder has no window `w`",
        ),
        (
            "expect.memory",
            "expect.requester = [{ byte_len = \"siz\" }]\nexpect.memory",
            "expect.requester[0].byte_len: there is no `siz`",
        ),
        (
            "expect.memory",
            "expect.packets = [{ from = \"requester\", packet = \"SEND_ONYL\", times = 0 }]\nexpect.memory",
            "expect.packets[0].packet: `roce decode` never prints `SEND_ONYL`",
        ),
        (
            "expect.memory",
            "faults = [{ from = \"requester\", packet = \"ACKNOWLEGDE\", do = \"drop\" }]\nexpect.memory",
            "faults[0].packet: no opcode has `ACKNOWLEGDE` in its name",
        ),
        (
            "\"send\", len",
            "\"modify\", state = \"rest\", len",
            "steps[1].state: there is no state `rest`",
        ),
        ("name = \"second\"", "name = \"first\"", "another scenario has it"),
    ];

    #[test]
    fn what_is_wrong_is_named_with_its_cure() {
        for (from, to, message) in WRONG {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD);
            let error = read("x.toml", &text).unwrap_err();
            let said = error.to_string();
            assert!(said.contains(message), "{said}");
            assert!(said.starts_with("x.toml: scenario `"), "{said}");
        }
        assert!(read("y.toml", "").unwrap_err().to_string().contains("no [[scenario]]"));
    }

    #[test]
    fn every_scenario_of_the_crate_is_sound() {
        let all = built_in().unwrap();
        let names: BTreeSet<_> = all.iter().map(|instance| &instance.name).collect();
        assert_eq!(names.len(), all.len(), "names are unique");
        assert!(all.iter().all(|instance| instance.scenario.about.ends_with('.')));
    }
}
