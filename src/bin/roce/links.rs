//! Frames of link types that cannot be decoded.

use std::collections::BTreeMap;

use anyhow::anyhow;
use roce::capture::{Offset, Record};
use roce::wire::LinkType;

use crate::input::Problems;

/// Frames of link types that cannot be decoded, by file: the first, and how many there are.
#[derive(Default)]
pub(crate) struct UnknownLinks {
    files: BTreeMap<u32, (LinkType, Offset, u64)>,
}

impl UnknownLinks {
    #[inline]
    pub(crate) fn note(&mut self, record: &Record<'_>) {
        // Almost all are Ethernet: the search for a name takes a fiftieth of a decoder's time.
        if record.link != LinkType::ETHERNET && record.link.name().is_none() {
            let first = (record.link, record.offset, 0);
            self.files.entry(record.file).or_insert(first).2 += 1;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.files.clear();
    }

    /// Adds what was noted of later records, and forgets it there.
    pub(crate) fn append(&mut self, later: &mut Self) {
        while let Some((file, (link, offset, frames))) = later.files.pop_first() {
            self.files.entry(file).or_insert((link, offset, 0)).2 += frames;
        }
    }

    /// Says so of each file that has some.
    pub(crate) fn report(&self, problems: &mut Problems) {
        for (&file, (link, offset, frames)) in &self.files {
            let reason =
                anyhow!("{link} cannot be decoded: {frames} frames, the first at {offset}");
            problems.fail(file, &reason);
        }
    }
}
