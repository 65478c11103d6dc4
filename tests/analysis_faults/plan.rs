//! Parts of a scenario: connections, their work, and the faults of the network.

use std::time::Duration;

use roce::link::fault::Action;
use roce::time::Instant;
use roce::verbs::QpType;
use roce::wire::Operation;

use super::two_hosts::pair::PairAttr;
use super::two_hosts::schedule::Schedule;
use super::wire::Hop;

/// Two hosts, A and B, a switch between them, connections, work, and faults by rule.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: String,
    pub ipv6: bool,
    pub connections: Vec<Connection>,
    pub faults: Vec<FaultRule>,
    /// Time from which this hop loses all packets.
    pub cut: Option<(Duration, Hop)>,
    /// Nanoseconds by which the clocks of the capture points at A, at the switch and at B are
    /// ahead.
    pub clocks: [i64; 3],
}

/// One connection: side 0 is a queue pair of A, side 1 one of B.
#[derive(Clone, Debug)]
pub struct Connection {
    pub kind: QpType,
    pub attr: PairAttr,
    /// Work that each side posts.
    pub work: [Vec<Post>; 2],
    /// Times at which each side posts the receives for the peer's messages, one time for each; the
    /// last time serves for the rest.
    pub receives: [Vec<Duration>; 2],
}

impl Connection {
    /// Times at which a side posts its work, and a receive for each message that takes one.
    pub fn schedule(&self, side: usize, start: Instant) -> Schedule {
        let taking = self.work[1 - side].iter().filter(|post| post.op.takes_receive()).count();
        let sends = self.work[side].iter().map(|post| post.at);
        Schedule::new(start, sends, &self.receives[side], taking)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Post {
    pub at: Duration,
    pub op: Op,
    pub len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    /// A WRITE with an R_Key that the peer does not have.
    WriteWrongKey,
}

impl Op {
    pub fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }
}

/// Class of the packets that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Requests.
    Request,
    /// ACKs, NAKs, RNR NAKs.
    Acknowledge,
    /// READ responses and ATOMIC acknowledgements.
    Response,
}

impl Class {
    pub fn of(operation: Operation) -> Self {
        match operation {
            Operation::Acknowledge | Operation::SelectiveAcknowledge | Operation::Cnp => {
                Self::Acknowledge
            }
            Operation::ReadResponse | Operation::AtomicAcknowledge => Self::Response,
            _ => Self::Request,
        }
    }
}

/// A fault by rule: to a connection's packet of this class with this PSN, when it passes this hop
/// for the n-th time.
#[derive(Clone, Copy, Debug)]
pub struct FaultRule {
    pub connection: usize,
    /// Requester of the packets, requests or responses to them: 0 for A.
    pub requester: usize,
    pub class: Class,
    /// PSN relative to the first one of the requester.
    pub offset: u32,
    /// Number of the passage that the rule matches, from 1.
    pub nth: u32,
    pub hop: Hop,
    pub action: Action,
}
