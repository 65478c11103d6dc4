//! A whole RNIC as a state machine.
//!
//! An [`Engine`] is told everything and asks nothing: packets, the time, work that is posted. It answers with packets
//! to send, the next time it wants to be woken, completions and events. There is no socket, clock, thread or global
//! randomness in this room, so that the same code runs in a simulation under virtual time, on a socket, and inside a
//! program that believes in a network card. The same seed and the same inputs give the same bytes.
//!
//! Methods are of four kinds. Commands (`create_`, `modify_`, `post_`, `destroy_`) come from the program;
//! `handle_*` tell of packets and of time; `poll_*` drain what there is to send and to tell; the rest only look.
//! After any command or `handle_*`, [`poll_transmit`](Engine::poll_transmit), [`poll_event`](Engine::poll_event) and
//! [`poll_timeout`](Engine::poll_timeout) may have something new.
//!
//! | file | holds |
//! |---|---|
//! | `ids` | numbers that cannot be guessed, and the tables behind them |
//! | `keys` | memory regions and windows: every check of a key |
//! | `queue`, `cq`, `srq` | work queues, completion queues, shared receive queues |
//! | `qp` | what every part of a queue pair needs; errors and flushing |
//! | `modify` | a queue pair's way through its states |
//! | `requester` | which packet goes out next |
//! | `completer` | what answers complete, and what they make the requester send again |
//! | `responder` | requests checked and executed |
//! | `reads` | reads, atomics and flushes, and their answers given again |
//! | `receive` | where a message takes a receive work request, and how its bytes get there |
//! | `flows` | what all queue pairs together may have under way to one peer |
//! | `hold` | acknowledgements that wait for the next |
//! | `owed`, `answers` | answers that are owed, and on their way out, in their order |
//! | `pieces` | messages in lists of buffers |
//! | `route` | the way to a peer |
//! | `peer_port` | from which UDP port a peer's packets come |
//! | `datagram` | UD, GSI and multicast |
//! | `allocation` | allocations that may fail, and how much memory was promised |
//! | `timers`, `counters`, `config` | deadlines, names for everything refused, every bound |
#![forbid(unsafe_code)]

mod allocation;
mod answers;
mod completer;
mod config;
mod counters;
mod cq;
mod datagram;
mod flows;
mod frames;
mod hold;
mod ids;
mod keys;

mod modify;
mod objects;
mod owed;
mod peer_port;
mod pieces;
mod qp;
mod queue;
mod reads;
mod receive;
mod requester;
mod responder;
mod route;
mod spread;
mod srq;
mod timers;

use std::collections::{BTreeMap, VecDeque};

pub use crate::secret::Seed;
pub use crate::verbs::{
    AsyncEvent, CqHandle, CreateError, DestroyError, FlowHandle, FlowRule, KeyError, MrAttr,
    MrHandle, MwHandle, Notify, PdHandle, QpCreate, QpHandle, Spread, SrqCreate, SrqHandle,
    WqHandle, WqState, XrcdHandle,
};
pub use crate::wire::{Batch, ICRC_ROOM, PACKET_MAX, Received, Train};
pub use config::{Config, Limits, PORT_SILENCE};
pub use counters::{Counter, Counters};

use crate::secret::SecretRandom;
use crate::time::Instant;
use crate::verbs::{Mtu, PostError, Posting, QpState, QpType, RecvWr, SendWr, Wc};
use crate::wire::{Bth, Gid, Opcode, Packet, Qpn, Role, Service};
use cq::{Armed, Cq, SendSlot};
use frames::{FRAMES_MAX, Steering};
use ids::{Place, Table};
use qp::{Env, Qp};
use requester::Step;

/// Something a program may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A completion queue has what an event was asked for.
    Completion(CqHandle),
    /// Something happened beside the work.
    Async(AsyncEvent),
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// A queue pair took it in.
    Accepted,
    /// It was dropped, and counted.
    Dropped(Counter),
}

/// A software RNIC.
#[derive(Debug)]
pub struct Engine {
    qps: Table<Qp>,
    /// The queue pair that is number 1 on the wire.
    gsi: Option<QpHandle>,
    groups: BTreeMap<[u8; 16], Vec<QpHandle>>,
    pds: Table<()>,
    xrcds: Table<()>,
    env: Env,
    /// Queue pairs whose peers told of congestion, each once.
    congested: VecDeque<Place>,
    /// Rules that steer frames, the most important first.
    rules: Vec<Steering>,
    /// How many there ever were.
    rules_made: u32,
}

impl Engine {
    /// An engine with no objects. Its numbers, keys and initial PSNs follow from `seed`, which in a live NIC is secret: 128
    /// bits from the operating system ([`Seed::from_bytes`]).
    pub fn new(config: Config, seed: impl Into<Seed>) -> Self {
        let mut random = SecretRandom::new(seed.into());
        let limits = config.limits;
        Self {
            pds: Table::new(limits.pds),
            xrcds: Table::new(limits.pds),
            qps: Table::numbered(limits.qps, &mut random),
            gsi: None,
            groups: BTreeMap::new(),
            env: Env::new(config, &mut random),
            congested: VecDeque::new(),
            rules: Vec::new(),
            rules_made: 0,
        }
    }

    /// What it was told when it was made.
    pub fn config(&self) -> &Config {
        &self.env.config
    }

    /// How often everything happened that is counted.
    pub fn counters(&self) -> &Counters {
        &self.env.counters
    }

    /// The queue pair at a place, and the rest of the engine.
    #[inline]
    fn split(&mut self, place: Place) -> Option<(&mut Qp, &mut Env)> {
        let qp = self.qps.at_mut(place)?;
        qp.prefetch();
        Some((qp, &mut self.env))
    }

    #[inline]
    fn split_handle(&mut self, handle: QpHandle) -> Option<(&mut Qp, &mut Env)> {
        let place = self.qps.place(handle.0)?;
        self.split(place)
    }

    /// The queue pair that a number on the wire names.
    #[inline]
    fn find_qp(&self, qpn: Qpn) -> Option<Place> {
        match qpn {
            Qpn::GSI => self.qps.place(self.gsi?.0),
            qpn => {
                let place = self.qps.find(qpn.get())?;
                // The general services queue pair goes by no other number.
                self.qps.at(place).is_some_and(|qp| qp.qpn == qpn).then_some(place)
            }
        }
    }

    /// Takes a packet in, which came at `now`.
    pub fn handle_packet(&mut self, now: Instant, received: &Received<'_>) -> Disposition {
        self.env.advance(now);
        self.env.counters.add(Counter::Received);
        match self.accept(received) {
            Ok(()) => Disposition::Accepted,
            Err(reason) => {
                self.env.counters.add(reason);
                Disposition::Dropped(reason)
            }
        }
    }

    /// Everything that is checked before a queue pair is touched, in the order in which rxe checks it.
    fn accept(&mut self, received: &Received<'_>) -> Result<(), Counter> {
        // Rule: W-51.2.
        let packet = Packet::parse(received.packet).map_err(|_| Counter::Truncated)?;
        let bth = packet.bth();
        // Rule: W-51.1.
        if bth.tver().get() != 0 {
            return Err(Counter::BadVersion);
        }
        let Some(info) = packet.info() else { return self.accept_unassigned(received, bth) };
        if bth.dest_qp() == Qpn::MULTICAST {
            return self.accept_multicast(received, &packet);
        }
        let place = self.find_qp(bth.dest_qp()).ok_or(Counter::NoQp)?;
        let (qp, env) = self.split(place).ok_or(Counter::NoQp)?;
        if info.service == Service::Cnp {
            if bth.opcode() != Opcode::CNP {
                return Err(Counter::BadOpcode);
            }
            if !qp.is_peer(received) {
                return Err(Counter::WrongPeer);
            }
            if !qp.rules.requests && !qp.rules.responses {
                return Err(Counter::WrongState);
            }
            env.count(Counter::CnpReceived);
            if !core::mem::replace(&mut qp.congested, true) {
                self.congested.push_back(place);
            }
            return Ok(());
        }
        if info.service != qp.service || qp.kind == QpType::RawPacket {
            return Err(Counter::WrongService);
        }
        if qp.kind.is_datagram() {
            return qp.handle_datagram(received, &packet, env);
        }
        // Rule: S-02.2.
        let heard = match info.role {
            Role::Request => qp.rules.requests,
            Role::Response => qp.rules.responses,
            Role::Notification => return Err(Counter::BadOpcode),
        };
        if !heard {
            return Err(Counter::WrongState);
        }
        if !qp.is_peer(received) {
            return Err(Counter::WrongPeer);
        }
        if !qp.port.admits(received.source_port, env) {
            return Err(Counter::WrongPort);
        }
        if !qp.pkey.matches(bth.pkey()) {
            return Err(Counter::BadPKey);
        }
        qp.note_congestion(received.ecn, env);
        let before = qp.progress();
        if info.role == Role::Request {
            qp.handle_request(&packet, env);
        } else {
            qp.handle_response(&packet, env);
        }
        if qp.progress() != before {
            qp.port.learn(received.source_port, env.now);
        }
        Ok(())
    }

    /// A reliable connection refuses an opcode of its own service that nobody has assigned; others drop it.
    fn accept_unassigned(&mut self, received: &Received<'_>, bth: &Bth) -> Result<(), Counter> {
        let place = self.find_qp(bth.dest_qp()).ok_or(Counter::BadOpcode)?;
        let (qp, env) = self.split(place).ok_or(Counter::BadOpcode)?;
        let ours = qp.kind.is_reliable()
            && qp.opcode(Opcode(bth.opcode().0 & 0x1f)) == bth.opcode()
            && qp.is_peer(received)
            && qp.port.admits(received.source_port, env)
            && qp.pkey.matches(bth.pkey())
            && qp.rules.requests;
        if !ours {
            return Err(Counter::BadOpcode);
        }
        qp.handle_unassigned(bth.psn(), env);
        Ok(())
    }

    /// Does what is due at `now`. Calls that come too early or too often do no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        let now = self.env.advance(now);
        while let Some((promised, place)) = self.env.timers.pop_due(now) {
            let Some((qp, env)) = self.split(place) else { continue };
            let mut timer = qp.timer;
            let due = timer.is_due(promised, now, place, &mut env.timers);
            qp.timer = timer;
            if due {
                qp.handle_timer(env);
            }
        }
        self.release(Some(now));
    }

    /// Lets nothing be held back any longer: what was is there to be sent.
    pub fn release_held(&mut self) {
        self.release(None);
    }

    fn release(&mut self, now: Option<Instant>) {
        while let Some((until, place)) = self.env.holds.pop(now) {
            if let Some((qp, env)) = self.split(place) {
                qp.hold_no_longer(until, env);
            }
        }
    }

    /// The next time [`handle_timeout`](Self::handle_timeout) wants to be called. May change after any command or
    /// `handle_*`, and after [`poll_transmit`](Self::poll_transmit).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (timer, hold) = (self.env.timers.next(), self.env.holds.next());
        timer.into_iter().chain(hold).min()
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) may have something.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        !self.env.active.is_empty()
    }

    /// Puts packets to send into `batch` until it is full or there are none; returns how many it put in. Queue pairs
    /// take turns. May have more after any command or `handle_*`.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Instant, batch: &mut Batch) -> usize {
        self.transmit(now, batch, false)
    }

    /// The same, but of a queue pair that sends requests and owes but an acknowledgement, the latter may be held back
    /// for as long as [`Config::ack_hold`] says: whoever will soon call again sends first what the peer waits for most.
    #[must_use]
    pub fn poll_transmit_first(&mut self, now: Instant, batch: &mut Batch) -> usize {
        self.transmit(now, batch, true)
    }

    fn transmit(&mut self, now: Instant, batch: &mut Batch, first: bool) -> usize {
        self.env.advance(now);
        let before = batch.len();
        while !batch.is_full() && self.env.frames.len() < FRAMES_MAX {
            let Some(place) = self.env.active.pop_front() else { break };
            let quantum = self.env.config.quantum;
            if let Some(next) = self.env.active.front().and_then(|next| self.qps.at(*next)) {
                next.prefetch();
            }
            let Some((qp, env)) = self.split(place) else { continue };
            qp.scheduled = false;
            let turn = qp.take_turn(quantum, first, env, batch);
            env.flows.wake(&qp.share, &mut env.active);
            if turn == Turn::Again {
                qp.schedule(env);
            }
        }
        batch.len() - before
    }

    /// Moves completions of a queue to `out`, oldest first; returns how many. May have more after any command or
    /// `handle_*`, and after [`poll_transmit`](Self::poll_transmit).
    pub fn poll_cq(&mut self, cq: CqHandle, out: &mut [Wc]) -> usize {
        let Self { qps, env, .. } = self;
        let Some(cq) = env.cqs.get_mut(cq.0) else { return 0 };
        cq.poll(out, |slot| release_slot(qps, slot))
    }

    /// From now on it is known of each completion of this queue when it came.
    pub fn keep_time(&mut self, now: Instant, cq: CqHandle) -> Result<(), CreateError> {
        let now = self.env.advance(now);
        let missing = CreateError::NotFound("completion queue");
        let known = self.env.cqs.get(cq.0).ok_or(missing)?;
        let bytes = if known.keeps_time() { 0 } else { Cq::stamp_bytes(known.capacity) };
        self.promise(bytes, |engine| {
            Ok(engine.env.cqs.get_mut(cq.0).ok_or(missing)?.keep_time(now)?)
        })
    }

    /// Moves the oldest completion of a queue out, and tells when it came if that is [kept](Self::keep_time).
    pub fn poll_cq_timed(&mut self, cq: CqHandle) -> Option<(Wc, Option<Instant>)> {
        let (wc, slot, time) = self.env.cqs.get_mut(cq.0)?.poll_timed()?;
        if let Some(slot) = slot {
            release_slot(&mut self.qps, slot);
        }
        Some((wc, time))
    }

    /// The next event. May have more whenever completions may.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.env.events.pop_front()
    }

    /// The next queue pair whose peer told that its packets met congestion, for whoever limits rates. It is named
    /// once, however often its peer told since it was named last; who limits no rates need not ask. May have more
    /// after [`handle_packet`](Self::handle_packet).
    #[must_use]
    pub fn poll_congestion(&mut self) -> Option<QpHandle> {
        let qp = self.qps.at_mut(self.congested.pop_front()?)?;
        qp.congested = false;
        Some(qp.handle)
    }

    /// Asks for an event when a completion comes. One that is there already does not count: poll once more.
    pub fn request_notify(&mut self, cq: CqHandle, notify: Notify) {
        if let Some(cq) = self.env.cqs.get_mut(cq.0) {
            cq.arm(match notify {
                Notify::Next => Armed::Any,
                Notify::Solicited => Armed::Solicited,
            });
        }
    }

    /// Posts a send. If it is inline and its data are addresses, `inline` must hold the bytes that are there.
    pub fn post_send(
        &mut self,
        handle: QpHandle,
        wr: &SendWr<'_>,
        inline: &[u8],
    ) -> Result<(), PostError> {
        let (qp, env) = self.split_handle(handle).ok_or(PostError::WrongState(QpState::Reset))?;
        qp.queue_send(wr, inline)?;
        qp.sends_queued(env);
        Ok(())
    }

    /// Posts sends, all of them or none.
    pub fn post_sends<'w>(
        &mut self,
        handle: QpHandle,
        wrs: impl IntoIterator<Item = SendWr<'w>>,
    ) -> Result<(), PostError> {
        let (qp, env) = self.split_handle(handle).ok_or(PostError::WrongState(QpState::Reset))?;
        let before = qp.sq.tail();
        for wr in wrs {
            qp.queue_send(&wr, &[]).inspect_err(|_| qp.sq.take_back(before))?;
        }
        qp.sends_queued(env);
        Ok(())
    }

    /// Posts a receive.
    pub fn post_recv(&mut self, handle: QpHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let (qp, env) = self.split_handle(handle).ok_or(PostError::WrongState(QpState::Reset))?;
        if qp.srq.is_some() || !qp.kind.has_receive_queue() {
            return Err(PostError::NoReceiveQueue);
        }
        match qp.rules.post_recv {
            Posting::Refused => return Err(PostError::WrongState(qp.state())),
            Posting::Queued | Posting::Accepted => qp.rq.push(wr)?,
            Posting::Flushed => {
                qp.rq.push(wr)?;
                qp.flush_recv(env);
            }
        }
        Ok(())
    }

    /// Posts a receive to a shared queue.
    pub fn post_srq_recv(&mut self, srq: SrqHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.env.srqs.get_mut(srq.0).ok_or(PostError::NoReceiveQueue)?.queue.push(wr)
    }

    /// The MTU of the port changed. Queue pairs that are connected keep theirs.
    pub fn set_port_mtu(&mut self, mtu: Mtu) {
        self.env.config.port_mtu = mtu;
    }

    /// The identifiers of the port changed; zero is none.
    pub fn set_gids(&mut self, gids: Vec<Gid>) {
        self.env.config.gids = gids;
    }
}

/// A completion was polled: the slot of its work request is free, if the queue pair is still there.
#[inline]
fn release_slot(qps: &mut Table<Qp>, slot: SendSlot) {
    if let Some(qp) = qps.get_mut(slot.qp.0) {
        qp.sq.release_through(slot.index);
    }
}

/// How the turn of a queue pair ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It has nothing more to send.
    Over,
    /// It has more to send when the others had their turn.
    Again,
}

impl Qp {
    /// Sends what it may in one turn.
    ///
    /// Answers go first, because somebody waits for them. If they took the whole turn the next begins with requests:
    /// a peer that asks without end does not silence this side.
    ///
    /// But nobody waits as much for an acknowledgement as for what the peer gets in return. It goes last, and is short
    /// enough to be taken along by a network that takes packets of one length at once, of which the last may be shorter;
    /// or, of the `first` things to be sent, it may be none. It is not passed over twice.
    fn take_turn(&mut self, quantum: usize, first: bool, env: &mut Env, batch: &mut Batch) -> Turn {
        let acknowledges = self.resp.may_acknowledge_later();
        let mut requests_first = core::mem::take(&mut self.req.waited) || acknowledges;
        let (mut waited, before) = (true, batch.len());
        batch.set_path(&self.route);
        for _ in 0..quantum {
            if batch.is_full() {
                break;
            }
            if self.resp.owes() && !requests_first {
                self.answer_next(env, batch);
                continue;
            }
            waited = false;
            if self.send_next(env, batch) == Step::Blocked {
                if !self.resp.owes() {
                    return Turn::Over;
                }
                let may_hold = self.resp.hold.is_on() || first && batch.len() > before;
                if acknowledges && requests_first && may_hold && self.hold_acknowledgement(env) {
                    return Turn::Over;
                }
                requests_first = false;
            }
        }
        self.req.waited = waited;
        self.resp.passed_over = acknowledges && !self.resp.hold.is_on();
        Turn::Again
    }

    /// Whether the acknowledgement that is owed is held back.
    fn hold_acknowledgement(&mut self, env: &mut Env) -> bool {
        let hold = env.config.ack_hold;
        let until = env.now.saturating_add(hold);
        !hold.is_zero() && self.resp.hold.begin(until, self.place, &mut env.holds)
    }

    /// Whether a packet comes from the peer it is connected to.
    fn is_peer(&self, received: &Received<'_>) -> bool {
        // Rule: Q-20.
        self.kind.is_connected()
            && received.source == self.route.destination
            && received.destination == self.route.source
    }

    /// A switch marked the packet: the peer shall send less. Not oftener than is useful.
    fn note_congestion(&mut self, ecn: u8, env: &mut Env) {
        const CONGESTION_EXPERIENCED: u8 = 3;
        if ecn != CONGESTION_EXPERIENCED {
            return;
        }
        env.count(Counter::CongestionMarked);
        if env.now >= self.cnp_after {
            self.cnp_after = env.now.saturating_add(env.config.cnp_interval);
            self.resp.cnp_owed = true;
            self.schedule(env);
        }
    }
}
