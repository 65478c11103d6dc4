//! The catalogue of rules in `docs/requirements.md` against the source: each rule is implemented
//! and tested somewhere.
//!
//! A citation is a comment that begins with `Rule:` or `Rules:` and lists ids. In `src` and in the
//! C library it stands at code that implements the rule; in tests, fuzz targets and `#[cfg(test)]`
//! modules at what tests it. Every other id in the source (the rule tables of `replay`, for one)
//! must be in the catalogue as well.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use common::tree::{ROOT, files_under};

mod common;

/// Location of a citation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Implementation,
    Test,
}

/// Citations of rules in the source.
#[derive(Debug, Default)]
struct Citations {
    /// Ids of `Rule:` comments.
    cited: BTreeSet<(Place, String)>,
    /// Every id, with the first file that has it.
    named: BTreeMap<String, String>,
}

impl Citations {
    fn read(&mut self, path: &str, text: &str, is_test: bool) {
        let mut place = if is_test { Place::Test } else { Place::Implementation };
        for line in text.lines() {
            if line == "#[cfg(test)]" {
                place = Place::Test;
            }
            let ids = ids_in(line);
            let comment = line.split_once("//").or_else(|| line.split_once("/*"));
            let comment = comment.map_or("", |(_, comment)| comment.trim_start());
            if comment.starts_with("Rule:") || comment.starts_with("Rules:") {
                self.cited.extend(ids.iter().map(|id| (place, id.clone())));
            }
            for id in ids {
                self.named.entry(id).or_insert_with(|| path.to_owned());
            }
        }
    }

    /// Returns the errors, in sentences.
    fn faults(&self, rules: &BTreeSet<String>) -> Vec<String> {
        let mut faults = Vec::new();
        for rule in rules {
            for (place, verb) in [(Place::Implementation, "implements"), (Place::Test, "tests")] {
                if !self.cited.contains(&(place, rule.clone())) {
                    faults.push(format!("nothing {verb} {rule}"));
                }
            }
        }
        for (id, path) in &self.named {
            let group = format!("{id}.");
            let known = rules.contains(id) || rules.iter().any(|rule| rule.starts_with(&group));
            if !known {
                faults.push(format!("{path} cites {id}, which is not in the catalogue"));
            }
        }
        faults
    }
}

/// Ids of rules in a line: `P-04`, `P-04.2`.
fn ids_in(line: &str) -> Vec<String> {
    let bytes = line.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut ids = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        let begins = b"WPSVCQT".contains(byte) && bytes.get(at + 1) == Some(&b'-');
        let alone = at == 0 || !bytes[at - 1].is_ascii_alphanumeric() && bytes[at - 1] != b'-';
        if !(begins && alone && digit(at + 2) && digit(at + 3)) || digit(at + 4) {
            continue;
        }
        let sub = bytes.get(at + 4) == Some(&b'.') && digit(at + 5);
        ids.push(line[at..at + if sub { 6 } else { 4 }].to_owned());
    }
    ids
}

/// The ids that begin the rows of the tables.
fn catalogue(page: &str) -> BTreeSet<String> {
    let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
    rows.filter(|(id, _)| ids_in(id) == [id.to_owned()]).map(|(id, _)| id.to_owned()).collect()
}

fn citations() -> Citations {
    let mut citations = Citations::default();
    for (folder, all_tests) in [
        ("src", false),
        ("tools/ibverbs/src", false),
        ("tools/ibverbs/tests", true),
        ("tests", true),
        ("fuzz/src", true),
        ("fuzz/fuzz_targets", true),
    ] {
        for (path, text) in files_under(folder, &["rs", "c"]) {
            let is_test = all_tests || path.contains("/tests/") || path.ends_with("/tests.rs");
            if path != "tests/requirements.rs" {
                citations.read(&path, &text, is_test);
            }
        }
    }
    citations
}

#[test]
fn every_rule_is_implemented_and_tested() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/requirements.md")).unwrap();
    let rules = catalogue(&page);
    assert!(rules.len() > 100, "the page has lost its tables");
    let citations = citations();
    let faults = citations.faults(&rules);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    println!("{} rules, all implemented and all tested", rules.len());
}

#[test]
fn every_id_stands_once_in_the_catalogue() {
    let page = std::fs::read_to_string(Path::new(ROOT).join("docs/requirements.md")).unwrap();
    let rows = page.lines().filter(|line| {
        line.strip_prefix("| ").is_some_and(|row| {
            row.split_once(" |").is_some_and(|(id, _)| ids_in(id) == [id.to_owned()])
        })
    });
    assert_eq!(rows.count(), catalogue(&page).len());
}

#[test]
fn missing_and_unknown_citations_are_found() {
    let rules = catalogue("| P-04.1 | a | b |\n| P-04.2 | a | b |\n| id | rule | source |\n");
    assert_eq!(rules.len(), 2);
    let mut citations = Citations::default();
    citations.read(
        "a.rs",
        "// Rule: P-04.1.\n#[cfg(test)]\nmod t {\n// Rules: P-04.1, P-04.2.\n}",
        false,
    );
    citations.read("b.rs", "citation: \"C9-92; P-04\"", false);
    assert_eq!(citations.faults(&rules), ["nothing implements P-04.2"]);
    citations.read("c.rs", "citation: \"P-05\"", false);
    let faults = citations.faults(&rules);
    assert_eq!(faults[1], "c.rs cites P-05, which is not in the catalogue");
}
