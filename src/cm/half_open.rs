//! Half-open requests: those that their listener's program has not taken, and those that it
//! accepted and whose peer has not shown that it heard of that, by an RTU or by data.
//!
//! A REQ costs its sender one datagram. What it costs here is bounded, in total and for each
//! address; beyond, the oldest of the address that has the most is forgotten, so that a flood
//! pushes out its own requests before those of others.

use std::collections::{BTreeMap, BTreeSet};

use super::Manager;
use super::counters::Counter;
use super::event::{EventKind, EventParam};
use super::state::State;
use super::table::{CmId, ConnectionId};
use crate::verbs::Errno;
use crate::wire::Gid;

/// The address of a peer.
type Source = [u8; 16];

/// Entries of peers, in the order in which they came.
#[derive(Debug)]
pub(super) struct SourceQueue<T> {
    entries: BTreeMap<u64, (Source, T)>,
    by_source: BTreeMap<Source, BTreeSet<u64>>,
    by_count: BTreeSet<(usize, Source)>,
    /// Number of entries that there ever were.
    inserted: u64,
}

impl<T> Default for SourceQueue<T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            by_source: BTreeMap::new(),
            by_count: BTreeSet::new(),
            inserted: 0,
        }
    }
}

impl<T: Copy> SourceQueue<T> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of entries of an address.
    fn len_of(&self, source: Gid) -> usize {
        self.by_source.get(&source.0).map_or(0, BTreeSet::len)
    }

    /// Adds an entry; the number to remove it by.
    pub(super) fn insert(&mut self, source: Gid, value: T) -> u64 {
        self.inserted += 1;
        self.entries.insert(self.inserted, (source.0, value));
        let of_source = self.by_source.entry(source.0).or_default();
        self.by_count.remove(&(of_source.len(), source.0));
        of_source.insert(self.inserted);
        self.by_count.insert((of_source.len(), source.0));
        self.inserted
    }

    pub(super) fn remove(&mut self, number: u64) {
        let Some((source, _)) = self.entries.remove(&number) else { return };
        let count = self.by_source.get(&source).map_or(0, BTreeSet::len);
        self.by_count.remove(&(count, source));
        let Some(of_source) = self.by_source.get_mut(&source) else { return };
        of_source.remove(&number);
        if of_source.is_empty() {
            self.by_source.remove(&source);
        } else {
            self.by_count.insert((count - 1, source));
        }
    }

    /// Returns the oldest entry of an address.
    fn oldest_of(&self, source: Gid) -> Option<T> {
        let number = self.by_source.get(&source.0)?.first()?;
        self.entries.get(number).map(|(_, value)| *value)
    }

    /// Returns the entry that gives way to a new one of `source`: the oldest of the address that
    /// has the most, which is `source` itself if no other has more.
    pub(super) fn victim(&self, source: Gid) -> Option<T> {
        let (most, heaviest) = *self.by_count.last()?;
        let is_own = self.len_of(source) >= most;
        self.oldest_of(if is_own { source } else { Gid(heaviest) })
    }
}

impl Manager {
    /// Makes room for one more half-open request of an address.
    fn limit_half_open(&mut self, source: Gid) {
        let limits = self.config.limits;
        loop {
            let victim = if self.half_open.len_of(source) >= limits.half_open_per_source.max(1) {
                self.half_open.oldest_of(source)
            } else if self.half_open.len() >= limits.half_open.max(1) {
                self.half_open.victim(source)
            } else {
                return;
            };
            let Some(victim) = victim else { return };
            self.counters.add(Counter::HalfOpenEvicted);
            self.forget_half_open(victim);
        }
    }

    /// Counts a connection among the half-open ones.
    pub(super) fn enter_half_open(&mut self, name: ConnectionId) {
        let Some(connection) = self.connections.get(name) else { return };
        if connection.half_open.is_some() {
            return;
        }
        let source = connection.ah.dgid;
        self.limit_half_open(source);
        let Some(connection) = self.connections.get_mut(name) else { return };
        connection.half_open = Some(self.half_open.insert(source, name));
    }

    /// The program has the request, or the peer has answered, or all is over.
    pub(super) fn leave_half_open(&mut self, name: ConnectionId) {
        let connection = self.connections.get_mut(name);
        if let Some(number) = connection.and_then(|connection| connection.half_open.take()) {
            self.half_open.remove(number);
        }
    }

    /// Ends a half-open request without a message: its peer may not exist. The program hears of one
    /// that it accepted.
    fn forget_half_open(&mut self, name: ConnectionId) {
        self.leave_half_open(name);
        let Some(connection) = self.connections.get(name) else { return };
        let Some(id) = connection.owner else { return self.free(name) };
        if self.ids.get(id).is_some_and(|entry| entry.queued_at.is_some()) {
            return self.forget_queued(id);
        }
        if matches!(connection.state, State::RepSent | State::MraRepRcvd) {
            self.free(name);
            let status = -Errno::ETIMEDOUT.0;
            self.deliver_connected(id, EventKind::Unreachable, status, EventParam::None);
        }
    }

    /// Forgets a request that the program has not taken, with its id.
    fn forget_queued(&mut self, id: CmId) {
        self.leave_backlog(id);
        let Some(entry) = self.ids.get(id) else { return };
        let (channel, connection) = (entry.channel, entry.connection);
        if let Some(channel) = self.channels.get_mut(channel)
            && let Some(at) = channel.events.iter().position(|event| event.id == id)
        {
            channel.events.remove(at);
        }
        if let Some(connection) = connection {
            self.free(connection);
        }
        self.ids.remove(id);
    }

    /// Makes room for one more request of `source` in a listener's backlog.
    pub(super) fn limit_backlog(&mut self, listener: CmId, source: Gid) -> Result<(), Counter> {
        loop {
            let backlog = &self.ids.get(listener).ok_or(Counter::NoListener)?.backlog;
            if backlog.queue.len() < usize::try_from(backlog.limit).unwrap_or(usize::MAX) {
                return Ok(());
            }
            let victim = backlog.queue.victim(source).ok_or(Counter::NoResources)?;
            self.counters.add(Counter::BacklogFull);
            self.forget_queued(victim);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(number: u8) -> Gid {
        Gid([number; 16])
    }

    #[test]
    fn oldest_of_the_address_that_has_the_most_gives_way() {
        let mut queue = SourceQueue::default();
        assert_eq!(queue.victim(gid(1)), None);
        let first = queue.insert(gid(1), 'a');
        queue.insert(gid(2), 'b');
        queue.insert(gid(2), 'c');
        assert_eq!(queue.victim(gid(3)), Some('b'), "the second address has two");
        assert_eq!(queue.victim(gid(1)), Some('b'));
        queue.insert(gid(1), 'd');
        assert_eq!(queue.victim(gid(1)), Some('a'), "it has as many as any other");
        assert_eq!(queue.victim(gid(2)), Some('b'));
        queue.remove(first);
        queue.remove(first);
        assert_eq!((queue.len(), queue.len_of(gid(1))), (3, 1));
        assert_eq!(queue.victim(gid(1)), Some('b'));
    }

    #[test]
    fn removed_entries_leave_nothing() {
        let mut queue = SourceQueue::default();
        let numbers: Vec<_> = (0..100).map(|n| queue.insert(gid(n % 7), n)).collect();
        numbers.into_iter().for_each(|number| queue.remove(number));
        assert!(
            queue.entries.is_empty() && queue.by_source.is_empty() && queue.by_count.is_empty()
        );
    }
}
