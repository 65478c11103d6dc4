//! Limit of the memory that the objects of a NIC use.

use std::fs;
use std::path::Path;

/// Assumed size of a memory whose size cannot be read.
const DEFAULT: u64 = 4 << 30;

/// Maximum number of bytes for the queues of a NIC: half of the memory of the machine, or of the
/// control group. A program that creates queue pairs until it gets an error gets one before memory
/// runs out.
pub(super) fn for_objects() -> u64 {
    let machine = read("/proc/meminfo").as_deref().and_then(total).unwrap_or(DEFAULT);
    let group = read("/proc/self/cgroup").as_deref().and_then(limit_of_group);
    group.map_or(machine, |group| group.min(machine)) / 2
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Parses the memory of the machine from `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// Returns the lowest limit of the control groups that `/proc/self/cgroup` lists.
fn limit_of_group(groups: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(locate_group).flat_map(|(root, file, path)| {
        let path = Path::new(path.trim_start_matches('/'));
        path.ancestors().filter_map(move |group| read(Path::new(root).join(group).join(file)))
    });
    limits.filter_map(|limit| limit.trim().parse().ok()).min()
}

/// Parses a line of `/proc/self/cgroup`: the root of the hierarchy, the name of the file that holds
/// the limit, and the path of the group.
fn locate_group(line: &str) -> Option<(&'static str, &'static str, &str)> {
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
        assert_eq!(locate_group("0::/user.slice/a"), unified);
        let first = Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "/docker/b"));
        assert_eq!(locate_group("9:memory,hugetlb:/docker/b"), first);
        assert_eq!(locate_group("4:cpu,cpuacct:/docker/b"), None);
        assert_eq!(locate_group("nonsense"), None);
    }

    #[test]
    fn budget_is_not_zero() {
        assert!(for_objects() > 0);
    }
}
