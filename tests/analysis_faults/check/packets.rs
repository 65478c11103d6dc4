//! Checks of the notes about packets: new, retransmitted and why, copied, overtaken.

use std::collections::BTreeSet;

use roce::analysis::PacketNote;

use super::super::plan::Class;
use super::super::truth::WITNESS;
use super::{Check, way};

impl Check<'_> {
    /// Checks the note of each packet.
    pub(super) fn packets(&self) {
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
            // Of several points, the copy may be seen further on the way than the packet.
            let is_repeated = !seen_before.insert(number);
            let is_copy = if self.is_merged() { captured.is_copy } else { is_repeated };
            if note.duplicate != is_copy
                && !self.cannot_tell_copy(number, note.duplicate)
                && !(is_copy && self.is_equal_to_answer(packet, frame)
                    || self.is_equal_at_once(frame))
            {
                say.push(format!("duplicate {} and not {is_copy}", note.duplicate));
            }
            if !is_copy && packet.class == Class::Request {
                say.extend(self.retransmission(number, &note, &earlier));
            }
            if packet.class != Class::Request && note.retransmission.is_some() {
                say.push("a response is no retransmission".into());
            }
            if !is_copy {
                let is_late = self.is_reordered(number, frame);
                let may_differ = || {
                    self.cannot_tell_order(number, is_late)
                        || is_late && self.is_msn_equal(number, frame)
                        || note.reordered && self.is_overtaken_by_others(number)
                };
                if note.reordered != is_late && !may_differ() {
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
    pub(super) fn nothing_left_out(&self) {
        let noted: BTreeSet<usize> =
            self.seen.notes.keys().map(|frame| self.seen.frame(*frame).1.transmission).collect();
        for (index, (_, captured)) in self.seen.frames.iter().enumerate() {
            let is_alone = !self.is_merged() && !self.seen.notes.contains_key(&(index as u64 + 1));
            let is_missing = is_alone || !noted.contains(&captured.transmission);
            let packet = &self.truth.transmissions[captured.transmission];
            // A CNP names the queue pair that it is for: if nothing else was sent to that yet, it
            // belongs to no connection.
            if is_missing && !captured.is_corrupted && !packet.is_cnp {
                self.say(format!("frame {} ({}) has no note", index + 1, self.words(packet)));
            }
        }
    }

    pub(super) fn retransmission(
        &self,
        number: usize,
        note: &PacketNote,
        earlier: &[u64],
    ) -> Vec<String> {
        let packet = &self.truth.transmissions[number];
        let mut say = Vec::new();
        let (got, real) = (note.retransmission, packet.cause);
        if self.has_point_of(packet.sender) {
            let is_cause_wrong = got != real && got.is_some() && real.is_some();
            let is_excused = || self.cannot_know_outcome(packet.connection, packet.sender);
            if got != real && !(is_cause_wrong && is_excused()) {
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
                && before.covers(packet.sequence)
        });
        // What the point did not see before looks new there.
        if got == real || (got.is_none() && !has_seen) {
            return say;
        }
        let is_cause_wrong = got.is_some() && real.is_some();
        let is_copy_likely = got.is_none() && note.duplicate;
        if self.is_delayed_twin(number)
            || self.is_behind_delay(number)
            || self.is_late_behind_nak(number)
            || self.is_copy_of_lost(number)
            || is_cause_wrong
                && (self.is_after_lost_reaction(number, got)
                    || self.is_after_late_response(number, got)
                    || self.is_between_naks(number))
            || ((is_cause_wrong || is_copy_likely) && self.cannot_know_cause(number))
        {
            return say;
        }
        say.push(format!("retransmission {got:?} and not {real:?}"));
        say
    }

    /// Whether a packet that was sent later was seen earlier: at the point, or at the last one on
    /// the way that sees the flow.
    pub(super) fn is_reordered(&self, number: usize, frame: u64) -> bool {
        let packet = &self.truth.transmissions[number];
        let point = match self.is_merged() {
            false => self.seen.frame(frame).0,
            true => {
                let mut on_way = way(packet.sender).into_iter().rev();
                let is_last = |point: &usize| {
                    self.seen.points.contains(point) && !self.cannot_know_way(packet, *point)
                };
                on_way.find(is_last).unwrap_or_else(|| self.seen.frame(frame).0)
            }
        };
        self.is_overtaken_at(number, point)
    }

    /// Whether packets of the other PSN space of the sender overtook a packet, or it overtook them:
    /// only several points tell.
    fn is_overtaken_by_others(&self, number: usize) -> bool {
        let packet = &self.truth.transmissions[number];
        let is_out_of_order = |point: usize| {
            let captured = &self.truth.captured[point];
            let Some(at) = captured.iter().position(|seen| seen.transmission == number) else {
                return false;
            };
            captured.iter().enumerate().any(|(other_at, seen)| {
                let other = &self.truth.transmissions[seen.transmission];
                (other.connection, other.sender) == (packet.connection, packet.sender)
                    && (other_at < at) != (seen.transmission < number)
                    && seen.transmission != number
            })
        };
        let is = self.is_merged() && self.seen.points.iter().any(|&point| is_out_of_order(point));
        self.excuse("order: packets of the other PSN space", is)
    }

    /// Whether a point saw a packet that was sent later earlier.
    pub(super) fn is_overtaken_at(&self, number: usize, point: usize) -> bool {
        let packet = &self.truth.transmissions[number];
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
                && other.is_alike(packet)
        })
    }
}
