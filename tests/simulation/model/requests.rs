//! Requests, executed at the peer.

use roce::verbs::{Access, FlushLevel, WcOpcode, WcStatus};

use super::Verdict::{self, Failed, Wait};
use super::{AREA, Done, Model, Qp, Remote, Request, Work, message_len};

impl Model {
    pub(super) fn perform(&mut self, qp: usize, work: &Work) -> Verdict {
        let Qp { domain, peer, mtu, kind, .. } = self.qps[qp];
        match work.request {
            Request::Invalidate { key, low } => return self.invalidate(qp, key, low, Failed),
            Request::Bind { .. } => return self.bind(qp, &work.request),
            _ => {}
        }
        let sends = !matches!(
            work.request,
            Request::Read { .. }
                | Request::Swap { .. }
                | Request::Add { .. }
                | Request::Flush { .. }
        );
        if kind.is_datagram() && message_len(work) > mtu {
            return Failed(WcStatus::LocLenErr);
        }
        let Some(data) = (if sends { self.gather(domain, &work.local) } else { Some(Vec::new()) })
        else {
            return Failed(WcStatus::LocProtErr);
        };
        if !self.qps[peer].hears() {
            return if kind.is_reliable() { Failed(WcStatus::RetryExcErr) } else { Verdict::Done };
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
            Request::Invalidate { .. } | Request::Bind { .. } => unreachable!("executed locally"),
        };
        match verdict {
            // An unreliable sender gets no response.
            Wait | Failed(_) if !kind.is_reliable() => Verdict::Done,
            verdict => verdict,
        }
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

    /// The peer refuses a request: its receive, if it took one, completes with `taken`, and the
    /// peer fails. Who cannot tell keeps the receive, and goes on.
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
                // A responder that cannot invalidate the key fails without a NAK.
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

    /// A datagram that does not fit, or that finds no receive, is lost.
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
}
