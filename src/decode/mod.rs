//! Packets in words: a line, a tree, an object or some columns a packet, a filter, and a summary of
//! a whole capture.
//!
//! [`Decoder`] takes the records of a capture apart. What it knows of a frame is a [`Context`], and
//! everything that prints or filters asks a `Context` for *fields*. A field has the name that
//! tshark gives it, where it gives one (`infiniband.bth.psn`), so that scripts and habits carry
//! over; what tshark does not know is called `roce.…`. All fields stand in tables, one a layer,
//! whose places in the bytes come from [`wire`](crate::wire).
//!
//! ```
//! use roce::capture;
//! use roce::decode::{Decoder, Filter, LineStyle, TimeStyle};
//! use roce::wire::ROCE_PORT;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut capture = capture::open("testdata/captures/rxe_all_ops.pcap".as_ref())?;
//! let mut decoder = Decoder::new(ROCE_PORT);
//! let filter = Filter::parse("roce.aeth.kind == NAK")?;
//! let style = LineStyle { time: TimeStyle::None, ..LineStyle::default() };
//! let mut lines = String::new();
//! while let Some(record) = capture.next()? {
//!     let packet = decoder.decode(&record);
//!     if filter.matches(&packet) {
//!         style.write(&packet, &mut lines);
//!         lines.push('\n');
//!     }
//! }
//! assert!(lines.contains("RC_ACKNOWLEDGE qp 0x000017 psn 16777210 NAK remote access error"));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub(crate) mod address;
mod columns;
mod context;
mod escape;
mod field;
mod filter;
mod json;
mod line;
mod packet_line;
mod select;
mod summary;
mod tables;
mod time;
mod tree;

pub use address::address_text;
pub use columns::write_columns;
pub use context::{Annotations, Context, Decoder, FieldRef, TrainPosition};
// For the command: no promise is made about them.
#[cfg(any(feature = "analysis", feature = "conform"))]
#[doc(hidden)]
pub use escape::escape_markup;
#[doc(hidden)]
pub use escape::{Printable, PrintableLines, is_plain};
pub use field::{Field, Value};
#[doc(hidden)]
pub use filter::unknown_field;
pub use filter::{Filter, FilterError};
pub use json::write_json;
pub use line::LineStyle;
pub use packet_line::packet_line;
pub use select::{FieldSet, ValueKind};
pub use summary::{CONVERSATIONS_MAX, Summary, Trains};
pub use time::{TimeStyle, date_text};
pub use tree::write_tree;
