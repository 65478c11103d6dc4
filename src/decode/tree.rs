//! Every field of a packet, with its bytes.

use super::Context;
use super::field::{Value, put};

/// Byte strings longer than this are cut: a tree is for reading.
const BYTES_SHOWN: usize = 32;

/// Appends the tree of a frame: a heading a layer, then its fields, each with its name for filters
/// and its bytes.
pub fn write_tree(context: &Context<'_>, out: &mut String) {
    for section in context.sections() {
        let (table, layer) = (section.table.table(), context.bytes(section));
        let heading = out.len();
        put(out, format_args!("{}", table.title));
        if section.table == super::tables::TableId::Frame {
            put(out, format_args!(" {}: {} bytes\n", context.number, context.wire_len));
        } else if section.table == super::tables::TableId::Trailer {
            out.push('\n');
        } else {
            out.push_str(", ");
            write_range(section.range(), out);
            out.push('\n');
        }
        let fields = out.len();
        for field in table.fields {
            let payload = field.name == "roce.payload";
            if field.hidden && !payload {
                continue;
            }
            let Some(value) = field.value(context, layer) else {
                continue;
            };
            put(out, format_args!("    {}: ", field.label));
            match value {
                Value::Bytes(bytes) if bytes.len() > BYTES_SHOWN => {
                    let shown = bytes.get(..BYTES_SHOWN).unwrap_or(bytes);
                    field.write(&Value::Bytes(shown), out);
                    out.push('…');
                }
                value => field.write(&value, out),
            }
            put(out, format_args!(" ({}", field.name));
            if let Some(bytes) = field.bytes(layer.len()) {
                out.push_str(", ");
                write_range(
                    section.range().start + bytes.start..section.range().start + bytes.end,
                    out,
                );
            }
            out.push_str(")\n");
        }
        if out.len() == fields {
            out.truncate(heading);
        }
    }
}

/// `byte 42`, or `bytes 42-53`.
fn write_range(range: core::ops::Range<usize>, out: &mut String) {
    match range.len() {
        0 => out.push_str("no bytes"),
        1 => put(out, format_args!("byte {}", range.start)),
        _ => put(out, format_args!("bytes {}-{}", range.start, range.end - 1)),
    }
}
