//! `--token`: a secret that both sides of a control connection prove to know.

use anyhow::Context;
use clap::Args;
use roce::control::Token;
use roce::control::token::TOKEN_BYTES_MIN;

/// The options of a token.
#[derive(Clone, Args)]
pub(crate) struct TokenArgs {
    /// A secret of at least 8 characters that both sides know, for networks that are not trusted.
    /// Each side proves that it knows the secret, and neither sends it. Other users of this host
    /// see the option in the list of processes: prefer the variable. The traffic is not encrypted.
    #[arg(long, env = "ROCE_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    token: Option<String>,
}

impl std::fmt::Debug for TokenArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenArgs").field("given", &self.token.is_some()).finish()
    }
}

impl TokenArgs {
    /// Returns the token, if one was given.
    pub(crate) fn get(&self) -> anyhow::Result<Option<Token>> {
        // An empty variable counts as unset.
        let Some(text) = self.token.as_deref().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let token = Token::new(text).with_context(|| {
            format!(
                "--token (or ROCE_TOKEN): at least {TOKEN_BYTES_MIN} characters; `openssl rand -hex 16` makes a good one"
            )
        })?;
        Ok(Some(token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_token_is_refused_and_no_token_is_shown() {
        let args = |token: &str| TokenArgs { token: Some(token.to_owned()) };
        assert!(args("1234567").get().unwrap_err().to_string().contains("at least 8"));
        assert!(args("").get().unwrap().is_none());
        let token = args("12345678");
        assert!(!format!("{token:?} {:?}", token.get().unwrap()).contains("1234"));
    }
}
