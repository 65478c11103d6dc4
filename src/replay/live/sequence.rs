//! Some requests of a script, as frames: their PSNs follow each other without the gaps of those
//! that are left out.

use super::outgoing::{Outgoing, write_bits};
use super::script::{Captured, Script};
use super::target::Target;
use crate::wire::Bth;

/// The requests of a script with these indices (in the order of [`Script::requests`]), mapped. Gaps
/// in the PSNs that come from requests that are left out are closed; gaps and repetitions that the
/// capture has stay.
pub fn sequence(script: &Script, target: &Target, kept: &[usize]) -> Vec<(usize, Outgoing)> {
    let all: Vec<&Captured> = script.requests().collect();
    let left_out = left_out(script, &all, kept);
    let first = target.first_psn.unwrap_or(script.first_psn);
    let frame = |index: &usize| {
        let request = *all.get(*index)?;
        let mut out = target.request(script, request, 0);
        let moved: i64 =
            left_out.iter().map(|(start, end)| below(*start, *end, request.sequence)).sum();
        let sequence = (request.sequence - moved).rem_euclid(1 << 24);
        let psn = first.plus(u32::try_from(sequence).unwrap_or(0));
        write_bits(&mut out.packet, Bth::LAYOUT.psn, psn.get().into());
        Some((*index, out))
    };
    kept.iter().filter_map(frame).collect()
}

/// The sequence numbers that only requests that are left out have, as ranges.
fn left_out(script: &Script, all: &[&Captured], kept: &[usize]) -> Vec<(i64, i64)> {
    let range = |it: &Captured| (it.sequence, it.sequence + i64::from(it.span(script.mtu)));
    let stays = |at: i64| {
        kept.iter().filter_map(|index| all.get(*index)).any(|it| {
            let (start, end) = range(it);
            (start..end).contains(&at)
        })
    };
    let mut gone: Vec<(i64, i64)> = Vec::new();
    for (index, request) in all.iter().enumerate() {
        if kept.contains(&index) {
            continue;
        }
        let (start, end) = range(request);
        let known = gone.iter().any(|(from, to)| (*from..*to).contains(&start));
        if !known && !stays(start) {
            gone.push((start, end));
        }
    }
    gone
}

/// Returns how much of a range lies below a sequence number.
fn below(start: i64, end: i64, sequence: i64) -> i64 {
    (end.min(sequence) - start).max(0)
}
