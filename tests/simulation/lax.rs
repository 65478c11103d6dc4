//! Checks of a link whose outcome is not determined: one whose end was taken away, one that lost
//! the answer that refused a request, an unreliable one on a network that loses packets.
//!
//! Work is done in order and reported in order, whatever else. What was reported as done is done;
//! what was not may be done, or begun: then the first packets of it are in place, and nothing
//! behind them.

use roce::engine::ReceiveMode;
use roce::verbs::{QpState, SendFlags, Wc, WcOpcode, WcStatus};

use super::model::{Local, Piece, Recv, Remote, Request, Work, message_len, takes_receive};
use super::plan::{Found, Key, Kill, Link, Post, Story};
use super::world::World;

/// A link between two ends, as it is looked at.
struct Look<'a> {
    world: &'a World<'a>,
    link: &'a Link,
    number: usize,
    flow: usize,
    label: &'a str,
}

/// Checks a reliable link. `want` is how the request that fails must end, if it is told.
pub fn check_reliable(
    world: &World<'_>,
    number: usize,
    want: Option<WcStatus>,
    expected: &mut [Vec<u8>],
    label: &str,
) {
    let link = &world.plan.links[number];
    for flow in [0, 1] {
        let look = Look { world, link, number, flow, label };
        let (done, failed) = look.sender();
        let executed = look.receiver(done, expected);
        let mut refused = usize::MAX;
        if let Story::Fault { flow: bad, op, found } = link.story
            && bad == flow
        {
            let (at, status) = failed.unwrap_or_else(|| panic!("{label}: nothing failed"));
            let told = (at, Some(status)) == (op, want);
            let silent = found == Found::AtPeer && at <= op && status == WcStatus::RetryExcErr;
            assert!(told || silent, "{label}: {at} ends with {status} instead of {want:?}");
            let state = if found == Found::AtPeer { QpState::Err } else { QpState::Rts };
            assert_eq!(world.state(number, 1 - flow), Some(state), "{label}: the peer");
            refused = if found == Found::AtPeer { op } else { usize::MAX };
        }
        for (op, post) in link.flows[flow].posts.iter().enumerate() {
            if op == refused {
                // It reached for what is not its own, and changed nothing.
                continue;
            }
            look.memory(&post.work, op < done, op < executed, op > refused, expected);
        }
    }
}

/// Receives of a shared queue that no message completed may have been begun, if a queue pair was
/// destroyed.
pub fn excuse_shared(world: &World<'_>, expected: &mut [Vec<u8>]) {
    let plan = world.plan;
    for (index, srq) in plan.srqs.iter().enumerate() {
        let users = plan.links.iter().enumerate().flat_map(|(number, link)| {
            [0, 1].map(|side| (link, &link.ends[side], &world.runners[number][side]))
        });
        let users: Vec<_> = users.filter(|(_, end, _)| end.srq == Some(index)).collect();
        if users.iter().all(|(link, ..)| link.is_exact(plan)) {
            continue;
        }
        for (_, recv) in &srq.recvs {
            let done = |wc: &Wc| wc.id.0 == recv.id && wc.status == WcStatus::Success;
            if !users.iter().any(|(.., runner)| runner.got.iter().any(done)) {
                adopt(world, &recv.pieces, expected);
            }
        }
    }
}

/// Takes bytes as they are.
fn adopt(world: &World<'_>, pieces: &[Piece], expected: &mut [Vec<u8>]) {
    for piece in pieces {
        if let Some(region) = expected.get_mut(piece.key) {
            region[piece.at..piece.at + piece.len].copy_from_slice(&read(world, &[*piece]));
        }
    }
}

/// Returns the contents of some pieces of memory.
fn read(world: &World<'_>, pieces: &[Piece]) -> Vec<u8> {
    let mut all = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.key < world.buffers.len()) {
        let mut bytes = vec![0; piece.len];
        world.buffers[piece.key].read(piece.at, &mut bytes).unwrap();
        all.extend(bytes);
    }
    all
}

/// Returns the initial contents of some pieces of memory.
fn initial(world: &World<'_>, pieces: &[Piece]) -> Vec<u8> {
    let mut all = Vec::new();
    for piece in pieces {
        if let Some(Key::Region { bytes, .. }) = world.plan.keys.get(piece.key) {
            all.extend_from_slice(&bytes[piece.at..piece.at + piece.len]);
        }
    }
    all
}

fn local(world: &World<'_>, work: &Work) -> Vec<u8> {
    match &work.local {
        Local::Inline(bytes) => bytes.clone(),
        Local::Pieces(pieces) => read(world, pieces),
    }
}

impl Look<'_> {
    fn posts(&self) -> &[Post] {
        &self.link.flows[self.flow].posts[..self.world.runners[self.number][self.flow].posted]
    }

    /// Sends completed in order, none twice, and from the first that failed on all of them. Returns
    /// how many are sure to be done, and which failed, how.
    fn sender(&self) -> (usize, Option<(usize, WcStatus)>) {
        let Self { label, link, flow, .. } = *self;
        let runner = &self.world.runners[self.number][flow];
        let posts = self.posts();
        let signaled = |op: &usize| {
            link.ends[flow].sig_all || posts[*op].work.flags.contains(SendFlags::SIGNALED)
        };
        let good = runner.sent.iter().take_while(|wc| wc.status == WcStatus::Success).count();
        let (good, bad) = runner.sent.split_at(good);
        let ids = |wcs: &[Wc]| wcs.iter().map(|wc| wc.id.0 as usize).collect::<Vec<_>>();
        let alive = !runner.gone && self.world.state(self.number, flow) != Some(QpState::Err);
        let done = match bad.first() {
            Some(wc) => wc.id.0 as usize,
            None if alive => link.flows[flow].posts.len(),
            None => good.last().map_or(0, |wc| wc.id.0 as usize + 1),
        };
        assert!(done <= posts.len(), "{label}: {} of {done} were posted", posts.len());
        let want: Vec<_> = (0..done).filter(signaled).collect();
        assert_eq!(ids(good), want, "{label}: sends of end {flow} that were done");
        if bad.is_empty() {
            return (done, None);
        }
        assert_eq!(ids(bad), (done..posts.len()).collect::<Vec<_>>(), "{label}: sends that failed");
        let flushed = |wc: &Wc| wc.status == WcStatus::WrFlushErr;
        assert!(bad[1..].iter().all(flushed), "{label}: behind the first all are flushed");
        (done, Some((done, bad[0].status)))
    }

    /// Receives completed in order, with the messages in order. Returns how many requests were
    /// executed for sure.
    fn receiver(&self, done: usize, expected: &mut [Vec<u8>]) -> usize {
        let Self { world, label, flow, link, .. } = *self;
        let side = 1 - flow;
        let runner = &world.runners[self.number][side];
        let own = link.ends[side].srq.is_none();
        let recvs = &link.flows[flow].recvs;
        let good = runner.got.iter().take_while(|wc| wc.status == WcStatus::Success).count();
        let (got, bad) = runner.got.split_at(good);
        let killed = link.ends[side].kill.is_some_and(|(_, kill)| kill != Kill::Error);
        if own {
            let ids: Vec<_> = runner.got.iter().map(|wc| wc.id.0).collect();
            let want: Vec<_> = recvs.iter().map(|(_, recv)| recv.id).take(ids.len()).collect();
            assert_eq!(ids, want, "{label}: receives of end {side}");
            let all = world.state(self.number, side) != Some(QpState::Err) || killed;
            assert!(all || ids.len() == runner.received, "{label}: all receives are flushed");
        }
        let flushed = |wc: &Wc| wc.status == WcStatus::WrFlushErr;
        assert!(bad.iter().skip(1).all(flushed), "{label}: behind the first all are flushed");
        let takes = |(_, post): &(usize, &Post)| takes_receive(&post.work.request);
        let messages: Vec<_> = self.posts().iter().enumerate().filter(takes).collect();
        assert!(got.len() <= messages.len(), "{label}: more was received than sent");
        for (wc, (op, post)) in got.iter().zip(&messages) {
            let recv = self.recv(wc.id.0);
            let whole = self.is_message(wc, &post.work, recv);
            assert!(whole, "{label}: request {op} arrived as {wc:?}");
            let sends = wc.opcode == WcOpcode::Recv;
            let len = if sends { wc.byte_len as usize } else { 0 };
            adopt(world, &head(&recv.pieces, len), expected);
        }
        // One more may have been begun.
        if own && let Some((_, recv)) = recvs.get(good) {
            adopt(world, &recv.pieces, expected);
        }
        let sure = messages.iter().filter(|(op, _)| *op < done).count();
        assert!(got.len() >= sure, "{label}: {sure} messages were acknowledged");
        got.len().checked_sub(1).map_or(done, |last| done.max(messages[last].0 + 1))
    }

    fn recv(&self, id: u64) -> &Recv {
        let srqs = self.world.plan.srqs.iter().flat_map(|srq| &srq.recvs);
        let own = self.link.flows[self.flow].recvs.iter();
        let shared = self.link.ends[1 - self.flow].srq.is_some();
        let mut all: Box<dyn Iterator<Item = _>> =
            if shared { Box::new(srqs) } else { Box::new(own) };
        let found = all.find(|(_, recv)| recv.id == id);
        &found.unwrap_or_else(|| panic!("{}: no work request {id:#x} was posted", self.label)).1
    }

    /// Whether a completion, and the bytes it tells of, are those of a message.
    fn is_message(&self, wc: &Wc, work: &Work, recv: &Recv) -> bool {
        let len = message_len(work);
        let (opcode, imm) = match work.request {
            Request::Send { imm } => (WcOpcode::Recv, imm),
            Request::SendWithInv { .. } => (WcOpcode::Recv, None),
            Request::Write { imm, .. } => (WcOpcode::RecvRdmaWithImm, imm),
            _ => return false,
        };
        let same = (wc.opcode, wc.byte_len as usize, wc.imm()) == (opcode, len, imm);
        let data = local(self.world, work);
        same && (opcode != WcOpcode::Recv || read(self.world, &head(&recv.pieces, len)) == data)
    }

    /// Checks the effect of a request on memory: all that it should, or part of it if it was not
    /// completed.
    fn memory(
        &self,
        work: &Work,
        done: bool,
        executed: bool,
        refused: bool,
        expected: &mut [Vec<u8>],
    ) {
        let Self { world, label, .. } = *self;
        let len = message_len(work);
        let answer = match &work.local {
            Local::Pieces(pieces) => &pieces[..],
            Local::Inline(_) => &[],
        };
        let far = |remote: Remote, len| Piece { key: self.region(remote.key), at: remote.at, len };
        let fits = |piece: &Piece| match world.plan.keys.get(piece.key) {
            Some(Key::Region { bytes, .. }) => piece.at + piece.len <= bytes.len(),
            _ => false,
        };
        let what = format!("{label}: memory of request {}, {:?}", work.id, work.request);
        match work.request {
            Request::Write { to, .. } | Request::Store { at: to } => {
                let place = far(to, len);
                if !fits(&place) {
                    return;
                }
                let data = local(world, work);
                self.is_begun(&[place], &data, executed, refused, &what);
                adopt(world, &[place], expected);
            }
            Request::Read { from } => {
                let place = far(from, len);
                if !fits(&place) {
                    return adopt(world, answer, expected);
                }
                // What it read may have been overwritten since.
                let now = read(world, &[place]);
                let found = read(world, answer);
                let then = initial(world, &[place]);
                let data = if found == then { then } else { now };
                self.is_begun(answer, &data, done, false, &what);
                adopt(world, answer, expected);
            }
            Request::Add { at, .. } | Request::Swap { at, .. } => {
                let place = far(at, 8);
                if !fits(&place) {
                    return adopt(world, answer, expected);
                }
                let was = u64::from_ne_bytes(initial(world, &[place]).try_into().unwrap());
                let becomes = match work.request {
                    Request::Add { add, .. } => was.wrapping_add(add),
                    Request::Swap { compare, swap, .. } if compare == was => swap,
                    _ => was,
                };
                self.is_begun(&[place], &becomes.to_ne_bytes(), executed, refused, &what);
                self.is_begun(answer, &was.to_ne_bytes(), done, false, &what);
                adopt(world, &[place], expected);
                adopt(world, answer, expected);
            }
            _ => {}
        }
    }

    /// Data are in their place, or, if they need not be, the first packets of them.
    fn is_begun(&self, pieces: &[Piece], data: &[u8], all: bool, none: bool, what: &str) {
        let (found, before) = (read(self.world, pieces), initial(self.world, pieces));
        let mtu = self.link.mtu.bytes();
        if (all && found == data) || (none && found == before) {
            return;
        }
        let partly = |packets: usize| {
            let end = (packets * mtu).min(data.len());
            found[..end] == data[..end] && found[end..] == before[end..]
        };
        // Packets that came before others may be in their places, too.
        let places = self.world.plan.mode.receive == ReceiveMode::Place;
        let anyhow = || {
            let parts = (0..data.len()).step_by(mtu).map(|at| at..(at + mtu).min(data.len()));
            places
                && parts.into_iter().all(|part| {
                    found[part.clone()] == data[part.clone()] || found[part.clone()] == before[part]
                })
        };
        let right = !all && !none && ((0..=data.len().div_ceil(mtu)).any(partly) || anyhow());
        assert!(right, "{what}: done {all}, refused {none}");
    }

    /// The region behind a key, which may be a window's.
    fn region(&self, key: usize) -> usize {
        match self.world.plan.keys.get(key) {
            Some(Key::Window { .. }) => self.link.ends[1 - self.flow].home,
            _ => key,
        }
    }
}

/// The first bytes of some pieces.
fn head(pieces: &[Piece], mut len: usize) -> Vec<Piece> {
    let mut out = Vec::new();
    for piece in pieces {
        let part = len.min(piece.len);
        out.push(Piece { len: part, ..*piece });
        len -= part;
    }
    out
}

/// Checks an unreliable link: its sender succeeds in any case; some of its messages arrive, whole.
pub fn check_unreliable(world: &World<'_>, number: usize, expected: &mut [Vec<u8>], label: &str) {
    let (plan, link) = (world.plan, &world.plan.links[number]);
    for flow in [0, 1] {
        let look = Look { world, link, number, flow, label };
        let (done, failed) = look.sender();
        assert_eq!((done, failed), (link.flows[flow].posts.len(), None), "{label}");
        let runner = &world.runners[number][1 - flow];
        // Each message comes once, or twice if the network doubles packets; in order, if the
        // network keeps it.
        let times = if plan.faults.duplicate > 0 { 2 } else { 1 };
        let mut left: Vec<_> = link.flows[flow].posts.iter().map(|_| times).collect();
        let mut last = 0;
        for (wc, (_, recv)) in runner.got.iter().zip(&link.flows[flow].recvs) {
            assert_eq!((wc.id.0, wc.status), (recv.id, WcStatus::Success), "{label}");
            let from = if plan.keeps_order() { last } else { 0 };
            let came = (from..left.len()).find(|&op| {
                left[op] > 0 && look.is_message(wc, &link.flows[flow].posts[op].work, recv)
            });
            let came = came.unwrap_or_else(|| panic!("{label}: no message for {wc:?} was sent"));
            left[came] -= 1;
            last = came + 1;
        }
        assert!(runner.got.len() <= link.flows[flow].recvs.len(), "{label}");
        // Messages that were given up may have filled the rest of a receive, and begun another.
        for (_, recv) in link.flows[flow].recvs.iter().take(runner.got.len() + 1) {
            adopt(world, &recv.pieces, expected);
        }
        for post in &link.flows[flow].posts {
            look.memory(&post.work, false, false, false, expected);
        }
    }
}
