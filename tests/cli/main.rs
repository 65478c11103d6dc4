//! The command as a user runs it: what it prints, where, and how it ends.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use rustix::process::Signal;

mod cores;

#[path = "../common/mod.rs"]
mod common;
use common::command::{Server, roce, stdout};
use common::loopback::{device, loopback};
use common::process::Command;
use common::tmp::{Folder, Scratch};
use common::{assert_golden, testdata};

/// Returns standard output and standard error of a run that fails in part.
fn failure(args: &[&str]) -> (String, String) {
    let output = roce(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {output:?}");
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn capture(name: &str) -> String {
    testdata("captures").join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_line_a_packet_says_what_matters_for_that_packet() {
    assert_golden("vectors.lines.txt", &stdout(&["decode", &capture("vectors.pcap")]));
    assert_golden("cm.lines.txt", &stdout(&["decode", "-t", &capture("rxe_cm.pcap")]));
}

#[test]
fn the_tree_shows_every_field_with_its_bytes() {
    let filter =
        "infiniband.reth || infiniband.aeth || roce.xrceth || roce.feth || infiniband.cm.req";
    assert_golden(
        "vectors.tree.txt",
        &stdout(&["decode", "-V", "-Y", filter, &capture("vectors.pcap")]),
    );
}

#[test]
fn json_is_an_object_a_packet() {
    let text = stdout(&["decode", "--json", &capture("vectors.pcap")]);
    assert_golden("vectors.json.txt", &text);
    let objects: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 42);
    assert!(objects.iter().all(|object| object["roce.icrc"] == "ok"));
    let write = &objects[17];
    assert_eq!(write["infiniband.bth.opcode"], 6);
    assert_eq!(write["roce.opcode_name"], "RC_RDMA_WRITE_FIRST");
    assert_eq!(write["infiniband.reth.va"], "0x0000000000001000");
    assert_eq!(write["infiniband.reth.dmalen"], 2055);
    assert_eq!(write["ip.src"], "192.0.2.1");
}

#[test]
fn every_json_line_of_every_capture_can_be_parsed() {
    for path in common::captures() {
        for line in stdout(&["decode", "--json", path.to_str().unwrap()]).lines() {
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            // A repeated key would be lost here, and so make the object shorter than the line.
            let keys = line.matches("\":").count() - line.matches("\"::").count();
            assert_eq!(object.as_object().unwrap().len(), keys, "{line}");
        }
    }
}

#[test]
fn chosen_fields_are_columns_as_tshark_prints_them() {
    let args = ["-e", "frame.number", "-e", "ip.addr", "-e", "infiniband.bth.destqp"];
    let text = stdout(&[&["decode", "-c", "3"][..], &args, &[&capture("vectors.pcap")]].concat());
    assert_eq!(text, "1\t10.0.17.1,10.0.18.1\t0x000118\n2\t\t0x00010a\n3\t\t0x000109\n");
    let json = stdout(&["decode", "--json", "-e", "ip.addr", "-c", "1", &capture("vectors.pcap")]);
    assert_eq!(json, "{\"ip.addr\":[\"10.0.17.1\",\"10.0.18.1\"]}\n");
}

#[test]
fn a_filter_keeps_what_passes() {
    let count = |filter: &str| {
        stdout(&["decode", "-e", "frame.number", "--filter", filter, &capture("rxe_all_ops.pcap")])
            .lines()
            .count()
    };
    // As many as tshark finds with the same expressions.
    assert_eq!(count("infiniband"), 2660);
    assert_eq!(count("infiniband.bth.opcode == 17 && infiniband.aeth.syndrome != 31"), 20);
    assert_eq!(count("infiniband.bth.destqp == 0x11 && roce.icrc == bad"), 0);
    assert_eq!(count("frame.number >= 10 and frame.number < 20"), 10);
    assert_eq!(count("!(ip.addr == 10.9.0.0/24) && ip"), 0);
    let span = "frame.time >= '2026-11-15 00:06:52' && frame.time < 'Nov 15, 2026 00:06:55.5'";
    assert_eq!(count(span), 10);
    assert_eq!(count("frame.time == 2026-11-15T00:06:51.597306"), 1);
    assert_eq!(
        count("roce.opcode_name == RC_FETCH_ADD || roce.opcode_name == 'RC_COMPARE_SWAP'"),
        25
    );
}

#[test]
fn a_wrong_filter_is_pointed_at() {
    let (out, err) =
        failure(&["decode", "-Y", "ip.src == 10.9.0.1 &&| roce", &capture("rxe_cm.pcap")]);
    assert_eq!(out, "");
    assert_eq!(
        err,
        "roce: --filter: '|' alone means nothing; write '||', at character 22\n  \
         ip.src == 10.9.0.1 &&| roce\n                       ^\n"
    );
    let (_, err) = failure(&["decode", "-e", "infiniband.bth.pns", &capture("rxe_cm.pcap")]);
    assert!(err.contains("did you mean 'infiniband.bth.psn'?"), "{err}");
}

#[test]
fn a_summary_counts() {
    for name in ["rxe_all_ops", "rxe_lossy", "rxe_cm"] {
        let file = capture(&format!("{name}.pcap"));
        assert_golden(&format!("{name}.summary.txt"), &stdout(&["decode", "--summary", &file]));
        let json: serde_json::Value =
            serde_json::from_str(&stdout(&["decode", "--summary", "--json", &file])).unwrap();
        let opcodes = json["opcodes"].as_object().unwrap().values();
        let total: u64 = opcodes.map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(total, json["roce_frames"].as_u64().unwrap());
        let conversations = json["conversations"].as_array().unwrap().iter();
        let packets: u64 = conversations.map(|c| c["packets"].as_u64().unwrap()).sum();
        assert_eq!(packets, total);
        assert_eq!(json["icrc"]["ok"].as_u64(), Some(total));
    }
}

#[test]
fn compressed_captures_and_standard_input_read_the_same() {
    let file = capture("rxe_cm.pcap");
    let plain = std::fs::read(&file).unwrap();
    let expected = stdout(&["decode", &file]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&plain).unwrap();
    let zstd = zstd::encode_all(&plain[..], 3).unwrap();
    for (name, bytes) in [("gz", gzip.finish().unwrap()), ("zst", zstd)] {
        let scratch = Scratch::new(name, &bytes);
        assert_eq!(stdout(&["decode", scratch.path()]), expected, "{name}");
        assert_eq!(from_stdin(&["decode", "-"], &bytes).0, expected, "{name} from standard input");
    }
}

/// Output and exit status of a run with `input` on standard input.
fn from_stdin(args: &[&str], input: &[u8]) -> (String, Option<i32>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_roce"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(output.stdout), output.status.code(), text(output.stderr))
}

#[test]
fn a_capture_that_ends_in_mid_record_shows_what_there_is() {
    let whole = std::fs::read(capture("rxe_cm.pcap")).unwrap();
    let cut = Scratch::new("cut.pcap", &whole[..whole.len() - 5]);
    let (out, err) = failure(&["decode", cut.path()]);
    assert_eq!(out.lines().count(), 181, "all but the last");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains("offset") && err.contains("need"), "{err}");
    assert!(err.starts_with(&format!("roce: {}: ", cut.path())), "{err}");
}

#[test]
fn a_record_that_claims_four_gigabytes_is_refused() {
    let mut bytes = std::fs::read(capture("rxe_cm.pcap")).unwrap();
    bytes[24 + 8..24 + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    let lying = Scratch::new("lying.pcap", &bytes);
    let (out, err) = failure(&["decode", "--strict", lying.path()]);
    assert_eq!(out, "");
    assert!(err.contains("4294967295") && err.contains("offset 24"), "{err}");
}

#[test]
fn what_is_no_capture_is_named_so() {
    let text = Scratch::new("text", b"This is not a capture, but a long enough text.\n");
    let empty = Scratch::new("empty", b"");
    for (path, word) in [
        (text.path(), "not a pcap or pcapng capture"),
        (empty.path(), "empty"),
        ("/nonexistent/file.pcap", "cannot open"),
        (env!("CARGO_MANIFEST_DIR"), "is a directory"),
    ] {
        let (out, err) = failure(&["decode", path]);
        assert_eq!(out, "", "{path}");
        assert!(err.contains(word) && err.lines().count() == 1, "{path}: {err}");
    }
}

#[test]
fn an_unknown_link_type_is_named_after_the_frames() {
    let mut bytes = std::fs::read(capture("rxe_cm.pcap")).unwrap();
    bytes[20] = 147;
    let odd = Scratch::new("odd.pcap", &bytes);
    let (out, err) = failure(&["decode", odd.path()]);
    assert_eq!(out.lines().count(), 182);
    assert!(
        err.contains("link type 147") && err.contains("offset 24") && err.lines().count() == 1,
        "{err}"
    );
}

#[test]
fn one_bad_file_does_not_hide_the_others() {
    let empty = Scratch::new("empty2", b"");
    let (out, err) = failure(&["decode", empty.path(), &capture("rxe_cm.pcap")]);
    assert_eq!(out.lines().count(), 182);
    assert_eq!(err.lines().count(), 1);
}

#[test]
fn packets_cut_by_the_snap_length_have_no_verdict() {
    let snapped = Scratch::new("snap.pcap", snap(Path::new(&capture("rxe_all_ops.pcap")), 70));
    let text =
        stdout(&["decode", "-Y", "roce", "-e", "frame.len", "-e", "roce.icrc", snapped.path()]);
    let mut absent = 0;
    for line in text.lines() {
        let (len, verdict) = line.split_once('\t').unwrap();
        let cut = len.parse::<u32>().unwrap() > 70;
        assert_eq!(verdict, if cut { "absent" } else { "ok" }, "{line}");
        absent += usize::from(cut);
    }
    assert!(absent > 1000);
    let line =
        stdout(&["decode", "-t", "-c", "1", "-Y", "roce.error && infiniband.reth", snapped.path()]);
    assert!(line.contains(" dmalen ") || line.contains("RETH: need 16 bytes"), "{line}");
}

/// A capture with every packet cut to `len` bytes.
fn snap(path: &Path, len: usize) -> Vec<u8> {
    let file = std::fs::read(path).unwrap();
    let (mut out, mut rest) = (file[..24].to_vec(), &file[24..]);
    while !rest.is_empty() {
        let captured = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let kept = captured.min(len);
        out.extend_from_slice(&rest[..8]);
        out.extend_from_slice(&u32::try_from(kept).unwrap().to_le_bytes());
        out.extend_from_slice(&rest[12..16 + kept]);
        rest = &rest[16 + captured..];
    }
    out
}

#[test]
fn another_port_can_be_taken_for_roce() {
    let mut bytes = std::fs::read(capture("vectors.pcap")).unwrap();
    let count = |bytes: &[u8], port: &str| {
        let file = Scratch::new(&format!("port-{port}-{}", bytes.len()), bytes);
        stdout(&["decode", "--port", port, "-Y", "roce.encapsulation == RoCEv2", file.path()])
            .lines()
            .count()
    };
    assert_eq!((count(&bytes, "4791"), count(&bytes, "4792")), (38, 0));
    // The first packet's destination port; its ICRC covers it, but it is decoded all the same.
    bytes[24 + 16 + 37] = 0xb8;
    assert_eq!((count(&bytes, "4791"), count(&bytes, "4792")), (37, 1));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_roce"))
        .args(["decode", "-V", &capture("rxe_all_ops.pcap")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn colors_appear_only_when_asked_for_in_a_pipe() {
    let file = capture("vectors.pcap");
    assert!(!stdout(&["decode", &file]).contains('\x1b'));
    assert!(
        stdout(&["decode", "--color", "always", &file]).contains("\x1b[31mNAK PSN sequence error")
    );
}

/// Every option has one spelling in the help; another one that people are used to is understood.
#[test]
fn other_spellings_of_options_are_hidden_aliases() {
    for command in ["decode", "conform", "bench", "run"] {
        let help = stdout(&[command, "--help"]);
        assert!(!help.contains("colour") && !help.contains("--ib-dev"), "{help}");
    }
    let capture = capture("vectors.pcap");
    for flag in ["--color", "--colour"] {
        assert!(stdout(&["decode", flag, "always", &capture]).contains("\x1b["), "{flag}");
        stdout(&["conform", "--list", flag, "never"]);
    }
    for flag in ["--device", "--ib-dev"] {
        assert!(failure(&["conform", flag, "nonsense"]).1.contains("nonsense"), "{flag}");
        assert!(failure(&["conform", "serve", flag, "nonsense"]).1.contains("nonsense"));
        assert!(failure(&["run", flag, "nonsense", "--", "true"]).1.contains("nonsense"), "{flag}");
    }
}

#[test]
fn man_pages_are_written_into_a_directory_that_is_created() {
    let folder = Folder::new("man");
    let dir = folder.path().join("new/man1");
    stdout(&["man", "--out", dir.to_str().unwrap()]);
    let pages = std::fs::read_dir(&dir).unwrap().count();
    assert!(dir.join("roce.1").exists() && dir.join("roce-decode.1").exists() && pages > 8);
    let file = dir.join("roce.1");
    let (_, error) = failure(&["man", "--out", file.to_str().unwrap()]);
    assert!(error.contains("is a file; name a directory"), "{error}");
}

#[test]
fn number_of_threads_has_a_bound() {
    for command in ["decode", "flows", "replay"] {
        for jobs in ["0", "1025", "99999999"] {
            let (_, error) = failure(&[command, "-j", jobs, &capture("rxe_cm.pcap")]);
            assert!(error.contains("a number of threads, 1 to 1024"), "{error}");
        }
    }
}

#[test]
fn options_of_a_mesh_are_refused_by_name() {
    let folder = Folder::new("mesh-options");
    let pairs = folder.path().join("pairs.txt");
    std::fs::write(&pairs, "one\n").unwrap();
    let pairs = pairs.to_str().unwrap();
    for (args, text) in [
        (["-c", "0"], "-c: 1 to 1000000"),
        (["--rate", "0"], "--rate: 1 to 10000"),
        (["--pairs", pairs], "pairs.txt: 'one' is not two hosts"),
    ] {
        let hosts = ["mesh", "127.0.0.1:9", "127.0.0.2:9"];
        let (_, error) = failure(&[&hosts[..], &args].concat());
        assert!(error.contains(text), "{error}");
    }
}

#[test]
fn the_time_is_told_as_tcpdump_tells_it() {
    let first = |flag: &str| {
        let flags: &[&str] = if flag.is_empty() { &[] } else { &[flag] };
        let text =
            stdout(&[&["decode", "-c", "2"][..], flags, &[&capture("vectors.pcap")]].concat());
        text.lines().nth(1).unwrap().split(" RoCEv1").next().unwrap().to_owned()
    };
    assert_eq!(first(""), "22:13:21.000001");
    assert!(first("-t").starts_with("RoCEv1"));
    assert_eq!(first("-tt"), "1700000001.000001");
    assert_eq!(first("-ttt"), "1.000001000");
    assert_eq!(first("-tttt"), "2023-11-14 22:13:21.000001");
    assert_eq!(first("-ttttt"), "1.000001000");
}

#[test]
fn help_teaches_and_the_rest_comes_with_it() {
    assert!(stdout(&["decode", "--help"]).contains("Examples:"));
    assert!(
        stdout(&["decode", "--list-fields"])
            .contains("\ninfiniband.bth.psn\tPacket Sequence Number\n")
    );
    assert!(stdout(&["completions", "bash"]).contains("_roce"));
    assert!(stdout(&["completions", "--help"]).contains("\n  zsh   roce completions zsh > "));
    assert!(stdout(&["man"]).contains(".TH roce 1"));
    assert_eq!(roce(&["--no-command"]).status.code(), Some(2));
    assert_eq!(roce(&["decode"]).status.code(), Some(2));
}

#[test]
fn command_alone_shows_four_things_to_try() {
    let text = stdout(&[]);
    let tries = text.lines().filter(|line| line.starts_with("  roce ")).count();
    assert_eq!(tries, 4, "{text}");
    assert!(text.lines().count() < 12 && text.lines().all(|line| line.len() < 80), "{text}");
}

#[test]
fn version_says_commit_features_and_library() {
    let output = Command::new(env!("CARGO_BIN_EXE_roce"))
        .arg("--version")
        .env("ROCE_LIBRARY", "/no/such/directory")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> =
        text.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(words, ["roce", "commit", "features", "library"]);
    assert!(text.starts_with(concat!("roce ", env!("CARGO_PKG_VERSION"), "\n")), "{text}");
    assert!(text.contains("library   none: ROCE_LIBRARY: there is no libibverbs.so.1"), "{text}");
    assert_eq!(stdout(&["-V"]), concat!("roce ", env!("CARGO_PKG_VERSION"), "\n"));
}

/// Starts a server on a loopback address of its own, which says first that it listens. `host` tells
/// servers of one test run apart.
fn serve(host: u8, args: &[&str]) -> Server {
    let server = Server::start(loopback(0, host), args, &[]);
    let (own, Server { address, port, .. }) = (device(0, host), &server);
    let first = format!("roce: serving with {own} on TCP port {port} of {address}\n");
    assert!(server.process.said().starts_with(&first), "{}", server.process.said());
    server
}

/// Runs `roce bench` against a server, with a device on another address.
fn bench(server: &Server, host: u8, args: &[&str]) -> Output {
    let (port, address) = (server.port.to_string(), server.address.to_string());
    let reach = ["-d", &device(0, host), "-p", &port, &address];
    roce(&[&["bench"][..], args, &reach].concat())
}

#[test]
fn bench_measures_over_udp_sockets() {
    let served = serve(10, &[]);
    let output = bench(&served, 11, &["send", "bw", "-s", "64", "-n", "500"]);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&err));
    let lines: Vec<&str> = out.lines().collect();
    let heading =
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]";
    assert_eq!((lines.len(), lines[0]), (2, heading), "{out}");
    assert!(lines[1].starts_with(" 64         500            "), "{out}");

    let output = bench(&served, 11, &["write", "lat", "-n", "200", "--verify", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["results"][0]["iterations"], 200);
    assert_eq!((&json["results"][0]["wrong"], output.status.code()), (&0.into(), Some(0)));
    assert!(json["counters"]["peer"]["sent_pkts"].as_u64().unwrap() >= 200);

    let output = bench(&served, 11, &["pingpong", "-n", "100"]);
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(out.starts_with("  local address:  LID 0x0000, QPN 0x"), "{out}");
    assert!(out.contains("819200 bytes in ") && out.contains("\n100 iters in "), "{out}");
}

#[test]
fn a_server_ends_after_one_client_or_on_ctrl_c() {
    let mut once = serve(30, &["--once"]);
    assert_eq!(bench(&once, 31, &["atomic", "lat", "-n", "10"]).status.code(), Some(0));
    assert_eq!(once.process.child.wait().unwrap().code(), Some(0));
    let mut stopped = serve(32, &[]);
    stopped.process.child.signal(Signal::INT);
    assert_eq!(stopped.process.child.wait().unwrap().code(), Some(0));
}

#[test]
fn bench_with_invalid_options_fails_before_it_connects() {
    for (args, word) in [
        (&["bench", "read", "bw", "-c", "ud", "127.0.0.1"][..], "UD has no read: use -c rc"),
        (&["bench", "send", "bw", "-c", "UD", "-s", "4097", "127.0.0.1"], "does not fit an MTU"),
        (&["bench", "send", "lat", "-q", "2", "127.0.0.1"], "-q: latency"),
        (&["bench", "send", "bw", "-p", "1", "127.0.0.1"], "is a server (roce serve) running"),
        (&["bench", "send", "bw", "-d", "eth0", "127.0.0.1"], "a device is udp:ADDRESS"),
        (&["serve", "-d", "udp:192.0.2.255"], "not an address of this machine"),
        (&["serve", "-d", "soft:roce-none"], "this machine has"),
    ] {
        let (out, err) = failure(args);
        assert!(out.is_empty() && err.contains(word), "{args:?}: {err}");
    }
}
