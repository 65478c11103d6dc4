//! Every loss that is told was injected, where and when it is said, and every one that was injected
//! is told.

use std::collections::BTreeMap;

use roce::analysis::{Certainty, LossNote, LossPlace, PacketRole};

use super::super::plan::Class;
use super::super::truth::Transmission;
use super::{Check, last_point, way};

impl Check<'_> {
    /// Every loss that is told was injected, and every one that was injected is told.
    pub(super) fn losses(&self) {
        let mut told: BTreeMap<usize, Vec<&LossNote>> = BTreeMap::new();
        for loss in &self.seen.losses {
            match self.injected_loss(loss) {
                Ok(number) => told.entry(number).or_default().push(loss),
                Err(why) => self.say(format!("{loss:?}: {why}")),
            }
        }
        for (number, notes) in &told {
            let count = notes.len();
            // A note is taken for one of the last transmission that it can be of.
            let is_untold = |(other, packet): &(usize, &Transmission), of: &Transmission| {
                let is_same = packet.is_alike(of) && packet.sequence == of.sequence;
                is_same && packet.stopped().is_some() && !told.contains_key(other)
            };
            let most = self.truth.transmissions.get(*number).map_or(usize::MAX, |packet| {
                let all = self.truth.transmissions.iter().enumerate().take(*number);
                packet.psns as usize + all.filter(|other| is_untold(other, packet)).count()
            });
            if count > most && !self.is_request_lost(*number, &notes[most..]) {
                let packet = self.words(&self.truth.transmissions[*number]);
                self.say(format!("loss of {packet} is told {count} times"));
            }
        }
        for (number, packet) in self.truth.transmissions.iter().enumerate() {
            let is_lost = packet.stopped().is_some() && !packet.delivered;
            let is_told =
                |number: usize| self.same_gap(number).any(|same| told.contains_key(&same));
            if is_lost && !is_told(number) && self.must_find(number) {
                self.say(format!(
                    "loss of transmission {number} ({}) is not told",
                    self.words(packet)
                ));
            }
        }
    }

    /// A packet and its retransmissions that were lost before every point, until one was seen: they
    /// leave one gap.
    fn same_gap(&self, number: usize) -> impl Iterator<Item = usize> {
        let packet = &self.truth.transmissions[number];
        let is_unseen = |other: &Transmission| {
            other.stopped().is_some_and(|hop| self.is_before_points(other.sender, hop))
        };
        let later = self.truth.transmissions.iter().enumerate().skip(number);
        let same = later
            .filter(|(_, other)| other.is_alike(packet) && other.sequence == packet.sequence)
            .enumerate();
        same.take_while(move |(at, (_, other))| *at == 0 || is_unseen(packet) && is_unseen(other))
            .map(|(_, (same, _))| same)
    }

    /// Whether, for each of these notes about the loss of a response, a request for it was lost
    /// before the proof: the analysis may take the request for the response of a round trip
    /// if the loss is only likely.
    fn is_request_lost(&self, number: usize, notes: &[&LossNote]) -> bool {
        let response = &self.truth.transmissions[number];
        let is = notes.iter().all(|note| {
            let proof = self.seen.frame(note.proof).1.transmission;
            let before = self.truth.transmissions.iter().take(proof);
            let mut requests = before.filter(|other| {
                (other.connection, other.sender) == (response.connection, 1 - response.sender)
            });
            note.certainty == Certainty::Likely
                && response.class == Class::Response
                && requests.any(|request| {
                    request.class == Class::Request
                        && request.covers(response.sequence)
                        && request.stopped().is_some()
                })
        });
        self.excuse("likely loss of a response: the request for it was lost", is)
    }

    /// The injected loss that a note is about.
    pub(super) fn injected_loss(&self, loss: &LossNote) -> Result<usize, String> {
        let (connection, is_b_first) =
            self.seen.connection_of(self.truth, loss.flow).ok_or("no such connection")?;
        let sender = loss.sender.exchanged_if(is_b_first).index();
        let is_request = loss.role == PacketRole::Request;
        let fits = |packet: &Transmission| {
            packet.connection == connection
                && packet.sender == sender
                && (packet.class == Class::Request) == is_request
                && (packet.stopped().is_some())
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
            if fits(packet) && (is_psn(packet) || self.is_psn_damaged(frame)) {
                return self.placed(number, loss).map(|()| number);
            }
            if self.is_round_trip(loss, connection, sender) {
                return Ok(usize::MAX);
            }
            if let Some(twin) = self.exchanged_twin(number) {
                return self.placed(twin, loss).map(|()| twin);
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
            None if self.is_round_trip(loss, connection, sender) => Ok(usize::MAX),
            None if self.is_twin_taken_for_lost(loss, connection, sender) => Ok(usize::MAX),
            None => Err("nothing like it was lost".into()),
        }
    }

    /// Whether a loss is told to have happened where it did.
    pub(super) fn placed(&self, number: usize, loss: &LossNote) -> Result<(), String> {
        let packet = &self.truth.transmissions[number];
        let hop = packet.stopped().unwrap();
        let last = last_point(packet.sender, hop);
        let path = way(packet.sender);
        let saw = |point: &usize| path.iter().position(|at| at == point).unwrap() <= last;
        let on_way = |point: &&usize| !self.cannot_know_way(packet, **point);
        let right = match loss.place {
            LossPlace::AfterCapturePoint => self.seen.points.iter().filter(on_way).all(saw),
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
}
