//! How much is under way to each peer, over all queue pairs together.
//!
//! A queue pair keeps to its own window. But the queue pairs of one peer share the buffer that its packets wait in, and
//! where that is small a few windows overrun it: packets are lost that could have waited here. So there may be a limit
//! to what is unacknowledged on the way to one peer. Whoever finds it reached waits until something is acknowledged, and
//! then all who wait have their turns in order. A queue pair that has all packets in flight to the peer exceeds the limit
//! up to its own window, but only while no other queue pair waits: otherwise it would keep the others waiting for as long
//! as it has something to send, and after a timeout of one queue pair the burst of another would push its
//! retransmission out of a short queue, at every retry.
//!
//! What comes back as acknowledged is reckoned by the packet, each for the mean of what is under way. What is to be sent
//! again counts as arrived or lost, and in either case is not under way any more: a queue pair that waits for its
//! receiver holds up nobody else.

use std::collections::{BTreeMap, VecDeque};

use super::ids::SlotId;
use crate::wire::Gid;

/// What a packet takes of a buffer beyond its payload: headers, and what a kernel needs for itself.
const OVERHEAD: u32 = 512;

/// What a packet with so many bytes of payload takes of a buffer.
pub(super) const fn cost(payload: u32) -> u32 {
    payload + OVERHEAD
}

/// What one queue pair has under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlowCredit {
    /// On which way, if it has sent anything.
    way: Option<usize>,
    cost: u32,
    packets: u32,
    /// Its number among those who have waited.
    ticket: u64,
}

impl FlowCredit {
    /// Whether it may have been woken.
    pub(super) fn is_used(&self) -> bool {
        self.way.is_some()
    }
}

/// The way to one peer.
#[derive(Debug)]
struct Way {
    gid: Gid,
    /// How many queue pairs use it.
    users: usize,
    under_way: u32,
    /// Who waits; of whom has left meanwhile, the place is empty.
    waiting: VecDeque<Option<SlotId>>,
    /// The number of the first who waits.
    first: u64,
    /// The most that any of them needs.
    needed: u32,
}

/// The ways to all peers.
#[derive(Debug)]
pub(super) struct PeerWindows {
    /// What may be under way to one peer, if that is limited.
    limit: Option<u32>,
    ways: Vec<Way>,
    by_gid: BTreeMap<[u8; 16], usize>,
    unused: Vec<usize>,
}

impl PeerWindows {
    pub(super) fn new(limit: Option<u32>) -> Self {
        Self { limit, ways: Vec::new(), by_gid: BTreeMap::new(), unused: Vec::new() }
    }

    /// Whether a packet may go out now. If not, its queue pair has its turn when it may.
    #[inline]
    pub(super) fn admits(
        &mut self,
        share: &mut FlowCredit,
        to: Gid,
        cost: u32,
        place: SlotId,
        active: &mut VecDeque<SlotId>,
    ) -> bool {
        let Some(limit) = self.limit else { return true };
        let at = self.way_of(share, to, active);
        let Some(way) = self.ways.get_mut(at) else { return true };
        let is_alone = way.under_way == share.cost && way.waiting.is_empty();
        // With nothing in flight no ACK would come to wake anyone.
        if way.under_way == 0 || is_alone || way.under_way.saturating_add(cost) <= limit {
            return true;
        }
        way.needed = if way.waiting.is_empty() { cost } else { way.needed.max(cost) };
        // Tickets begin with 1.
        if share.ticket < way.first {
            way.waiting.push_back(Some(place));
            share.ticket = way.first + way.waiting.len() as u64 - 1;
        }
        false
    }

    /// Whether a packet is the last before somebody has to wait: it must be acknowledged without being waited for.
    #[inline]
    pub(super) fn is_filled_by(&self, share: &FlowCredit, cost: u32) -> bool {
        let way = share.way.and_then(|at| self.ways.get(at));
        let (Some(limit), Some(way)) = (self.limit, way) else { return false };
        way.under_way.saturating_add(2 * cost) > limit
    }

    /// Whether a queue pair waits for room and has nothing in flight: no ACK can come that it would wait for.
    pub(super) fn is_stalled(&self, share: &FlowCredit) -> bool {
        let way = share.way.and_then(|at| self.ways.get(at));
        way.is_some_and(|way| share.packets == 0 && share.ticket >= way.first)
    }

    /// A packet goes out.
    #[inline]
    pub(super) fn sent(&mut self, share: &mut FlowCredit, cost: u32) {
        let Some(way) = share.way.and_then(|at| self.ways.get_mut(at)) else { return };
        way.under_way += cost;
        share.cost += cost;
        share.packets += 1;
    }

    /// So many packets are acknowledged.
    #[inline]
    pub(super) fn settled(
        &mut self,
        share: &mut FlowCredit,
        packets: u32,
        active: &mut VecDeque<SlotId>,
    ) {
        let Some(way) = share.way.and_then(|at| self.ways.get_mut(at)) else { return };
        let gone = packets.min(share.packets);
        let mean = share.cost.checked_div(share.packets).unwrap_or(0);
        let cost = if gone == share.packets { share.cost } else { mean * gone };
        (share.packets, share.cost) = (share.packets - gone, share.cost - cost);
        way.under_way -= cost;
        self.wake(share, active);
    }

    /// Nothing of a queue pair is under way any more.
    pub(super) fn cleared(&mut self, share: &mut FlowCredit, active: &mut VecDeque<SlotId>) {
        self.settled(share, u32::MAX, active);
    }

    /// A queue pair goes.
    pub(super) fn leave(&mut self, share: &mut FlowCredit, active: &mut VecDeque<SlotId>) {
        self.cleared(share, active);
        let Some(at) = share.way.take() else { return };
        let Some(way) = self.ways.get_mut(at) else { return };
        let waits = share.ticket.checked_sub(way.first).and_then(|at| usize::try_from(at).ok());
        if let Some(place) = waits.and_then(|at| way.waiting.get_mut(at)) {
            *place = None;
        }
        share.ticket = 0;
        way.users -= 1;
        if way.users == 0 {
            self.by_gid.remove(&way.gid.0);
            self.unused.push(at);
        }
    }

    /// Lets the next that waits have its turn, if there is room for any of them. It comes by again after that turn, or
    /// when it leaves, for the next.
    #[inline]
    pub(super) fn wake(&mut self, share: &FlowCredit, active: &mut VecDeque<SlotId>) {
        let way = share.way.and_then(|at| self.ways.get_mut(at));
        let (Some(limit), Some(way)) = (self.limit, way) else { return };
        if way.under_way > 0 && way.under_way.saturating_add(way.needed) > limit {
            return;
        }
        while let Some(next) = way.waiting.pop_front() {
            way.first += 1;
            if let Some(next) = next {
                return active.push_back(next);
            }
        }
    }

    /// The way that a queue pair is on, which is another if its peer is.
    #[inline]
    fn way_of(&mut self, share: &mut FlowCredit, to: Gid, active: &mut VecDeque<SlotId>) -> usize {
        match share.way {
            Some(at) if self.ways.get(at).is_some_and(|way| way.gid == to) => at,
            _ => self.enter(share, to, active),
        }
    }

    #[cold]
    fn enter(&mut self, share: &mut FlowCredit, to: Gid, active: &mut VecDeque<SlotId>) -> usize {
        self.leave(share, active);
        let at = match self.by_gid.get(&to.0) {
            Some(&at) => at,
            None => self.add(to),
        };
        if let Some(way) = self.ways.get_mut(at) {
            way.users += 1;
        }
        share.way = Some(at);
        at
    }

    fn add(&mut self, gid: Gid) -> usize {
        let (users, under_way, waiting) = (0, 0, VecDeque::new());
        let at = match self.unused.pop() {
            Some(at) => {
                if let Some(way) = self.ways.get_mut(at) {
                    way.gid = gid;
                }
                at
            }
            None => {
                self.ways.push(Way { gid, users, under_way, waiting, first: 1, needed: 0 });
                self.ways.len() - 1
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

    /// Queue pairs that send to one peer for as long as they may.
    fn fill(flows: &mut PeerWindows, shares: &mut [FlowCredit], to: Gid) -> usize {
        let (mut sent, mut active) = (0, VecDeque::new());
        loop {
            let before = sent;
            for (place, share) in (0..).zip(shares.iter_mut()) {
                if flows.admits(share, to, 1000, SlotId(place), &mut active) {
                    flows.sent(share, 1000);
                    sent += 1;
                }
            }
            if sent == before {
                return sent;
            }
        }
    }

    #[test]
    fn together_they_keep_to_the_limit_and_go_on_in_turn() {
        let (mut flows, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        let mut shares = [FlowCredit::default(); 4];
        assert_eq!(fill(&mut flows, &mut shares, gid(1)), 10);
        assert!(flows.is_filled_by(&shares[0], 1000));
        for round in 0..100_u32 {
            let at = round as usize % 4;
            let packets = shares[at].packets;
            flows.settled(&mut shares[at], 1, &mut active);
            assert_eq!(shares[at].packets, packets.saturating_sub(1));
            if packets == 0 {
                continue;
            }
            let next = active.pop_front().expect("somebody waits");
            let share = &mut shares[next.0 as usize];
            assert!(flows.admits(share, gid(1), 1000, next, &mut active));
            flows.sent(share, 1000);
            assert!(!flows.admits(share, gid(1), 1000, next, &mut active), "it waits again");
            assert!(!flows.admits(share, gid(1), 1000, next, &mut active), "and once");
            assert_eq!(flows.ways[0].waiting.len(), 4);
            assert_eq!(flows.ways[0].under_way, LIMIT);
        }
    }

    #[test]
    fn who_is_alone_is_not_stopped_and_other_ways_are_free() {
        let (mut flows, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        let mut alone = FlowCredit::default();
        for _ in 0..50 {
            assert!(flows.admits(&mut alone, gid(1), 1000, SlotId(0), &mut active));
            flows.sent(&mut alone, 1000);
        }
        let mut other = FlowCredit::default();
        assert!(!flows.admits(&mut other, gid(1), 1000, SlotId(1), &mut active));
        assert!(flows.admits(&mut other, gid(2), 1000, SlotId(1), &mut active));
        assert_eq!(flows.ways[0].waiting, [None], "it waits there no more");
        assert_eq!((flows.ways[0].users, flows.ways[1].users), (1, 1));
    }

    #[test]
    fn lone_sender_returns_to_the_limit_once_another_queue_pair_waits() {
        let (mut flows, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        let (mut long, mut short) = (FlowCredit::default(), FlowCredit::default());
        for _ in 0..50 {
            assert!(flows.admits(&mut long, gid(1), 1000, SlotId(0), &mut active));
            flows.sent(&mut long, 1000);
        }
        assert!(!flows.admits(&mut short, gid(1), 1000, SlotId(1), &mut active));
        // All it has in flight is acknowledged but for the limit; it has more to send all the while.
        for _ in 0..40 {
            assert!(!flows.admits(&mut long, gid(1), 1000, SlotId(0), &mut active));
            assert_eq!(active.pop_front(), None);
            flows.settled(&mut long, 1, &mut active);
        }
        flows.settled(&mut long, 1, &mut active);
        assert_eq!(active.pop_front(), Some(SlotId(1)), "the one that waits longest");
        assert!(flows.admits(&mut short, gid(1), 1000, SlotId(1), &mut active));
        flows.sent(&mut short, 1000);
        // Its timeout: it waits for its turn to retransmit, and the other sends no burst meanwhile.
        flows.cleared(&mut short, &mut active);
        assert_eq!(active.pop_front(), Some(SlotId(0)));
        assert!(flows.admits(&mut long, gid(1), 1000, SlotId(0), &mut active));
        flows.sent(&mut long, 1000);
        assert!(!flows.admits(&mut short, gid(1), 1000, SlotId(1), &mut active));
        assert!(!flows.admits(&mut long, gid(1), 1000, SlotId(0), &mut active));
    }

    #[test]
    fn stalled_is_who_waits_with_nothing_in_flight() {
        let (mut flows, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        let (mut small, mut large) = (FlowCredit::default(), FlowCredit::default());
        assert!(flows.admits(&mut large, gid(1), 6000, SlotId(1), &mut active));
        flows.sent(&mut large, 6000);
        assert!(flows.admits(&mut small, gid(1), 4000, SlotId(0), &mut active));
        flows.sent(&mut small, 4000);
        assert!(!flows.admits(&mut large, gid(1), 8000, SlotId(1), &mut active));
        assert!(!flows.is_stalled(&large), "its first packet is in flight");
        flows.settled(&mut large, 1, &mut active);
        assert!(flows.is_stalled(&large) && !flows.is_stalled(&small));
        flows.settled(&mut small, 1, &mut active);
        assert_eq!(active.pop_front(), Some(SlotId(1)));
        assert!(!flows.is_stalled(&large), "it has its turn");
    }

    #[test]
    fn who_leaves_lets_others_go_on_and_leaves_nothing_behind() {
        let (mut flows, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        for round in 0..20 {
            let mut shares = [FlowCredit::default(); 3];
            assert_eq!(fill(&mut flows, &mut shares, gid(round)), 10);
            flows.cleared(&mut shares[0], &mut active);
            assert_eq!(active.pop_front(), Some(SlotId(1)), "the first that found no room");
            shares.iter_mut().for_each(|share| flows.leave(share, &mut active));
            active.clear();
            assert_eq!((flows.ways.len(), flows.by_gid.len()), (1, 0));
            assert_eq!((flows.ways[0].under_way, flows.ways[0].users), (0, 0));
        }
    }

    #[test]
    fn nobody_is_woken_in_vain_nor_forgotten_for_one_who_left() {
        let (mut flows, mut active) = (PeerWindows::new(Some(LIMIT)), VecDeque::new());
        let mut shares = [FlowCredit::default(); 4];
        fill(&mut flows, &mut shares[..2], gid(1));
        for (at, place, cost) in [(2, 2, 1500), (3, 3, 2000)] {
            assert!(!flows.admits(&mut shares[at], gid(1), cost, SlotId(place), &mut active));
        }
        flows.leave(&mut shares[2], &mut active);
        assert_eq!(active.pop_front(), None);
        // The first two wait as well, for less; but any that is woken must find room.
        flows.settled(&mut shares[0], 1, &mut active);
        assert_eq!(active.pop_front(), None);
        flows.settled(&mut shares[0], 1, &mut active);
        let woken: Vec<_> = (0..3).map(|_| flows.wake(&shares[1], &mut active)).collect();
        assert_eq!((woken.len(), active), (3, [SlotId(0), SlotId(1), SlotId(3)].into()));
    }

    #[test]
    fn without_a_limit_nothing_is_kept() {
        let (mut flows, mut share) = (PeerWindows::new(None), FlowCredit::default());
        assert!(flows.admits(&mut share, gid(1), u32::MAX, SlotId(0), &mut VecDeque::new()));
        flows.sent(&mut share, u32::MAX);
        flows.sent(&mut share, u32::MAX);
        assert!(!flows.is_filled_by(&share, u32::MAX));
        assert!(flows.ways.is_empty());
    }
}
