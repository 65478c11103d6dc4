//! The half of a link by AF_XDP that receives.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use socket2::Socket;

use super::Own;
use super::attach::Attached;
use crate::link::interface::{Interface, address_of, membership};
use crate::link::raw::packets::{PacketInFrame, Refusal, check};
use crate::link::raw::sink::Sinks;
use crate::link::sys::ring::RingFrame;
use crate::link::sys::xsk::{self, XskRx};
use crate::link::{AddressFds, GROUPS_MAX, Receiver};
use crate::time::Instant;
use crate::wire::{Gid, Path, Prefixes, Received};

/// Maximum number of frames of each queue that are received at once.
const FRAMES_MAX: usize = 64;

/// Minimum time between two checks of the sockets for an error.
const ERROR_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The half that receives.
#[derive(Debug)]
pub(super) struct XdpReceiver {
    sockets: Vec<XskRx>,
    attached: Attached,
    own: Arc<Own>,
    interface: u32,
    /// Groups that the link is in, each with the socket that keeps the interface a member.
    groups: Vec<(Gid, Socket)>,
    gids: Vec<Gid>,
    sinks: Sinks,
    is_busy_polled: bool,
    /// Packets, each with the index of its queue. Frames to the link itself have the index after
    /// that of the last queue.
    packets: Vec<(usize, PacketInFrame)>,
    /// Frames to the link itself.
    looped: Vec<Vec<u8>>,
    prefixes: Prefixes,
    next_error_check: Instant,
    refusals: [u64; Refusal::ALL.len()],
    /// Whether a packet has arrived on each queue.
    used: Vec<bool>,
}

impl XdpReceiver {
    pub(super) fn new(
        sockets: Vec<XskRx>,
        attached: Attached,
        own: Arc<Own>,
        interface: &Interface,
        sinks: Sinks,
        busy_poll: Option<u16>,
    ) -> Self {
        let gids = own.lock().gids.clone();
        Self {
            packets: Vec::with_capacity((sockets.len() + 1) * FRAMES_MAX),
            used: vec![false; sockets.len()],
            sockets,
            attached,
            own,
            interface: interface.index,
            groups: Vec::new(),
            gids,
            sinks,
            is_busy_polled: busy_poll.is_some(),
            looped: Vec::new(),
            prefixes: Prefixes::new(&Path::NOWHERE),
            next_error_check: Instant::ZERO,
            refusals: [0; _],
        }
    }

    /// Takes the frames to the link itself.
    fn receive_looped(&mut self) {
        self.looped.clear();
        self.own.bell.silence();
        {
            let frames = &mut self.own.lock().frames;
            let count = frames.len().min(FRAMES_MAX);
            self.looped.extend(frames.drain(..count));
            if !frames.is_empty() {
                self.own.bell.ring();
            }
        }
        let queue = self.sockets.len();
        for (number, frame) in self.looped.iter_mut().enumerate() {
            match packet_of(&self.gids, &mut self.prefixes, frame, number) {
                Ok(packet) => self.packets.push((queue, packet)),
                Err(refusal) => count(&mut self.refusals, refusal),
            }
        }
    }

    /// Does periodic work: the sockets of an interface that went down have a pending error and stay
    /// readable until it is taken.
    fn do_periodic_work(&mut self, now: Instant) {
        if now >= self.next_error_check {
            self.next_error_check = now.saturating_add(ERROR_CHECK_INTERVAL);
            for socket in &self.sockets {
                let _ = socket.socket().take_error();
            }
            self.sinks.retry(now);
        }
    }
}

fn count(counts: &mut [u64; Refusal::ALL.len()], refusal: Refusal) {
    if let Some(count) = counts.get_mut(refusal as usize) {
        *count += 1;
    }
}

/// The packet of a frame. The program passes only groups that the link is in.
fn packet_of(
    gids: &[Gid],
    prefixes: &mut Prefixes,
    frame: &mut [u8],
    number: usize,
) -> Result<PacketInFrame, Refusal> {
    const PLAIN: RingFrame = RingFrame { vnet: [0; _], cut: false, vlan: None };
    let headers = check(&PLAIN, frame, None, gids)?;
    let (index, range) = headers.segments().next().ok_or(Refusal::Short)?;
    headers.packet(prefixes, frame, number, index, range).map(|(packet, _)| packet)
}

impl Receiver for XdpReceiver {
    fn receive(&mut self, now: Instant) -> io::Result<usize> {
        self.packets.clear();
        for (queue, socket) in self.sockets.iter_mut().enumerate() {
            socket.give_back();
            let before = self.packets.len();
            for _ in 0..FRAMES_MAX {
                let Some(number) = socket.take() else { break };
                let Some(frame) = socket.frame_mut(number) else {
                    count(&mut self.refusals, Refusal::Cut);
                    continue;
                };
                match packet_of(&self.gids, &mut self.prefixes, frame, number) {
                    Ok(packet) => self.packets.push((queue, packet)),
                    Err(refusal) => count(&mut self.refusals, refusal),
                }
            }
            if let Some(used) = self.used.get_mut(queue).filter(|_| self.packets.len() > before) {
                *used = true;
            }
        }
        self.receive_looped();
        if self.packets.is_empty() && self.is_busy_polled {
            self.sockets.iter().for_each(XskRx::wake);
        }
        self.do_periodic_work(now);
        Ok(self.packets.len())
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        for (queue, place) in &self.packets {
            let frame = match self.sockets.get(*queue) {
                Some(socket) => socket.frame(place.frame),
                None => self.looped.get(place.frame).map(Vec::as_slice),
            };
            each(&place.received(frame.unwrap_or_default()));
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.own.bell.as_fd()
    }

    fn address_fds(&self) -> AddressFds {
        let fds = AddressFds::default();
        fds.add(self.attached.fd());
        self.sockets.iter().for_each(|socket| fds.add(socket.as_fd()));
        fds
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        if self.groups.iter().any(|(joined, _)| *joined == group) {
            return Ok(());
        }
        if self.groups.len() >= GROUPS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let member = membership(group, self.interface)?;
        self.attached.insert(group)?;
        self.groups.push((group, member));
        self.own.lock().groups.push(group);
        Ok(())
    }

    fn leave(&mut self, group: Gid) {
        self.attached.remove(group);
        self.groups.retain(|(joined, _)| *joined != group);
        self.own.lock().groups.retain(|joined| *joined != group);
    }

    fn set_gids(&mut self, gids: &[Gid]) {
        let there: Vec<Gid> = gids.iter().copied().filter(|gid| *gid != Gid::default()).collect();
        for old in self.gids.iter().filter(|old| !there.contains(old)) {
            self.attached.remove(*old);
        }
        for new in there.iter().filter(|new| !self.gids.contains(new)) {
            // The map has room for all GIDs of a port. If it were full, the kernel would get the
            // packets of this address.
            let _ = self.attached.insert(*new);
        }
        let addresses: Vec<IpAddr> = there.iter().map(|gid| address_of(*gid)).collect();
        // If no sockets can be opened, the old ones are kept.
        if let Ok(sinks) = Sinks::open(&addresses, self.interface) {
            self.sinks = sinks;
        }
        self.own.lock().gids.clone_from(&there);
        self.gids = there;
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.sinks.poll_timeout()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let names = Refusal::ALL.iter().map(|(_, name)| *name);
        let mut counters: Vec<_> = names.zip(self.refusals).collect();
        let drops = self.sockets.iter().filter_map(|socket| xsk::drops(socket.socket()).ok());
        let (dropped, full) =
            drops.fold((0, 0), |sum, (dropped, full)| (sum.0 + dropped, sum.1 + full));
        let queues = self.used.iter().filter(|used| **used).count() as u64;
        counters.extend([
            ("rx_kernel_dropped", dropped),
            ("rx_ring_full", full),
            ("rx_queues", queues),
        ]);
        counters
    }
}
