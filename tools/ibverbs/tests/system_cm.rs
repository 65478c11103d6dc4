//! `roce::connect` on a real RNIC's connection manager: the system's librdmacm, which here finds
//! the device of this library instead of the kernel's.
#![allow(
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    reason = "what must not happen in a test fails it"
)]

#[allow(dead_code, reason = "it compiles programs, too")]
mod common;
#[path = "../../../tests/device/connections.rs"]
mod connections;

/// Runs this program's tests of `connections` once more, on `verbs:` of a soft NIC and librdmacm.
#[test]
fn system_connection_manager_does_what_every_one_does() {
    if std::env::var_os("ROCE_TEST_DEVICE").is_some() {
        return;
    }
    let this = std::env::current_exe().unwrap();
    let mut command = common::stock(this.to_str().unwrap(), "udp:127.9.63.1");
    // A library that is opened by name finds the functions of libc before ours, unless ours are
    // preloaded.
    command.env("LD_PRELOAD", common::library().join("libibverbs.so.1"));
    command.env("ROCE_TEST_DEVICE", "verbs:roce0").args(["connections::", "--test-threads", "1"]);
    let said = common::said(&mut command, "librdmacm1");
    assert!(said.contains("test result: ok. 7 passed"), "{said}");
}
