//! The syndrome of an AETH, taken apart: credits, receiver-not-ready timers, refusals.

use core::fmt;
use core::time::Duration;

use super::layout::whole_field;
use super::num::Bits;

/// The first byte of an AETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Syndrome(pub u8);

whole_field!(Syndrome(u8));

/// Meaning of a syndrome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request was accepted; the responder has room for this many more messages.
    Ack(Credits),
    /// No receive buffer was posted: try again after a while.
    RnrNak(RnrTimer),
    /// Bits 6:5 are 2, which means nothing.
    Reserved(Bits<5>),
    /// The request was refused.
    Nak(NakCode),
}

impl Syndrome {
    /// Returns the meaning. Bit 7 is reserved and does not matter.
    pub const fn answer(self) -> Answer {
        // Rule: T-26.
        let value = Bits::low(self.0 as u32);
        match self.0 >> 5 & 3 {
            0 => Answer::Ack(Credits(value)),
            1 => Answer::RnrNak(RnrTimer(value)),
            2 => Answer::Reserved(value),
            _ => Answer::Nak(NakCode::from_code(value)),
        }
    }
}

impl From<Answer> for Syndrome {
    fn from(answer: Answer) -> Self {
        let (kind, value) = match answer {
            Answer::Ack(credits) => (0, credits.0),
            Answer::RnrNak(timer) => (1, timer.0),
            Answer::Reserved(value) => (2, value),
            Answer::Nak(code) => (3, code.code()),
        };
        #[expect(clippy::cast_possible_truncation, reason = "two bits and five make a byte")]
        Self((kind << 5 | value.get()) as u8)
    }
}

impl fmt::Display for Answer {
    /// Writes the answer for traces: `ACK credits=31`, `RNR 0.64 ms`, `NAK remote access error`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack(credits) => write!(f, "ACK credits={}", credits.0),
            Self::RnrNak(timer) => write!(f, "RNR {timer}"),
            Self::Reserved(value) => write!(f, "reserved syndrome {value}"),
            Self::Nak(code) => write!(f, "NAK {code}"),
        }
    }
}

/// An end-to-end credit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits(pub Bits<5>);

impl Credits {
    /// The code of a responder that does not count credits.
    pub const UNLIMITED: Self = Self(Bits::MAX);

    /// The largest code that does not promise more than `available` receive work requests.
    pub fn advertise(available: u32) -> Self {
        // Two codes for each power of two: of it, and of one and a half times as many.
        let code = match available.checked_ilog2() {
            None => 0,
            Some(0) => 1,
            Some(top) => 2 * top + (available >> (top - 1) & 1),
        };
        Self(Bits::low(code.min(30)))
    }

    /// Returns the number of receive work requests that the code stands for, or `None` if it sets
    /// no limit.
    pub const fn count(self) -> Option<u32> {
        // Rule: P-13.1.
        match self.0.get() {
            0 => Some(0),
            31 => None,
            code => Some(((2 + (code & 1)) << (code >> 1)) >> 1),
        }
    }
}

/// A receiver-not-ready timer code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(pub Bits<5>);

impl RnrTimer {
    // Rules: P-06.1, Q-03, T-55.
    /// The times in units of 10 µs, by code. Code 0 is the longest.
    const TENS_OF_MICROS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// Returns the minimum time that the requester must wait, in microseconds.
    #[expect(clippy::indexing_slicing, reason = "five bits have thirty-two values")]
    pub fn micros(self) -> u32 {
        Self::TENS_OF_MICROS[self.0.get() as usize] * 10
    }

    /// Returns the minimum time that the requester must wait.
    pub fn duration(self) -> Duration {
        Duration::from_micros(u64::from(self.micros()))
    }
}

impl fmt::Display for RnrTimer {
    /// Writes the time in milliseconds: `0.64 ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = self.micros() / 10;
        write!(f, "{}.{:02} ms", hundredths / 100, hundredths % 100)
    }
}

/// Reason of a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// A packet is missing before this one.
    PsnSequenceError,
    /// The request makes no sense on this queue pair.
    InvalidRequest,
    /// The memory may not be reached so.
    RemoteAccessError,
    /// The responder failed.
    RemoteOperationalError,
    /// Invalid request of the reliable datagram service.
    InvalidRdRequest,
    /// A code of 5 or more.
    Reserved(Bits<5>),
}

impl NakCode {
    /// Returns the reason with this code.
    pub const fn from_code(code: Bits<5>) -> Self {
        match code.get() {
            0 => Self::PsnSequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccessError,
            3 => Self::RemoteOperationalError,
            4 => Self::InvalidRdRequest,
            _ => Self::Reserved(code),
        }
    }

    /// Returns the code of this reason.
    pub const fn code(self) -> Bits<5> {
        match self {
            Self::PsnSequenceError => Bits::low(0),
            Self::InvalidRequest => Bits::low(1),
            Self::RemoteAccessError => Bits::low(2),
            Self::RemoteOperationalError => Bits::low(3),
            Self::InvalidRdRequest => Bits::low(4),
            Self::Reserved(code) => code,
        }
    }
}

impl NakCode {
    /// The refusal in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::PsnSequenceError => "PSN sequence error",
            Self::InvalidRequest => "invalid request",
            Self::RemoteAccessError => "remote access error",
            Self::RemoteOperationalError => "remote operational error",
            Self::InvalidRdRequest => "invalid RD request",
            Self::Reserved(_) => "reserved",
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reserved(code) => write!(f, "reserved code {code}"),
            known => f.write_str(known.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Credits by code, from another implementation's table.
    const CREDITS: [u32; 31] = [
        0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
        2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
    ];

    #[test]
    fn every_credit_code_has_its_count() {
        // Rule: P-13.1.
        for (code, &count) in (0..).zip(&CREDITS) {
            assert_eq!(Credits(Bits::low(code)).count(), Some(count), "code {code}");
        }
        assert_eq!(Credits::UNLIMITED.count(), None);
    }

    #[test]
    fn credits_never_promise_more_than_there_is() {
        for available in (0..40_000).chain([u32::MAX]) {
            let code = Credits::advertise(available).0.get() as usize;
            assert!(CREDITS[code] <= available);
            assert!(CREDITS.get(code + 1).is_none_or(|&next| next > available), "{available}");
        }
    }

    #[test]
    fn the_rnr_timer_of_code_0_is_the_longest() {
        let micros = |code| RnrTimer(Bits::low(code)).micros();
        assert_eq!([0, 1, 12, 14, 25, 31].map(micros), [655_360, 10, 640, 1280, 61_440, 491_520]);
        assert_eq!((1..32).map(micros).max(), Some(491_520));
        assert!((1..31).all(|code| micros(code) < micros(code + 1)));
    }

    #[test]
    fn syndromes_come_apart_and_together() {
        for byte in 0..=0x7f {
            assert_eq!(Syndrome::from(Syndrome(byte).answer()), Syndrome(byte));
        }
        let words = |byte| Syndrome(byte).answer().to_string();
        assert_eq!(words(0x1f), "ACK credits=31");
        assert_eq!(words(0x2c), "RNR 0.64 ms");
        assert_eq!(words(0x60), "NAK PSN sequence error");
        assert_eq!(words(0x62), "NAK remote access error");
        assert_eq!(words(0x45), "reserved syndrome 5");
        assert_eq!(words(0x7f), "NAK reserved code 31");
    }
}
