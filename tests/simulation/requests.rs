//! Requests that there is nothing wrong with.

use std::time::Duration;

use roce::verbs::{FlushLevel, FlushPlacement, QpType, SendFlags};

use super::author::{Author, INLINE};
use super::model::{Local, Piece, Recv, Remote, Request, Work, message_len, takes_receive};
use super::plan::{Key, Link, Post, RECV, Race};

impl Author {
    pub fn flags(&mut self) -> SendFlags {
        let mut flags = SendFlags::empty();
        for (flag, set) in [
            (SendFlags::SIGNALED, !self.dice.one_in(4)),
            (SendFlags::FENCE, self.dice.one_in(8)),
            (SendFlags::SOLICITED, self.dice.one_in(3)),
        ] {
            flags.set(flag, set);
        }
        flags
    }

    /// Random bytes at an end, to be sent: in pieces, or inline.
    pub fn outgoing(&mut self, home: usize, len: usize) -> Local {
        let bytes = self.dice.bytes(len);
        if len <= INLINE && self.dice.one_in(3) {
            return Local::Inline(bytes);
        }
        let at = self.place(home, &bytes);
        Local::Pieces(self.split(Piece { key: home, at, len }))
    }

    /// Room at an end, for an answer.
    pub fn incoming(&mut self, home: usize, len: usize) -> Local {
        let piece = self.room(home, len);
        Local::Pieces(self.split(piece))
    }

    /// Adds a request to a flow, with a receive if it takes one.
    pub fn push(&mut self, link: &mut Link, flow: usize, request: Request, local: Local) -> usize {
        let op = link.flows[flow].posts.len();
        let work = Work { id: op as u64, request, local, flags: self.flags() };
        let (far, len) = (&link.ends[1 - flow], message_len(&work));
        if takes_receive(&request) {
            match far.srq {
                Some(srq) => {
                    let srq = &mut self.plan.srqs[srq];
                    (srq.room, srq.messages) = (srq.room.max(len), srq.messages + 1);
                }
                None => {
                    let slack = if self.dice.one_in(2) { 0 } else { self.dice.below(40) };
                    let piece = self.room(link.ends[1 - flow].home, len + slack);
                    let recv = Recv { id: RECV | op as u64, pieces: self.split(piece) };
                    link.flows[flow].recvs.push((Duration::ZERO, recv));
                }
            }
        }
        link.flows[flow].posts.push(Post { at: Duration::ZERO, after: None, work });
        op
    }

    /// Adds a request that there is nothing wrong with.
    pub fn push_good(&mut self, link: &mut Link, flow: usize) {
        let (near, far) = (link.ends[flow].home, link.ends[1 - flow].home);
        let len = self.size(link.mtu.bytes());
        let imm = self.dice.imm();
        let unreliable = link.kind == QpType::Uc;
        let (request, local) = match self.dice.below(if unreliable { 6 } else { 15 }) {
            0..3 => (Request::Send { imm }, self.outgoing(near, len)),
            3..6 => {
                let at = self.room(far, len).at;
                let to = Remote { key: far, low: 0, at };
                (Request::Write { to, imm }, self.outgoing(near, len))
            }
            6..9 => {
                let content = self.dice.bytes(len);
                let at = self.place(far, &content);
                let from = Remote { key: far, low: 0, at };
                (Request::Read { from }, self.incoming(near, len))
            }
            9 => {
                let first = self.dice.roll();
                let at = self.place(far, &first.to_ne_bytes());
                let compare = if self.dice.one_in(2) { first } else { self.dice.roll() };
                let at = Remote { key: far, low: 0, at };
                let swap = self.dice.roll();
                (Request::Swap { at, compare, swap }, self.incoming(near, 8))
            }
            10 => {
                let first = self.dice.roll();
                let at = self.place(far, &first.to_ne_bytes());
                let at = Remote { key: far, low: 0, at };
                (Request::Add { at, add: self.dice.roll() }, self.incoming(near, 8))
            }
            11 => {
                let at = self.room(far, 8).at;
                (Request::Store { at: Remote { key: far, low: 0, at } }, self.outgoing(near, 8))
            }
            12 => {
                let level = self.dice.pick(&[FlushLevel::Range, FlushLevel::Mr]);
                let placement = self.dice.pick(&[
                    FlushPlacement::GLOBAL,
                    FlushPlacement::PERSISTENT,
                    FlushPlacement::all(),
                ]);
                let at = Remote { key: far, low: 0, at: 0 };
                (Request::Flush { at, len: 8, placement, level }, Local::Pieces(Vec::new()))
            }
            13 => return self.push_echo(link, flow, len),
            _ => return self.push_relay(link, flow, len),
        };
        self.push(link, flow, request, local);
    }

    /// A write, and a read of what was written.
    pub fn push_echo(&mut self, link: &mut Link, flow: usize, len: usize) {
        let (near, far) = (link.ends[flow].home, link.ends[1 - flow].home);
        let place = Remote { key: far, low: 0, at: self.room(far, len).at };
        let local = self.outgoing(near, len);
        self.push(link, flow, Request::Write { to: place, imm: None }, local);
        let local = self.incoming(near, len);
        self.push(link, flow, Request::Read { from: place }, local);
    }

    /// A read, and a write of what was read behind a fence.
    pub fn push_relay(&mut self, link: &mut Link, flow: usize, len: usize) {
        let (near, far) = (link.ends[flow].home, link.ends[1 - flow].home);
        let content = self.dice.bytes(len);
        let from = Remote { key: far, low: 0, at: self.place(far, &content) };
        let local = self.incoming(near, len);
        self.push(link, flow, Request::Read { from }, local.clone());
        let to = Remote { key: far, low: 0, at: self.room(far, len).at };
        let op = self.push(link, flow, Request::Write { to, imm: None }, local);
        link.flows[flow].posts[op].work.flags |= SendFlags::FENCE;
    }

    /// Adds a request that changes a number which others change, too, if there is one.
    pub fn push_race(&mut self, link: &mut Link, flow: usize) {
        let nic = link.ends[1 - flow].nic;
        let of_nic =
            |key: usize| matches!(self.plan.keys[key], Key::Region { nic: n, .. } if n == nic);
        let all = self.plan.races.iter().enumerate().filter(|(_, race)| of_nic(race.key));
        let all: Vec<_> = all.map(|(number, _)| number).collect();
        if all.is_empty() {
            return;
        }
        let race = self.dice.pick(&all);
        let Race { key, at, .. } = self.plan.races[race];
        let place = Remote { key, low: 0, at };
        let request = if self.dice.one_in(2) {
            Request::Add { at: place, add: self.dice.roll() }
        } else {
            let compare = self.guess(race);
            Request::Swap { at: place, compare, swap: self.dice.roll() }
        };
        let local = Local::Pieces(vec![self.room(link.ends[flow].home, 8)]);
        let op = self.push(link, flow, request, local);
        let number = self.plan.links.len();
        self.plan.races[race].ops.push((number, flow, op));
    }

    /// A value that a number may have: its first, or one that was swapped in.
    pub fn guess(&mut self, race: usize) -> u64 {
        let Race { key, at, ref ops } = self.plan.races[race];
        let Key::Region { bytes, .. } = &self.plan.keys[key] else { unreachable!("a region") };
        let mut values = vec![u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())];
        for &(link, flow, op) in ops {
            let Some(link) = self.plan.links.get(link) else { continue };
            if let Request::Swap { swap, .. } = link.flows[flow].posts[op].work.request {
                values.push(swap);
            }
        }
        self.dice.pick(&values)
    }
}
