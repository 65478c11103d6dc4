//! Findings about path MTUs, silences, the capture itself, and connections that did not come about.

use super::{Side, text};
use crate::analysis::connection::Blame;
use crate::analysis::evidence::Frames;
use crate::analysis::finding::{Certainty, Finding, FindingKind};
use crate::analysis::report::BeyondLimits;
use crate::analysis::tracker::hosts_text;
use crate::observe::agreement::Agreements;
use crate::observe::end::End;
use crate::wire::cm::reject_reason;

/// READ responses of another size than the requests.
pub(super) fn mtu_mismatch(side: &Side<'_>) -> Option<Finding> {
    let [requests, responses] = side.direction.full_payload;
    // Requests of the other direction fill the same path MTU.
    let reverse = side.connection.directions[side.requester.other()].full_payload[0];
    let mut frames = Frames::default();
    side.evidence.mtu_frames.into_iter().filter(|&frame| frame > 0).for_each(|f| frames.push(f));
    let words = if responses > 0 && requests > 0 && responses != requests {
        format!("READ responses at MTU {responses} on a path whose requests use {requests}")
    } else if side.requester == End::A && requests > 0 && reverse > 0 && requests != reverse {
        format!("requests at MTU {requests}, those of the other end at {reverse}")
    } else {
        return None;
    };
    Some(side.finding(FindingKind::MtuMismatch, Certainty::Proven, 0, &[&frames], &words))
}

/// Silences that no retransmission ended.
pub(super) fn stall(side: &Side<'_>) -> Option<Finding> {
    let stalls = side.direction.stalls.iter().filter(|stall| stall.cause.is_none());
    let stalls: Vec<_> = stalls.collect();
    let longest = stalls.first()?;
    let sum = stalls.iter().map(|stall| stall.nanos).sum();
    let mut words =
        format!("silence for {} while requests were in flight", text::duration(longest.nanos));
    match longest.after {
        Some(after) => words += &format!(" (frames {} to {after})", longest.before),
        None => words += &format!(" (from frame {} to the end of the capture)", longest.before),
    }
    if stalls.len() > 1 {
        let others = text::count(stalls.len() as u64 - 1, "shorter one");
        words += &format!(", and {others}; {} in all", text::duration(sum));
    }
    let blames = |blame: Blame| stalls.iter().filter(|stall| stall.blame == Some(blame)).count();
    words += match (blames(Blame::Responder), blames(Blame::Network)) {
        (0, 0) => ": likely the responder was slow, or packets were delayed on the way",
        (slow, delayed) if slow >= delayed => ": the responder had the request, and was slow",
        _ => ": packets were delayed on the way, and not by the responder",
    };
    let mut frames = Frames::default();
    for stall in &stalls {
        frames.push(stall.before);
        stall.after.into_iter().for_each(|after| frames.push(after));
    }
    let is_known = stalls.iter().any(|stall| stall.blame.is_some());
    let certainty = if is_known { Certainty::Proven } else { Certainty::Likely };
    Some(side.finding(FindingKind::Stall, certainty, sum, &[&frames], &words))
}

/// Answers that came after the requester had timed out, though nothing was lost.
pub(super) fn slow_responder(side: &Side<'_>) -> Option<Finding> {
    let slow = side.direction.slow_answers;
    if slow.count == 0 {
        return None;
    }
    let mut words = format!(
        "likely the responder paused or was slow: it answered {} only after the requester had timed out, up to {} after the \
         request; nothing shows a loss there",
        text::times(slow.count),
        text::duration(slow.longest_nanos),
    );
    let spurious = side.direction.retransmissions.spurious.packets;
    if spurious > 0 {
        words += &format!("; {} retransmitted without need", text::count(spurious, "packet"));
    }
    let (kind, certainty) = (FindingKind::SlowResponder, Certainty::Likely);
    let frames = [&side.evidence.slow_answers];
    Some(side.finding(kind, certainty, slow.longest_nanos, &frames, &words))
}

/// Packets that the receiver got and the capture did not.
pub(super) fn capture_loss(side: &Side<'_>) -> Option<Finding> {
    let missed = side.direction.not_captured;
    if missed == 0 {
        return None;
    }
    let words = format!(
        "the capture missed {}: acknowledged, never retransmitted, and not in the capture",
        text::count(missed, "packet"),
    );
    let frames = [&side.evidence.not_captured];
    Some(side.finding(FindingKind::CaptureLoss, Certainty::Proven, 0, &frames, &words))
}

/// Connections that the connection manager refused, or did not answer.
pub(crate) fn of_setups(agreements: &Agreements) -> Vec<Finding> {
    let mut findings = Vec::new();
    for attempt in agreements.iter() {
        let request = attempt.setup.request_frame.unwrap_or(0);
        let hosts = hosts_text(attempt.active, attempt.passive);
        let port =
            attempt.setup.application_port.map_or_else(String::new, |p| format!(" port {p}"));
        let name = if attempt.is_datagram { "SIDR REQ" } else { "REQ" };
        let is_refused = attempt.refusal.is_some();
        let (text, frames, certainty) = match attempt.refusal {
            Some((frame, reason, by_active)) if !attempt.is_datagram => {
                let reason = match reject_reason(reason) {
                    Some(words) => words.to_string(),
                    None => format!("reason {reason}"),
                };
                let who =
                    if by_active { "the connecting side gave up" } else { "connection refused" };
                (format!("{who}: {reason}"), vec![request, frame], Certainty::Proven)
            }
            Some((frame, status, _)) => (
                format!("service lookup refused: status {status}"),
                vec![request, frame],
                Certainty::Proven,
            ),
            None if !attempt.is_answered => {
                let count = text::count(attempt.requests.into(), name);
                (format!("{count} without an answer"), vec![request], Certainty::Proven)
            }
            None => continue,
        };
        findings.push(Finding {
            kind: if is_refused {
                FindingKind::ConnectionRefused
            } else {
                FindingKind::ConnectionUnanswered
            },
            flow: None,
            requester: None,
            hosts: Some([attempt.active, attempt.passive]),
            time: None,
            certainty,
            cost_nanos: 0,
            frames,
            text: format!("{hosts}{port}: {text}"),
        });
    }
    findings
}

/// Returns the finding about items that were left out because of a limit.
pub(crate) fn of_limits(beyond: &BeyondLimits, findings: u64) -> Option<Finding> {
    let counts = [
        (beyond.packets, "packet of connections that were not followed"),
        (beyond.connections, "connection that was silent for long"),
        (beyond.messages, "message in flight"),
        (findings, "finding of lesser weight"),
    ];
    let parts: Vec<String> = counts
        .into_iter()
        .filter(|&(count, _)| count > 0)
        .map(|(count, noun)| {
            let (head, tail) = noun.split_once(' ').unwrap_or((noun, ""));
            let verb = if count == 1 { tail.into() } else { tail.replace("that was", "that were") };
            format!("{} {verb}", text::count(count, head)).trim_end().to_string()
        })
        .collect();
    (!parts.is_empty()).then(|| Finding {
        kind: FindingKind::BeyondLimits,
        flow: None,
        requester: None,
        hosts: None,
        time: None,
        certainty: Certainty::Proven,
        cost_nanos: 0,
        frames: Vec::new(),
        text: format!(
            "left out for lack of room, but counted in the totals: {}",
            text::list(&parts)
        ),
    })
}
