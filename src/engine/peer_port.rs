//! From which UDP port a peer's packets come.
//!
//! RoCE has no secrets: whoever can send from the peer's address can pretend to be the peer. But NICs send all packets of
//! a connection from one UDP source port, and a port belongs to one process. So once a packet has moved the connection
//! forward, packets from other ports are dropped: another user of the peer's host, who has no raw sockets, is kept out
//! even if it guesses PSNs. A peer may change its port (another flow label, another path): its packets are lost until
//! nothing has come from the old port for [`PORT_SILENCE`].

use super::config::PORT_SILENCE;
use super::qp::{Env, Qp};
use crate::time::Instant;
use crate::wire::Psn;

/// The port of a peer, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerPort {
    /// 0 if it is not known.
    port: u16,
    /// When a packet from it last moved the connection forward.
    heard: Instant,
}

impl Default for PeerPort {
    fn default() -> Self {
        Self { port: 0, heard: Instant::ZERO }
    }
}

impl PeerPort {
    /// Whether a packet from this port may be the peer's..
    #[inline]
    pub(super) fn admits(&self, port: u16, env: &Env) -> bool {
        port == self.port || self.is_unknown_by(env)
    }

    fn is_unknown_by(&self, env: &Env) -> bool {
        self.port == 0
            || !env.config.pin_source_port
            || env.now >= self.heard.saturating_add(PORT_SILENCE)
    }

    /// A packet from this port moved the connection forward.
    #[inline]
    pub(super) fn learn(&mut self, port: u16, now: Instant) {
        (self.port, self.heard) = (port, now);
    }
}

impl Qp {
    /// What changes when a packet of the peer moves the connection forward.
    #[inline]
    pub(super) fn progress(&self) -> (Psn, Psn) {
        (self.resp.epsn, self.req.una)
    }
}
