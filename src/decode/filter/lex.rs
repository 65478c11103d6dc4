//! The text of a filter as words and signs.

use core::ops::Range;

use super::{FilterError, Relation};

/// A word or a sign, and its place.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) at: Range<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Word(String),
    Quoted(String),
    Relation(Relation),
    Contains,
    Matches,
    In,
    BitAnd,
    And,
    Or,
    Xor,
    Not,
    Open,
    Close,
    OpenSet,
    CloseSet,
    Comma,
    Through,
    End,
}

impl Token {
    pub(super) fn error(&self, reason: impl Into<String>) -> FilterError {
        FilterError { reason: reason.into(), at: self.at.clone() }
    }
}

/// The signs, longest first, so that `>=` is not taken for `>`.
const SIGNS: [(&str, Kind); 19] = [
    ("===", Kind::Relation(Relation::AllEqual)),
    ("!==", Kind::Relation(Relation::AnyNotEqual)),
    ("&&", Kind::And),
    ("||", Kind::Or),
    ("^^", Kind::Xor),
    ("==", Kind::Relation(Relation::Equal)),
    ("!=", Kind::Relation(Relation::NotEqual)),
    ("<=", Kind::Relation(Relation::LessOrEqual)),
    (">=", Kind::Relation(Relation::GreaterOrEqual)),
    ("<", Kind::Relation(Relation::Less)),
    (">", Kind::Relation(Relation::Greater)),
    ("&", Kind::BitAnd),
    ("~", Kind::Matches),
    ("!", Kind::Not),
    ("(", Kind::Open),
    (")", Kind::Close),
    ("{", Kind::OpenSet),
    ("}", Kind::CloseSet),
    (",", Kind::Comma),
];

/// Stands between the ends of a range; single dots are parts of words.
const THROUGH: [char; 2] = ['.', '.'];

/// The words that mean what a sign means.
fn word_sign(word: &str) -> Option<Kind> {
    Some(match word {
        "and" => Kind::And,
        "or" => Kind::Or,
        "xor" => Kind::Xor,
        "not" => Kind::Not,
        "in" => Kind::In,
        "contains" => Kind::Contains,
        "matches" => Kind::Matches,
        "bitand" | "bitwise_and" => Kind::BitAnd,
        "eq" | "any_eq" => Kind::Relation(Relation::Equal),
        "all_eq" => Kind::Relation(Relation::AllEqual),
        "ne" | "all_ne" => Kind::Relation(Relation::NotEqual),
        "any_ne" => Kind::Relation(Relation::AnyNotEqual),
        "lt" => Kind::Relation(Relation::Less),
        "le" => Kind::Relation(Relation::LessOrEqual),
        "gt" => Kind::Relation(Relation::Greater),
        "ge" => Kind::Relation(Relation::GreaterOrEqual),
        _ => return None,
    })
}

/// Takes `source` apart. Places are counted in characters, because people count so.
pub(super) fn tokens(source: &str) -> Result<Vec<Token>, FilterError> {
    let chars: Vec<char> = source.chars().collect();
    let (mut tokens, mut at) = (Vec::new(), 0);
    while let Some(&c) = chars.get(at) {
        let start = at;
        let rest = chars.get(at..).unwrap_or_default();
        let sign = SIGNS.iter().find(|(sign, _)| {
            sign.chars().enumerate().all(|(i, expected)| rest.get(i) == Some(&expected))
        });
        let kind = if c.is_whitespace() {
            at += 1;
            continue;
        } else if let Some((sign, kind)) = sign {
            at += sign.len();
            kind.clone()
        } else if rest.starts_with(&THROUGH) {
            at += THROUGH.len();
            Kind::Through
        } else if c == '"' || c == '\'' {
            let inside = rest.iter().skip(1).position(|&other| other == c);
            let Some(len) = inside else {
                let reason = "this quote is never closed".to_owned();
                return Err(FilterError { reason, at: start..start + 1 });
            };
            at += len + 2;
            Kind::Quoted(rest.iter().skip(1).take(len).collect())
        } else if in_word(c) {
            let word = word(rest);
            at += word.chars().count();
            word_sign(&word).unwrap_or(Kind::Word(word))
        } else {
            let reason = match c {
                '=' => "'=' alone means nothing; equality is '=='".to_owned(),
                '|' | '^' => format!("'{c}' alone means nothing; write '{c}{c}'"),
                _ => format!("'{c}' means nothing here"),
            };
            return Err(FilterError { reason, at: start..start + 1 });
        };
        tokens.push(Token { kind, at: start..at });
    }
    tokens.push(Token { kind: Kind::End, at: chars.len()..chars.len() });
    Ok(tokens)
}

fn in_word(c: char) -> bool {
    c.is_alphanumeric() || "._:-/".contains(c)
}

/// The word at the front, which two dots end.
fn word(rest: &[char]) -> String {
    let ends = |(i, c): (usize, &char)| {
        !in_word(*c) || rest.get(i..).is_some_and(|rest| rest.starts_with(&THROUGH))
    };
    let len = rest.iter().enumerate().position(ends).unwrap_or(rest.len());
    rest.iter().take(len).collect()
}
