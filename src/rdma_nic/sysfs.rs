//! Attributes and counters of a device that the kernel shows in sysfs.

use std::fs;
use std::path::Path;

use crate::verbs::{GidType, PortNum};
use crate::wire::Gid;

/// Returns the directory of a port.
fn port_directory(device: &Path, port: PortNum) -> std::path::PathBuf {
    device.join("ports").join(port.to_string())
}

/// Returns the RoCEv2 GIDs among the first `most` of a port, with their indices.
pub(super) fn gids(device: &Path, port: PortNum, most: usize) -> Vec<(usize, Gid)> {
    let directory = port_directory(device, port);
    let read = |index: usize| {
        let index_name = index.to_string();
        let kind = fs::read_to_string(directory.join("gid_attrs/types").join(&index_name)).ok()?;
        if kind.trim() != GidType::RoceV2.text() {
            return None;
        }
        let gid = fs::read_to_string(directory.join("gids").join(&index_name)).ok()?;
        Some((index, parse_gid(gid.trim())?))
    };
    (0..most).filter_map(read).collect()
}

/// Parses a GID as the kernel writes it: eight groups of four hexadecimal digits.
fn parse_gid(text: &str) -> Option<Gid> {
    let address: std::net::Ipv6Addr = text.parse().ok()?;
    Some(Gid(address.octets()))
}

/// Returns all counters of a device and its port by name, each once.
pub(super) fn statistics(device: &Path, port: PortNum) -> Vec<(String, u64)> {
    let port = port_directory(device, port);
    let mut all: Vec<(String, u64)> = Vec::new();
    for directory in [port.join("hw_counters"), port.join("counters"), device.join("hw_counters")] {
        for (name, count) in counters(&directory) {
            if !all.iter().any(|(known, _)| *known == name) {
                all.push((name, count));
            }
        }
    }
    all.sort();
    all
}

/// Returns the counters of a directory.
fn counters(directory: &Path) -> Vec<(String, u64)> {
    // The time for which the kernel caches counters: a setting, not a counter.
    const SETTING: &str = "lifespan";
    let Ok(files) = fs::read_dir(directory) else { return Vec::new() };
    let read = |file: fs::DirEntry| {
        let name = file.file_name().into_string().ok().filter(|name| name != SETTING)?;
        let count = fs::read_to_string(file.path()).ok()?.trim().parse().ok()?;
        Some((name, count))
    };
    files.filter_map(Result::ok).filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of this test's own, which is removed behind it.
    struct Scratch(std::path::PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("roce-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn identifiers_of_roce_v2_keep_their_indices() {
        let device = Scratch::new("gids");
        let entries = [
            ("0", "fe80:0000:0000:0000:0000:00ff:fe00:0001", "IB/RoCE v1"),
            ("1", "fe80:0000:0000:0000:0000:00ff:fe00:0001", "RoCE v2"),
            ("3", "0000:0000:0000:0000:0000:ffff:0a09:0001", "RoCE v2"),
            ("4", "no identifier", "RoCE v2"),
        ];
        for (index, gid, kind) in entries {
            device.write(&format!("ports/1/gids/{index}"), &format!("{gid}\n"));
            device.write(&format!("ports/1/gid_attrs/types/{index}"), &format!("{kind}\n"));
        }
        let found = gids(&device.0, PortNum::FIRST, 16);
        let second = Gid::from(std::net::Ipv4Addr::new(10, 9, 0, 1));
        assert_eq!(found.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(found[1].1, second);
        assert_eq!(gids(&device.0, PortNum::FIRST, 3).len(), 1);
        assert!(gids(&device.0, PortNum(2), 16).is_empty());
    }

    #[test]
    fn counters_of_both_directories_are_read_and_settings_are_not() {
        let device = Scratch::new("counters");
        device.write("ports/1/hw_counters/rcvd_pkts", "17\n");
        device.write("ports/1/hw_counters/lifespan", "10\n");
        device.write("ports/1/counters/port_xmit_data", "18446744073709551615\n");
        device.write("ports/1/counters/link_downed", "N/A (no PMA)\n");
        let expected = [("port_xmit_data".to_owned(), u64::MAX), ("rcvd_pkts".to_owned(), 17)];
        assert_eq!(statistics(&device.0, PortNum::FIRST), expected);
    }
}
