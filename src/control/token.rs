//! The secret that both sides of a control connection know, and numbers that are used once.

use std::fmt::Write as _;
use std::io;

use crate::proof::NONCE;

/// Shortest token: a shorter one is guessed.
pub const TOKEN_BYTES_MIN: usize = 8;

/// A secret that both sides know and neither sends.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Takes a secret of at least [`TOKEN_BYTES_MIN`] bytes.
    pub fn new(text: &str) -> Option<Self> {
        (text.len() >= TOKEN_BYTES_MIN).then(|| Self(text.to_owned()))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// A number that one side chooses anew for each connection, so that no old proof fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonce(pub [u8; NONCE]);

impl Nonce {
    /// Returns a number that was never used before.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; NONCE];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(bytes))
    }

    pub(super) fn parse(word: &str) -> Option<Self> {
        Some(Self(unhex(word)?))
    }
}

impl std::fmt::Display for Nonce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// Returns bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Parses exactly `LEN` bytes of hexadecimal digits, in lower case as they are sent.
pub(super) fn unhex<const LEN: usize>(digits: &str) -> Option<[u8; LEN]> {
    let (mut bytes, mut rest) = ([0; LEN], digits.as_bytes());
    for byte in &mut bytes {
        let ([high, low], after) = rest.split_first_chunk::<2>()?;
        *byte = digit(*high)? << 4 | digit(*low)?;
        rest = after;
    }
    rest.is_empty().then_some(bytes)
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_token_is_refused_and_no_token_is_shown() {
        assert_eq!(Token::new("1234567"), None);
        let token = Token::new("12345678").unwrap();
        assert!(!format!("{token:?}").contains("1234"));
    }

    #[test]
    fn nonce_is_parsed_as_it_is_shown_and_in_no_other_way() {
        let nonce = Nonce::random().unwrap();
        assert_ne!(nonce, Nonce::random().unwrap());
        let text = nonce.to_string();
        assert_eq!(Nonce::parse(&text), Some(nonce));
        for wrong in [&text[1..], &format!("{text}0"), &format!("+{}", &text[1..]), "", "ä"] {
            assert_eq!(Nonce::parse(wrong), None, "{wrong}");
        }
    }
}
