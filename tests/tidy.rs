//! The source itself: uses between rooms, openings and width of comments, struck words, links.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};

use common::tree::{ROOT, files_under};

mod common;

/// A room of the library: a row of the table in `src/lib.rs`.
#[derive(Debug)]
struct Room {
    name: String,
    may_use: BTreeSet<String>,
}

fn library() -> String {
    std::fs::read_to_string(format!("{ROOT}/src/lib.rs")).unwrap()
}

/// The rows of the table: name, what it holds, what it may use.
fn rooms(library: &str) -> Vec<Room> {
    let rows = library.lines().filter_map(|line| line.strip_prefix("//! | "));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    let rooms = cells.filter(|cells| cells[0].contains('`')).map(|cells| {
        let names = |cell: &str| {
            cell.split(", ").map(|name| name.trim_matches(['[', ']', '`']).to_owned()).collect()
        };
        let may_use = if cells[2] == "—" { BTreeSet::new() } else { names(cells[2]) };
        Room { name: cells[0].trim_matches(['[', ']', '`']).to_owned(), may_use }
    });
    rooms.collect()
}

/// The rooms that a file's code names, tests and documentation aside.
fn used_rooms(text: &str) -> BTreeSet<String> {
    let code = text.split("\n#[cfg(test)]").next().unwrap();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let mut used = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let list = after.strip_prefix('{').map(|list| list.split('}').next().unwrap());
        for path in
            list.unwrap_or(after).split(',').take(if list.is_some() { usize::MAX } else { 1 })
        {
            let end = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
            used.insert(path.trim_start().split(end).next().unwrap().to_owned());
        }
    }
    used
}

#[test]
fn the_table_of_rooms_is_that_of_the_modules() {
    let library = library();
    let modules = library
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'));
    let listed: BTreeSet<String> = rooms(&library).into_iter().map(|room| room.name).collect();
    assert_eq!(listed, modules.map(str::to_owned).collect());
}

#[test]
fn no_room_uses_one_that_its_row_does_not_name() {
    let rooms = rooms(&library());
    let names: BTreeSet<&str> = rooms.iter().map(|room| room.name.as_str()).collect();
    for (at, room) in rooms.iter().enumerate() {
        for other in &room.may_use {
            let below = rooms[..at].iter().any(|below| below.name == *other);
            assert!(below, "{} may use {other}, which does not stand above it", room.name);
        }
    }
    let mut wrong = Vec::new();
    for (path, text) in files_under("src", &["rs"]) {
        let within = path.strip_prefix("src/").unwrap();
        let name = within.split('/').next().unwrap().trim_end_matches(".rs");
        let Some(room) = rooms.iter().find(|room| room.name == name) else { continue };
        if path.contains("/tests/") || path.ends_with("/tests.rs") {
            continue;
        }
        for other in used_rooms(&text) {
            let known = names.contains(other.as_str()) && other != room.name;
            if known && !room.may_use.contains(&other) {
                wrong.push(format!("{path} uses {other}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn uses_of_rooms_are_found() {
    let text = "use crate::wire::{Psn, Qpn};\nuse crate::{nic, link::Spec};\n// crate::cm\nlet x = \
                crate::engine::Engine;\n\n#[cfg(test)]\nmod tests { use crate::conform; }";
    let used: Vec<String> = used_rooms(text).into_iter().collect();
    assert_eq!(used, ["engine", "link", "nic", "wire"]);
}

/// A test waits for no process without a deadline: it runs them by `tests/common/process.rs`.
#[test]
fn tests_run_processes_that_have_deadlines() {
    let command = ["std::process::", "Command"].concat();
    let folders = ["tests", "tools/ibverbs/tests", "tools/libroce/tests"];
    let mut found = Vec::new();
    for (path, text) in folders.iter().flat_map(|folder| files_under(folder, &["rs"])) {
        let uses = text.lines().filter(|line| line.starts_with("use std::process::"));
        let imports = uses.flat_map(|line| line.split(|c: char| !c.is_alphanumeric()));
        let is_imported = imports.into_iter().any(|word| matches!(word, "Command" | "Child"));
        let has_deadlines = ["common/process.rs", "strangers/harness.rs"];
        if !has_deadlines.iter().any(|end| path.ends_with(end))
            && (is_imported || text.contains(&command))
        {
            found.push(path);
        }
    }
    assert!(found.is_empty(), "use `Command` of tests/common/process.rs: {found:?}");
}

/// Words and phrases that are struck, each with what to write in their place. The glossary is in
/// `CONTRIBUTING.md`.
const STRUCK: &[(&str, &str)] = &[
    ("whoever", "name the actor: the caller, the poller, the peer"),
    ("whomever", "name the actor"),
    ("somebody", "name the actor"),
    ("nobody", "name the actor, or say \"nothing\", \"no QP\""),
    ("anybody", "name the actor"),
    ("under way", "in flight"),
    ("sent again", "retransmitted"),
    ("send again", "retransmit"),
    ("sends again", "retransmits"),
    ("asked again", "requested again"),
    ("patience", "retransmission timeout, retry count, spin policy"),
    ("shy", "delayed-ACK backoff"),
    ("debt", "pending response"),
    ("debts", "pending responses"),
    ("owed", "pending"),
    ("owing", "pending"),
    ("owes", "has pending responses"),
    ("attendant", "progress thread"),
    ("needy", "assisted"),
    ("unmake", "destroy, deregister, free"),
    ("unmakes", "destroys"),
    ("unmade", "destroyed"),
    ("mailbox", "event queue, completion channel"),
    ("letters", "events"),
    ("at home", "locally"),
    ("fate", "impairment"),
    ("appointment", "fault rule"),
    ("manieth", "n-th"),
    ("unheard", "CQ overrun"),
];

/// The words of a text with their lines; identifiers are taken apart at underscores and capitals.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut words = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut word = String::new();
        let mut end = |word: &mut String| {
            if !word.is_empty() {
                words.push((at + 1, std::mem::take(word).to_lowercase()));
            }
        };
        for c in line.chars() {
            if c.is_ascii_uppercase()
                && word.chars().last().is_some_and(|last| last.is_ascii_lowercase())
            {
                end(&mut word);
            }
            if c.is_alphanumeric() {
                word.push(c);
            } else {
                end(&mut word);
            }
        }
        end(&mut word);
    }
    words
}

/// Struck words by their first part: most words of a text are looked up once and begin none.
fn struck_by_first_part() -> BTreeMap<&'static str, Vec<(Vec<&'static str>, &'static str)>> {
    let mut by_first = BTreeMap::<_, Vec<_>>::new();
    for &(struck, instead) in STRUCK {
        let parts: Vec<&str> = struck.split(' ').collect();
        by_first.entry(parts[0]).or_default().push((parts, instead));
    }
    by_first
}

/// Each struck word in a text: its line, which, and what to write instead.
fn struck_in(text: &str) -> Vec<(usize, String, &'static str)> {
    let (words, by_first) = (words(text), struck_by_first_part());
    let mut found = Vec::new();
    for (at, (line, word)) in words.iter().enumerate() {
        for (parts, instead) in by_first.get(word.as_str()).into_iter().flatten() {
            let here = words[at..].iter().take(parts.len()).map(|(_, word)| word.as_str());
            if here.eq(parts.iter().copied()) {
                found.push((*line, parts.join(" "), *instead));
            }
        }
    }
    found
}

/// Returns all files that are written by hand: source, scripts, pages.
fn written() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in [
        "src",
        "tests",
        "tools",
        "fuzz/src",
        "fuzz/fuzz_targets",
        "fuzz/examples",
        "docs",
        "examples",
    ] {
        if std::path::Path::new(ROOT).join(folder).exists() {
            files.extend(files_under(
                folder,
                &["rs", "toml", "md", "c", "h", "py", "sh", "js", "css", "html", ""],
            ));
        }
    }
    for name in
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Cargo.toml", ".ci/run"]
    {
        if let Ok(text) = std::fs::read_to_string(format!("{ROOT}/{name}")) {
            files.push((name.to_owned(), text));
        }
    }
    // What is not ours, and what has to name the words.
    let exempt = |path: &str| {
        path.contains("/uplot/") || matches!(path, "tests/tidy.rs" | "CONTRIBUTING.md")
    };
    files.retain(|(path, _)| !exempt(path));
    files
}

#[test]
fn struck_words_do_not_come_back() {
    let mut wrong = Vec::new();
    for (path, text) in written() {
        wrong.extend(struck_in(&text).into_iter().map(|(line, struck, instead)| {
            format!("{path}:{line}: \"{struck}\" is struck: {instead}")
        }));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn struck_words_are_found_in_identifiers_and_across_lines() {
    let text = "fn sendAgain() {}\n// is sent\n// again, for NOBODY_HERE\nlet shying = fateful;";
    let found: Vec<_> = struck_in(text).into_iter().map(|(line, word, _)| (line, word)).collect();
    let expected = [(1, "send again"), (2, "sent again"), (3, "nobody")];
    assert_eq!(found, expected.map(|(line, word)| (line, word.to_owned())));
}

/// Openings that leave open what an item is. A doc comment opens with a noun phrase, or with a verb
/// in the third person: "Maximum number of…", "Returns…", "Whether…".
const RIDDLES: &str = "what, how, where, when, which, who, whom, whose, why, that, this, these, \
                       those, they, their, it, its, there, here, same, the same, the like, \
                       likewise, of, as, so, and, but, or, nor, none, if, unless, until, \
                       while, since, because, then, also, thus, such, else, something, \
                       nothing, everything, anything, another, to, from, by, for, in, on, at, \
                       with, about, between, ends that, does that";

/// Maximum share of a room's doc comments that open with a riddle, in percent: smoltcp, rustix and
/// etherparse are below 1.5 %.
const RIDDLES_PERCENT: usize = 3;

/// The first line of each doc comment of a file, with its number.
fn doc_openings(text: &str) -> Vec<(usize, &str)> {
    let (mut openings, mut before) = (Vec::new(), "");
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let kind = ["///", "//!"].into_iter().find(|kind| line.starts_with(kind)).unwrap_or("");
        if !kind.is_empty() && kind != before {
            openings.push((at + 1, line[kind.len()..].trim_start()));
        }
        before = kind;
    }
    openings
}

/// Whether a doc comment opens with one of [`RIDDLES`].
fn is_riddle(opening: &str) -> bool {
    let opening = opening.to_lowercase();
    let goes_on = |rest: &str| rest.starts_with(|c: char| c.is_alphanumeric() || "_-".contains(c));
    RIDDLES
        .split(", ")
        .any(|riddle| opening.strip_prefix(riddle).is_some_and(|rest| !goes_on(rest)))
}

/// Source files with comments that are checked.
fn commented() -> Vec<(String, String)> {
    let folders = ["src", "tools", "examples", "fuzz/src", "fuzz/fuzz_targets", "fuzz/examples"];
    let mut files: Vec<_> =
        folders.iter().flat_map(|folder| files_under(folder, &["rs"])).collect();
    files.extend(files_under("tests", &["rs"]));
    files
}

/// The room of a file: a folder of `src` or `tools`, or a folder at the root.
fn room(path: &str) -> &str {
    let depth = if path.starts_with("src/") || path.starts_with("tools/") { 2 } else { 1 };
    let slashes = path.match_indices('/').map(|(at, _)| at).take(depth);
    slashes.last().map_or(path, |end| &path[..end])
}

#[test]
fn doc_comments_say_what_the_item_is() {
    let mut rooms = BTreeMap::<String, (usize, Vec<String>)>::new();
    for (path, text) in commented() {
        let (all, riddles) = rooms.entry(room(&path).to_owned()).or_default();
        for (line, opening) in doc_openings(&text) {
            *all += 1;
            if is_riddle(opening) {
                riddles.push(format!("{path}:{line}: {opening}"));
            }
        }
    }
    for (room, (all, riddles)) in &rooms {
        assert!(
            riddles.len() * 100 <= all * RIDDLES_PERCENT,
            "{room}: {} of {all} doc comments open with a riddle instead of a noun phrase or a \
             verb, at most {RIDDLES_PERCENT} % may:\n{}",
            riddles.len(),
            riddles.join("\n"),
        );
    }
    assert!(rooms.len() > 25, "the rooms were found: {:?}", rooms.keys());
}

#[test]
fn riddles_are_found() {
    let text = "//! Why.\n//! What else.\n\n/// Returns what it is.\n/// How.\nfn a() {}\n    /// The \
                same, later.\n/// Whether\n/// Its\nlet it = 1; // What\n/// Items.\n";
    let riddles: Vec<usize> = doc_openings(text)
        .into_iter()
        .filter_map(|(line, opening)| is_riddle(opening).then_some(line))
        .collect();
    assert_eq!(riddles, [1, 7]);
    assert_eq!(room("src/verbs/qp/mod.rs"), "src/verbs");
    assert_eq!(room("src/time.rs"), "src");
    assert_eq!(room("tests/engine/main.rs"), "tests");
}

/// Maximum number of columns of a line of a comment, or of a paragraph of a page.
const COLUMNS: usize = 100;

/// Returns the prose of a line of a file with this extension, if it has any: a comment, or a line
/// of a page.
fn prose<'a>(extension: &str, line: &'a str) -> Option<&'a str> {
    let line = line.trim_start();
    match extension {
        "md" => Some(line),
        "rs" => line.strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!'])),
        "c" | "h" => line.strip_prefix("/*").or_else(|| line.strip_prefix('*')),
        _ => line.strip_prefix("# "),
    }
}

/// The lines of prose that are too long. Tables, code, references, and examples that are aligned by
/// spaces may be.
fn wide_lines(path: &str, text: &str) -> Vec<usize> {
    let name = path.rsplit('/').next().unwrap();
    let extension = name.split_once('.').map_or("", |(_, extension)| extension);
    let (mut is_code, mut wide) = (false, Vec::new());
    for (at, line) in text.lines().enumerate() {
        let Some(prose) = prose(extension, line).map(str::trim_start) else {
            is_code = false;
            continue;
        };
        is_code ^= prose.starts_with("```");
        let is_exempt = is_code || prose.starts_with(['|', '#', '[']) || prose.contains("   ");
        if !is_exempt && line.chars().count() > COLUMNS {
            wide.push(at + 1);
        }
    }
    wide
}

#[test]
fn comments_and_pages_are_not_wide() {
    let mut wrong = Vec::new();
    for (path, text) in written() {
        wrong.extend(wide_lines(&path, &text).iter().map(|line| format!("{path}:{line}")));
    }
    assert!(wrong.is_empty(), "longer than {COLUMNS} columns:\n{}", wrong.join("\n"));
}

#[test]
fn wide_lines_are_found() {
    let wide = "x".repeat(98);
    let rust = format!("// {wide}\n/// ```\n/// {wide}\n/// ```\n/// | {wide} |\nlet a = {wide};");
    assert_eq!(wide_lines("src/a.rs", &rust), [1]);
    assert_eq!(wide_lines("docs/a.md", &format!("| {wide} |\n- {wide}x\n```\n{wide}xyz")), [2]);
    assert_eq!(wide_lines(".ci/run", &format!("# {wide}x\n{wide}xyz\n# a    # {wide}")), [1]);
    assert_eq!(wide_lines("a.c", &format!("/* {wide}\n * {wide} */\n{wide}xyz")), [1, 2]);
}

/// The targets of a page's links that are files of the repository.
fn links(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1).filter_map(|after| after.split(')').next());
    let files = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    files.map(|target| target.split('#').next().unwrap()).collect()
}

#[test]
fn links_of_pages_lead_somewhere() {
    let mut pages = files_under("docs", &["md"]);
    for name in
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "testdata/README.md"]
    {
        let text = std::fs::read_to_string(format!("{ROOT}/{name}")).unwrap();
        pages.push((name.to_owned(), text));
    }
    for (path, text) in pages {
        let folder = std::path::Path::new(ROOT).join(&path);
        let folder = folder.parent().unwrap();
        for target in links(&text) {
            assert!(folder.join(target).exists(), "{path} links to {target}, which is not there");
        }
    }
    assert_eq!(links("[a](b.md#c), [d](https://e), [f](#g)"), ["b.md"]);
}

#[test]
fn readme_is_short() {
    let readme = std::fs::read_to_string(format!("{ROOT}/README.md")).unwrap();
    assert!(readme.lines().count() <= 140, "the README is a first page: details belong into docs");
}

/// The names in a section of `Cargo.toml`.
fn cargo_names(section: &str) -> BTreeSet<String> {
    let manifest = std::fs::read_to_string(format!("{ROOT}/Cargo.toml")).unwrap();
    let body = manifest.split(&format!("\n[{section}]\n")).nth(1).unwrap();
    let body = body.split("\n[").next().unwrap();
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.split_once(" = ")?.0.to_owned())).collect()
}

#[test]
fn every_feature_is_described() {
    let library = library();
    let page = library.split("//! # Features\n").nth(1).expect("the page has them");
    let page = page.split("//! # ").next().unwrap();
    let items = page.lines().filter_map(|line| line.strip_prefix("//! - `"));
    let described: BTreeSet<String> =
        items.map(|item| item.split('`').next().unwrap().to_owned()).collect();
    let mut features = cargo_names("features");
    assert!(features.remove("default") && features.contains("cli"), "{features:?}");
    assert_eq!(described, features);
}

#[test]
fn the_crate_page_begins_with_code() {
    let library = library();
    let code = library.find("//! ```\n").unwrap();
    let first = library.find("//! |").unwrap();
    assert!(code < first, "an example comes before the tables");
}

#[test]
fn the_workflow_runs_every_step_of_the_script() {
    let read = |name: &str| std::fs::read_to_string(format!("{ROOT}/{name}")).unwrap();
    let (script, workflow) = (read(".ci/run"), read(".github/workflows/ci.yml"));
    let steps = ["QUIET=(", "LIVE=(", "EITHER=("].map(|lane| {
        let (_, steps) = script.split_once(lane).unwrap();
        steps.split_once(')').unwrap().0
    });
    let jobs = workflow.split("        steps:\n").nth(1).unwrap();
    let jobs = jobs.lines().map_while(|line| line.strip_prefix("          - "));
    let run: BTreeSet<&str> = jobs.flat_map(str::split_whitespace).collect();
    assert_eq!(run, steps.iter().flat_map(|steps| steps.split_whitespace()).collect());
}

#[test]
fn tests_of_a_subject_are_a_file_or_a_folder() {
    let files = files_under("tests", &["rs"]);
    let is_folder = |stem: &str| std::path::Path::new(ROOT).join(stem).is_dir();
    let top = files.iter().filter_map(|(path, _)| path.strip_suffix(".rs"));
    let twice: Vec<&str> = top.filter(|stem| is_folder(stem)).collect();
    let beside = twice.iter().filter(|stem| stem.matches('/').count() == 1).collect::<Vec<_>>();
    assert!(beside.is_empty(), "move these into their folders as main.rs: {beside:?}");
}

/// Uses by which a test needs a feature.
const FEATURED: [&str; 7] = [
    "roce::analysis",
    "roce::conform",
    "roce::control",
    "roce::replay",
    "common::command",
    "common::requests",
    "CARGO_BIN_EXE",
];

/// The targets of tests with their files, but for modules that `main.rs` has with a feature alone.
fn test_targets() -> BTreeMap<String, Vec<String>> {
    let files = files_under("tests", &["rs"]);
    let is_gated = |target: &str, module: &str| {
        let gate = format!(")]\nmod {module};");
        files
            .iter()
            .any(|(path, text)| *path == format!("tests/{target}/main.rs") && text.contains(&gate))
    };
    let mut targets = BTreeMap::<String, Vec<String>>::new();
    for (path, text) in &files {
        let within = path.strip_prefix("tests/").unwrap().trim_end_matches(".rs");
        let (target, module) = within.split_once('/').unwrap_or((within, ""));
        if target != "common" && target != "tidy" && !is_gated(target, module) {
            targets.entry(target.to_owned()).or_default().push(text.clone());
        }
    }
    targets
}

/// `cargo test --no-default-features` builds, and says which tests it leaves out.
#[test]
fn tests_that_need_a_feature_say_so_in_the_manifest() {
    let manifest = std::fs::read_to_string(format!("{ROOT}/Cargo.toml")).unwrap();
    for (target, texts) in test_targets() {
        let entry = format!("[[test]]\nname = \"{target}\"\nrequired-features = [");
        let uses = FEATURED.iter().find(|used| texts.iter().any(|text| text.contains(*used)));
        if let Some(used) = uses {
            assert!(manifest.contains(&entry), "tests/{target} uses {used}: {entry}…");
        }
        let is_empty = texts.iter().any(|text| text.contains("#![cfg(feature"));
        assert!(!is_empty, "tests/{target} would be empty without a feature: {entry}…");
    }
}

#[test]
fn every_file_of_testdata_has_an_origin() {
    let origins = std::fs::read_to_string(format!("{ROOT}/testdata/README.md")).unwrap();
    for folder in ["", "captures", "cli", "cm", "completions", "engine", "flows", "golden"] {
        for entry in std::fs::read_dir(format!("{ROOT}/testdata/{folder}")).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            // A list of fields is named for its capture.
            let stem = name.trim_end_matches(".tsv.gz");
            // Captures of several points are named for their scenario.
            let stem = stem.split_once(".c").map_or(stem, |(scenario, _)| scenario);
            let known = entry.path().is_dir() || name == "README.md" || origins.contains(stem);
            assert!(known, "testdata/README.md does not say where {folder}/{name} is from");
        }
    }
}

/// Loopback addresses that examples in the documentation open, but for 127.0.0.0/24, which clients
/// share.
fn example_addresses(text: &str) -> BTreeSet<&str> {
    let docs = text.lines().map(str::trim_start).filter(|line| line.starts_with("//"));
    let starts = docs.flat_map(|line| line.match_indices("127.").map(move |(at, _)| &line[at..]));
    let end = |c: char| !(c.is_ascii_digit() || c == '.');
    starts
        .map(|rest| rest.split(end).next().unwrap().trim_end_matches('.'))
        .filter(|address| !address.starts_with("127.0.0."))
        .collect()
}

#[test]
fn examples_of_different_files_have_different_addresses() {
    // They run at the same time, and one process at a time has an address.
    let mut owners = BTreeMap::new();
    let mut shared = Vec::new();
    let files = files_under("src", &["rs"]);
    for (path, text) in files.iter().filter(|(path, _)| !path.starts_with("src/bin")) {
        for address in example_addresses(text) {
            if let Some(other) = owners.insert(address, path) {
                shared.push(format!("{path} and {other}: {address}"));
            }
        }
    }
    assert!(shared.is_empty(), "{}", shared.join("\n"));
    assert!(owners.len() > 5, "they were found: {owners:?}");
}
