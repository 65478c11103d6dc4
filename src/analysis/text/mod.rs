//! Reports and ladders for people, as text of a given width.

mod paint;
mod report;
mod table;
pub(crate) mod units;

pub use paint::Style;
pub use report::ReportStyle;
pub(crate) use report::{end_text, ends_text};
