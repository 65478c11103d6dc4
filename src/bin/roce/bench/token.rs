//! The token of a server: a client proves that it knows it, and does not send it.

use std::fmt::Write as _;

use anyhow::{Context, ensure};
use clap::Args;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Shortest token: a shorter one is guessed.
const BYTES_MIN: usize = 8;

/// The options of a token.
#[derive(Args)]
pub(crate) struct TokenArgs {
    /// A secret of at least 8 characters that both sides know, for networks that are not trusted. Other
    /// users of this host see it in the list of processes: prefer the variable. The traffic is not encrypted.
    #[arg(long, env = "ROCE_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
}

impl std::fmt::Debug for TokenArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenArgs").field("given", &self.token.is_some()).finish()
    }
}

impl TokenArgs {
    pub(crate) fn get(&self) -> anyhow::Result<Option<Token>> {
        // An empty variable is as none.
        let Some(text) = self.token.as_deref().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        ensure!(
            text.len() >= BYTES_MIN,
            "--token: at least {BYTES_MIN} characters; `openssl rand -hex 16` makes a good one"
        );
        Ok(Some(Token(text.to_owned())))
    }
}

/// A secret.
#[derive(Clone)]
pub(crate) struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Returns the proof that a nonce asks for: its HMAC-SHA256 under the token.
    pub(crate) fn proof(&self, nonce: &str) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.0.as_bytes())
            .expect("HMAC takes a key of any length");
        mac.update(b"roce-bench client ");
        mac.update(nonce.as_bytes());
        hex(&mac.finalize().into_bytes())
    }
}

/// Returns a number that was never used before.
pub(crate) fn nonce() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).context("the system has no random numbers")?;
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_depends_on_token_and_nonce() {
        let token = Token("correct horse".to_owned());
        let proof = token.proof("00ff");
        // Computed by OpenSSL: printf 'roce-bench client 00ff' | openssl dgst -sha256 -hmac 'correct horse'
        assert_eq!(proof, "907397c9f9a90545d20805eccc7c9bdb526129488b4099fd39544da7454b1fce");
        assert_ne!(proof, token.proof("00fe"));
        assert_ne!(proof, Token("correct hors".to_owned()).proof("00ff"));
        assert_ne!(nonce().unwrap(), nonce().unwrap());
    }

    #[test]
    fn short_token_is_refused_and_no_token_is_shown() {
        let args = |token: &str| TokenArgs { token: Some(token.to_owned()) };
        assert!(args("1234567").get().unwrap_err().to_string().contains("at least 8"));
        assert!(args("").get().unwrap().is_none());
        let token = args("12345678");
        assert!(!format!("{token:?} {:?}", token.get().unwrap()).contains("1234"));
    }
}
