//! One table in one file: rows go in, row groups come out.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use bytes::Bytes;
use parquet::basic::{Compression, ZstdLevel};
use parquet::column::writer::{ColumnCloseResult, get_column_writer};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::{WriterProperties, WriterPropertiesPtr};
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{ColumnDescPtr, Type};

use super::column::Column;
use super::partition::{Partition, SOURCE_KEY};
use crate::outfile::{SealedFile, WholeFile};

/// Rows of a row group: enough that pages compress well and engines have work for many cores, few
/// enough that a row group of all columns stays in some tens of megabytes while it is made.
const ROW_GROUP: usize = 128 * 1024;

/// Rows of a table in memory.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) columns: Vec<Column>,
    len: usize,
}

impl Rows {
    /// Columns without rows.
    pub(crate) fn new(columns: Vec<Column>) -> Self {
        Self { columns, len: 0 }
    }

    /// Adds a row, and returns its number for [`Column::set_int`] and the like.
    pub(crate) fn add(&mut self) -> usize {
        self.len += 1;
        self.len - 1
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn clear(&mut self) {
        self.columns.iter_mut().for_each(Column::clear);
        self.len = 0;
    }

    fn append(&mut self, other: &mut Self) {
        for (column, more) in self.columns.iter_mut().zip(&mut other.columns) {
            more.fill(other.len);
            column.append(more);
        }
        self.len += other.len;
    }

    /// Sorts the rows by the numbers in a column. Rows with equal numbers keep their order, rows
    /// without one come last.
    fn sort_by(&mut self, column: usize) {
        let keys = self.columns.get(column).map(Column::keys).unwrap_or_default();
        if keys.is_sorted() {
            return;
        }
        let mut order: Vec<usize> = (0..self.len).collect();
        order.sort_by_key(|&row| keys.get(row));
        self.columns.iter_mut().for_each(|column| column.reorder(&order));
    }
}

/// A table that is written to a file. The file has its name only when it is whole.
pub(crate) struct Table {
    path: PathBuf,
    writer: SerializedFileWriter<WholeFile>,
    properties: WriterPropertiesPtr,
    descriptors: Vec<ColumnDescPtr>,
    group: Rows,
    /// The position of the column by which row groups are sorted.
    sorted_by: usize,
    threads: usize,
}

impl Table {
    /// Creates the file of a table in a partition, and its directory. Row groups are sorted by the
    /// column at position `sorted_by`, and encoded on `threads` threads.
    pub(crate) fn create(
        partition: &Partition,
        table: &str,
        columns: Rows,
        sorted_by: usize,
        threads: usize,
    ) -> Result<Self> {
        let path = partition.file(table)?;
        let context = || format!("cannot write {}", path.display());
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).with_context(context)?;
        }
        let file = WholeFile::create(context(), &path)?;
        let fields = columns.columns.iter().map(|column| column.schema().map(Arc::new));
        let fields = fields.collect::<Result<_, _>>().with_context(context)?;
        let schema = Type::group_type_builder("roce").with_fields(fields).build()?;
        let sorting = SortingColumn {
            column_idx: i32::try_from(sorted_by)?,
            descending: false,
            nulls_first: false,
        };
        let properties = Arc::new(
            WriterProperties::builder()
                .set_created_by(format!("roce {}", env!("CARGO_PKG_VERSION")))
                .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
                .set_sorting_columns(Some(vec![sorting]))
                .set_key_value_metadata(Some(vec![
                    KeyValue::new(SOURCE_KEY.into(), partition.source().to_owned()),
                    KeyValue::new("pandas".into(), pandas_types(&columns)),
                ]))
                .build(),
        );
        let writer = SerializedFileWriter::new(file, Arc::new(schema), properties.clone())?;
        let descriptors = writer.schema_descr().columns().to_vec();
        Ok(Self { path, writer, properties, descriptors, group: columns, sorted_by, threads })
    }

    /// The folder of the file.
    pub(crate) fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Appends rows, and removes them from `rows`.
    pub(crate) fn append(&mut self, rows: &mut Rows) -> Result<()> {
        self.group.append(rows);
        rows.clear();
        if self.group.len >= ROW_GROUP { self.write_group() } else { Ok(()) }
    }

    /// Writes what is left, and gives the file its name.
    pub(crate) fn finish(self) -> Result<()> {
        self.seal()?.publish()
    }

    /// Writes the remaining rows.
    pub(crate) fn seal(mut self) -> Result<SealedFile> {
        if self.group.len > 0 {
            self.write_group()?;
        }
        let context = || format!("cannot write {}", self.path.display());
        self.writer.into_inner().with_context(context)?.seal()
    }

    /// Encodes a row group, its columns on all threads, and writes it.
    fn write_group(&mut self) -> Result<()> {
        let context = || format!("cannot write {}", self.path.display());
        let len = self.group.len;
        self.group.columns.iter_mut().for_each(|column| column.fill(len));
        self.group.sort_by(self.sorted_by);
        let work: Vec<_> = self.descriptors.iter().zip(&mut self.group.columns).collect();
        let encoded = encode(work, &self.properties, self.threads).with_context(context)?;
        let mut group = self.writer.next_row_group().with_context(context)?;
        for (bytes, result) in encoded {
            group.append_column(&Bytes::from(bytes), result).with_context(context)?;
        }
        group.close().with_context(context)?;
        self.group.clear();
        Ok(())
    }
}

/// The types that pandas gives the columns: integers stay integers where a row has none.
fn pandas_types(rows: &Rows) -> String {
    let columns: Vec<_> = rows.columns.iter().map(Column::pandas_type).collect();
    let creator = serde_json::json!({ "library": "roce", "version": env!("CARGO_PKG_VERSION") });
    let types = serde_json::json!({
        "index_columns": [],
        "column_indexes": [],
        "columns": columns,
        "creator": creator,
        "pandas_version": "2.0.0",
    });
    types.to_string()
}

type Encoded = (Vec<u8>, ColumnCloseResult);

/// Encodes columns on several threads.
fn encode(
    mut columns: Vec<(&ColumnDescPtr, &mut Column)>,
    properties: &WriterPropertiesPtr,
    threads: usize,
) -> Result<Vec<Encoded>, ParquetError> {
    let slots: Vec<_> = columns.iter_mut().map(|slot| Mutex::new((slot, None))).collect();
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some(slot) = slots.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            let ((descriptor, column), result) = &mut *slot;
            *result = Some(encode_one(descriptor, column, properties));
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(slots.len()) {
            scope.spawn(worker);
        }
        worker();
    });
    let done =
        slots.into_iter().map(|slot| slot.into_inner().unwrap_or_else(PoisonError::into_inner).1);
    done.flatten().collect()
}

fn encode_one(
    descriptor: &ColumnDescPtr,
    column: &mut Column,
    properties: &WriterPropertiesPtr,
) -> Result<Encoded, ParquetError> {
    let mut bytes = TrackedWrite::new(Vec::new());
    let pages = Box::new(SerializedPageWriter::new(&mut bytes));
    let mut writer = get_column_writer(descriptor.clone(), properties.clone(), pages);
    column.write(&mut writer)?;
    let result = writer.close()?;
    Ok((bytes.into_inner()?, result))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    use super::super::column::Kind;
    use super::*;
    use crate::table_names::TableNames;

    #[test]
    fn file_has_all_rows_in_sorted_groups() {
        let directory = std::env::temp_dir().join(format!("roce-table-{}", std::process::id()));
        let names = TableNames::default();
        let partition = Partition::new(&directory, "no-such.pcap".as_ref(), &names);
        let path = partition.file("t").unwrap();
        let columns = || {
            Rows::new(vec![
                Column::new("time", Kind::Int),
                Column::new("word", Kind::Text),
                Column::new("wide", Kind::Wide),
            ])
        };
        let mut table = Table::create(&partition, "t", columns(), 0, 3).unwrap();
        let mut rows = columns();
        let total = i64::try_from(ROW_GROUP).unwrap() + 1000;
        for number in 0..total {
            let row = rows.add();
            // Neighbors change places.
            rows.columns[0].set_int(row, number ^ 1);
            if number % 3 == 0 {
                rows.columns[1].set_text(row, (number ^ 1).to_string().as_bytes());
            }
            rows.columns[2].set_uint(row, u64::MAX);
            if rows.len() == 500 {
                table.append(&mut rows).unwrap();
            }
        }
        table.append(&mut rows).unwrap();
        assert!(!path.exists(), "a file has its name when it is whole");
        table.finish().unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        assert_eq!(reader.metadata().num_row_groups(), 2);
        for (expected, row) in (0..).zip(reader.get_row_iter(None).unwrap()) {
            let row = row.unwrap();
            let values: Vec<Field> =
                row.get_column_iter().map(|(_, value)| value.clone()).collect();
            assert_eq!(values[0], Field::Long(expected));
            match (expected ^ 1) % 3 {
                0 => assert_eq!(values[1], Field::Str(expected.to_string())),
                _ => assert_eq!(values[1], Field::Null),
            }
            assert_eq!(values[2], Field::ULong(u64::MAX));
        }
        let files = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(files, 1, "nothing unfinished is left");
        fs::remove_dir_all(directory).unwrap();
    }
}
