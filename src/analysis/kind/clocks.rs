//! Clocks of files that are too far apart for packets to be matched.

use core::cmp::Ordering;

use serde::Serialize;

use super::super::limits::VANTAGE_FILES_MAX;
use super::super::text::units::duration;
use super::super::{FileFacts, PacketFacts};
use crate::decode::Printable;

/// Sampling ratio: one of so many packets is remembered, chosen by its digest, so that all files
/// remember the same ones.
const ONE_IN: u32 = 16;

/// Packets of a file that are remembered.
const SAMPLES_MAX: usize = 4096;

/// Fewest packets in two files that show that both captured the same.
const COMMON_MIN: usize = 4;

/// Two files that captured the same packets, and clocks too far apart to match them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ClocksApart {
    /// Names of the files.
    pub files: [String; 2],
    /// Time by which the clock of the second is ahead of that of the first, in nanoseconds.
    pub nanos: i64,
}

impl ClocksApart {
    pub(super) fn sentence(&self) -> String {
        let [one, other] = &self.files;
        format!(
            "{} and {} hold the same packets, with clocks {} apart: they cannot be matched, and \
             nothing is concluded from them together. Analyze each alone.",
            Printable(one),
            Printable(other),
            duration(self.nanos.unsigned_abs()),
        )
    }
}

/// Some packets of each file.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    files: Vec<Vec<(u32, u64)>>,
}

impl Samples {
    /// Remembers a packet, if it is one of the chosen.
    #[inline]
    pub(super) fn add(&mut self, packet: &PacketFacts) {
        if packet.digest.is_multiple_of(ONE_IN) {
            self.remember(packet);
        }
    }

    fn remember(&mut self, packet: &PacketFacts) {
        let file = usize::from(packet.file);
        if file >= VANTAGE_FILES_MAX {
            return;
        }
        if self.files.len() <= file {
            self.files.resize(file + 1, Vec::new());
        }
        if let Some(samples) = self.files.get_mut(file).filter(|all| all.len() < SAMPLES_MAX) {
            samples.push((packet.digest, packet.time.as_nanos()));
        }
    }

    /// Returns the files that captured the same packets, of which few were matched.
    pub(super) fn clocks_apart(mut self, files: &[FileFacts]) -> Vec<ClocksApart> {
        let mut apart = Vec::new();
        if files.len() < 2 {
            return apart;
        }
        for samples in &mut self.files {
            samples.sort_unstable();
            samples.dedup_by_key(|sample| sample.0);
        }
        let is_matched = |file: &FileFacts| file.seen_elsewhere * 10 >= file.frames;
        for (at, (two, second)) in self.files.iter().zip(files).enumerate().skip(1) {
            for (one, first) in self.files.iter().zip(files).take(at) {
                if is_matched(first) && is_matched(second) {
                    continue;
                }
                if let Some(nanos) = offset(one, two) {
                    let files = [first.name.clone(), second.name.clone()];
                    apart.push(ClocksApart { files, nanos });
                }
            }
        }
        apart
    }
}

/// Median difference of the times of packets that both files have, if they have most in common.
fn offset(one: &[(u32, u64)], two: &[(u32, u64)]) -> Option<i64> {
    let mut differences: Vec<i64> = Vec::new();
    let (mut left, mut right) = (one.iter().peekable(), two.iter().peekable());
    while let (Some((a, before)), Some((b, after))) = (left.peek(), right.peek()) {
        match a.cmp(b) {
            Ordering::Less => drop(left.next()),
            Ordering::Greater => drop(right.next()),
            Ordering::Equal => {
                differences.push(after.wrapping_sub(*before).cast_signed());
                left.next();
                right.next();
            }
        }
    }
    differences.sort_unstable();
    let is_most = 2 * differences.len() >= one.len().min(two.len());
    let median = differences.get(differences.len() / 2).copied()?;
    (is_most && differences.len() >= COMMON_MIN).then_some(median)
}
