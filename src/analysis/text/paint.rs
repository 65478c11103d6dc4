//! Widths and colors of a terminal.

/// Style of text.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// Columns of the terminal; nothing where lines may have any length.
    pub width: Option<usize>,
    /// Whether what matters is colored.
    pub color: bool,
}

/// Meaning of a color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paint {
    /// A failure or a loss.
    Bad,
    /// A repair or a suspicion.
    Warn,
    /// Emphasized text.
    Strong,
    /// Text of little importance.
    Dim,
}

impl Style {
    /// Appends text, colored if colors are wanted.
    pub(super) fn put(&self, paint: Option<Paint>, text: &str, out: &mut String) {
        let code = match paint {
            Some(paint) if self.color && !text.is_empty() => match paint {
                Paint::Bad => "31",
                Paint::Warn => "33",
                Paint::Strong => "1",
                Paint::Dim => "2",
            },
            _ => {
                out.push_str(text);
                return;
            }
        };
        out.extend(["\x1b[", code, "m", text, "\x1b[0m"]);
    }
}

/// Columns that a text takes: every character that is printed here takes one.
pub(super) fn columns(text: &str) -> usize {
    text.chars().count()
}

/// Appends what `text` lacks to be `width` columns wide.
pub(super) fn pad(text: &str, width: usize, out: &mut String) {
    out.extend(core::iter::repeat_n(' ', width.saturating_sub(columns(text))));
}

/// Breaks text into lines of at most `width` columns, at spaces; a longer word has a line of its
/// own.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is always one");
        if !line.is_empty() && columns(line) + 1 + columns(word) > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
