//! An RNIC as a sans-IO state machine.
//!
//! Packets, the time and posted work go into an [`Engine`]; packets to send, the next deadline,
//! completions and events come out. It uses no socket, clock, thread or global randomness, so that
//! the same code runs in a simulation under virtual time, on a socket, and inside a program that
//! uses it as a network card. The same seed and the same inputs give the same bytes.
//!
//! Methods are of four kinds. Commands (`create_`, `modify_`, `post_`, `destroy_`) come from the
//! program; `handle_*` take packets and the time; `poll_*` return packets to send, completions and
//! events; the others only read. After any command or `handle_*`,
//! [`poll_transmit`](Engine::poll_transmit), [`poll_event`](Engine::poll_event) and
//! [`poll_timeout`](Engine::poll_timeout) may have something new.
//!
//! ```
//! use roce::engine::{Config, Counter, Engine};
//! use roce::memory::Buffer;
//! use roce::verbs::{Access, MrAttr};
//! use roce::wire::Gid;
//!
//! let gid = Gid::from(std::net::Ipv4Addr::new(192, 0, 2, 1));
//! let seed = 7;
//! let mut engine = Engine::new(Config::new(gid), seed);
//! let pd = engine.create_pd()?;
//! let buffer = Buffer::new(4096);
//! let (region, base) = (buffer.region(), buffer.addr());
//! engine.register(pd, MrAttr { region, base, access: Access::LOCAL_WRITE })?;
//! // Nothing is posted: there is nothing to transmit, and no deadline.
//! assert_eq!(engine.poll_timeout(), None);
//! assert_eq!(engine.counters().get(Counter::Sent), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/engine_without_io.rs` connects two of them over a network that loses packets.
//!
//! | file | holds |
//! |---|---|
//! | `keys` | memory regions and windows: every check of a key |
//! | `send_queue`, `recv_queue`, `cq`, `srq` | work queues, completion queues, shared receive queues |
//! | `qp` | queue pairs: send side, receive side, responses, state transitions |
//! | `env` | what queue pairs share |
//! | `objects` | creating and destroying objects |
//! | `multicast` | multicast groups |
//! | `peer_window` | bytes that all queue pairs together may have in flight to one peer |
//! | `peer_port` | UDP source port of a peer |
//! | `recovery` | configuration of recovery from loss and of the receive order |
//! | `reorder` | packets that came before others |
//! | `sge` | messages in scatter/gather lists |
//! | `path` | path to a peer |
//! | `frames` | frames of raw packet queue pairs |
//! | `allocation` | fallible allocation, and the memory that is promised |
//! | `congestion` | congestion control: controllers, pacer, deadlines of paced queue pairs |
//! | `classes` | classes of packets, of which some may be paused |
//! | `cnp` | intervals between CNPs |
//! | `due` | times that come in order: ends of delayed ACKs, checks of gaps |
//! | `timers`, `counters`, `config` | deadlines, a counter for every drop, every limit |
#![forbid(unsafe_code)]

mod allocation;
mod classes;
mod cnp;
mod config;
pub mod congestion;
mod counters;
mod cq;
mod due;
mod env;
mod frames;
mod keys;
mod multicast;
mod peer_window;

mod objects;
mod path;
mod peer_port;
mod qp;
mod recovery;
mod recv_queue;
mod reorder;
mod send_queue;
mod sge;
mod srq;
mod timers;

use std::collections::{BTreeMap, VecDeque};

pub use crate::secret::Seed;
pub use crate::verbs::{
    AsyncEvent, CqHandle, CreateError, DestroyError, KeyError, MrAttr, MrHandle, MwHandle, Notify,
    PdHandle, QpCreate, QpHandle, SrqCreate, SrqHandle, XrcdHandle,
};
pub use crate::wire::{Batch, ICRC_ROOM, PACKET_MAX, Received, Train};
pub use classes::TransmitClasses;
pub use config::{CnpScope, Config, Ect, Limits, PORT_SILENCE};
pub use counters::{Counter, Counters};
pub use recovery::{EarlyTimeouts, ReceiveMode, Recovery, RecoveryOptions, ReorderThreshold};

use crate::secret::SecretRandom;
use crate::table::{SlotId, Table};
use crate::time::Instant;
use crate::verbs::{DeviceTag, Mtu, PostError, RecvWr, SendWr, Wc, WrId};
use crate::wire::{Bth, Gid, Opcode, Packet, Qpn, Service, view};
use congestion::{HOPS_MAX, Hop};
use cq::{Armed, Cq, SendSlot};
use env::{Env, PostedSends};
use qp::Qp;

/// Number of queue pairs from which on they are not all in a cache.
const PREFETCH_QPS_MIN: usize = 512;

/// Number of queue pairs that transmit before one whose state is prefetched.
const PREFETCH_AHEAD: usize = 3;

/// Number of posts that are not collected any further: as many packets as the kernel takes at once.
const POSTS_MAX: u32 = 64;

/// An event for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A completion that [`request_notify`](Engine::request_notify) asked for was added to a queue.
    Completion(CqHandle),
    /// An asynchronous event.
    Async(AsyncEvent),
}

/// Treatment of a packet by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// A queue pair accepted it.
    Accepted,
    /// The packet was dropped, and counted.
    Dropped(Counter),
}

/// A software RNIC.
#[derive(Debug)]
pub struct Engine {
    qps: Table<Qp>,
    /// GSI queue pair: QPN 1.
    gsi: Option<QpHandle>,
    /// Whether there is room for it beside the limits.
    is_gsi_reserved: bool,
    groups: BTreeMap<[u8; 16], Vec<QpHandle>>,
    pds: Table<()>,
    xrcds: Table<()>,
    env: Env,
    /// Queue pairs that got a CNP, each once.
    congested: VecDeque<SlotId>,
}

impl Engine {
    /// An engine without objects. Its QPNs, keys and initial PSNs follow from `seed`, which in a
    /// live NIC is secret: 128 bits from the operating system ([`Seed::from_bytes`]).
    pub fn new(config: Config, seed: impl Into<Seed>) -> Self {
        let mut random = SecretRandom::new(seed.into());
        // Twice as many numbers as objects, so that one is soon found that is free.
        let qps = config.limits.qps.min(config.qpns.count() / 2);
        let limits = Limits { qps, ..config.limits };
        let config = Config { limits, ..config };
        let device = DeviceTag::from_random(random.of(0));
        Self {
            pds: Table::new(limits.pds, device),
            xrcds: Table::new(limits.pds, device),
            qps: Table::numbered(limits.qps, device, &mut random),
            gsi: None,
            is_gsi_reserved: false,
            groups: BTreeMap::new(),
            env: Env::new(config, device, &mut random),
            congested: VecDeque::new(),
        }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.env.config
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.env.counters
    }

    /// Returns the queue pair in a slot, and what it shares with others.
    #[inline]
    fn split(&mut self, slot: SlotId) -> Option<(&mut Qp, &mut Env)> {
        let are_many = self.has_many_qps();
        let qp = self.qps.at_mut(slot)?;
        if are_many {
            qp.prefetch();
        }
        Some((qp, &mut self.env))
    }

    #[inline]
    fn split_handle(&mut self, handle: QpHandle) -> Option<(&mut Qp, &mut Env)> {
        let are_many = self.has_many_qps();
        let qp = self.qps.get_mut(handle.0)?;
        if are_many {
            qp.prefetch();
        }
        Some((qp, &mut self.env))
    }

    /// Whether there are more queue pairs than a cache holds.
    #[inline]
    fn has_many_qps(&self) -> bool {
        self.qps.len() >= PREFETCH_QPS_MIN
    }

    /// Returns the slot of the queue pair with a QPN, or, with the number that the table has for
    /// the GSI queue pair, which is not its QPN, that of the latter.
    #[inline]
    fn slot_of_qpn(&self, qpn: Qpn) -> Option<SlotId> {
        match qpn {
            Qpn::GSI => self.qps.slot_of(self.gsi?.0),
            qpn => self.qps.find(qpn.get()),
        }
    }

    /// Returns the queue pair with a QPN and its slot, and what it shares with others.
    #[inline(always)]
    fn split_qpn(&mut self, qpn: Qpn) -> Option<(SlotId, &mut Qp, &mut Env)> {
        let slot = self.slot_of_qpn(qpn)?;
        let (qp, env) = self.split(slot)?;
        (qp.attr().qpn == qpn).then_some((slot, qp, env))
    }

    /// Prefetches what [`handle_packet`](Self::handle_packet) needs for packets that came together.
    /// With many queue pairs it is in no cache: the misses of all these packets then overlap. With
    /// few it does nothing.
    pub fn prefetch_packets<'p>(&self, packets: impl Iterator<Item = &'p [u8]> + Clone) {
        if !self.has_many_qps() {
            return;
        }
        let numbers =
            packets.filter_map(|packet| Some(view::<Bth>(packet, 0).ok()?.dest_qp().get()));
        // Each step needs what the one before it has brought in.
        numbers.clone().for_each(|number| self.qps.prefetch_number(number));
        let slots = numbers.filter_map(|number| self.qps.find(number));
        slots.clone().for_each(|slot| self.qps.prefetch(slot, Qp::HOT));
        slots.filter_map(|slot| self.qps.at(slot)).for_each(Qp::prefetch_queues);
    }

    /// Prefetches what posting a send to each of these queue pairs needs, as
    /// [`prefetch_packets`](Self::prefetch_packets) does for packets.
    pub fn prefetch_sends(&self, qps: impl Iterator<Item = QpHandle> + Clone) {
        self.prefetch_posts(qps, Qp::prefetch_send_post);
    }

    /// Prefetches what posting a receive to each of these queue pairs needs.
    pub fn prefetch_receives(&self, qps: impl Iterator<Item = QpHandle> + Clone) {
        self.prefetch_posts(qps, Qp::prefetch_receive_post);
    }

    #[inline]
    fn prefetch_posts(
        &self,
        qps: impl Iterator<Item = QpHandle> + Clone,
        prefetch_slot: impl Fn(&Qp),
    ) {
        if !self.has_many_qps() {
            return;
        }
        qps.clone().for_each(|qp| self.qps.prefetch_id(qp.0, Qp::HOT));
        qps.filter_map(|qp| self.qps.get(qp.0)).for_each(prefetch_slot);
    }

    /// Handles a packet that came at `now`.
    #[inline(never)]
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

    /// Handles a packet that came at `now` with the telemetry of the switches on its path, in the
    /// order of the path: of an ACK, that which its receiver got with the acknowledged packet. Only
    /// simulations have it.
    pub fn handle_packet_with_telemetry(
        &mut self,
        now: Instant,
        received: &Received<'_>,
        hops: &[Hop],
    ) -> Disposition {
        self.env.telemetry.extend_from_slice(hops.get(..HOPS_MAX).unwrap_or(hops));
        let disposition = self.handle_packet(now, received);
        self.env.telemetry.clear();
        disposition
    }

    /// Checks a packet in the order in which rxe does, and hands it to its queue pair.
    fn accept(&mut self, received: &Received<'_>) -> Result<(), Counter> {
        if self.continue_run(received) {
            return Ok(());
        }
        // Rule: W-51.2.
        let packet = Packet::received(received).ok_or(Counter::Truncated)?;
        let bth = packet.bth();
        // Rule: W-51.1.
        if bth.tver().get() != 0 {
            return Err(Counter::BadVersion);
        }
        let Some(info) = packet.info() else { return self.accept_unassigned(received, bth) };
        if bth.dest_qp() == Qpn::MULTICAST {
            return self.accept_multicast(received, &packet);
        }
        let (slot, qp, env) = self.split_qpn(bth.dest_qp()).ok_or(Counter::NoQp)?;
        if info.service != Service::Cnp {
            return qp.accept(received, &packet, info, env);
        }
        if bth.opcode() != Opcode::CNP {
            return Err(Counter::BadOpcode);
        }
        if qp.accept_cnp(received, env)? {
            self.congested.push_back(slot);
        }
        Ok(())
    }

    /// Executes a packet that continues a run; returns whether it did.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn continue_run(&mut self, received: &Received<'_>) -> bool {
        let Some(run) = self.env.run else { return false };
        let Some(packet) = run.parse(received) else { return false };
        let Some((qp, env)) = self.split(run.slot) else { return false };
        qp.continue_run(received, &run, packet, env)
    }

    /// Accepts a packet with a reserved opcode, or names the reason to drop it.
    fn accept_unassigned(&mut self, received: &Received<'_>, bth: &Bth) -> Result<(), Counter> {
        let (_, qp, env) = self.split_qpn(bth.dest_qp()).ok_or(Counter::BadOpcode)?;
        qp.accept_unassigned(received, bth, env)
    }

    /// Handles the timers that are due at `now`. Calls that come too early or too often do no harm.
    pub fn handle_timeout(&mut self, now: Instant) {
        let now = self.env.advance(now);
        while let Some((wakeup, slot)) = self.env.timers.pop_due(now) {
            let Some((qp, env)) = self.split(slot) else { continue };
            qp.handle_wakeup(wakeup, env);
        }
        while let Some((_, slot)) = self.env.gap_checks.pop(Some(now)) {
            if let Some((qp, env)) = self.split(slot) {
                qp.check_gap(env);
            }
        }
        self.end_delays(Some(now));
        self.wake_one_paced(now);
    }

    /// Wakes a queue pair whose pacer lets it send, unless there is one to transmit already:
    /// [`transmit`](Self::transmit) wakes the others.
    fn wake_one_paced(&mut self, now: Instant) {
        if self.env.active.is_empty() {
            self.wake_next_paced(now);
        }
    }

    /// Ends the delay of all delayed ACKs: they are sent with the next packets.
    pub fn end_ack_delays(&mut self) {
        self.end_delays(None);
    }

    fn end_delays(&mut self, now: Option<Instant>) {
        while let Some((until, slot)) = self.env.delayed_acks.pop(now) {
            if let Some((qp, env)) = self.split(slot) {
                qp.end_ack_delay(until, env);
            }
        }
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) must be called next. May
    /// change after any command or `handle_*`, and after [`poll_transmit`](Self::poll_transmit).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (timer, ack) = (self.env.timers.next(), self.env.delayed_acks.next());
        let (paced, gap) = (self.env.pacing.next(), self.env.gap_checks.next());
        // One that is due is woken when those that are active transmit.
        let paced = paced.filter(|due| *due > self.env.now || self.env.active.is_empty());
        // Asked after every call of the engine: the minimum over an iterator takes twice as long.
        let earlier = |a: Option<Instant>, b: Option<Instant>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (only, None) | (None, only) => only,
        };
        earlier(earlier(timer, ack), earlier(paced, gap))
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) may have something.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        !self.env.active.is_empty()
    }

    /// Whether sends should be transmitted at once rather than together with later ones: nothing
    /// was in flight on the path of one when it was posted, or many were posted since packets were
    /// transmitted last.
    #[inline]
    #[must_use]
    pub fn has_urgent_transmit(&self) -> bool {
        self.env.posted.is_first_on_path || self.env.posted.count >= POSTS_MAX
    }

    /// Adds packets to `batch` until it is full or there are none; returns how many it added. Queue
    /// pairs are served round-robin. May have more after any command or `handle_*`.
    #[must_use]
    pub fn poll_transmit(&mut self, now: Instant, batch: &mut Batch) -> usize {
        self.transmit(now, batch, TransmitClasses::DATA, false)
    }

    /// Transmits as [`poll_transmit`](Self::poll_transmit) does, but the lone ACK of a queue pair
    /// that sends requests may be delayed by [`Config::ack_delay`]: for a caller that calls again
    /// soon.
    #[must_use]
    pub fn poll_transmit_delaying_acks(&mut self, now: Instant, batch: &mut Batch) -> usize {
        self.transmit(now, batch, TransmitClasses::DATA, true)
    }

    fn transmit(
        &mut self,
        now: Instant,
        batch: &mut Batch,
        classes: TransmitClasses,
        delay_acks: bool,
    ) -> usize {
        let now = self.env.advance(now);
        if classes != self.env.classes {
            self.set_classes(classes);
        }
        self.env.posted = PostedSends::default();
        let before = batch.len();
        while !batch.is_full() && !self.env.is_frame_queue_full() {
            self.wake_next_paced(now);
            let Some(slot) = self.env.active.pop_front() else { break };
            if let Some(later) = self.env.active.get(PREFETCH_AHEAD) {
                self.qps.prefetch(*later, Qp::HOT);
            }
            if let Some(next) = self.env.active.front().and_then(|next| self.qps.at(*next)) {
                next.prefetch_send();
            }
            if let Some((qp, env)) = self.split(slot) {
                qp.transmit(delay_acks, env, batch);
            }
        }
        self.wake_one_paced(now);
        batch.len() - before
    }

    /// Transmits as [`poll_transmit`](Self::poll_transmit) does, but of data only that of
    /// `classes`: data of a priority that a peer has paused is held back, CNPs and ACKs pass. Queue
    /// pairs with data of other classes wait until a call allows them.
    #[must_use]
    pub fn poll_transmit_class(
        &mut self,
        now: Instant,
        batch: &mut Batch,
        classes: TransmitClasses,
    ) -> usize {
        self.transmit(now, batch, classes, false)
    }

    /// Moves completions of a queue to `out`, oldest first; returns how many. May have more after
    /// any command or `handle_*`, and after [`poll_transmit`](Self::poll_transmit).
    pub fn poll_cq(&mut self, cq: CqHandle, out: &mut [Wc]) -> usize {
        let Self { qps, env, .. } = self;
        let Some(cq) = env.cqs.get_mut(cq.0) else { return 0 };
        let count = cq.poll(out, |slot| release_slot(qps, slot));
        env.completions -= count;
        count
    }

    /// Whether there are completions in any queue.
    #[inline]
    #[must_use]
    pub(crate) fn has_completions(&self) -> bool {
        self.env.completions > 0
    }

    /// Records a time stamp with each completion of a queue from now on.
    pub fn enable_timestamps(&mut self, now: Instant, cq: CqHandle) -> Result<(), CreateError> {
        let now = self.env.advance(now);
        let missing = CreateError::NotFound("completion queue");
        let known = self.env.cqs.get(cq.0).ok_or(missing)?;
        let bytes = if known.has_timestamps() { 0 } else { Cq::stamp_bytes(known.capacity) };
        self.promise(bytes, |engine| {
            Ok(engine.env.cqs.get_mut(cq.0).ok_or(missing)?.enable_timestamps(now)?)
        })
    }

    /// Removes the oldest completion of a queue, with its time stamp if they are
    /// [recorded](Self::enable_timestamps).
    pub fn poll_cq_timed(&mut self, cq: CqHandle) -> Option<(Wc, Option<Instant>)> {
        let (wc, slot, time) = self.env.cqs.get_mut(cq.0)?.poll_timed()?;
        self.env.completions -= 1;
        if let Some(slot) = slot {
            release_slot(&mut self.qps, slot);
        }
        Some((wc, time))
    }

    /// Returns the next event. May have more whenever completions may.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.env.events.pop_front()
    }

    /// Returns the next queue pair that got a CNP, for a caller that limits rates. It is returned
    /// once, however many CNPs came since the last time. May have more after
    /// [`handle_packet`](Self::handle_packet).
    #[must_use]
    pub fn poll_congestion(&mut self) -> Option<QpHandle> {
        let qp = self.qps.at_mut(self.congested.pop_front()?)?;
        Some(qp.take_congestion())
    }

    /// Requests an event for the next completion. A completion that is in the queue already raises
    /// none: poll once more.
    pub fn request_notify(&mut self, cq: CqHandle, notify: Notify) {
        if let Some(cq) = self.env.cqs.get_mut(cq.0) {
            cq.arm(match notify {
                Notify::Next => Armed::Any,
                Notify::Solicited => Armed::Solicited,
            });
        }
    }

    /// Posts a send. If it is inline and its data are addresses, `inline` must hold the bytes at
    /// these addresses.
    pub fn post_send(
        &mut self,
        handle: QpHandle,
        wr: &SendWr<'_>,
        inline: &[u8],
    ) -> Result<(), PostError> {
        let (qp, env) = self.split_handle(handle).ok_or(PostError::UnknownQp)?;
        qp.post_send(wr, inline, env)
    }

    /// Posts a send whose operation the service of the queue pair lacks, such as a READ on UD: it
    /// completes with `LOC_QP_OP_ERR` when its turn comes, as on NICs that look at an operation no
    /// earlier. [`post_send`](Self::post_send) refuses such an operation instead.
    pub fn post_unsupported(&mut self, handle: QpHandle, id: WrId) -> Result<(), PostError> {
        let (qp, env) = self.split_handle(handle).ok_or(PostError::UnknownQp)?;
        qp.post_unsupported(id, env)
    }

    /// Posts sends, all of them or none.
    pub fn post_sends<'w>(
        &mut self,
        handle: QpHandle,
        wrs: impl IntoIterator<Item = SendWr<'w>>,
    ) -> Result<(), PostError> {
        let (qp, env) = self.split_handle(handle).ok_or(PostError::UnknownQp)?;
        qp.post_sends(wrs, env)
    }

    /// Posts a receive.
    pub fn post_recv(&mut self, handle: QpHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let (qp, env) = self.split_handle(handle).ok_or(PostError::UnknownQp)?;
        qp.post_recv(wr, env)
    }

    /// Posts a receive to a shared receive queue.
    pub fn post_srq_recv(&mut self, srq: SrqHandle, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.env.srqs.get_mut(srq.0).ok_or(PostError::UnknownReceiveQueue)?.queue.push(wr)
    }

    /// Sets the MTU of the port. Connected queue pairs keep theirs.
    pub fn set_port_mtu(&mut self, mtu: Mtu) {
        self.env.config.port_mtu = mtu;
    }

    /// Sets the GIDs of the port; zero is an empty entry.
    pub fn set_gids(&mut self, gids: Vec<Gid>) {
        self.env.config.gids = gids;
    }
}

/// Frees the send queue slot of a completion that was polled, if the queue pair still exists.
#[inline]
fn release_slot(qps: &mut Table<Qp>, slot: SendSlot) {
    if let Some(qp) = qps.get_mut(slot.qp.0) {
        qp.release_send_slots(slot.index);
    }
}
