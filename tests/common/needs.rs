//! Requirements that some machines deny: tests that have them are skipped there, and every test
//! program says so at its end.
//!
//! The standard harness knows passed, failed and ignored, and decides what is ignored when a test
//! is compiled. A test that finds out at run time that it cannot run therefore returns, and is
//! listed as `ok`. So that it is not taken for a test that passed, this module counts it, and the
//! last line of the test program names it and what it needs. The line goes to standard error
//! itself, past the harness, which shows nothing of tests that pass.
//!
//! With `ROCE_TEST_REQUIRE=all`, as CI sets it, nothing is skipped: what is missing is a failure.
#![allow(unsafe_code, reason = "a function that the C library calls at exit")]

use std::io::Write as _;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{env, io};

use super::process::Command;

/// Whether user and network namespaces can be had, with their network configured by `ip`; else the
/// reason.
///
/// Docker's default profile denies to create user namespaces. Ubuntu 24.04 lets a process create
/// one, and denies what it would do there. So the probe does what tests do.
pub fn user_namespaces() -> Result<(), &'static str> {
    static PROBED: OnceLock<Result<(), String>> = OnceLock::new();
    let probed = PROBED.get_or_init(|| {
        let mut probe = Command::new("unshare");
        probe.args(["--user", "--map-root-user", "--net", "--", "ip", "link", "set", "lo", "up"]);
        let output = probe.output().map_err(|error| {
            format!("`unshare` cannot be run ({error}); Debian has it in util-linux")
        })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or_default();
        Err(match output.status.code() {
            Some(127) => format!("`ip` cannot be run ({said}); Debian has it in iproute2"),
            _ => format!(
                "user namespaces are denied here ({said}). To allow them: Ubuntu, sysctl \
                 kernel.apparmor_restrict_unprivileged_userns=0; Docker, --security-opt seccomp=unconfined \
                 --security-opt apparmor=unconfined; else sysctl user.max_user_namespaces"
            ),
        })
    });
    probed.as_ref().copied().map_err(String::as_str)
}

/// Whether a test that needs user namespaces can run. If not, it is skipped, and the test program
/// says so at its end.
#[must_use = "a test that cannot run returns"]
pub fn can_have_namespaces(test: &str) -> bool {
    match user_namespaces() {
        Ok(()) => true,
        Err(why) => {
            skip(test, why);
            false
        }
    }
}

/// Whether a test that needs a TAP device can run. If not, it is skipped, and the test program says
/// so at its end.
#[allow(dead_code, reason = "few tests have one")]
#[must_use = "a test that cannot run returns"]
pub fn can_have_tap(test: &str) -> bool {
    let tun = std::fs::File::options().read(true).write(true).open("/dev/net/tun");
    if tun.is_err() {
        skip(
            test,
            "/dev/net/tun cannot be opened: `modprobe tun`, or Docker's --device /dev/net/tun",
        );
    }
    tun.is_ok()
}

/// Tests that were skipped, and the reason for all of them.
static SKIPPED: Mutex<Option<(&str, Vec<String>)>> = Mutex::new(None);

/// Notes that a test was skipped, unless nothing may be.
#[track_caller]
pub fn skip(test: &str, why: &'static str) {
    let required = env::var_os("ROCE_TEST_REQUIRE").is_some_and(|what| what == "all");
    assert!(!required, "ROCE_TEST_REQUIRE=all: {test} needs what is missing: {why}");
    let mut skipped = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    if skipped.is_none() {
        // SAFETY: a function of this program, which stays until its end.
        unsafe { libc::atexit(report) };
    }
    skipped.get_or_insert((why, Vec::new())).1.push(test.to_owned());
}

/// Says what was skipped. The harness has written its result by now.
extern "C" fn report() {
    let skipped = SKIPPED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((why, tests)) = &*skipped {
        let line = format!(
            "SKIPPED {} of these tests, which are listed as ok but did not run: {why}\nSKIPPED: {}\n\n",
            tests.len(),
            tests.join(", ")
        );
        // There is nowhere else to say it.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}
