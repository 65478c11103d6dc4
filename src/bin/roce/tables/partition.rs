//! The partition of a capture in a dataset, and the guard that no other capture overwrites it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use parquet::file::metadata::ParquetMetaDataReader;
use roce::capture;
use roce::decode::date_text;

use crate::table_names::TableNames;

/// The key under which a file of a table holds the path of its capture.
pub(super) const SOURCE_KEY: &str = "roce.capture";

/// The host or the date of a partition that is not known. A word, because pyarrow reads no dataset
/// in which all partitions of a column are null.
const UNKNOWN: &str = "unknown";

/// The path of a capture that is read from standard input.
const STDIN: &str = "-";

/// Path of the rows of a capture: `OUT/TABLE/host=HOST/date=DATE/capture=NAME/part-0.parquet`.
///
/// Engines take `host`, `date` and `capture` for columns (Hive partitioning), and all captures in
/// `OUT/TABLE` for one table.
#[derive(Clone, Debug)]
pub(crate) struct Partition {
    out: PathBuf,
    host: Option<String>,
    /// The day of the first packet in UTC.
    date: Option<String>,
    capture: String,
    /// The path of the capture.
    source: String,
}

impl Partition {
    /// The partition of a capture below `out`.
    pub(crate) fn new(out: &Path, file: &Path, names: &TableNames) -> Self {
        let capture = names.capture_name.clone().unwrap_or_else(|| capture_name(file));
        let whole = fs::canonicalize(file).ok().filter(|_| file != Path::new(STDIN));
        let source = whole.map_or_else(|| STDIN.into(), |path| path.to_string_lossy().into_owned());
        let (out, host) = (out.to_owned(), names.host.clone());
        Self { out, host, date: first_date(file), capture, source }
    }

    /// The path of the capture, for the metadata of a file.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// The file of a table. An error if it holds another capture.
    pub(crate) fn file(&self, table: &str) -> Result<PathBuf> {
        let path = self.path(table);
        if let Some(other) = source_of(&path)?
            && (other != self.source || self.source == STDIN)
        {
            let name = if other == STDIN { "standard input" } else { other.as_str() };
            bail!(
                "--parquet: {} already holds the capture {name}; tell them apart with --host or --capture-name, or \
                 remove that file",
                path.display()
            );
        }
        Ok(path)
    }

    fn path(&self, table: &str) -> PathBuf {
        let mut path = self.out.join(table);
        let parts = [
            ("host", self.host.as_deref()),
            ("date", self.date.as_deref()),
            ("capture", Some(self.capture.as_str())),
        ];
        for (key, value) in parts {
            path.push(format!("{key}={}", value.map_or_else(|| UNKNOWN.into(), escaped)));
        }
        path.join("part-0.parquet")
    }
}

/// The name of a capture in a dataset: that of its file, without directories.
pub(crate) fn capture_name(file: &Path) -> String {
    match file.file_name() {
        Some(name) if name != STDIN => name.to_string_lossy().into_owned(),
        _ => "stdin".to_owned(),
    }
}

/// A value in the name of a folder.
fn escaped(value: &str) -> String {
    let mut out = String::new();
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// The day of the first packet of a file; nothing for a pipe, which can be read once only.
fn first_date(file: &Path) -> Option<String> {
    if !fs::metadata(file).is_ok_and(|found| found.is_file()) {
        return None;
    }
    let mut reader = capture::open(file).ok()?;
    let time = reader.next().ok()??.time?;
    Some(date_text(time))
}

/// The path of the capture that a file of a table holds; nothing if there is no such file.
fn source_of(path: &Path) -> Result<Option<String>> {
    let Ok(file) = File::open(path) else { return Ok(None) };
    let context = || format!("--parquet: {} is there and is no table", path.display());
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).with_context(context)?;
    let pairs = metadata.file_metadata().key_value_metadata();
    let own = pairs.and_then(|pairs| pairs.iter().find(|pair| pair.key == SOURCE_KEY));
    // A file without it is of an older version.
    Ok(Some(own.and_then(|pair| pair.value.clone()).unwrap_or_else(|| "of an older roce".into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(host: Option<&str>, capture_name: Option<&str>) -> TableNames {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        TableNames { host: owned(host), capture_name: owned(capture_name) }
    }

    #[test]
    fn partitions_have_names_that_engines_read() {
        let place =
            Partition::new("out".as_ref(), "/a/b c=1/x y=ü.pcap".as_ref(), &names(None, None));
        let path = place.path("packets");
        let unknown = format!("out/packets/host={UNKNOWN}/date={UNKNOWN}");
        assert_eq!(path, Path::new(&unknown).join("capture=x%20y%3D%C3%BC.pcap/part-0.parquet"));
        let place = Partition::new("out".as_ref(), "-".as_ref(), &names(Some("h/1"), Some("a")));
        let path = place.path("packets").to_string_lossy().into_owned();
        assert!(path.contains("host=h%2F1/") && path.contains("capture=a/"), "{path}");
        assert_eq!(capture_name("-".as_ref()), "stdin");
        assert_eq!(capture_name("..".as_ref()), "stdin");
    }
}
