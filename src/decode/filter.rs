//! Which packets to show: comparisons of fields, joined by `&&`, `||`, `!` and parentheses.

use core::cmp::Ordering;
use core::fmt;
use core::net::IpAddr;
use core::ops::Range;

use thiserror::Error;

use super::Context;
use super::context::FieldRef;
use super::field::{Field, Show, Value};
use crate::wire::Opcode;

/// The deepest nesting of parentheses and negations that is accepted.
const DEPTH_MAX: usize = 64;

/// A test of packets.
///
/// ```
/// use roce::decode::Filter;
///
/// Filter::parse("infiniband.bth.destqp == 0x11 && roce.icrc == bad").unwrap();
/// let error = Filter::parse("infiniband.bth.psn = 3").unwrap_err();
/// assert_eq!(error.to_string(), "'=' alone means nothing; equality is '==', at character 20");
/// ```
#[derive(Clone, Debug)]
pub struct Filter {
    root: Node,
}

/// What is wrong with a filter, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct FilterError {
    /// What is wrong.
    pub reason: String,
    /// The characters that are, counted from 0.
    pub at: Range<usize>,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, at character {}", self.reason, self.at.start + 1)
    }
}

impl FilterError {
    /// The filter with the place marked beneath it, in two lines.
    pub fn point(&self, source: &str) -> String {
        let marks = "^".repeat(self.at.len().max(1));
        format!("{source}\n{:indent$}{marks}", "", indent = self.at.start)
    }
}

#[derive(Clone, Debug)]
enum Node {
    Or(Vec<Self>),
    And(Vec<Self>),
    Not(Box<Self>),
    Present(FieldRef),
    Compare(FieldRef, Operator, Literal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Literal {
    Number(u64),
    Nanos(i128),
    Bytes(Vec<u8>),
    Text(String),
    /// An address, and how many of its leading bits count.
    Prefix(Vec<u8>, u32),
}

impl Filter {
    /// The test that `source` describes.
    pub fn parse(source: &str) -> Result<Self, FilterError> {
        let mut parser = Parser { tokens: tokens(source)?, next: 0, depth: 0 };
        let root = parser.or()?;
        match parser.peek() {
            Token { kind: Kind::End, .. } => Ok(Self { root }),
            token => Err(token.error("this does not belong here")),
        }
    }

    /// Whether it asks for the field of this name.
    pub fn uses(&self, name: &str) -> bool {
        self.root.uses(name)
    }

    /// Whether a packet passes.
    pub fn matches(&self, context: &Context<'_>) -> bool {
        self.root.matches(context)
    }
}

impl Node {
    fn uses(&self, name: &str) -> bool {
        match self {
            Self::Or(terms) | Self::And(terms) => terms.iter().any(|term| term.uses(name)),
            Self::Not(inner) => inner.uses(name),
            Self::Present(field) | Self::Compare(field, ..) => field.name() == name,
        }
    }

    fn matches(&self, context: &Context<'_>) -> bool {
        match self {
            Self::Or(terms) => terms.iter().any(|term| term.matches(context)),
            Self::And(terms) => terms.iter().all(|term| term.matches(context)),
            Self::Not(inner) => !inner.matches(context),
            Self::Present(field) => field.values(context).next().is_some(),
            // A field may have several values. One that equals is enough, so none may for them to be unequal.
            Self::Compare(field, Operator::NotEqual, literal) => {
                let mut values = field.values(context).peekable();
                values.peek().is_some() && values.all(|(_, value)| !literal.equals(&value))
            }
            Self::Compare(field, operator, literal) => {
                field.values(context).any(|(_, value)| operator.holds(literal, &value))
            }
        }
    }
}

impl Operator {
    /// Whether `value` stands so to `literal`.
    fn holds(self, literal: &Literal, value: &Value<'_>) -> bool {
        let order = literal.compare(value);
        match self {
            Self::Equal => literal.equals(value),
            Self::NotEqual => !literal.equals(value),
            Self::Less => order == Some(Ordering::Less),
            Self::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
            Self::Greater => order == Some(Ordering::Greater),
            Self::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        }
    }
}

impl Literal {
    fn equals(&self, value: &Value<'_>) -> bool {
        match (self, value) {
            (Self::Prefix(prefix, bits), Value::Bytes(bytes)) => {
                prefix.len() == bytes.len() && common_bits(prefix, bytes) >= *bits
            }
            _ => self.compare(value) == Some(Ordering::Equal),
        }
    }

    /// How `value` stands to this, or `None` if they cannot be compared.
    fn compare(&self, value: &Value<'_>) -> Option<Ordering> {
        Some(match (self, value) {
            (Self::Number(number), Value::Uint(value)) => value.cmp(number),
            (Self::Nanos(nanos), Value::Nanos(value)) => value.cmp(nanos),
            (Self::Bytes(bytes) | Self::Prefix(bytes, _), Value::Bytes(value)) => {
                (*value).cmp(bytes.as_slice())
            }
            (Self::Text(text), Value::Text(value)) => (*value).cmp(text.as_str()),
            (Self::Text(text), Value::Opcode(opcode)) => opcode.to_string().as_str().cmp(text),
            (Self::Text(text), Value::Error(error)) => error.to_string().as_str().cmp(text),
            _ => return None,
        })
    }

    /// The value that `text` stands for where `field` is compared with it.
    fn parse(field: &Field, text: &str) -> Result<Self, String> {
        let wanted = |what: &str| format!("{} is {what}, and '{text}' is none", field.name);
        match field.show {
            Show::Dec | Show::Hex(_) => {
                parse_number(text).map(Self::Number).ok_or_else(|| wanted("a number"))
            }
            Show::Seconds => {
                parse_seconds(text).map(Self::Nanos).ok_or_else(|| wanted("a number of seconds"))
            }
            Show::Text => match vocabulary(field.name) {
                Some(words) if !words.contains(&text) && !text.starts_with("opcode ") => {
                    Err(format!("{} is never '{text}'; it is one of {}", field.name, list(&words)))
                }
                _ => Ok(Self::Text(text.to_owned())),
            },
            Show::Mac | Show::Bytes => parse_hex(text)
                .map(Self::Bytes)
                .ok_or_else(|| wanted("a string of bytes (00:1a:2b, or 001a2b)")),
            Show::Ipv4 => parse_prefix(text, 4).ok_or_else(|| wanted("an IPv4 address")),
            Show::Ipv6 => parse_prefix(text, 16).ok_or_else(|| wanted("an IPv6 address")),
        }
    }
}

/// All the words that a field can have, where they are few.
fn vocabulary(field: &str) -> Option<Vec<&'static str>> {
    Some(match field {
        "roce.icrc" | "roce.vcrc" => vec!["ok", "bad", "absent"],
        "roce.encapsulation" => vec!["RoCEv1", "RoCEv2", "IB"],
        "roce.aeth.kind" => vec!["ACK", "RNR", "NAK", "reserved"],
        "roce.opcode_name" => Opcode::assigned().map(|info| info.name).collect(),
        _ => return None,
    })
}

/// Words with commas between them, the first dozen.
fn list(words: &[&str]) -> String {
    const SHOWN: usize = 12;
    let rest = if words.len() > SHOWN { " …" } else { "" };
    format!("{}{rest}", words.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", "))
}

/// How many leading bits two byte strings share.
fn common_bits(a: &[u8], b: &[u8]) -> u32 {
    let mut bits = 0;
    for (x, y) in a.iter().zip(b) {
        let same = (x ^ y).leading_zeros();
        bits += same;
        if same < 8 {
            break;
        }
    }
    bits
}

fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Decimal seconds with at most nine places, as nanoseconds.
fn parse_seconds(text: &str) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = whole.chars().chain(fraction.chars()).all(|c| c.is_ascii_digit());
    if !all_digits || fraction.len() > 9 || whole.is_empty() {
        return None;
    }
    let nanos: i128 = format!("{fraction:0<9}").parse().ok()?;
    Some(sign * (i128::from(whole.parse::<u64>().ok()?) * 1_000_000_000 + nanos))
}

/// Pairs of hexadecimal digits, with colons between them or with nothing.
fn parse_hex(text: &str) -> Option<Vec<u8>> {
    let digits: String = text.strip_prefix("0x").unwrap_or(text).replace([':', '-'], "");
    if digits.is_empty() || !digits.len().is_multiple_of(2) || !digits.is_ascii() {
        return None;
    }
    let pair = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    (0..digits.len()).step_by(2).map(pair).collect()
}

/// An address of `len` bytes, alone or with the number of leading bits that count.
fn parse_prefix(text: &str, len: u32) -> Option<Literal> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, bits.parse().ok().filter(|&bits| bits <= len * 8)?),
        None => (text, len * 8),
    };
    let bytes = match address.parse().ok()? {
        IpAddr::V4(address) if len == 4 => address.octets().to_vec(),
        IpAddr::V4(address) => address.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V6(address) if len == 16 => address.octets().to_vec(),
        IpAddr::V6(_) => return None,
    };
    Some(Literal::Prefix(bytes, bits))
}

#[derive(Clone, Debug)]
struct Token {
    kind: Kind,
    at: Range<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Word(String),
    Quoted(String),
    Operator(Operator),
    And,
    Or,
    Not,
    Open,
    Close,
    End,
}

impl Token {
    fn error(&self, reason: impl Into<String>) -> FilterError {
        FilterError { reason: reason.into(), at: self.at.clone() }
    }
}

/// The signs, longest first, so that `>=` is not taken for `>`.
const SIGNS: [(&str, Kind); 11] = [
    ("&&", Kind::And),
    ("||", Kind::Or),
    ("==", Kind::Operator(Operator::Equal)),
    ("!=", Kind::Operator(Operator::NotEqual)),
    ("<=", Kind::Operator(Operator::LessOrEqual)),
    (">=", Kind::Operator(Operator::GreaterOrEqual)),
    ("<", Kind::Operator(Operator::Less)),
    (">", Kind::Operator(Operator::Greater)),
    ("!", Kind::Not),
    ("(", Kind::Open),
    (")", Kind::Close),
];

/// The words that mean what a sign means.
fn word_sign(word: &str) -> Option<Kind> {
    Some(match word {
        "and" => Kind::And,
        "or" => Kind::Or,
        "not" => Kind::Not,
        "eq" => Kind::Operator(Operator::Equal),
        "ne" => Kind::Operator(Operator::NotEqual),
        "lt" => Kind::Operator(Operator::Less),
        "le" => Kind::Operator(Operator::LessOrEqual),
        "gt" => Kind::Operator(Operator::Greater),
        "ge" => Kind::Operator(Operator::GreaterOrEqual),
        _ => return None,
    })
}

/// Takes `source` apart. Places are counted in characters, because people count so.
fn tokens(source: &str) -> Result<Vec<Token>, FilterError> {
    let chars: Vec<char> = source.chars().collect();
    let in_word = |c: char| c.is_alphanumeric() || "._:-/".contains(c);
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
        } else if c == '"' || c == '\'' {
            let inside = rest.iter().skip(1).position(|&other| other == c);
            let Some(len) = inside else {
                let reason = "this quote is never closed".to_owned();
                return Err(FilterError { reason, at: start..start + 1 });
            };
            at += len + 2;
            Kind::Quoted(rest.iter().skip(1).take(len).collect())
        } else if in_word(c) {
            let word: String = rest.iter().take_while(|&&c| in_word(c)).collect();
            at += word.chars().count();
            word_sign(&word).unwrap_or(Kind::Word(word))
        } else {
            let reason = match c {
                '=' => "'=' alone means nothing; equality is '=='".to_owned(),
                '&' | '|' => format!("'{c}' alone means nothing; write '{c}{c}'"),
                _ => format!("'{c}' means nothing here"),
            };
            return Err(FilterError { reason, at: start..start + 1 });
        };
        tokens.push(Token { kind, at: start..at });
    }
    tokens.push(Token { kind: Kind::End, at: chars.len()..chars.len() });
    Ok(tokens)
}

struct Parser {
    tokens: Vec<Token>,
    next: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).or_else(|| self.tokens.last()).expect("there is always an end")
    }

    fn take(&mut self) -> Token {
        let token = self.peek().clone();
        self.next += 1;
        token
    }

    fn accept(&mut self, kind: &Kind) -> bool {
        let found = self.peek().kind == *kind;
        self.next += usize::from(found);
        found
    }

    fn or(&mut self) -> Result<Node, FilterError> {
        let mut terms = vec![self.and()?];
        while self.accept(&Kind::Or) {
            terms.push(self.and()?);
        }
        Ok(alone_or(terms, Node::Or))
    }

    fn and(&mut self) -> Result<Node, FilterError> {
        let mut terms = vec![self.not()?];
        while self.accept(&Kind::And) {
            terms.push(self.not()?);
        }
        Ok(alone_or(terms, Node::And))
    }

    fn not(&mut self) -> Result<Node, FilterError> {
        let opening = self.peek().clone();
        if !matches!(opening.kind, Kind::Not | Kind::Open) {
            return self.test();
        }
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(opening.error(format!("nested more than {DEPTH_MAX} deep")));
        }
        self.next += 1;
        let node = if opening.kind == Kind::Not {
            Node::Not(Box::new(self.not()?))
        } else {
            let inner = self.or()?;
            if !self.accept(&Kind::Close) {
                let reason = match self.peek().kind {
                    Kind::End => return Err(opening.error("this parenthesis is never closed")),
                    _ => "a ')' is missing",
                };
                return Err(self.peek().error(reason));
            }
            inner
        };
        self.depth -= 1;
        Ok(node)
    }

    fn test(&mut self) -> Result<Node, FilterError> {
        let token = self.take();
        let Kind::Word(name) = &token.kind else {
            return Err(token.error("the name of a field is missing"));
        };
        let field = FieldRef::find(name).ok_or_else(|| token.error(unknown_field(name)))?;
        let Kind::Operator(operator) = self.peek().kind else {
            return Ok(Node::Present(field));
        };
        self.next += 1;
        let value = self.take();
        let (Kind::Word(text) | Kind::Quoted(text)) = &value.kind else {
            return Err(value.error("a value is missing"));
        };
        let literal = Literal::parse(field.kind(), text).map_err(|reason| value.error(reason))?;
        Ok(Node::Compare(field, operator, literal))
    }
}

/// The only term, or all of them joined.
fn alone_or(mut terms: Vec<Node>, join: fn(Vec<Node>) -> Node) -> Node {
    match terms.len() {
        1 => terms.remove(0),
        _ => join(terms),
    }
}

/// `there is no field 'X'`, with the name that was probably meant.
pub fn unknown_field(name: &str) -> String {
    let wanted = name.to_lowercase();
    // What is twice as long as any name is no misspelling.
    let candidates = FieldRef::names().iter().filter(|known| wanted.len() < 2 * known.len());
    let nearest = candidates.map(|known| (edit_distance(&wanted, known), known)).min();
    match nearest {
        Some((distance, known)) if distance <= 3 && distance * 3 <= wanted.len() => {
            format!("there is no field '{name}' (did you mean '{known}'?)")
        }
        _ => format!("there is no field '{name}'"),
    }
}

/// How many letters must be changed, added or removed to make `b` of `a`.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(&b) {
            let changed = diagonal + usize::from(x != *y);
            diagonal = *cell;
            left = changed.min(diagonal + 1).min(left + 1);
            *cell = left;
        }
        row[0] = i + 1;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(source: &str) -> (String, String) {
        let error = Filter::parse(source).unwrap_err();
        (error.to_string(), error.point(source).lines().nth(1).unwrap().to_owned())
    }

    #[test]
    fn an_error_points_at_the_character() {
        let (reason, mark) = error("infiniband.bth.pns == 1");
        assert!(reason.contains("did you mean 'infiniband.bth.psn'?"), "{reason}");
        assert!(!error("tcp").0.contains("did you mean"), "not just anything");
        assert!(error("infiniband.bth.PSN").0.contains("'infiniband.bth.psn'"));
        assert_eq!(mark, "^^^^^^^^^^^^^^^^^^");
        assert_eq!(error("ip.src = 1").1, "       ^");
        assert_eq!(error("(ip.src").0, "this parenthesis is never closed, at character 1");
        assert_eq!(error("roce ip").1, "     ^^");
        assert_eq!(error("frame.number == x").1, "                ^");
        assert!(error("roce.icrc == Bad").0.contains("one of ok, bad, absent"));
        assert!(error("roce.opcode_name == RC_SEND").0.contains("RC_SEND_FIRST, "));
        assert_eq!(error("roce &&").0, "the name of a field is missing, at character 8");
        assert_eq!(error("").0, "the name of a field is missing, at character 1");
        assert_eq!(error("roce == 'x").0, "this quote is never closed, at character 9");
        assert!(error(&"(".repeat(100)).0.starts_with("nested more than 64 deep"));
    }

    #[test]
    fn a_long_filter_is_as_good_as_a_short_one() {
        for sign in ["||", "&&"] {
            let long = vec!["ip"; 100_000].join(sign);
            drop(Filter::parse(&long).unwrap());
        }
    }

    #[test]
    fn seconds_are_exact() {
        assert_eq!(parse_seconds("1.5"), Some(1_500_000_000));
        assert_eq!(parse_seconds("-0.000000001"), Some(-1));
        assert_eq!(parse_seconds("1.0000000001"), None);
        assert_eq!(parse_seconds("."), None);
    }

    #[test]
    fn addresses_may_be_prefixes() {
        let net = parse_prefix("10.9.0.0/16", 4).unwrap();
        assert!(net.equals(&Value::Bytes(&[10, 9, 3, 4])));
        assert!(!net.equals(&Value::Bytes(&[10, 8, 3, 4])));
        assert!(parse_prefix("10.9.0.0/33", 4).is_none());
        assert!(parse_prefix("fe80::/10", 4).is_none());
    }

    #[test]
    fn the_distance_of_words_counts_their_differences() {
        assert_eq!(edit_distance("psn", "psn"), 0);
        assert_eq!(edit_distance("pns", "psn"), 2);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }
}
