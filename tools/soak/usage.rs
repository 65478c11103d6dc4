//! Resource usage of the process, as the kernel reports it.

use std::fs;
use std::time::Duration;

/// Resources that the process holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Memory that is there, in KiB.
    pub(crate) rss_kib: u64,
    /// Open descriptors.
    pub(crate) descriptors: usize,
}

impl Usage {
    pub(crate) fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let rss_kib = rss.trim().trim_end_matches(" kB").parse().unwrap();
        // One of them is that of the directory.
        let descriptors = fs::read_dir("/proc/self/fd").unwrap().count() - 1;
        Self { rss_kib, descriptors }
    }
}

/// The processor time that all threads took.
pub(crate) fn processor_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // Behind the name, which may have blanks, come a letter and numbers; the 12th and 13th of all
    // are meant.
    let behind = stat.rsplit_once(')').unwrap().1;
    let ticks = |at: usize| behind.split_whitespace().nth(at).unwrap().parse::<u64>().unwrap();
    // A tick is a hundredth of a second wherever Linux runs.
    Duration::from_millis(10 * (ticks(11) + ticks(12)))
}
