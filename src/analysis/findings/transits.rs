//! Packets that took much longer from one capture point to the next than others did.

use super::text;
use crate::analysis::finding::{Certainty, Finding, FindingKind};
use crate::analysis::report::CaptureFacts;

/// One finding for each two capture points between which packets were delayed.
pub(in crate::analysis) fn of_transits(capture: &CaptureFacts) -> Vec<Finding> {
    let name = |file: u16| capture.files.get(usize::from(file)).map_or("", |facts| &facts.name);
    let delayed = capture.transits.iter().filter(|transit| transit.delayed > 0);
    let finding = |transit: &crate::analysis::Transit| {
        let usual = transit.nanos.percentiles();
        let worst = transit.delays.first().map_or(0, |delay| delay.nanos);
        let words = format!(
            "{} → {}: {} of {} delayed: up to {}, where the median is {}",
            name(transit.from),
            name(transit.to),
            text::grouped(transit.delayed),
            text::count(usual.count, "packet"),
            text::duration(worst),
            text::duration(usual.p50),
        );
        let mut frames: Vec<u64> = transit.delays.iter().flat_map(|delay| delay.frames).collect();
        frames.sort_unstable();
        frames.dedup();
        Finding {
            kind: FindingKind::Delay,
            flow: None,
            requester: None,
            hosts: None,
            time: None,
            certainty: Certainty::Proven,
            cost_nanos: worst.saturating_sub(usual.p50),
            frames,
            text: words,
        }
    };
    delayed.map(finding).collect()
}
