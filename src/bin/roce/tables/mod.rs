//! Tables in Parquet files, for query engines: see docs/parquet.md.

mod column;
mod connections;
mod flows;
mod messages;
mod packets;
mod row;
mod table;

use std::path::{Path, PathBuf};

pub(crate) use self::flows::FlowTables;
pub(crate) use self::packets::{Packets, TIME_EPOCH};
pub(crate) use self::table::{Rows, Table};

/// The file of a table that holds the rows of one capture: `OUT/TABLE/capture=NAME/part-0.parquet`.
///
/// Engines take `capture` for a column (Hive partitioning), and all captures in `OUT/TABLE` for one table.
pub(crate) fn partition(out: &Path, table: &str, capture: &str) -> PathBuf {
    let mut directory = String::from("capture=");
    for byte in capture.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                directory.push(byte.into())
            }
            _ => directory.push_str(&format!("%{byte:02X}")),
        }
    }
    out.join(table).join(directory).join("part-0.parquet")
}

/// The name of a capture in a dataset: that of its file, without directories.
pub(crate) fn capture_name(file: &Path) -> String {
    match file.file_name() {
        Some(name) if name != "-" => name.to_string_lossy().into_owned(),
        _ => "stdin".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_have_names_that_engines_read() {
        let path =
            partition("out".as_ref(), "packets", &capture_name("/a/b c=1/x y=ü.pcap".as_ref()));
        assert_eq!(path, Path::new("out/packets/capture=x%20y%3D%C3%BC.pcap/part-0.parquet"));
        assert_eq!(capture_name("-".as_ref()), "stdin");
        assert_eq!(capture_name("..".as_ref()), "stdin");
    }
}
