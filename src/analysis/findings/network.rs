//! Findings about packets that the network lost, corrupted, reordered or copied, and about
//! receivers that were not ready.

use super::{Side, text};
use crate::analysis::evidence::{Evidence, Frames};
use crate::analysis::finding::{Certainty, Finding, FindingKind};
use crate::analysis::{Lateness, RetransmissionCause};

/// A part of a whole, for a threshold.
#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Packets whose ICRC is wrong.
pub(super) fn corruption(side: &Side<'_>) -> Option<Finding> {
    let errors = side.direction.icrc_errors;
    let packets = side.direction.request_packets + side.direction.response_packets + errors;
    if errors == 0 {
        return None;
    }
    let words = format!(
        "{} of {} corrupted on the way: the ICRC is wrong, and the receiver drops them",
        text::grouped(errors),
        text::count(packets, "packet"),
    );
    let frames = [&side.evidence.icrc_errors];
    Some(side.finding(FindingKind::Corruption, Certainty::Proven, 0, &frames, &words))
}

/// Packets whose ICRC is wrong and that belong to no known connection.
pub(in super::super) fn of_stray_corruption(errors: u64, frames: &Frames) -> Option<Finding> {
    (errors > 0).then(|| Finding {
        kind: FindingKind::Corruption,
        flow: None,
        requester: None,
        hosts: None,
        time: None,
        certainty: Certainty::Proven,
        cost_nanos: 0,
        frames: frames.as_slice().to_vec(),
        text: format!(
            "{} of no known connection corrupted on the way: the ICRC is wrong, and the receiver drops them",
            text::count(errors, "packet")
        ),
    })
}

/// Lost packets, what recovered them, and how long that took.
pub(super) fn loss(side: &Side<'_>) -> Option<Finding> {
    let (direction, evidence) = (side.direction, side.evidence);
    let (requests, responses) = (direction.lost_requests, direction.lost_responses);
    let lost = requests + responses;
    let all = direction.request_packets + direction.response_packets + evidence.places[0];
    let all = all.max(lost);
    if lost == 0 {
        return lost_or_late(side, all);
    }
    if share(lost, all) < side.thresholds.loss_share {
        return None;
    }
    let is_likely = evidence.likely_losses == lost;
    let mut words = String::new();
    if is_likely {
        words += "likely ";
    }
    // Capture points around the loss see all of it, one alone does not.
    if evidence.places != [0, 0] {
        words += "at least ";
    }
    words += &format!("{} of {} lost", text::grouped(lost), text::count(all, "packet"));
    if requests > 0 && responses > 0 {
        words += &format!(
            " ({} and {})",
            text::count(requests, "request"),
            text::count(responses, "response")
        );
    } else if responses > 0 {
        words += if responses == 1 { ", a response" } else { ", all responses" };
    }
    if evidence.likely_losses > 0 && !is_likely {
        words += &format!(", {} of them likely", text::grouped(evidence.likely_losses));
    }
    words += &places(side);
    if direction.lost_or_late > 0 {
        let more = text::count(direction.lost_or_late, "packet");
        words += &format!(", and {more} lost or late");
    }
    if evidence.corrupted_losses > 0 {
        words += &format!(", {} because of a wrong ICRC", text::grouped(evidence.corrupted_losses));
    }
    let recovery = recovery(side);
    if !recovery.is_empty() {
        words += &format!(", recovered by {}", text::list(&recovery));
    }
    let cost = waiting(side);
    if cost > 0 {
        let (cost, whole) = (text::duration(cost), text::duration(side.duration()));
        words += &format!("; {cost} of {whole} were spent waiting");
        if evidence.failure.is_some() {
            words += ", most of it in vain";
        }
    }
    let certainty = if is_likely { Certainty::Likely } else { Certainty::Proven };
    // Where a timeout alone shows the loss, the retransmission is its proof.
    let proofs = [evidence.lost_requests, evidence.lost_responses];
    let is_shown = proofs.iter().any(|frames| !frames.as_slice().is_empty());
    let retransmissions = if is_shown { Frames::default() } else { evidence.rewinds[0] };
    let frames = [&proofs[0], &proofs[1], &retransmissions];
    Some(side.finding(FindingKind::Loss, certainty, cost, &frames, &words))
}

/// Packets that were lost or late, or their answers, if nothing tells which: neither a
/// packet that is known to be lost nor one out of order.
fn lost_or_late(side: &Side<'_>, all: u64) -> Option<Finding> {
    let (count, evidence) = (side.direction.lost_or_late, side.evidence);
    let all = all.max(count);
    let is_tolerated = share(count, all) < side.thresholds.loss_share;
    if count == 0 || side.direction.reordered > 0 || is_tolerated {
        return None;
    }
    let packets = text::count(all, "packet");
    let mut words = format!("at least {} of {packets}", text::grouped(count));
    words += " lost, or late";
    let recovery = recovery(side);
    if !recovery.is_empty() {
        words += &format!(", recovered by {}", text::list(&recovery));
    }
    let frames = [&evidence.rewinds[1], &evidence.rewinds[2]];
    Some(side.finding(FindingKind::Loss, Certainty::Likely, waiting(side), &frames, &words))
}

/// Returns the finding that the requester retransmitted, if no other finding says why.
pub(super) fn retransmissions(side: &Side<'_>) -> Option<Finding> {
    let (direction, evidence) = (side.direction, side.evidence);
    let total = direction.retransmissions.total();
    let lost = direction.lost_requests + direction.lost_responses + direction.lost_or_late;
    let is_explained = lost + direction.rnr_naks > 0
        || direction.slow_answers.count > 0
        || direction.reordered > 0
        || evidence.failure.is_some();
    if is_explained || total.packets == 0 {
        return None;
    }
    let mut words = format!(
        "{} of {} are retransmissions",
        text::grouped(total.packets),
        text::count(direction.request_packets, "request packet"),
    );
    let recovery = recovery(side);
    if !recovery.is_empty() {
        words += &format!(", after {}", text::list(&recovery));
    }
    let spurious = direction.retransmissions.spurious.packets;
    if spurious > 0 {
        words += &format!(", {} of them spurious", text::grouped(spurious));
    }
    let frames = [&evidence.rewinds[0], &evidence.rewinds[1], &evidence.rewinds[2]];
    let (kind, cost) = (FindingKind::Retransmissions, waiting(side));
    Some(side.finding(kind, Certainty::Proven, cost, &frames, &words))
}

/// Returns the places where packets were lost, as far as the capture points tell.
fn places(side: &Side<'_>) -> String {
    let name = |file: u16| side.files.get(usize::from(file)).map_or("?", String::as_str);
    let between = side.evidence.between.iter();
    let mut places: Vec<String> = between
        .map(|&(from, to, count)| {
            format!("{} between {} and {}", text::grouped(count), name(from), name(to))
        })
        .collect();
    let [before, after] = side.evidence.places;
    if places.is_empty() {
        return match (before, after) {
            (0, _) => ", all behind the capture point",
            (_, 0) => ", all before the capture point",
            _ => ", before and behind the capture point",
        }
        .into();
    }
    let others =
        [(before, "before the first capture point"), (after, "behind the last capture point")];
    let others = others.iter().filter(|(count, _)| *count > 0);
    places.extend(others.map(|(count, place)| format!("{} {place}", text::grouped(*count))));
    format!(", {}", text::list(&places))
}

/// Causes for which lost packets are retransmitted.
const RECOVERING: [RetransmissionCause; 3] = [
    RetransmissionCause::Timeout,
    RetransmissionCause::SequenceNak,
    RetransmissionCause::ImpliedNak,
];

/// Returns the causes of the retransmissions of lost packets: `3 timeouts of up to 67 ms`.
fn recovery(side: &Side<'_>) -> Vec<String> {
    let all = &side.direction.retransmissions;
    // Those before the requester gave up recovered nothing.
    let in_vain = side.evidence.failure.as_ref().map_or(0, |failure| u64::from(failure.attempts));
    let used = RECOVERING.into_iter().filter_map(|cause| {
        let counter = all.of(cause);
        let is_timeout = cause == RetransmissionCause::Timeout;
        let rewinds = counter.rewinds.saturating_sub(if is_timeout { in_vain } else { 0 });
        if rewinds == 0 {
            return None;
        }
        let count = text::count(rewinds, cause.title());
        if !is_timeout {
            return Some(count);
        }
        let longest = side.evidence.longest_wait.get(Evidence::slot(cause)).copied().unwrap_or(0);
        let upto = if counter.rewinds > 1 { "up to " } else { "" };
        Some(format!("{count} of {upto}{}", text::duration(longest)))
    });
    used.collect()
}

/// The time that losses cost, which cannot be more than there was.
fn waiting(side: &Side<'_>) -> u64 {
    let all = &side.direction.retransmissions;
    let sum: u64 = RECOVERING.iter().map(|&cause| all.of(cause).wait_nanos).sum();
    sum.min(side.duration())
}

/// A receiver without a posted receive.
pub(super) fn receiver_not_ready(side: &Side<'_>) -> Option<Finding> {
    let (direction, evidence) = (side.direction, side.evidence);
    if direction.rnr_naks == 0 {
        return None;
    }
    let timer = match evidence.rnr_timer {
        Some(timer) if evidence.rnr_timers_differ => format!(" of {timer} and others"),
        Some(timer) => format!(" of {timer}"),
        None => String::new(),
    };
    let rnr = &direction.retransmissions.rnr;
    let mut words = format!(
        "receiver not ready: {}{timer}, {} retransmitted",
        text::count(direction.rnr_naks, "RNR NAK"),
        text::count(rnr.packets, "packet"),
    );
    let cost = direction.rnr_wait_nanos.min(side.duration());
    if cost > 0 {
        let (cost, whole) = (text::duration(cost), text::duration(side.duration()));
        words += &format!("; {cost} of {whole} were spent waiting for posted receives");
    }
    let frames = [&evidence.rnrs, &evidence.rewinds[Evidence::slot(RetransmissionCause::Rnr)]];
    let (kind, certainty) = (FindingKind::ReceiverNotReady, Certainty::Proven);
    Some(side.finding(kind, certainty, cost, &frames, &words))
}

/// Packets that arrived in another order than they were sent.
pub(super) fn reordering(side: &Side<'_>) -> Option<Finding> {
    let reordered = side.direction.reordered;
    if reordered == 0 {
        return None;
    }
    let all = side.direction.request_packets + side.direction.response_packets;
    let mut words = format!(
        "{} of {} arrived out of order",
        text::grouped(reordered),
        text::count(all.max(reordered), "packet"),
    );
    let Lateness { packets, nanos, .. } = side.direction.lateness;
    if packets > 0 {
        words += &format!(", by up to {}", text::count(packets, "packet"));
    }
    if nanos > 0 {
        words += &format!(" and {}", text::duration(nanos));
    }
    let (retransmitted, is_lossless) = (
        side.direction.retransmissions.total().packets,
        side.direction.lost_requests + side.direction.lost_responses == 0,
    );
    if retransmitted > 0 && is_lossless {
        let packets = text::count(retransmitted, "packet");
        words += &format!("; {packets} retransmitted, though nothing is known to be lost");
    }
    let frames = [&side.evidence.reordered];
    Some(side.finding(FindingKind::Reordering, Certainty::Proven, 0, &frames, &words))
}

/// Packets that the network delivered twice, or that the capture holds twice.
pub(super) fn duplication(side: &Side<'_>) -> Option<Finding> {
    let copies = side.direction.duplicate_packets;
    if copies == 0 {
        return None;
    }
    let all = side.direction.request_packets + side.direction.response_packets;
    let frames = [&side.evidence.duplicates];
    // A mirror port that copies what comes in and what goes out captures all packets twice.
    if share(copies, all) > 0.9 && copies > 8 {
        let words = "each packet was captured twice: likely the capture point sees packets come in and go out";
        return Some(side.finding(FindingKind::Duplication, Certainty::Likely, 0, &frames, words));
    }
    let words = format!(
        "{} beside {} (not counted among them): the same bit by bit, and nothing made the sender retransmit",
        text::count(copies, "duplicate"),
        text::count(all, "packet"),
    );
    Some(side.finding(FindingKind::Duplication, Certainty::Proven, 0, &frames, &words))
}

/// UD: PSNs that are missing, where all of a queue pair's packets go to one destination.
pub(super) fn incomplete_datagrams(side: &Side<'_>) -> Option<Finding> {
    use crate::wire::Service;
    let gaps = side.direction.psn_gaps;
    if gaps == 0 || side.connection.service != Service::Ud || gaps > side.direction.request_packets
    {
        return None;
    }
    let words = format!(
        "{} missing between {} that were captured: likely lost, unless the queue pair sent them elsewhere",
        text::count(gaps, "PSN"),
        text::count(side.direction.request_packets, "datagram"),
    );
    Some(side.finding(FindingKind::CaptureLoss, Certainty::Likely, 0, &[], &words))
}
