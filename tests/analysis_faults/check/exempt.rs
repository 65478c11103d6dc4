//! Facts that a capture point cannot know in principle, each with its reason.
//!
//! A predicate is asked only where the analysis and the truth differ; those that hold are counted
//! by name ([`super::tally`]).

use std::collections::BTreeSet;

use roce::analysis::{Certainty, LossNote, PacketRole, RetransmissionCause};
use roce::link::fault::Action;

use super::super::plan::Class;
use super::super::truth::{Injected, Transmission, WITNESS};
use super::super::wire::Hop;
use super::{Check, last_point, position, way};

impl Check<'_> {
    /// Whether every point of the view sees a sender's packet before the hop.
    fn is_behind_points(&self, sender: usize, hop: Hop) -> bool {
        let last = last_point(sender, hop);
        self.seen.points.iter().all(|&point| position(sender, point) <= last)
    }

    /// Whether every point of the view sees a sender's packet after the hop.
    pub(super) fn is_before_points(&self, sender: usize, hop: Hop) -> bool {
        let last = last_point(sender, hop);
        self.seen.points.iter().all(|&point| position(sender, point) > last)
    }

    /// Whether a fault with one of these actions met a packet before `number` was sent that `is`.
    fn has_met(&self, number: usize, is: impl Fn(&Injected, &Transmission) -> bool) -> bool {
        let mut injected = self.truth.injected.iter();
        injected.any(|injected| {
            let other = &self.truth.transmissions[injected.transmission];
            injected.transmission <= number && is(injected, other)
        })
    }

    /// Whether the cause cannot be known because a response was lost, damaged or late behind the
    /// point: away from the requester it is not known which responses reached it, and it may have
    /// acted on another one, or on its timeout.
    pub(super) fn cannot_know_cause(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let suffer = |injected: &Injected, other: &Transmission| {
            other.connection == packet.connection
                && other.sender != packet.sender
                && other.class != Class::Request
                && !matches!(injected.action, Action::Mark | Action::Duplicate)
                && self.is_behind_points(other.sender, injected.hop)
        };
        self.excuse("responses suffer behind the point", self.has_met(number, suffer))
            || self.cannot_pair_yet(number)
    }

    /// Whether the requester timed out for want of a response that was late before the point: as a
    /// later one came there before, the timeout looks like a slow reaction to an implied NAK, if
    /// the time to the requester is not known.
    pub(super) fn is_after_late_response(
        &self,
        number: usize,
        told: Option<RetransmissionCause>,
    ) -> bool {
        let packet = &self.truth.transmissions[number];
        let late = |injected: &Injected, other: &Transmission| {
            (other.connection, other.requester()) == (packet.connection, packet.sender)
                && other.class == Class::Response
                && matches!(injected.action, Action::Delay(_))
                && self.is_before_points(other.sender, injected.hop)
        };
        let is = packet.cause == Some(RetransmissionCause::Timeout)
            && told == Some(RetransmissionCause::ImpliedNak)
            && !self.has_point_of(packet.sender);
        self.excuse("cause: response late before the point", is && self.has_met(number, late))
    }

    /// Whether another NAK or RNR NAK of the same packet was on its way when the requester acted on
    /// the first one: away from the requester it is not known which of the two had reached it.
    pub(super) fn is_between_naks(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let own = self.truth.transmissions[..=number].iter().rev();
        let rewind = own.filter(|other| other.is_alike(packet)).find(|other| other.rewinds);
        let Some(rewind) = rewind else { return false };
        let naks = self.truth.transmissions.iter().filter(|other| {
            (other.connection, other.requester()) == (packet.connection, packet.sender)
                && other.is_nak
                && other.sequence == rewind.sequence
                && other.time < packet.time
        });
        let is = !self.has_point_of(packet.sender) && naks.count() > 1;
        self.excuse("cause: two NAKs of a packet on their way", is)
    }

    /// Whether the NAK cannot be attributed to this connection yet: the first packet of the
    /// requester did not pass the point, so the NAK for it names a PSN before all that was
    /// captured.
    pub(super) fn cannot_pair_yet(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let firsts = self.truth.transmissions.iter().filter(|other| {
            (other.connection, other.sender, other.class)
                == (packet.connection, packet.sender, Class::Request)
                && other.sequence == 0
        });
        let mut stopped = firsts.filter_map(Transmission::stopped);
        let is_before = stopped.any(|hop| self.is_before_points(packet.sender, hop));
        self.excuse("first request lost before the point", is_before)
    }

    /// Whether a copy cannot be told from a retransmission or from a second answer. A packet that
    /// was delayed until it was retransmitted equals its retransmission: which of the two arrives
    /// first cannot be known behind the delay. If the network copies a request behind the point, or
    /// delivers it after its retransmission, the responder answers both, and the second answer
    /// equals a copy of the first.
    pub(super) fn cannot_tell_copy(&self, number: usize, is_told: bool) -> bool {
        let packet = &self.truth.transmissions[number];
        let is_answer =
            packet.class != Class::Request && is_told && !self.has_point_of(packet.sender);
        let copies = |injected: &Injected, other: &Transmission| {
            matches!(injected.action, Action::Duplicate | Action::Delay(_))
                && other.class == Class::Request
                && (other.connection, other.sender) == (packet.connection, 1 - packet.sender)
        };
        let copies_behind = |injected: &Injected, other: &Transmission| {
            copies(injected, other)
                && self.is_behind_points(other.sender, injected.hop)
                && (packet.class == Class::Acknowledge || other.covers(packet.sequence))
        };
        // For a request that was late behind the point the responder sends a second NAK. Whether it
        // sent that before the requests behind the retransmission came is not known without a round
        // trip, nor whether it answers them.
        let delayed_behind = |injected: &Injected, other: &Transmission| {
            matches!(injected.action, Action::Delay(_))
                && copies(injected, other)
                && other.sequence < packet.sequence
                && self.is_behind_points(other.sender, injected.hop)
        };
        // What the requester retransmits for want of a response that was lost behind the point
        // equals a copy.
        self.is_delayed_twin(number)
            || self.is_behind_delay(number)
            || self.is_copy_of_lost(number)
            || self.is_behind_its_copy(number)
            || self.excuse(
                "answer to a copy made behind the point",
                is_answer && self.has_met(number, copies_behind),
            )
            || self.excuse(
                "answer to a request between two NAKs",
                is_answer && self.has_met(number, delayed_behind),
            )
            || (packet.cause.is_some()
                && !self.has_point_of(packet.sender)
                && self.cannot_know_cause(number))
    }

    /// Whether an answer to a repeated request is due, from which a copy cannot be told: the
    /// responder answers it with an acknowledgement that may equal its last one, or with the same
    /// response.
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
        let is = requests.any(|(seen, other)| {
            let is_it = packet.class == Class::Acknowledge || other.covers(packet.sequence);
            is_it && (seen.is_copy || other.cause.is_some())
        });
        self.excuse("copy equals the answer to a repeated request", is)
    }

    /// Whether a late packet cannot be told from one in order. The answer to a request that came
    /// late, or twice, acknowledges what was acknowledged, as does an acknowledgement that was
    /// overtaken. And before the first packet of a connection there is nothing that it could be
    /// later than.
    pub(super) fn cannot_tell_order(&self, number: usize, is_late: bool) -> bool {
        let packet = &self.truth.transmissions[number];
        let is_answer = packet.class != Class::Request && !self.has_both_ends();
        let is_first = packet.class == Class::Request && packet.sequence == 0;
        let repeated = |injected: &Injected, other: &Transmission| {
            (other.connection, other.sender, other.class)
                == (packet.connection, 1 - packet.sender, Class::Request)
                && matches!(injected.action, Action::Delay(_) | Action::Duplicate)
                && !self.is_before_points(other.sender, injected.hop)
        };
        let is_away = !self.has_point_of(packet.sender);
        self.is_delayed_twin(number)
            || self.is_late_behind_nak(number)
            || self.is_copy_of_lost(number)
            || self.is_behind_its_copy(number)
            || self.excuse(
                "order: answer to a late or copied request",
                is_answer && self.has_met(number, repeated),
            )
            || self.excuse("order: late first request", is_late && is_first && is_away)
            || (!is_late && self.is_behind_delay(number))
            || (!is_late && self.is_repeated_for_lost(number))
    }

    /// Whether an acknowledgement was overtaken only by responses with the same MSN: it equals the
    /// answer to a repeated request.
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
        let is = packet.class == Class::Acknowledge
            && !self.has_both_ends()
            && overtakes.all(|seen| msn(&seen.bytes) == own);
        self.excuse("order: same MSN", is)
    }

    /// Whether a packet comes after the NAK that its absence caused: away from its sender it equals
    /// its retransmission.
    pub(super) fn is_late_behind_nak(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let is_late = self.has_met(number, |injected, other| {
            matches!(injected.action, Action::Delay(_))
                && other.is_alike(packet)
                && other.sequence == packet.sequence
                && self.is_before_points(other.sender, injected.hop)
        });
        self.excuse("late packet behind its NAK", !self.has_point_of(packet.sender) && is_late)
    }

    /// Whether a packet was retransmitted although it only came late: away from the requester the
    /// two cannot be told apart.
    pub(super) fn is_behind_delay(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let late = |injected: &Injected, other: &Transmission| {
            (other.connection, other.sender, other.class)
                == (packet.connection, packet.sender, Class::Request)
                && matches!(injected.action, Action::Delay(_))
        };
        let before = |injected: &Injected, other: &Transmission| {
            late(injected, other) && self.is_before_points(other.sender, injected.hop)
        };
        let is_away = packet.cause.is_some() && !self.has_point_of(packet.sender);
        self.excuse("retransmission behind a delay", is_away && self.has_met(number, before))
    }

    /// Whether a packet was retransmitted once more because its last retransmission was lost before
    /// the point: away from its sender it comes after those behind it, as a late one does.
    pub(super) fn is_repeated_for_lost(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let before = self.truth.transmissions[..number].iter().rev();
        let mut before =
            before.filter(|other| other.is_alike(packet) && other.sequence == packet.sequence);
        let is_lost = before.next().is_some_and(|last| {
            last.cause.is_some()
                && last.stopped().is_some_and(|hop| self.is_before_points(last.sender, hop))
        });
        let is_away = packet.cause.is_some() && !self.has_point_of(packet.sender);
        self.excuse("order: retransmission lost before the point", is_away && is_lost)
    }

    /// Whether a timeout follows retransmissions for a NAK that were lost before the point: away
    /// from the requester it looks like a slow reaction to the NAK, if the time to the requester is
    /// not known.
    pub(super) fn is_after_lost_reaction(
        &self,
        number: usize,
        told: Option<RetransmissionCause>,
    ) -> bool {
        let packet = &self.truth.transmissions[number];
        let own = self.truth.transmissions[..=number].iter().rev();
        let mut own = own.filter(|other| other.is_alike(packet));
        let Some(rewind) = own.find(|other| other.rewinds) else { return false };
        let is_lost = own.find(|other| other.sequence == rewind.sequence).is_some_and(|last| {
            last.cause.is_some_and(|cause| cause != RetransmissionCause::Timeout)
                && told != Some(RetransmissionCause::Timeout)
                && last.stopped().is_some_and(|hop| self.is_before_points(last.sender, hop))
        });
        let is = rewind.cause == Some(RetransmissionCause::Timeout)
            && is_lost
            && !self.has_point_of(packet.sender);
        self.excuse("cause: retransmission for a NAK lost before the point", is)
    }

    /// Whether the packet, or one with the same PSN, was delayed, and it was transmitted more than
    /// once.
    pub(super) fn is_delayed_twin(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let is_twin = |other: &Transmission| {
            (other.connection, other.sender, other.class, other.sequence)
                == (packet.connection, packet.sender, packet.class, packet.sequence)
        };
        let mut delays = self.truth.injected.iter().filter(|injected| {
            matches!(injected.action, Action::Delay(_))
                && is_twin(&self.truth.transmissions[injected.transmission])
        });
        let is_behind = delays.clone().any(|delay| self.is_behind_points(packet.sender, delay.hop));
        let is = delays.next().is_some()
            && self.truth.transmissions.iter().filter(|other| is_twin(other)).count() > 1;
        // Of several points, those behind the delay do not tell which of the two they saw. At its
        // sender, a request that is delayed behind the point and its retransmission are both
        // answered: the second answer equals a copy.
        self.excuse("delayed twin", is && !self.has_point_of(packet.sender))
            || self.excuse("delayed twin between points", is && self.is_merged())
            || self.excuse(
                "delayed twin: both requests are answered",
                is && is_behind && packet.class == Class::Request,
            )
    }

    /// Whether the packet is the copy of one that was lost: it arrives later than packets that were
    /// sent after it, as a late packet does. If it comes after a NAK, it equals the retransmission.
    pub(super) fn is_copy_of_lost(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let is = self.has_met(number, |injected, other| {
            injected.action == Action::Duplicate
                && other.stopped().is_some()
                && other.delivered
                && other.is_alike(packet)
                && other.sequence == packet.sequence
        });
        self.excuse("copy of a packet that was lost", is)
    }

    /// Whether the network copied the packet and then delayed the first of the two, so that the
    /// copy arrives first: as both are equal, the one that arrives later is taken for the copy.
    pub(super) fn is_behind_its_copy(&self, number: usize) -> bool {
        let met = |is: fn(Action) -> bool| {
            let mut injected = self.truth.injected.iter();
            injected.position(|fault| fault.transmission == number && is(fault.action))
        };
        let copied = met(|action| action == Action::Duplicate);
        let delayed = met(|action| matches!(action, Action::Delay(_)));
        let is = copied.is_some() && delayed.is_some() && copied < delayed;
        self.excuse("packet delayed behind its own copy", is)
    }

    /// Whether an equal packet came to the point of a frame at the same time: which of the two is
    /// the copy cannot be known.
    pub(super) fn is_equal_at_once(&self, frame: u64) -> bool {
        let (point, captured) = self.seen.frame(frame);
        let is = self.truth.captured[point].iter().any(|other| {
            other.transmission != captured.transmission
                && other.bytes == captured.bytes
                && other.time.as_nanos().abs_diff(captured.time.as_nanos()) <= 10
        });
        self.excuse("equal packet at the same time", is)
    }

    /// Returns the retransmission that was lost, if the packet was delayed until after it: as both
    /// are equal, the first is taken for the lost one.
    pub(super) fn exchanged_twin(&self, number: usize) -> Option<usize> {
        let packet = &self.truth.transmissions[number];
        let is_late = |injected: &Injected| {
            injected.transmission == number && matches!(injected.action, Action::Delay(_))
        };
        let twin = self.truth.transmissions.iter().position(|other| {
            other.is_alike(packet)
                && other.sequence == packet.sequence
                && other.time > packet.time
                && other.stopped().is_some()
        });
        let twin = twin.filter(|_| self.truth.injected.iter().any(is_late));
        self.excuse("delayed packet exchanged with its lost retransmission", twin.is_some());
        twin
    }

    /// Whether the packet of a loss note may have been late: behind the delay it equals the
    /// retransmission that the gap made the requester send.
    pub(super) fn is_twin_taken_for_lost(
        &self,
        loss: &LossNote,
        connection: usize,
        sender: usize,
    ) -> bool {
        let mut packets = self.truth.transmissions.iter().enumerate();
        packets.any(|(number, packet)| {
            (packet.connection, packet.sender) == (connection, sender)
                && (loss.sequence as u32).wrapping_sub(packet.psn) & 0xff_ffff < packet.psns
                && (self.is_delayed_twin(number) || self.is_late_behind_nak(number))
        })
    }

    /// Whether the PSN of a corrupted packet is damaged.
    pub(super) fn is_psn_damaged(&self, frame: u64) -> bool {
        let (_, captured) = self.seen.frame(frame);
        let start = if captured.bytes[0] >> 4 == 4 { 28 } else { 48 };
        let psn = &captured.bytes[start + 9..start + 12];
        let real = self.truth.transmissions[captured.transmission].psn.to_be_bytes();
        self.excuse("PSN damaged", captured.is_corrupted && psn != &real[1..])
    }

    /// Whether a likely loss is that of another packet of the same round trips, which met with a
    /// fault before the proof: the analysis may take the request for the response, or a late packet
    /// for a lost one.
    pub(super) fn is_round_trip(&self, loss: &LossNote, connection: usize, sender: usize) -> bool {
        if loss.certainty != Certainty::Likely {
            return false;
        }
        let requester = if loss.role == PacketRole::Request { sender } else { 1 - sender };
        let proof = self.seen.frame(loss.proof).1.transmission;
        let is_fault = |injected: &Injected, other: &Transmission| {
            other.connection == connection
                && matches!(injected.action, Action::Drop | Action::Corrupt | Action::Delay(_))
        };
        let same = |injected: &Injected, other: &Transmission| {
            is_fault(injected, other) && other.requester() == requester
        };
        let is_near = !self.has_both_ends() && self.has_met(proof, same);
        // One that was late behind both points, until the requester had timed out, is taken for a
        // likely loss as well.
        let late = |injected: &Injected, other: &Transmission| {
            same(injected, other) && matches!(injected.action, Action::Delay(_))
        };
        self.excuse("likely loss in a round trip that lost another", is_near)
            || self.excuse("likely loss of a late packet, both ends", self.has_met(proof, late))
    }

    /// Whether the next file cannot show the loss: a file says nothing about the time before its
    /// first and after its last frame, and a flow of which a point never saw a packet may take
    /// another path.
    pub(super) fn cannot_compare(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let path: Vec<usize> = way(packet.sender)
            .into_iter()
            .filter(|point| self.seen.points.contains(point))
            .collect();
        let hop = packet.stopped().unwrap();
        let last = last_point(packet.sender, hop);
        let Some(&to) = path.iter().find(|&&point| position(packet.sender, point) > last) else {
            return self.excuse("loss: no point behind it", true);
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
        self.excuse("loss: outside the time of the next file", ends || begins)
            || self.excuse(
                "loss: next file sees nothing of the flow",
                self.cannot_know_way(packet, to),
            )
    }

    /// Whether a CNP is the first packet to its queue pair: it names only that, so it belongs to no
    /// connection yet.
    pub(super) fn is_first_to_queue_pair(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let to = (1 - packet.sender) * 2;
        let ahead = self.scenario.clocks[to];
        let mut seen = self.truth.captured[to].iter().filter(|seen| !seen.is_corrupted);
        let is_known = seen.any(|seen| {
            let other = &self.truth.transmissions[seen.transmission];
            let time = seen.time.as_nanos().saturating_add_signed(-ahead);
            (other.connection, other.sender) == (packet.connection, packet.sender)
                && time <= packet.time.as_nanos() + 4_000
        });
        self.excuse("loss: CNP before all else to its queue pair", packet.is_cnp && !is_known)
    }

    /// Whether a flow may take another path: the point never saw a packet of it.
    pub(super) fn cannot_know_way(&self, packet: &Transmission, point: usize) -> bool {
        !self.truth.captured[point].iter().any(|frame| {
            let other = &self.truth.transmissions[frame.transmission];
            !frame.is_corrupted
                && (other.connection, other.sender) == (packet.connection, packet.sender)
        })
    }

    /// Whether the outcome cannot be known because no response ever passed the requester's own
    /// point: responses may take another path, and those that another point saw are taken to have
    /// arrived.
    pub(super) fn cannot_know_outcome(&self, connection: usize, requester: usize) -> bool {
        let mut responses = self.truth.transmissions.iter();
        let response = responses
            .find(|packet| (packet.connection, packet.sender) == (connection, 1 - requester));
        let is = self.is_merged()
            && response.is_some_and(|response| self.cannot_know_way(response, requester * 2));
        self.excuse("outcome: no response passed the requester's point", is)
    }

    /// Whether a point saw a packet twice so soon that it cannot be known which sighting of another
    /// point is of which: a copy, or the answer to one.
    fn has_near_twin(&self, number: usize, point: usize) -> bool {
        let captured = &self.truth.captured[point];
        let mut own = captured.iter().filter(|seen| seen.transmission == number);
        own.any(|seen| {
            captured.iter().any(|other| {
                !core::ptr::eq(seen, other)
                    && seen.bytes == other.bytes
                    && seen.time.as_nanos().abs_diff(other.time.as_nanos()) <= 1_000
            })
        })
    }

    /// Whether a difference of the clocks cannot be told from the transit time, nor the order of
    /// the points: only one direction has packets, or the other one only late ones.
    pub(super) fn cannot_compare_clocks(&self) -> bool {
        let delays = self.truth.injected.iter();
        let delays = delays.filter(|injected| matches!(injected.action, Action::Delay(_)));
        let delayed: BTreeSet<usize> = delays.map(|injected| injected.transmission).collect();
        let is_shared = |sender: usize| {
            let number = |point: usize| {
                let frames = self.truth.captured[point].iter().filter(|frame| !frame.is_corrupted);
                let numbers = frames.map(|frame| frame.transmission);
                numbers
                    .filter(|&number| number != WITNESS && !self.has_near_twin(number, point))
                    .filter(|&number| self.truth.transmissions[number].sender == sender)
                    .filter(|number| !delayed.contains(number))
                    .collect::<BTreeSet<usize>>()
            };
            self.seen.points.windows(2).all(|pair| !number(pair[0]).is_disjoint(&number(pair[1])))
        };
        let clocks = self.seen.points.iter().map(|&point| self.scenario.clocks[point]);
        let is_skewed = clocks.clone().max() != clocks.min();
        let is = self.is_merged() && is_skewed && !(is_shared(0) && is_shared(1));
        self.excuse("clocks: packets of one direction only", is)
    }

    /// Whether the silence after an RNR NAK has two explanations away from the requester: it gave
    /// up, or its packets do not reach the point any more.
    pub(super) fn is_silent_behind_rnr(&self) -> bool {
        let mut packets = self.truth.transmissions.iter().enumerate();
        let is = packets.any(|(number, packet)| {
            packet.class == Class::Request
                && packet.stopped().is_some()
                && !self.has_point_of(packet.sender)
                && !self.seen.frames.iter().any(|(_, seen)| {
                    let other = &self.truth.transmissions[seen.transmission];
                    seen.transmission >= number && !seen.is_corrupted && other.is_alike(packet)
                })
        });
        self.excuse("finding: silence after an RNR NAK", is)
    }
}
