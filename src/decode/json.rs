//! One JSON object per packet, for machines.
//!
//! Written by hand, for speed: most fields are numbers with constant keys, which are kept escaped,
//! and nothing is allocated per packet. serde_json would take an intermediate map of dozens of
//! fields, or escape each key anew.

use std::sync::LazyLock;

use super::Context;
use super::context::{FieldRef, Section};
use super::field::{Field, Value};
use super::tables::TABLES;

/// Appends the object of a frame: every field that is not hidden, or just the chosen ones, under
/// its name.
///
/// Numbers of up to 32 bits are JSON's numbers. Everything else is a string, as tshark prints it:
/// JSON's readers do not keep longer numbers exactly. A field with several values is an array of
/// them.
pub fn write_json(context: &Context<'_>, chosen: &[FieldRef], out: &mut String) {
    let start = out.len();
    if chosen.is_empty() {
        write_all(context, out);
    } else {
        for (i, field) in chosen.iter().enumerate() {
            // An object has each key once, however often it was asked for.
            if chosen.iter().take(i).any(|earlier| earlier.name() == field.name()) {
                continue;
            }
            let mut values = field.values(context);
            let Some(first) = values.next() else { continue };
            write_values(first, values, out);
        }
    }
    // Every member was written with a comma before it, and the first one's is where the object
    // begins.
    let comma = usize::from(out.len() > start);
    out.replace_range(start..start + comma, "{");
    out.push('}');
}

/// A field that is shown, with its key as it is written.
struct Member {
    field: &'static Field,
    key: String,
}

/// The members of each table. A packet has dozens of them, and a capture millions of packets.
static MEMBERS: LazyLock<Vec<Vec<Member>>> = LazyLock::new(|| {
    let member = |field: &'static Field| Member { field, key: key(field) };
    let shown = |fields: &'static [Field]| fields.iter().filter(|field| !field.hidden);
    TABLES.iter().map(|table| shown(table.fields).map(member).collect()).collect()
});

fn write_all(context: &Context<'_>, out: &mut String) {
    let members: &[Vec<Member>] = &MEMBERS;
    let is_tunneled = context.frame.tunnel().is_some();
    for (i, section) in context.sections().iter().enumerate() {
        if section.table.repeats() || is_tunneled {
            let mut earlier = context.sections().iter().take(i);
            if earlier.all(|other| other.table != section.table) {
                write_repeated(context, section, out);
            }
            continue;
        }
        let layer = context.bytes(section);
        for Member { field, key } in &members[section.table as usize] {
            if let Some(value) = field.value(context, layer) {
                out.push_str(key);
                write_value(field, &value, out);
            }
        }
    }
}

/// The fields of all layers that share the table of `section`.
fn write_repeated(context: &Context<'_>, section: &Section, out: &mut String) {
    for field in section.table.table().fields.iter().filter(|field| !field.hidden) {
        let same = context.sections().iter().filter(|other| other.table == section.table);
        let mut values = same.filter_map(|other| {
            field.value(context, context.bytes(other)).map(|value| (field, value))
        });
        let Some(first) = values.next() else { continue };
        write_values(first, values, out);
    }
}

/// A member with one value, or an array of several.
fn write_values<'a>(
    first: (&'static Field, Value<'a>),
    rest: impl Iterator<Item = (&'static Field, Value<'a>)>,
    out: &mut String,
) {
    out.push_str(&key(first.0));
    let start = out.len();
    write_value(first.0, &first.1, out);
    let mut several = false;
    for (field, value) in rest {
        if !several {
            out.insert(start, '[');
            several = true;
        }
        out.push(',');
        write_value(field, &value, out);
    }
    if several {
        out.push(']');
    }
}

/// `,"name":`. Names consist of ASCII alphanumerics, dots and underscores: there is nothing to
/// escape.
fn key(field: &Field) -> String {
    format!(",\"{}\":", field.name)
}

fn write_value(field: &Field, value: &Value<'_>, out: &mut String) {
    match *value {
        Value::Uint(number) if field.is_json_number() => super::field::write_dec(number, out),
        // None of these has anything to escape: digits, colons, and words of our own.
        _ => {
            out.push('"');
            field.write(value, out);
            out.push('"');
        }
    }
}
