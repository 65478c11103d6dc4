//! Text from another machine, escaped before it is printed.

/// Whether a character is printed as one character: it is no control character, ends no line, and does not change the
/// direction of the text after it.
pub(super) fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        && !matches!(c, '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// Escapes every character that is not plain, and cuts the text to `max` characters.
pub(super) fn printable(text: &str, max: usize) -> String {
    let mut shown = String::new();
    for c in text.chars().take(max) {
        if is_plain(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
    }
    if text.chars().nth(max).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_are_escaped() {
        assert_eq!(printable("\x1b]0;owned\x07é", 80), "\\u{1b}]0;owned\\u{7}é");
        assert_eq!(printable("a\u{9b}2J\u{202e}\r\nb", 80), "a\\u{9b}2J\\u{202e}\\r\\nb");
        assert_eq!(printable("abcdef", 3), "abc…");
        assert_eq!(printable("abc", 3), "abc");
        assert!(printable(&"\u{1b}[".repeat(1000), 80).chars().all(is_plain));
    }
}
