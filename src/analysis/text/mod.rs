//! Reports and ladders for people, as text of a given width.

mod groups;
mod ladder;
mod paint;
mod report;
mod table;
pub(crate) mod units;

pub use ladder::{Ladder, LossList};
pub use paint::Style;
pub use report::ReportStyle;
pub(crate) use report::end_text;
