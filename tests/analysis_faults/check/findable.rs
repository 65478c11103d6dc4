//! Losses that the captures show, so that the analysis must report them.

use roce::analysis::RetransmissionCause;
use roce::link::fault::Action;

use super::super::plan::Class;
use super::super::truth::Transmission;
use super::{Check, last_point, way};

impl Check<'_> {
    /// Whether a loss can be found in what was captured.
    pub(super) fn must_find(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        if self.has_both_ends() {
            return !self.cannot_compare(number) && !self.is_first_to_queue_pair(number);
        }
        if !self.is_reliable(packet.connection) || packet.is_cnp {
            // UC and UD tell nothing back. (A gap in UC's PSNs is told, and checked to be right,
            // but not demanded.)
            return !self.excuse("loss not told: UC, UD or CNP", true);
        }
        let hop = packet.stopped().unwrap();
        let path = way(packet.sender);
        let [point] = self.seen.points[..] else { return false };
        let at = path.iter().position(|&at| at == point).unwrap();
        let was_seen = at <= last_point(packet.sender, hop);
        let must = match packet.class {
            Class::Request if was_seen => self.is_named_by_nak(number, point),
            Class::Request => self.is_gap_at(number, point),
            Class::Response if !was_seen => {
                self.is_gap_at(number, point) && self.is_requested_anew(number)
            }
            _ => false,
        };
        (must && !self.is_copy_answered(number))
            || !self.excuse("loss not told: nothing at the point shows it", true)
    }

    /// Whether the network copied a request with the sequence number of a lost packet behind the
    /// point: the responder answers both, as it does if the lost packet is late.
    fn is_copy_answered(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let mut injected = self.truth.injected.iter();
        let is = injected.any(|injected| {
            let other = &self.truth.transmissions[injected.transmission];
            other.class == Class::Request
                && other.connection == packet.connection
                && other.requester() == packet.requester()
                && other.covers(packet.sequence)
                && injected.action == Action::Duplicate
        });
        self.excuse("loss not told: a copy of the request is answered, too", is)
    }

    /// Whether the requester went back to it because of a sequence-error NAK: the others that were
    /// lost behind it cannot be told from those that the responder dropped because of the gap, and
    /// without a NAK the response may have been lost. Where the point saw a later packet before it,
    /// that is why the responder sent the NAK, whether it arrived in the end or not. What was
    /// delayed until the point had seen its retransmission is of no use any more: that it was lost
    /// changes nothing.
    pub(super) fn is_named_by_nak(&self, number: usize, point: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let later = self.truth.transmissions.iter().enumerate().skip(number + 1);
        let mut rewinds = later.filter(|(_, other)| {
            (other.connection, other.sender) == (packet.connection, packet.sender)
                && other.class == Class::Request
                && other.rewinds
        });
        let at = |number: usize| {
            let mut seen = self.truth.captured[point].iter();
            seen.position(|seen| seen.transmission == number && !seen.is_corrupted)
        };
        rewinds.next().is_some_and(|(again, rewind)| {
            rewind.sequence == packet.sequence
                && at(again).is_none_or(|again| at(number) < Some(again))
                && rewind.cause == Some(RetransmissionCause::SequenceNak)
        }) && !self.excuse(
            "loss not told: late at the point, which explains the NAK",
            self.is_overtaken_at(number, point),
        )
    }

    /// Whether the point saw a packet with a higher PSN of the same kind before it saw this one: a
    /// gap.
    pub(super) fn is_gap_at(&self, number: usize, point: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let same = |other: &Transmission| {
            (other.connection, other.sender, other.class)
                == (packet.connection, packet.sender, packet.class)
        };
        let seen = self.truth.captured[point].iter().filter(|seen| !seen.is_corrupted);
        let seen =
            seen.map(|seen| (seen.transmission, &self.truth.transmissions[seen.transmission]));
        let seen: Vec<_> = seen.filter(|(_, other)| same(other)).collect();
        // Something before it, so that its absence shows; it was not seen before; something behind
        // it before it came.
        let covers = |other: &Transmission| other.covers(packet.sequence);
        let begins =
            seen.iter().position(|(at, other)| *at < number && other.sequence < packet.sequence);
        let first_time = !seen.iter().any(|(at, other)| *at < number && covers(other));
        let next_time =
            seen.iter().find(|(at, other)| *at > number && covers(other)).map(|(at, _)| *at);
        let behind = seen.iter().position(|(at, other)| {
            *at > number
                && next_time.is_none_or(|next| *at < next)
                && other.sequence > packet.sequence
        });
        let is_shown = begins.is_some_and(|begins| behind.is_some_and(|behind| begins < behind));
        packet.cause.is_none() && is_shown && first_time && next_time.is_some()
    }

    /// Whether the requester requested a response anew.
    pub(super) fn is_requested_anew(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let mut later = self.truth.transmissions.iter().skip(number + 1);
        later.any(|other| {
            (other.connection, other.sender) == (packet.connection, 1 - packet.sender)
                && other.class == Class::Request
                && other.sequence == packet.sequence
        })
    }
}
