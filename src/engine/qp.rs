//! A queue pair: what it is, and what every part of it needs.

use std::collections::VecDeque;

use super::config::Config;
use super::counters::{Counter, Counters};
use super::cq::{Cq, CqHandle, Delivered};
use super::ids::{Place, Table};
use super::keys::Keys;
use super::pd::PdHandle;
use super::queue::{RecvQueue, SendQueue};
use super::requester::Requester;
use super::responder::Responder;
use super::srq::{Srq, SrqHandle, XrcdHandle};
use super::timers::{Timer, Timers};
use super::{AsyncEvent, Event};
use crate::time::Instant;
use crate::verbs::{
    AhAttr, EventType, QpAttr, QpInitAttr, QpState, QpType, Wc, WcOpcode, WcStatus, WrId,
};
use crate::wire::{Opcode, PKey, Path, Qpn, Service};

/// A queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpHandle(pub(super) u32);

/// The rest of the engine, while one queue pair is at work.
pub(super) struct Env<'a> {
    pub(super) now: Instant,
    pub(super) config: &'a Config,
    pub(super) keys: &'a mut Keys,
    pub(super) cqs: &'a mut Table<Cq>,
    pub(super) srqs: &'a mut Table<Srq>,
    pub(super) ahs: &'a Table<(PdHandle, AhAttr)>,
    pub(super) timers: &'a mut Timers,
    pub(super) active: &'a mut VecDeque<Place>,
    pub(super) events: &'a mut VecDeque<Event>,
    pub(super) counters: &'a mut Counters,
}

impl Env<'_> {
    pub(super) fn count(&mut self, counter: Counter) {
        self.counters.add(counter);
    }

    pub(super) fn raise(&mut self, event: AsyncEvent) {
        self.events.push_back(Event::Async(event));
    }

    /// Puts a completion in its queue; whether there was room.
    #[inline]
    pub(super) fn complete(&mut self, cq: CqHandle, wc: Wc, solicited: bool) -> bool {
        let Some(queue) = self.cqs.get_mut(cq.0) else { return false };
        match queue.push(wc, solicited) {
            Delivered::Quietly => true,
            Delivered::WithEvent => {
                self.events.push_back(Event::Completion(cq));
                true
            }
            Delivered::Overrun => {
                self.raise(AsyncEvent::Cq(EventType::CqErr, cq));
                false
            }
            Delivered::Lost => false,
        }
    }
}

#[derive(Debug)]
pub(super) struct Qp {
    pub(super) place: Place,
    pub(super) handle: QpHandle,
    pub(super) qpn: Qpn,
    pub(super) kind: QpType,
    pub(super) pd: PdHandle,
    pub(super) send_cq: CqHandle,
    pub(super) recv_cq: CqHandle,
    pub(super) srq: Option<SrqHandle>,
    pub(super) xrcd: Option<XrcdHandle>,
    pub(super) init: QpInitAttr,
    pub(super) attr: QpAttr,
    pub(super) route: Path,
    pub(super) mtu: u32,
    pub(super) pkey: PKey,
    pub(super) sq: SendQueue,
    pub(super) rq: RecvQueue,
    pub(super) timer: Timer,
    /// Whether it waits for its turn to send.
    pub(super) scheduled: bool,
    /// How many multicast groups it is attached to.
    pub(super) groups: u32,
    /// When the next congestion notification may go out.
    pub(super) cnp_after: Instant,
    /// Whether the peer told of congestion and nobody has asked since.
    pub(super) congested: bool,
    pub(super) req: Requester,
    pub(super) resp: Responder,
}

impl Qp {
    pub(super) fn state(&self) -> QpState {
        self.attr.qp_state
    }

    /// The service that its packets belong to.
    pub(super) fn service(&self) -> Service {
        match self.kind {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
            QpType::Ud | QpType::Gsi | QpType::RawPacket | QpType::Driver => Service::Ud,
        }
    }

    /// Whose the windows of type 2 are that it binds, shows or invalidates: its own. But an XRC initiator serves no
    /// requests and a target binds nothing, so what the one binds is for the other, and goes by a number that neither
    /// has.
    #[inline]
    pub(super) fn owner(&self) -> Qpn {
        match self.kind {
            QpType::XrcSend | QpType::XrcRecv => Qpn::MULTICAST,
            _ => self.qpn,
        }
    }

    /// The opcode of its own service for an operation that RC has too.
    #[inline]
    pub(super) fn opcode(&self, rc: Opcode) -> Opcode {
        let class = match self.service() {
            Service::Rc => 0,
            Service::Uc => 1,
            Service::Rd => 2,
            Service::Ud => 3,
            Service::Cnp => 4,
            Service::Xrc => 5,
        };
        Opcode(rc.0 | class << 5)
    }

    /// Lets it have a turn to send.
    pub(super) fn schedule(&mut self, env: &mut Env<'_>) {
        if !self.scheduled {
            self.scheduled = true;
            env.active.push_back(self.place);
        }
    }

    /// An event about it.
    pub(super) fn raise(&self, event: EventType, env: &mut Env<'_>) {
        env.raise(AsyncEvent::Qp(event, self.handle));
    }

    /// Completes a receive work request.
    pub(super) fn complete_recv(&mut self, wc: Wc, solicited: bool, env: &mut Env<'_>) {
        if !env.complete(self.recv_cq, wc, solicited) {
            self.fail_unheard(env);
        }
    }

    /// A completion was lost, and with it the promise that everything posted is told of: nothing goes on here.
    pub(super) fn fail_unheard(&mut self, env: &mut Env<'_>) {
        if self.state() != QpState::Err {
            self.raise(EventType::QpFatal, env);
            self.fail(env);
        }
    }

    /// Into the error state: everything that is posted is flushed, in order.
    pub(super) fn fail(&mut self, env: &mut Env<'_>) {
        if matches!(self.state(), QpState::Err | QpState::Reset) {
            return;
        }
        self.attr.qp_state = QpState::Err;
        self.attr.en_sqd_async_notify = false;
        self.timer.clear();
        self.flush_send(env);
        self.flush_recv(env);
        if self.srq.is_some() || self.kind == QpType::XrcRecv {
            self.raise(EventType::QpLastWqeReached, env);
        }
    }

    /// Completes every send that is left as flushed.
    pub(super) fn flush_send(&mut self, env: &mut Env<'_>) {
        while !self.sq.is_empty() {
            let wqe = self.sq.pop();
            let opcode = wqe.opcode().completes_as();
            let wc = Wc::new(wqe.id(), WcStatus::WrFlushErr, opcode, self.qpn);
            env.complete(self.send_cq, wc, false);
        }
        self.req.stop(self.sq.tail());
    }

    /// Completes every receive that is left as flushed, the one that was begun first.
    pub(super) fn flush_recv(&mut self, env: &mut Env<'_>) {
        if let Some((taken, srq)) = self.resp.abandon()
            && let Some(queue) = self.recv_queue(srq, env)
        {
            // Even one of a shared queue cannot go back once it was begun.
            let id = queue.release(taken);
            let cq = self.recv_cq_of(srq, env);
            self.flush_one(id, cq, env);
        }
        while let Some(taken) = self.rq.take() {
            let id = self.rq.release(taken);
            self.flush_one(id, self.recv_cq, env);
        }
    }

    fn flush_one(&self, id: WrId, cq: CqHandle, env: &mut Env<'_>) {
        let wc = Wc::new(id, WcStatus::WrFlushErr, WcOpcode::Recv, self.qpn);
        env.complete(cq, wc, false);
    }
}
