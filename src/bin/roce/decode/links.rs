//! Frames of link types that cannot be decoded.

use std::collections::BTreeMap;

use anyhow::anyhow;
use roce::capture::{Offset, Record};
use roce::wire::LinkType;

use crate::input::Inputs;

/// Frames of link types that cannot be decoded, by file: the first, and how many there are.
#[derive(Default)]
pub(super) struct UnknownLinks {
    files: BTreeMap<u32, (LinkType, Offset, u64)>,
}

impl UnknownLinks {
    #[inline]
    pub(super) fn note(&mut self, record: &Record<'_>) {
        if record.link.name().is_none() {
            let first = (record.link, record.offset, 0);
            self.files.entry(record.file).or_insert(first).2 += 1;
        }
    }

    /// Says so of each file that has some.
    pub(super) fn report(&self, inputs: &mut Inputs) {
        for (&file, (link, offset, frames)) in &self.files {
            let reason =
                anyhow!("{link} cannot be decoded: {frames} frames, the first at {offset}");
            inputs.fail(file, &reason);
        }
    }
}
