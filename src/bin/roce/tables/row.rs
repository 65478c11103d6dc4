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

impl<R> Definition<R> {
    pub(super) const fn new(name: &'static str, kind: Kind, value: fn(&R) -> Cell) -> Self {
        Self { name, kind, value }
    }
}

impl From<u64> for Cell {
    fn from(value: u64) -> Self {
        Self::Int(value)
    }
}

impl From<u32> for Cell {
    fn from(value: u32) -> Self {
        Self::Int(value.into())
    }
}

impl From<u16> for Cell {
    fn from(value: u16) -> Self {
        Self::Int(value.into())
    }
}

impl From<u8> for Cell {
    fn from(value: u8) -> Self {
        Self::Int(value.into())
    }
}

impl From<f64> for Cell {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<bool> for Cell {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&'static str> for Cell {
    fn from(value: &'static str) -> Self {
        Self::Text(value.into())
    }
}

impl From<String> for Cell {
    fn from(value: String) -> Self {
        Self::Text(value.into())
    }
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
