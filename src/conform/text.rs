//! Text of other machines, made safe to show.

/// Whether a terminal prints a character, and prints it where it stands: no control characters, and none that change
/// the direction of what follows or end a line.
pub(super) fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        && !matches!(c, '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// The text with every character escaped that is not plain, cut to `most` characters.
pub(super) fn printable(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for c in text.chars().take(most) {
        if is_plain(c) {
            shown.push(c);
        } else {
            shown.extend(c.escape_default());
        }
    }
    if text.chars().nth(most).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_shown_and_not_sent() {
        assert_eq!(printable("\x1b]0;owned\x07é", 80), "\\u{1b}]0;owned\\u{7}é");
        assert_eq!(printable("a\u{9b}2J\u{202e}\r\nb", 80), "a\\u{9b}2J\\u{202e}\\r\\nb");
        assert_eq!(printable("abcdef", 3), "abc…");
        assert_eq!(printable("abc", 3), "abc");
        assert!(printable(&"\u{1b}[".repeat(1000), 80).chars().all(is_plain));
    }
}
