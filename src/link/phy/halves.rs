//! The halves of a link on a device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smoltcp::phy::{Device, RxToken};

use super::Wake;
use super::stack::{RETRY, Stack};
use super::tap::Health;
use crate::link::bell::Bell;
use crate::link::framing::Framer;
use crate::link::raw::packets::{PacketInFrame, Refusal, check};
use crate::link::sys::ring::RingFrame;
use crate::link::{Receiver, Sender};
use crate::time::Instant;
use crate::wire::{Batch, Gid, MacAddr, Path, Prefixes, Received};

/// Maximum number of frames that are received at once.
const FRAMES_MAX: usize = 64;

/// A device and what is around it, shared by both halves.
type Shared<D> = Arc<Mutex<(D, Stack)>>;

fn lock<D>(shared: &Shared<D>) -> MutexGuard<'_, (D, Stack)> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The half that sends.
pub(super) struct PhySender<D> {
    shared: Shared<D>,
    framer: Framer,
    /// Time at which frames that wait for room are tried again.
    retry: Option<Instant>,
}

impl<D> PhySender<D> {
    pub(super) fn new(shared: Shared<D>, mac: MacAddr) -> Self {
        Self { shared, framer: Framer::new(mac), retry: None }
    }
}

impl<D: Device + Send> Sender for PhySender<D> {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        let (device, stack) = &mut *lock(&self.shared);
        stack.flush(device, now);
        for mut train in batch.trains_mut() {
            stack.send(device, now, &mut train, &mut self.framer);
        }
        self.retry = stack.is_waiting().then(|| now.saturating_add(RETRY));
        Ok(())
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.retry
    }

    fn room(&self) -> usize {
        if self.retry.is_none() { usize::MAX } else { 0 }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let (_, stack) = &*lock(&self.shared);
        let counts = stack.counts;
        vec![
            ("tx_frames", counts.frames),
            ("tx_looped", counts.looped),
            ("tx_held", counts.held),
            ("tx_held_full", counts.held_full),
            ("tx_unresolved", counts.unresolved),
            ("tx_queue_full", counts.queue_full),
            ("tx_control_full", stack.own_lost()),
        ]
    }
}

/// The half that receives.
pub(super) struct PhyReceiver<D> {
    shared: Shared<D>,
    bell: Arc<Bell>,
    /// Kept open while the bell watches it.
    _wake: Wake,
    /// Interval at which a device without a descriptor is asked.
    interval: Option<Duration>,
    /// Frames, each at a multiple of `frame_max`.
    frames: Vec<u8>,
    frame_max: usize,
    packets: Vec<PacketInFrame>,
    prefixes: Prefixes,
    timeout: Option<Instant>,
    refusals: [u64; Refusal::ALL.len()],
    /// Frames to other hardware addresses.
    other_mac: u64,
    /// Packets to groups that the link is not in.
    other_group: u64,
    health: Option<Arc<Health>>,
}

/// Destination of a frame that was received.
enum Arrival {
    Packet(PacketInFrame),
    /// The frame is smoltcp's.
    Control,
    OtherMac,
    OtherGroup,
    Refused(Refusal),
}

impl<D> PhyReceiver<D> {
    pub(super) fn new(
        shared: Shared<D>,
        bell: Arc<Bell>,
        wake: Wake,
        interval: Option<Duration>,
        frame_max: usize,
        health: Option<Arc<Health>>,
    ) -> Self {
        Self {
            shared,
            bell,
            _wake: wake,
            interval,
            frames: vec![0; FRAMES_MAX * frame_max],
            frame_max,
            packets: Vec::with_capacity(FRAMES_MAX),
            prefixes: Prefixes::new(&Path::NOWHERE),
            timeout: Some(Instant::ZERO),
            refusals: [0; _],
            other_mac: 0,
            other_group: 0,
            health,
        }
    }

    fn count(&mut self, refusal: Refusal) {
        if let Some(count) = self.refusals.get_mut(refusal as usize) {
            *count += 1;
        }
    }
}

/// Copies the next frame to `place`: first those of the link itself. Returns its length, which is
/// more than there is room for if the frame was cut.
fn next_frame<D: Device>(
    device: &mut D,
    stack: &mut Stack,
    now: Instant,
    place: &mut [u8],
) -> Option<usize> {
    let mut copy = |frame: &[u8]| {
        let len = frame.len().min(place.len());
        if let (Some(place), Some(frame)) = (place.get_mut(..len), frame.get(..len)) {
            place.copy_from_slice(frame);
        }
        frame.len()
    };
    if let Some(frame) = stack.looped.pop() {
        let len = copy(&frame);
        stack.looped.recycle(frame);
        return Some(len);
    }
    let (token, _) = device.receive(stack.timestamp(now))?;
    Some(token.consume(copy))
}

/// Looks at a frame, which is the one with this number.
fn look_at(stack: &Stack, prefixes: &mut Prefixes, frame: &mut [u8], number: usize) -> Arrival {
    const PLAIN: RingFrame = RingFrame { vnet: [0; _], cut: false, vlan: None };
    let destination = frame.first_chunk().copied().unwrap_or_default();
    let is_multicast = destination.first().is_some_and(|first| first & 1 != 0);
    if destination != stack.mac.0 && !is_multicast {
        return Arrival::OtherMac;
    }
    let headers = match check(&PLAIN, frame, None, &stack.gids) {
        Ok(headers) => headers,
        Err(
            Refusal::NotIp
            | Refusal::NotUdp
            | Refusal::IpOptions
            | Refusal::Fragment
            | Refusal::OtherAddress
            | Refusal::OtherPort,
        ) => return Arrival::Control,
        Err(refusal) => return Arrival::Refused(refusal),
    };
    let Some((index, range)) = headers.segments().next() else { return Arrival::Control };
    match headers.packet(prefixes, frame, number, index, range) {
        Ok((packet, _)) => {
            let to = packet.destination;
            if to.is_multicast() && !stack.groups.contains(&to) {
                return Arrival::OtherGroup;
            }
            Arrival::Packet(packet)
        }
        Err(refusal) => Arrival::Refused(refusal),
    }
}

impl<D: Device + Send> Receiver for PhyReceiver<D> {
    fn receive(&mut self, now: Instant) -> io::Result<usize> {
        self.bell.silence();
        self.packets.clear();
        let shared = Arc::clone(&self.shared);
        let (device, stack) = &mut *lock(&shared);
        for number in 0..FRAMES_MAX {
            let start = number * self.frame_max;
            let place = self.frames.get_mut(start..start + self.frame_max).unwrap_or_default();
            let Some(len) = next_frame(device, stack, now, place) else { break };
            let Some(frame) = place.get_mut(..len) else {
                self.count(Refusal::Cut);
                continue;
            };
            match look_at(stack, &mut self.prefixes, frame, number) {
                Arrival::Packet(packet) => self.packets.push(packet),
                Arrival::Control => stack.put_control(frame),
                Arrival::OtherMac => self.other_mac += 1,
                Arrival::OtherGroup => self.other_group += 1,
                Arrival::Refused(refusal) => self.count(refusal),
            }
        }
        stack.drive(device, now);
        let gone = self.health.as_ref().map_or(0, |health| health.gone.load(Ordering::Relaxed));
        if gone != 0 {
            return Err(io::Error::from_raw_os_error(gone));
        }
        let asked = self.interval.map(|interval| now.saturating_add(interval));
        self.timeout = stack.deadline().into_iter().chain(asked).min();
        if !stack.looped.is_empty() {
            self.bell.ring();
        }
        Ok(self.packets.len())
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        for place in &self.packets {
            let frame = self.frames.get(place.frame * self.frame_max..).unwrap_or_default();
            each(&place.received(frame));
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        let (device, stack) = &mut *lock(&self.shared);
        stack.join(device, group)
    }

    fn leave(&mut self, group: Gid) {
        let (device, stack) = &mut *lock(&self.shared);
        stack.leave(device, group);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.timeout
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let (_, stack) = &*lock(&self.shared);
        let names = Refusal::ALL.iter().map(|(_, name)| *name);
        let mut counters: Vec<_> = names.zip(self.refusals).collect();
        counters.extend([
            ("rx_other_mac", self.other_mac),
            ("rx_other_group", self.other_group),
            ("rx_control", stack.counts.control),
            ("rx_control_full", stack.counts.control_full),
        ]);
        let refused = self.health.iter().map(|health| health.refused.load(Ordering::Relaxed));
        counters.extend(refused.map(|refused| ("tx_refused", refused)));
        counters
    }
}
