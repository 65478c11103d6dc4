//! Protection domains: who may use whose memory.

use super::ids::Id;

/// A protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PdHandle(pub(super) Id);
