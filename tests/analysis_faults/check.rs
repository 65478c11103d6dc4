//! Compares what the analysis says with what happened.
//!
//! Exemptions, each with its reason, are functions named `cannot_…`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use roce::analysis::{
    Certainty, FindingKind, LossNote, LossPlace, Outcome, PacketNote, PacketRole,
    RetransmissionCause,
};
use roce::link::mem::Action;
use roce::verbs::{QpType, WcStatus};
use roce::wire::Operation;
use roce::wire::aeth::NakCode;

use super::observe::Observed;
use super::plan::{Class, Hop, Op, Scenario};
use super::truth::{Completed, Injected, Transmission, Truth, WITNESS};
use super::world::witness;

/// The comparison of one analysis with the truth.
pub struct Check<'c> {
    scenario: &'c Scenario,
    truth: &'c Truth,
    seen: &'c Observed<'c>,
    /// What does not agree.
    wrong: RefCell<Vec<String>>,
}

/// The points that a sender's packets pass, in order.
fn way(sender: usize) -> [usize; 3] {
    if sender == 0 { [0, 1, 2] } else { [2, 1, 0] }
}

/// How far a packet comes that a hop loses: the index in [`way`] of the last point that sees it.
fn last_point(sender: usize, hop: Hop) -> usize {
    match (sender, hop) {
        (0, Hop::A) | (1, Hop::B) => 0,
        _ => 1,
    }
}

pub fn check(scenario: &Scenario, truth: &Truth, seen: &Observed<'_>) -> Vec<String> {
    let check = Check { scenario, truth, seen, wrong: RefCell::default() };
    check.pairing();
    check.packets();
    check.losses();
    check.counters();
    check.findings();
    check.messages();
    check.transits();
    check.wrong.into_inner()
}

impl Check<'_> {
    fn say(&self, what: String) {
        self.wrong.borrow_mut().push(what);
    }

    fn is_merged(&self) -> bool {
        self.seen.points.len() > 1
    }

    /// Whether a host's own point is among those that captured.
    fn has_point_of(&self, host: usize) -> bool {
        self.seen.points.contains(&(host * 2))
    }

    fn has_both_ends(&self) -> bool {
        self.has_point_of(0) && self.has_point_of(1)
    }

    fn is_reliable(&self, connection: usize) -> bool {
        self.scenario.connections[connection].kind == QpType::Rc
    }

    /// Every connection that was captured is one connection, with the right queue pairs.
    fn pairing(&self) {
        let mut found: BTreeMap<usize, usize> = BTreeMap::new();
        for connection in &self.seen.report.connections {
            if connection.ends.iter().any(|end| end.address == witness(self.scenario.ipv6)) {
                continue;
            }
            match self.seen.scenario_of(self.truth, connection) {
                Some((index, _)) => *found.entry(index).or_default() += 1,
                None => self.say(format!(
                    "connection {} is none of the scenario's: {:?}",
                    connection.flow, connection.ends
                )),
            }
        }
        for (index, plan) in self.scenario.connections.iter().enumerate() {
            let of_it = |sender| {
                let frames = self.seen.frames.iter().map(|(_, captured)| *captured);
                let mut whole = frames.filter(|captured| !captured.is_corrupted);
                whole.any(|captured| {
                    let packet = &self.truth.transmissions[captured.transmission];
                    packet.connection == index && packet.sender == sender && !packet.is_cnp
                })
            };
            let senders = usize::from(of_it(0)) + usize::from(of_it(1));
            let count = found.get(&index).copied().unwrap_or(0);
            // UC has no responses that tell which queue pairs belong together; two that request each other may be two.
            let most = if plan.kind == QpType::Rc || plan.kind == QpType::Ud { 1 } else { senders };
            if count > most || (senders > 0 && count == 0) {
                let ends = |c: &roce::analysis::Connection| {
                    let qpns = c.ends.each_ref().map(|end| end.qpn.map(|qpn| qpn.get()));
                    format!("{} {qpns:x?} {:?} {:?}", c.flow, c.pairing, c.service)
                };
                let all: Vec<_> = self.seen.report.connections.iter().map(ends).collect();
                let real = &self.truth.qpns;
                self.say(format!(
                    "connection {index} was found {count} times: {all:?} and not {real:x?}"
                ));
            }
        }
    }

    /// What each packet was.
    fn packets(&self) {
        let mut seen_before: BTreeSet<usize> = BTreeSet::new();
        let mut order: Vec<u64> = self.seen.notes.keys().copied().collect();
        let time_of = |frame: &u64| {
            let (point, captured) = self.seen.frame(*frame);
            captured.time.as_nanos().saturating_add_signed(-self.scenario.clocks[point])
        };
        order.sort_by_key(|frame| (time_of(frame), *frame));
        let mut earlier: Vec<u64> = Vec::new();
        for frame in order {
            let note = self.seen.notes[&frame];
            let (_, captured) = self.seen.frame(frame);
            if captured.is_corrupted || captured.transmission == WITNESS {
                continue;
            }
            let number = captured.transmission;
            let packet = &self.truth.transmissions[number];
            let mut say = Vec::new();
            if !packet.is_cnp && note.sequence & 0xff_ffff != u64::from(packet.psn) {
                say.push(format!("sequence {:#x}", note.sequence));
            }
            let is_copy = !seen_before.insert(number);
            if note.duplicate != is_copy && !self.cannot_tell_copy(packet, note.duplicate) {
                say.push(format!("duplicate {} and not {is_copy}", note.duplicate));
            }
            if !is_copy && packet.class == Class::Request {
                say.extend(self.retransmission(packet, &note, &earlier));
            }
            if packet.class != Class::Request && note.retransmission.is_some() {
                say.push("a response is no retransmission".into());
            }
            if !is_copy {
                let is_late = self.is_reordered(number, frame);
                if note.reordered != is_late && !self.cannot_tell_order(packet) {
                    say.push(format!("reordered {} and not {is_late}", note.reordered));
                }
            }
            earlier.push(frame);
            for say in say {
                self.say(format!("frame {frame} ({}): {say}", self.words(packet)));
            }
        }
        self.nothing_left_out();
    }

    /// Every packet has a note, once; in merged captures one of its sightings has.
    fn nothing_left_out(&self) {
        let noted: BTreeSet<usize> =
            self.seen.notes.keys().map(|frame| self.seen.frame(*frame).1.transmission).collect();
        for (index, (_, captured)) in self.seen.frames.iter().enumerate() {
            let is_alone = !self.is_merged() && !self.seen.notes.contains_key(&(index as u64 + 1));
            let is_missing = is_alone || !noted.contains(&captured.transmission);
            let packet = &self.truth.transmissions[captured.transmission];
            // A CNP names the queue pair that it is for: if nothing else was sent to that yet, it belongs to no connection.
            if is_missing && !captured.is_corrupted && !packet.is_cnp {
                self.say(format!("frame {} ({}) has no note", index + 1, self.words(packet)));
            }
        }
    }

    fn retransmission(
        &self,
        packet: &Transmission,
        note: &PacketNote,
        earlier: &[u64],
    ) -> Vec<String> {
        let mut say = Vec::new();
        let (got, real) = (note.retransmission, packet.cause);
        if self.has_point_of(packet.sender) {
            if got != real {
                say.push(format!("retransmission {got:?} and not {real:?}"));
            }
            return say;
        }
        // Another point: what it saw before counts.
        let has_seen = earlier.iter().any(|&frame| {
            let before = &self.truth.transmissions[self.seen.frame(frame).1.transmission];
            before.connection == packet.connection
                && before.sender == packet.sender
                && before.class == Class::Request
                && (before.sequence..before.sequence + u64::from(before.psns))
                    .contains(&packet.sequence)
        });
        if self.is_delayed_twin(packet) || self.is_behind_delay(packet) {
            return say;
        }
        let is_blind = self.cannot_know_cause(packet) && note.duplicate;
        if got.is_some() && real.is_none()
            || got.is_none() && real.is_some() && has_seen && !is_blind
        {
            say.push(format!("retransmission {got:?} and not {real:?}"));
        } else if got.is_some() && got != real && !self.cannot_know_cause(packet) {
            say.push(format!("retransmission for {got:?} and not for {real:?}"));
        }
        say
    }

    /// Away from the requester it is not known which responses reached it: where one was lost, damaged or late behind the
    /// point, the requester may have acted on another one, or on its timeout.
    fn cannot_know_cause(&self, packet: &Transmission) -> bool {
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
    fn cannot_pair_yet(&self, packet: &Transmission) -> bool {
        self.truth.transmissions.iter().any(|other| {
            (other.connection, other.sender, other.class)
                == (packet.connection, packet.sender, Class::Request)
                && other.sequence == 0
                && (other.lost.is_some() || other.corrupted.is_some())
        })
    }

    /// A packet that was delayed until it was retransmitted equals its retransmission: which of the two arrives first cannot
    /// be known behind the delay.
    /// And where the network copies a request behind the point, the responder answers both: the second answer equals a copy
    /// of the first.
    fn cannot_tell_copy(&self, packet: &Transmission, is_told: bool) -> bool {
        let is_answer =
            packet.class != Class::Request && is_told && !self.has_point_of(packet.sender);
        let has_copies = self.truth.injected.iter().any(|injected| {
            let other = &self.truth.transmissions[injected.transmission];
            injected.action == Action::Duplicate
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

    /// The answer to a request that came late, or twice, acknowledges what was acknowledged: as does an acknowledgement
    /// that was overtaken. And before the first packet of a connection there is nothing that it could be later than.
    fn cannot_tell_order(&self, packet: &Transmission) -> bool {
        let is_answer = packet.class != Class::Request && !self.has_both_ends();
        let is_first = packet.class == Class::Request && packet.sequence == 0;
        let requests = |injected: &Injected| {
            let other = &self.truth.transmissions[injected.transmission];
            (other.connection, other.sender, other.class)
                == (packet.connection, 1 - packet.sender, Class::Request)
                && matches!(injected.action, Action::Delay(_) | Action::Duplicate)
        };
        self.is_delayed_twin(packet)
            || (is_answer && self.truth.injected.iter().any(requests))
            || (is_first && !self.has_point_of(packet.sender))
    }

    /// Away from the requester, what it retransmits although the packet only came late cannot be told from what was late.
    fn is_behind_delay(&self, packet: &Transmission) -> bool {
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

    fn is_delayed_twin(&self, packet: &Transmission) -> bool {
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

    /// Whether a packet that was sent later was seen earlier: at the point, or at the last one on the way.
    fn is_reordered(&self, number: usize, frame: u64) -> bool {
        let packet = &self.truth.transmissions[number];
        let point = match self.is_merged() {
            false => self.seen.frame(frame).0,
            true => {
                let on_way = way(packet.sender).into_iter().rev();
                on_way.into_iter().find(|point| self.seen.points.contains(point)).unwrap()
            }
        };
        let captured = &self.truth.captured[point];
        let Some(at) =
            captured.iter().position(|seen| seen.transmission == number && !seen.is_corrupted)
        else {
            return false;
        };
        captured[..at].iter().any(|seen| {
            let other = &self.truth.transmissions[seen.transmission];
            seen.transmission > number
                && !seen.is_corrupted
                && !other.is_cnp
                && (other.connection, other.sender, other.class)
                    == (packet.connection, packet.sender, packet.class)
        })
    }

    fn words(&self, packet: &Transmission) -> String {
        let Transmission { connection, sender, psn, opcode, cause, .. } = packet;
        let sender = ["A", "B"][*sender];
        let again = cause.map_or(String::new(), |cause| format!(" again for {cause:?}"));
        format!("connection {connection}, {sender}'s {opcode} psn {psn}{again}")
    }

    /// Every loss that is told was injected, and every one that was injected is told.
    fn losses(&self) {
        let mut told: BTreeMap<usize, usize> = BTreeMap::new();
        for loss in &self.seen.losses {
            match self.injected_loss(loss) {
                Ok(number) => *told.entry(number).or_default() += 1,
                Err(why) => self.say(format!("{loss:?}: {why}")),
            }
        }
        for (number, count) in &told {
            let most = self
                .truth
                .transmissions
                .get(*number)
                .map_or(usize::MAX, |packet| packet.psns as usize);
            if *count > most {
                let packet = self.words(&self.truth.transmissions[*number]);
                self.say(format!("loss of {packet} is told {count} times"));
            }
        }
        for (number, packet) in self.truth.transmissions.iter().enumerate() {
            let is_lost = packet.lost.is_some() || packet.corrupted.is_some();
            if is_lost && !packet.delivered && !told.contains_key(&number) && self.must_find(number)
            {
                self.say(format!(
                    "loss of transmission {number} ({}) is not told",
                    self.words(packet)
                ));
            }
        }
    }

    /// The injected loss that a note is about.
    fn injected_loss(&self, loss: &LossNote) -> Result<usize, String> {
        let (connection, is_b_first) =
            self.seen.connection_of(self.truth, loss.flow).ok_or("no such connection")?;
        let sender = usize::from(loss.sender) ^ usize::from(is_b_first);
        let is_request = loss.role == PacketRole::Request;
        let fits = |packet: &Transmission| {
            packet.connection == connection
                && packet.sender == sender
                && (packet.class == Class::Request) == is_request
                && (packet.lost.is_some() || packet.corrupted.is_some())
        };
        // A gap in the PSNs does not tell how many of them a READ had that was lost.
        let reach = if loss.place == LossPlace::BeforeCapturePoint { u32::MAX } else { 1 };
        let is_psn = |packet: &Transmission| {
            let ahead = (loss.sequence as u32).wrapping_sub(packet.psn) & 0xff_ffff;
            ahead < packet.psns.min(reach)
        };
        if let Some(frame) = loss.frame {
            let number = self.seen.frame(frame).1.transmission;
            let packet = &self.truth.transmissions[number];
            if fits(packet) && is_psn(packet) {
                return self.placed(number, loss).map(|()| number);
            }
            if loss.certainty == Certainty::Likely && self.is_round_trip(loss, connection, sender) {
                return Ok(usize::MAX);
            }
            return Err(format!("frame {frame} ({}) was not lost", self.words(packet)));
        }
        let (point, proof) = self.seen.frame(loss.proof);
        let proof = proof.time.as_nanos().saturating_add_signed(-self.scenario.clocks[point]);
        let mut candidates = self.truth.transmissions.iter().enumerate();
        let found = candidates.by_ref().filter(|(number, packet)| {
            fits(packet)
                && is_psn(packet)
                && packet.time.as_nanos() <= proof
                && self.placed(*number, loss).is_ok()
        });
        match found.last() {
            Some((number, _)) => Ok(number),
            None if loss.certainty == Certainty::Likely
                && self.is_round_trip(loss, connection, sender) =>
            {
                Ok(usize::MAX)
            }
            None if self.is_twin_taken_for_lost(loss, connection, sender) => Ok(usize::MAX),
            None => Err("nothing like it was lost".into()),
        }
    }

    /// Behind the delay, a late packet equals the retransmission that the gap made the requester send.
    fn is_twin_taken_for_lost(&self, loss: &LossNote, connection: usize, sender: usize) -> bool {
        self.truth.transmissions.iter().any(|packet| {
            (packet.connection, packet.sender) == (connection, sender)
                && u64::from(packet.psn) == loss.sequence & 0xff_ffff
                && self.is_delayed_twin(packet)
        })
    }

    /// Whether a loss is told to have happened where it did.
    fn placed(&self, number: usize, loss: &LossNote) -> Result<(), String> {
        let packet = &self.truth.transmissions[number];
        let hop = packet.lost.or(packet.corrupted).unwrap();
        let last = last_point(packet.sender, hop);
        let path = way(packet.sender);
        let saw = |point: &usize| path.iter().position(|at| at == point).unwrap() <= last;
        let right = match loss.place {
            LossPlace::AfterCapturePoint => self.seen.points.iter().all(saw),
            LossPlace::BeforeCapturePoint => !self.seen.points.iter().any(saw),
            LossPlace::Between { from, to } => {
                let [from, to] = [from, to].map(|file| self.seen.points[usize::from(file)]);
                saw(&from) && !saw(&to)
            }
        };
        if right {
            Ok(())
        } else {
            Err(format!("it was lost at {hop:?} behind point {}", path[last]))
        }
    }

    /// What is only likely may take the request for the response of a round trip, or a late packet for a lost one: one of
    /// the connection's packets in both directions met with a fault that made the requester go back.
    fn is_round_trip(&self, _loss: &LossNote, connection: usize, _sender: usize) -> bool {
        self.truth.injected.iter().any(|injected| {
            self.truth.transmissions[injected.transmission].connection == connection
                && matches!(injected.action, Action::Drop | Action::Corrupt | Action::Delay(_))
        })
    }

    /// Whether a loss can be found in what was captured.
    fn must_find(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        if self.has_both_ends() {
            return !self.cannot_compare(number);
        }
        if !self.is_reliable(packet.connection) || packet.is_cnp {
            // UC and UD tell nothing back. (A gap in UC's PSNs is told, and checked to be right, but not demanded.)
            return false;
        }
        let hop = packet.lost.or(packet.corrupted).unwrap();
        let path = way(packet.sender);
        let [point] = self.seen.points[..] else { return false };
        let at = path.iter().position(|&at| at == point).unwrap();
        let was_seen = at <= last_point(packet.sender, hop);
        match packet.class {
            Class::Request if was_seen => self.is_named_by_nak(number),
            Class::Request => self.is_gap_at(number, point),
            Class::Response if !was_seen => {
                self.is_gap_at(number, point) && self.is_requested_anew(number)
            }
            _ => false,
        }
    }

    /// A file says nothing about the time after its last frame: it may have ended. And a flow of which a point never saw
    /// anything may take another way.
    fn cannot_compare(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let path: Vec<usize> = way(packet.sender)
            .into_iter()
            .filter(|point| self.seen.points.contains(point))
            .collect();
        let hop = packet.lost.or(packet.corrupted).unwrap();
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
        let same_flow = frames.iter().any(|frame| {
            let other = &self.truth.transmissions[frame.transmission];
            !frame.is_corrupted
                && (other.connection, other.sender) == (packet.connection, packet.sender)
        });
        ends || begins || !same_flow
    }

    /// Whether the requester went back to it because of a sequence-error NAK: the others that were lost behind it cannot be
    /// told from those that the responder dropped because of the gap, and without a NAK the response may have been lost.
    fn is_named_by_nak(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let later = self.truth.transmissions.iter().skip(number + 1);
        let mut rewinds = later.filter(|other| {
            (other.connection, other.sender) == (packet.connection, packet.sender)
                && other.class == Class::Request
                && other.rewinds
        });
        rewinds.next().is_some_and(|rewind| {
            rewind.sequence == packet.sequence
                && rewind.cause == Some(RetransmissionCause::SequenceNak)
        })
    }

    /// Whether the point saw a packet with a higher PSN of the same kind before it saw this one: a gap.
    fn is_gap_at(&self, number: usize, point: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let same = |other: &Transmission| {
            (other.connection, other.sender, other.class)
                == (packet.connection, packet.sender, packet.class)
        };
        let seen = self.truth.captured[point].iter().filter(|seen| !seen.is_corrupted);
        let seen =
            seen.map(|seen| (seen.transmission, &self.truth.transmissions[seen.transmission]));
        let seen: Vec<_> = seen.filter(|(_, other)| same(other)).collect();
        // Something before it, so that its absence shows; it was not seen before; something behind it before it came.
        let covers = |other: &Transmission| {
            (other.sequence..other.sequence + u64::from(other.psns)).contains(&packet.sequence)
        };
        let begins =
            seen.iter().any(|(at, other)| *at < number && other.sequence < packet.sequence);
        let first_time = !seen.iter().any(|(at, other)| *at < number && covers(other));
        let next_time =
            seen.iter().find(|(at, other)| *at > number && covers(other)).map(|(at, _)| *at);
        let behind = seen.iter().any(|(at, other)| {
            *at > number
                && next_time.is_none_or(|next| *at < next)
                && other.sequence > packet.sequence
        });
        packet.cause.is_none() && begins && first_time && behind && next_time.is_some()
    }

    /// Whether the requester requested a response anew.
    fn is_requested_anew(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let mut later = self.truth.transmissions.iter().skip(number + 1);
        later.any(|other| {
            (other.connection, other.sender) == (packet.connection, 1 - packet.sender)
                && other.class == Class::Request
                && other.sequence == packet.sequence
        })
    }

    /// The numbers of the report.
    fn counters(&self) {
        let all = &self.seen.report.totals.all;
        let frames = |is: &dyn Fn(usize, &super::truth::Captured) -> bool| {
            let frames = self.seen.frames.iter().filter(|(point, captured)| is(*point, captured));
            let mut once: BTreeSet<(usize, bool)> = BTreeSet::new();
            // In merged captures each packet counts once.
            let mut count = 0;
            for (_, captured) in frames {
                let fresh = once.insert((captured.transmission, captured.is_copy));
                count += u64::from(fresh || !self.is_merged());
            }
            count
        };
        let damaged = frames(&|_, captured| captured.is_corrupted);
        let stray: u64 = all.icrc_errors;
        if stray > damaged {
            self.say(format!("{stray} ICRC errors and not {damaged}"));
        }
        if !self.is_merged() {
            let marked = frames(&|_, captured| captured.is_marked && !captured.is_corrupted);
            if all.ce_marked != marked {
                self.say(format!("{} CE marks and not {marked}", all.ce_marked));
            }
            let cnps = frames(&|_, captured| {
                self.truth.transmissions[captured.transmission].is_cnp && !captured.is_corrupted
            });
            if all.cnps != cnps {
                self.say(format!("{} CNPs and not {cnps}", all.cnps));
            }
        }
        if self.has_both_ends() {
            self.count_causes();
        }
    }

    /// Retransmitted packets by cause.
    fn count_causes(&self) {
        let count = |cause| {
            let packets = self.truth.transmissions.iter();
            packets.filter(|packet| packet.cause == Some(cause)).count() as u64
        };
        let all = self.seen.report.totals.all.retransmissions;
        let told =
            [all.timeout, all.sequence_nak, all.implied_nak, all.rnr].map(|some| some.packets);
        use RetransmissionCause::{ImpliedNak, Rnr, SequenceNak, Timeout};
        let real = [Timeout, SequenceNak, ImpliedNak, Rnr].map(count);
        if told != real {
            self.say(format!("retransmissions by cause {told:?} and not {real:?}"));
        }
    }

    /// What the findings may be about, and must be.
    fn findings(&self) {
        let injected =
            |is: &dyn Fn(Action) -> bool| self.truth.injected.iter().any(|fault| is(fault.action));
        let any_status =
            |status| self.truth.completed.iter().any(|done| done.status == Some(status));
        let loses =
            injected(&|action| matches!(action, Action::Drop | Action::Corrupt | Action::Delay(_)));
        let is_captured = |is: &dyn Fn(&super::truth::Captured) -> bool| {
            self.seen.frames.iter().any(|(_, captured)| is(captured))
        };
        let rnr = is_captured(&|captured| {
            let packet = &self.truth.transmissions[captured.transmission];
            packet.is_nak
        });
        // See `cannot_tell_copy`.
        let is_blind = |packet: &Transmission| {
            packet.cause.is_some()
                && !self.has_point_of(packet.sender)
                && self.cannot_know_cause(packet)
        };
        let copies = injected(&|action| action == Action::Duplicate)
            || self.truth.transmissions.iter().any(|packet| self.is_delayed_twin(packet))
            || self.truth.transmissions.iter().any(is_blind);
        let marks = injected(&|action| action == Action::Mark);
        let damage = is_captured(&|captured| captured.is_corrupted);
        let delays = injected(&|action| matches!(action, Action::Delay(_)));
        let many = self.truth.transmissions.iter().any(|packet| packet.cause.is_some());
        for finding in &self.seen.report.findings {
            let allowed = match finding.kind {
                FindingKind::Loss => loses,
                FindingKind::Corruption => damage,
                FindingKind::ReceiverNotReady => rnr,
                FindingKind::Reordering | FindingKind::Delay => delays,
                FindingKind::Duplication => copies,
                FindingKind::Congestion => marks,
                FindingKind::RetryLimit => any_status(WcStatus::RetryExcErr),
                FindingKind::RnrRetryLimit => any_status(WcStatus::RnrRetryExcErr),
                FindingKind::RequestRefused => any_status(WcStatus::RemAccessErr),
                FindingKind::Stall => loses || many,
                // Datagrams of which PSNs are missing: likely lost.
                FindingKind::CaptureLoss => {
                    loses && self.scenario.connections.iter().any(|plan| plan.kind == QpType::Ud)
                }
                _ => false,
            };
            if !allowed {
                self.say(format!("finding without a reason: {:?} {}", finding.kind, finding.text));
            }
        }
        let has = |kind| self.seen.report.findings.iter().any(|finding| finding.kind == kind);
        let mut need = Vec::new();
        if self.has_point_of(0) {
            let a_fails = |status| {
                self.truth
                    .completed
                    .iter()
                    .any(|done| done.requester == 0 && done.status == Some(status))
            };
            need.push((FindingKind::RnrRetryLimit, a_fails(WcStatus::RnrRetryExcErr)));
            need.push((FindingKind::RequestRefused, a_fails(WcStatus::RemAccessErr)));
            need.push((FindingKind::RetryLimit, a_fails(WcStatus::RetryExcErr)));
        }
        let statistics = &self.seen.report.totals.all;
        need.push((FindingKind::Loss, statistics.lost_requests + statistics.lost_responses > 0));
        need.push((FindingKind::Duplication, statistics.duplicate_packets > 0));
        need.push((FindingKind::Reordering, statistics.reordered > 0));
        need.push((FindingKind::Congestion, statistics.ce_marked > 0));
        need.push((
            FindingKind::ReceiverNotReady,
            statistics.rnr_naks > 0 && !has(FindingKind::RnrRetryLimit),
        ));
        need.push((FindingKind::Corruption, damage));
        for (kind, needed) in need {
            if needed && !has(kind) {
                self.say(format!("no finding {kind:?}"));
            }
        }
    }

    /// The messages of each requester, where its own point captured.
    fn messages(&self) {
        for index in 0..self.scenario.connections.len() {
            for requester in [0, 1] {
                if self.has_point_of(requester) {
                    self.messages_of(index, requester);
                }
            }
        }
    }

    fn messages_of(&self, index: usize, requester: usize) {
        let mut told: Vec<_> = self.seen.messages.iter().collect();
        told.retain(|message| {
            let connection = self.seen.connection_of(self.truth, message.flow);
            connection.is_some_and(|(of, is_b)| {
                of == index && (usize::from(message.requester) ^ usize::from(is_b)) == requester
            })
        });
        told.sort_by_key(|message| message.first_frame);
        let told: Vec<_> = told
            .iter()
            .map(|message| {
                (message.operation, message.immediate, message.bytes, outcome(message.outcome))
            })
            .collect();
        let mtu = self.scenario.connections[index].mtu.bytes() as u32;
        let mut cursor = 0;
        let mut real = Vec::new();
        let posts = self.truth.completed.iter();
        for done in posts.filter(|done| (done.connection, done.requester) == (index, requester)) {
            let psns = match done.op {
                Op::CompareSwap | Op::FetchAdd => 1,
                _ => done.len.div_ceil(mtu).max(1),
            };
            let (first, end) = (cursor, cursor + u64::from(psns));
            cursor = end;
            let is_begun = self.truth.transmissions.iter().any(|packet| {
                (packet.connection, packet.sender, packet.class)
                    == (index, requester, Class::Request)
                    && (first..end).contains(&packet.sequence)
            });
            if is_begun {
                real.push(expected(done));
            }
        }
        if told != real {
            let host = ["A", "B"][requester];
            self.say(format!(
                "messages of connection {index}, {host}:\n   {told:?}\nand not\n   {real:?}"
            ));
        }
    }

    /// Several points: how long packets took.
    fn transits(&self) {
        if !self.is_merged() {
            return;
        }
        let transits = &self.seen.report.capture.transits;
        if !self.has_both_ends()
            || self.truth.injected.iter().any(|fault| fault.action != Action::Mark)
        {
            return;
        }
        // With packets of one direction only, the clocks are taken to be right.
        let sends = |sender| {
            let mut packets = self.truth.transmissions.iter().skip(1);
            packets.any(|packet| packet.sender == sender)
        };
        if !sends(0) || !sends(1) {
            return;
        }
        let hops = self.seen.points.len() as u64 - 1;
        for transit in transits {
            let least = transit.nanos.percentiles().min;
            let real = 4_000 / hops;
            // The delay by rule is the same both ways, so the clocks are corrected exactly.
            if least.abs_diff(real) > 2 {
                self.say(format!(
                    "transit {} → {} of {least} ns and not {real}",
                    transit.from, transit.to
                ));
            }
        }
    }
}

/// An outcome, without what the code of a NAK is.
fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Refused(NakCode::RemoteAccessError) => "refused",
        Outcome::Refused(_) => "refused for another reason",
        Outcome::RnrRetryExceeded => "RNR retries exceeded",
        Outcome::RetryExceeded => "retries exceeded",
        Outcome::Flushed => "flushed",
        Outcome::InFlight => "in flight",
        Outcome::Incomplete => "incomplete",
        _ => "unknown",
    }
}

/// What a message is expected to be.
fn expected(done: &Completed) -> (Operation, bool, u64, &'static str) {
    let (operation, immediate) = match done.op {
        Op::Send => (Operation::Send, false),
        Op::SendImm => (Operation::Send, true),
        Op::Write | Op::WriteWrongKey => (Operation::Write, false),
        Op::WriteImm => (Operation::Write, true),
        Op::Read => (Operation::ReadRequest, false),
        Op::CompareSwap => (Operation::CompareSwap, false),
        Op::FetchAdd => (Operation::FetchAdd, false),
    };
    let outcome = match done.status {
        Some(WcStatus::Success) => "completed",
        Some(WcStatus::RemAccessErr) => "refused",
        Some(WcStatus::RnrRetryExcErr) => "RNR retries exceeded",
        Some(WcStatus::RetryExcErr) => "retries exceeded",
        Some(WcStatus::WrFlushErr) => "flushed",
        Some(_) => "another status",
        None => "in flight",
    };
    (operation, immediate, done.len.into(), outcome)
}
