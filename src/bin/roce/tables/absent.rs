//! Replacement for tables in a command that was built without Parquet.

use std::path::Path;

use anyhow::{Result, bail};
use roce::analysis::{Message, Report};

use crate::output::NO_PARQUET;
use crate::table_names::TableNames;

/// The tables of `roce flows`, which cannot be made.
pub(crate) enum FlowTables {}

impl FlowTables {
    /// Says how to get a command that can.
    pub(crate) fn create(_: &Partition, _: usize) -> Result<Self> {
        bail!(NO_PARQUET)
    }

    pub(crate) fn message(&mut self, _: &Message) {
        match *self {}
    }

    pub(crate) fn finish(self, _: &Report) -> Result<()> {
        match self {}
    }
}

/// The partition of a capture in a dataset.
pub(crate) struct Partition;

impl Partition {
    pub(crate) fn new(_: &Path, _: &Path, _: &TableNames) -> Self {
        Self
    }
}
