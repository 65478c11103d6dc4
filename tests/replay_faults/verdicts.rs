//! Verdicts of a replay on a capture, and whether they are right.

use std::sync::Arc;
use std::time::Duration;

use roce::capture::PcapWriter;
use roce::replay::{Options, Step, Subject, Survey, Undecided, Verdict, replay_capture};
use roce::time::Instant;
use roce::wire::{Gid, LinkType, Operation, Packet};

use super::device::Mark;
use super::flaw::Flaw;
use super::frames::transport;
use super::world::{Frame, HOP_DELAY, Run, gid};

/// A capture file.
pub fn pcap<'f>(frames: impl IntoIterator<Item = &'f Frame>) -> Vec<u8> {
    let mut writer = PcapWriter::new(Vec::new(), LinkType::RAW).unwrap();
    for Frame { time, bytes, .. } in frames {
        writer.write(*time, bytes.len() as u32, bytes).unwrap();
    }
    writer.into_inner()
}

/// Returns the host of a point: at A, in the middle, at B.
pub fn host_of(point: usize, ipv6: bool) -> Option<Gid> {
    [Some(gid(1, ipv6)), None, Some(gid(2, ipv6))][point]
}

/// Replays a capture file.
pub fn replay(capture: &[u8], point: Option<Gid>) -> (Vec<Step>, Arc<Survey>) {
    let mut steps: Vec<Step> = Vec::new();
    let mut options = Options::default();
    options.point = point;
    let survey = replay_capture(capture, &options, &mut steps).unwrap();
    (steps, survey)
}

/// A packet in one line. The network may have damaged it.
pub fn summary(frame: &Frame) -> String {
    let Ok(packet) = Packet::parse(transport(&frame.bytes)) else { return "damaged".into() };
    let (bth, len) = (packet.bth(), packet.payload_len());
    let (opcode, qp, psn) = (bth.opcode(), bth.dest_qp().get(), bth.psn().get());
    let aeth = packet.aeth().map_or_else(String::new, |aeth| {
        format!(" {:#04x} msn {}", aeth.syndrome().0, aeth.msn().get())
    });
    let reth = packet.reth().map(|reth| reth.repr());
    let reth = reth.map_or_else(String::new, |reth| format!(" {reth:x?}"));
    let damage = if frame.is_corrupted { " damaged" } else { "" };
    format!("{qp:x} {opcode} psn {psn} len {len}{aeth}{reth}{damage}")
}

/// A verdict that does not agree, in one line.
pub fn words(step: &Step, frame: Option<&Frame>) -> String {
    let what = match &step.verdict {
        Verdict::Different(difference) | Verdict::Known { difference, .. } => {
            format!("{}: {}", difference.rule.id, difference.found)
        }
        verdict => format!("{verdict:?}"),
    };
    let packet = frame.map_or_else(String::new, summary);
    format!("frame {} ({packet}) {:?} {what}", step.frame, step.subject)
}

/// Returns the mistakes of a replay of captures of a device with a flaw.
pub fn judge_flaw(flaw: &Flaw, run: &Run, point: usize) -> Vec<String> {
    let frames = &run.captured[point];
    let (steps, _) = replay(&pcap(frames), host_of(point, false));
    let subject = if flaw.host == 0 { Subject::Request } else { Subject::Response };
    let (mut wrong, mut found) = (Vec::new(), false);
    for step in &steps {
        let Verdict::Different(difference) = &step.verdict else { continue };
        let Some(frame) = frames.get(step.frame as usize - 1) else {
            wrong.push(format!("there is no frame {}", step.frame));
            continue;
        };
        // The frame that proves an omission is that of the request, or a later one.
        let is_proof = run.omitted.is_some_and(|omitted| {
            let slack = HOP_DELAY * 2 + Duration::from_micros(1);
            frame.time.saturating_add(slack) >= omitted
        });
        let is_right = flaw.rules.contains(&difference.rule.id) && step.subject == subject;
        match frame.mark {
            Mark::Broken if is_right => found = true,
            Mark::Honest | Mark::Consequence if is_proof && is_right => found = true,
            Mark::Consequence => {}
            _ => wrong.push(words(step, Some(frame))),
        }
    }
    if !found && flaw.points.contains(&point) {
        let marked = frames.iter().zip(1..).filter(|(frame, _)| frame.mark == Mark::Broken);
        let marked: Vec<u64> = marked.map(|(_, number)| number).collect();
        let said = steps.iter().filter(|step| marked.contains(&step.frame));
        let said: Vec<_> = said.map(|step| words(step, None)).collect();
        wrong.push(format!("not found: frames {marked:?} must break {:?}; {said:?}", flaw.rules));
    }
    wrong.into_iter().map(|wrong| format!("{} at point {point}: {wrong}", flaw.name)).collect()
}

/// A mistake of a replay.
pub struct Wrong {
    /// Kind of mistake.
    pub class: String,
    pub text: String,
}

/// Packets that a capture misses, or that the network lost, copied, delayed or damaged: their
/// connection, and when.
pub struct Missing<'m>(pub &'m [(Option<usize>, Instant)]);

impl Missing<'_> {
    /// Whether they may be why a verdict on a packet is undecided: one of its connection was before
    /// it; or one of any connection, if it is not certain which queue pairs are one connection, or
    /// if it shows memory.
    fn explains(&self, why: Undecided, frame: &Frame, is_ambiguous: bool) -> bool {
        match why {
            Undecided::Damaged => return frame.is_corrupted,
            // Nothing is cut, and nothing is so much that it is beyond a limit.
            Undecided::Cut | Undecided::BeyondLimits | Undecided::Unsupported => return false,
            // Which queue pairs are one connection, later packets tell, too.
            Undecided::OneDirection
                if self.0.iter().any(|(connection, _)| *connection == frame.connection) =>
            {
                return true;
            }
            _ => {}
        }
        // Memory that all connections share.
        let packet = Packet::parse(transport(&frame.bytes)).ok();
        let operation = packet.and_then(|packet| Some(packet.info()?.operation));
        let is_data =
            matches!(operation, Some(Operation::ReadResponse | Operation::AtomicAcknowledge));
        // A packet may meet with its fault on the second hop, after it was captured.
        let until = frame.when.saturating_add(HOP_DELAY * 2);
        let mut before = self.0.iter().filter(|(_, time)| *time <= until);
        let is_why = |connection: &Option<usize>| {
            is_data || is_ambiguous || *connection == frame.connection || connection.is_none()
        };
        before.any(|(connection, _)| is_why(connection))
    }
}

/// Returns the mistakes of a replay of a capture of correct devices: every difference, and all
/// undecided that nothing missing explains.
pub fn judge_honest(frames: &[&Frame], point: Option<Gid>, missing: &Missing<'_>) -> Vec<Wrong> {
    let (steps, survey) = replay(&pcap(frames.iter().copied()), point);
    let frame_of = |step: &Step| frames.get(step.frame as usize - 1).copied();
    let is_wrong = |step: &&Step| match step.verdict {
        Verdict::Different(_) | Verdict::Known { .. } => true,
        Verdict::Undecided(why) => {
            let is_ambiguous = survey.is_ambiguous(step.flow);
            frame_of(step).is_none_or(|frame| !missing.explains(why, frame, is_ambiguous))
        }
        Verdict::Agreed => false,
    };
    let wrong = steps.iter().filter(is_wrong);
    let wrong = wrong.map(|step| {
        let what = match &step.verdict {
            Verdict::Different(difference) => difference.rule.id.to_owned(),
            verdict => format!("{verdict:?}"),
        };
        let text = words(step, frame_of(step));
        Wrong { class: format!("{:?} {what}", step.subject), text }
    });
    wrong.collect()
}
