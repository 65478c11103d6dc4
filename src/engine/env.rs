//! State that the queue pairs of an engine share: tables, timers, completion queues, the time.

use std::collections::VecDeque;

use super::allocation::Promised;
use super::classes::{Held, TransmitClasses};
use super::cnp::CnpTimes;
use super::config::Config;
use super::congestion::{Hop, Wheel};
use super::counters::{Counter, Counters};
use super::cq::{Cq, Delivered, SendSlot};
use super::due::DueQueue;
use super::keys::Keys;
use super::peer_window::PeerWindows;
use super::qp::Run;
use super::reorder::ReorderMemory;
use super::srq::Srq;
use super::timers::Timers;
use super::{AsyncEvent, Event};
use crate::secret::SecretRandom;
use crate::table::{SlotId, Table};
use crate::time::Instant;
use crate::verbs::{AhAttr, CqHandle, DeviceTag, EventType, PdHandle, Wc};
use crate::wire::Gid;

/// Posts of sends since packets were transmitted last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PostedSends {
    pub(super) count: u32,
    /// Whether nothing was in flight on the path of one of them.
    pub(super) is_first_on_path: bool,
}

/// State of the engine that a queue pair uses, except other queue pairs.
#[derive(Debug)]
pub(super) struct Env {
    pub(super) now: Instant,
    /// Tag of this device in its handles.
    pub(super) device: DeviceTag,
    pub(super) config: Config,
    pub(super) keys: Keys,
    pub(super) cqs: Table<Cq>,
    /// Number of completions in all completion queues.
    pub(super) completions: usize,
    pub(super) srqs: Table<Srq>,
    pub(super) ahs: Table<(PdHandle, AhAttr)>,
    pub(super) timers: Timers,
    /// Ends of delayed ACKs.
    pub(super) delayed_acks: DueQueue,
    /// Checks of the age of gaps.
    pub(super) gap_checks: DueQueue,
    /// Packets that came before others.
    pub(super) reorder: ReorderMemory,
    /// Number of packets that were sprayed.
    pub(super) sprayed: u32,
    pub(super) peer_windows: PeerWindows,
    /// Wake-ups of queue pairs that wait for their pacers.
    pub(super) pacing: Wheel,
    /// Classes that may be transmitted now, and queue pairs with data of others.
    pub(super) classes: TransmitClasses,
    pub(super) held: Held,
    /// Whether data may have to wait: congestion control is on, or a class is paused.
    pub(super) may_hold_data: bool,
    /// Times of the next CNPs, of scopes other than a queue pair.
    pub(super) cnp_times: CnpTimes,
    /// Telemetry of the packet that is being handled.
    pub(super) telemetry: Vec<Hop>,
    /// Packets that may continue what came last.
    pub(super) run: Option<Run>,
    /// Queue pairs that may have something to send, in round-robin order.
    pub(super) active: VecDeque<SlotId>,
    /// Posts of sends since packets were transmitted last.
    pub(super) posted: PostedSends,
    pub(super) events: VecDeque<Event>,
    /// Raw frames to send.
    pub(super) frames: VecDeque<Vec<u8>>,
    /// Memory that queues take, and may take.
    pub(super) promised: Promised,
    pub(super) counters: Counters,
    /// Source of initial PSNs.
    pub(super) psns: SecretRandom,
}

impl Env {
    pub(super) fn new(config: Config, device: DeviceTag, random: &mut SecretRandom) -> Self {
        let limits = config.limits;
        Self {
            now: Instant::ZERO,
            device,
            keys: Keys::new(limits.keys, device, random),
            cqs: Table::new(limits.cqs, device),
            completions: 0,
            srqs: Table::numbered(limits.srqs, device, random),
            ahs: Table::new(limits.ahs, device),
            timers: Timers::default(),
            delayed_acks: DueQueue::default(),
            gap_checks: DueQueue::default(),
            reorder: ReorderMemory::new(&limits),
            sprayed: 0,
            peer_windows: PeerWindows::new(config.peer_window_bytes),
            pacing: Wheel::default(),
            classes: TransmitClasses::DATA,
            held: Held::default(),
            may_hold_data: config.congestion.is_on(),
            cnp_times: CnpTimes::default(),
            telemetry: Vec::new(),
            run: None,
            active: VecDeque::new(),
            posted: PostedSends::default(),
            events: VecDeque::new(),
            frames: VecDeque::new(),
            promised: Promised::new(limits.bytes),
            counters: Counters::default(),
            psns: random.split(),
            config,
        }
    }

    /// Returns the GID of the port at an index, if there is one.
    pub(super) fn gid(&self, index: u8) -> Option<Gid> {
        let gid = self.config.gids.get(usize::from(index)).copied();
        gid.filter(|gid| *gid != Gid::default())
    }

    /// Sets the time to `now`, or leaves it if it is later already: threads that read the clock and
    /// then wait for the engine may come out of order, but the engine's time, and the time stamps
    /// of completions, never run backwards.
    #[inline]
    pub(super) fn advance(&mut self, now: Instant) -> Instant {
        self.now = self.now.max(now);
        self.now
    }

    /// Whether so many raw frames wait that no queue pair may send.
    #[inline]
    pub(super) fn is_frame_queue_full(&self) -> bool {
        self.frames.len() >= super::frames::FRAMES_MAX
    }

    pub(super) fn count(&mut self, counter: Counter) {
        self.counters.add(counter);
    }

    pub(super) fn raise(&mut self, event: AsyncEvent) {
        self.events.push_back(Event::Async(event));
    }

    /// Adds the completion of a receive to its queue; returns whether there was room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn complete(&mut self, cq: CqHandle, wc: Wc, solicited: bool) -> bool {
        self.complete_for(cq, wc, None, solicited)
    }

    /// Adds a completion to its queue; polling it frees a slot of a send queue. Returns whether
    /// there was room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn complete_for(
        &mut self,
        cq: CqHandle,
        wc: Wc,
        slot: Option<SendSlot>,
        solicited: bool,
    ) -> bool {
        let Some(mut queue) = self.completions_of(cq) else { return false };
        queue.add(wc, slot, solicited)
    }

    /// Returns a completion queue to add completions to.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn completions_of(&mut self, cq: CqHandle) -> Option<Completions<'_>> {
        let (now, handle) = (self.now, cq);
        let Self { cqs, completions: count, events, .. } = self;
        Some(Completions { cq: cqs.get_mut(cq.0)?, handle, now, count, events })
    }
}

/// A completion queue that completions are added to, found once for several.
pub(super) struct Completions<'e> {
    cq: &'e mut Cq,
    handle: CqHandle,
    now: Instant,
    /// Number of completions in all queues.
    count: &'e mut usize,
    events: &'e mut VecDeque<Event>,
}

impl Completions<'_> {
    /// Adds a completion; polling it frees a slot of a send queue. Returns whether there was room.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(super) fn add(&mut self, wc: Wc, slot: Option<SendSlot>, solicited: bool) -> bool {
        match self.cq.push(wc, slot, solicited, self.now) {
            Delivered::Quietly => *self.count += 1,
            Delivered::WithEvent => {
                *self.count += 1;
                self.events.push_back(Event::Completion(self.handle));
            }
            Delivered::Overrun => {
                self.events.push_back(Event::Async(AsyncEvent::Cq(EventType::CqErr, self.handle)));
                return false;
            }
            Delivered::Lost => return false,
        }
        true
    }
}
