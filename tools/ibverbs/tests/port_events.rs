//! Events of a port whose interface changes: rdma-core's `ibv_asyncwatch` on a veth of the test's
//! own.
#![allow(clippy::unwrap_used, reason = "what must not happen in a test fails it")]

mod common;
#[path = "../../../tests/common/needs.rs"]
#[allow(unreachable_pub, reason = "shared by several tests")]
mod needs;

use common::process::{self, Command};

/// Changes an interface step by step, and waits after each until the program has printed what
/// happened.
const SCRIPT: &str = r#"
set -eu
ip link set lo up
ip link add left type veth peer name right
ip link set left addrgenmode none
ip address add 10.9.0.1/24 dev left
ip link set left up
ip link set right up

printed() { # NUMBER WHAT: waits for an event of this number
    for _ in $(seq 3000); do
        if grep -q "$1" watched; then return; fi
        sleep 0.01
    done
    echo "no $2:" && cat watched && exit 1
}

LD_LIBRARY_PATH=$LIBRARY stdbuf -oL ibv_asyncwatch -d roce0 > watched &
watcher=$!
printed 'async event FD' 'start of the program'
ip link set right down
printed '(10)' 'PORT_ERR'
ip link set right up
printed '(9)' 'PORT_ACTIVE'
ip address add 10.9.0.2/24 dev left
printed '(18)' 'GID_CHANGE'
kill "$watcher"
grep -c event_type watched
"#;

#[test]
fn async_watchers_hear_of_links_and_addresses() {
    if !needs::can_have_namespaces("async_watchers_hear_of_links_and_addresses") {
        return;
    }
    for devices in ["raw:left", "soft:left", "udp:10.9.0.1"] {
        watch(devices);
    }
}

fn watch(devices: &str) {
    let directory = tempdir();
    let mut unshare = Command::new("unshare");
    unshare.args(["--user", "--map-root-user", "--net", "--", "sh", "-c", SCRIPT]);
    unshare.current_dir(&directory);
    unshare.env("LIBRARY", common::library()).env("ROCE_DEVICES", devices);
    let said = common::said(&mut unshare, "util-linux, iproute2, coreutils and ibverbs-utils");
    assert_eq!(said.trim(), "3", "three changes, three events on {devices}");
    std::fs::remove_dir_all(directory).unwrap();
}

fn tempdir() -> std::path::PathBuf {
    let name = format!("port-events-{}", std::process::id());
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&path).unwrap();
    path
}
