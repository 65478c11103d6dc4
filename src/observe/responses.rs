//! READ and ATOMIC responses in the order in which a responder sends them.
//!
//! A responder executes requests in their order, and sends the responses to each from its first PSN
//! to its last. A request that is repeated makes it do so again. So the requests that pass a
//! capture point tell which responses follow, and what is missing among them was lost before the
//! point, whatever the requester does about it.

use core::ops::Range;
use std::collections::VecDeque;

use super::disorder::{Disorder, Lateness};
use crate::time::{Instant, nanos};

/// Requests of a direction that wait for their responses at the most. The oldest are forgotten.
const RUNS_MAX: usize = 1024;

/// Responses that are missing and remembered, at the most, in case they are late. The oldest are
/// forgotten.
const LATE_MAX: usize = 256;

/// Responses to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Sequence number of the first response.
    pub(crate) first: u64,
    /// Sequence number behind the last response; the greatest possible one while the path MTU is
    /// not known.
    pub(crate) end: u64,
    /// Bytes that a READ asks for.
    pub(crate) length: u32,
    /// Whether `end` is known.
    pub(crate) is_sized: bool,
    /// Frame of the request.
    pub(crate) frame: u64,
    /// Time of the request.
    pub(crate) time: Instant,
}

/// Responses that did not come before one that did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// The rest of the run before.
    pub(crate) tail: Range<u64>,
    /// Requests without any response: they were lost, or all responses to them.
    pub(crate) unanswered: Vec<Run>,
    /// Responses of the same run.
    pub(crate) head: Range<u64>,
}

/// The place of a response among those that are due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// A response that is due, behind those that are missing.
    Due(Missing),
    /// A response that was missing, and that others overtook.
    Late {
        /// Whether it counts as out of order; see [`Disorder`].
        is_out_of_order: bool,
        lateness: Lateness,
    },
    /// A response of no run that is due: a copy, or the answer to a request that was not captured.
    Stray,
    /// A response that is late, or due behind others that are missing: the next one tells which
    /// ([`ResponseRuns::settle`]).
    Open,
}

/// A response that is [`Open`](Arrival::Open).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenResponse {
    pub(crate) sequence: u64,
    /// Frame of the response.
    pub(crate) frame: u64,
    begins: bool,
    /// Sequence number behind the run that it belongs to if it is due.
    end: u64,
    /// Whether that is the run that is being sent.
    is_current: bool,
    answerable: Instant,
}

/// A response that a later one overtook, or that was lost.
#[derive(Clone, Copy, Debug)]
struct Skipped {
    sequence: u64,
    /// Arrival of the later one, less the shortest round-trip time.
    time: Instant,
}

/// Responses that are due, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponseRuns {
    /// The run that is being sent, and its next sequence number.
    current: Option<(Run, u64)>,
    waiting: VecDeque<Run>,
    /// Responses that were missing lately and may be late.
    missing: VecDeque<Skipped>,
    /// The request that the responder waits for since a NAK: it drops those behind it.
    expected: Option<u64>,
    is_unsized: bool,
    disorder: Disorder,
    /// Whether a response was late.
    has_late: bool,
    /// A response that came twice, if the last one did: a copy, unless the next one follows it and
    /// a run begins without its first responses.
    copy: Option<u64>,
    open: Option<OpenResponse>,
}

impl ResponseRuns {
    /// Takes a request of any kind with so many sequence numbers: the one that the responder waits
    /// for, if it is it.
    #[inline]
    pub(crate) fn arrive(&mut self, first: u64, span: u64) {
        self.expected.take_if(|expected| (first..first + span).contains(expected));
    }

    /// Takes a READ or ATOMIC request, after [`arrive`](Self::arrive).
    pub(crate) fn request(&mut self, run: Run) {
        if self.expected.is_some_and(|expected| run.first > expected) {
            return;
        }
        self.is_unsized |= !run.is_sized;
        if self.waiting.len() >= RUNS_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(run);
    }

    /// Takes a NAK or RNR NAK: the responder dropped the requests from `sequence` on, except those
    /// since that was `resent`, if it is on its way again.
    pub(crate) fn drop_from(&mut self, sequence: u64, resent: Option<Instant>) {
        let is_since = |run: &Run| resent.is_some_and(|resent| run.time >= resent);
        self.waiting.retain(|run| run.first < sequence || is_since(run));
        self.expected = resent.is_none().then_some(sequence);
    }

    /// Takes the path MTU, in bytes; 0: not known.
    pub(crate) fn size(&mut self, mtu: u32) {
        if mtu == 0 || !core::mem::take(&mut self.is_unsized) {
            return;
        }
        let current = self.current.iter_mut().map(|(run, _)| run);
        for run in current.chain(&mut self.waiting).filter(|run| !run.is_sized) {
            run.end = run.first + u64::from(run.length.div_ceil(mtu)).max(1);
            run.is_sized = true;
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes the response in a frame, `begins`: the first of its run. What was requested after
    /// `answerable` cannot be answered yet. Before it, [`settle`](Self::settle) must be called.
    pub(crate) fn response(
        &mut self,
        sequence: u64,
        begins: bool,
        answerable: Instant,
        frame: u64,
    ) -> Arrival {
        self.open = self.open_at(sequence, begins, answerable, frame);
        match self.open {
            Some(_) => Arrival::Open,
            None => self.place(sequence, begins, answerable, true),
        }
    }

    /// Returns a response that is missing if it may be late or due: as part of the run that is
    /// being sent, or of a request that was repeated and whose first responses are missing.
    fn open_at(
        &self,
        sequence: u64,
        begins: bool,
        answerable: Instant,
        frame: u64,
    ) -> Option<OpenResponse> {
        let (run, next) = self.current?;
        if sequence == next || !self.is_missing(sequence) {
            return None;
        }
        let is_current = !begins && (next..run.end).contains(&sequence);
        let holds = |it: &Run| {
            let is_it = if begins { it.first == sequence } else { it.first < sequence };
            // A run of one response has no later one that could tell.
            is_it && it.end > sequence + u64::from(begins) && it.time <= answerable
        };
        if begins && self.skipped_before(sequence, holds) <= 1 {
            return None;
        }
        let run = if is_current { &run } else { self.waiting.iter().find(|it| holds(it))? };
        let end = run.end;
        Some(OpenResponse { sequence, frame, begins, end, is_current, answerable })
    }

    /// Decides about a response that is open, if there is one, before `next` comes: behind one of
    /// the run that is being sent come no earlier ones of it, unless it is late; behind one of a
    /// repeated run come others of that.
    pub(crate) fn settle(&mut self, next: u64) -> Option<(OpenResponse, Arrival)> {
        let open = self.open.take()?;
        let rest = self.rest();
        let is_due = if open.is_current {
            next > open.sequence || !rest.contains(&next)
        } else {
            // Of two that are missing and far from each other, both are late.
            (next == open.sequence + 1 || !self.is_missing(next))
                && (open.sequence + 1..open.end).contains(&next)
                && !rest.contains(&next)
        };
        let arrival = if is_due {
            self.place(open.sequence, open.begins, open.answerable, false)
        } else {
            let skipped = take(&mut self.missing, open.sequence)?;
            self.late(skipped, open.answerable)
        };
        Some((open, arrival))
    }

    /// Returns the place of a response. Without `may_be_late` it is known not to be late.
    fn place(
        &mut self,
        sequence: u64,
        begins: bool,
        answerable: Instant,
        may_be_late: bool,
    ) -> Arrival {
        let holds = |run: &Run| {
            if begins {
                run.first == sequence
            } else {
                (run.first + 1..run.end).contains(&sequence)
            }
        };
        if let Some((run, next)) = &mut self.current {
            if (*next..run.end).contains(&sequence) && !begins {
                take(&mut self.missing, sequence);
                let head = *next..sequence;
                *next = sequence + 1;
                self.expect_late(head.clone(), answerable);
                self.disorder.advance(head.clone(), head.end - head.start);
                return Arrival::Due(Missing { head, ..Missing::default() });
            }
            // A request that is repeated is answered behind all of the present run.
            let is_unfinished = *next < run.end;
            let is_again = |run: &Run| holds(run) && run.time <= answerable;
            let is_answered_again = self.waiting.iter().any(is_again);
            let is_likely_late = if begins {
                !is_answered_again && (is_unfinished || self.waiting.is_empty())
            } else {
                is_unfinished || !is_answered_again
            };
            // Fewer packets explain it if it alone is late.
            let is_likely_late = is_likely_late || self.skipped_before(sequence, holds) > 1;
            if may_be_late
                && is_likely_late
                && let Some(skipped) = take(&mut self.missing, sequence)
            {
                return self.late(skipped, answerable);
            }
            if let Some((_, next)) = self.current
                && sequence + 1 == next
                && !begins
            {
                return Arrival::Stray;
            }
        }
        let after_copy = self.copy.take().is_some_and(|copy| copy + 1 == sequence);
        if !after_copy && self.has_come(sequence) && self.skipped_before(sequence, holds) > 1 {
            self.copy = Some(sequence);
            return Arrival::Stray;
        }
        let Some(at) = self.waiting.iter().position(holds) else { return Arrival::Stray };
        let tail = self.rest();
        let unanswered = self.waiting.drain(..at).collect();
        let Some(run) = self.waiting.pop_front() else { return Arrival::Stray };
        self.current = Some((run, sequence + 1));
        take(&mut self.missing, sequence);
        let head = run.first..sequence - u64::from(after_copy && sequence > run.first);
        self.expect_late(tail.clone(), answerable);
        self.expect_late(head.clone(), answerable);
        let missing = tail.end - tail.start + head.end - head.start;
        let start = if tail.is_empty() { head.start } else { tail.start.min(head.start) };
        self.disorder.advance(start..head.end.max(tail.end), missing);
        Arrival::Due(Missing { tail, unanswered, head })
    }

    /// Whether a later response came before this one, and this one did not come since. Only the
    /// last [`LATE_MAX`] are remembered.
    pub(crate) fn is_missing(&self, sequence: u64) -> bool {
        self.missing.iter().any(|missing| missing.sequence == sequence)
    }

    /// Whether a response came in the current run.
    fn has_come(&self, sequence: u64) -> bool {
        !self.is_missing(sequence)
            && self.current.is_some_and(|(run, next)| (run.first..next).contains(&sequence))
    }

    /// Number of packets that are missing if a response begins the run that waits for it:
    /// responses, and requests of the runs before it that have none.
    fn skipped_before(&self, sequence: u64, holds: impl Fn(&Run) -> bool) -> u64 {
        let Some(at) = self.waiting.iter().position(holds) else { return 0 };
        let tail = self.rest();
        let head = self.waiting.get(at).map_or(0, |run| sequence - run.first);
        // Where packets are late, that is likelier than the loss of a request.
        let requests = at as u64 * if self.has_late { 2 } else { 1 };
        tail.end - tail.start + head + requests
    }

    /// Returns the responses of the current run that did not come, if their number is known.
    fn rest(&self) -> Range<u64> {
        let Some((run, next)) = self.current.filter(|(run, _)| run.is_sized) else { return 0..0 };
        // By the path MTU the run may have fewer responses than arrived.
        next..run.end.max(next)
    }

    /// A response that was missing, and that others overtook.
    fn late(&mut self, Skipped { sequence, time }: Skipped, answerable: Instant) -> Arrival {
        self.has_late = true;
        let next = self.current.map_or(0, |(_, next)| next);
        let packets = next.saturating_sub(sequence + 1).max(1);
        let lateness = Lateness { packets, nanos: nanos(answerable.saturating_since(time)) };
        Arrival::Late { is_out_of_order: self.disorder.fall_behind(sequence), lateness }
    }

    /// Remembers responses that are missing, the last ones if they are many.
    fn expect_late(&mut self, missing: Range<u64>, time: Instant) {
        let first = missing.end.saturating_sub(LATE_MAX as u64).max(missing.start);
        self.missing.extend((first..missing.end).map(|sequence| Skipped { sequence, time }));
        let excess = self.missing.len().saturating_sub(LATE_MAX);
        self.missing.drain(..excess);
    }

    /// Takes what is missing before a response to `sequence`, which was requested at `time`, though
    /// it is to another request: the rest of the run that is being sent, and the runs that should
    /// have come before.
    pub(crate) fn pass(&mut self, sequence: u64, time: Instant) -> Missing {
        let is_before = |run: &Run| run.is_sized && run.end <= sequence && run.time <= time;
        let current = self.current.take_if(|(run, _)| is_before(run));
        let tail = current.map_or(0..0, |(run, next)| next..run.end.max(next));
        let before = self.waiting.iter().take_while(|run| is_before(run)).count();
        let unanswered = self.waiting.drain(..before).collect();
        Missing { tail, unanswered, head: 0..0 }
    }

    /// Takes the requests that are still without a response and that are of PSNs before
    /// `acknowledged`, so that a repetition of them was answered.
    pub(crate) fn take_unanswered(&mut self, acknowledged: u64) -> Vec<Run> {
        let is_done = |run: &Run| run.is_sized && run.end <= acknowledged;
        let done = self.waiting.iter().copied().filter(is_done).collect();
        self.waiting.retain(|run| !is_done(run));
        done
    }
}

/// Removes a response from those that are missing.
fn take(missing: &mut VecDeque<Skipped>, sequence: u64) -> Option<Skipped> {
    let at = missing.iter().position(|missing| missing.sequence == sequence)?;
    missing.remove(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time behind all requests.
    const END: Instant = Instant::from_nanos(u64::MAX);

    fn run(first: u64, end: u64) -> Run {
        Run { first, end, length: 0, is_sized: true, frame: first, time: Instant::ZERO }
    }

    /// Takes a response; the one before must not be open.
    fn respond(
        runs: &mut ResponseRuns,
        sequence: u64,
        begins: bool,
        answerable: Instant,
    ) -> Arrival {
        assert_eq!(runs.settle(sequence), None);
        runs.response(sequence, begins, answerable, sequence)
    }

    /// Number of responses that are missing.
    fn count(missing: &Missing) -> usize {
        missing.tail.clone().chain(missing.head.clone()).count()
    }

    fn runs(all: &[(u64, u64)]) -> ResponseRuns {
        let mut runs = ResponseRuns::default();
        all.iter().for_each(|&(first, end)| runs.request(run(first, end)));
        runs
    }

    /// Number of responses that are missing before one that is due.
    fn missing_before(arrival: Arrival) -> Option<usize> {
        match arrival {
            Arrival::Due(missing) => Some(count(&missing)),
            Arrival::Late { .. } | Arrival::Stray | Arrival::Open => None,
        }
    }

    /// Returns the responses that are missing before one that is due.
    fn due(arrival: Arrival) -> Missing {
        match arrival {
            Arrival::Due(missing) => missing,
            other => panic!("{other:?}"),
        }
    }

    /// Lateness of a response in packets.
    fn late_by(arrival: Arrival) -> u64 {
        match arrival {
            Arrival::Late { is_out_of_order: true, lateness } => lateness.packets,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn responses_in_order_miss_nothing() {
        let mut runs = runs(&[(0, 3), (3, 4)]);
        for sequence in 0..4 {
            let arrival = respond(&mut runs, sequence, [0, 3].contains(&sequence), END);
            assert_eq!(missing_before(arrival), Some(0));
        }
        assert_eq!(respond(&mut runs, 3, true, END), Arrival::Stray, "a copy");
    }

    #[test]
    fn gap_and_tail_and_head_are_missing() {
        let mut runs = runs(&[(0, 6), (6, 9)]);
        assert_eq!(due(respond(&mut runs, 0, true, END)).head, 0..0);
        assert_eq!(due(respond(&mut runs, 3, false, END)).head, 1..3);
        let missing = due(respond(&mut runs, 7, false, END));
        assert_eq!(missing, Missing { tail: 4..6, unanswered: vec![], head: 6..7 });
        assert_eq!(late_by(respond(&mut runs, 1, false, END)), 6);
        assert_eq!(respond(&mut runs, 1, false, END), Arrival::Stray);
        assert_eq!(due(respond(&mut runs, 8, false, END)).head, 8..8);
    }

    #[test]
    fn first_response_that_others_overtook_does_not_answer_the_request_made_for_want_of_it() {
        let mut runs = runs(&[(0, 4)]);
        runs.request(Run { time: Instant::from_nanos(20), ..run(0, 4) });
        assert_eq!(due(respond(&mut runs, 1, false, Instant::from_nanos(10))).head, 0..1);
        assert_eq!(late_by(respond(&mut runs, 0, true, Instant::from_nanos(10))), 1);
        for sequence in 2..4 {
            assert_eq!(missing_before(respond(&mut runs, sequence, false, END)), Some(0));
        }
        for sequence in 0..4 {
            let arrival = respond(&mut runs, sequence, sequence == 0, END);
            assert_eq!(missing_before(arrival), Some(0), "{sequence}");
        }
    }

    #[test]
    fn copy_of_a_response_does_not_begin_the_run_that_waits() {
        let mut runs = runs(&[(0, 5), (0, 5)]);
        for sequence in 0..5 {
            respond(&mut runs, sequence, sequence == 0, END);
        }
        assert_eq!(respond(&mut runs, 2, false, END), Arrival::Stray);
        for sequence in 0..5 {
            let arrival = respond(&mut runs, sequence, sequence == 0, END);
            assert_eq!(missing_before(arrival), Some(0), "{sequence}");
        }
    }

    #[test]
    fn run_whose_first_responses_are_lost_begins_with_two_in_order() {
        let mut runs = runs(&[(0, 5), (0, 5)]);
        for sequence in 0..5 {
            respond(&mut runs, sequence, sequence == 0, END);
        }
        assert_eq!(respond(&mut runs, 2, false, END), Arrival::Stray);
        assert_eq!(due(respond(&mut runs, 3, false, END)).head, 0..2);
        assert_eq!(due(respond(&mut runs, 4, false, END)).head, 4..4);
    }

    #[test]
    fn late_first_response_of_a_finished_run_is_no_repetition() {
        let mut runs = runs(&[(0, 3), (3, 4)]);
        assert_eq!(due(respond(&mut runs, 1, false, END)).head, 0..1);
        for (sequence, begins) in [(2, false), (3, true)] {
            assert_eq!(missing_before(respond(&mut runs, sequence, begins, END)), Some(0));
        }
        assert_eq!(late_by(respond(&mut runs, 0, true, END)), 3);
    }

    #[test]
    fn first_response_is_late_while_the_next_run_is_not_finished() {
        let mut runs = runs(&[(0, 2), (2, 5)]);
        runs.request(Run { time: Instant::from_nanos(20), ..run(0, 2) });
        assert_eq!(due(respond(&mut runs, 1, false, END)).head, 0..1);
        assert_eq!(missing_before(respond(&mut runs, 2, true, END)), Some(0));
        assert_eq!(missing_before(respond(&mut runs, 3, false, END)), Some(0));
        assert_eq!(late_by(respond(&mut runs, 0, true, Instant::from_nanos(10))), 3);
        for (sequence, begins) in [(4, false), (0, true), (1, false)] {
            assert_eq!(
                missing_before(respond(&mut runs, sequence, begins, END)),
                Some(0),
                "{sequence}"
            );
        }
    }

    #[test]
    fn last_response_that_others_overtook_does_not_begin_a_later_run() {
        let mut runs = runs(&[(0, 4), (4, 8), (3, 4)]);
        for (sequence, begins) in [(0, true), (1, false), (2, false)] {
            assert_eq!(missing_before(respond(&mut runs, sequence, begins, END)), Some(0));
        }
        assert_eq!(due(respond(&mut runs, 4, true, END)).tail, 3..4);
        assert_eq!(late_by(respond(&mut runs, 3, false, END)), 1);
        assert_eq!(missing_before(respond(&mut runs, 5, false, END)), Some(0));
    }

    #[test]
    fn late_responses_in_a_row_do_not_begin_a_repeated_run() {
        let mut runs = runs(&[(0, 9), (9, 12), (1, 9)]);
        for (sequence, begins) in [(0, true), (2, false), (3, false), (4, false), (6, false)] {
            respond(&mut runs, sequence, begins, END);
        }
        for (sequence, begins) in [(8, false), (9, true), (10, false), (11, false)] {
            respond(&mut runs, sequence, begins, END);
        }
        assert_eq!(runs.response(5, false, END, 5), Arrival::Open);
        assert_eq!(late_by(runs.settle(7).unwrap().1), 6);
    }

    #[test]
    fn repeated_run_whose_first_responses_are_lost_is_not_late() {
        // 1 and 2 are missing, and requested again; then the rest of the second READ and the first
        // response of the third are lost.
        let mut runs = runs(&[(0, 4), (4, 9), (1, 4)]);
        for (sequence, begins) in [(0, true), (3, false), (4, true), (5, false)] {
            respond(&mut runs, sequence, begins, END);
        }
        assert_eq!(respond(&mut runs, 2, false, END), Arrival::Open);
        let (open, arrival) = runs.settle(3).unwrap();
        let missing = Missing { tail: 6..9, unanswered: vec![], head: 1..2 };
        assert_eq!((open.frame, due(arrival)), (2, missing));
        assert_eq!(missing_before(respond(&mut runs, 3, false, END)), Some(0));
    }

    #[test]
    fn response_behind_lost_ones_is_not_late_because_it_was_lost_before() {
        let mut runs = runs(&[(0, 9), (1, 9)]);
        for (sequence, begins) in [(0, true), (8, false), (1, true), (2, false)] {
            respond(&mut runs, sequence, begins, END);
        }
        assert_eq!(respond(&mut runs, 5, false, END), Arrival::Open);
        assert_eq!(due(runs.settle(7).unwrap().1).head, 3..5);
        assert_eq!(runs.response(7, false, END, 7), Arrival::Open);
        assert_eq!(due(runs.settle(9).unwrap().1).head, 6..7);
    }

    #[test]
    fn repeated_request_is_answered_from_its_first_psn() {
        // The first READ misses 2 and 3; the requester asks for what is left of it, and for the
        // second one.
        let mut runs = runs(&[(0, 4), (4, 8), (2, 4), (4, 8)]);
        let all = [(0, true), (1, false), (4, true), (5, false), (6, false), (7, false)];
        let missing: Vec<_> = all
            .iter()
            .flat_map(|&(sequence, begins)| due(respond(&mut runs, sequence, begins, END)).tail)
            .collect();
        assert_eq!(missing, [2, 3]);
        for (sequence, begins) in [(2, true), (3, false), (4, true)] {
            let arrival = respond(&mut runs, sequence, begins, END);
            assert_eq!(missing_before(arrival), Some(0), "{sequence}");
        }
    }

    #[test]
    fn request_without_a_response_is_unanswered() {
        let mut runs = runs(&[(0, 2), (2, 4), (4, 6)]);
        assert_eq!(due(respond(&mut runs, 0, true, END)).unanswered, []);
        assert_eq!(due(respond(&mut runs, 4, true, END)).unanswered, [run(2, 4)]);
    }

    #[test]
    fn run_that_turns_out_shorter_than_what_came_misses_nothing() {
        let mut runs = ResponseRuns::default();
        runs.request(Run { length: 1024, is_sized: false, ..run(0, 16) });
        runs.request(run(16, 17));
        for sequence in 0..4 {
            assert_eq!(missing_before(respond(&mut runs, sequence, sequence == 0, END)), Some(0));
        }
        runs.size(1024);
        assert_eq!(due(respond(&mut runs, 16, true, END)).tail, 4..4);
    }

    #[test]
    fn requests_behind_a_nak_are_not_executed() {
        let mut runs = runs(&[(0, 2), (2, 4), (4, 6)]);
        runs.drop_from(2, None);
        runs.request(run(4, 6));
        runs.arrive(2, 2);
        runs.request(run(2, 4));
        respond(&mut runs, 0, true, END);
        let missing = due(respond(&mut runs, 2, true, END));
        assert_eq!(missing, Missing { tail: 1..2, unanswered: vec![], head: 2..2 });
    }
}
