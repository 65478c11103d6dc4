//! Frames of link types that cannot be decoded.

use anyhow::bail;
use roce::capture::{Offset, Record};
use roce::wire::LinkType;

/// Frames of link types that cannot be decoded.
#[derive(Default)]
pub(super) struct UnknownLinks {
    first: Option<(LinkType, Offset)>,
    frames: u64,
}

impl UnknownLinks {
    pub(super) fn note(&mut self, record: &Record<'_>) {
        if record.link.name().is_none() {
            self.first = self.first.or(Some((record.link, record.offset)));
            self.frames += 1;
        }
    }

    pub(super) fn check(&self) -> anyhow::Result<()> {
        match self.first {
            None => Ok(()),
            Some((link, offset)) => {
                let frames = self.frames;
                bail!("{link} cannot be decoded: {frames} frames, the first at {offset}")
            }
        }
    }
}
