//! An object a packet, for machines.

use super::Context;
use super::context::{FieldRef, Section};
use super::field::{Field, Value};

/// Appends the object of a frame: every field that is not hidden, or just the chosen ones, under its name.
///
/// Numbers of up to 32 bits are JSON's numbers. Everything else is a string, as tshark prints it: JSON's readers do
/// not keep longer numbers exactly. A field with several values is an array of them.
pub fn write_json(context: &Context<'_>, chosen: &[FieldRef], out: &mut String) {
    out.push('{');
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
    if out.len() > start {
        // Every member was written with a comma behind it.
        out.pop();
    }
    out.push('}');
}

fn write_all(context: &Context<'_>, out: &mut String) {
    for (i, section) in context.sections().iter().enumerate() {
        if section.table.repeats() {
            let mut earlier = context.sections().iter().take(i);
            if earlier.all(|other| other.table != section.table) {
                write_repeated(context, section, out);
            }
            continue;
        }
        let layer = context.bytes(section);
        for field in section.table.table().fields.iter().filter(|field| !field.hidden) {
            if let Some(value) = field.value(context, layer) {
                write_key(field, out);
                write_value(field, &value, out);
                out.push(',');
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
    write_key(first.0, out);
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
    out.push_str(if several { "]," } else { "," });
}

fn write_key(field: &Field, out: &mut String) {
    // Names are letters, digits, dots and underscores: there is nothing to escape.
    out.push('"');
    out.push_str(field.name);
    out.push_str("\":");
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
