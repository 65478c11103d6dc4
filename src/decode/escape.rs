//! Text from outside, made harmless before it is shown: names of files, texts of peers, input that
//! an error repeats.

use core::fmt::{self, Write as _};

/// Text as a terminal may show it, in one line: control characters, and what is invisible or
/// changes the direction of text, become `\u{1b}` and so on.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match is_plain(c) {
                true => f.write_char(c)?,
                false => write!(f, "{}", c.escape_default())?,
            }
        }
        Ok(())
    }
}

/// Text of several lines as a terminal may show it: like [`Printable`], with its line breaks.
#[derive(Clone, Copy, Debug)]
pub struct PrintableLines<'a>(pub &'a str);

impl fmt::Display for PrintableLines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, line) in self.0.split('\n').enumerate() {
            if number > 0 {
                f.write_char('\n')?;
            }
            Printable(line).fmt(f)?;
        }
        Ok(())
    }
}

/// Whether a terminal shows a character as one character: it is no control character, ends no line,
/// is not invisible, and does not change the direction of the text after it.
pub fn is_plain(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        && !matches!(c, '\u{fffe}' | '\u{ffff}' | '\u{e0000}'..='\u{e007f}')
}

/// Escapes text for HTML and XML, between tags and in attributes. XML cannot hold control
/// characters at all: they become U+FFFD.
#[cfg(any(feature = "analysis", feature = "conform"))]
pub fn escape_markup(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_are_escaped() {
        let shown = |text| Printable(text).to_string();
        assert_eq!(shown("\x1b]0;owned\x07é"), "\\u{1b}]0;owned\\u{7}é");
        assert_eq!(shown("a\u{9b}2J\u{202e}\r\nb"), "a\\u{9b}2J\\u{202e}\\r\\nb");
        assert_eq!(shown("in\u{ad}visible\u{2060}\u{61c}"), "in\\u{ad}visible\\u{2060}\\u{61c}");
        assert!(shown(&"\u{1b}[\u{e0041}".repeat(1000)).chars().all(is_plain));
        assert_eq!(PrintableLines("a\x1b\n\tb").to_string(), "a\\u{1b}\n\\tb");
    }

    #[test]
    #[cfg(any(feature = "analysis", feature = "conform"))]
    fn markup_is_text() {
        let escaped = escape_markup("<a b=\"c\" d='e'>&\x1b\u{ffff}\n");
        assert_eq!(escaped, "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;\u{fffd}\u{fffd}\n");
    }
}
