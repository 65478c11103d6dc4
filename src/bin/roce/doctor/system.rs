//! Checks of the kernel, and of the environment: container or WSL.

use std::fs;
use std::path::Path;

use super::Finding;

/// First kernel version with everything that links use: `UDP_SEGMENT` came with 4.18, `UDP_GRO`
/// with 5.0.
const KERNEL: (u32, u32) = (5, 0);

fn release() -> String {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

/// Returns the first two numbers of a release such as `6.12.0-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

pub(super) fn kernel() -> Finding {
    const CHECK: &str = "kernel";
    let release = release();
    match version(&release) {
        Some(version) if version >= KERNEL => Finding::ok(
            CHECK,
            format!("Linux {release}; UDP has segmentation and receive offload (GSO, GRO)"),
        ),
        Some(_) => Finding::warning(
            CHECK,
            format!(
                "Linux {release} is older than 5.0: without UDP_SEGMENT and UDP_GRO, links are slow or fail"
            ),
            "run a kernel of 5.0 or later",
        ),
        None => Finding::warning(
            CHECK,
            "the kernel's version is unknown: /proc/sys/kernel/osrelease cannot be read",
            "mount -t proc proc /proc",
        ),
    }
}

/// Whether this is a container or WSL.
pub(super) fn surroundings() -> Finding {
    const CHECK: &str = "environment";
    let exists = |path: &str| Path::new(path).exists();
    let variable = std::env::var("container").unwrap_or_default();
    let groups = fs::read_to_string("/proc/1/cgroup").unwrap_or_default();
    let name = if exists("/.dockerenv") {
        "in a Docker container"
    } else if exists("/run/.containerenv") || variable == "podman" {
        "in a Podman container"
    } else if exists("/var/run/secrets/kubernetes.io") || groups.contains("kubepods") {
        "in a Kubernetes pod"
    } else if !variable.is_empty() || groups.contains("docker") || groups.contains("lxc") {
        "in a container"
    } else if release().to_lowercase().contains("microsoft") {
        "in WSL: the network is that of a virtual machine"
    } else {
        return Finding::ok(CHECK, "no container, no WSL");
    };
    Finding::note(CHECK, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_first_two_numbers() {
        assert_eq!(version("6.12.0-amd64"), Some((6, 12)));
        assert_eq!(version("4.19.0"), Some((4, 19)));
        assert!(version("4.19.0") < Some(KERNEL) && version("5.0-rc1") >= Some(KERNEL));
        assert_eq!((version(""), version("linux")), (None, None));
    }
}
