//! `NETLINK_RDMA`, as iproute2's `rdma` and other programs ask for devices by it.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

use common::process::Command;

mod common;

const DEVICES: &str = "udp:127.9.66.1 mlx5_0=udp:127.9.66.2";

/// Returns the output of iproute2's `rdma` with the library preloaded, as `roce run` does.
fn rdma(words: &[&str]) -> String {
    let mut command = Command::new("rdma");
    command.args(words).env("LD_PRELOAD", common::library().join("libibverbs.so.1"));
    common::said(command.env("ROCE_DEVICES", DEVICES), "iproute2")
}

#[test]
fn rdma_lists_devices_links_and_counters() {
    let devices = rdma(&["dev"]);
    let names: Vec<_> = devices.lines().filter_map(|line| line.split(": ").nth(1)).collect();
    assert_eq!(names, ["roce0", "mlx5_0"], "{devices}");
    assert!(devices.contains("node_type ca fw 0."), "{devices}");
    let links = rdma(&["link"]);
    for name in ["roce0", "mlx5_0"] {
        let line = format!("link {name}/1 state ACTIVE physical_state LINK_UP netdev lo");
        assert!(links.lines().any(|other| other.trim() == line), "{line}: {links}");
    }
    let one = rdma(&["link", "show", "mlx5_0/1"]);
    assert!(one.contains("mlx5_0/1") && !one.contains("roce0"), "{one}");
    assert!(rdma(&["statistic", "show", "link", "roce0/1"]).contains("link roce0/1"));
}

#[test]
fn requests_of_a_program_are_answered_and_others_cannot_answer_them() {
    let program = common::compiled("nldev.c");
    let mut command = common::stock(program.to_str().unwrap(), DEVICES);
    assert_eq!(common::said(&mut command, "gcc"), "fine\n");
}
