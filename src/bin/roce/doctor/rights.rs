//! Rights of this process: namespaces, capabilities, limits, security modules.

use std::fs;

use roce::link;
use rustix::process::{Resource, getrlimit};

use super::Finding;
use crate::run;

/// Returns a field of `/proc/self/status`.
pub(super) fn status_field(name: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

/// Returns the number in a file of `/proc/sys`.
fn system_value(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Whether `roce run` can give programs a mount namespace with device files.
pub(super) fn namespaces() -> Finding {
    const CHECK: &str = "namespaces";
    let Some(why) = run::namespace_refusal() else {
        return Finding::ok(CHECK, "programs see the files of devices in a mount namespace");
    };
    let cure = if system_value("/proc/sys/user/max_user_namespaces") == Some(0) {
        "sysctl -w user.max_user_namespaces=15000"
    } else if system_value("/proc/sys/kernel/unprivileged_userns_clone") == Some(0) {
        "sysctl -w kernel.unprivileged_userns_clone=1"
    } else if system_value("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1) {
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    } else {
        "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined, or nothing: programs run \
         without a namespace, too"
    };
    let text = format!(
        "no user and mount namespace ({why}); a preloaded library shows programs the files of devices instead, which \
         statically linked helpers do not see"
    );
    Finding::warning(CHECK, text, cure)
}

/// Whether raw links can be opened: they need CAP_NET_RAW.
pub(super) fn capabilities() -> Finding {
    const CHECK: &str = "capabilities";
    const NET_RAW: u64 = 1 << 13;
    let effective = status_field("CapEff").and_then(|text| u64::from_str_radix(&text, 16).ok());
    match effective {
        Some(set) if set & NET_RAW != 0 => {
            Finding::ok(CHECK, "CAP_NET_RAW: raw:INTERFACE can be used")
        }
        Some(_) => Finding::note(CHECK, "no CAP_NET_RAW, which only raw:INTERFACE needs"),
        None => Finding::note(CHECK, "unknown: /proc/self/status cannot be read"),
    }
}

/// Whether links by AF_XDP can be opened: a socket, a map and the program are tried.
pub(super) fn xdp() -> Finding {
    const CHECK: &str = "AF_XDP";
    match link::xdp::check() {
        Ok(()) => Finding::ok(CHECK, "xdp:INTERFACE can be used"),
        Err(error) => Finding::note(CHECK, error.to_string()),
    }
}

/// Reports the limit of locked memory, which RNICs need and soft NICs do not.
pub(super) fn memlock() -> Finding {
    let limit = match getrlimit(Resource::Memlock).current {
        None => "unlimited".to_owned(),
        Some(bytes) => format!("{} KiB", bytes / 1024),
    };
    Finding::ok("memlock", format!("{limit}; soft NICs pin no memory, RNICs do"))
}

/// The AppArmor profile that confines this process, if one does.
pub(super) fn apparmor() -> Option<Finding> {
    let current = fs::read_to_string("/proc/self/attr/apparmor/current")
        .or_else(|_| fs::read_to_string("/proc/self/attr/current"))
        .ok()?;
    let current = current.trim_matches(['\0', '\n', ' ']);
    if current.is_empty() || current.starts_with("unconfined") || current == "kernel" {
        return None;
    }
    Some(Finding::note("AppArmor", format!("this process has the profile {current}")))
}
