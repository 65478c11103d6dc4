//! Other processes at the addresses of a port.

use std::sync::Arc;

use super::share::Claim;
use crate::verbs::QpnShare;

/// Other processes that can open a port with the same addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// No other process.
    Exclusive,
    /// All processes that can open such a link, as on raw links: each receives all packets.
    Everyone,
    /// Processes of the same user: each NIC has a share of the QPNs, and receives their packets.
    User(UserShare),
}

impl Sharing {
    /// Whether other processes can open a port with the same addresses.
    pub fn is_shared(&self) -> bool {
        !matches!(self, Self::Exclusive)
    }

    /// Returns the QPNs that queue pairs may have.
    pub fn qpns(&self) -> QpnShare {
        match self {
            Self::User(share) => share.qpns,
            Self::Exclusive | Self::Everyone => QpnShare::ALL,
        }
    }
}

/// Share of an address that NICs of one user divide among them.
#[derive(Clone, Debug)]
pub struct UserShare {
    qpns: QpnShare,
    claim: Arc<Claim>,
}

impl UserShare {
    pub(super) fn new(qpns: QpnShare, claim: Arc<Claim>) -> Self {
        Self { qpns, claim }
    }

    /// Returns the claims of the NIC at the address.
    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.claim
    }
}

impl PartialEq for UserShare {
    fn eq(&self, other: &Self) -> bool {
        self.qpns == other.qpns && Arc::ptr_eq(&self.claim, &other.claim)
    }
}

impl Eq for UserShare {}
