//! Every bound of the analysis.

/// Connections (and endpoints that are not paired) that are followed at once. Those that were silent longest are
/// reported without further detail and forgotten when there are more.
pub const CONNECTIONS_MAX: usize = 16_384;

/// Packets in flight that are remembered per direction of a connection.
pub const INFLIGHT_PACKETS_MAX: usize = 65_536;

/// Messages in flight that are remembered per direction of a connection.
pub const INFLIGHT_MESSAGES_MAX: usize = 16_384;
