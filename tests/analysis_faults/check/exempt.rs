//! What a capture point cannot know in principle, each with its reason.

use std::collections::BTreeSet;

use roce::analysis::LossNote;
use roce::link::mem::Action;

use super::super::plan::Class;
use super::super::truth::{Injected, Transmission, WITNESS};
use super::{Check, last_point, way};

impl Check<'_> {
    /// Away from the requester it is not known which responses reached it: where one was lost, damaged or late behind the
    /// point, the requester may have acted on another one, or on its timeout.
    pub(super) fn cannot_know_cause(&self, packet: &Transmission) -> bool {
        let responses_suffer = self.truth.injected.iter().any(|injected| {
            let other = &self.truth.transmissions[injected.transmission];
            other.connection == packet.connection
                && other.sender != packet.sender
                && !matches!(injected.action, Action::Mark)
        });
        responses_suffer || self.cannot_pair_yet(packet)
    }

    /// Where the first packet of a requester did not pass the point, the NAK for it names a PSN before all that was captured:
    /// it is not known yet that it belongs to this connection.
    pub(super) fn cannot_pair_yet(&self, packet: &Transmission) -> bool {
        self.truth.transmissions.iter().any(|other| {
            (other.connection, other.sender, other.class)
                == (packet.connection, packet.sender, Class::Request)
                && other.sequence == 0
                && (other.stopped().is_some())
        })
    }

    /// A packet that was delayed until it was retransmitted equals its retransmission: which of the two arrives first cannot
    /// be known behind the delay.
    /// And where the network copies a request behind the point, or delivers it after its retransmission, the responder answers
    /// both: the second answer equals a copy of the first.
    pub(super) fn cannot_tell_copy(&self, packet: &Transmission, is_told: bool) -> bool {
        let is_answer =
            packet.class != Class::Request && is_told && !self.has_point_of(packet.sender);
        let has_copies = self.truth.injected.iter().any(|injected| {
            let other = &self.truth.transmissions[injected.transmission];
            matches!(injected.action, Action::Duplicate | Action::Delay(_))
                && other.class == Class::Request
                && (other.connection, other.sender) == (packet.connection, 1 - packet.sender)
        });
        // What the requester retransmits for want of a response that was lost behind the point equals a copy.
        let is_blind = packet.cause.is_some()
            && !self.has_point_of(packet.sender)
            && self.cannot_know_cause(packet);
        self.is_delayed_twin(packet)
            || (is_answer && has_copies)
            || is_blind
            || self.is_behind_delay(packet)
    }

    /// A responder answers a repeated request with an acknowledgement that may equal its last one, or with the same response:
    /// while an answer to a repeated request is due, a copy cannot be told from it.
    pub(super) fn is_equal_to_answer(&self, packet: &Transmission, frame: u64) -> bool {
        if packet.class == Class::Request || self.has_both_ends() {
            return false;
        }
        let frames = (1..frame).map(|earlier| self.seen.frame(earlier).1);
        let requests = frames.map(|seen| (seen, &self.truth.transmissions[seen.transmission]));
        let mut requests = requests.filter(|(seen, other)| {
            !seen.is_corrupted
                && other.class == Class::Request
                && (other.connection, other.sender) == (packet.connection, 1 - packet.sender)
        });
        requests.any(|(seen, other)| {
            let is_it = packet.class == Class::Acknowledge || other.covers(packet.sequence);
            is_it && (seen.is_copy || other.cause.is_some())
        })
    }

    /// The answer to a request that came late, or twice, acknowledges what was acknowledged: as does an acknowledgement
    /// that was overtaken. And before the first packet of a connection there is nothing that it could be later than.
    pub(super) fn cannot_tell_order(&self, packet: &Transmission) -> bool {
        let is_answer = packet.class != Class::Request && !self.has_both_ends();
        let is_first = packet.class == Class::Request && packet.sequence == 0;
        let requests = |injected: &Injected| {
            let other = &self.truth.transmissions[injected.transmission];
            (other.connection, other.sender, other.class)
                == (packet.connection, 1 - packet.sender, Class::Request)
                && matches!(injected.action, Action::Delay(_) | Action::Duplicate)
        };
        self.is_delayed_twin(packet)
            || self.is_late_behind_nak(packet)
            || (is_answer && self.truth.injected.iter().any(requests))
            || (is_first && !self.has_point_of(packet.sender))
    }

    /// An acknowledgement that was overtaken only by responses with the same MSN equals the answer to a repeated request.
    pub(super) fn is_msn_equal(&self, number: usize, frame: u64) -> bool {
        let packet = &self.truth.transmissions[number];
        let msn = |bytes: &[u8]| {
            let start = if bytes[0] >> 4 == 4 { 28 } else { 48 };
            bytes[start + 13..start + 16].to_vec()
        };
        let own = msn(&self.seen.frame(frame).1.bytes);
        let earlier = (1..frame).map(|earlier| self.seen.frame(earlier).1);
        let mut overtakes = earlier.filter(|seen| {
            let other = &self.truth.transmissions[seen.transmission];
            seen.transmission > number
                && other.class == Class::Acknowledge
                && !other.is_cnp
                && !seen.is_corrupted
                && other.is_alike(packet)
        });
        packet.class == Class::Acknowledge
            && !self.has_both_ends()
            && overtakes.all(|seen| msn(&seen.bytes) == own)
    }

    /// Away from its sender, a packet that comes after the NAK that its absence caused equals its retransmission.
    pub(super) fn is_late_behind_nak(&self, packet: &Transmission) -> bool {
        !self.has_point_of(packet.sender)
            && self.truth.injected.iter().any(|injected| {
                let other = &self.truth.transmissions[injected.transmission];
                matches!(injected.action, Action::Delay(_))
                    && other.is_alike(packet)
                    && other.sequence == packet.sequence
            })
    }

    /// Away from the requester, what it retransmits although the packet only came late cannot be told from what was late.
    pub(super) fn is_behind_delay(&self, packet: &Transmission) -> bool {
        let is_delay = |injected: &Injected| {
            let other = &self.truth.transmissions[injected.transmission];
            (other.connection, other.sender, other.class)
                == (packet.connection, packet.sender, Class::Request)
                && matches!(injected.action, Action::Delay(_))
        };
        packet.cause.is_some()
            && !self.has_point_of(packet.sender)
            && self.truth.injected.iter().any(is_delay)
    }

    pub(super) fn is_delayed_twin(&self, packet: &Transmission) -> bool {
        let is_twin = |other: &Transmission| {
            (other.connection, other.sender, other.class, other.sequence)
                == (packet.connection, packet.sender, packet.class, packet.sequence)
        };
        let delayed = self.truth.injected.iter().any(|injected| {
            matches!(injected.action, Action::Delay(_))
                && is_twin(&self.truth.transmissions[injected.transmission])
        });
        delayed && self.truth.transmissions.iter().filter(|other| is_twin(other)).count() > 1
    }

    /// Behind the delay, a late packet equals the retransmission that the gap made the requester send.
    pub(super) fn is_twin_taken_for_lost(
        &self,
        loss: &LossNote,
        connection: usize,
        sender: usize,
    ) -> bool {
        self.truth.transmissions.iter().any(|packet| {
            (packet.connection, packet.sender) == (connection, sender)
                && (loss.sequence as u32).wrapping_sub(packet.psn) & 0xff_ffff < packet.psns
                && (self.is_delayed_twin(packet) || self.is_late_behind_nak(packet))
        })
    }

    /// The PSN may be what is damaged of a corrupted packet.
    pub(super) fn is_psn_damaged(&self, frame: u64) -> bool {
        let (_, captured) = self.seen.frame(frame);
        let start = if captured.bytes[0] >> 4 == 4 { 28 } else { 48 };
        let psn = &captured.bytes[start + 9..start + 12];
        let real = self.truth.transmissions[captured.transmission].psn.to_be_bytes();
        captured.is_corrupted && psn != &real[1..]
    }

    /// What is only likely may take the request for the response of a round trip, or a late packet for a lost one: one of
    /// the connection's packets in both directions met with a fault that made the requester go back.
    pub(super) fn is_round_trip(
        &self,
        _loss: &LossNote,
        connection: usize,
        _sender: usize,
    ) -> bool {
        self.truth.injected.iter().any(|injected| {
            self.truth.transmissions[injected.transmission].connection == connection
                && matches!(injected.action, Action::Drop | Action::Corrupt | Action::Delay(_))
        })
    }

    /// A file says nothing about the time after its last frame: it may have ended. And a flow of which a point never saw
    /// anything may take another way.
    pub(super) fn cannot_compare(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let path: Vec<usize> = way(packet.sender)
            .into_iter()
            .filter(|point| self.seen.points.contains(point))
            .collect();
        let hop = packet.stopped().unwrap();
        let last = last_point(packet.sender, hop);
        let all = way(packet.sender);
        let Some(&to) =
            path.iter().find(|point| all.iter().position(|at| at == *point).unwrap() > last)
        else {
            return true;
        };
        let real =
            |point: usize, time: u64| time.saturating_add_signed(-self.scenario.clocks[point]);
        let frames = &self.truth.captured[to];
        let ends = frames
            .last()
            .is_none_or(|frame| real(to, frame.time.as_nanos()) < packet.time.as_nanos() + 5_000);
        let begins = frames
            .first()
            .is_none_or(|frame| real(to, frame.time.as_nanos()) > packet.time.as_nanos());
        ends || begins || self.cannot_know_way(packet, to)
    }

    /// A flow of which a point never saw anything may take another way.
    pub(super) fn cannot_know_way(&self, packet: &Transmission, point: usize) -> bool {
        !self.truth.captured[point].iter().any(|frame| {
            let other = &self.truth.transmissions[frame.transmission];
            !frame.is_corrupted
                && (other.connection, other.sender) == (packet.connection, packet.sender)
        })
    }

    /// Where nothing of the responses ever passed the requester's own point, they may take another way: responses that another
    /// point saw are taken to have arrived.
    pub(super) fn cannot_know_outcome(&self, connection: usize, requester: usize) -> bool {
        let mut responses = self.truth.transmissions.iter();
        let response = responses
            .find(|packet| (packet.connection, packet.sender) == (connection, 1 - requester));
        self.is_merged()
            && response.is_some_and(|response| self.cannot_know_way(response, requester * 2))
    }

    /// With packets of one direction only, or only late ones of the other, a difference of the clocks cannot be told from the time that packets take, nor
    /// which point sees them first.
    pub(super) fn cannot_compare_clocks(&self) -> bool {
        let delays = self.truth.injected.iter();
        let delays = delays.filter(|injected| matches!(injected.action, Action::Delay(_)));
        let delayed: BTreeSet<usize> = delays.map(|injected| injected.transmission).collect();
        let is_shared = |sender: usize| {
            let number = |point: usize| {
                let frames = self.truth.captured[point].iter().filter(|frame| !frame.is_corrupted);
                let numbers = frames.map(|frame| frame.transmission);
                numbers
                    .filter(|&number| number != WITNESS)
                    .filter(|&number| self.truth.transmissions[number].sender == sender)
                    .filter(|number| !delayed.contains(number))
                    .collect::<BTreeSet<usize>>()
            };
            self.seen.points.windows(2).all(|pair| !number(pair[0]).is_disjoint(&number(pair[1])))
        };
        let clocks = self.seen.points.iter().map(|&point| self.scenario.clocks[point]);
        let is_skewed = clocks.clone().max() != clocks.min();
        self.is_merged() && is_skewed && !(is_shared(0) && is_shared(1))
    }

    /// Away from the requester, silence after an RNR NAK looks the same whether the requester gave up or whether what it sends
    /// does not reach the point any more.
    pub(super) fn is_silent_behind_rnr(&self) -> bool {
        let mut packets = self.truth.transmissions.iter().enumerate();
        packets.any(|(number, packet)| {
            packet.class == Class::Request
                && packet.stopped().is_some()
                && !self.has_point_of(packet.sender)
                && !self.seen.frames.iter().any(|(_, seen)| {
                    let other = &self.truth.transmissions[seen.transmission];
                    seen.transmission >= number && !seen.is_corrupted && other.is_alike(packet)
                })
        })
    }
}
