//! Loss detection: whether a message that is not answered yet was lost, or waits in the peer's
//! queue.
//!
//! A program that connects a thousand times at once gets its answers as fast as the peer's program
//! accepts. A timer alone would retransmit what the peer has and is about to answer, which keeps it
//! from answering. So a timer that expires before Linux's interval looks at what the peer has
//! answered since the message was sent, as TCP does (RFC 8985):
//!
//! | the peer answered | the message |
//! |---|---|
//! | nothing | is retransmitted, unless [`PROBES`] were without an answer: the peer, or the way to it, is silent |
//! | a message that was sent later | is retransmitted: it was overtaken, and most likely lost |
//! | only messages that were sent before | waits: its turn is still to come |

use std::collections::BTreeMap;

use crate::wire::Gid;

/// Maximum number of messages that are retransmitted to a silent peer ahead of Linux's interval: it
/// may be slow, and has them all.
const PROBES: u32 = 16;

/// Transmission state of a message that waits for an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Transmission {
    /// Number of its first transmission. An answer may be to any transmission, and counts as one to
    /// the first.
    first: u64,
    /// Number of its last transmission.
    last: u64,
    /// Number of the peer's answers at the last check.
    answers: u64,
}

/// Decision about a message that is not answered when its timer fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The message is lost, or the peer is silent.
    Retransmit,
    /// The peer answers what was sent before, or is silent and was probed.
    Wait,
}

/// A peer that messages are sent to.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// Number of connections to it. It is forgotten with the last one.
    connections: usize,
    /// Number of messages that it answered.
    answers: u64,
    /// The latest message that it answered.
    latest: u64,
    /// Number of messages that were retransmitted since its last answer.
    probes: u32,
}

/// The peers of all connections, by address.
#[derive(Debug, Default)]
pub(super) struct Peers {
    by_address: BTreeMap<[u8; 16], Peer>,
    /// Number of messages sent so far.
    transmissions: u64,
}

impl Peers {
    /// Number of peers.
    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// A connection to a peer begins.
    pub(super) fn join(&mut self, address: Gid) {
        self.by_address.entry(address.0).or_default().connections += 1;
    }

    /// A connection to a peer is over.
    pub(super) fn leave(&mut self, address: Gid) {
        if let Some(peer) = self.by_address.get_mut(&address.0) {
            peer.connections = peer.connections.saturating_sub(1);
            if peer.connections == 0 {
                self.by_address.remove(&address.0);
            }
        }
    }

    /// A message is sent for the first time.
    pub(super) fn sent(&mut self, address: Gid) -> Transmission {
        self.transmissions += 1;
        let answers = self.by_address.get(&address.0).map_or(0, |peer| peer.answers);
        Transmission { first: self.transmissions, last: self.transmissions, answers }
    }

    /// The peer answered a message. An MRA is an answer after which more is to come: it says
    /// nothing of how far the peer is.
    pub(super) fn answered(&mut self, address: Gid, transmission: &mut Transmission) {
        if let Some(peer) = self.by_address.get_mut(&address.0) {
            peer.answers += 1;
            peer.probes = 0;
            peer.latest = peer.latest.max(transmission.first);
            transmission.answers = peer.answers;
        }
    }

    /// A message is retransmitted.
    pub(super) fn retransmitted(&mut self, address: Gid, transmission: &mut Transmission) {
        self.transmissions += 1;
        transmission.last = self.transmissions;
        if let Some(peer) = self.by_address.get_mut(&address.0) {
            peer.probes = peer.probes.saturating_add(1);
        }
    }

    /// The timer of a message has expired.
    pub(super) fn expired(&self, address: Gid, transmission: &mut Transmission) -> Verdict {
        let peer = self.by_address.get(&address.0).copied().unwrap_or_default();
        let is_answering = peer.answers > transmission.answers;
        let is_overtaken = peer.latest > transmission.last;
        let is_probed = peer.probes >= PROBES;
        transmission.answers = peer.answers;
        if is_overtaken || !is_answering && !is_probed {
            Verdict::Retransmit
        } else {
            Verdict::Wait
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers() -> (Peers, Gid) {
        let (mut peers, address) = (Peers::default(), Gid([1; 16]));
        peers.join(address);
        (peers, address)
    }

    #[test]
    fn message_to_a_silent_peer_is_retransmitted() {
        let (mut peers, to) = peers();
        let (mut first, mut second) = (peers.sent(to), peers.sent(to));
        assert_eq!(peers.expired(to, &mut first), Verdict::Retransmit);
        assert_eq!(peers.expired(to, &mut second), Verdict::Retransmit);
    }

    #[test]
    fn silent_peer_is_probed_by_a_few_messages_only() {
        let (mut peers, to) = peers();
        let mut sent: Vec<_> = (0..2 * PROBES).map(|_| peers.sent(to)).collect();
        let mut probes = 0;
        for message in &mut sent {
            if peers.expired(to, message) == Verdict::Retransmit {
                peers.retransmitted(to, message);
                probes += 1;
            }
        }
        assert_eq!(probes, PROBES);
        let (Some(mut first), Some(mut last)) = (sent.first().copied(), sent.last().copied())
        else {
            return;
        };
        peers.answered(to, &mut first);
        assert_eq!(peers.expired(to, &mut last), Verdict::Wait, "it answers");
        assert_eq!(peers.expired(to, &mut last), Verdict::Retransmit, "it is silent again");
    }

    #[test]
    fn message_waits_while_the_peer_answers_earlier_ones() {
        let (mut peers, to) = peers();
        let (mut first, mut second, mut last) = (peers.sent(to), peers.sent(to), peers.sent(to));
        peers.answered(to, &mut first);
        assert_eq!(peers.expired(to, &mut last), Verdict::Wait);
        peers.answered(to, &mut second);
        assert_eq!(peers.expired(to, &mut last), Verdict::Wait);
        assert_eq!(peers.expired(to, &mut last), Verdict::Retransmit, "silence since then");
    }

    #[test]
    fn overtaken_message_is_retransmitted() {
        let (mut peers, to) = peers();
        let (mut lost, mut later) = (peers.sent(to), peers.sent(to));
        peers.answered(to, &mut later);
        assert_eq!(peers.expired(to, &mut lost), Verdict::Retransmit);
        // Its turn is now after the other one's.
        peers.retransmitted(to, &mut lost);
        peers.answered(to, &mut later);
        assert_eq!(peers.expired(to, &mut lost), Verdict::Wait);
    }

    /// An answer may be one to the first transmission, which says nothing of what was sent since.
    #[test]
    fn answer_to_a_retransmitted_message_overtakes_nothing() {
        let (mut peers, to) = peers();
        let mut old = peers.sent(to);
        let mut young = peers.sent(to);
        peers.retransmitted(to, &mut old);
        peers.answered(to, &mut old);
        assert_eq!(peers.expired(to, &mut young), Verdict::Wait);
    }

    #[test]
    fn peers_are_told_apart_and_forgotten() {
        let (mut peers, to) = peers();
        let other = Gid([2; 16]);
        peers.join(other);
        peers.join(other);
        let (mut here, mut there) = (peers.sent(to), peers.sent(other));
        peers.answered(other, &mut there);
        assert_eq!(peers.expired(to, &mut here), Verdict::Retransmit);
        peers.leave(other);
        assert_eq!(peers.len(), 2);
        peers.leave(other);
        peers.leave(other);
        peers.leave(to);
        assert_eq!(peers.len(), 0);
    }
}
