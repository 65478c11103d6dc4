//! Every bound of this part.

/// Exchanges of the connection manager that are remembered. The oldest are forgotten first.
pub const EXCHANGES_MAX: usize = 16_384;

/// Transactions of DREQs with the same communication IDs that are remembered.
pub const DISCONNECTS_MAX: usize = 4;
