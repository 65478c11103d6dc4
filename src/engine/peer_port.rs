//! UDP source port of a peer.
//!
//! RoCE has no authentication: any process that can send from the peer's address can inject
//! packets. But NICs send all packets of a connection from one UDP source port, and a port belongs
//! to one process. So once a packet has moved the connection forward, packets from other ports are
//! dropped: another user of the peer's host, without raw sockets, cannot inject packets even if it
//! guesses PSNs. A peer may change its port (another flow label, another path): its packets are
//! lost until nothing has come from the old port for [`PORT_SILENCE`]. Then packets from other
//! ports are accepted, but few of them ([`GUESSES`] in [`GUESS_INTERVAL`]): the peer's own are
//! expected and make its new port known with the first, while an attacker who tries PSNs one after
//! the other needs millions.

use core::time::Duration;

use super::config::PORT_SILENCE;
use super::env::Env;
use crate::time::Instant;

/// Maximum number of packets from other ports that are accepted in each [`GUESS_INTERVAL`].
/// Duplicates of a peer that changed its port are among them, so it is more than one; at this rate
/// an attacker hits one PSN of 2^24 in six days on average.
pub(super) const GUESSES: u16 = 16;

/// Time after which [`GUESSES`] packets from other ports are accepted again.
pub(super) const GUESS_INTERVAL: Duration = Duration::from_secs(1);

/// UDP source port of a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerPort {
    /// 0 if it is unknown.
    port: u16,
    /// Packets from other ports that were accepted since `counted_from`.
    guesses: u16,
    /// Time at which a packet from it last moved the connection forward.
    heard: Instant,
    counted_from: Instant,
}

impl Default for PeerPort {
    fn default() -> Self {
        Self { port: 0, guesses: 0, heard: Instant::ZERO, counted_from: Instant::ZERO }
    }
}

impl PeerPort {
    /// Whether this is the port that packets came from before.
    #[inline]
    pub(super) fn is(&self, port: u16) -> bool {
        port == self.port
    }

    /// Whether a packet from this port is accepted.
    #[inline]
    pub(super) fn admits(&mut self, port: u16, env: &Env) -> bool {
        port == self.port
            || self.port == 0
            || !env.config.pin_source_port
            || self.admits_guess(env.now)
    }

    /// Whether a packet from another port is accepted: the port of the peer may have changed.
    #[cold]
    fn admits_guess(&mut self, now: Instant) -> bool {
        if now < self.heard.saturating_add(PORT_SILENCE) {
            return false;
        }
        if now >= self.counted_from.saturating_add(GUESS_INTERVAL) {
            (self.counted_from, self.guesses) = (now, 0);
        }
        self.guesses = self.guesses.saturating_add(1);
        self.guesses <= GUESSES
    }

    /// Notes that a packet from this port moved the connection forward.
    #[inline]
    pub(super) fn learn(&mut self, port: u16, now: Instant) {
        (self.port, self.heard) = (port, now);
    }
}
