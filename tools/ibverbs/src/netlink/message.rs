//! Messages of netlink: requests are taken apart, answers are put together.

use std::ffi::c_int;

/// Length of `struct nlmsghdr`.
const HEADER_LEN: usize = 16;

/// Length of `struct nlattr`.
const ATTRIBUTE_LEN: usize = 4;

/// Most bytes of an answer in one datagram: programs read into a page.
const DATAGRAM_MAX: usize = 3072;

// Types and flags of `linux/netlink.h`.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const FLAG_REQUEST: u16 = 1;
const FLAG_MULTI: u16 = 2;
const FLAG_ACK: u16 = 4;
const FLAG_DUMP: u16 = 0x300;
const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;

/// A request of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    pub(super) kind: u16,
    flags: u16,
    sequence: u32,
    header: &'a [u8],
    attributes: &'a [u8],
}

impl<'a> Request<'a> {
    /// Takes the first message from what a program sent; `None` at the end, and for what is no
    /// message.
    pub(super) fn take(bytes: &mut &'a [u8]) -> Option<Self> {
        let header = bytes.get(..HEADER_LEN)?;
        let len = word(header, 0)? as usize;
        let whole = bytes.get(..len).filter(|whole| whole.len() >= HEADER_LEN)?;
        *bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Self {
            kind: half(header, 4)?,
            flags: half(header, 6)?,
            sequence: word(header, 8)?,
            header,
            attributes: whole.get(HEADER_LEN..)?,
        })
    }

    /// Whether it asks for something; answers and acknowledgements do not.
    pub(super) fn is_request(&self) -> bool {
        self.flags & FLAG_REQUEST != 0
    }

    /// Whether it asks for all objects, and not for one.
    pub(super) fn is_dump(&self) -> bool {
        self.flags & FLAG_DUMP == FLAG_DUMP
    }

    /// Returns an attribute that is a number of 32 bits.
    pub(super) fn number(&self, wanted: u16) -> Option<u32> {
        let mut rest = self.attributes;
        while let (Some(len), Some(kind)) = (half(rest, 0), half(rest, 2)) {
            let whole = rest.get(..len.into()).filter(|whole| whole.len() >= ATTRIBUTE_LEN)?;
            if kind & TYPE_MASK == wanted {
                return word(whole, ATTRIBUTE_LEN);
            }
            rest = rest.get(usize::from(len).next_multiple_of(4)..).unwrap_or_default();
        }
        None
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Attributes of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    fn put(&mut self, kind: u16, value: &[u8]) {
        let len = u16::try_from(ATTRIBUTE_LEN + value.len()).unwrap_or(u16::MAX);
        self.0.extend(len.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    pub(super) fn byte(&mut self, kind: u16, value: u8) {
        self.put(kind, &[value]);
    }

    pub(super) fn word(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    pub(super) fn long(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_ne_bytes());
    }

    pub(super) fn text(&mut self, kind: u16, value: &str) {
        self.put(kind, &[value.as_bytes(), &[0]].concat());
    }

    pub(super) fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.put(kind | NESTED, &inner.0);
    }
}

/// The answers to what a program sent, as datagrams.
#[derive(Debug)]
pub(super) struct Answers {
    /// The address of the program's socket.
    port_id: u32,
    datagrams: Vec<Vec<u8>>,
}

impl Answers {
    pub(super) fn new(port_id: u32) -> Self {
        Self { port_id, datagrams: Vec::new() }
    }

    /// Answers a request: with one message for each object, or with an error number.
    pub(super) fn answer(&mut self, to: &Request<'_>, answer: Result<Vec<Attributes>, c_int>) {
        let multi = if to.is_dump() { FLAG_MULTI } else { 0 };
        match answer {
            Err(errno) => self.acknowledge(to, -errno),
            Ok(objects) => {
                for object in objects {
                    self.message(to, to.kind, multi, &object.0);
                }
                if to.is_dump() {
                    self.message(to, DONE, FLAG_MULTI, &0_i32.to_ne_bytes());
                } else if to.flags & FLAG_ACK != 0 {
                    self.acknowledge(to, 0);
                }
            }
        }
    }

    fn acknowledge(&mut self, to: &Request<'_>, error: c_int) {
        let body = [&error.to_ne_bytes(), to.header].concat();
        self.message(to, ERROR, 0, &body);
    }

    fn message(&mut self, to: &Request<'_>, kind: u16, flags: u16, body: &[u8]) {
        let len = HEADER_LEN + body.len();
        let mut bytes = Vec::with_capacity(len.next_multiple_of(4));
        bytes.extend(u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(to.sequence.to_ne_bytes());
        bytes.extend(self.port_id.to_ne_bytes());
        bytes.extend(body);
        bytes.resize(len.next_multiple_of(4), 0);
        match self.datagrams.last_mut() {
            Some(last) if last.len() + bytes.len() <= DATAGRAM_MAX => last.extend(bytes),
            _ => self.datagrams.push(bytes),
        }
    }

    pub(super) fn into_datagrams(self) -> Vec<Vec<u8>> {
        self.datagrams
    }
}
