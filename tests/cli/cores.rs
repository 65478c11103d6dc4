//! All cores print what one core prints: the same bytes, the same remarks, the same exit status.

use std::process::Output;

use super::common::command::roce;
use super::{Scratch, capture, common};

/// Arguments of the forms of output, for a packet and for all.
const FORMS: [&[&str]; 10] = [
    &[],
    &["-ttt"],
    &["-V"],
    &["--json"],
    &["--json", "-e", "frame.number", "-e", "frame.file"],
    &["-e", "frame.number", "-e", "frame.time_delta", "-e", "infiniband.bth.psn"],
    &["--summary"],
    &["--summary", "--json"],
    &["-Y", "roce.aeth.kind == NAK || ip.ttl < 64"],
    &["--summary", "-Y", "infiniband.bth.opcode == 17", "-c", "400"],
];

/// Runs a subcommand on one core and on four, and compares.
fn compare(args: &[&str], files: &[&str]) -> Output {
    let run = |jobs| roce(&[&["decode", "-j", jobs], args, files].concat());
    let (one, four) = (run("1"), run("4"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&one.stderr), text(&four.stderr), "{args:?} {files:?}");
    assert_eq!(one.status.code(), four.status.code(), "{args:?} {files:?}");
    let (a, b) = (text(&one.stdout), text(&four.stdout));
    if a != b {
        let differs = a.lines().zip(b.lines()).position(|(a, b)| a != b);
        panic!(
            "{args:?} {files:?}: differs from line {differs:?}: {} and {} bytes",
            a.len(),
            b.len()
        );
    }
    one
}

#[test]
fn all_cores_print_what_one_core_prints() {
    let odd = [capture("odd.pcapng").into()];
    for path in common::captures().iter().chain(&odd) {
        for form in FORMS {
            compare(form, &[path.to_str().unwrap()]);
        }
    }
}

#[test]
fn damaged_captures_print_what_there_is_on_all_cores() {
    let whole = std::fs::read(capture("rxe_lossy.pcap")).unwrap();
    let (third, half) = (whole.len() / 3, whole.len() / 2);
    let mut overwritten = whole.clone();
    overwritten[third..third + 1000].fill(0xa5);
    overwritten[half..half + 3].fill(0);
    let strange_link = [&whole[..20], &[0x2f, 1, 0, 0], &whole[24..half]].concat();
    let zstd = zstd::encode_all(&whole[..], 1).unwrap();
    for (name, bytes) in [
        ("cut.pcap", &whole[..half]),
        ("overwritten.pcap", &overwritten[..]),
        ("strange-link.pcap", &strange_link[..]),
        ("cut.zst", &zstd[..zstd.len() - 1000]),
        ("empty", &[]),
        ("text", b"no capture"),
    ] {
        let scratch = Scratch::new(name, bytes);
        for form in [&[][..], &["--json"], &["--summary"], &["-c", "1500"]] {
            let expected = if name == "overwritten.pcap" { Some(1) } else { Some(2) };
            let status = compare(form, &[scratch.path()]).status;
            assert!(form == ["-c", "1500"] || status.code() == expected, "{name} {form:?}");
            let strict = [form, &["--strict"]].concat();
            let status = compare(&strict, &[scratch.path()]).status;
            assert!(form == ["-c", "1500"] || status.code() == Some(2), "{name} {strict:?}");
        }
        compare(
            &["-e", "frame.number", "-e", "frame.file"],
            &[scratch.path(), &capture("rxe_cm.pcap")],
        );
    }
}

#[test]
fn count_ends_at_the_same_packet_on_all_cores() {
    let file = capture("rxe_all_ops.pcap");
    for count in ["0", "1", "500", "1000", "3741", "3742", "3743"] {
        let output = compare(&["-c", count, "-t"], &[&file]);
        let lines = String::from_utf8(output.stdout).unwrap().lines().count();
        assert_eq!(lines.to_string(), if count == "3743" { "3742" } else { count });
        compare(&["-c", count, "--summary"], &[&file]);
    }
}

#[test]
fn several_files_come_in_one_order_on_all_cores() {
    let files = [capture("rxe_lossy.pcap"), capture("odd.pcapng"), capture("rxe_cm.pcap")];
    let files = files.each_ref().map(String::as_str);
    for form in [&["--json"][..], &["--summary"], &["-e", "frame.number", "-e", "frame.file"]] {
        compare(form, &files);
    }
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_command_without_parquet_says_how_to_get_it() {
    let output = roce(&["decode", "--parquet", "/nowhere", &capture("rxe_cm.pcap")]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("--features parquet"));
}
