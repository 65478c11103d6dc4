//! Controller and pacer of one queue pair.

use core::time::Duration;

use super::choice::Algorithm;
use super::wheel::{EntryId, Wheel};
use super::{AckSample, Congestion, Controller, FlowInfo, Hop, Loss, Pacer, State};
use crate::table::SlotId;
use crate::time::Instant;
use crate::wire::Psn;

/// Facts that a flow needs about its queue pair and the engine.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct FlowSetup {
    pub(in crate::engine) info: FlowInfo,
    pub(in crate::engine) burst: Duration,
    /// Bytes of a packet on the wire beyond those from its BTH to its ICRC.
    pub(in crate::engine) overhead: u32,
}

/// Congestion control of one queue pair.
#[derive(Debug)]
pub(in crate::engine) struct Flow {
    controller: Algorithm,
    pacer: Pacer,
    /// Bytes that the controller lets be in flight.
    window: u64,
    overhead: u32,
    /// Wake-up of the queue pair, if it waits for the pacer.
    entry: EntryId,
    /// Packet whose round-trip time is measured, and when it was sent.
    probe: Option<(Psn, Instant)>,
    /// PSNs in flight, and the bytes on the wire that were sent with them.
    psns: u32,
    bytes: u64,
    /// Rate cuts that were reported.
    cuts: u64,
}

/// Change of an allowance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Change {
    /// Rate cuts since the last change.
    pub(in crate::engine) cuts: u64,
    /// Whether the window is another one.
    pub(in crate::engine) window: bool,
}

impl Flow {
    /// A flow with a controller, or `None` if there is no congestion control.
    pub(in crate::engine) fn new(
        congestion: &Congestion,
        now: Instant,
        setup: &FlowSetup,
    ) -> Option<Self> {
        let mut controller = congestion.start_flow(now, &setup.info)?;
        let allowance = controller.advance(now);
        Some(Self {
            controller,
            pacer: Pacer::new(allowance.rate, setup.burst),
            window: allowance.window,
            overhead: setup.overhead,
            entry: EntryId::NONE,
            probe: None,
            psns: 0,
            bytes: 0,
            cuts: 0,
        })
    }

    /// State of the controller, with the rate that the pacer has.
    pub(in crate::engine) fn state(&self) -> State {
        self.controller.state()
    }

    /// Bytes that may be in flight.
    pub(in crate::engine) fn window(&self) -> u64 {
        self.window
    }

    /// Whether it may be freed.
    pub(in crate::engine) fn is_at_rest(&self) -> bool {
        self.controller.is_at_rest() && self.entry == EntryId::NONE
    }

    /// Applies the controller's timers; returns what changed.
    #[inline]
    pub(in crate::engine) fn advance(&mut self, now: Instant) -> Change {
        let allowance = self.controller.advance(now);
        let mut change = Change { cuts: 0, window: allowance.window != self.window };
        self.window = allowance.window;
        if allowance.rate != self.pacer.rate() || change.window {
            self.pacer.set_rate(now, allowance.rate);
            let cuts = self.controller.state().cuts;
            change.cuts = cuts.saturating_sub(core::mem::replace(&mut self.cuts, cuts));
        }
        change
    }

    /// Whether a packet may be sent at `now`.
    #[inline]
    pub(in crate::engine) fn admits(&self, now: Instant) -> bool {
        self.pacer.admits(now)
    }

    /// Counts a packet that was sent: its bytes from BTH to ICRC.
    #[inline]
    pub(in crate::engine) fn sent(&mut self, now: Instant, bytes: u32) {
        let bytes = bytes.saturating_add(self.overhead);
        self.pacer.sent(now, bytes);
        self.controller.on_sent(now, bytes);
    }

    /// Counts a request packet with `psns` new PSNs. One that was sent before voids the
    /// measurement of a round-trip time (Karn); one that asks for an ACK begins one.
    #[inline]
    pub(in crate::engine) fn sent_request(
        &mut self,
        now: Instant,
        (psn, psns, bytes): (Psn, u32, u32),
        asks_for_ack: bool,
    ) {
        if psns == 0 {
            if self.probe.is_some_and(|(probe, _)| psn.since(probe) <= 0) {
                self.probe = None;
            }
            return;
        }
        self.psns = self.psns.saturating_add(psns);
        self.bytes = self.bytes.saturating_add(u64::from(bytes) + u64::from(self.overhead));
        if asks_for_ack && self.probe.is_none() {
            self.probe = Some((psn, now));
        }
    }

    /// Takes the acknowledgment of the `psns` PSNs before `una`.
    pub(in crate::engine) fn acknowledged(
        &mut self,
        now: Instant,
        (una, psns): (Psn, u32),
        ecn: bool,
        telemetry: &[Hop],
    ) {
        let packets = psns.min(self.psns);
        let bytes = super::scale(self.bytes, packets.into(), self.psns.into()).min(self.bytes);
        self.psns -= packets;
        self.bytes -= bytes;
        let done = self.probe.take_if(|(psn, _)| una.since(*psn) > 0);
        let rtt = done.map(|(_, sent)| now.saturating_since(sent));
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let in_flight = self.bytes;
        self.controller.on_ack(now, &AckSample { packets, bytes, in_flight, rtt, ecn, telemetry });
    }

    /// Takes a CNP.
    pub(in crate::engine) fn on_cnp(&mut self, now: Instant) {
        self.controller.on_cnp(now);
    }

    /// Takes a loss.
    pub(in crate::engine) fn on_loss(&mut self, now: Instant, loss: Loss) {
        self.controller.on_loss(now, loss);
    }

    /// Lets the wheel wake the queue pair when it may send, or when its rate may change; returns
    /// whether it was not waiting already.
    pub(in crate::engine) fn wait(
        &mut self,
        now: Instant,
        slot: SlotId,
        wheel: &mut Wheel,
    ) -> bool {
        let began = self.entry == EntryId::NONE;
        self.stop_waiting(wheel);
        let next = self.pacer.next();
        // A deadline that is over would wake the queue pair for ever.
        let later = now.saturating_add(Duration::from_nanos(1));
        let wakeup = self.controller.deadline().map_or(next, |at| at.max(later).min(next));
        self.entry = wheel.insert(wakeup, slot);
        began
    }

    /// Moves the wake-up to a wait that has changed.
    pub(in crate::engine) fn move_wakeup(&mut self, now: Instant, slot: SlotId, wheel: &mut Wheel) {
        if self.entry != EntryId::NONE {
            self.wait(now, slot, wheel);
        }
    }

    /// Removes the wake-up, if there is one.
    pub(in crate::engine) fn stop_waiting(&mut self, wheel: &mut Wheel) {
        if self.entry != EntryId::NONE {
            wheel.remove(self.entry);
            self.entry = EntryId::NONE;
        }
    }

    /// Takes the wake-up, which the wheel has removed.
    pub(in crate::engine) fn woken(&mut self) {
        self.entry = EntryId::NONE;
    }
}
