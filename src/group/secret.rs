//! The secret of a group.

use std::sync::Arc;

/// The environment variable that has the secret of groups whose configuration has none.
pub(super) const VARIABLE: &str = "ROCE_GROUP_SECRET";

/// A secret that all servers of a group know. It goes over no wire, and is not printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Arc<[u8]>);

impl Secret {
    /// Makes a secret of any bytes; at least 16 that cannot be guessed are of use.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(bytes.as_ref().into())
    }

    /// Returns the secret in the environment variable `ROCE_GROUP_SECRET`, if it is set and not
    /// empty.
    pub fn from_environment() -> Option<Self> {
        use std::os::unix::ffi::OsStrExt;
        let secret = std::env::var_os(VARIABLE).filter(|secret| !secret.is_empty())?;
        Some(Self::new(secret.as_bytes()))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "Secret(none)" } else { "Secret(…)" })
    }
}
