//! Tables whose columns are computed from a value each: one list says the names, the kinds and the
//! values.

use std::borrow::Cow;

use super::column::{Column, Kind};
use super::table::Rows;

/// Value of a row in a column.
pub(super) enum Cell {
    Null,
    Int(u64),
    Float(f64),
    Bool(bool),
    Text(Cow<'static, str>),
}

/// A column of a table whose rows are made from `R`.
pub(super) struct Definition<R> {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) value: fn(&R) -> Cell,
}

/// An array of columns, a line each: kind, name and value, which a row in the variable has.
macro_rules! define_columns {
    (|$row:ident| $($kind:ident $name:literal: $value:expr;)*) => {
        [$(Definition {
            name: $name,
            kind: Kind::$kind,
            value: |$row| Cell::from($value),
        }),*]
    };
}
pub(super) use define_columns;

macro_rules! cells {
    ($($type:ty => $cell:ident;)*) => {$(
        impl From<$type> for Cell {
            fn from(value: $type) -> Self {
                Self::$cell(value.into())
            }
        }
    )*};
}

cells! {
    u64 => Int;
    u32 => Int;
    u16 => Int;
    u8 => Int;
    f64 => Float;
    bool => Bool;
    &'static str => Text;
    String => Text;
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// Adds the row of a value.
pub(super) fn add_row<R>(rows: &mut Rows, from: &R, definitions: &[Definition<R>]) {
    rows.add_cells(definitions.iter().map(|column| (column.value)(from)));
}

impl Rows {
    /// Adds a row of these cells, one for each column.
    pub(super) fn add_cells(&mut self, cells: impl Iterator<Item = Cell>) {
        let row = self.add();
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            match cell {
                Cell::Null => {}
                Cell::Int(value) => column.set_uint(row, value),
                Cell::Float(value) => column.set_float(row, value),
                Cell::Bool(value) => column.set_bool(row, value),
                Cell::Text(value) => column.set_text(row, value.as_bytes()),
            }
        }
    }
}

/// The columns of a list, without rows.
pub(super) fn columns<R>(definitions: &[Definition<R>]) -> Rows {
    Rows::new(definitions.iter().map(|column| Column::new(column.name, column.kind)).collect())
}

/// The position of a column in a list.
pub(super) fn position<R>(definitions: &[Definition<R>], name: &str) -> usize {
    definitions.iter().position(|column| column.name == name).expect("the column is in the list")
}
