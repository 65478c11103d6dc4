//! The half of a link by AF_XDP that sends, by rings.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{OWN_MAX, Own};
use crate::link::Sender;
use crate::link::framing::{Framed, Framer};
use crate::link::raw::neighbor::Neighbors;
use crate::link::raw::send::{IpSockets, is_fatal};
use crate::link::sys::xsk::XskTx;
use crate::time::Instant;
use crate::wire::{Batch, MacAddr, Path, Train};

/// Number of waits for room until a frame is dropped, and the length of each: 20 ms together.
const WAITS_MAX: u32 = 200;
const WAIT: Duration = Duration::from_micros(100);

/// The half that sends.
#[derive(Debug)]
pub(super) struct XdpSender {
    sockets: Vec<XskTx>,
    framer: Framer,
    mac: MacAddr,
    neighbors: Neighbors,
    /// Sockets for packets that the kernel has to carry.
    ip: IpSockets,
    own: Arc<Own>,
    counts: Counts,
    /// Whether a queue has been used.
    used: Vec<bool>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    frames: u64,
    looped: Looped,
    through_kernel: u64,
    /// Packets that the kernel refused.
    refused: u64,
    /// Frames for which the rings had no room for too long.
    ring_full: u64,
}

/// Numbers of packets to the link itself.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Looped {
    /// Packets that came back without touching the interface.
    packets: u64,
    /// Packets that there was no room for.
    full: u64,
}

impl Looped {
    pub(super) fn counters(self) -> [(&'static str, u64); 2] {
        [("tx_looped", self.packets), ("tx_looped_full", self.full)]
    }
}

/// Way of packets to one destination.
enum Way {
    Own,
    /// Through the kernel, and back if the link is in the group.
    Kernel(bool),
    Neighbor(MacAddr),
}

impl XdpSender {
    pub(super) fn new(
        sockets: Vec<XskTx>,
        mac: MacAddr,
        neighbors: Neighbors,
        ip: IpSockets,
        own: Arc<Own>,
    ) -> Self {
        let (framer, counts, used) =
            (Framer::new(mac), Counts::default(), vec![false; sockets.len()]);
        Self { sockets, framer, mac, neighbors, ip, own, counts, used }
    }

    fn way(&mut self, now: Instant, path: &Path) -> Way {
        let destination = path.destination;
        if destination.is_multicast() {
            return Way::Kernel(self.own.lock().groups.contains(&destination));
        }
        match self.neighbors.find(now, destination) {
            Some(mac) => Way::Neighbor(mac),
            None if self.own.lock().gids.contains(&destination) => Way::Own,
            None => Way::Kernel(false),
        }
    }

    fn send_train(&mut self, now: Instant, train: &mut Train<'_>) -> io::Result<()> {
        let path = *train.path;
        match self.way(now, &path) {
            Way::Own => {
                let (own, looped) = (&self.own, &mut self.counts.looped);
                self.framer.for_each(train, self.mac, |framed| loop_back(own, looped, framed));
                self.own.bell.ring();
                Ok(())
            }
            Way::Kernel(is_member) => self.send_through_kernel(&path, train, is_member),
            Way::Neighbor(mac) => self.send_frames(train, mac),
        }
    }

    fn send_frames(&mut self, train: &mut Train<'_>, mac: MacAddr) -> io::Result<()> {
        let queue = usize::from(train.path.source_port) % self.sockets.len().max(1);
        let Some(socket) = self.sockets.get_mut(queue) else { return Ok(()) };
        if let Some(used) = self.used.get_mut(queue) {
            *used = true;
        }
        let (counts, mut result) = (&mut self.counts, Ok(()));
        self.framer.for_each(train, mac, |framed| {
            if result.is_ok() && !socket.has_room() {
                result = wait_for_room(socket);
            }
            if socket.put(framed.len(), |frame| framed.write(frame)) {
                counts.frames += 1;
            } else {
                counts.ring_full += 1;
            }
        });
        result
    }

    fn send_through_kernel(
        &mut self,
        path: &Path,
        train: &mut Train<'_>,
        is_member: bool,
    ) -> io::Result<()> {
        let (counts, ip, own, mut result) = (&mut self.counts, &self.ip, &self.own, Ok(()));
        self.framer.for_each(train, self.mac, |framed| {
            match ip.send(path, framed.id, framed.packet) {
                Ok(()) => counts.through_kernel += 1,
                Err(error) if is_fatal(&error) => result = Err(error),
                Err(_) => counts.refused += 1,
            }
            if is_member {
                loop_back(own, &mut counts.looped, framed);
            }
        });
        if is_member {
            self.own.bell.ring();
        }
        result
    }
}

/// Lets frames leave until there is room for one, for a while.
#[cold]
fn wait_for_room(socket: &mut XskTx) -> io::Result<()> {
    for _ in 0..WAITS_MAX {
        kick(socket)?;
        if socket.has_room() {
            break;
        }
        std::thread::sleep(WAIT);
    }
    Ok(())
}

/// Lets the kernel send; an interface that is down keeps what there is.
fn kick(socket: &mut XskTx) -> io::Result<()> {
    match socket.kick() {
        Err(error) if is_fatal(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Puts the frame of a packet to the link itself where the receiving half takes it.
pub(super) fn loop_back(own: &Own, looped: &mut Looped, framed: &Framed<'_>) {
    let frames = &mut own.lock().frames;
    if frames.len() >= OWN_MAX {
        looped.full += 1;
        return;
    }
    let mut frame = vec![0; framed.len()];
    framed.write(&mut frame);
    frames.push_back(frame);
    looped.packets += 1;
}

impl Sender for XdpSender {
    fn send(&mut self, now: Instant, batch: &mut Batch) -> io::Result<()> {
        for mut train in batch.trains_mut() {
            self.send_train(now, &mut train)?;
        }
        self.sockets.iter_mut().try_for_each(kick)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let Counts { frames, looped, through_kernel, refused, ring_full } = self.counts;
        let mut counters = vec![
            ("tx_frames", frames),
            ("tx_through_kernel", through_kernel),
            ("tx_refused", refused),
            ("tx_ring_full", ring_full),
            ("tx_queues", self.used.iter().filter(|used| **used).count() as u64),
        ];
        counters.extend(looped.counters());
        counters
    }
}
