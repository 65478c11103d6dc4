//! Peer window: bytes in flight to one peer, over all queue pairs.
//!
//! Each queue pair has a window of its own. But all queue pairs that send to one peer share its
//! receive buffer, and a few windows together overrun a small one. So the bytes in flight to one
//! peer may be limited. A queue pair that finds the limit reached waits for an ACK; queue pairs
//! that wait are served in order.
//!
//! A queue pair may exceed the limit, up to its own window, if everything in flight to the peer is
//! its own and no other queue pair waits. With another one waiting it may not: it would delay the
//! other for as long as it has something to send, and after a timeout of the other its burst would
//! push the retransmission out of a short queue, at every retry.
//!
//! An acknowledged packet counts with the mean size of those in flight. Packets that will be
//! retransmitted are not in flight: they have arrived or are lost. So a queue pair in an RNR wait
//! delays no other.

use std::collections::{BTreeMap, VecDeque};

use crate::table::SlotId;
use crate::wire::Gid;

/// Bytes that a packet takes in a receive buffer beyond its payload: headers, and the overhead of
/// the kernel.
const OVERHEAD: u32 = 512;

/// Bytes that a packet with `payload` bytes takes in a receive buffer.
pub(super) const fn cost(payload: u32) -> u32 {
    payload + OVERHEAD
}

/// Bytes in flight of one queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowCredit {
    /// Peer window, if it has sent anything.
    window: Option<usize>,
    cost: u32,
    packets: u32,
    /// Ticket in the order of queue pairs that wait, if it does; see [`PeerWindow::first`].
    ticket: u64,
}

impl FlowCredit {
    /// Whether its queue pair may be woken by the window of its peer.
    pub(super) fn is_used(&self) -> bool {
        self.window.is_some()
    }
}

/// Window of one peer.
#[derive(Debug)]
struct PeerWindow {
    gid: Gid,
    /// Number of queue pairs that use it.
    users: usize,
    /// Bytes in flight.
    in_flight: u32,
    /// Queue pairs that wait; `None` for one that has left.
    waiting: VecDeque<Option<SlotId>>,
    /// Ticket of the first in `waiting`.
    first: u64,
    /// Largest number of bytes that a queue pair in `waiting` needs.
    needed: u32,
}

/// Windows of all peers.
#[derive(Debug)]
pub(super) struct PeerWindows {
    /// Maximum number of bytes in flight to one peer.
    limit: Option<u32>,
    windows: Vec<PeerWindow>,
    by_gid: BTreeMap<[u8; 16], usize>,
    unused: Vec<usize>,
}

impl PeerWindows {
    pub(super) fn new(limit: Option<u32>) -> Self {
        Self { limit, windows: Vec::new(), by_gid: BTreeMap::new(), unused: Vec::new() }
    }

    /// Whether a packet may be sent now. If not, its queue pair becomes active when it may.
    #[inline(always)]
    pub(super) fn admits(
        &mut self,
        credit: &mut FlowCredit,
        to: Gid,
        cost: u32,
        slot: SlotId,
        active: &mut VecDeque<SlotId>,
    ) -> bool {
        match self.limit {
            None => true,
            Some(limit) => self.admits_within(limit, credit, to, cost, slot, active),
        }
    }

    #[inline(never)]
    fn admits_within(
        &mut self,
        limit: u32,
        credit: &mut FlowCredit,
        to: Gid,
        cost: u32,
        slot: SlotId,
        active: &mut VecDeque<SlotId>,
    ) -> bool {
        let at = self.window_of(credit, to, active);
        let Some(window) = self.windows.get_mut(at) else { return true };
        let is_alone = window.in_flight == credit.cost && window.waiting.is_empty();
        // With nothing in flight no ACK would come to wake a queue pair.
        if window.in_flight == 0 || is_alone || window.in_flight.saturating_add(cost) <= limit {
            return true;
        }
        window.needed = if window.waiting.is_empty() { cost } else { window.needed.max(cost) };
        // Tickets begin with 1.
        if credit.ticket < window.first {
            window.waiting.push_back(Some(slot));
            credit.ticket = window.first + window.waiting.len() as u64 - 1;
        }
        false
    }

    /// Whether nothing is in flight to the peer of a queue pair, as far as is known.
    pub(super) fn is_idle(&self, credit: &FlowCredit) -> bool {
        let window = credit.window.and_then(|at| self.windows.get(at));
        window.is_none_or(|window| window.in_flight == 0)
    }

    /// Whether a packet is the last before a queue pair must wait: it asks for an ACK.
    #[inline]
    pub(super) fn is_filled_by(&self, credit: &FlowCredit, cost: u32) -> bool {
        let window = credit.window.and_then(|at| self.windows.get(at));
        let (Some(limit), Some(window)) = (self.limit, window) else { return false };
        window.in_flight.saturating_add(2 * cost) > limit
    }

    /// Whether a queue pair waits for room and has nothing in flight, so that no ACK of its own can
    /// come.
    pub(super) fn is_stalled(&self, credit: &FlowCredit) -> bool {
        let window = credit.window.and_then(|at| self.windows.get(at));
        window.is_some_and(|window| credit.packets == 0 && credit.ticket >= window.first)
    }

    /// Counts a packet that is sent.
    #[inline]
    pub(super) fn sent(&mut self, credit: &mut FlowCredit, cost: u32) {
        let Some(window) = credit.window.and_then(|at| self.windows.get_mut(at)) else { return };
        window.in_flight += cost;
        credit.cost += cost;
        credit.packets += 1;
    }

    /// Counts a packet that is sent in place of one that was lost. It needs no room: as much is in
    /// flight as before.
    pub(super) fn resent(&mut self, credit: &mut FlowCredit, cost: u32) {
        let Some(window) = credit.window.and_then(|at| self.windows.get_mut(at)) else { return };
        let lost = credit.cost.checked_div(credit.packets).unwrap_or(0);
        window.in_flight = window.in_flight - lost + cost;
        credit.cost = credit.cost - lost + cost;
        credit.packets = credit.packets.max(1);
    }

    /// Counts `packets` that are acknowledged.
    #[inline]
    pub(super) fn acknowledged(
        &mut self,
        credit: &mut FlowCredit,
        packets: u32,
        active: &mut VecDeque<SlotId>,
    ) {
        let Some(window) = credit.window.and_then(|at| self.windows.get_mut(at)) else { return };
        let gone = packets.min(credit.packets);
        let mean = credit.cost.checked_div(credit.packets).unwrap_or(0);
        let cost = if gone == credit.packets { credit.cost } else { mean * gone };
        (credit.packets, credit.cost) = (credit.packets - gone, credit.cost - cost);
        window.in_flight -= cost;
        self.wake(credit, active);
    }

    /// Counts everything of a queue pair as not in flight any more.
    pub(super) fn clear(&mut self, credit: &mut FlowCredit, active: &mut VecDeque<SlotId>) {
        self.acknowledged(credit, u32::MAX, active);
    }

    /// Removes a queue pair.
    pub(super) fn leave(&mut self, credit: &mut FlowCredit, active: &mut VecDeque<SlotId>) {
        // Before others are woken: it would be woken itself, and would not wake the next.
        self.stop_waiting(credit);
        self.clear(credit, active);
        let Some(at) = credit.window.take() else { return };
        let Some(window) = self.windows.get_mut(at) else { return };
        window.users -= 1;
        if window.users == 0 {
            self.by_gid.remove(&window.gid.0);
            self.unused.push(at);
        }
    }

    /// Removes a queue pair from those that wait.
    fn stop_waiting(&mut self, credit: &mut FlowCredit) {
        let Some(window) = credit.window.and_then(|at| self.windows.get_mut(at)) else { return };
        let waits = credit.ticket.checked_sub(window.first).and_then(|at| usize::try_from(at).ok());
        if let Some(slot) = waits.and_then(|at| window.waiting.get_mut(at)) {
            *slot = None;
        }
        credit.ticket = 0;
    }

    /// Makes the next queue pair that waits active, if there is room for any of them. When that one
    /// has sent or has left, the next is woken by another call.
    #[inline]
    pub(super) fn wake(&mut self, credit: &FlowCredit, active: &mut VecDeque<SlotId>) {
        let window = credit.window.and_then(|at| self.windows.get_mut(at));
        let (Some(limit), Some(window)) = (self.limit, window) else { return };
        if window.in_flight > 0 && window.in_flight.saturating_add(window.needed) > limit {
            return;
        }
        while let Some(next) = window.waiting.pop_front() {
            window.first += 1;
            if let Some(next) = next {
                return active.push_back(next);
            }
        }
    }

    /// Returns the window of a queue pair, which changes with its peer.
    #[inline]
    fn window_of(
        &mut self,
        credit: &mut FlowCredit,
        to: Gid,
        active: &mut VecDeque<SlotId>,
    ) -> usize {
        match credit.window {
            Some(at) if self.windows.get(at).is_some_and(|window| window.gid == to) => at,
            _ => self.enter(credit, to, active),
        }
    }

    #[cold]
    fn enter(&mut self, credit: &mut FlowCredit, to: Gid, active: &mut VecDeque<SlotId>) -> usize {
        self.leave(credit, active);
        let at = match self.by_gid.get(&to.0) {
            Some(&at) => at,
            None => self.add(to),
        };
        if let Some(window) = self.windows.get_mut(at) {
            window.users += 1;
        }
        credit.window = Some(at);
        at
    }

    fn add(&mut self, gid: Gid) -> usize {
        let (users, in_flight, waiting) = (0, 0, VecDeque::new());
        let at = match self.unused.pop() {
            Some(at) => {
                if let Some(window) = self.windows.get_mut(at) {
                    window.gid = gid;
                }
                at
            }
            None => {
                self.windows.push(PeerWindow {
                    gid,
                    users,
                    in_flight,
                    waiting,
                    first: 1,
                    needed: 0,
                });
                self.windows.len() - 1
            }
        };
        self.by_gid.insert(gid.0, at);
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u32 = 10_000;

    fn gid(last: u8) -> Gid {
        std::net::Ipv4Addr::new(192, 0, 2, last).into()
    }

    /// Queue pairs that send to one peer until all are blocked.
    fn fill(peers: &mut PeerWindows, credits: &mut [FlowCredit], to: Gid) -> usize {
        let (mut sent, mut active) = (0, VecDeque::new());
        loop {
            let before = sent;
            for (slot, credit) in (0..).zip(credits.iter_mut()) {
                if peers.admits(credit, to, 1000, SlotId(slot), &mut active) {
                    peers.sent(credit, 1000);
                    sent += 1;
                }
            }
            if sent == before {
                return sent;
            }
        }
    }

    #[test]
    fn queue_pairs_share_the_limit_and_continue_in_order() {
        let (mut peers, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        let mut credits = [FlowCredit::default(); 4];
        assert_eq!(fill(&mut peers, &mut credits, gid(1)), 10);
        assert!(peers.is_filled_by(&credits[0], 1000));
        for round in 0..100_u32 {
            let at = round as usize % 4;
            let packets = credits[at].packets;
            peers.acknowledged(&mut credits[at], 1, &mut active);
            assert_eq!(credits[at].packets, packets.saturating_sub(1));
            if packets == 0 {
                continue;
            }
            let next = active.pop_front().expect("a queue pair waits");
            let credit = &mut credits[next.0 as usize];
            assert!(peers.admits(credit, gid(1), 1000, next, &mut active));
            peers.sent(credit, 1000);
            assert!(!peers.admits(credit, gid(1), 1000, next, &mut active), "it waits again");
            assert!(!peers.admits(credit, gid(1), 1000, next, &mut active), "and once");
            assert_eq!(peers.windows[0].waiting.len(), 4);
            assert_eq!(peers.windows[0].in_flight, LIMIT);
        }
    }

    #[test]
    fn lone_sender_is_not_limited_and_other_peers_are_independent() {
        let (mut peers, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        let mut alone = FlowCredit::default();
        for _ in 0..50 {
            assert!(peers.admits(&mut alone, gid(1), 1000, SlotId(0), &mut active));
            peers.sent(&mut alone, 1000);
        }
        let mut other = FlowCredit::default();
        assert!(!peers.admits(&mut other, gid(1), 1000, SlotId(1), &mut active));
        assert!(peers.admits(&mut other, gid(2), 1000, SlotId(1), &mut active));
        assert_eq!(peers.windows[0].waiting, [None], "it does not wait there any more");
        assert_eq!((peers.windows[0].users, peers.windows[1].users), (1, 1));
    }

    #[test]
    fn lone_sender_returns_to_the_limit_once_another_queue_pair_waits() {
        let (mut peers, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        let (mut long, mut short) = (FlowCredit::default(), FlowCredit::default());
        for _ in 0..50 {
            assert!(peers.admits(&mut long, gid(1), 1000, SlotId(0), &mut active));
            peers.sent(&mut long, 1000);
        }
        assert!(!peers.admits(&mut short, gid(1), 1000, SlotId(1), &mut active));
        // ACKs come until its bytes in flight are down to the limit. It has more to send
        // throughout.
        for _ in 0..40 {
            assert!(!peers.admits(&mut long, gid(1), 1000, SlotId(0), &mut active));
            assert_eq!(active.pop_front(), None);
            peers.acknowledged(&mut long, 1, &mut active);
        }
        peers.acknowledged(&mut long, 1, &mut active);
        assert_eq!(active.pop_front(), Some(SlotId(1)), "the queue pair that has waited longest");
        assert!(peers.admits(&mut short, gid(1), 1000, SlotId(1), &mut active));
        peers.sent(&mut short, 1000);
        // It times out and waits to retransmit. The other sends no burst meanwhile.
        peers.clear(&mut short, &mut active);
        assert_eq!(active.pop_front(), Some(SlotId(0)));
        assert!(peers.admits(&mut long, gid(1), 1000, SlotId(0), &mut active));
        peers.sent(&mut long, 1000);
        assert!(!peers.admits(&mut short, gid(1), 1000, SlotId(1), &mut active));
        assert!(!peers.admits(&mut long, gid(1), 1000, SlotId(0), &mut active));
    }

    #[test]
    fn stalled_means_waiting_with_nothing_in_flight() {
        let (mut peers, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        let (mut small, mut large) = (FlowCredit::default(), FlowCredit::default());
        assert!(peers.admits(&mut large, gid(1), 6000, SlotId(1), &mut active));
        peers.sent(&mut large, 6000);
        assert!(peers.admits(&mut small, gid(1), 4000, SlotId(0), &mut active));
        peers.sent(&mut small, 4000);
        assert!(!peers.admits(&mut large, gid(1), 8000, SlotId(1), &mut active));
        assert!(!peers.is_stalled(&large), "its first packet is in flight");
        peers.acknowledged(&mut large, 1, &mut active);
        assert!(peers.is_stalled(&large) && !peers.is_stalled(&small));
        peers.acknowledged(&mut small, 1, &mut active);
        assert_eq!(active.pop_front(), Some(SlotId(1)));
        assert!(!peers.is_stalled(&large), "it is active");
    }

    #[test]
    fn leaving_queue_pair_wakes_others_and_leaves_no_state() {
        let (mut peers, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        for round in 0..20 {
            let mut credits = [FlowCredit::default(); 3];
            assert_eq!(fill(&mut peers, &mut credits, gid(round)), 10);
            peers.clear(&mut credits[0], &mut active);
            assert_eq!(active.pop_front(), Some(SlotId(1)), "the first that found no room");
            credits.iter_mut().for_each(|credit| peers.leave(credit, &mut active));
            active.clear();
            assert_eq!((peers.windows.len(), peers.by_gid.len()), (1, 0));
            assert_eq!((peers.windows[0].in_flight, peers.windows[0].users), (0, 0));
        }
    }

    #[test]
    fn woken_queue_pair_finds_room_and_none_is_forgotten() {
        let (mut peers, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        let mut credits = [FlowCredit::default(); 4];
        fill(&mut peers, &mut credits[..2], gid(1));
        for (at, slot, cost) in [(2, 2, 1500), (3, 3, 2000)] {
            assert!(!peers.admits(&mut credits[at], gid(1), cost, SlotId(slot), &mut active));
        }
        peers.leave(&mut credits[2], &mut active);
        assert_eq!(active.pop_front(), None);
        // The first two wait as well, for less; but any that is woken must find room.
        peers.acknowledged(&mut credits[0], 1, &mut active);
        assert_eq!(active.pop_front(), None);
        peers.acknowledged(&mut credits[0], 1, &mut active);
        let woken: Vec<_> = (0..3).map(|_| peers.wake(&credits[1], &mut active)).collect();
        assert_eq!((woken.len(), active), (3, [SlotId(0), SlotId(1), SlotId(3)].into()));
    }

    #[test]
    fn waiting_queue_pair_that_leaves_wakes_the_next() {
        let (mut peers, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        let mut credits = [FlowCredit::default(); 3];
        for (at, cost) in [(0, 1000), (1, 6000)] {
            assert!(peers.admits(&mut credits[at], gid(1), cost, SlotId(1), &mut active));
            peers.sent(&mut credits[at], cost);
        }
        // The first that waits has the only packet in flight once another is acknowledged.
        for (at, slot) in [(1, 1), (2, 2)] {
            assert!(!peers.admits(&mut credits[at], gid(1), 6000, SlotId(slot), &mut active));
        }
        peers.acknowledged(&mut credits[0], 1, &mut active);
        assert_eq!(active.pop_front(), None);
        peers.leave(&mut credits[1], &mut active);
        assert_eq!(active, [SlotId(2)]);
    }

    #[test]
    fn retransmission_replaces_the_lost_packet() {
        let (mut peers, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        let mut credits = [FlowCredit::default(); 2];
        fill(&mut peers, &mut credits, gid(1));
        let before = credits[0];
        for _ in 0..100 {
            peers.resent(&mut credits[0], 1000);
        }
        assert_eq!((credits[0].packets, credits[0].cost), (before.packets, before.cost));
        assert_eq!(peers.windows[0].in_flight, LIMIT);
        peers.clear(&mut credits[0], &mut active);
        peers.resent(&mut credits[0], 700);
        assert_eq!((credits[0].packets, credits[0].cost), (1, 700));
        assert_eq!(peers.windows[0].in_flight, credits[1].cost + 700);
    }

    #[test]
    fn without_a_limit_no_state_is_kept() {
        let (mut peers, mut credit) = (PeerWindows::new(None), FlowCredit::default());
        assert!(peers.admits(&mut credit, gid(1), u32::MAX, SlotId(0), &mut VecDeque::new()));
        peers.sent(&mut credit, u32::MAX);
        peers.sent(&mut credit, u32::MAX);
        assert!(!peers.is_filled_by(&credit, u32::MAX));
        assert!(peers.windows.is_empty());
    }
}
