//! Set-up of a run: connections, their work, the network's faults.

use std::time::Duration;

use roce::link::fault::{Action, Rule};
use roce::time::Instant;
use roce::wire::Packet;

use super::two_hosts::pair::PairAttr;
use super::two_hosts::schedule::Schedule;
use super::wire::Hop;
use super::world::{LOCAL, RECEIVES};

/// Two hosts, A and B, a switch between them, connections and their work, and the faults of the
/// network.
#[derive(Clone, Debug)]
pub struct Setup {
    pub ipv6: bool,
    pub connections: Vec<Connection>,
    pub rules: Vec<FaultRule>,
    /// Number of packets out of a thousand that a fault befalls on each hop.
    pub faults_per_mille: usize,
    /// Longest time that a device may let what it has to send wait: ACKs are merged, and READs see
    /// what was written meanwhile.
    pub send_interval: Duration,
    /// Decides what is left to chance.
    pub seed: u64,
    /// Whether acknowledgements advertise credits.
    pub advertise_credits: bool,
    /// Whether programs write to their memory when a receive completes.
    pub programs_write: bool,
}

impl Setup {
    /// A network without faults.
    pub fn new(connections: Vec<Connection>) -> Self {
        Self {
            ipv6: false,
            connections,
            rules: Vec::new(),
            faults_per_mille: 0,
            send_interval: Duration::ZERO,
            seed: 1,
            advertise_credits: false,
            programs_write: false,
        }
    }
}

/// One reliable connection: side 0 is a queue pair of A, side 1 one of B.
#[derive(Clone, Debug)]
pub struct Connection {
    pub attr: PairAttr,
    /// Protection domain of the hosts that it belongs to.
    pub domain: usize,
    /// Whether the connection manager makes it, before any request is posted.
    pub is_managed: bool,
    /// Whether its queue pairs take receives from a shared receive queue of their own.
    pub shares_receives: bool,
    /// Work that each side posts.
    pub work: [Vec<Work>; 2],
    /// Times at which each side posts the receives for the peer's messages, one time for each; the
    /// last time serves for the rest.
    pub receives: [Vec<Duration>; 2],
    /// The size of those receives.
    pub receive_size: u32,
    /// Place of the receives in the memory of a host.
    pub receive_at: u64,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            attr: PairAttr::default(),
            domain: 0,
            is_managed: false,
            shares_receives: false,
            work: [Vec::new(), Vec::new()],
            receives: [Vec::new(), Vec::new()],
            receive_size: 1 << 15,
            receive_at: RECEIVES,
        }
    }
}

impl Connection {
    /// Times at which a side posts its work, and the receives for the peer's.
    pub fn schedule(&self, side: usize, start: Instant) -> Schedule {
        let taking = self.work[1 - side].iter().filter(|post| post.op.takes_receive()).count();
        let sends = self.work[side].iter().map(|post| post.at);
        let receives = &self.receives[side];
        Schedule::new(start, sends, receives, taking.max(receives.len()))
    }
}

/// A work request, and when it is posted.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub at: Duration,
    pub op: Op,
    /// The key that it names.
    pub key: Key,
    /// Offset from the beginning of the key's range.
    pub offset: u64,
    pub len: u32,
    /// Place of its own data in the memory of its host.
    pub local: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    Send,
    SendImm,
    /// Invalidates the key that it names: a window.
    SendInvalidate,
    Write,
    WriteImm,
    Read,
    CompareSwap {
        compare: u64,
        swap: u64,
    },
    FetchAdd(u64),
    AtomicWrite,
}

impl Op {
    pub fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::SendInvalidate | Self::WriteImm)
    }
}

/// The keys of a host that its peer knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// All rights, [`ALL`](super::world::ALL).
    All,
    /// A key for the memory of `All`, and its peer may only read it.
    ReadOnly,
    /// All rights, a page behind it.
    Page,
    /// A page behind that one, in a protection domain of its own.
    OtherDomain,
    /// One of the windows of the connection, a page each, that can be invalidated.
    Window(usize),
    /// A window of the connection before this one.
    OthersWindow,
    /// A key that the host does not have.
    Unknown,
}

/// A fault by rule: on a hop, to the n-th packet of a host that the rule matches.
#[derive(Clone, Copy)]
pub struct FaultRule {
    /// 0 for what A sends.
    pub sender: usize,
    pub hop: Hop,
    pub which: fn(&Packet<'_>) -> bool,
    /// Number of the packet, from 1; 0 for all of them.
    pub nth: usize,
    pub action: Action,
}

impl FaultRule {
    pub fn of_the_injector(&self) -> Rule {
        let rule = Rule::new(self.action).packets("which", self.which);
        if self.nth == 0 { rule.every_time() } else { rule.nth(self.nth as u32) }
    }
}

impl std::fmt::Debug for FaultRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sender, hop, nth, action, .. } = self;
        write!(f, "{action:?} number {nth} of {sender} at {hop:?}")
    }
}

/// Work at these times, one after the other.
pub fn at_once(work: &[(Op, Key, u64, u32)]) -> Vec<Work> {
    spaced(Duration::ZERO, work)
}

/// Work with a pause between requests, so that each is over before the next is posted.
pub fn spaced(pause: Duration, work: &[(Op, Key, u64, u32)]) -> Vec<Work> {
    let each = work.iter().zip(0..).map(|(&(op, key, offset, len), number)| Work {
        at: pause * number,
        op,
        key,
        offset,
        len,
        // Every message from a place of its own, so that packets differ.
        local: LOCAL + u64::from(number) * 1032 % (1 << 14),
    });
    each.collect()
}

/// A connection whose side 0 posts these.
pub fn posting(work: Vec<Work>) -> Connection {
    Connection { work: [work, Vec::new()], ..Connection::default() }
}
