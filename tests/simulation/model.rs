//! What verbs mean: work requests executed one after the other, at once, on a network that loses nothing.
//!
//! It shares nothing with the engine but the names of verbs. There are no packets here, but for one thing: what a
//! request that fails in the middle leaves behind is whole packets. Keys are numbers that count up from 0, and
//! addresses are offsets; whoever drives an engine beside it knows what they are called there.

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

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    Send { imm: Option<[u8; 4]> },
    SendWithInv { key: usize, low: u8 },
    Write { to: Remote, imm: Option<[u8; 4]> },
    Read { from: Remote },
    Swap { at: Remote, compare: u64, swap: u64 },
    Add { at: Remote, add: u64 },
    Store { at: Remote },
    Flush { at: Remote, len: usize, placement: FlushPlacement, level: FlushLevel },
    Invalidate { key: usize, low: u8 },
    Bind { window: usize, low: u8, region: usize, at: usize, len: usize, rights: Access },
}

/// Where the data of a request are.
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

/// What memory is known by.
#[derive(Clone, Debug)]
enum Key {
    Region { domain: usize, rights: Access },
    Window { domain: usize, kind: MwType, bound: Option<Bound> },
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
    /// What its peer may do.
    pub rights: Access,
    pub mtu: usize,
    pub peer: usize,
    /// Which receive queue it takes from, and whether others do too.
    pub queue: usize,
    pub shared: bool,
    /// How many sends and receives can be outstanding.
    pub send_depth: usize,
    pub recv_depth: usize,
    pub sig_all: bool,
    /// Whether it waits for a receive as long as it takes.
    pub patient: bool,
    pub sends: VecDeque<Work>,
    /// How many bytes of the oldest send are at the peer already.
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
            placed: 0,
            sent: Vec::new(),
            received: Vec::new(),
        }
    }

    fn hears(&self) -> bool {
        matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }
}

/// Where a datagram's payload begins in its receive buffer.
pub const AREA: usize = 40;

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// The bytes of each region, by its key; windows have none.
    pub memory: Vec<Vec<u8>>,
    keys: Vec<Key>,
    pub queues: Vec<VecDeque<Recv>>,
    pub qps: Vec<Qp>,
    /// What a datagram's receive buffer begins with.
    pub area: Vec<u8>,
}

/// What an attempt to execute a request comes to.
enum Verdict {
    Done,
    /// There is no receive for it yet.
    Wait,
    Failed(WcStatus),
}

use Verdict::{Failed, Wait};

impl Model {
    pub fn add_region(&mut self, domain: usize, rights: Access, bytes: Vec<u8>) -> usize {
        self.memory.push(bytes);
        self.keys.push(Key::Region { domain, rights });
        self.keys.len() - 1
    }

    pub fn add_window(&mut self, domain: usize, kind: MwType) -> usize {
        self.memory.push(Vec::new());
        self.keys.push(Key::Window { domain, kind, bound: None });
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
        let Qp { kind, state, send_depth, ref sends, .. } = self.qps[qp];
        if !is_offered(&work.request, kind) || sends.len() >= send_depth {
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
            Wait if self.qps[qp].patient => return false,
            Wait => WcStatus::RnrRetryExcErr,
            Verdict::Done => WcStatus::Success,
            Failed(status) => status,
        };
        self.qps[qp].placed = 0;
        if self.qps[qp].sends.pop_front().is_none() {
            // What it did to its peer came back on itself.
            return true;
        }
        let wanted = self.qps[qp].sig_all || work.flags.contains(SendFlags::SIGNALED);
        if wanted || status != WcStatus::Success {
            self.end_send(qp, &work, status);
        }
        if status != WcStatus::Success {
            self.stop_sending(qp);
        }
        true
    }

    fn end_send(&mut self, qp: usize, work: &Work, status: WcStatus) {
        let (opcode, len) = (completes_as(&work.request), message_len(work));
        let done = Done { id: work.id, status, opcode, len, imm: None, invalidated: None };
        self.qps[qp].sent.push(done);
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
        if !self.qps[qp].shared {
            self.queues[self.qps[qp].queue].clear();
        }
    }

    fn perform(&mut self, qp: usize, work: &Work) -> Verdict {
        let Qp { domain, peer, mtu, kind, .. } = self.qps[qp];
        match work.request {
            Request::Invalidate { key, low } => return self.invalidate(qp, key, low, Failed),
            Request::Bind { .. } => return self.bind(qp, &work.request),
            _ => {}
        }
        let sends = !matches!(
            work.request,
            Request::Read { .. } | Request::Swap { .. } | Request::Add { .. }
        );
        if kind.is_datagram() && message_len(work) > mtu {
            return Failed(WcStatus::LocLenErr);
        }
        let Some(data) = (if sends { self.gather(domain, &work.local) } else { Some(Vec::new()) })
        else {
            return Failed(WcStatus::LocProtErr);
        };
        if !self.qps[peer].hears() {
            return if kind.is_reliable() {
                Failed(WcStatus::RetryExcErr)
            } else {
                Verdict::Done
            };
        }
        let verdict = match work.request {
            Request::Send { .. } | Request::SendWithInv { .. } if kind.is_datagram() => {
                self.datagram(peer, &work.request, &data)
            }
            Request::Send { .. } | Request::SendWithInv { .. } => {
                self.send(peer, mtu, &work.request, &data)
            }
            Request::Write { to, imm } => self.write(qp, peer, mtu, to, imm, &data),
            Request::Read { from } => {
                let len = message_len(work);
                self.fetch(peer, from, len, Access::REMOTE_READ, len > 0, 1, |bytes| bytes.to_vec())
                    .map_or_else(Failed, |bytes| self.answer(domain, &work.local, &bytes))
            }
            Request::Swap { at, compare, swap } => self
                .atomic(peer, at, |was| if was == compare { swap } else { was })
                .map_or_else(Failed, |was| self.answer(domain, &work.local, &was)),
            Request::Add { at, add } => self
                .atomic(peer, at, |was| was.wrapping_add(add))
                .map_or_else(Failed, |was| self.answer(domain, &work.local, &was)),
            Request::Store { at } => self
                .fetch(peer, at, 8, Access::REMOTE_WRITE, true, 8, |place| {
                    place.copy_from_slice(&data);
                })
                .map_or_else(Failed, |()| Verdict::Done),
            Request::Flush { at, len, placement, level } => {
                let len = if level == FlushLevel::Mr { 0 } else { len };
                self.fetch(peer, at, len, placement.needed_access(), true, 1, |_| {})
                    .map_or_else(Failed, |()| Verdict::Done)
            }
            Request::Invalidate { .. } | Request::Bind { .. } => unreachable!("done at home"),
        };
        match verdict {
            // Nobody tells an unreliable sender.
            Wait | Failed(_) if !kind.is_reliable() => Verdict::Done,
            verdict => verdict,
        }
    }

    /// The bytes of a message, or none if some of its memory may not be read.
    fn gather(&self, domain: usize, local: &Local) -> Option<Vec<u8>> {
        let pieces = match local {
            Local::Inline(bytes) => return Some(bytes.clone()),
            Local::Pieces(pieces) => pieces,
        };
        let mut bytes = Vec::new();
        for piece in pieces.iter().filter(|piece| piece.len > 0) {
            self.owned(domain, piece, Access::empty()).then_some(())?;
            bytes.extend_from_slice(&self.memory[piece.key][piece.at..piece.at + piece.len]);
        }
        Some(bytes)
    }

    /// Whether a domain may use a piece so.
    fn owned(&self, domain: usize, piece: &Piece, needed: Access) -> bool {
        match self.keys.get(piece.key) {
            Some(Key::Region { domain: owner, rights }) => {
                *owner == domain
                    && rights.contains(needed)
                    && piece.at + piece.len <= self.memory[piece.key].len()
            }
            _ => false,
        }
    }

    /// Puts bytes where they belong, as many as there is room for; whether that is allowed.
    fn scatter(&mut self, domain: usize, pieces: &[Piece], mut bytes: &[u8]) -> bool {
        for piece in pieces {
            let (part, rest) = bytes.split_at(bytes.len().min(piece.len));
            if !part.is_empty() && !self.owned(domain, piece, Access::LOCAL_WRITE) {
                return false;
            }
            if !part.is_empty() {
                self.memory[piece.key][piece.at..piece.at + part.len()].copy_from_slice(part);
            }
            bytes = rest;
        }
        true
    }

    /// Puts an answer where a request wants it.
    fn answer(&mut self, domain: usize, local: &Local, bytes: &[u8]) -> Verdict {
        match local {
            Local::Pieces(pieces) if self.scatter(domain, pieces, bytes) => Verdict::Done,
            _ => Failed(WcStatus::LocProtErr),
        }
    }

    /// The place of `len` bytes at the peer, if a request may reach all of them.
    fn reach(&self, peer: usize, remote: Remote, len: usize, needed: Access) -> Option<usize> {
        let Qp { domain, .. } = self.qps[peer];
        let (owner, region, start, size, rights) = match self.keys.get(remote.key)? {
            Key::Region { domain, rights } => {
                (*domain, remote.key, 0, self.memory[remote.key].len(), *rights)
            }
            Key::Window { domain, kind, bound } => {
                let bound = (*bound)?;
                let for_others = *kind == MwType::Type2 && bound.qp != peer;
                (!for_others && bound.low == remote.low).then_some(())?;
                (*domain, bound.region, bound.at, bound.len, bound.rights)
            }
        };
        let within = remote.at >= start && remote.at + len <= start + size;
        (owner == domain && rights.contains(needed) && within).then_some(region)
    }

    /// Does something with bytes at the peer, or refuses it.
    #[expect(clippy::too_many_arguments, reason = "everything that is checked")]
    fn fetch<T>(
        &mut self,
        peer: usize,
        at: Remote,
        len: usize,
        needed: Access,
        checked: bool,
        align: usize,
        with: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, WcStatus> {
        if !self.qps[peer].rights.contains(needed) || !at.at.is_multiple_of(align) {
            self.fail(peer);
            return Err(WcStatus::RemInvReqErr);
        }
        if !checked {
            return Ok(with(&mut []));
        }
        let Some(region) = self.reach(peer, at, len, needed) else {
            self.fail(peer);
            return Err(WcStatus::RemAccessErr);
        };
        Ok(with(&mut self.memory[region][at.at..at.at + len]))
    }

    /// Changes a number at the peer; returns the bytes that were there.
    fn atomic(
        &mut self,
        peer: usize,
        at: Remote,
        change: impl FnOnce(u64) -> u64,
    ) -> Result<[u8; 8], WcStatus> {
        self.fetch(peer, at, 8, Access::REMOTE_ATOMIC, true, 8, |place| {
            let was: [u8; 8] = (&*place).try_into().expect("eight bytes");
            place.copy_from_slice(&change(u64::from_ne_bytes(was)).to_ne_bytes());
            was
        })
    }

    fn write(
        &mut self,
        qp: usize,
        peer: usize,
        mtu: usize,
        to: Remote,
        imm: Option<[u8; 4]>,
        data: &[u8],
    ) -> Verdict {
        let reliable = self.qps[qp].kind.is_reliable();
        if !self.qps[peer].rights.contains(Access::REMOTE_WRITE) {
            return self.refuse(peer, reliable, None, WcStatus::RemInvReqErr);
        }
        // Only the last packet needs a receive; those before it are written in any case.
        let before_last = data.len().saturating_sub(1) / mtu * mtu;
        let placed = self.qps[qp].placed;
        if before_last > 0 && placed == 0 {
            let Some(region) = self.reach(peer, to, data.len(), Access::REMOTE_WRITE) else {
                return self.refuse(peer, reliable, None, WcStatus::RemAccessErr);
            };
            self.memory[region][to.at..to.at + before_last].copy_from_slice(&data[..before_last]);
        }
        let queue = self.qps[peer].queue;
        if imm.is_some() && self.queues[queue].is_empty() {
            self.qps[qp].placed = before_last;
            return Wait;
        }
        let (at, last) = (to.at + before_last, &data[before_last..]);
        if !last.is_empty() {
            let Some(region) =
                self.reach(peer, Remote { at, ..to }, last.len(), Access::REMOTE_WRITE)
            else {
                let taken = imm.map(|_| WcStatus::LocAccessErr);
                return self.refuse(peer, reliable, taken, WcStatus::RemAccessErr);
            };
            self.memory[region][at..at + last.len()].copy_from_slice(last);
        }
        if imm.is_some()
            && let Some(recv) = self.queues[queue].pop_front()
        {
            let (status, opcode) = (WcStatus::Success, WcOpcode::RecvRdmaWithImm);
            let len = data.len();
            let done = Done { id: recv.id, status, opcode, len, imm, invalidated: None };
            self.qps[peer].received.push(done);
        }
        Verdict::Done
    }

    /// The peer refuses a request: its receive, if it took one, completes with `taken`, and the peer fails. Who cannot
    /// tell keeps the receive, and goes on.
    fn refuse(
        &mut self,
        peer: usize,
        reliable: bool,
        taken: Option<WcStatus>,
        status: WcStatus,
    ) -> Verdict {
        if reliable {
            if let Some(taken) = taken
                && let Some(recv) = self.queues[self.qps[peer].queue].pop_front()
            {
                self.end_recv(peer, recv.id, taken);
            }
            self.fail(peer);
        }
        Failed(status)
    }

    fn send(&mut self, peer: usize, mtu: usize, request: &Request, data: &[u8]) -> Verdict {
        let Qp { queue, domain, kind, .. } = self.qps[peer];
        let reliable = kind.is_reliable();
        let Some(recv) = self.queues[queue].front().cloned() else { return Wait };
        let room: usize = recv.pieces.iter().map(|piece| piece.len).sum();
        let first = data.len().min(mtu);
        if first <= room && !self.scatter(domain, &recv.pieces, &data[..first]) {
            // A buffer of one's own at fault is told even to an unreliable receiver.
            return self.refuse(peer, true, Some(WcStatus::LocProtErr), WcStatus::RemOpErr);
        }
        let fits = if data.len() > room { room / mtu * mtu } else { data.len() };
        self.scatter(domain, &recv.pieces, &data[..fits]);
        if data.len() > room {
            let taken = Some(WcStatus::LocLenErr);
            return self.refuse(peer, reliable, taken, WcStatus::RemInvReqErr);
        }
        let (mut imm, mut invalidated) = (None, None);
        match *request {
            Request::SendWithInv { key, low } => {
                // Whoever cannot invalidate it fails without a word.
                let silent = |_| Failed(WcStatus::RetryExcErr);
                if let Failed(status) = self.invalidate(peer, key, low, silent) {
                    return self.refuse(peer, true, Some(WcStatus::LocAccessErr), status);
                }
                invalidated = Some((key, low));
            }
            Request::Send { imm: given } => imm = given,
            _ => {}
        }
        self.queues[queue].pop_front();
        let (id, status, opcode) = (recv.id, WcStatus::Success, WcOpcode::Recv);
        let done = Done { id, status, opcode, len: data.len(), imm, invalidated };
        self.qps[peer].received.push(done);
        Verdict::Done
    }

    /// A datagram that does not fit, or that nobody waits for, is lost.
    fn datagram(&mut self, peer: usize, request: &Request, data: &[u8]) -> Verdict {
        let Qp { queue, domain, .. } = self.qps[peer];
        let Some(recv) = self.queues[queue].front().cloned() else { return Verdict::Done };
        let room: usize = recv.pieces.iter().map(|piece| piece.len).sum();
        if AREA + data.len() > room {
            return Verdict::Done;
        }
        self.queues[queue].pop_front();
        let bytes = [&self.area, data].concat();
        if !self.scatter(domain, &recv.pieces, &bytes) {
            self.end_recv(peer, recv.id, WcStatus::LocProtErr);
            self.fail(peer);
            return Verdict::Done;
        }
        let imm = if let Request::Send { imm } = *request { imm } else { None };
        let (id, status, opcode) = (recv.id, WcStatus::Success, WcOpcode::Recv);
        let done = Done { id, status, opcode, len: bytes.len(), imm, invalidated: None };
        self.qps[peer].received.push(done);
        Verdict::Done
    }

    /// Invalidates the key of a window of type 2 for the queue pair that bound it.
    fn invalidate(
        &mut self,
        qp: usize,
        key: usize,
        low: u8,
        failed: impl FnOnce(WcStatus) -> Verdict,
    ) -> Verdict {
        match self.keys.get_mut(key) {
            Some(Key::Window { kind: MwType::Type2, bound: bound @ Some(_), .. })
                if bound.is_some_and(|bound| bound.qp == qp && bound.low == low) =>
            {
                *bound = None;
                Verdict::Done
            }
            _ => failed(WcStatus::MwBindErr),
        }
    }

    fn bind(&mut self, qp: usize, request: &Request) -> Verdict {
        let Request::Bind { window, low, region, at, len, rights } = *request else {
            unreachable!("it is a bind")
        };
        let failed = Failed(WcStatus::MwBindErr);
        let own = self.qps[qp].domain;
        let fits = match self.keys.get(region) {
            Some(Key::Region { domain, rights: of_region }) => {
                let writes = rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                *domain == own
                    && of_region.contains(Access::MW_BIND)
                    && (!writes || of_region.contains(Access::LOCAL_WRITE))
                    && at + len <= self.memory[region].len()
            }
            _ => false,
        };
        let Some(Key::Window { domain, kind, bound }) = self.keys.get_mut(window) else {
            return failed;
        };
        let free = match kind {
            MwType::Type1 => len == 0 || fits,
            MwType::Type2 => bound.is_none() && len > 0 && fits,
        };
        if *domain != own || !free {
            return failed;
        }
        *bound = (len > 0).then_some(Bound { region, at, len, rights, low, qp });
        Verdict::Done
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

/// What a request completes as.
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

/// How many bytes a request moves.
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
