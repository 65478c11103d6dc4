//! The C ABI of `libibverbs` and `librdmacm`, asked of a C compiler and the headers that are
//! installed: every size, every offset, every number of `roce::ibverbs::table` and of the
//! enumerations and flags of `roce::verbs`.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

mod common;
use common::needs;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Write as _;
use std::process::Stdio;

use common::process::Command;
use common::tmp::Folder;
use roce::cm::EventKind;
use roce::ibverbs::{
    Layout, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, RDMA_PS_TCP, VERBS_ABI_IS_EXTENDED, table,
};
use roce::verbs::{
    Access, AtomicCap, AttrMask, DeviceCaps, EventType, FlushLevel, FlushPlacement, GidType,
    LinkLayer, MigState, Mtu, MwType, NodeType, PortCaps, PortState, QpState, QpType, SendFlags,
    SrqAttrMask, SrqType, TransportType, WcFlags, WcOpcode, WcStatus, WrOpcode,
};

/// Headers that the compiler includes.
const HEADERS: &str = "#include <stdio.h>\n#include <stddef.h>\n#include <time.h>\n#include <infiniband/verbs.h>\n\
                       #include <rdma/rdma_cma.h>\n";

/// A question in C, what it is about, and the answer that is expected.
struct Question {
    about: String,
    c: String,
    expected: i128,
}

#[test]
fn structures_and_numbers_are_those_of_the_installed_header() {
    // Rule: T-36.
    let Some(header) = preprocessed() else {
        let test = "structures_and_numbers_are_those_of_the_installed_header";
        return needs::skip(test, "headers are missing; Debian has them in librdmacm-dev");
    };
    let words: std::collections::BTreeSet<&str> =
        header.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let (mut questions, mut missing) = (Vec::new(), Vec::new());
    let mut known = |name: &str| {
        let known = words.contains(name);
        if !known {
            assert!(
                table::NEWER.contains(&name),
                "neither <infiniband/verbs.h> nor <rdma/rdma_cma.h> has {name}"
            );
            missing.push(name.to_owned());
        }
        known
    };
    for layout in table::layouts() {
        ask_layout(layout, &mut known, &mut questions);
    }
    for (name, value) in numbers() {
        if known(&name) {
            let c = format!("(long long)({name})");
            questions.push(Question { about: name, c, expected: value });
        }
    }
    for (name, value) in [
        ("RDMA_PS_TCP", i128::from(RDMA_PS_TCP)),
        ("RDMA_OPTION_ID", RDMA_OPTION_ID.into()),
        ("RDMA_OPTION_ID_TOS", RDMA_OPTION_ID_TOS.into()),
    ]
    .into_iter()
    .chain(EventKind::ALL.map(|kind| (kind.name(), kind.code().into())))
    {
        let (about, c) = (name.to_owned(), format!("(long long)({name})"));
        questions.push(Question { about, c, expected: value });
    }
    let c = "(long long)(size_t)__VERBS_ABI_IS_EXTENDED".to_owned();
    let expected = i128::from(VERBS_ABI_IS_EXTENDED.cast_signed() as i64);
    questions.push(Question { about: "__VERBS_ABI_IS_EXTENDED".to_owned(), c, expected });
    assert!(questions.len() > 1000, "only {} questions", questions.len());

    let answers = ask(&questions);
    let mut wrong = String::new();
    for question in &questions {
        let answer = answers[&question.about];
        if answer != question.expected {
            writeln!(wrong, "{}: {answer}, not {}", question.about, question.expected).unwrap();
        }
    }
    assert!(wrong.is_empty(), "according to cc and the headers:\n{wrong}");
    println!("{} sizes, offsets and numbers; the header lacks {missing:?}", questions.len());
}

/// Asks for the size of the structure and the offsets of its fields, as far as the header has them.
fn ask_layout(layout: &Layout, known: &mut impl FnMut(&str) -> bool, to: &mut Vec<Question>) {
    let Layout { c_name, path, .. } = *layout;
    let (_, plain) = c_name.split_once(' ').unwrap();
    if !known(plain) {
        return;
    }
    // `#[repr(C)]` has its own syntax for names that are keywords of Rust.
    let name = |field: &'static str| field.trim_start_matches("r#");
    let fields: Vec<_> = layout.fields.iter().filter(|field| known(name(field.c_name))).collect();
    let complete = fields.len() == layout.fields.len();
    let first = name(layout.fields[0].c_name);
    let base = match path {
        "" => "0".to_owned(),
        "*" => format!("offsetof({c_name}, {first})"),
        path => format!("offsetof({c_name}, {path})"),
    };
    let dotted = if matches!(path, "" | "*") { String::new() } else { format!("{path}.") };
    for field in fields {
        let (at, about) = (format!("{dotted}{}", name(field.c_name)), &field.c_name);
        to.push(Question {
            about: format!("offset of {about} in {c_name} {path}"),
            c: format!("(long long)(offsetof({c_name}, {at}) - {base})"),
            expected: i128::try_from(field.offset).unwrap(),
        });
        to.push(Question {
            about: format!("size of {about} in {c_name} {path}"),
            c: format!("(long long)sizeof((({c_name} *)0)->{at})"),
            expected: i128::try_from(field.size).unwrap(),
        });
    }
    // One that grew since is as large as its header knows it.
    if complete && path != "*" {
        let c = match path {
            "" => format!("(long long)sizeof({c_name})"),
            path => format!("(long long)sizeof((({c_name} *)0)->{path})"),
        };
        let expected = i128::try_from(layout.size).unwrap();
        to.push(Question { about: format!("size of {c_name} {path}"), c, expected });
    }
}

/// Every number: of this room's constants, of enumerations and of sets of flags.
fn numbers() -> Vec<(String, i128)> {
    let mut numbers: Vec<_> =
        table::constants().map(|constant| (constant.name.to_owned(), constant.value)).collect();
    macro_rules! codes {
        ($($enum:ident)*) => {
            $(numbers.extend($enum::ALL.iter().map(|v| (v.name().to_owned(), v.code().into())));)*
        };
    }
    codes!(AtomicCap EventType FlushLevel GidType LinkLayer MigState Mtu MwType NodeType PortState QpState QpType);
    codes!(SrqType TransportType WcOpcode WcStatus WrOpcode);
    // The kernel's own, which no program sees.
    numbers.retain(|(name, _)| name != "IB_QPT_GSI");
    macro_rules! flags {
        ($($prefix:literal $set:ident)*) => {
            $(numbers.extend($set::all().iter_names().map(|(name, flag)| {
                (format!(concat!($prefix, "{}"), name), flag.bits().into())
            }));)*
        };
    }
    flags!("IBV_ACCESS_" Access "IBV_SEND_" SendFlags "IBV_WC_" WcFlags "IBV_QP_" AttrMask "IBV_SRQ_" SrqAttrMask);
    flags!("IBV_FLUSH_" FlushPlacement "IBV_DEVICE_" DeviceCaps "IBV_PORT_" PortCaps);
    numbers
}

/// Returns the headers with everything they include, and their macros, if they are installed.
fn preprocessed() -> Option<String> {
    let mut cc = Command::new("cc");
    cc.args(["-E", "-dD", "-xc", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut cc = cc.stderr(Stdio::piped()).spawn().expect("cc: Debian's package gcc has it");
    cc.stdin.take().unwrap().write_all(HEADERS.as_bytes()).unwrap();
    let output = cc.wait_with_output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// Compiles and runs a program that prints one number a question.
fn ask(questions: &[Question]) -> BTreeMap<String, i128> {
    let folder = Folder::new("abi");
    let (source, program) = (folder.path().join("abi.c"), folder.path().join("abi"));
    let mut c = format!("{HEADERS}int main(void) {{\n");
    for question in questions {
        writeln!(c, "\tprintf(\"%lld\\n\", {}); // {}", question.c, question.about).unwrap();
    }
    c.push_str("\treturn 0;\n}\n");
    std::fs::write(&source, c).unwrap();
    let output =
        Command::new("cc").arg("-w").arg(&source).arg("-o").arg(&program).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(&program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<i128> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(answers.len(), questions.len());
    questions
        .iter()
        .zip(answers)
        .map(|(question, answer)| (question.about.clone(), answer))
        .collect()
}
