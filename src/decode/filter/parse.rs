//! Parser of filters, from tokens to tests. Precedence is Wireshark's: `&`, then comparisons, `!`,
//! `&&`, `^^`, `||`.

use super::super::context::FieldRef;
use super::super::field::Show;
use super::lex::{Kind, Token, tokens};
use super::literal::{Element, Literal, Set, parse_number};
use super::pattern::{Pattern, searchable};
use super::suggest::unknown_field;
use super::{FilterError, Node, Operand, Right};

/// The deepest nesting of parentheses and negations that is accepted.
const DEPTH_MAX: usize = 64;

/// Parses a filter.
pub(super) fn parse(source: &str) -> Result<Node, FilterError> {
    let mut parser = Parser { tokens: tokens(source)?, next: 0, depth: 0 };
    let root = parser.or()?;
    match parser.peek() {
        Token { kind: Kind::End, .. } => Ok(root),
        token => Err(token.error("this does not belong here")),
    }
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
        self.joined(&Kind::Or, Node::Or, Self::xor)
    }

    fn xor(&mut self) -> Result<Node, FilterError> {
        self.joined(&Kind::Xor, Node::Xor, Self::and)
    }

    fn and(&mut self) -> Result<Node, FilterError> {
        self.joined(&Kind::And, Node::And, Self::not)
    }

    /// Terms with a sign between them; one alone is itself.
    fn joined(
        &mut self,
        sign: &Kind,
        join: fn(Vec<Node>) -> Node,
        term: fn(&mut Self) -> Result<Node, FilterError>,
    ) -> Result<Node, FilterError> {
        let mut terms = vec![term(self)?];
        while self.accept(sign) {
            terms.push(term(self)?);
        }
        Ok(match terms.len() {
            1 => terms.remove(0),
            _ => join(terms),
        })
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

    /// A field with what is asked of it.
    fn test(&mut self) -> Result<Node, FilterError> {
        let token = self.peek().clone();
        let left = self.operand()?;
        let operator = self.peek().clone();
        match operator.kind {
            Kind::Relation(relation) => {
                self.next += 1;
                Ok(Node::Compare(left.clone(), relation, self.right(&left)?))
            }
            Kind::In => {
                self.next += 1;
                Ok(Node::In(left.clone(), self.set(&left)?))
            }
            Kind::Not if self.tokens.get(self.next + 1).is_some_and(|t| t.kind == Kind::In) => {
                self.next += 2;
                Ok(Node::Not(Box::new(Node::In(left.clone(), self.set(&left)?))))
            }
            Kind::Contains | Kind::Matches => {
                self.next += 1;
                self.search(left, &token, &operator)
            }
            _ if left.mask.is_some() => Ok(Node::AnyBit(left)),
            _ => Ok(Node::Present(left.field)),
        }
    }

    /// A field, with the bits of it that count.
    fn operand(&mut self) -> Result<Operand, FilterError> {
        let token = self.take();
        let Kind::Word(name) = &token.kind else {
            return Err(token.error("the name of a field is missing"));
        };
        let field = FieldRef::find(name).ok_or_else(|| token.error(unknown_field(name)))?;
        self.masked(field, &token)
    }

    /// The bits that `&` leaves of a field that `token` has named.
    fn masked(&mut self, field: FieldRef, token: &Token) -> Result<Operand, FilterError> {
        let mut operand = Operand { field, mask: None };
        while self.accept(&Kind::BitAnd) {
            if Class::of(&operand.field) != Class::Number {
                let name = operand.field.name();
                return Err(token.error(format!("'&' takes bits of numbers, and {name} is none")));
            }
            let value = self.take();
            let number = match &value.kind {
                Kind::Word(text) => parse_number(text),
                _ => None,
            };
            let Some(number) = number else {
                return Err(value.error("a number is missing behind '&' (and is '&&')"));
            };
            operand.mask = Some(operand.mask.unwrap_or(u64::MAX) & number);
        }
        Ok(operand)
    }

    /// Parses the right side of a comparison with `left`: another field, or a value.
    fn right(&mut self, left: &Operand) -> Result<Right, FilterError> {
        let token = self.take();
        let (Kind::Word(text) | Kind::Quoted(text)) = &token.kind else {
            return Err(token.error("a value is missing"));
        };
        let quoted = matches!(token.kind, Kind::Quoted(_));
        let field = if quoted { None } else { FieldRef::find(text) };
        if let Some(field) = field.filter(|field| !field.is_layer()) {
            let (ours, theirs) = (Class::of(&left.field), Class::of(&field));
            if ours != theirs {
                let (a, b) = (left.field.name(), field.name());
                let (ours, theirs) = (ours.name(), theirs.name());
                let reason = format!("{a} is {ours} and {b} is {theirs}: they cannot be compared");
                return Err(token.error(reason));
            }
            return Ok(Right::Operand(self.masked(field, &token)?));
        }
        let literal = Literal::parse(left.field.kind(), text);
        literal.map(Right::Literal).map_err(|reason| token.error(reason))
    }

    /// `{1, 5..9}`, of what `left` can be.
    fn set(&mut self, left: &Operand) -> Result<Set, FilterError> {
        let opening = self.take();
        if opening.kind != Kind::OpenSet {
            return Err(opening.error("a set in braces is missing: {1, 5..9}"));
        }
        let mut elements = Vec::new();
        loop {
            elements.push(self.element(left)?);
            let separator = self.take();
            match separator.kind {
                Kind::Comma => {}
                Kind::CloseSet => return Ok(Set::new(elements)),
                Kind::End => return Err(opening.error("this brace is never closed")),
                _ => return Err(separator.error("a ',' or a '}' is missing")),
            }
        }
    }

    /// A value of a set, or a range of them.
    fn element(&mut self, left: &Operand) -> Result<Element, FilterError> {
        let (low, place) = self.literal(left)?;
        if !self.accept(&Kind::Through) {
            return Ok(Element::One(low));
        }
        let (high, end) = self.literal(left)?;
        let at = place.at.start..end.at.end;
        let whole = Token { kind: Kind::Through, at };
        Element::through(low, high).map_err(|reason| whole.error(reason))
    }

    fn literal(&mut self, left: &Operand) -> Result<(Literal, Token), FilterError> {
        let token = self.take();
        let (Kind::Word(text) | Kind::Quoted(text)) = &token.kind else {
            return Err(token.error("a value is missing"));
        };
        let literal = Literal::parse(left.field.kind(), text);
        literal.map(|literal| (literal, token.clone())).map_err(|reason| token.error(reason))
    }

    /// Parses the argument of `contains` or `matches`.
    fn search(
        &mut self,
        left: Operand,
        name: &Token,
        operator: &Token,
    ) -> Result<Node, FilterError> {
        let word = if operator.kind == Kind::Contains { "contains" } else { "matches" };
        searchable(&left.field, word).map_err(|reason| name.error(reason))?;
        let token = self.take();
        let (Kind::Word(text) | Kind::Quoted(text)) = &token.kind else {
            return Err(token.error(format!("what it {word} is missing, best in quotes")));
        };
        let pattern = match operator.kind {
            Kind::Contains => {
                Pattern::literal(&left.field, text, matches!(token.kind, Kind::Quoted(_)))
            }
            _ => Pattern::regex(text),
        };
        let pattern = pattern.map_err(|reason| token.error(reason))?;
        Ok(Node::Search(left.field, pattern))
    }
}

/// Class of a field's values, which decides what they can be compared with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Number,
    Seconds,
    Text,
    Bytes,
    Ipv4,
    Ipv6,
}

impl Class {
    fn of(field: &FieldRef) -> Self {
        match field.kind().show {
            Show::Dec | Show::Hex(_) => Self::Number,
            Show::Seconds | Show::Date => Self::Seconds,
            Show::Text => Self::Text,
            Show::Bytes | Show::Mac => Self::Bytes,
            Show::Ipv4 => Self::Ipv4,
            Show::Ipv6 => Self::Ipv6,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Number => "a number",
            Self::Seconds => "a time",
            Self::Text => "text",
            Self::Bytes => "a string of bytes",
            Self::Ipv4 => "an IPv4 address",
            Self::Ipv6 => "an IPv6 address",
        }
    }
}
