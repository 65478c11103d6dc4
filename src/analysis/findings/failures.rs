//! Requests that failed, and ends that broke the protocol.

use super::{Side, text};
use crate::analysis::evidence::Frames;
use crate::analysis::finding::{Certainty, Finding, FindingKind};
use crate::analysis::message::{Message, Outcome, operation_name};

/// `WRITE of 4,096 bytes (PSN 17–20)`.
fn message_text(message: &Message) -> String {
    let (first, last) = (message.first_psn.get(), message.last_psn.get());
    let psns = if first == last { format!("PSN {first}") } else { format!("PSN {first}–{last}") };
    let name = operation_name(message.operation);
    format!("{name} of {} ({psns})", text::count(message.bytes, "byte"))
}

/// The requester went back again and again, and then stopped.
pub(super) fn retries_exceeded(side: &Side<'_>) -> Option<Finding> {
    let failure = side.evidence.failure.as_ref()?;
    let is_rnr = failure.message.outcome == Outcome::RnrRetryExceeded;
    let last_acked = match failure.last_acked {
        Some(psn) => format!("last acknowledged PSN {psn}"),
        None => "no PSN was ever acknowledged".into(),
    };
    let attempts = u64::from(failure.attempts);
    // Packets, as everywhere; a round goes back to the first that is not acknowledged.
    let retransmitted = format!(
        "{} retransmitted in {}",
        text::count(failure.message.retransmitted_packets.into(), "packet"),
        text::count(attempts, "round"),
    );
    let silence = match failure.silence_nanos {
        0 => String::new(),
        nanos => format!(", then silence for {}", text::duration(nanos)),
    };
    let time = text::duration(failure.time_nanos);
    let what = message_text(&failure.message);
    let mut words = if is_rnr {
        let timer =
            side.evidence.rnr_timer.map_or_else(String::new, |timer| format!(" of {timer}"));
        format!(
            "RNR retry limit reached: {what} was answered with {}{timer}{silence}; {last_acked}",
            text::count(attempts, "RNR NAK"),
        )
    } else if failure.is_over {
        format!(
            "retry limit reached: {last_acked}; {what} had no answer to {retransmitted} over {time}{silence}",
        )
    } else {
        format!(
            "{what} is unanswered at the end of the capture: {retransmitted} over {time}; {last_acked}; the connection \
             is dead, or the way is cut",
        )
    };
    if failure.last_acked.is_none() && !is_rnr && side.direction.full_payload[0] > 0 {
        words += &format!(
            "; no packet with {} of payload was ever answered: the path may not carry that size",
            text::count(side.direction.full_payload[0].into(), "byte"),
        );
    }
    if failure.flushed > 0 {
        words +=
            &format!("; {} behind it did not complete", text::count(failure.flushed, "message"));
    }
    // The set-up says how often the requester tries; without it, silence only suggests that it gave
    // up.
    let limit = side.setup.and_then(|s| if is_rnr { s.rnr_retry_count } else { s.retry_count });
    let is_proven =
        !failure.is_over || limit.is_some_and(|limit| failure.attempts >= u32::from(limit));
    let certainty = if is_proven { Certainty::Proven } else { Certainty::Likely };
    if !is_proven {
        words = format!("likely {words}");
    }
    // The last acknowledgement, the first transmission and the last one.
    let mut frames = Frames::default();
    [failure.first_frame, failure.message.first_frame, failure.last_frame]
        .into_iter()
        .for_each(|frame| frames.push(frame));
    let kind = match failure.is_over {
        true if is_rnr => FindingKind::RnrRetryLimit,
        true => FindingKind::RetryLimit,
        false => FindingKind::Unanswered,
    };
    let cost = failure.silence_nanos.max(failure.time_nanos);
    Some(side.finding(kind, certainty, cost, &[&frames], &words))
}

/// The responder refused a request for good.
pub(super) fn request_refused(side: &Side<'_>) -> Option<Finding> {
    let first = side.evidence.refusals.first()?;
    let mut words = format!("{} refused: {}", message_text(&first.message), first.code);
    if let Some(reth) = first.reth {
        let (address, rkey) = (reth.virtual_address, reth.rkey);
        words += &format!("; it names rkey {rkey}, address {address:#x}, length {}", reth.length);
    }
    let more = side.evidence.refusals.len() - 1;
    if more > 0 {
        words += &format!("; {} more", text::count(more as u64, "refusal"));
    }
    let mut frames = Frames::default();
    for refusal in &side.evidence.refusals {
        frames.push(refusal.frame);
        frames.push(refusal.message.first_frame);
    }
    let (kind, certainty) = (FindingKind::RequestRefused, Certainty::Proven);
    Some(side.finding(kind, certainty, 0, &[&frames], &words))
}

/// A NAK of what was acknowledged before.
pub(super) fn naked_acknowledged(side: &Side<'_>) -> Option<Finding> {
    let frames = &side.evidence.naks_of_acknowledged;
    let &[nak, ack, ..] = frames.as_slice() else { return None };
    let words = format!(
        "the responder NAKed a PSN (frame {nak}) that it had acknowledged before (frame {ack}): likely it lost its \
         own state, or the network delivered the NAK late",
    );
    let (kind, certainty) = (FindingKind::ProtocolViolation, Certainty::Likely);
    Some(side.finding(kind, certainty, 0, &[frames], &words))
}

/// Responses to what was never asked.
pub(super) fn ghost_responses(side: &Side<'_>) -> Option<Finding> {
    let frames = &side.evidence.ghost_responses;
    let first = frames.as_slice().first()?;
    let words = format!(
        "the responder answers PSNs far from all that was sent (first in frame {first}): likely the two ends disagree \
         on the PSN, or the capture missed many requests",
    );
    let (kind, certainty) = (FindingKind::ProtocolViolation, Certainty::Likely);
    Some(side.finding(kind, certainty, 0, &[frames], &words))
}
