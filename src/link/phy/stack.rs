//! The state of a link on a device: smoltcp's interface, and the ways of packets past it.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use smoltcp::iface::{self, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, TxToken};
use smoltcp::socket::udp;
use smoltcp::time::Instant as Timestamp;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};

use super::Config;
use super::neighbors::{Neighbors, PROBES_MAX, State};
use super::own::{OwnFrames, PROBE_PORT};
use super::queue::FrameQueue;
use crate::link::GROUPS_MAX;
use crate::link::bell::Bell;
use crate::link::framing::{Framed, Framer};
use crate::link::interface::address_of;
use crate::link::raw::neighbor::multicast_mac;
use crate::time::Instant;
use crate::wire::{Gid, MacAddr, Train};

/// Maximum number of frames for neighbors that are looked for.
const HELD_MAX: usize = 512;

/// Maximum number of frames for which the device has no room, and of those that come back.
const QUEUE_MAX: usize = 512;

/// smoltcp looks for one neighbor in this time. Its clock is moved on so far for the next one.
const SILENT_TIME: Duration = Duration::from_secs(1);

/// Time after which a device that had no room is tried again.
pub(super) const RETRY: Duration = Duration::from_micros(100);

/// Frames of a link that were dropped or delayed, by cause.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) frames: u64,
    /// Packets that came back without touching the device.
    pub(super) looped: u64,
    /// Packets that waited until their neighbor was found.
    pub(super) held: u64,
    /// Packets to neighbors that did not answer, or of which too many were looked for.
    pub(super) unresolved: u64,
    /// Packets for which no room was left while their neighbor was looked for.
    pub(super) held_full: u64,
    /// Frames for which the device, or the way back, had no room for too long.
    pub(super) queue_full: u64,
    /// Frames that smoltcp's interface got.
    pub(super) control: u64,
    /// Frames for it that its queue had no room for.
    pub(super) control_full: u64,
}

/// Everything of a link but its device.
pub(super) struct Stack {
    interface: Interface,
    sockets: SocketSet<'static>,
    probes: Vec<SocketHandle>,
    own: OwnFrames,
    neighbors: Neighbors,
    /// Frames for neighbors that are looked for, without the destination's hardware address.
    held: VecDeque<(Gid, Vec<u8>)>,
    /// Frames for which the device had no room.
    waiting: FrameQueue,
    /// Frames to the link itself.
    pub(super) looped: FrameQueue,
    pub(super) gids: Vec<Gid>,
    pub(super) groups: Vec<Gid>,
    pub(super) mac: MacAddr,
    bell: Arc<Bell>,
    /// Time by which smoltcp's clock is ahead.
    ahead: Duration,
    /// Next time at which the interface has something to do.
    next_poll: Option<Instant>,
    now: Instant,
    pub(super) counts: Counts,
}

/// Way of packets to one destination.
enum Way {
    /// To the link itself.
    Own,
    /// To a group, and back if the link is in it.
    Group(MacAddr, bool),
    Neighbor(MacAddr),
    /// They wait.
    Held,
    /// They are dropped.
    None,
}

impl Stack {
    pub(super) fn new<D: Device>(
        device: &mut D,
        config: &Config,
        gids: Vec<Gid>,
        bell: Arc<Bell>,
    ) -> Self {
        let mut own = OwnFrames::new(device.capabilities());
        let mut settings = iface::Config::new(EthernetAddress(config.mac.0).into());
        settings.random_seed = config.seed;
        let mut interface = Interface::new(settings, &mut own, Timestamp::ZERO);
        let prefix = |(address, len): &(IpAddr, u8)| {
            let max = if address.is_ipv4() { 32 } else { 128 };
            IpCidr::new((*address).into(), (*len).min(max))
        };
        let link_local = gids.last().map(|gid| IpCidr::new(address_of(*gid).into(), 64));
        interface.update_ip_addrs(|addresses| {
            for address in config.addresses.iter().map(prefix).chain(link_local) {
                // `open` has seen to it that there are not too many.
                let _ = addresses.push(address);
            }
        });
        for gateway in &config.gateways {
            // The table has room for one of each family.
            let _ = match gateway {
                IpAddr::V4(gateway) => interface.routes_mut().add_default_ipv4_route(*gateway),
                IpAddr::V6(gateway) => interface.routes_mut().add_default_ipv6_route(*gateway),
            };
        }
        let mut sockets = SocketSet::new(Vec::new());
        let probes = (0..PROBES_MAX).map(|_| sockets.add(probe_socket())).collect();
        Self {
            interface,
            sockets,
            probes,
            own,
            neighbors: Neighbors::new(),
            held: VecDeque::new(),
            waiting: FrameQueue::new(QUEUE_MAX),
            looped: FrameQueue::new(QUEUE_MAX),
            gids,
            groups: Vec::new(),
            mac: config.mac,
            bell,
            ahead: Duration::ZERO,
            next_poll: Some(Instant::ZERO),
            now: Instant::ZERO,
            counts: Counts::default(),
        }
    }

    pub(super) fn timestamp(&self, now: Instant) -> Timestamp {
        let micros = i64::try_from(now.as_nanos() / 1000).unwrap_or(i64::MAX / 2);
        Timestamp::from_micros(micros) + self.ahead.into()
    }

    /// Sends the packets of a train.
    pub(super) fn send<D: Device>(
        &mut self,
        device: &mut D,
        now: Instant,
        train: &mut Train<'_>,
        framer: &mut Framer,
    ) {
        let destination = train.path.destination;
        match self.way(device, now, destination) {
            Way::Own => {
                framer.for_each(train, self.mac, |framed| self.loop_back(framed));
                self.bell.ring();
            }
            Way::Group(mac, is_member) => {
                framer.for_each(train, mac, |framed| {
                    self.transmit(device, now, framed.len(), |frame| framed.write(frame));
                    if is_member {
                        self.loop_back(framed);
                    }
                });
                if is_member {
                    self.bell.ring();
                }
            }
            Way::Neighbor(mac) => framer.for_each(train, mac, |framed| {
                self.transmit(device, now, framed.len(), |frame| framed.write(frame));
            }),
            Way::Held => framer.for_each(train, MacAddr([0; 6]), |framed| {
                if self.held.len() >= HELD_MAX {
                    self.counts.held_full += 1;
                    return;
                }
                let mut frame = vec![0; framed.len()];
                framed.write(&mut frame);
                self.held.push_back((destination, frame));
                self.counts.held += 1;
            }),
            Way::None => self.counts.unresolved += train.len() as u64,
        }
    }

    fn way<D: Device>(&mut self, device: &mut D, now: Instant, destination: Gid) -> Way {
        if self.gids.contains(&destination) {
            return Way::Own;
        }
        if let Some(mac) = multicast_mac(destination) {
            return Way::Group(mac, self.groups.contains(&destination));
        }
        let mut found = self.neighbors.find(now, destination);
        if let Some(probe) = found.probe {
            self.probe(device, now, probe, destination);
            // The interface may have known it.
            found = self.neighbors.find(now, destination);
        }
        match found.state {
            State::Known(mac) => Way::Neighbor(mac),
            State::Asked => Way::Held,
            State::Busy => Way::None,
        }
    }

    /// Makes the interface look for a neighbor.
    fn probe<D: Device>(&mut self, device: &mut D, now: Instant, probe: usize, gid: Gid) {
        let Some(handle) = self.probes.get(probe) else { return };
        let socket = self.sockets.get_mut::<udp::Socket<'_>>(*handle);
        let to: (IpAddress, u16) = (address_of(gid).into(), PROBE_PORT);
        // An address that no packet can go to gets no answer.
        let _ = socket.send_slice(&[0], to);
        self.ahead += SILENT_TIME;
        self.poll(device, now);
        // A thread that sleeps learns of the new deadline.
        self.bell.ring();
    }

    fn loop_back(&mut self, framed: &Framed<'_>) {
        match self.looped.push(framed.len(), |frame| framed.write(frame)) {
            Some(()) => self.counts.looped += 1,
            None => self.counts.queue_full += 1,
        }
    }

    /// Sends a frame behind those that wait.
    fn transmit<D: Device>(
        &mut self,
        device: &mut D,
        now: Instant,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) {
        if self.waiting.is_empty()
            && let Some(token) = device.transmit(self.timestamp(now))
        {
            token.consume(len, write);
            self.counts.frames += 1;
        } else if self.waiting.push(len, write).is_none() {
            self.counts.queue_full += 1;
        }
    }

    /// Sends frames that wait for room, as far as there is some.
    pub(super) fn flush<D: Device>(&mut self, device: &mut D, now: Instant) {
        while let Some(frame) = self.waiting.pop() {
            let Some(token) = device.transmit(self.timestamp(now)) else {
                return self.waiting.put_back(frame);
            };
            token.consume(frame.len(), |place| place.copy_from_slice(&frame));
            self.waiting.recycle(frame);
            self.counts.frames += 1;
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Gives a frame that is not RoCE to smoltcp's interface, with the next poll.
    pub(super) fn put_control(&mut self, frame: &[u8]) {
        match self.own.arrived.push(frame.len(), |place| place.copy_from_slice(frame)) {
            Some(()) => self.counts.control += 1,
            None => self.counts.control_full += 1,
        }
    }

    /// Does what is due, and gives the interface the frames that have arrived for it.
    pub(super) fn drive<D: Device>(&mut self, device: &mut D, now: Instant) {
        self.now = now;
        self.flush(device, now);
        if self.neighbors.deadline().is_some_and(|deadline| deadline <= now) {
            self.give_up(now);
        }
        let is_due = self.next_poll.is_some_and(|due| due <= now);
        if is_due || !self.own.arrived.is_empty() {
            self.poll(device, now);
        }
    }

    /// Drops the packets to neighbors that did not answer.
    #[cold]
    fn give_up(&mut self, now: Instant) {
        let Self { neighbors, sockets, probes, held, counts, .. } = self;
        neighbors.expire(now, |gid, probe| {
            let before = held.len();
            held.retain(|(to, _)| *to != gid);
            counts.unresolved += (before - held.len()) as u64;
            if let Some(handle) = probes.get_mut(probe) {
                sockets.remove(*handle);
                *handle = sockets.add(probe_socket());
            }
        });
    }

    /// Lets the interface do its work, and sends what it wants to send.
    #[cold]
    fn poll<D: Device>(&mut self, device: &mut D, now: Instant) {
        let at = self.timestamp(now);
        self.interface.poll(at, &mut self.own, &mut self.sockets);
        while let Some(frame) = self.own.leaving.pop() {
            self.transmit(device, now, frame.len(), |place| place.copy_from_slice(&frame));
            self.own.leaving.recycle(frame);
        }
        for (gid, mac) in std::mem::take(&mut self.own.found) {
            self.neighbors.found(now, gid, mac);
            self.release(device, now, gid, mac);
        }
        self.next_poll = self.interface.poll_at(at, &self.sockets).map(|due| {
            let wait = if due > at { (due - at).into() } else { Duration::ZERO };
            now.saturating_add(wait.max(Duration::from_millis(1)))
        });
    }

    /// Sends the packets that waited for a neighbor, in order.
    fn release<D: Device>(&mut self, device: &mut D, now: Instant, gid: Gid, mac: MacAddr) {
        let (ready, held): (VecDeque<_>, _) =
            std::mem::take(&mut self.held).into_iter().partition(|(to, _)| *to == gid);
        self.held = held;
        for (_, mut frame) in ready {
            if let Some(place) = frame.first_chunk_mut() {
                *place = mac.0;
            }
            self.transmit(device, now, frame.len(), |place| place.copy_from_slice(&frame));
        }
    }

    /// Returns the time at which [`drive`](Self::drive) must be called.
    pub(super) fn deadline(&self) -> Option<Instant> {
        [self.next_poll, self.neighbors.deadline()].into_iter().flatten().min()
    }

    /// Joins a multicast group.
    pub(super) fn join<D: Device>(&mut self, device: &mut D, group: Gid) -> io::Result<()> {
        if self.groups.contains(&group) {
            return Ok(());
        }
        if self.groups.len() >= GROUPS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let address = address_of(group);
        if !self.gids.iter().any(|gid| address_of(*gid).is_ipv4() == address.is_ipv4()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.interface.join_multicast_group(address).map_err(io::Error::other)?;
        self.groups.push(group);
        self.poll(device, self.now);
        self.bell.ring();
        Ok(())
    }

    /// Leaves a multicast group.
    pub(super) fn leave<D: Device>(&mut self, device: &mut D, group: Gid) {
        self.groups.retain(|joined| *joined != group);
        // It fails for addresses that are no group's.
        let _ = self.interface.leave_multicast_group(address_of(group));
        self.poll(device, self.now);
    }

    /// Frames of smoltcp's interface for which there was no room.
    pub(super) fn own_lost(&self) -> u64 {
        self.own.lost
    }
}

/// A socket whose datagrams make the interface look for a neighbor.
fn probe_socket() -> udp::Socket<'static> {
    let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY], vec![0; 1]);
    let mut socket = udp::Socket::new(buffer(), buffer());
    // It fails for port 0 alone, and for a socket that is bound.
    let _ = socket.bind(PROBE_PORT);
    socket
}
