//! Patterns of `contains` and `matches`.

use core::fmt::Write as _;

use regex::bytes::{Regex, RegexBuilder};

use super::super::Context;
use super::super::context::FieldRef;
use super::super::field::{Show, Value};
use super::literal::parse_hex;

/// The most memory that a regular expression may take when it is compiled, and once more when it
/// runs.
const SIZE_MAX: usize = 1 << 20;

/// The deepest nesting of groups in a regular expression.
const NEST_MAX: u32 = 50;

/// Bytes to search for.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    regex: Regex,
}

/// Checks that a field can be searched, or returns the reason.
pub(super) fn searchable(field: &FieldRef, operator: &str) -> Result<(), String> {
    let what = match field.kind().show {
        Show::Text | Show::Bytes | Show::Mac => return Ok(()),
        Show::Dec | Show::Hex(_) => "a number",
        Show::Seconds | Show::Date => "a time",
        Show::Ipv4 | Show::Ipv6 => "an address; compare it with ==",
    };
    Err(format!("'{operator}' searches text and bytes, and {} is {what}", field.name()))
}

impl Pattern {
    /// Returns the bytes that `contains` looks for: quoted text and text of a text field as it is,
    /// otherwise hexadecimal bytes.
    pub(super) fn literal(field: &FieldRef, text: &str, quoted: bool) -> Result<Self, String> {
        let is_text = field.kind().show == Show::Text && !field.is_layer();
        let bytes = if quoted || is_text {
            text.as_bytes().to_vec()
        } else {
            let reason =
                || format!("'{text}' is no string of bytes (00:1a:2b); text stands in quotes");
            parse_hex(text).ok_or_else(reason)?
        };
        let mut escaped = String::new();
        for byte in bytes {
            let _ = write!(escaped, "\\x{byte:02x}");
        }
        Self::compile(&escaped, false)
    }

    /// The regular expression that stands behind `matches`.
    pub(super) fn regex(text: &str) -> Result<Self, String> {
        Self::compile(text, true)
    }

    fn compile(pattern: &str, ignores_case: bool) -> Result<Self, String> {
        let mut builder = RegexBuilder::new(pattern);
        builder.unicode(false).case_insensitive(ignores_case).dot_matches_new_line(true);
        builder.nest_limit(NEST_MAX).size_limit(SIZE_MAX).dfa_size_limit(SIZE_MAX);
        let regex = builder.build().map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "this regular expression is too large".to_owned(),
            error => {
                let text = error.to_string();
                let reason = text.lines().last().unwrap_or_default();
                let reason = reason.trim_start_matches("error: ");
                format!("this is no regular expression: {reason}")
            }
        })?;
        Ok(Self { regex })
    }

    /// Whether it is found in a field of a packet; in a layer, from its first byte to the end of
    /// the frame.
    pub(super) fn is_in(&self, field: &FieldRef, context: &Context<'_>) -> bool {
        if field.is_layer() {
            return field.layers(context).any(|bytes| self.regex.is_match(bytes));
        }
        field.values(context).any(|(field, value)| match value {
            Value::Bytes(bytes) => self.regex.is_match(bytes),
            Value::Text(text) => self.regex.is_match(text.as_bytes()),
            value => {
                let mut text = String::new();
                field.write(&value, &mut text);
                self.regex.is_match(text.as_bytes())
            }
        })
    }
}
