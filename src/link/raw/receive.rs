//! The receiving half of a raw link: takes frames out of the ring, and the valid packets out of
//! them.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::super::Receiver;
use super::super::interface::address_of;
use super::super::sys::ring::{self, Ring};
use super::filter::Filter;
use super::packets::{PacketInFrame, Refusal, check};
use super::sink::Sinks;
use crate::time::Instant;
use crate::wire::{Gid, Path, Prefixes, Qpn, Received};

/// Maximum number of frames that are received at once.
const FRAMES_MAX: usize = 64;

/// Number of packets from which on no further frame is received.
const PACKETS_MAX: usize = 1024;

/// Minimum time between two checks of the socket for an error.
const ERROR_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The receiving half.
#[derive(Debug)]
pub(super) struct RawReceiver {
    ring: Ring,
    filter: Filter,
    gids: Vec<Gid>,
    vlan: Option<u16>,
    packets: Vec<PacketInFrame>,
    /// ICRC prefixes of the flow of the last packet.
    prefixes: Prefixes,
    counts: [u64; Refusal::ALL.len()],
    /// Packets that the kernel coalesced (GRO) although their identifications did not count up.
    solved: u64,
    /// Frames for which there was no room.
    lost: Cell<u64>,
    /// Next time to check the socket for an error.
    next_error_check: Instant,
    /// Sockets that keep the kernel from answering with ICMP errors.
    sinks: Sinks,
}

impl RawReceiver {
    pub(super) fn new(
        ring: Ring,
        gids: Vec<Gid>,
        vlan: Option<u16>,
        filter: Filter,
        sinks: Sinks,
    ) -> Self {
        Self {
            ring,
            filter,
            gids,
            vlan,
            packets: Vec::with_capacity(PACKETS_MAX),
            prefixes: Prefixes::new(&Path::NOWHERE),
            counts: [0; _],
            solved: 0,
            lost: Cell::new(0),
            next_error_check: Instant::ZERO,
            sinks,
        }
    }

    /// Does periodic work while nothing arrives.
    ///
    /// The socket of an interface that went down has a pending error and stays readable until the
    /// error is taken. Frames arrive again when the interface is up. Port 4791 may have become
    /// free, too.
    fn do_periodic_work(&mut self, now: Instant) {
        if now >= self.next_error_check {
            self.next_error_check = now.saturating_add(ERROR_CHECK_INTERVAL);
            let _ = self.ring.socket().take_error();
            self.sinks.retry(now);
        }
    }
}

fn count(counts: &mut [u64; Refusal::ALL.len()], refusal: Refusal) {
    if let Some(count) = counts.get_mut(refusal as usize) {
        *count += 1;
    }
}

impl Receiver for RawReceiver {
    fn receive(&mut self, now: Instant) -> io::Result<usize> {
        self.ring.give_back();
        self.packets.clear();
        for _ in 0..FRAMES_MAX {
            if self.packets.len() >= PACKETS_MAX {
                break;
            }
            let Some(number) = self.ring.take() else { break };
            let Some((frame, bytes)) = self.ring.frame_mut(number) else {
                count(&mut self.counts, Refusal::Cut);
                continue;
            };
            let headers = match check(&frame, bytes, self.vlan, &self.gids) {
                Ok(headers) => headers,
                Err(refusal) => {
                    count(&mut self.counts, refusal);
                    continue;
                }
            };
            for (index, range) in headers.segments() {
                match headers.packet(&mut self.prefixes, bytes, number, index, range) {
                    Ok((place, as_expected)) => {
                        self.packets.push(place);
                        self.solved += u64::from(!as_expected);
                    }
                    Err(refusal) => count(&mut self.counts, refusal),
                }
            }
        }
        if self.packets.is_empty() {
            self.do_periodic_work(now);
        }
        Ok(self.packets.len())
    }

    fn for_each(&self, each: &mut dyn FnMut(&Received<'_>)) {
        for place in &self.packets {
            each(&place.received(self.ring.frame(place.frame).unwrap_or_default()));
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    fn join(&mut self, group: Gid) -> io::Result<()> {
        self.filter.join(self.ring.socket(), group)
    }

    fn leave(&mut self, group: Gid) {
        self.filter.leave(self.ring.socket(), group);
    }

    fn has_qpn_filter(&self) -> bool {
        true
    }

    fn set_qpn_filter(&mut self, queue_pairs: Option<&[Qpn]>) {
        self.filter.set_queue_pairs(self.ring.socket(), queue_pairs);
    }

    fn set_gids(&mut self, gids: &[Gid]) {
        let there = gids.iter().copied().filter(|gid| *gid != Gid::default());
        self.gids = there.collect();
        let addresses: Vec<IpAddr> = self.gids.iter().map(|gid| address_of(*gid)).collect();
        // A port that is in use is bound as soon as it is free. If no sockets can be opened, the
        // old ones are kept.
        if let Ok(sinks) = Sinks::open(&addresses, self.filter.interface()) {
            self.sinks = sinks;
        }
        self.filter.set_addresses(self.ring.socket(), addresses);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.sinks.poll_timeout()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut counters: Vec<_> =
            Refusal::ALL.iter().zip(self.counts).map(|((_, name), count)| (*name, count)).collect();
        if let Ok((_, drops)) = ring::statistics(self.ring.socket()) {
            self.lost.set(self.lost.get() + u64::from(drops));
        }
        counters.extend([("rx_solved", self.solved), ("rx_ring_full", self.lost.get())]);
        counters
    }
}
