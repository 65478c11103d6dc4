//! The delayed ACK.
//!
//! Two programs that exchange messages mostly do not wait for ACKs: each continues when the other's
//! message comes. Then one ACK for several messages saves packets. But a program may as well wait
//! for the ACK before it continues. So an ACK is delayed only behind a message to the same peer,
//! for [`ack_delay`](super::super::Config::ack_delay) at most, and the peer's behavior meanwhile
//! decides about the next: if nothing comes from it until the timer expires, the delay is disabled
//! for some messages, twice as many each time.

use super::super::due::DueQueue;
use crate::table::SlotId;
use crate::time::Instant;

/// Maximum number of packets from a peer during one delay of its ACK.
const PACKETS_MAX: u8 = 16;

/// Maximum number of messages for which delayed ACK stays disabled.
const BACKOFF_MAX: u16 = 1023;

/// Delayed ACK of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DelayedAck {
    /// End of the delay, if an ACK is delayed.
    until: Option<Instant>,
    /// Packets that came from the peer meanwhile.
    packets: u8,
    /// Messages for which the delay is still disabled, and for how many it was disabled last time.
    disabled: u16,
    backoff: u16,
}

impl DelayedAck {
    /// Delays the pending ACK until `until`, or leaves a delay that runs; returns whether the ACK
    /// waits.
    pub(super) fn start(&mut self, until: Instant, slot: SlotId, queue: &mut DueQueue) -> bool {
        if self.until.is_some() {
            return self.packets < PACKETS_MAX;
        }
        if self.disabled > 0 {
            self.disabled -= 1;
            return false;
        }
        (self.until, self.packets) = (Some(until), 0);
        queue.push(until, slot);
        true
    }

    #[inline]
    pub(super) fn is_running(&self) -> bool {
        self.until.is_some()
    }

    #[inline]
    pub(super) fn note_packet(&mut self) {
        self.packets = self.packets.saturating_add(1);
    }

    /// Ends the delay: the ACK is sent.
    #[inline]
    pub(super) fn stop(&mut self) {
        self.until = None;
    }

    /// Takes the expiry of a delay that was to end at `until`; returns whether that delay still
    /// ran. If the peer sent nothing meanwhile, it waited for the ACK: the delay is disabled for
    /// some messages.
    pub(super) fn expired(&mut self, until: Instant) -> bool {
        if self.until != Some(until) {
            return false;
        }
        self.until = None;
        if self.packets == 0 {
            self.backoff = (2 * self.backoff + 1).min(BACKOFF_MAX);
            self.disabled = self.backoff;
        } else {
            self.backoff = 0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: SlotId = SlotId(7);

    fn at(ns: u64) -> Instant {
        Instant::from_nanos(ns)
    }

    #[test]
    fn delay_backs_off_while_the_peer_waits_for_acks() {
        let (mut delayed, mut queue) = (DelayedAck::default(), DueQueue::default());
        let mut delays = Vec::new();
        for message in 0..5000 {
            if delayed.start(at(message), SLOT, &mut queue) {
                delays.push(message);
                let (until, slot) = queue.pop(Some(at(message))).unwrap();
                assert_eq!((until, slot), (at(message), SLOT));
                assert!(delayed.expired(until));
            }
        }
        assert_eq!(delays, [0, 2, 6, 14, 30, 62, 126, 254, 510, 1022, 2046, 3070, 4094]);
    }

    #[test]
    fn ack_is_delayed_until_timer_or_packet_limit() {
        let (mut delayed, mut queue) = (DelayedAck::default(), DueQueue::default());
        for round in 1..100 {
            assert!(delayed.start(at(round * 10), SLOT, &mut queue));
            delayed.note_packet();
            assert!(delayed.start(at(round * 10 + 5), SLOT, &mut queue), "the delay runs already");
            assert_eq!(queue.pop(Some(at(round * 10 - 1))), None);
            let (until, _) = queue.pop(Some(at(round * 10))).unwrap();
            assert!(delayed.expired(until));
        }
        assert!(delayed.start(at(5000), SLOT, &mut queue));
        (0..PACKETS_MAX).for_each(|_| delayed.note_packet());
        assert!(!delayed.start(at(5001), SLOT, &mut queue));
    }

    #[test]
    fn sending_the_ack_ends_the_delay() {
        let (mut delayed, mut queue) = (DelayedAck::default(), DueQueue::default());
        assert!(delayed.start(at(10), SLOT, &mut queue));
        delayed.stop();
        let (until, _) = queue.pop(None).unwrap();
        assert!(!delayed.expired(until));
        assert_eq!(queue.next(), None);
    }
}
