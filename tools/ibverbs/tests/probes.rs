//! Probes from an RNIC, which here is a soft NIC behind this library: its extended completion
//! queues tell times.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "what must not happen in a test fails it"
)]

#[allow(dead_code, reason = "it compiles programs, too")]
mod common;
#[path = "../../../tests/device/probes.rs"]
mod probes;
#[path = "../../../tests/device/stage.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod stage;

/// Runs this program's test of probes once more, on `verbs:` of a soft NIC.
#[test]
fn completions_of_an_rnic_are_timed_by_it() {
    if std::env::var_os("ROCE_TEST_DEVICE").is_some() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let mut command = common::stock(this.to_str().unwrap(), "udp:127.9.64.1");
    command.env("ROCE_TEST_DEVICE", "verbs:roce0").env("ROCE_TEST_TIMES", "1");
    command.args(["probes::", "--test-threads", "1"]);
    let said = common::said(&mut command, "libibverbs1");
    assert!(said.contains("test result: ok. 1 passed"), "{said}");
}
