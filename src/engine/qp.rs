//! A queue pair: what it is, and what every part of it needs.

use std::collections::VecDeque;

use super::allocation::Promised;
use super::config::{Config, OBJECT_BYTES};
use super::counters::{Counter, Counters};
use super::cq::{Cq, Delivered, SendSlot};
use super::flows::{Flows, Share};
use super::hold;
use super::ids::{Place, Present, Table};
use super::keys::Keys;
use super::peer_port::PeerPort;
use super::queue::{RecvQueue, SendQueue, SendWqe};
use super::requester::Requester;
use super::responder::Responder;
use super::spread::Wq;
use super::srq::Srq;
use super::timers::{Timer, Timers};
use super::{AsyncEvent, Event};
use crate::memory::prefetch;
use crate::secret::SecretRandom;
use crate::time::Instant;
use crate::verbs::{
    AckTimeout, AhAttr, CqHandle, EventType, PdHandle, QpAttr, QpHandle, QpInitAttr, QpState,
    QpType, Spread, SrqHandle, StateRules, Wc, WcOpcode, WcStatus, WrId, XrcdHandle,
};
use crate::wire::{Gid, Opcode, PKey, Path, Qpn, Service};

/// All of the engine that a queue pair at work may need, but other queue pairs.
#[derive(Debug)]
pub(super) struct Env {
    pub(super) now: Instant,
    pub(super) config: Config,
    pub(super) keys: Keys,
    pub(super) cqs: Table<Cq>,
    pub(super) srqs: Table<Srq>,
    pub(super) ahs: Table<(PdHandle, AhAttr)>,
    pub(super) timers: Timers,
    pub(super) holds: hold::Queue,
    pub(super) flows: Flows,
    /// Queue pairs that may have something to send, in the order of their turns.
    pub(super) active: VecDeque<Place>,
    pub(super) events: VecDeque<Event>,
    /// Frames that wait to be sent.
    pub(super) frames: VecDeque<Vec<u8>>,
    /// Receive queues without a queue pair.
    pub(super) wqs: Table<Wq>,
    /// How much memory queues take, and may take.
    pub(super) promised: Promised,
    pub(super) counters: Counters,
    /// Where initial PSNs come from.
    pub(super) psns: SecretRandom,
}

impl Env {
    /// The identifier of the port at an index, if there is one.
    pub(super) fn gid(&self, index: u8) -> Option<Gid> {
        let gid = self.config.gids.get(usize::from(index)).copied();
        gid.filter(|gid| *gid != Gid::default())
    }

    pub(super) fn new(config: Config, random: &mut SecretRandom) -> Self {
        let limits = config.limits;
        Self {
            now: Instant::ZERO,
            keys: Keys::new(limits.keys, random),
            cqs: Table::new(limits.cqs),
            srqs: Table::numbered(limits.srqs, random),
            ahs: Table::new(limits.ahs),
            timers: Timers::default(),
            holds: hold::Queue::default(),
            flows: Flows::new(config.path_bytes),
            active: VecDeque::new(),
            events: VecDeque::new(),
            frames: VecDeque::new(),
            wqs: Table::numbered(limits.srqs, random),
            promised: Promised::new(limits.bytes),
            counters: Counters::default(),
            psns: random.split(),
            config,
        }
    }

    /// It is `now`, or later: threads that read the clock and then wait for the engine may come out of order, but
    /// time, and with it the time stamps of completions, never runs backwards.
    #[inline]
    pub(super) fn advance(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        self.now
    }

    pub(super) fn count(&mut self, counter: Counter) {
        self.counters.add(counter);
    }

    pub(super) fn raise(&mut self, event: AsyncEvent) {
        self.events.push_back(Event::Async(event));
    }

    /// Puts the completion of a receive in its queue; whether there was room.
    #[inline]
    pub(super) fn complete(&mut self, cq: CqHandle, wc: Wc, solicited: bool) -> bool {
        self.complete_for(cq, wc, None, solicited)
    }

    /// Puts a completion in its queue, which frees a slot of a send queue when it is polled; whether there was room.
    #[inline]
    pub(super) fn complete_for(
        &mut self,
        cq: CqHandle,
        wc: Wc,
        slot: Option<SendSlot>,
        solicited: bool,
    ) -> bool {
        let now = self.now;
        let Some(queue) = self.cqs.get_mut(cq.0) else { return false };
        match queue.push(wc, slot, solicited, now) {
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

/// A queue pair. What every message touches lies together at the front, in the order in which it is used, so that
/// few cache lines are needed however many queue pairs there are.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Qp {
    pub(super) present: Present,
    /// Changed by `set_state` alone.
    pub(super) state: QpState,
    /// What its state and its kind come to.
    pub(super) rules: StateRules,
    /// The service that its packets belong to.
    pub(super) service: Service,
    pub(super) kind: QpType,
    /// Whether it waits for its turn to send.
    pub(super) scheduled: bool,
    /// How long an acknowledgement may take.
    pub(super) timeout: AckTimeout,
    pub(super) pkey: PKey,
    pub(super) place: Place,
    pub(super) qpn: Qpn,
    pub(super) pd: PdHandle,
    pub(super) init: QpInitAttr,
    pub(super) sq: SendQueue,
    pub(super) req: Requester,
    pub(super) route: Path,
    /// The peer.
    pub(super) dest: Qpn,
    pub(super) port: PeerPort,
    pub(super) mtu: u32,
    /// How many packets may be unacknowledged.
    pub(super) window: u32,
    pub(super) timer: Timer,
    /// What it has under way.
    pub(super) share: Share,
    pub(super) send_cq: CqHandle,
    pub(super) recv_cq: CqHandle,
    pub(super) srq: Option<SrqHandle>,
    pub(super) rq: RecvQueue,
    pub(super) resp: Responder,
    pub(super) handle: QpHandle,
    pub(super) xrcd: Option<XrcdHandle>,
    /// How many multicast groups it is attached to.
    pub(super) groups: u32,
    /// When the next congestion notification may go out.
    pub(super) cnp_after: Instant,
    /// Whether the peer told of congestion and nobody has asked since.
    pub(super) congested: bool,
    /// As it was asked for, but for the state.
    pub(super) attr: QpAttr,
    /// Over which queues frames are spread, if they are.
    pub(super) spread: Option<Box<Spread>>,
}

impl Qp {
    /// How many bytes it takes when it is used as it may be.
    pub(super) fn bytes(&self) -> u64 {
        let sends = SendQueue::bytes(self.sq.depth(), &self.init.cap);
        OBJECT_BYTES + sends + RecvQueue::bytes(self.rq.depth(), self.rq.max_sge())
    }

    #[inline]
    pub(super) fn state(&self) -> QpState {
        self.state
    }

    /// Lets the processor fetch what every message touches, all of it at once: with many queue pairs it is far away.
    #[inline]
    pub(super) fn prefetch(&self) {
        prefetch(self, core::mem::offset_of!(Self, handle));
    }

    pub(super) fn set_state(&mut self, state: QpState) {
        (self.state, self.rules) = (state, state.rules_for(self.kind));
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
        Opcode(rc.0 | self.service.class())
    }

    /// Lets it have a turn to send.
    #[inline]
    pub(super) fn schedule(&mut self, env: &mut Env) {
        if !self.scheduled {
            self.scheduled = true;
            env.active.push_back(self.place);
        }
    }

    /// An event about it.
    pub(super) fn raise(&self, event: EventType, env: &mut Env) {
        env.raise(AsyncEvent::Qp(event, self.handle));
    }

    /// Completes a receive work request.
    pub(super) fn complete_recv(&mut self, wc: Wc, solicited: bool, env: &mut Env) {
        if !env.complete(self.recv_cq, wc, solicited) {
            self.fail_unheard(env);
        }
    }

    /// A completion was lost, and with it the promise that everything posted is told of: nothing goes on here.
    pub(super) fn fail_unheard(&mut self, env: &mut Env) {
        // Rule: Q-29.
        if self.state() != QpState::Err {
            self.raise(EventType::QpFatal, env);
            self.fail(env);
        }
    }

    /// Into the error state: everything that is posted is flushed, in order.
    pub(super) fn fail(&mut self, env: &mut Env) {
        // Rule: P-08.3.
        if matches!(self.state(), QpState::Err | QpState::Reset) {
            return;
        }
        self.set_state(QpState::Err);
        self.attr.en_sqd_async_notify = false;
        self.timer.clear();
        self.flush_send(env);
        self.flush_recv(env);
        if self.srq.is_some() || self.kind == QpType::XrcRecv {
            self.raise(EventType::QpLastWqeReached, env);
        }
    }

    /// The completion of a send, whether one was wanted or not; whether there was room for it.
    #[inline]
    pub(super) fn end_send(
        &self,
        index: u32,
        wqe: &SendWqe,
        status: WcStatus,
        env: &mut Env,
    ) -> bool {
        let mut wc = Wc::new(wqe.id(), status, wqe.opcode().completes_as(), self.qpn);
        if status.is_success() {
            wc = wc.with_byte_len(wqe.len());
        }
        let slot = SendSlot { qp: self.handle, index };
        env.complete_for(self.send_cq, wc, Some(slot), false)
    }

    /// Completes every send that is left as flushed.
    pub(super) fn flush_send(&mut self, env: &mut Env) {
        while !self.sq.is_empty() {
            let (index, wqe) = self.sq.pop();
            self.end_send(index, &wqe, WcStatus::WrFlushErr, env);
        }
        self.req.stop(self.sq.tail());
        env.flows.cleared(&mut self.share, &mut env.active);
    }

    /// Completes every receive that is left as flushed, the one that was begun first.
    pub(super) fn flush_recv(&mut self, env: &mut Env) {
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

    fn flush_one(&self, id: WrId, cq: CqHandle, env: &mut Env) {
        let wc = Wc::new(id, WcStatus::WrFlushErr, WcOpcode::Recv, self.qpn);
        env.complete(cq, wc, false);
    }
}
