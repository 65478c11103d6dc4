//! Losses of one requester, from the frame that shows them to the report.
//!
//! A loss that only the behavior of the two ends shows is kept until the end ([`OpenLoss`]): a
//! packet that comes late, or an answer to each of two transmissions, disproves it. Where several
//! capture points follow a packet, they alone tell.

use core::ops::{Range, RangeInclusive};
use std::collections::VecDeque;

use super::limits::{OPEN_LOSSES_MAX, UNSEEN_MAX};
use super::records::RecordFlags;
use super::{
    Certainty, LossNote, LossPlace, LostBetween, PacketFacts, PacketRole, Requester, Scene,
};

/// One loss, before it is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) sequence: u64,
    pub(super) role: PacketRole,
    pub(super) frame: Option<u64>,
    pub(super) proof: u64,
    pub(super) certainty: Certainty,
    pub(super) is_corrupt: bool,
}

impl Loss {
    /// A packet that the capture point did not see, and whose loss `proof` makes likely.
    pub(super) fn of(role: PacketRole, sequence: u64, proof: u64) -> Self {
        let (frame, certainty, is_corrupt) = (None, Certainty::Likely, false);
        Self { sequence, role, frame, proof, certainty, is_corrupt }
    }

    /// A request that the capture point did not see.
    pub(super) fn request(sequence: u64, proof: u64) -> Self {
        Self::of(PacketRole::Request, sequence, proof)
    }

    /// The packet in a frame, which passed the capture point.
    pub(super) fn captured(self, frame: u64) -> Self {
        Self { frame: Some(frame), ..self }
    }

    /// The packet in a frame, whose ICRC is wrong there.
    pub(super) fn corrupt(self, frame: u64) -> Self {
        Self { is_corrupt: true, ..self.captured(frame).proven() }
    }

    /// Makes the loss a proven one.
    pub(super) fn proven(self) -> Self {
        Self { certainty: Certainty::Proven, ..self }
    }
}

/// Sign of a loss, which determines what may disprove it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// A gap.
    Gap,
    /// A NAK names a packet that passed the capture point: it was lost behind it, or is late.
    Nak,
    /// A response that passed the capture point is asked for again because a later one came to the
    /// requester: it was lost behind the point, or is late.
    Overtaken,
    /// A READ or ATOMIC had no response: it was lost, or its responses.
    Unanswered,
    /// The requester timed out: a request was lost, or its answer, or the responder was slow and
    /// answers both.
    Timeout,
}

/// A loss that may still be disproved.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenLoss {
    loss: Loss,
    place: LossPlace,
    sign: Sign,
}

/// Losses of one requester that are not reported yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    /// Losses that a late packet may still disprove.
    open: VecDeque<OpenLoss>,
    /// Packets that the next capture point did not see because its file ends, unless they were
    /// lost.
    unseen: VecDeque<OpenLoss>,
    /// Whether several capture points follow the requests, and the responses: what is lost between
    /// them is known.
    is_followed: [bool; 2],
    /// Packets that came behind others that were sent later.
    late: u64,
}

impl Losses {
    /// Notes a packet that came behind others that were sent later.
    pub(super) fn note_late(&mut self) {
        self.late += 1;
    }

    /// Whether packets came behind others that were sent later.
    pub(super) fn has_late(&self) -> bool {
        self.late > 0
    }

    /// Whether several capture points follow the requests.
    pub(super) fn are_requests_followed(&self) -> bool {
        self.is_followed[0]
    }

    /// Whether one capture point alone sees what passes.
    pub(super) fn is_point_alone(&self) -> bool {
        self.is_followed == [false, false]
    }

    /// Whether there is an open loss that `is_it` is true of.
    pub(super) fn has_open(&self, is_it: impl Fn(&OpenLoss) -> bool) -> bool {
        self.open.iter().rev().any(is_it)
    }

    /// Removes the last open loss that `is_it` is true of. Returns whether there was one.
    pub(super) fn disprove(&mut self, is_it: impl Fn(&OpenLoss) -> bool) -> bool {
        let at = self.open.iter().rposition(is_it);
        at.and_then(|at| self.open.remove(at)).is_some()
    }

    /// Removes all open losses that `is_it` is true of.
    pub(super) fn disprove_all(&mut self, is_it: impl Fn(&OpenLoss) -> bool) {
        self.open.retain(|loss| !is_it(loss));
    }

    /// Takes an acknowledgement: the responder has what the next capture point did not see, whose
    /// file had ended.
    pub(super) fn acknowledge(&mut self, unacked: u64) {
        self.unseen.retain(|unseen| !unseen.is_request_before(unacked));
    }
}

impl OpenLoss {
    /// Frame that shows it.
    pub(super) fn proof(&self) -> u64 {
        self.loss.proof
    }

    /// Whether it is the loss of the request with this sequence number.
    pub(super) fn is_request(&self, sequence: u64) -> bool {
        self.loss.role == PacketRole::Request && self.loss.sequence == sequence
    }

    /// Whether it is one of these requests, none of which was captured.
    pub(super) fn is_gap_in(&self, sequences: &Range<u64>) -> bool {
        let Loss { role, frame, sequence, .. } = self.loss;
        role == PacketRole::Request && frame.is_none() && sequences.contains(&sequence)
    }

    /// Whether it is the loss of a request before this sequence number.
    fn is_request_before(&self, sequence: u64) -> bool {
        self.loss.role == PacketRole::Request && self.loss.sequence < sequence
    }

    /// Whether it is the loss of a response with one of these sequence numbers, which was not
    /// captured.
    pub(super) fn is_response_in(&self, sequences: RangeInclusive<u64>) -> bool {
        let Loss { role, frame, sequence, .. } = self.loss;
        role == PacketRole::Response && frame.is_none() && sequences.contains(&sequence)
    }

    /// Whether it is the loss of this response before the capture point: it did not come there, or
    /// with a wrong ICRC.
    pub(super) fn is_response_before(&self, sequence: u64) -> bool {
        let Loss { role, sequence: lost, .. } = self.loss;
        role == PacketRole::Response
            && lost == sequence
            && self.place == LossPlace::BeforeCapturePoint
    }

    /// Whether a NAK of this sequence number shows it.
    pub(super) fn is_by_nak(&self, sequence: u64) -> bool {
        self.sign == Sign::Nak && self.loss.sequence == sequence
    }

    /// Whether it is a packet that passed the capture point, and a timeout shows its loss.
    pub(super) fn is_by_timeout(&self) -> bool {
        self.sign == Sign::Timeout && self.loss.frame.is_some()
    }
}

impl Requester {
    /// Reports what several capture points tell: one saw the packet, the next one did not.
    pub(in crate::analysis) fn report_between(
        &mut self,
        sequence: u64,
        role: PacketRole,
        packet: &PacketFacts,
        scene: &mut Scene<'_>,
    ) {
        let Some(between) = packet.sightings().lost else { return };
        if role != PacketRole::Request {
            self.reads.remember_lost(sequence);
        }
        let OpenLoss { loss, place, .. } = between_loss(sequence, role, packet, between);
        self.tell_loss(loss, place, scene);
    }

    /// Notes that several capture points follow the packets of this kind: requests, or responses. A
    /// file that goes on tells that what it did not see before was lost.
    #[inline]
    pub(super) fn note_followed(
        &mut self,
        kind: usize,
        packet: &PacketFacts,
        scene: &mut Scene<'_>,
    ) {
        let Some(sightings) = packet.sightings.as_deref() else { return };
        if !sightings.is_delivered && sightings.lost.is_none() && sightings.unseen.is_none() {
            return;
        }
        self.losses.is_followed[kind] = true;
        if kind > 0 {
            return;
        }
        if let Some(between) = sightings.unseen {
            if self.losses.unseen.len() < UNSEEN_MAX {
                let sequence = self.sequence_of(packet.psn);
                self.losses.unseen.push_back(between_loss(
                    sequence,
                    PacketRole::Request,
                    packet,
                    between,
                ));
            }
        } else if sightings.is_delivered && !self.losses.unseen.is_empty() {
            self.tell_unseen(scene);
        }
    }

    /// Tells the losses of packets that the next capture point did not see.
    pub(super) fn tell_unseen(&mut self, scene: &mut Scene<'_>) {
        while let Some(OpenLoss { loss, place, .. }) = self.losses.unseen.pop_front() {
            self.tell_loss(loss, place, scene);
        }
    }

    /// Takes a loss that one capture point shows.
    pub(super) fn report(&mut self, loss: Loss, sign: Sign, scene: &mut Scene<'_>) {
        // What was captured with a wrong ICRC was damaged before it came to the capture point.
        let place = match loss.frame {
            Some(_) if !loss.is_corrupt => LossPlace::AfterCapturePoint,
            _ => LossPlace::BeforeCapturePoint,
        };
        self.report_open(loss, place, sign, scene);
    }

    pub(super) fn report_open(
        &mut self,
        loss: Loss,
        place: LossPlace,
        sign: Sign,
        scene: &mut Scene<'_>,
    ) {
        if self.losses.is_followed[usize::from(loss.role != PacketRole::Request)] {
            return;
        }
        if self.losses.open.len() >= OPEN_LOSSES_MAX
            && let Some(oldest) = self.losses.open.pop_front()
        {
            self.tell_open_loss(&oldest, scene);
        }
        self.losses.open.push_back(OpenLoss { loss, place, sign });
    }

    /// Tells the losses that nothing disproved.
    pub(super) fn tell_open_losses(&mut self, scene: &mut Scene<'_>) {
        while let Some(oldest) = self.losses.open.pop_front() {
            self.tell_open_loss(&oldest, scene);
        }
    }

    /// Tells a loss that nothing disproved. Where one packet of [`LATE_SHARE`] that are missing is
    /// late, a NAK does not tell a lost packet from a late one; where most are, nor does a gap. A
    /// request without an answer does not tell which of the two was lost.
    fn tell_open_loss(&mut self, open: &OpenLoss, scene: &mut Scene<'_>) {
        let late = self.losses.late;
        let lost = self.statistics.lost_requests + self.losses.open.len() as u64 + 1;
        let is_mostly_late = late > lost;
        let is_uncertain = match open.sign {
            Sign::Nak => late.saturating_mul(LATE_SHARE) > lost,
            Sign::Gap => {
                let is_gap = open.loss.frame.is_none();
                is_mostly_late && (is_gap || open.place == LossPlace::AfterCapturePoint)
            }
            Sign::Overtaken | Sign::Unanswered | Sign::Timeout => true,
        };
        if is_uncertain {
            self.statistics.lost_or_late += 1;
            self.sink_loss(&open.loss, open.place, scene);
        } else {
            self.tell_loss(open.loss, open.place, scene);
        }
    }

    /// Counts and tells a loss.
    fn tell_loss(&mut self, loss: Loss, place: LossPlace, scene: &mut Scene<'_>) {
        let is_request = loss.role == PacketRole::Request;
        if is_request {
            self.statistics.lost_requests += 1;
        } else {
            self.statistics.lost_responses += 1;
        }
        let evidence = self.evidence();
        let frames =
            if is_request { &mut evidence.lost_requests } else { &mut evidence.lost_responses };
        loss.frame.into_iter().for_each(|frame| frames.push(frame));
        frames.push(loss.proof);
        match place {
            LossPlace::BeforeCapturePoint => evidence.places[0] += 1,
            LossPlace::AfterCapturePoint => evidence.places[1] += 1,
            LossPlace::Between { from, to } => evidence.add_between(from, to),
        }
        evidence.likely_losses += u64::from(loss.certainty == Certainty::Likely);
        evidence.corrupted_losses += u64::from(loss.is_corrupt);
        self.sink_loss(&loss, place, scene);
    }

    fn sink_loss(&self, loss: &Loss, place: LossPlace, scene: &mut Scene<'_>) {
        let is_request = loss.role == PacketRole::Request;
        scene.sink.loss(&LossNote {
            flow: scene.flow,
            sender: if is_request { scene.requester } else { scene.requester.other() },
            sequence: loss.sequence,
            role: loss.role,
            frame: loss.frame,
            proof: loss.proof,
            place,
            certainty: loss.certainty,
        });
    }

    /// Counts PSNs before `acknowledged` that the responder got and the capture did not.
    pub(super) fn count_not_captured(&mut self, acknowledged: u64, frame: u64) {
        if self.progress.gaps == 0 {
            return;
        }
        let mut count = 0;
        for record in self.progress.records.range_mut(0, acknowledged) {
            if record.open_gap() > 0 && record.end() <= acknowledged {
                count += record.open_gap();
                record.flags |= RecordFlags::NOT_CAPTURED;
            }
        }
        self.progress.gaps = self.progress.gaps.saturating_sub(count);
        if count > 0 {
            self.statistics.not_captured += count;
            self.evidence().not_captured.push(frame);
        }
    }
}

/// One late packet among so many that are lost casts doubt on the others.
const LATE_SHARE: u64 = 8;

/// The loss of a packet between two capture points.
fn between_loss(
    sequence: u64,
    role: PacketRole,
    packet: &PacketFacts,
    LostBetween { from, to, frame }: LostBetween,
) -> OpenLoss {
    let is_corrupt = packet.sightings().is_damaged_later;
    let loss = Loss::of(role, sequence, packet.frame).captured(frame).proven();
    let loss = Loss { is_corrupt, ..loss };
    OpenLoss { loss, place: LossPlace::Between { from, to }, sign: Sign::Gap }
}
