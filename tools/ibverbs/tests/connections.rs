//! The device of librdmacm, and the stock librdmacm on it.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

use common::process::{Child, Command};
use roce::wire::{Frame, Opcode, ROCE_PORT};
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

mod common;

#[test]
fn device_file_behaves_as_the_kernels() {
    let program = common::compiled("cm_file.c");
    let mut command = common::stock(program.to_str().unwrap(), "udp:127.9.60.1");
    let said = common::said(command.arg("127.9.60.1"), "gcc");
    assert_eq!(said, "fine\n");
}

/// Runs in a network of its own: what is at 127.0.0.1 of this host does not count.
#[test]
fn loopback_and_unspecified_addresses_are_as_on_linux() {
    let program = common::compiled_with("cm_local.c", &["-lrdmacm", "-libverbs"]);
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--net", "--", "sh", "-c"]);
    unshare.arg("ip link set lo up && exec \"$0\" 127.9.63.1").arg(program);
    unshare.env("LD_LIBRARY_PATH", common::library()).env("ROCE_DEVICES", "udp:127.9.63.1");
    assert_eq!(common::said(&mut unshare, "util-linux and iproute2"), "fine\n");
}

#[test]
fn librdmacm_that_is_loaded_later_finds_the_library_without_a_preload() {
    let program = common::compiled_with("dlopened.c", &["-ldl"]);
    let mut command = common::stock(program.to_str().unwrap(), "udp:127.9.64.1");
    assert_eq!(common::said(command.arg("127.9.64.1"), "librdmacm1"), "fine\n");
}

#[test]
fn preloaded_library_hands_calls_on_to_this_one() {
    let program = common::compiled_with("dlopened.c", &["-ldl"]);
    let (first, ours) = (common::compiled_library("next.c"), common::library());
    let mut command = common::stock(program.to_str().unwrap(), "udp:127.9.65.1");
    let preload = format!("{}:{}/libibverbs.so.1", first.display(), ours.display());
    command.arg("127.9.65.1").env("LD_PRELOAD", preload);
    assert_eq!(common::said(&mut command, "librdmacm1"), "fine\n");
}

/// Starts a program of Debian's rdmacm-utils.
fn start(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; Debian has it in rdmacm-utils"))
}

/// A server and a client; both must succeed. A client that comes before the server listens is
/// rejected, and tries anew. A REQ that such a client retransmitted may reach the server when it
/// listens. The client has ended by then and rejects the REP, so the server ends, and both are
/// started again.
fn pair(command: &mut Command, client: impl Fn() -> Command) -> String {
    let mut server = start(command);
    let mut tried = Vec::new();
    for _ in 0..50 {
        let Output { status, stdout, stderr } = start(&mut client()).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&stdout).into_owned();
        if status.success() {
            let ended = server.wait_with_output().unwrap();
            // At its end rping closes its channel, while its thread may still ask for an event.
            let error = String::from_utf8_lossy(&ended.stderr);
            let has_closed = error.ends_with("rdma_get_cm_event: Bad file descriptor\n");
            assert!(ended.status.success() || has_closed, "server: {ended:?}");
            return said;
        }
        tried.push(format!("client {status}: {said}{}", String::from_utf8_lossy(&stderr)));
        if server.try_wait().unwrap().is_some() {
            tried.push(format!("server: {:?}", server.wait_with_output()));
            server = start(command);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let _ = server.kill();
    panic!("{tried:?}\nserver: {:?}", server.wait_with_output());
}

#[test]
fn rping_connects_and_pings() {
    let program = |words: &[&str], device: &str| {
        let mut command = common::stock("rping", device);
        command.args(["-v", "-C", "2", "-a", "127.9.61.1"]).args(words);
        command
    };
    for options in [&[][..], &["-q"]] {
        let words = |role| [&[role], options].concat();
        let mut server = program(&words("-s"), "udp:127.9.61.1");
        let said = pair(&mut server, || program(&words("-c"), "udp:127.9.61.2"));
        assert!(said.contains("ping data: rdma-ping-1: BCDEF"), "{said}");
    }
}

/// Number of SACKs in the captures of a directory: one for each run of a program.
fn count_sacks(directory: &Path) -> usize {
    let mut sacks = 0;
    for file in std::fs::read_dir(directory).unwrap() {
        let mut reader = roce::capture::open(&file.unwrap().path()).unwrap();
        while let Some(record) = reader.next().unwrap() {
            let frame = Frame::parse(record.link, record.data, ROCE_PORT);
            let opcode = frame.packet().map(|packet| packet.bth().opcode());
            sacks += usize::from(opcode == Some(Opcode::RC_SELECTIVE_ACKNOWLEDGE));
        }
    }
    sacks
}

/// The connection manager tells each side what the other does: a peer that uses go-back-N gets no
/// SACK, nor does it send one.
#[test]
fn librdmacm_agrees_on_selective_repeat() {
    let own = format!("sacks-{}", std::process::id());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(own);
    let rows = [("69", "sr", "sr"), ("70", "sr", "gbn"), ("71", "gbn", "sr")];
    for (net, server, client) in rows {
        let (address, captures) = (format!("127.9.{net}.1"), directory.join(net));
        std::fs::create_dir_all(&captures).unwrap();
        let program = |role: &str, host: u8, recovery: &str| {
            let mut command = common::stock("rping", &format!("udp:127.9.{net}.{host}"));
            command.args([role, "-C", "40", "-S", "60000", "-a", &address]);
            command.env("ROCE_RECOVERY", recovery).env("ROCE_FAULT", "loss=2%");
            command
        };
        pair(&mut program("-s", 1, server), || {
            let mut command = program("-c", 2, client);
            command.env("ROCE_PCAP", captures.join("client.pcapng"));
            command
        });
        let (sacks, both) = (count_sacks(&captures), (server, client) == ("sr", "sr"));
        assert_eq!(sacks > 0, both, "server {server}, client {client}: {sacks} SACKs");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn nothing_that_listens_rejects() {
    // A server that listens at another port answers for its address.
    let mut server = common::stock("rping", "udp:127.9.62.1");
    let mut server = start(server.args(["-s", "-a", "127.9.62.1", "-p", "7000"]));
    let mut last = String::new();
    let is_rejected = (0..50).any(|_| {
        let mut client = common::stock("ucmatose", "udp:127.9.62.2");
        let output = client.args(["-s", "127.9.62.1", "-c", "1"]).output().unwrap();
        last = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.code() == Some(8) && last.contains("RDMA_CM_EVENT_REJECTED, error: 8")
    });
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(is_rejected, "{last}");
}
#[test]
fn flood_of_requests_does_not_keep_another_peer_out_of_the_backlog() {
    let program = common::compiled_with("cm_backlog.c", &["-lrdmacm", "-libverbs"]);
    let own = ["127.9.68.1", "127.9.68.2", "127.9.68.3"];
    let devices = own.map(|address| format!("udp:{address}")).join(" ");
    let mut command = common::stock(program.to_str().unwrap(), &devices);
    assert_eq!(common::said(command.args(own), "librdmacm1"), "fine\n");
}
