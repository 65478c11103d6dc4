//! Exchanges of the connection manager that were seen.

use core::hash::Hash;
use std::collections::{HashMap, VecDeque};

use super::limits::EXCHANGES_MAX;
use crate::wire::{Gid, Qpn, cm::ServiceId};

/// A message that was seen, to tell whether another one is the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) frame: u64,
    pub(super) digest: u64,
}

/// One attempt to connect.
#[derive(Clone, Debug)]
pub(super) struct Exchange {
    pub(super) active: Gid,
    pub(super) passive: Gid,
    pub(super) active_id: u32,
    pub(super) passive_id: Option<u32>,
    pub(super) transaction: u64,
    pub(super) active_qp: Qpn,
    /// The queue pair of the REP, and the other field that may hold it.
    pub(super) passive_qps: Option<[Qpn; 2]>,
    pub(super) req: Seen,
    pub(super) rep: Option<Seen>,
    /// The frame of the REJ by which the passive side refused the REQ.
    pub(super) refused: Option<u64>,
}

/// One request to resolve a service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolution {
    pub(super) passive: Gid,
    pub(super) transaction: u64,
    pub(super) service: ServiceId,
    pub(super) req: Seen,
}

/// The DREQs of one side of a connection: transactions with what was seen.
pub(super) type Disconnects = Vec<(u64, Seen)>;

/// A table that forgets what was added first.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    map: HashMap<K, V>,
    order: VecDeque<K>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { map: HashMap::new(), order: VecDeque::new() }
    }
}

impl<K: Copy + Eq + Hash, V> Table<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.map.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.map.insert(key, value).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > EXCHANGES_MAX
            && let Some(old) = self.order.pop_front()
        {
            self.map.remove(&old);
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.map.values()
    }
}
