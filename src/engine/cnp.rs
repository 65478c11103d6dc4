//! Intervals between CNPs whose scope is not one queue pair.

use std::collections::BTreeMap;

use crate::time::Instant;
use crate::wire::Gid;

/// Number of peers beyond which those whose interval is over are forgotten.
const PEERS_KEPT: usize = 1024;

/// Earliest times of the next CNPs.
#[derive(Debug, Default)]
pub(super) struct CnpTimes {
    port: Instant,
    /// By peer. There are no more than peers of queue pairs: only theirs are asked for.
    peers: BTreeMap<[u8; 16], Instant>,
    /// Number of peers at which intervals that are over are looked for.
    sweep_at: usize,
}

impl CnpTimes {
    /// Returns the earliest time of the next CNP of the port.
    pub(super) fn of_port(&mut self) -> &mut Instant {
        &mut self.port
    }

    /// Returns the earliest time of the next CNP to a peer.
    pub(super) fn of_peer(&mut self, peer: Gid, now: Instant) -> &mut Instant {
        if self.peers.len() >= self.sweep_at.max(PEERS_KEPT) {
            self.peers.retain(|_, after| *after > now);
            // Twice as many as are left: a sweep costs no more than what was put in since the last.
            self.sweep_at = 2 * self.peers.len();
        }
        self.peers.entry(peer.0).or_insert(Instant::ZERO)
    }
}
