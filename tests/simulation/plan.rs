//! A story: what there is, what is asked for and when, and what goes wrong. Everything about it
//! follows from its seed.

use std::fmt;
use std::time::Duration;

use roce::engine::{Notify, ReceiveMode};
use roce::link::fault::{Action, Faults};
use roce::verbs::{Access, Mtu, MwType, QpType};

use super::model::{Recv, Work};

/// All access rights of a peer.
pub const ALL: Access = Access::LOCAL_WRITE.union(Access::MW_BIND).union(Access::REMOTE);

/// Identifiers of receives have this bit, those of sends have not.
pub const RECV: u64 = 1 << 32;

/// Recovery from loss, treatment of packets that come before others, number of source ports.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    pub selective: bool,
    pub receive: ReceiveMode,
    pub paths: u8,
}

impl Mode {
    /// The default.
    pub const USUAL: Self = Self { selective: false, receive: ReceiveMode::InOrder, paths: 1 };

    /// All others.
    pub fn others() -> impl Iterator<Item = Self> {
        let modes = [ReceiveMode::InOrder, ReceiveMode::Buffer, ReceiveMode::Place];
        let all = modes.into_iter().flat_map(|receive| {
            [(false, 1), (false, 4), (true, 1), (true, 4)].map(|(selective, paths)| Self {
                selective,
                receive,
                paths,
            })
        });
        all.skip(1)
    }
}

#[derive(Debug)]
pub struct Plan {
    pub mode: Mode,
    pub nics: Vec<Nic>,
    pub faults: Faults,
    /// Seed of the network's chances.
    pub chance: u64,
    pub keys: Vec<Key>,
    pub srqs: Vec<Srq>,
    pub links: Vec<Link>,
    pub races: Vec<Race>,
    pub sockets: Vec<Socket>,
    /// Sockets that are members of the one multicast group.
    pub group: Vec<usize>,
    pub ipv6: bool,
}

impl Plan {
    /// Whether the network brings everything, once, in order.
    pub fn is_clean(&self) -> bool {
        let Faults { loss, duplicate, corrupt, queue, .. } = self.faults;
        (loss, duplicate, corrupt, queue) == (0, 0, 0, 0) && self.keeps_order()
    }

    /// Whether no packet overtakes another, and none comes twice.
    pub fn keeps_order(&self) -> bool {
        let Faults { duplicate, reorder, jitter, .. } = self.faults;
        (duplicate, reorder, jitter) == (0, 0, Duration::ZERO)
    }
}

#[derive(Debug)]
pub struct Nic {
    pub seed: u64,
    pub window_packets: u32,
    pub quantum: usize,
    pub credits: bool,
    /// The peer window.
    pub peer_window_bytes: Option<u32>,
    /// Maximum delay of an ACK.
    pub ack_delay: Duration,
    /// Denominator of the share of transmissions that may delay ACKs; 0 is never.
    pub defers: usize,
    /// Number of packets that are sent at a time.
    pub batch: usize,
}

/// A region with its first bytes, or a window.
pub enum Key {
    Region { nic: usize, rights: Access, bytes: Vec<u8> },
    Window { nic: usize, kind: MwType },
}

impl fmt::Debug for Key {
    /// Without the bytes, which are long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region { nic, rights, bytes } => {
                write!(f, "{} bytes of NIC {nic}, {rights}", bytes.len())
            }
            Self::Window { nic, kind } => write!(f, "window of NIC {nic}, {kind}"),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}\n{:?}", self.nics, self.faults)?;
        for (number, key) in self.keys.iter().enumerate() {
            writeln!(f, "key {number}: {key:?}")?;
        }
        for (number, link) in self.links.iter().enumerate() {
            let Link { kind, mtu, story, rules, reads, .. } = link;
            writeln!(f, "link {number}: {kind}, MTU {mtu}, {reads} reads, {story:?} {rules:?}")?;
            for side in [0, 1] {
                writeln!(f, "  end {side}: {:?}", link.ends[side])?;
                link.flows[side].posts.iter().try_for_each(|post| writeln!(f, "    {post:?}"))?;
                link.flows[side].recvs.iter().try_for_each(|recv| writeln!(f, "    {recv:?}"))?;
            }
        }
        for (number, socket) in self.sockets.iter().enumerate() {
            writeln!(f, "socket {number}: {} of NIC {}", socket.kind, socket.nic)?;
            socket.sends.iter().try_for_each(|letter| writeln!(f, "    {letter:?}"))?;
        }
        Ok(())
    }
}

/// A receive queue that several share. Its receives are all alike.
#[derive(Debug)]
pub struct Srq {
    pub nic: usize,
    pub xrc: bool,
    /// Length of the longest message to it, and maximum number of messages.
    pub room: usize,
    pub messages: usize,
    pub recvs: Vec<(Duration, Recv)>,
}

/// Two queue pairs that are connected.
#[derive(Debug)]
pub struct Link {
    pub kind: QpType,
    pub mtu: Mtu,
    pub ends: [End; 2],
    /// Requests from the first end to the second, and the other way.
    pub flows: [Flow; 2],
    pub story: Story,
    /// Faults of single packets: receiving end, distance from its first PSN, occurrence, action.
    pub rules: Vec<(usize, u32, u32, Action)>,
    /// Maximum number of READs and atomics in flight.
    pub reads: u8,
}

impl Link {
    /// Whether the outcome is determined to the last byte; otherwise only a set of outcomes is.
    pub fn is_exact(&self, plan: &Plan) -> bool {
        let clean = plan.is_clean() && self.rules.is_empty();
        match self.story {
            Story::Good => clean || self.kind != QpType::Uc,
            Story::Fault { found: Found::Locally, .. } => true,
            Story::Fault { found: Found::AtPeer, .. } => clean,
            Story::Fault { found: Found::InAnswer, .. } => false,
            Story::Chaos => false,
        }
    }
}

/// Outcome of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
    /// Success of all requests.
    Good,
    /// One request of the flow fails.
    Fault { flow: usize, op: usize, found: Found },
    /// One end is taken away in the middle.
    Chaos,
}

/// Side that finds that a request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Before anything is sent, or in vain.
    Locally,
    /// The peer. The answer that says so may be lost.
    AtPeer,
    /// The requester, when the answer has no destination. What is behind it may have been executed
    /// meanwhile.
    InAnswer,
}

#[derive(Debug)]
pub struct End {
    pub nic: usize,
    /// The region that everything of this end is in.
    pub home: usize,
    pub srq: Option<usize>,
    pub sig_all: bool,
    pub one_cq: bool,
    pub send_depth: usize,
    pub recv_depth: usize,
    pub psn: u32,
    /// 7 is for ever.
    pub rnr_retry: u32,
    pub rights: Access,
    /// An event that is asked for before anything happens.
    pub notify: Option<Notify>,
    /// Times at which its send queue is drained, and resumed.
    pub drain: Option<(Duration, Duration)>,
    pub kill: Option<(Duration, Kill)>,
    /// Whether no packet reaches it.
    pub cut_off: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    Destroy,
    Reset,
    Error,
}

/// Requests from one end to the other.
#[derive(Debug, Default)]
pub struct Flow {
    pub posts: Vec<Post>,
    /// The receives of the other end.
    pub recvs: Vec<(Duration, Recv)>,
}

/// A send work request, when it is posted, and the request of either flow that must have completed
/// before.
#[derive(Debug)]
pub struct Post {
    pub at: Duration,
    pub after: Option<(usize, usize)>,
    pub work: Work,
}

/// A number that several queue pairs change at once.
#[derive(Debug)]
pub struct Race {
    pub key: usize,
    pub at: usize,
    /// Link, flow and place of each request.
    pub ops: Vec<(usize, usize, usize)>,
}

/// A datagram queue pair.
#[derive(Debug)]
pub struct Socket {
    pub nic: usize,
    pub kind: QpType,
    pub qkey: u32,
    pub home: usize,
    pub sends: Vec<Datagram>,
    pub recvs: Vec<(Duration, Recv)>,
}

/// A datagram.
#[derive(Debug)]
pub struct Datagram {
    pub at: Duration,
    /// Destination socket, or the group.
    pub to: Option<usize>,
    /// Whether it has the right key.
    pub welcome: bool,
    pub work: Work,
}
