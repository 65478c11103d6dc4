//! Forms of output, for a packet and for all of them.

use anyhow::bail;
use roce::decode::{
    self, FieldRef, LineStyle, Summary, TimeStyle, write_columns, write_json, write_tree,
};

use super::args::{Args, find_field};

/// Form of output for a packet.
pub(super) enum Form {
    Line(LineStyle),
    Tree,
    Json(Vec<FieldRef>),
    Columns(Vec<FieldRef>),
    Summary(Object),
}

/// Whether a summary is a JSON object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Object {
    Yes,
    No,
}

impl Form {
    /// Returns the form that the arguments ask for.
    pub(super) fn new(args: &Args) -> anyhow::Result<Self> {
        let fields = args.fields.iter().map(|name| find_field(name)).collect::<Result<_, _>>()?;
        let time = match args.time {
            0 => TimeStyle::OfDay,
            1 => TimeStyle::None,
            2 => TimeStyle::Epoch,
            3 => TimeStyle::SincePrevious,
            4 => TimeStyle::DateAndTime,
            5 => TimeStyle::SinceFirst,
            _ => bail!("-t may be given five times at most"),
        };
        Ok(if args.summary {
            let object = if args.json { Object::Yes } else { Object::No };
            Self::Summary(object)
        } else if args.verbose {
            Self::Tree
        } else if args.json {
            Self::Json(fields)
        } else if !fields.is_empty() {
            Self::Columns(fields)
        } else {
            Self::Line(LineStyle { number: args.number, time, color: args.color.wanted() })
        })
    }

    /// Takes a packet: appends its text to `out`, or counts it in the summary, which has no text
    /// until the end.
    #[inline]
    pub(super) fn take(
        &self,
        packet: &decode::Context<'_>,
        out: &mut String,
        summary: &mut Summary,
    ) {
        match self {
            Self::Summary(_) => return summary.add(packet),
            Self::Line(style) => style.write(packet, out),
            Self::Tree => write_tree(packet, out),
            Self::Json(fields) => write_json(packet, fields, out),
            Self::Columns(fields) => write_columns(packet, fields, out),
        }
        out.push('\n');
    }

    /// Returns the text after the last packet.
    pub(super) fn finish(&self, summary: &Summary) -> serde_json::Result<String> {
        Ok(match self {
            Self::Summary(Object::Yes) => serde_json::to_string(summary)? + "\n",
            Self::Summary(Object::No) => summary.to_text(),
            Self::Line(_) | Self::Tree | Self::Json(_) | Self::Columns(_) => String::new(),
        })
    }

    /// Whether this field is shown because the user named it.
    pub(super) fn shows(&self, name: &str) -> bool {
        match self {
            Self::Json(fields) | Self::Columns(fields) => {
                fields.iter().any(|field| field.name() == name)
            }
            Self::Line(_) | Self::Tree | Self::Summary(..) => false,
        }
    }

    /// Whether nothing is printed before the last packet was read.
    pub(super) fn is_summary(&self) -> bool {
        matches!(self, Self::Summary(..))
    }
}
