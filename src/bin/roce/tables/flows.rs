//! The tables that `roce flows` writes: messages and connections.

use std::path::Path;

use anyhow::Result;
use roce::analysis::{Message, Report};

use super::messages::Spool;
use super::row::{columns, position};
use super::table::Table;
use super::{connections, messages, partition};

/// The tables of one run of `roce flows`, while the captures are read.
pub(crate) struct FlowTables {
    spool: Spool,
    messages: Table,
    connections: Table,
}

impl FlowTables {
    /// Creates the files of both tables below `out`, in the partition of the capture.
    pub(crate) fn create(out: &Path, capture: &str, threads: usize) -> Result<Self> {
        let path = partition(out, "messages", capture);
        let definitions = messages::definitions();
        let sorted_by = position(&definitions, "start_time_epoch");
        let messages = Table::create(&path, columns(&definitions), sorted_by, threads)?;
        let spool = Spool::create(path.with_extension("spool"))?;
        let path = partition(out, "connections", capture);
        let sorted_by = position(&connections::COLUMNS, "first_time_epoch");
        let connections = Table::create(&path, connections::columns(), sorted_by, threads)?;
        Ok(Self { spool, messages, connections })
    }

    /// Takes a message that ended.
    pub(crate) fn message(&mut self, message: &Message) {
        self.spool.add(message);
    }

    /// Writes both tables.
    pub(crate) fn finish(mut self, report: &Report) -> Result<()> {
        self.spool.finish(report, &mut self.messages)?;
        connections::write(report, &mut self.connections)?;
        self.messages.finish()?;
        self.connections.finish()
    }
}
