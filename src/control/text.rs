//! Text from another machine, escaped and cut before it is kept or printed.

use crate::decode::Printable;

/// Escapes every character that a terminal would obey, and cuts the text to `max` characters.
pub fn printable(text: &str, max: usize) -> String {
    let end = text.char_indices().nth(max).map(|(end, _)| end);
    let mut shown = Printable(&text[..end.unwrap_or(text.len())]).to_string();
    if end.is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_cut() {
        assert_eq!(printable("\x1b]0;owned\x07é", 80), "\\u{1b}]0;owned\\u{7}é");
        assert_eq!(printable("abcdef", 3), "abc…");
        assert_eq!(printable("abc", 3), "abc");
        assert_eq!(printable("äöü", 2), "äö…");
    }
}
