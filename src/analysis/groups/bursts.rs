//! Findings that begin at the same time.

use std::collections::BTreeSet;

use serde::Serialize;

use super::rule::{SHARE_RATIO, float, share, surprise_min, weighted_log};
use crate::analysis::finding::{Finding, FindingKind};
use crate::analysis::report::CaptureFacts;
use crate::analysis::serialize;
use crate::time::{Instant, nanos};

/// Parts into which the time of a capture is divided.
const PARTS: usize = 64;

/// Maximum number of parts of a burst: one eighth of the capture.
const BURST_PARTS_MAX: usize = PARTS / 8;

/// Fewest connections of a burst.
const BURST_AFFECTED_MIN: u64 = 10;

/// A time in which more findings of a kind begin than traffic explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Burst {
    /// The kind of findings.
    pub kind: FindingKind,
    /// Begin of the burst.
    #[serde(serialize_with = "serialize::instant")]
    pub from: Instant,
    /// End of the burst.
    #[serde(serialize_with = "serialize::instant")]
    pub to: Instant,
    /// Connections whose first finding of this kind begins in this time.
    pub affected: u64,
    /// Connections with a finding of this kind at any time.
    pub all_affected: u64,
    /// Packets of the capture in this time.
    pub packets: u64,
    /// All packets of the capture.
    pub all_packets: u64,
}

/// The bursts of each kind, in the order of the kinds.
pub(super) fn of_findings(capture: &CaptureFacts, findings: &[Finding]) -> Vec<Burst> {
    let (Some(first), Some(last)) = (capture.first_time, capture.last_time) else {
        return Vec::new();
    };
    let span = nanos(last.saturating_since(first));
    if span < PARTS as u64 {
        return Vec::new();
    }
    let parts = Parts { start: first.as_nanos(), span };
    let packets = parts.packets(capture);
    let kinds: BTreeSet<FindingKind> = findings.iter().map(|finding| finding.kind).collect();
    let bursts = kinds.into_iter().filter(|kind| kind.is_about_traffic());
    bursts.filter_map(|kind| of_kind(kind, &parts, &packets, findings)).collect()
}

/// Equal parts of the time of a capture.
struct Parts {
    start: u64,
    span: u64,
}

impl Parts {
    fn of(&self, nanos: u64) -> usize {
        let part = u128::from(nanos.saturating_sub(self.start)) * PARTS as u128
            / (u128::from(self.span) + 1);
        usize::try_from(part).unwrap_or(PARTS).min(PARTS - 1)
    }

    /// The begin of a part.
    fn begin(&self, part: usize) -> Instant {
        let offset = u128::from(self.span) * part as u128 / PARTS as u128;
        Instant::from_nanos(self.start + u64::try_from(offset).unwrap_or(self.span))
    }

    /// Packets of the capture in each part.
    fn packets(&self, capture: &CaptureFacts) -> [u64; PARTS] {
        let mut packets = [0; PARTS];
        let start = capture.series.start().map_or(self.start, Instant::as_nanos);
        let interval = capture.series.interval_nanos();
        for (number, one) in (0u64..).zip(capture.series.intervals()) {
            // The middle of the interval.
            let time = start.saturating_add(number.saturating_mul(interval)) + interval / 2;
            packets[self.of(time)] += u64::from(one.packets[0]);
        }
        packets
    }
}

/// The burst of a kind, if there is one.
fn of_kind(
    kind: FindingKind,
    parts: &Parts,
    packets: &[u64; PARTS],
    findings: &[Finding],
) -> Option<Burst> {
    let mut affected = [0u64; PARTS];
    let mut flows = BTreeSet::new();
    // Findings of one kind about one connection are one event here.
    for finding in findings.iter().filter(|finding| finding.kind == kind) {
        let is_first = finding.flow.is_none_or(|flow| flows.insert(flow));
        if let Some(time) = finding.time.filter(|_| is_first) {
            affected[parts.of(time.as_nanos())] += 1;
        }
    }
    let (all_affected, all_packets) = (affected.iter().sum(), packets.iter().sum());
    let mut best: Option<(f64, Burst)> = None;
    for len in 1..=BURST_PARTS_MAX {
        for from in 0..=PARTS - len {
            let sum = |counts: &[u64; PARTS]| counts.iter().skip(from).take(len).sum::<u64>();
            let (found, passed) = (sum(&affected), sum(packets));
            let surprise = surprise([found, all_affected], [passed, all_packets]);
            if found < BURST_AFFECTED_MIN
                || found * 2 < all_affected
                || share(found, all_affected) < SHARE_RATIO * share(passed, all_packets)
                || surprise <= surprise_min((PARTS * BURST_PARTS_MAX) as u64)
                || best.as_ref().is_some_and(|(most, _)| *most >= surprise)
            {
                continue;
            }
            let (from, to) = (parts.begin(from), parts.begin(from + len));
            let (affected, packets) = (found, passed);
            let burst = Burst { kind, from, to, affected, all_affected, packets, all_packets };
            best = Some((surprise, burst));
        }
    }
    best.map(|(_, burst)| burst)
}

/// Returns the G statistic: the evidence that findings have a share of their own, and not that of
/// the packets.
fn surprise([found, all]: [u64; 2], [passed, packets]: [u64; 2]) -> f64 {
    // Nothing is impossible: a part without packets has half of one.
    let expected = (float(passed).max(0.5) / float(packets.max(1))).min(1.0);
    let rest = all.saturating_sub(found);
    let fitted = weighted_log(found, all) + weighted_log(rest, all);
    let left = if rest == 0 { 0.0 } else { float(rest) * (1.0 - expected).max(1e-12).ln() };
    2.0 * (fitted - float(found) * expected.ln() - left)
}
