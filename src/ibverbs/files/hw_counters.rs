//! Counters of a device's port: files in `counters` and `hw_counters`, under the names that mlx5
//! has.
//!
//! A file has the sum of all programs that have the device. Each adds what it counted when it
//! closes the device.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};

use super::{Node, below};
use crate::engine::{Counter, Counters};

/// Files, below the directory of a port, and the counters whose sum each of them has.
const FILES: [(&str, &[Counter]); 14] = [
    ("counters/port_rcv_packets", &[Counter::Received]),
    ("counters/port_xmit_packets", &[Counter::Sent]),
    ("hw_counters/duplicate_request", &[Counter::Duplicate]),
    ("hw_counters/implied_nak_seq_err", &[Counter::ImpliedNak]),
    ("hw_counters/local_ack_timeout_err", &[Counter::Timeout]),
    ("hw_counters/np_cnp_sent", &[Counter::CnpSent]),
    ("hw_counters/np_ecn_marked_roce_packets", &[Counter::CongestionMarked]),
    ("hw_counters/out_of_buffer", &[Counter::RnrSent, Counter::NoReceive]),
    ("hw_counters/out_of_sequence", &[Counter::OutOfSequence]),
    ("hw_counters/packet_seq_err", &[Counter::SequenceReceived]),
    ("hw_counters/rnr_nak_retry_err", &[Counter::RnrReceived]),
    ("hw_counters/rp_cnp_handled", &[Counter::CnpReceived]),
    ("hw_counters/rp_cnp_ignored", &[Counter::CnpIgnored]),
    ("hw_counters/rx_write_requests", &[Counter::WriteReceived]),
];

/// Values of the files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HwCounters([u64; FILES.len()]);

impl From<&Counters> for HwCounters {
    fn from(counters: &Counters) -> Self {
        Self(FILES.map(|(_, summed)| summed.iter().map(|counter| counters.get(*counter)).sum()))
    }
}

impl HwCounters {
    /// Returns the value of a file, by its path below the directory of a port.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find(|(known, _)| *known == name).map(|(_, count)| count)
    }

    fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        FILES.iter().map(|(name, _)| *name).zip(self.0)
    }

    /// Returns what was counted since an earlier time.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut grown = *self;
        grown.0.iter_mut().zip(earlier.0).for_each(|(now, then)| *now = now.saturating_sub(then));
        grown
    }

    /// Adds these to the files of a device, below a root.
    pub fn add_to_files(&self, root: &Path, device: &str) -> io::Result<()> {
        let directory = port(root, device);
        // Other programs add at the same time.
        let lock = open(&directory, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        flock(&lock, FlockOperation::LockExclusive)?;
        for (name, count) in self.iter().filter(|(_, count)| *count > 0) {
            let path = directory.join(name);
            let sum = read(&path)?.saturating_add(count);
            Node::Text(sum.to_string()).write(&path)?;
        }
        Ok(())
    }
}

/// Returns the paths of the files below the directory of a port.
pub(super) fn paths() -> impl Iterator<Item = String> {
    FILES.iter().map(|(path, _)| (*path).to_owned())
}

/// Returns the directory of a device's port.
fn port(root: &Path, device: &str) -> PathBuf {
    below(root, &format!("/sys/devices/roce/{device}/infiniband/{device}/ports/1"))
}

fn read(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no number"))
}

/// Returns the number in a file of a device, below a root: the sum of the programs that have added
/// theirs.
pub fn read_file(root: &Path, device: &str, name: &str) -> Option<u64> {
    read(&port(root, device).join(name)).ok()
}

#[cfg(test)]
mod tests {
    use super::super::{DeviceFiles, Tree};
    use super::*;
    use crate::link::GidTable;
    use crate::verbs::{Guid, PortState};

    #[test]
    fn programs_add_and_a_new_one_keeps_the_sum() {
        let root = std::env::temp_dir().join(format!("roce-hw-counters-{}", std::process::id()));
        let device = DeviceFiles {
            name: "roce0".to_owned(),
            number: 0,
            description: String::new(),
            interface: None,
            state: PortState::Active,
            gids: GidTable::new(&[]),
            guid: Guid([0; 8]),
        };
        let tree = Tree::new(&[device]);
        tree.write(&root).unwrap();
        assert_eq!(read_file(&root, "roce0", "hw_counters/np_cnp_sent"), Some(0));
        let mut counters = HwCounters::default();
        counters.0[5] = 5;
        assert_eq!(counters.get("hw_counters/np_cnp_sent"), Some(5));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..10).for_each(|_| counters.add_to_files(&root, "roce0").unwrap());
                });
            }
        });
        tree.write(&root).unwrap();
        assert_eq!(read_file(&root, "roce0", "hw_counters/np_cnp_sent"), Some(200));
        assert_eq!(read_file(&root, "roce0", "hw_counters/rp_cnp_handled"), Some(0));
        fs::remove_dir_all(&root).unwrap();
    }
}
