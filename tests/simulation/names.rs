//! Names of the model's objects in an engine: keys, addresses, work requests, completions.

#![allow(clippy::cast_possible_truncation, reason = "whatever is counted here is small")]

use roce::engine::{CqHandle, Engine, MrHandle, QpHandle, SrqHandle};
use roce::verbs::{
    Data, LKey, MwBind, PostError, RecvWr, SendOp, SendWr, Sge, Target, Wc, WcStatus, WrId,
};
use roce::wire::RKey;

use super::model::{Done, Local, Piece, Recv, Remote, Request, Work};

/// The address of the first byte of every region: not where it happens to lie, so that two runs are
/// alike.
pub const BASE: u64 = 0x1000_0000;

/// A key that does not exist.
const NO_KEY: u32 = 0x5a5a_5a5a;

/// The keys of the model in the engines, by their numbers; the low byte of a window's counts from
/// the one it was made with.
#[derive(Debug, Default)]
pub struct Names(Vec<Name>);

#[derive(Clone, Copy, Debug)]
enum Name {
    Region(u32),
    Window(u32),
}

impl Names {
    pub fn add_region(&mut self, mr: MrHandle) {
        self.0.push(Name::Region(mr.rkey().get()));
    }

    pub fn add_window(&mut self, key: RKey) {
        self.0.push(Name::Window(key.get()));
    }

    fn lkey(&self, key: usize) -> LKey {
        LKey::new(self.rkey(key, 0).get())
    }

    /// The key to a region, or to a window with this low byte.
    pub fn rkey(&self, key: usize, low: u8) -> RKey {
        RKey::new(match self.0.get(key) {
            Some(Name::Region(number)) => *number,
            Some(Name::Window(number)) => number ^ u32::from(low),
            None => NO_KEY,
        })
    }

    fn sges(&self, pieces: &[Piece]) -> Vec<Sge> {
        let sge = |piece: &Piece| Sge {
            addr: BASE + piece.at as u64,
            length: piece.len as u32,
            lkey: self.lkey(piece.key),
        };
        pieces.iter().map(sge).collect()
    }

    fn remote(&self, remote: Remote) -> (u64, RKey) {
        (BASE + remote.at as u64, self.rkey(remote.key, remote.low))
    }

    fn op(&self, request: &Request) -> SendOp {
        match *request {
            Request::Send { imm } => SendOp::Send { imm },
            Request::SendWithInv { key, low } => SendOp::SendWithInv { rkey: self.rkey(key, low) },
            Request::Write { to, imm } => {
                let (remote_addr, rkey) = self.remote(to);
                SendOp::Write { remote_addr, rkey, imm }
            }
            Request::Read { from } => {
                let (remote_addr, rkey) = self.remote(from);
                SendOp::Read { remote_addr, rkey }
            }
            Request::Swap { at, compare, swap } => {
                let (remote_addr, rkey) = self.remote(at);
                SendOp::CompareSwap { remote_addr, rkey, compare, swap }
            }
            Request::Add { at, add } => {
                let (remote_addr, rkey) = self.remote(at);
                SendOp::FetchAdd { remote_addr, rkey, add }
            }
            Request::Store { at } => {
                let (remote_addr, rkey) = self.remote(at);
                SendOp::AtomicWrite { remote_addr, rkey }
            }
            Request::Flush { at, len, placement, level } => {
                let (remote_addr, rkey) = self.remote(at);
                SendOp::Flush { remote_addr, rkey, length: len as u32, placement, level }
            }
            Request::Invalidate { key, low } => SendOp::LocalInv { rkey: self.rkey(key, low) },
            Request::Bind { window, now, low, region, at, len, rights } => {
                let (mr, addr, length) = (self.lkey(region), BASE + at as u64, len as u64);
                let bind = MwBind { mr, addr, length, access: rights };
                SendOp::BindMw { mw: self.rkey(window, now), rkey: self.rkey(window, low), bind }
            }
        }
    }

    /// Posts a send.
    pub fn post(
        &self,
        engine: &mut Engine,
        qp: QpHandle,
        target: Target,
        work: &Work,
    ) -> Result<(), PostError> {
        let sges;
        let data = match &work.local {
            Local::Inline(bytes) => Data::Inline(bytes),
            Local::Pieces(pieces) => {
                sges = self.sges(pieces);
                Data::Gather(&sges)
            }
        };
        let (id, flags, op) = (WrId(work.id), work.flags, self.op(&work.request));
        engine.post_send(qp, &SendWr { id, data, flags, target, op }, &[])
    }

    /// Posts a receive.
    pub fn post_recv(
        &self,
        engine: &mut Engine,
        qp: QpHandle,
        recv: &Recv,
    ) -> Result<(), PostError> {
        let sges = self.sges(&recv.pieces);
        engine.post_recv(qp, &RecvWr { id: WrId(recv.id), sges: &sges })
    }

    /// Posts a receive to a shared queue.
    pub fn post_srq_recv(
        &self,
        engine: &mut Engine,
        srq: SrqHandle,
        recv: &Recv,
    ) -> Result<(), PostError> {
        let sges = self.sges(&recv.pieces);
        engine.post_srq_recv(srq, &RecvWr { id: WrId(recv.id), sges: &sges })
    }

    /// Whether a completion is the one that the model has.
    pub fn agree(&self, done: &Done, wc: &Wc) -> bool {
        if (done.id, done.status) != (wc.id.0, wc.status) {
            return false;
        }
        let invalidated = done.invalidated.map(|(key, low)| self.rkey(key, low));
        done.status != WcStatus::Success
            || (done.opcode, done.len, done.imm, invalidated)
                == (wc.opcode, wc.byte_len as usize, wc.imm(), wc.invalidated())
    }
}

/// Moves all completions of a queue to `out`; returns how many.
pub fn drain(engine: &mut Engine, cq: CqHandle, out: &mut Vec<Wc>) -> usize {
    let before = out.len();
    loop {
        let mut wcs = [Wc::default(); 16];
        let count = engine.poll_cq(cq, &mut wcs);
        out.extend_from_slice(&wcs[..count]);
        if count < wcs.len() {
            return out.len() - before;
        }
    }
}
