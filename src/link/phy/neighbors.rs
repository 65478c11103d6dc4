//! Hardware addresses of neighbors, as smoltcp's interface found them.
//!
//! The interface does not tell what it knows. So a datagram to the neighbor is handed to it, a
//! probe: when the interface sends it, the frame has the hardware address, and goes no further.

use std::time::Duration;

use crate::time::Instant;
use crate::wire::{Gid, MacAddr};

/// Maximum number of neighbors that are remembered. With more, those that nothing is asked about
/// are forgotten.
const NEIGHBORS_MAX: usize = 1024;

/// Maximum number of neighbors that are looked for at once.
pub(super) const PROBES_MAX: usize = 64;

/// Time for which an answer holds until the interface is asked anew.
const KNOWN_FOR: Duration = Duration::from_secs(5);

/// Time for which packets wait for an answer.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(3);

/// Table of neighbors.
#[derive(Debug)]
pub(super) struct Neighbors {
    known: Vec<Neighbor>,
    /// Probes that are free.
    free: Vec<usize>,
    /// Time at which the first question ends without an answer.
    deadline: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Neighbor {
    gid: Gid,
    mac: Option<MacAddr>,
    renew: Instant,
    question: Option<Question>,
}

/// A probe that waits for its neighbor.
#[derive(Clone, Copy, Debug)]
struct Question {
    probe: usize,
    deadline: Instant,
}

/// Way to a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lookup {
    pub(super) state: State,
    /// Probe that has to be sent now.
    pub(super) probe: Option<usize>,
}

/// State of a neighbor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The hardware address is known.
    Known(MacAddr),
    /// Packets wait until it is.
    Asked,
    /// Too many neighbors are looked for already.
    Busy,
}

impl Neighbors {
    pub(super) fn new() -> Self {
        Self { known: Vec::new(), free: (0..PROBES_MAX).collect(), deadline: None }
    }

    /// Returns the way to a neighbor.
    pub(super) fn find(&mut self, now: Instant, gid: Gid) -> Lookup {
        let at = self.known.iter().position(|known| known.gid == gid);
        let at = at.unwrap_or_else(|| self.insert(gid));
        let Some(neighbor) = self.known.get_mut(at) else {
            return Lookup { state: State::Busy, probe: None };
        };
        let mut probe = None;
        if neighbor.question.is_none() && now >= neighbor.renew {
            probe = self.free.pop();
            let deadline = now.saturating_add(ANSWER_TIME);
            neighbor.question = probe.map(|probe| Question { probe, deadline });
            self.deadline =
                self.deadline.or_else(|| neighbor.question.map(|question| question.deadline));
        }
        let state = match (neighbor.mac, neighbor.question) {
            (Some(mac), _) => State::Known(mac),
            (None, Some(_)) => State::Asked,
            (None, None) => State::Busy,
        };
        Lookup { state, probe }
    }

    fn insert(&mut self, gid: Gid) -> usize {
        if self.known.len() >= NEIGHBORS_MAX {
            self.known.retain(|known| known.question.is_some());
        }
        self.known.push(Neighbor { gid, mac: None, renew: Instant::ZERO, question: None });
        self.known.len() - 1
    }

    /// Notes the hardware address of a neighbor that a probe was for.
    pub(super) fn found(&mut self, now: Instant, gid: Gid, mac: MacAddr) {
        let Some(known) = self.known.iter_mut().find(|known| known.gid == gid) else { return };
        (known.mac, known.renew) = (Some(mac), now.saturating_add(KNOWN_FOR));
        self.free.extend(known.question.take().map(|question| question.probe));
        self.update_deadline();
    }

    /// Ends questions without an answer by `now`: `each` gets their neighbors and probes. The
    /// neighbors are unknown from then on.
    pub(super) fn expire(&mut self, now: Instant, mut each: impl FnMut(Gid, usize)) {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        for known in &mut self.known {
            if let Some(ended) = known.question.take_if(|question| question.deadline <= now) {
                known.mac = None;
                self.free.push(ended.probe);
                each(known.gid, ended.probe);
            }
        }
        self.known.retain(|known| known.mac.is_some() || known.question.is_some());
        self.update_deadline();
    }

    /// Returns the time at which [`expire`](Self::expire) must be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn update_deadline(&mut self) {
        let questions = self.known.iter().filter_map(|known| known.question);
        self.deadline = questions.map(|question| question.deadline).min();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Gid = Gid([1; 16]);
    const B: Gid = Gid([2; 16]);
    const MAC: MacAddr = MacAddr([2; 6]);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn neighbor_is_asked_for_once_and_renewed_while_it_is_used() {
        let mut neighbors = Neighbors::new();
        let first = neighbors.find(at(0), A);
        assert_eq!((first.state, first.probe.is_some()), (State::Asked, true));
        assert_eq!(neighbors.find(at(1), A), Lookup { state: State::Asked, probe: None });
        neighbors.found(at(1), A, MAC);
        assert_eq!(neighbors.deadline(), None);
        assert_eq!(neighbors.find(at(5), A), Lookup { state: State::Known(MAC), probe: None });
        let renewed = neighbors.find(at(6), A);
        assert_eq!((renewed.state, renewed.probe.is_some()), (State::Known(MAC), true));
        assert_eq!(neighbors.find(at(7), A), Lookup { state: State::Known(MAC), probe: None });
    }

    #[test]
    fn neighbor_that_does_not_answer_is_unknown_again() {
        let mut neighbors = Neighbors::new();
        neighbors.find(at(0), A);
        neighbors.found(at(0), A, MAC);
        neighbors.find(at(6), A);
        neighbors.find(at(7), B);
        let mut ended = Vec::new();
        neighbors.expire(at(8), |gid, _| ended.push(gid));
        assert_eq!((ended.as_slice(), neighbors.deadline()), (&[][..], Some(at(9))));
        neighbors.expire(at(9), |gid, _| ended.push(gid));
        assert_eq!((ended.as_slice(), neighbors.deadline()), (&[A][..], Some(at(10))));
        assert_eq!(neighbors.find(at(9), A).state, State::Asked);
        neighbors.expire(at(20), |_, _| {});
        assert_eq!((neighbors.free.len(), neighbors.deadline()), (PROBES_MAX, None));
    }

    #[test]
    fn no_more_neighbors_are_looked_for_than_there_are_probes() {
        let mut neighbors = Neighbors::new();
        let gid = |at: usize| Gid::from(std::net::Ipv6Addr::from_bits(at as u128 + 1));
        for number in 0..PROBES_MAX {
            assert_eq!(neighbors.find(at(0), gid(number)).state, State::Asked);
        }
        let busy = Lookup { state: State::Busy, probe: None };
        for number in PROBES_MAX..3 * NEIGHBORS_MAX {
            assert_eq!(neighbors.find(at(0), gid(number)), busy);
        }
        assert!(neighbors.known.len() <= NEIGHBORS_MAX);
        neighbors.found(at(0), gid(3), MAC);
        assert_eq!(neighbors.find(at(0), gid(PROBES_MAX)).state, State::Asked);
    }
}
