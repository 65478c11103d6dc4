//! The tables that `roce flows` writes: messages, connections and findings.

use anyhow::Result;
use roce::analysis::{Message, Report};

use super::messages::Spool;
use super::partition::Partition;
use super::row::{columns, position};
use super::table::Table;
use super::{connections, findings, messages};

/// The tables of one run of `roce flows`, while the captures are read.
pub(crate) struct FlowTables {
    spool: Spool,
    messages: Table,
    connections: Table,
    findings: Table,
}

impl FlowTables {
    /// Creates the files of all tables in the partition of the capture.
    pub(crate) fn create(partition: &Partition, threads: usize) -> Result<Self> {
        let definitions = messages::definitions();
        let sorted_by = position(&definitions, "start_time_epoch");
        let messages =
            Table::create(partition, "messages", columns(&definitions), sorted_by, threads)?;
        let spool = Spool::create(messages.folder())?;
        let sorted_by = position(&connections::COLUMNS, "first_time_epoch");
        let connections =
            Table::create(partition, "connections", connections::columns(), sorted_by, threads)?;
        let definitions = findings::definitions();
        let sorted_by = position(&definitions, "time_epoch");
        let findings =
            Table::create(partition, "findings", columns(&definitions), sorted_by, threads)?;
        Ok(Self { spool, messages, connections, findings })
    }

    /// Takes a message that ended.
    pub(crate) fn message(&mut self, message: &Message) {
        self.spool.add(message);
    }

    /// Writes all tables.
    pub(crate) fn finish(mut self, report: &Report) -> Result<()> {
        self.spool.finish(report, &mut self.messages)?;
        connections::write(report, &mut self.connections)?;
        findings::write(report, &mut self.findings)?;
        // All or none: a connection of one table is looked for in the others.
        let sealed = [self.messages.seal()?, self.connections.seal()?, self.findings.seal()?];
        sealed.into_iter().try_for_each(|file| file.publish())
    }
}
