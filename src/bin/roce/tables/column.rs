//! Columns of a table while they are filled.

use bytes::Bytes;
use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::Result;
use parquet::schema::types::Type;

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A number of at most 63 bits.
    Int,
    /// A number of 64 bits without a sign.
    Wide,
    /// A number with a fraction.
    Float,
    /// Yes or no.
    Bool,
    /// A point in time, as nanoseconds since 1970 in UTC.
    Time,
    /// Words.
    Text,
    /// Bytes.
    Bytes,
}

/// The values of a column. Each row has one or none.
#[derive(Debug)]
pub(crate) struct Column {
    name: String,
    kind: Kind,
    /// Definition levels: for each row, 1 if it has a value and 0 if it is null.
    defined: Vec<i16>,
    values: Values,
}

/// The values of the rows that have one.
#[derive(Debug)]
enum Values {
    Int(Vec<i64>),
    Float(Vec<f64>),
    Bool(Vec<bool>),
    /// All texts behind each other, and where each ends.
    Text(Vec<u8>, Vec<usize>),
}

impl Column {
    /// An empty column.
    pub(crate) fn new(name: impl Into<String>, kind: Kind) -> Self {
        let values = match kind {
            Kind::Int | Kind::Wide | Kind::Time => Values::Int(Vec::new()),
            Kind::Float => Values::Float(Vec::new()),
            Kind::Bool => Values::Bool(Vec::new()),
            Kind::Text | Kind::Bytes => Values::Text(Vec::new(), Vec::new()),
        };
        Self { name: name.into(), kind, defined: Vec::new(), values }
    }

    /// Gives row `row` a value, unless it has one; the rows before it that have none are null.
    pub(crate) fn set_int(&mut self, row: usize, value: i64) {
        if let Values::Int(values) = &mut self.values
            && define(&mut self.defined, row)
        {
            values.push(value);
        }
    }

    /// Gives row `row` a number without a sign.
    pub(crate) fn set_uint(&mut self, row: usize, value: u64) {
        // A number beyond 63 bits is in a column whose type says that it has no sign.
        self.set_int(row, value.cast_signed());
    }

    /// Gives row `row` a number with a fraction.
    pub(crate) fn set_float(&mut self, row: usize, value: f64) {
        if let Values::Float(values) = &mut self.values
            && define(&mut self.defined, row)
        {
            values.push(value);
        }
    }

    /// Gives row `row` a yes or a no.
    pub(crate) fn set_bool(&mut self, row: usize, value: bool) {
        if let Values::Bool(values) = &mut self.values
            && define(&mut self.defined, row)
        {
            values.push(value);
        }
    }

    /// Gives row `row` a text or bytes.
    pub(crate) fn set_text(&mut self, row: usize, value: &[u8]) {
        if let Values::Text(text, ends) = &mut self.values
            && define(&mut self.defined, row)
        {
            text.extend_from_slice(value);
            ends.push(text.len());
        }
    }

    /// Makes all rows up to `rows` null that have no value.
    pub(crate) fn fill(&mut self, rows: usize) {
        self.defined.resize(rows, 0);
    }

    /// Appends the rows of another column of the same kind.
    pub(crate) fn append(&mut self, other: &Self) {
        self.defined.extend_from_slice(&other.defined);
        match (&mut self.values, &other.values) {
            (Values::Int(values), Values::Int(more)) => values.extend_from_slice(more),
            (Values::Float(values), Values::Float(more)) => values.extend_from_slice(more),
            (Values::Bool(values), Values::Bool(more)) => values.extend_from_slice(more),
            (Values::Text(text, ends), Values::Text(more, more_ends)) => {
                ends.extend(more_ends.iter().map(|end| text.len() + end));
                text.extend_from_slice(more);
            }
            _ => debug_assert!(false, "columns of one table have the same kinds"),
        }
    }

    /// Forgets all rows, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.defined.clear();
        match &mut self.values {
            Values::Int(values) => values.clear(),
            Values::Float(values) => values.clear(),
            Values::Bool(values) => values.clear(),
            Values::Text(text, ends) => {
                text.clear();
                ends.clear();
            }
        }
    }

    /// Whether its values are bytes, not words.
    pub(crate) fn holds_bytes(&self) -> bool {
        self.kind == Kind::Bytes
    }

    /// Returns the sort keys of rows: their numbers, and rows without one last.
    pub(crate) fn keys(&self) -> Vec<(bool, i64)> {
        let Values::Int(values) = &self.values else { return Vec::new() };
        let mut values = values.iter().copied();
        let key = |&defined: &i16| match defined {
            0 => (true, 0),
            _ => (false, values.next().unwrap_or_default()),
        };
        self.defined.iter().map(key).collect()
    }

    /// Brings the rows into another order: row `i` becomes what row `order[i]` was.
    pub(crate) fn reorder(&mut self, order: &[usize]) {
        let mut position = 0;
        // Where the value of each row is.
        let positions: Vec<usize> = self
            .defined
            .iter()
            .map(|&defined| {
                position += usize::from(defined == 1);
                position.wrapping_sub(1)
            })
            .collect();
        let with_value = || order.iter().filter(|&&row| self.defined.get(row) == Some(&1));
        let moved = || with_value().filter_map(|&row| positions.get(row).copied());
        match &mut self.values {
            Values::Int(values) => *values = pick(values, moved()),
            Values::Float(values) => *values = pick(values, moved()),
            Values::Bool(values) => *values = pick(values, moved()),
            Values::Text(text, ends) => {
                let (mut new_text, mut new_ends) = (Vec::new(), Vec::new());
                for at in moved() {
                    new_text.extend_from_slice(text_at(text, ends, at));
                    new_ends.push(new_text.len());
                }
                (*text, *ends) = (new_text, new_ends);
            }
        }
        self.defined = order.iter().filter_map(|&row| self.defined.get(row).copied()).collect();
    }

    /// Returns the name and type in pandas, whose integers and booleans have no nulls unless they
    /// are called so.
    pub(crate) fn pandas_type(&self) -> serde_json::Value {
        let (pandas, numpy) = match self.kind {
            Kind::Int => ("int64", "Int64"),
            Kind::Wide => ("uint64", "UInt64"),
            Kind::Float => ("float64", "float64"),
            Kind::Bool => ("bool", "boolean"),
            Kind::Time => ("datetimetz", "datetime64[ns]"),
            Kind::Text => ("unicode", "object"),
            Kind::Bytes => ("bytes", "object"),
        };
        let zone = (self.kind == Kind::Time).then(|| serde_json::json!({ "timezone": "UTC" }));
        serde_json::json!({
            "name": self.name,
            "field_name": self.name,
            "pandas_type": pandas,
            "numpy_type": numpy,
            "metadata": zone,
        })
    }

    /// Returns the column's entry in the schema of a file.
    pub(crate) fn schema(&self) -> Result<Type> {
        let (physical, logical) = match self.kind {
            Kind::Int => (Physical::INT64, None),
            Kind::Wide => (Physical::INT64, Some(LogicalType::integer(64, false))),
            Kind::Float => (Physical::DOUBLE, None),
            Kind::Bool => (Physical::BOOLEAN, None),
            Kind::Time => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::NANOS))),
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Bytes => (Physical::BYTE_ARRAY, None),
        };
        Type::primitive_type_builder(&self.name, physical)
            .with_repetition(Repetition::OPTIONAL)
            .with_logical_type(logical)
            .build()
    }

    /// Encodes all rows.
    pub(crate) fn write(&mut self, writer: &mut ColumnWriter<'_>) -> Result<()> {
        let defined = Some(self.defined.as_slice());
        match (writer, &mut self.values) {
            (ColumnWriter::Int64ColumnWriter(writer), Values::Int(values)) => {
                writer.write_batch(values, defined, None)?;
            }
            (ColumnWriter::DoubleColumnWriter(writer), Values::Float(values)) => {
                writer.write_batch(values, defined, None)?;
            }
            (ColumnWriter::BoolColumnWriter(writer), Values::Bool(values)) => {
                writer.write_batch(values, defined, None)?;
            }
            (ColumnWriter::ByteArrayColumnWriter(writer), Values::Text(text, ends)) => {
                let all = Bytes::from(core::mem::take(text));
                let mut start = 0;
                let values: Vec<ByteArray> = ends
                    .iter()
                    .map(|&end| {
                        ByteArray::from(all.slice(core::mem::replace(&mut start, end)..end))
                    })
                    .collect();
                writer.write_batch(&values, defined, None)?;
            }
            _ => debug_assert!(false, "the schema is made of the columns"),
        }
        Ok(())
    }
}

/// Notes that `row` has a value; `false` if it has one already.
fn define(defined: &mut Vec<i16>, row: usize) -> bool {
    if defined.len() > row {
        return false;
    }
    defined.resize(row, 0);
    defined.push(1);
    true
}

fn pick<T: Copy>(values: &[T], at: impl Iterator<Item = usize>) -> Vec<T> {
    at.filter_map(|at| values.get(at).copied()).collect()
}

fn text_at<'a>(text: &'a [u8], ends: &[usize], at: usize) -> &'a [u8] {
    let start = at.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
    let end = ends.get(at).copied().unwrap_or(start);
    text.get(start..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_their_values_in_another_order() {
        let mut text = Column::new("text", Kind::Text);
        let mut number = Column::new("number", Kind::Int);
        for (row, value) in ["c", "", "a", "bb"].into_iter().enumerate() {
            number.set_int(row, i64::try_from(row).unwrap());
            if !value.is_empty() {
                text.set_text(row, value.as_bytes());
                text.set_text(row, b"a second value");
            }
        }
        for column in [&mut text, &mut number] {
            column.fill(5);
            column.reorder(&[2, 3, 0, 4, 1]);
        }
        assert_eq!(text.defined, [1, 1, 1, 0, 0]);
        let Values::Text(bytes, ends) = &text.values else { panic!("{text:?}") };
        assert_eq!((bytes.as_slice(), ends.as_slice()), (&b"abbc"[..], &[1, 3, 4][..]));
        assert_eq!(number.defined, [1, 1, 1, 0, 1]);
        assert!(matches!(&number.values, Values::Int(values) if *values == [2, 3, 0, 1]));
        assert_eq!(number.keys(), [(false, 2), (false, 3), (false, 0), (true, 0), (false, 1)]);
    }
}
