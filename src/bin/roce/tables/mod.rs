//! Tables in Parquet files, for query engines: see docs/parquet.md.

mod column;
mod connections;
mod findings;
mod flows;
mod messages;
mod packets;
mod partition;
mod row;
mod table;

pub(crate) use self::flows::FlowTables;
pub(crate) use self::packets::{Packets, TIME_EPOCH};
pub(crate) use self::partition::{Partition, capture_name};
pub(crate) use self::table::{Rows, Table};
