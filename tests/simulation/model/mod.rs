//! Model of verbs: work requests executed one after the other, at once, on a network that loses
//! nothing.
//!
//! It shares nothing with the engine but the names of verbs. Here are queues and states;
//! [`requests`] executes what is asked of a peer, [`memory`] knows who may reach which bytes. There
//! are no packets here, but for one thing: what a request that fails in the middle leaves behind is
//! whole packets. Keys are numbers that count up from 0, and addresses are offsets; the driver of
//! an engine maps them to its own.

mod memory;
mod requests;

use std::collections::VecDeque;

use roce::verbs::{
    Access, FlushLevel, FlushPlacement, MwType, QpState, QpType, SendFlags, WcOpcode, WcStatus,
};

/// Some bytes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub key: usize,
    pub at: usize,
    pub len: usize,
}

/// A place at the peer. The low byte counts for windows alone, which are bound under one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub key: usize,
    pub low: u8,
    pub at: usize,
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Send {
        imm: Option<[u8; 4]>,
    },
    SendWithInv {
        key: usize,
        low: u8,
    },
    Write {
        to: Remote,
        imm: Option<[u8; 4]>,
    },
    Read {
        from: Remote,
    },
    Swap {
        at: Remote,
        compare: u64,
        swap: u64,
    },
    Add {
        at: Remote,
        add: u64,
    },
    Store {
        at: Remote,
    },
    Flush {
        at: Remote,
        len: usize,
        placement: FlushPlacement,
        level: FlushLevel,
    },
    Invalidate {
        key: usize,
        low: u8,
    },
    Bind {
        window: usize,
        /// The low byte of the key that it is named by, which does not count, and of the key that
        /// it shall have.
        now: u8,
        low: u8,
        region: usize,
        at: usize,
        len: usize,
        rights: Access,
    },
}

/// Location of a request's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    Pieces(Vec<Piece>),
    Inline(Vec<u8>),
}

/// A send work request.
#[derive(Clone, Debug)]
pub struct Work {
    pub id: u64,
    pub request: Request,
    pub local: Local,
    pub flags: SendFlags,
}

/// A receive work request.
#[derive(Clone, Debug)]
pub struct Recv {
    pub id: u64,
    pub pieces: Vec<Piece>,
}

/// A completion. Of one that failed only the identifier and the status count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    pub id: u64,
    pub status: WcStatus,
    pub opcode: WcOpcode,
    pub len: usize,
    pub imm: Option<[u8; 4]>,
    pub invalidated: Option<(usize, u8)>,
}

/// Key of memory.
#[derive(Clone, Debug)]
enum Key {
    Region {
        domain: usize,
        rights: Access,
    },
    /// Window, with the low byte of its key, counted from the one it was created with.
    Window {
        domain: usize,
        kind: MwType,
        low: u8,
        bound: Option<Bound>,
    },
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    region: usize,
    at: usize,
    len: usize,
    rights: Access,
    low: u8,
    qp: usize,
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Qp {
    pub kind: QpType,
    pub domain: usize,
    pub state: QpState,
    /// Access rights of its peer.
    pub rights: Access,
    pub mtu: usize,
    pub peer: usize,
    /// Index of its receive queue, and whether others share it.
    pub queue: usize,
    pub shared: bool,
    /// Maximum numbers of outstanding sends and receives.
    pub send_depth: usize,
    pub recv_depth: usize,
    pub sig_all: bool,
    /// Whether it waits for a receive as long as it takes.
    pub patient: bool,
    pub sends: VecDeque<Work>,
    /// Slots of sends that ended since the newest completion, and of those through it that was not
    /// polled.
    pub silent: usize,
    pub unpolled: usize,
    /// Number of bytes of the oldest send that are at the peer already.
    pub placed: usize,
    /// Completions of sends and of receives.
    pub sent: Vec<Done>,
    pub received: Vec<Done>,
}

impl Qp {
    /// A connected queue pair, ready to send.
    pub fn new(kind: QpType, domain: usize, peer: usize, queue: usize) -> Self {
        Self {
            kind,
            domain,
            state: QpState::Rts,
            rights: Access::all(),
            mtu: 1024,
            peer,
            queue,
            shared: false,
            send_depth: usize::MAX,
            recv_depth: usize::MAX,
            sig_all: false,
            patient: true,
            sends: VecDeque::new(),
            silent: 0,
            unpolled: 0,
            placed: 0,
            sent: Vec::new(),
            received: Vec::new(),
        }
    }

    /// Whether the send queue has no slot left.
    fn is_full(&self) -> bool {
        self.sends.len() + self.silent + self.unpolled >= self.send_depth
    }

    /// All completions were polled: they free their slots, and those before them.
    pub fn polled(&mut self) {
        self.unpolled = 0;
    }

    fn hears(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }
}

/// Offset of a datagram's payload in its receive buffer.
pub const AREA: usize = 40;

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The bytes of each region, by its key; windows have none.
    pub memory: Vec<Vec<u8>>,
    keys: Vec<Key>,
    pub queues: Vec<VecDeque<Recv>>,
    pub qps: Vec<Qp>,
    /// Bytes at the start of a datagram's receive buffer.
    pub area: Vec<u8>,
}

/// Result of an attempt to execute a request.
enum Verdict {
    Done,
    /// No receive is posted yet.
    Wait,
    Failed(WcStatus),
}

impl Model {
    pub fn add_region(&mut self, domain: usize, rights: Access, bytes: Vec<u8>) -> usize {
        self.memory.push(bytes);
        self.keys.push(Key::Region { domain, rights });
        self.keys.len() - 1
    }

    pub fn add_window(&mut self, domain: usize, kind: MwType) -> usize {
        self.memory.push(Vec::new());
        self.keys.push(Key::Window { domain, kind, low: 0, bound: None });
        self.keys.len() - 1
    }

    pub fn add_queue(&mut self) -> usize {
        self.queues.push(VecDeque::new());
        self.queues.len() - 1
    }

    pub fn add_qp(&mut self, qp: Qp) -> usize {
        self.qps.push(qp);
        self.qps.len() - 1
    }

    /// Posts a send; whether it is taken.
    pub fn post(&mut self, qp: usize, work: Work) -> bool {
        let Qp { kind, state, .. } = self.qps[qp];
        if !is_offered(&work.request, kind) || self.qps[qp].is_full() {
            return false;
        }
        match state {
            QpState::Rts | QpState::Sqd => self.qps[qp].sends.push_back(work),
            QpState::Err | QpState::Sqe => self.end_send(qp, &work, WcStatus::WrFlushErr),
            QpState::Reset | QpState::Init | QpState::Rtr => return false,
        }
        true
    }

    /// Posts a receive to the queue of a queue pair; whether it is taken.
    pub fn post_recv(&mut self, qp: usize, recv: Recv) -> bool {
        let Qp { queue, recv_depth, .. } = self.qps[qp];
        if self.queues[queue].len() >= recv_depth {
            return false;
        }
        match self.qps[qp].state {
            QpState::Reset => return false,
            QpState::Err if !self.qps[qp].shared => {
                self.end_recv(qp, recv.id, WcStatus::WrFlushErr);
            }
            _ => self.queues[queue].push_back(recv),
        }
        true
    }

    /// Executes everything that can be.
    pub fn run(&mut self) {
        while (0..self.qps.len()).any(|qp| self.step(qp)) {}
    }

    /// Executes the oldest send of a queue pair; whether it ended.
    fn step(&mut self, qp: usize) -> bool {
        if self.qps[qp].state != QpState::Rts {
            return false;
        }
        let Some(work) = self.qps[qp].sends.front().cloned() else { return false };
        let status = match self.perform(qp, &work) {
            Verdict::Wait if self.qps[qp].patient => return false,
            Verdict::Wait => WcStatus::RnrRetryExcErr,
            Verdict::Done => WcStatus::Success,
            Verdict::Failed(status) => status,
        };
        self.qps[qp].placed = 0;
        self.qps[qp].sends.pop_front();
        let wanted = self.qps[qp].sig_all || work.flags.contains(SendFlags::SIGNALED);
        if wanted || status != WcStatus::Success {
            self.end_send(qp, &work, status);
        } else {
            self.qps[qp].silent += 1;
        }
        if status != WcStatus::Success {
            self.stop_sending(qp);
        }
        true
    }

    fn end_send(&mut self, qp: usize, work: &Work, status: WcStatus) {
        let (opcode, len) = (completes_as(&work.request), message_len(work));
        let done = Done { id: work.id, status, opcode, len, imm: None, invalidated: None };
        let qp = &mut self.qps[qp];
        qp.sent.push(done);
        qp.unpolled += core::mem::take(&mut qp.silent) + 1;
    }

    fn end_recv(&mut self, qp: usize, id: u64, status: WcStatus) {
        let opcode = WcOpcode::Recv;
        let done = Done { id, status, opcode, len: 0, imm: None, invalidated: None };
        self.qps[qp].received.push(done);
    }

    /// A send failed: what is behind it is flushed. An unreliable queue pair goes on receiving.
    fn stop_sending(&mut self, qp: usize) {
        if self.qps[qp].kind.is_reliable() {
            return self.fail(qp);
        }
        self.qps[qp].state = QpState::Sqe;
        self.flush_sends(qp);
    }

    fn flush_sends(&mut self, qp: usize) {
        while let Some(work) = self.qps[qp].sends.pop_front() {
            self.end_send(qp, &work, WcStatus::WrFlushErr);
        }
    }

    /// Into the error state.
    pub fn fail(&mut self, qp: usize) {
        if matches!(self.qps[qp].state, QpState::Err | QpState::Reset) {
            return;
        }
        self.qps[qp].state = QpState::Err;
        self.qps[qp].placed = 0;
        self.flush_sends(qp);
        if self.qps[qp].shared {
            return;
        }
        while let Some(recv) = self.queues[self.qps[qp].queue].pop_front() {
            self.end_recv(qp, recv.id, WcStatus::WrFlushErr);
        }
    }

    /// Back to the beginning, without a word.
    pub fn reset(&mut self, qp: usize) {
        self.qps[qp].state = QpState::Reset;
        self.qps[qp].placed = 0;
        self.qps[qp].sends.clear();
        (self.qps[qp].silent, self.qps[qp].unpolled) = (0, 0);
        if !self.qps[qp].shared {
            self.queues[self.qps[qp].queue].clear();
        }
    }
}

/// Whether queue pairs of a kind do this.
fn is_offered(request: &Request, kind: QpType) -> bool {
    match request {
        Request::Send { .. } => true,
        Request::Write { .. } | Request::Invalidate { .. } | Request::Bind { .. } => {
            kind.is_connected()
        }
        _ => kind.is_reliable(),
    }
}

/// Returns the completion opcode of a request.
pub fn completes_as(request: &Request) -> WcOpcode {
    match request {
        Request::Send { .. } | Request::SendWithInv { .. } => WcOpcode::Send,
        Request::Write { .. } => WcOpcode::RdmaWrite,
        Request::Read { .. } => WcOpcode::RdmaRead,
        Request::Swap { .. } => WcOpcode::CompSwap,
        Request::Add { .. } => WcOpcode::FetchAdd,
        Request::Store { .. } => WcOpcode::AtomicWrite,
        Request::Flush { .. } => WcOpcode::Flush,
        Request::Invalidate { .. } => WcOpcode::LocalInv,
        Request::Bind { .. } => WcOpcode::BindMw,
    }
}

/// Returns the number of bytes that a request moves.
pub fn message_len(work: &Work) -> usize {
    match (&work.request, &work.local) {
        (Request::Swap { .. } | Request::Add { .. } | Request::Store { .. }, _) => 8,
        (Request::Flush { len, level: FlushLevel::Range, .. }, _) => *len,
        (Request::Flush { .. } | Request::Invalidate { .. } | Request::Bind { .. }, _) => 0,
        (_, Local::Inline(bytes)) => bytes.len(),
        (_, Local::Pieces(pieces)) => pieces.iter().map(|piece| piece.len).sum(),
    }
}

/// Whether a request takes a receive.
pub fn takes_receive(request: &Request) -> bool {
    matches!(
        request,
        Request::Send { .. } | Request::SendWithInv { .. } | Request::Write { imm: Some(_), .. }
    )
}
