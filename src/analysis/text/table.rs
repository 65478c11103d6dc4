//! Tables that fit the terminal: a line per row where there is room for it, else two.

use super::paint::{Paint, Style, columns, pad};

/// A column: its heading, and where its text stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) heading: &'static str,
    pub(super) align: Align,
}

/// Alignment of the text of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// The text of a cell and its color.
#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) paint: Option<Paint>,
}

impl Cell {
    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), paint: None }
    }

    pub(super) fn painted(text: impl Into<String>, paint: Paint) -> Self {
        Self { text: text.into(), paint: Some(paint) }
    }
}

/// Spaces between two columns.
const GAP: usize = 2;

/// Appends a table. Where a row is wider than the terminal, its first `lead` cells have a line of
/// their own and the others stand below them.
pub(super) fn write_table(
    columns: &[Column],
    lead: usize,
    rows: &[Vec<Cell>],
    style: &Style,
    out: &mut String,
) {
    let widths = widths(columns, rows);
    let total: usize = widths.iter().map(|width| width + GAP).sum::<usize>() - GAP;
    let heading: Vec<_> = columns.iter().map(|c| Cell::painted(c.heading, Paint::Dim)).collect();
    let lines = core::iter::once(&heading).chain(rows);
    if style.width.is_none_or(|width| total <= width) {
        for cells in lines {
            write_cells(columns, &widths, cells, style, out);
        }
        return;
    }
    for cells in lines {
        let (head, tail) = cells.split_at(lead);
        write_cells(&columns[..lead], &widths[..lead], head, style, out);
        let indent = widths.first().map_or(0, |width| width + GAP);
        out.extend(core::iter::repeat_n(' ', indent));
        write_cells(&columns[lead..], &widths[lead..], tail, style, out);
    }
}

fn widths(heads: &[Column], rows: &[Vec<Cell>]) -> Vec<usize> {
    let mut widths: Vec<_> = heads.iter().map(|column| columns(column.heading)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(columns(&cell.text));
        }
    }
    widths
}

fn write_cells(
    columns: &[Column],
    widths: &[usize],
    cells: &[Cell],
    style: &Style,
    out: &mut String,
) {
    let last = cells.len().saturating_sub(1);
    for (index, ((column, &width), cell)) in columns.iter().zip(widths).zip(cells).enumerate() {
        if column.align == Align::Right {
            pad(&cell.text, width, out);
        }
        style.put(cell.paint, &cell.text, out);
        if index < last {
            if column.align == Align::Left {
                pad(&cell.text, width, out);
            }
            out.extend(core::iter::repeat_n(' ', GAP));
        }
    }
    out.push('\n');
}
