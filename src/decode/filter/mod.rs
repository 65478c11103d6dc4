//! Filters of packets: tests of fields, joined by `&&`, `||`, `^^`, `!` and parentheses.
//!
//! The language is Wireshark's, as far as it goes; `docs/filter.md` is its reference. `lex` takes
//! the text apart, `parse` makes a tree of tests of it and finds every mistake, with its place;
//! `literal` holds the values that fields are compared with, `pattern` what is searched for. To
//! test a packet allocates nothing, but for the few fields whose values are sentences.

mod lex;
mod literal;
mod parse;
mod pattern;
mod suggest;

use core::cmp::Ordering;
use core::fmt;
use core::ops::Range;

use thiserror::Error;

use super::Context;
use super::context::FieldRef;
use super::escape::Printable;
use super::field::{Field, Value};
use literal::{Literal, Set, compare_values};
use pattern::Pattern;

pub use suggest::unknown_field;

/// A test of packets.
///
/// ```
/// use roce::decode::Filter;
///
/// Filter::parse("infiniband.bth.destqp == 0x11 && roce.icrc == bad").unwrap();
/// Filter::parse("infiniband.bth.opcode in {RC_SEND_ONLY, 6..8} && frame.len > frame.cap_len").unwrap();
/// let error = Filter::parse("infiniband.bth.psn = 3").unwrap_err();
/// assert_eq!(error.to_string(), "'=' alone means nothing; equality is '==', at character 20");
/// ```
#[derive(Clone, Debug)]
pub struct Filter {
    root: Node,
}

/// Error in a filter, with its position.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct FilterError {
    /// Message.
    pub reason: String,
    /// The characters that are, counted from 0.
    pub at: Range<usize>,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The reason can repeat a part of the filter, which may come from anywhere.
        write!(f, "{}, at character {}", Printable(&self.reason), self.at.start + 1)
    }
}

impl FilterError {
    /// The filter with the place marked beneath it, in two lines.
    pub fn point(&self, source: &str) -> String {
        let shown = |characters: Range<usize>| -> String {
            let part: String =
                source.chars().skip(characters.start).take(characters.len()).collect();
            Printable(&part).to_string()
        };
        let indent = shown(0..self.at.start).chars().count();
        let marks = "^".repeat(shown(self.at.clone()).chars().count().max(1));
        format!("{}\n{:indent$}{marks}", Printable(source), "")
    }
}

/// A test, or several of them.
#[derive(Clone, Debug)]
enum Node {
    Or(Vec<Self>),
    Xor(Vec<Self>),
    And(Vec<Self>),
    Not(Box<Self>),
    /// The field is there.
    Present(FieldRef),
    /// Some of the bits are set.
    AnyBit(Operand),
    Compare(Operand, Relation, Right),
    In(Operand, Set),
    Search(FieldRef, Pattern),
}

/// A field, or some bits of it.
#[derive(Clone, Debug)]
struct Operand {
    field: FieldRef,
    mask: Option<u64>,
}

/// Right side of a comparison.
#[derive(Clone, Debug)]
enum Right {
    Literal(Literal),
    Operand(Operand),
}

/// Relation of two values. A field may have several values: of most relations, one pair that has it
/// is enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Equal,
    /// All pairs are equal.
    AllEqual,
    /// No pair is equal.
    NotEqual,
    /// Some pair is unequal.
    AnyNotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Filter {
    /// Parses a filter.
    pub fn parse(source: &str) -> Result<Self, FilterError> {
        parse::parse(source).map(|root| Self { root })
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
            Self::Or(terms) | Self::Xor(terms) | Self::And(terms) => {
                terms.iter().any(|term| term.uses(name))
            }
            Self::Not(inner) => inner.uses(name),
            Self::Present(field) | Self::Search(field, _) => field.name() == name,
            Self::Compare(left, _, Right::Operand(right)) => {
                left.field.name() == name || right.field.name() == name
            }
            Self::AnyBit(operand) | Self::Compare(operand, ..) | Self::In(operand, _) => {
                operand.field.name() == name
            }
        }
    }

    fn matches(&self, context: &Context<'_>) -> bool {
        match self {
            Self::Or(terms) => terms.iter().any(|term| term.matches(context)),
            Self::Xor(terms) => terms.iter().filter(|term| term.matches(context)).count() % 2 == 1,
            Self::And(terms) => terms.iter().all(|term| term.matches(context)),
            Self::Not(inner) => !inner.matches(context),
            Self::Present(field) => field.values(context).next().is_some(),
            Self::AnyBit(operand) => {
                operand.values(context).any(|(_, value)| value != Value::Uint(0))
            }
            Self::Compare(left, relation, Right::Literal(literal)) => {
                relation.holds(left.values(context).map(|(_, value)| {
                    let equal = literal.equals(&value);
                    (equal, literal.compare(&value))
                }))
            }
            Self::Compare(left, relation, Right::Operand(right)) => {
                relation.holds(left.values(context).flat_map(|(_, value)| {
                    right.values(context).map(move |(_, other)| {
                        let order = compare_values(&value, &other);
                        (order == Some(Ordering::Equal), order)
                    })
                }))
            }
            Self::In(operand, set) => {
                operand.values(context).any(|(_, value)| set.contains(&value))
            }
            Self::Search(field, pattern) => pattern.is_in(field, context),
        }
    }
}

impl Operand {
    fn values<'c, 'a>(
        &'c self,
        context: &'c Context<'a>,
    ) -> impl Iterator<Item = (&'static Field, Value<'a>)> + use<'c, 'a> {
        self.field.values(context).map(|(field, value)| match (self.mask, value) {
            (Some(mask), Value::Uint(number)) => (field, Value::Uint(number & mask)),
            (_, value) => (field, value),
        })
    }
}

impl Relation {
    /// Whether pairs of values, each told by whether they are equal and how the first stands to the
    /// second, have it.
    fn holds(self, mut pairs: impl Iterator<Item = (bool, Option<Ordering>)>) -> bool {
        let mut any = |test: fn(Option<Ordering>) -> bool| pairs.any(|(_, order)| test(order));
        match self {
            Self::Less => any(|order| order == Some(Ordering::Less)),
            Self::LessOrEqual => any(|order| order.is_some_and(Ordering::is_le)),
            Self::Greater => any(|order| order == Some(Ordering::Greater)),
            Self::GreaterOrEqual => any(|order| order.is_some_and(Ordering::is_ge)),
            Self::Equal => pairs.any(|(equal, _)| equal),
            Self::AnyNotEqual => pairs.any(|(equal, _)| !equal),
            Self::AllEqual | Self::NotEqual => {
                let mut pairs = pairs.peekable();
                pairs.peek().is_some() && pairs.all(|(equal, _)| equal == (self == Self::AllEqual))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(source: &str) -> (String, String) {
        let error = Filter::parse(source).unwrap_err();
        (error.to_string(), error.point(source).lines().nth(1).unwrap().to_owned())
    }

    #[test]
    fn errors_repeat_no_control_sequences() {
        for source in ["\x1b[31mred", "frame.len == \x1b[2J", "'\x1b]0;x\x07", "a\u{202e}b == 1"] {
            let error = Filter::parse(source).unwrap_err();
            let shown = format!("{error}{}", error.point(source).replace('\n', ""));
            assert!(shown.chars().all(super::super::is_plain), "{shown:?}");
        }
        let error = Filter::parse("\x1b[31mred").unwrap_err();
        let marked = error.point("\x1b[31mred");
        assert_eq!(marked.lines().next(), Some("\\u{1b}[31mred"), "{marked}");
        assert!(marked.lines().nth(1).unwrap().starts_with("^^^^^^"), "{marked}");
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
    fn an_error_of_every_operator_points_at_its_place() {
        let cases = [
            ("frame.len in 1", "             ^", "a set in braces is missing"),
            ("frame.len in {1, x}", "                 ^", "frame.len is a number"),
            ("frame.len in {1 2}", "                ^", "a ',' or a '}' is missing"),
            ("frame.len in {1, 2", "             ^", "this brace is never closed"),
            ("frame.len in {}", "              ^", "a value is missing"),
            ("frame.len in {5..1}", "              ^^^^", "ends before it begins"),
            ("ip.src in {10.0.0.0/8..11.0.0.0/8}", "           ^^^^^^^^^^^^^^^^^^^^^^", "without"),
            ("roce.icrc in {ok..bad}", "              ^^^^^^^", "words have no range"),
            ("frame.len contains 1", "^^^^^^^^^", "frame.len is a number"),
            ("ip.src matches 1", "^^^^^^", "an address; compare it with =="),
            ("frame contains xyz", "               ^^^", "text stands in quotes"),
            ("frame contains", "              ^", "what it contains is missing"),
            ("frame matches '('", "              ^^^", "unclosed group"),
            ("frame matches '(\\w{900}){900}'", "              ^^^^^^^^^^^^^^^^", "too large"),
            ("ip.src & 1", "^^^^^^", "'&' takes bits of numbers"),
            ("frame.len & x == 1", "            ^", "a number is missing behind '&'"),
            ("frame.len == ip.src", "             ^^^^^^", "is a number and ip.src is an IPv4"),
            (
                "infiniband.bth.opcode == RC_SEND_ONLI",
                "                         ^^^^^^^^^^^^",
                "RC_SEND_ONLY",
            ),
            ("infiniband.bth.opcode == 1x", "                         ^^", "one of RC_SEND_FIRST"),
            ("ip ^ udp", "   ^", "write '^^'"),
            ("ip | udp", "   ^", "write '||'"),
            ("frame.len not 5", "          ^^^", "does not belong here"),
        ];
        for (source, mark, reason) in cases {
            let (said, at) = error(source);
            assert!(said.contains(reason), "{source}: {said}");
            assert_eq!(at.len(), mark.len(), "{source}: {said}");
            assert_eq!(at.find('^'), mark.find('^'), "{source}: {said}");
        }
    }

    #[test]
    fn filters_tell_which_fields_they_use() {
        let uses = |source: &str, name| Filter::parse(source).unwrap().uses(name);
        for source in [
            "frame.file",
            "!frame.file",
            "ip && (udp || frame.file contains x)",
            "ip ^^ frame.file in {a, b}",
            "roce.icrc == frame.file",
            "frame.file != x",
        ] {
            assert!(uses(source, "frame.file"), "{source}");
            assert!(!uses(source, "frame.len"), "{source}");
        }
        assert!(uses("frame.len & 1", "frame.len") && uses("frame.len not in {1}", "frame.len"));
    }

    #[test]
    fn every_filter_of_the_reference_is_one() {
        let page = include_str!("../../../docs/filter.md");
        let (mut block, mut good, mut bad) = ("", 0, 0);
        for line in page.lines() {
            match line.strip_prefix("```") {
                Some(name) => block = name,
                None if block == "filter" => {
                    Filter::parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
                    good += 1;
                }
                None if block == "filter-error" => {
                    assert!(Filter::parse(line).is_err(), "{line}");
                    bad += 1;
                }
                None => {}
            }
        }
        assert!(good >= 30 && bad >= 7, "{good} and {bad} lines");
    }
}
