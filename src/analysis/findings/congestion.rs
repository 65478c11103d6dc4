//! Congestion: marks, notifications, and whether the sender slowed down.

use super::{Side, text};
use crate::analysis::finding::{Certainty, Finding, FindingKind};

/// Packets marked CE, the CNPs that answered them, and the sender's reaction.
pub(super) fn marks(side: &Side<'_>) -> Option<Finding> {
    let direction = side.direction;
    let (marks, cnps) = (direction.ce_marked, direction.cnps);
    if marks == 0 && cnps == 0 {
        return None;
    }
    let packets = (direction.request_packets + direction.response_packets).max(marks);
    let cnps_text = text::count(cnps, "CNP");
    let mut words = if marks == 0 {
        format!(
            "{cnps_text} without a marked packet in the capture: likely a switch behind the capture point marks"
        )
    } else {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        let rate = cnps as f64 * 1000.0 / marks as f64;
        let marked =
            format!("{} of {} marked CE", text::grouped(marks), text::count(packets, "packet"));
        let rate_text = format!("{rate:.1}");
        let rate_text = rate_text.trim_end_matches('0').trim_end_matches('.');
        let mut words =
            format!("{marked}, {cnps_text} ({rate_text} CNPs per 1,000 marked packets)");
        if rate < side.thresholds.cnps_per_1000_marks {
            words += ": the receiver answers too few marks";
        }
        words
    };
    let [before, after] = direction.cnp_reaction_bytes;
    if before > 0 {
        let percent = u128::from(after) * 100 / u128::from(before);
        words += &if percent < 95 {
            format!("; after CNPs the sender's rate was {percent} % of that before")
        } else {
            "; the sender did not slow down after CNPs".into()
        };
    }
    let certainty = if marks == 0 { Certainty::Likely } else { Certainty::Proven };
    let frames = [&side.evidence.ce_marks, &side.evidence.cnps];
    Some(side.finding(FindingKind::Congestion, certainty, 0, &frames, &words))
}
