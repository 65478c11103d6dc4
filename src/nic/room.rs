//! How much memory a NIC may promise to its objects.

use std::fs;
use std::path::Path;

/// What a machine is thought to have that does not tell.
const UNKNOWN: u64 = 4 << 30;

/// Bytes that the queues of a NIC may take: half of what the machine, or the control group, has. A program that makes
/// queue pairs until it is refused is refused before memory is gone.
pub(super) fn for_objects() -> u64 {
    let machine = read("/proc/meminfo").as_deref().and_then(total).unwrap_or(UNKNOWN);
    let group = read("/proc/self/cgroup").as_deref().and_then(limit_of_group);
    group.map_or(machine, |group| group.min(machine)) / 2
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// The memory of a machine, of what `/proc/meminfo` says.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The lowest limit of the control groups that this process is in, of what `/proc/self/cgroup` says.
fn limit_of_group(groups: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(place_of_group).flat_map(|(root, file, path)| {
        let path = Path::new(path.trim_start_matches('/'));
        path.ancestors().filter_map(move |group| read(Path::new(root).join(group).join(file)))
    });
    limits.filter_map(|limit| limit.trim().parse().ok()).min()
}

/// Where a control group that limits memory is: the root of its hierarchy, the file that holds the limit, and its path.
fn place_of_group(line: &str) -> Option<(&'static str, &'static str, &str)> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    match controllers {
        "" => Some(("/sys/fs/cgroup", "memory.max", path)),
        _ if controllers.split(',').any(|name| name == "memory") => {
            Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", path))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_total_is_read_in_kilobytes() {
        assert_eq!(total("MemTotal:       16384 kB\nMemFree:  1 kB\n"), Some(16 << 20));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert_eq!(total("MemTotal: many kB\n"), None);
    }

    #[test]
    fn control_groups_of_both_versions_are_found() {
        let unified = Some(("/sys/fs/cgroup", "memory.max", "/user.slice/a"));
        assert_eq!(place_of_group("0::/user.slice/a"), unified);
        let first = Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "/docker/b"));
        assert_eq!(place_of_group("9:memory,hugetlb:/docker/b"), first);
        assert_eq!(place_of_group("4:cpu,cpuacct:/docker/b"), None);
        assert_eq!(place_of_group("nonsense"), None);
    }

    #[test]
    fn some_memory_may_be_promised() {
        assert!(for_objects() > 0);
    }
}
