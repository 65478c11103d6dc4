//! Stock programs of rdma-core, which know nothing of soft NICs, on the library.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

use common::process::{self, Child, Command};
use std::process::Stdio;
use std::time::Duration;

mod common;
#[path = "../../../tests/common/needs.rs"]
#[allow(unreachable_pub, reason = "shared by several tests")]
mod needs;

/// Debian's package of the programs.
const PACKAGE: &str = "ibverbs-utils";

#[test]
fn devices_are_listed_as_the_environment_says() {
    let list = |devices| common::said(&mut common::stock("ibv_devices", devices), PACKAGE);
    let two = list("udp:127.9.0.1, udp:127.9.0.2");
    let lines: Vec<&str> = two.lines().skip(2).map(str::trim).collect();
    assert_eq!(lines, ["roce0           \t0000ffff7f090001", "roce1           \t0000fffe7f090002"]);
    // Two on one interface, whose first address is the same until one of them is opened.
    let same = list("a=soft:lo b=soft:lo");
    let guids: Vec<_> = same.lines().skip(2).filter_map(|line| line.split('\t').nth(1)).collect();
    assert!(guids.len() == 2 && guids[0] != guids[1], "{same}");
    assert_eq!(list("").lines().count(), 2, "no devices");
    let mut wrong = common::stock("ibv_devices", "eth0");
    assert!(!wrong.output().unwrap().status.success(), "what is no device is no device");
}

#[test]
fn a_device_tells_everything_of_itself() {
    let mut devinfo = common::stock("ibv_devinfo", "udp:127.9.0.3");
    let said = common::said(devinfo.arg("-v"), PACKAGE);
    for line in [
        "hca_id:\troce0",
        "node_guid:\t\t\t0000:ffff:7f09:0003",
        "board_id:\t\t\troce",
        "phys_port_cnt:\t\t\t1",
        "state:\t\t\tPORT_ACTIVE (4)",
        "active_mtu:\t\t4096 (5)",
        "link_layer:\t\tEthernet",
        "max_qp_rd_atom:\t\t\t128",
        "max_res_rd_atom:\t\t258048",
        "active_width:\t\t4X (2)",
        "active_speed:\t\t10.0 Gbps (8)",
        "GID[  0]:\t\t::ffff:127.9.0.3, RoCE v2",
        "GID[  1]:\t\t::ffff:127.9.0.3, RoCE v2",
        "GID[  2]:\t\t",
        "GID[  3]:\t\t::ffff:127.9.0.3, RoCE v2",
    ] {
        assert!(said.contains(line), "{line:?} is not in\n{said}");
    }
}

#[test]
fn pingpongs_of_every_service_polled_and_with_events() {
    let programs = [
        ("ibv_rc_pingpong", &[][..]),
        ("ibv_rc_pingpong", &["-s", "100000", "-m", "4096", "-n", "50"]),
        ("ibv_uc_pingpong", &[]),
        ("ibv_ud_pingpong", &["-s", "1024"]),
        ("ibv_srq_pingpong", &[]),
        ("ibv_xsrq_pingpong", &[]),
    ];
    for (at, (program, arguments)) in programs.into_iter().enumerate() {
        for events in [false, true] {
            let mut arguments = arguments.to_vec();
            if events {
                arguments.push("-e");
            }
            let port = 18_600 + 2 * u16::try_from(at).unwrap() + u16::from(events);
            pingpong(program, &arguments, port);
        }
    }
}

#[test]
fn each_who_opens_a_device_has_a_capture_of_its_own() {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("captures");
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir(&directory).unwrap();
    for _ in 0..2 {
        let mut devinfo = common::stock("ibv_devinfo", "udp:127.9.0.4 udp:127.9.0.5");
        common::said(devinfo.env("ROCE_PCAP", directory.join("it")), PACKAGE);
    }
    let mut names: Vec<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort_by_key(String::len);
    // Of the first process one is called as it should be; then each has the number of its process,
    // and counts.
    assert_eq!(names.len(), 4, "{names:?}");
    assert_eq!(names[0], "it");
    assert!(names[1..].iter().all(|name| name.starts_with("it.")), "{names:?}");
}

#[test]
fn capture_that_cannot_be_begun_is_reported() {
    let mut devinfo = common::stock("ibv_devinfo", "udp:127.9.0.7");
    let output = devinfo.env("ROCE_PCAP", "/dev/full").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("roce: /dev/full: cannot write the capture"), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
}

#[test]
fn why_a_device_cannot_be_opened_is_in_the_log() {
    let log = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("log");
    let _ = std::fs::remove_file(&log);
    let taken = std::net::UdpSocket::bind("127.9.0.6:4791").unwrap();
    for _ in 0..2 {
        let mut devinfo = common::stock("ibv_devinfo", "udp:127.9.0.6");
        let output = devinfo.env("ROCE_LOG", &log).output().unwrap();
        assert!(!String::from_utf8_lossy(&output.stderr).contains("taken"), "{output:?}");
    }
    drop(taken);
    let log = std::fs::read_to_string(log).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(lines.iter().all(|line| line.contains("UDP port 4791 of 127.9.0.6 is taken")), "{log}");
}

/// A server at port 18515 and a client, in a network of their own.
const BOTH: &str = "
    ip link set lo up
    ibv_rc_pingpong -g 0 -n 100 & server=$!
    until grep -q ':4853 0*:0000 0A' /proc/net/tcp /proc/net/tcp6; do
        kill -0 $server || exit 1
        sleep 0.02
    done
    ibv_rc_pingpong -g 0 -n 100 127.0.0.1 && wait $server
";

#[test]
fn programs_share_an_address_over_raw_sockets() {
    if !needs::can_have_namespaces("programs_share_an_address_over_raw_sockets") {
        return;
    }
    let mut both = common::stock("unshare", "raw:lo");
    let said = common::said(both.args(["-Urn", "sh", "-c", BOTH]), "util-linux and iproute2");
    assert_eq!(said.matches("100 iters in").count(), 2, "{said}");
}

#[test]
fn every_common_gid_index_works() {
    for (at, index) in ["1", "3"].into_iter().enumerate() {
        let port = 18_630 + u16::try_from(at).unwrap();
        pingpong("ibv_rc_pingpong", &["-g", index, "-n", "20"], port);
    }
    pingpong("ibv_ud_pingpong", &["-g", "3", "-n", "20", "-s", "1024"], 18_632);
}

/// Valgrind has no vDSO, and runs one thread at a time.
#[test]
fn programs_run_under_valgrind() {
    let valgrind = |tool: &str, device: &str| {
        let mut command = common::stock("valgrind", device);
        command.args(["-q", "--error-exitcode=99", tool]);
        command
    };
    let mut devinfo = valgrind("--tool=memcheck", "udp:127.9.0.7");
    let said = common::said(devinfo.args(["ibv_devinfo", "-v"]), "valgrind");
    assert!(said.contains("PORT_ACTIVE"), "{said}");
    let pingpong = |device: &str| {
        let mut command = valgrind("--tool=none", device);
        // The program's reliable connections give up after half a second without an answer, which
        // valgrind may take on a busy machine.
        command.arg("ibv_uc_pingpong");
        command
    };
    pingpong_of(&pingpong, &["-g", "0", "-n", "20"], 18_640);
}

/// A server on one address, a client on another; both must be content.
fn pingpong(program: &str, arguments: &[&str], port: u16) {
    let arguments = [&["-g", "0"], arguments].concat();
    pingpong_of(&|device| common::stock(program, device), &arguments, port);
}

/// Runs a pingpong of a command that is made for a device. Each pair has addresses of its own.
fn pingpong_of(program: &dyn Fn(&str) -> Command, arguments: &[&str], port: u16) {
    let port_text = port.to_string();
    let side = |device: &str| {
        let mut command = program(device);
        command.args(["-p", &port_text]).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let [near, far] = [1, 2].map(|host| format!("udp:127.10.{}.{host}", port - 18_500));
    let mut server = side(&near).spawn().unwrap();
    wait_for_listener(&mut server, port);
    let client = common::said(side(&far).arg("127.0.0.1"), PACKAGE);
    let output = server.wait_with_output().unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    for said in [client.as_str(), &out] {
        assert!(said.contains("iters in") || said.contains("success"), "{arguments:?}: {said}");
    }
}

/// Waits until a program listens at a port, or the server has ended.
fn wait_for_listener(server: &mut Child, port: u16) {
    // A connection would be taken for the client's: the system is asked instead.
    let listening = || {
        let wanted = format!(":{port:04X} ");
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
            let table = std::fs::read_to_string(file).unwrap_or_default();
            table.lines().any(|line| line.contains(&wanted) && line.contains(" 0A "))
        })
    };
    while !listening() {
        if let Some(status) = server.try_wait().unwrap() {
            panic!("the server ended before it listened: {status}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Programs that exit with their devices open leave closed captures; a full disk is told on
/// standard error.
#[test]
fn captures_are_closed_at_exit_and_told_when_they_are_cut() {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = directory.join(format!("exit-{}.pcapng", std::process::id()));
    let run = |port: &str, limit: &str| {
        let _ = std::fs::remove_file(&file);
        let script = format!("trap '' XFSZ; {limit}; exec ibv_rc_pingpong -g 0 -n 200 -p {port}");
        let mut server = common::stock("sh", "udp:127.9.0.70");
        server.args(["-c", &script]).env("ROCE_PCAP", &file);
        let server = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let client = || {
            let mut client = common::stock("ibv_rc_pingpong", "udp:127.9.0.71");
            client.args(["-g", "0", "-n", "200", "-p", port, "127.0.0.1"]).output().unwrap()
        };
        for _ in 0..600 {
            if client().status.success() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let output = server.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let is_whole = || {
        let mut reader = roce::capture::open(&file).unwrap();
        loop {
            match reader.next() {
                Ok(Some(_)) => {}
                Ok(None) => return !reader.is_unclosed(),
                Err(_) => return false,
            }
        }
    };
    assert_eq!(run("18640", "true"), "");
    assert!(is_whole(), "a program that exits closes its captures");
    let said = run("18641", "ulimit -f 16");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("exit-") && said.contains("File too large"), "{said}");
    assert!(!is_whole());
    std::fs::remove_file(&file).unwrap();
}
