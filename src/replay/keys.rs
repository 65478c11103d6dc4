//! Keys: which accesses answers granted and refused, and whether they contradict each other.
//!
//! Registrations do not appear on the wire. But a region is one range of addresses with one set of
//! rights, in one protection domain; so what was refused once is not granted later, and what lies
//! between two granted accesses is not refused, unless the program changed something meanwhile. Two
//! queue pairs are known to be in one domain if both were granted an access through one key.

use std::collections::HashMap;

use super::limits::{ACCESSES_MAX, ALL_ACCESSES_MAX, KEYS_MAX};
use super::memory::HostId;
use super::session::Registered;
use crate::verbs::Access;

/// An access to memory of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt {
    pub(super) host: HostId,
    pub(super) rkey: u32,
    /// The first byte, and the one behind the last.
    pub(super) start: u64,
    pub(super) end: u64,
    /// The right that it needs.
    pub(super) right: Access,
    /// The responder.
    pub(super) track: u32,
    /// The frame of the request.
    pub(super) frame: u64,
}

impl Attempt {
    fn contains(&self, other: &Self) -> bool {
        self.right == other.right && self.start <= other.start && other.end <= self.end
    }
}

/// Reason why an access should have been answered otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contradiction {
    pub(super) text: String,
    /// The frame of the request that it contradicts, if it is one.
    pub(super) frame: Option<u64>,
}

#[derive(Debug, Default)]
struct KeyFacts {
    granted: Vec<Attempt>,
    refused: Vec<Attempt>,
}

/// Facts of all keys.
#[derive(Debug, Default)]
pub(super) struct Keys {
    keys: HashMap<(HostId, u32), KeyFacts>,
    /// Responders by the domain that they share, as trees.
    domains: HashMap<u32, u32>,
    registered: HashMap<(HostId, u32), Vec<Registered>>,
    keys_max: usize,
    /// Accesses that are remembered, and how many may be.
    accesses: usize,
    accesses_max: usize,
}

impl Keys {
    /// Room for one of `shards`.
    pub(super) fn new(shards: usize) -> Self {
        let (keys_max, accesses_max) = (KEYS_MAX / shards, ALL_ACCESSES_MAX / shards);
        Self { keys_max, accesses_max, ..Self::default() }
    }

    /// The user says what a host registered.
    pub(super) fn register(&mut self, host: HostId, region: Registered) {
        self.registered.entry((host, region.rkey.get())).or_default().push(region);
    }

    fn domain(&self, track: u32) -> u32 {
        let mut at = track;
        while let Some(&up) = self.domains.get(&at) {
            at = up;
        }
        at
    }

    fn facts(&mut self, host: HostId, rkey: u32) -> Option<&mut KeyFacts> {
        if self.keys.len() >= self.keys_max && !self.keys.contains_key(&(host, rkey)) {
            return None;
        }
        Some(self.keys.entry((host, rkey)).or_default())
    }

    /// Whether the user said what this key is for, and then whether it allows the access.
    fn is_allowed(&self, it: &Attempt) -> Option<bool> {
        let regions = self.registered.get(&(it.host, it.rkey))?;
        Some(regions.iter().any(|region| {
            let end = region.address.saturating_add(region.length);
            region.access.contains(it.right) && region.address <= it.start && it.end <= end
        }))
    }

    /// An access was granted. `quiet_since`: no program of the host showed activity from this frame
    /// on.
    pub(super) fn granted(&mut self, it: Attempt, quiet_since: u64) -> Option<Contradiction> {
        if self.is_allowed(&it) == Some(false) {
            let text = format!("{} is not within what was registered", text(&it));
            return Some(Contradiction { text, frame: None });
        }
        let domain = self.domain(it.track);
        let known = self.keys.get(&(it.host, it.rkey));
        let refused = known.and_then(|known| {
            known.refused.iter().find(|refused| {
                it.contains(refused)
                    && refused.frame > quiet_since
                    && self.domain(refused.track) == domain
            })
        });
        let contradiction = refused.map(|refused| Contradiction {
            text: format!("{} was granted, and {} had been refused", text(&it), text(refused)),
            frame: Some(refused.frame),
        });
        self.remember_grant(it);
        contradiction
    }

    fn remember_grant(&mut self, it: Attempt) {
        let is_room = self.accesses < self.accesses_max;
        let Some(facts) = self.facts(it.host, it.rkey) else { return };
        let same = facts
            .granted
            .iter_mut()
            .find(|known| known.track == it.track && known.right == it.right);
        if let Some(known) = same {
            // A region is one range.
            (known.start, known.end) = (known.start.min(it.start), known.end.max(it.end));
            known.frame = it.frame;
            return;
        }
        let first = facts.granted.first().map(|first| first.track);
        if facts.granted.len() < ACCESSES_MAX && is_room {
            facts.granted.push(it);
            self.accesses += 1;
        }
        if let Some(first) = first {
            let (one, other) = (self.domain(first), self.domain(it.track));
            if one != other && self.domains.len() < self.keys_max {
                self.domains.insert(one, other);
            }
        }
    }

    /// An access was refused. `quiet_since`: no program of the host showed activity from this frame
    /// on.
    pub(super) fn refused(&mut self, it: Attempt, quiet_since: u64) -> Option<Contradiction> {
        if self.is_allowed(&it) == Some(true) {
            let text = format!("{} is within what was registered", text(&it));
            return Some(Contradiction { text, frame: None });
        }
        let domain = self.domain(it.track);
        let known = self.keys.get(&(it.host, it.rkey));
        let granted = known.and_then(|known| {
            known.granted.iter().find(|granted| {
                granted.contains(&it)
                    && granted.frame > quiet_since
                    && self.domain(granted.track) == domain
            })
        });
        let contradiction = granted.map(|granted| Contradiction {
            text: format!("{} was refused, and {} had been granted", text(&it), text(granted)),
            frame: Some(granted.frame),
        });
        let is_room = self.accesses < self.accesses_max;
        if let Some(facts) = self.facts(it.host, it.rkey)
            && facts.refused.len() < ACCESSES_MAX
            && is_room
        {
            facts.refused.push(it);
            self.accesses += 1;
        }
        contradiction
    }

    /// A SEND invalidated a key: what was granted before says nothing.
    pub(super) fn invalidate(&mut self, host: HostId, rkey: u32) {
        if let Some(facts) = self.keys.remove(&(host, rkey)) {
            self.accesses -= facts.granted.len() + facts.refused.len();
        }
    }
}

fn text(it: &Attempt) -> String {
    let what = match it.right {
        Access::REMOTE_READ => "READ",
        Access::REMOTE_WRITE => "WRITE",
        Access::REMOTE_ATOMIC => "ATOMIC",
        _ => "FLUSH",
    };
    let length = it.end.saturating_sub(it.start);
    format!("{what} of {length} bytes at {:#x} with key {:#x}", it.start, it.rkey)
}
