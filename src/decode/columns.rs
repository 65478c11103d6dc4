//! Chosen fields, tab-separated.

use super::Context;
use super::context::FieldRef;

/// Appends the chosen fields of a frame, with tabs between them: nothing where a field is absent,
/// commas between several values of one field.
pub fn write_columns(context: &Context<'_>, chosen: &[FieldRef], out: &mut String) {
    for (i, field) in chosen.iter().enumerate() {
        if i > 0 {
            out.push('\t');
        }
        for (nth, (field, value)) in field.values(context).enumerate() {
            if nth > 0 {
                out.push(',');
            }
            field.write(&value, out);
        }
    }
}
